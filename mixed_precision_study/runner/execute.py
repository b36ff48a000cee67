"""One run: papermill in a process of its own, watched until it ends, and a record for each
training that left none.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import psutil
import yaml

from ..measure import nvml
from ..parameters import printable
from ..store.commit import ROOT, hash_of
from ..store.record import (
    NOT_YET_EXPLAINED,
    flat_record,
    load,
    new_record,
    read_run,
    save_record,
    utc_now,
    write_record,
)
from ..store.variables import (
    COMMIT_ENV,
    COMPILED_ENV,
    FOLDER_ENV,
    GPUS_ENV,
    HASH_ENV,
    IMPORTS_ENV,
    KERNELS_ENV,
    NOTEBOOK_ENV,
    OF_CHILDREN,
    ORDER_ENV,
    PLANNED_ENV,
    PROGRESS_ENV,
    RUNNER_ENV,
    STUDY_ENV,
    THREADS_ENV,
    with_folder,
)
from .devices import Device
from .finished import RETRIED
from .plan import Run
from .status import say
from .studies import relative_to_root
from .watch import end

# with a kernel of this Python, whatever others are installed
KERNELSPECS = Path(__file__).parent / "jupyter"
# what Python starts for a notebook
NOTEBOOK_PROCESS = ("-m", "mixed_precision_study.runner.notebook_process")
DEAD_KERNEL_EXIT = 138  # papermill's exit status
STALL_SECONDS = 3600  # a run that shows no progress for so long is ended
LOOK_SECONDS = 1.0  # between two looks at how far a run is and what it has started
LOG_BYTES = 2**18  # a notebook may print without end
NOTEBOOK_ROOM_BYTES = 4 * 2**20  # for an executed notebook
OOM_COUNTER = Path("/proc/vmstat")  # it counts what was ended within a container, too
Watcher = Callable[[str], None]  # is told how far a run is
Signatures = dict[str, tuple[int, int] | None]  # what signature() says of the records of a run


class Circumstances(NamedTuple):
    """What all runs of a study share."""

    commit: str | None
    limit: float  # seconds that a run may take
    threads: int | None = None  # cores of each, where several run at a time


def execute(run: Run, device: Device, shared: Circumstances, halt: Event, watcher: Watcher) -> bool:
    """Make a run and see that each of its trainings has a record. Its log stays where something
    went wrong.

    Return False where `halt` ended it, so that what it had not finished has no record. Raise
    nvml.GpuLost where its GPU is gone, and OSError where the disk is full or the folder was
    removed.
    """
    answered = bool(device.visible) and nvml.used_mib(device.visible) is not None
    before = signatures(run)
    kills = oom_kills()
    code = hash_of(run.notebook)
    known = {"commit": shared.commit, "code_hash": code, "started_at": utc_now()}
    exit_status, stopped = watch(start(run, device, shared, code), run, shared.limit, halt, watcher)
    records = new_records(run, before)
    if halt.is_set() and exit_status:  # even where only its explanation is missing
        return False
    status, reason = ("timeout", stopped) if stopped else ending_of(run, exit_status, kills)
    if exit_status:
        with tempfile.TemporaryFile(dir=run.folder) as file:
            # raises OSError: a full disk is no result of a run
            file.write(bytes(NOTEBOOK_ROOM_BYTES))
    if lost := gpu_lost(run, device, records, reason, answered):
        reason = f"the GPU was lost: {lost}"[:300]
        write_endings(run, run.trainings, device, "failed", reason, **known)
        raise nvml.GpuLost(reason)
    if missing := run.trainings.keys() - records:
        write_endings(run, missing, device, status, reason, **known)
    else:
        finish(run, device, records, reason if exit_status else "")
    return True


def finish(run: Run, device: Device, records: dict, reason: str) -> None:
    """Remove the log of a run whose trainings all went well. Where a `reason` is given, it went
    wrong after its records, which then say so in place of NOT_YET_EXPLAINED.
    """
    if reason:  # it ended while it explained, and would so again
        for path in run.record_paths.values():
            if not (record := load(path)):
                continue
            for name, value in flat_record(record).items():
                if value == NOT_YET_EXPLAINED:
                    setattr(record, name, reason)
            save_record(record, path)
        said = f"went wrong after its record: {reason}"
        say(f"{device.label}  {run.title} {said}", f"{device.label}  {run.name} {said}")
    elif {record["status"] for record in records.values()} == {"ok"}:
        run.log_path.unlink(missing_ok=True)


def signatures(run: Run) -> Signatures:
    """Return {run_id: signature of its record} of a run."""
    return {run_id: signature(path) for run_id, path in run.record_paths.items()}


def new_records(run: Run, before: Signatures) -> dict:
    """Return {run_id: record} of those records that were written since these signatures."""
    return {
        run_id: record
        for run_id, path in run.record_paths.items()
        if run_id in before and signature(path) != before[run_id] and (record := read_run(path))
    }


def watch(
    process: psutil.Popen, run: Run, limit: float, halt: Event, watcher: Watcher
) -> tuple[int, str]:
    """Wait until papermill ends, and end what is left.

    Return (exit status, why it was stopped or "").
    """
    family = {process}
    progress_file = run.log_path.with_suffix(".progress")
    began = progressed = time.monotonic()
    signs = None
    progress = ""
    stopped = ""
    try:
        watcher("")
        while not stopped and not halt.is_set():
            with suppress(psutil.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                break
            with suppress(psutil.Error):
                family.update(process.children(recursive=True))
            with suppress(OSError, ValueError):
                progress = progress_file.read_text(encoding="utf-8")
            now = time.monotonic()
            if (signature(run.log_path), progress) != signs:
                signs = (signature(run.log_path), progress)
                progressed = now
            watcher(progress)
            late = now - began > limit
            if late or now - progressed > STALL_SECONDS:
                why = "--timeout" if late else "an hour without progress"
                where = f" at {progress}" if progress else ""
                stopped = f"stopped after {(now - began) / 60:.3g} minutes ({why}){where}"
    finally:
        end(family)
        exit_status = process.wait()
        progress_file.unlink(missing_ok=True)
    return exit_status, stopped


def start(run: Run, device: Device, shared: Circumstances, code: str | None) -> psutil.Popen:
    """Start papermill on a run."""
    progress = run.log_path.with_suffix(".progress")
    for path in (run.executed, run.log_path, progress):  # what is read of the run must come from it
        path.unlink(missing_ok=True)
    home = os.path.expanduser("~")
    cache = home if os.access(home, os.W_OK) else run.folder / "logs"
    # PyTorch's own choice lies in /tmp, where another user may make it first and put code of theirs
    # into it.
    compiled = f"{cache}/.cache/mixed_precision_study/torchinductor"
    threads = str(shared.threads) if shared.threads else None
    given = {
        COMPILED_ENV: os.environ.get(COMPILED_ENV, compiled),
        THREADS_ENV: os.environ.get(THREADS_ENV, threads),
        COMMIT_ENV: shared.commit,
        PROGRESS_ENV: str(progress),
        HASH_ENV: code,
        NOTEBOOK_ENV: str(run.notebook.resolve()),
        ORDER_ENV: str(run.order),
        STUDY_ENV: json.dumps(run.study),
        PLANNED_ENV: json.dumps(
            {"parameters": run.parameters, "given": run.given, "ways": run.ways}
        ),
    }
    return start_process(
        papermill(run.notebook, run.executed, run.parameters),
        run.folder,
        run.log_path,
        given,
        device.visible,
    )


def papermill(notebook: Path, executed: Path, parameters: dict) -> list[str]:
    """Return the arguments of Python that execute a notebook; papermill's paths must neither begin
    with a dash nor hold parameters.
    """
    paths = [
        relative_to_root(path).replace("{", "{{").replace("}", "}}")
        for path in (notebook, executed)
    ]
    paths = [path if Path(path).is_absolute() else f"./{path}" for path in paths]
    return [
        *NOTEBOOK_PROCESS,
        *paths,
        "-k",
        "python3",
        "--cwd",
        str(ROOT),
        "--start-timeout",
        "120",
        "--log-output",
        "--no-progress-bar",
        "-y",
        yaml.safe_dump(parameters),
    ]


def start_process(
    command: list[str], folder: Path, log: Path, given: dict, gpu: str = ""
) -> psutil.Popen:
    """Start Python for an output folder, without a shell, in a session of its own, which ends with
    this process.

    It sees one GPU or none. Its environment is this one's with `given`, where None takes a name
    away.
    """
    environment = {
        **os.environ,
        **OF_CHILDREN,
        IMPORTS_ENV: with_folder(ROOT, IMPORTS_ENV),
        KERNELS_ENV: with_folder(KERNELSPECS, KERNELS_ENV),
        GPUS_ENV: gpu,
        RUNNER_ENV: str(os.getpid()),
        FOLDER_ENV: str(folder),
        **given,
    }
    with log.open("ab") as output:
        return psutil.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


def ending_of(run: Run, exit_status: int, kills: list[str]) -> tuple[str, str]:
    """Return (status, reason) of a run that ended by itself, as it stands in the records of
    trainings without one.
    """
    if exit_status < 0 or exit_status == DEAD_KERNEL_EXIT:
        memory = " because the machine's memory was exhausted" if oom_kills() != kills else ""
        name = (
            f"papermill was ended by {signal.Signals(-exit_status).name}"
            if exit_status < 0
            else "the kernel died"
        )
        return "killed", f"{name}{memory}"
    if not exit_status:
        return "failed", "the notebook ended without writing a record that can be used"
    return "failed", failure_reason(run)


def gpu_lost(run: Run, device: Device, records: dict, reason: str, answered: bool) -> str | None:
    """Return what shows that the run's GPU is gone, or None.

    Without a GPU PyTorch would run on the CPU.
    """
    if not device.visible:
        return None
    if any(record["device_type"] == "cpu" for record in records.values()):
        return "the notebook found none and ran on the CPU"
    reasons = [
        reason,
        *(str(record["reason"]) for record in records.values() if record["status"] in RETRIED),
    ]
    failed = len(reasons) > 1 or len(records) < len(run.record_paths)
    text = "\n".join([*reasons, read_log(run)])
    return reasons[-1] if failed and nvml.is_lost(device.visible, text, answered) else None


def write_endings(
    run: Run, run_ids: Iterable[str], device: Device, status: str, reason: str, **known: Any
) -> None:
    """Write the records of trainings that could not write their own.

    `known` are other fields of them.
    """
    facts = {
        "started_at": utc_now(),
        "finished_at": utc_now(),
        "device_type": "cpu",
        "status": status,
        "reason": reason,
        "study": run.study,
        "order_in_comparison": run.order,
        **known,
    }
    if device.visible:
        facts |= {
            "device_type": "cuda",
            "gpu_name": device.name,
            "gpu_uuid": device.visible.removeprefix("GPU-"),
        }
    for run_id in run_ids:
        write_record(new_record(run.notebook.stem, *run.trainings[run_id], facts), run.folder)


def oom_kills() -> list[str]:
    """Return how many processes Linux has killed for lack of memory, or nothing where it does
    not say.
    """
    with suppress(OSError):
        return re.findall(r"^oom_kill (\d+)$", OOM_COUNTER.read_text(), re.MULTILINE)
    return []


def failure_reason(run: Run) -> str:
    """Return in one line why papermill failed: the error at the end of its log, which is the
    notebook's.
    """
    last = re.split(
        r'\n\n|Exception encountered at "In \[\d*\]":\n', printable(read_log(run)).strip()
    )[-1]
    error = re.search(
        r"^([\w.]*(Error|Exception|Interrupt)(:|$)|Stopped:).*", last, re.MULTILINE | re.DOTALL
    )
    lines = error[0] if error else last.rpartition("\n")[2] or "it ended without a word"
    text = " ".join(lines.removeprefix("Stopped: ").split())  # a UserError explains itself
    # a record names no folder of this machine
    for folder in (str(ROOT), sys.prefix, os.path.expanduser("~")):
        text = text.replace(folder + os.sep, "") if len(folder) > 1 else text
    return text if len(text) <= 300 else text[:297] + "..."


def read_log(run: Run) -> str:
    """Return the end of a run's log."""
    with run.log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        return log.read().decode(errors="replace")


def signature(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced or written, or None where there is no file."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None
