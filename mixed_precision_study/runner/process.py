"""One run's life on this machine: start, watch, end, judge.

A run is execute_notebook.py in a session of its own, with its kernel below it. Everything that belongs to it carries
the mark of the run in its environment, so that all of it can be found and ended whoever has died in between.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from ..gpu import nvml
from ..record import STATUSES, RunRecord, utc_now, write_record
from .notebook_file import MALFORMED
from .paths import ROOT, python_path, relative_to_root
from .plan import Run

EXECUTE = "mixed_precision_study.runner.execute_notebook"
DEAD_KERNEL_EXIT = 138  # of execute_notebook.py
SILENCE_SECONDS = 240  # without a heartbeat; longer than a kernel may take to start
NOTEBOOK_ROOM_BYTES = 4 * 2**20  # bytes, for an executed notebook
LOG_BYTES, NOTEBOOK_BYTES = 2**18, 2**26  # that are looked at for a reason; a notebook may print without end
START_ATTEMPTS = 4  # three of them again
UNREADABLE = "unreadable"  # in the place of a hash
MAX_JSON_NUMBER = 1e300  # more than any figure of a record; a whole number beyond it cannot be computed with
RETRIED = ("failed", "timeout", "killed")  # ends that are no result
RUN_FOLDER_ENV, OUTPUT_FOLDER_ENV = (
    "MIXED_PRECISION_RUN",
    "MIXED_PRECISION_BATCH",
)  # environment: which run, which output folder
PROGRESS_ENV = "MIXED_PRECISION_PROGRESS"  # environment: the file into which a notebook writes at which step it is
PROBE = "import torch; torch.ones(8, device='cuda').sum().item()"
PROBE_SECONDS = 60
PRIVATE_PREFIX = "run-"  # how the name of a private folder begins
PRIVATE_FOLDERS_FILE = (
    ".private"  # in logs/: the private folders of a batch, for what is killed at one blow removes none
)
OOM_KILLS = ("/sys/fs/cgroup{group}/memory.events", "/sys/fs/cgroup/memory{group}/memory.oom_control", "/proc/vmstat")


@dataclass
class RunningProcess:
    """A run that is being executed."""

    run: Run
    process: subprocess.Popen
    private: Path  # folder of the kernel's sockets, and of what execute_notebook.py notes
    record_before: tuple | None  # signature of what lay in the record's place
    code_hash: str | None = None  # of the notebook as it was started; it may be edited while it runs
    attempt: int = 1
    gpu_before: nvml.GpuState | None = None
    oom_kills: int | None = None
    started_at: str = field(default_factory=utc_now)
    started: float = field(default_factory=time.monotonic)  # seconds, on a clock that nobody sets
    beat: tuple | None = None  # signature of the last heartbeat seen
    beat_seen: float = field(default_factory=time.monotonic)
    progress: str = ""  # the last that was seen, and since when
    progress_seen: float = field(default_factory=time.monotonic)
    stopped: str = ""  # why it was ended here, should the ending itself be interrupted


class RunOutcome(NamedTuple):
    """What became of a run: its record, or None where it shall be started again."""

    record: dict | None
    remark: str = ""
    lost: bool = False  # the device, so that the run must go to another one
    begun: bool = True  # the run, when its device was lost


def child_environment(study, folder, commit=None, device=None, code_hash=None):
    """Return the environment of a run, in which it sees one GPU or none."""
    changes = {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1", "MPLBACKEND": None, "MIXED_PRECISION_STUDY": study}
    changes |= {
        "CUDA_VISIBLE_DEVICES": device.visible if device else "",
        "MIXED_PRECISION_COMMIT": commit,
        "MIXED_PRECISION_CODE_HASH": code_hash,
        OUTPUT_FOLDER_ENV: str(folder),
        "PYTHONPATH": python_path(),
    }
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def private_folder():
    """Make a folder that only this user can enter, where the name of a socket in it is short enough (107 bytes)."""
    usual = tempfile.gettempdir()
    if os.name == "posix" and len(os.fsencode(usual)) > 80:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir="/tmp"))
    return Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=usual))


def start(command, log_path, environment):
    """Start a Python program in a session of its own with its output going to `log_path`: no shell."""
    group = {"start_new_session": True, "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    with log_path.open("wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, **streams, **group)


def start_notebook(notebook, executed, parameters, log_path, environment):
    """Start execute_notebook.py and return (process, private folder); the parameters go through a file."""
    parameter_file = log_path.with_suffix(".yaml")
    parameter_file.write_text(yaml.safe_dump(parameters), encoding="utf-8")
    private = private_folder()
    words = [
        "-m",
        EXECUTE,
        relative_to_root(notebook),
        relative_to_root(executed),
        relative_to_root(parameter_file),
        str(private),
    ]
    environment = {**environment, RUN_FOLDER_ENV: str(private), PROGRESS_ENV: str(private / "progress")}
    try:
        with (log_path.parent / PRIVATE_FOLDERS_FILE).open("a", encoding="utf-8") as noted:
            noted.write(f"{private}\n")
        return start([*words, str(os.getpid())], log_path, environment), private
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise


def launch(run, study, commit, device, attempt=1):
    """Start a run; how a kernel is started is decided here and nowhere else. Raise nvml.Lost where its GPU is gone."""
    gpu = nvml.gpu_state(device.visible) if device.visible else None
    executed = run.folder / f"{run.run_id}.ipynb"
    executed.unlink(missing_ok=True)  # what is read after the run must come from it
    before, kills, code_hash = signature(run.record_path), oom_kills(), hash_now(run)
    environment = child_environment(study, run.folder, commit, device, code_hash)
    process, private = start_notebook(run.notebook, executed, run.parameters, run.log_path, environment)
    return RunningProcess(run, process, private, before, code_hash, attempt, gpu, kills)


def hash_now(run):
    """Return the hash of the run's code, or UNREADABLE where the notebook is just being saved or is broken."""
    try:
        return run.code_hash
    except (OSError, *MALFORMED):
        return UNREADABLE


def processes_with(name, value, sessions=()):
    """Return this user's other living processes in whose environment, which children inherit, `name` is `value`.

    So are those that have been given another environment, once the leader of their session, one of `sessions`, is gone.
    """
    found, user = [], psutil.Process().username()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            session = session_of(process)
            ours = process.environ().get(name) == value or (session in sessions and leader_is_gone(session))
            if ours and process.status() != psutil.STATUS_ZOMBIE and process.username() == user:
                found.append(process)
    return found


def session_of(process):
    """Return the number of a process's session, or None where the system has no sessions."""
    return os.getsid(process.pid) if hasattr(os, "getsid") else None


def leader_is_gone(session):
    """Return whether the leader of a session is gone; a living one may have the number of a dead one."""
    try:
        return psutil.Process(session).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_processes_with(name, value, seconds=10, sessions=()):
    """Kill every other process that carries the mark until there is none, and return how many there were.

    So is what is left of `sessions`. What has ended may wait for init to take note of it for seconds; it holds nothing
    any more and is not waited for. The private folders of what is killed go, too.
    """
    killed, folders, until = set(), set(), time.monotonic() + seconds
    while (found := processes_with(name, value, sessions)) and time.monotonic() < until:
        for process in found:
            with suppress(psutil.Error):
                folders.add(Path(process.environ().get(RUN_FOLDER_ENV, "")))
                process.kill()
                killed.add(process.pid)
        time.sleep(0.02)
    for folder in folders:
        if folder.name.startswith(PRIVATE_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def memory_is_free(active, device):
    """Return whether the memory that an ended run held on its GPU has been given back."""
    return not device.visible or nvml.memory_is_free(device.visible, active.gpu_before)


def gpu_state(device):
    """Return the State of a device's GPU, or None where there is none or it is gone."""
    with suppress(nvml.GpuLost):
        return nvml.gpu_state(device.visible) if device.visible else None
    return None


def answers(device):
    """Return whether a device that was lost is there after all: NVML finds it, and a new process computes on it."""
    if not device.visible or gpu_state(device) is None:
        return not device.visible
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device.visible}
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen([sys.executable, "-c", PROBE], env=environment, **silent)
    try:
        return process.wait(PROBE_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: a broken driver may hold it for ever
        return False


def cell_of(active):
    """Return which cell a run is at, such as "3/58", or "" before the first."""
    return read_word(active.private / "cell")


def progress_of(active):
    """Return how far a run is, such as "cell 9/40, amp_fp16, epoch 2/3, step 50/390", or "" before the first cell."""
    cell, steps = cell_of(active), read_word(active.private / "progress")
    return ", ".join(filter(None, (cell and f"cell {cell}", steps)))


def stop(active):
    """End a run with all its processes, and remove what only it needed."""
    kill_run(active.process, active.private)


def stop_all(actives):
    """End several runs: all are killed before the first is cleared away."""
    for active in actives:
        active.process.kill()
    for active in actives:
        stop(active)


def kill_run(process, private):
    """Kill a process that start_notebook has started and everything below it; remove its private folder."""
    if process.poll() is None:
        process.kill()
    process.wait()
    kernel = read_word(private / "session")
    sessions = {process.pid, int(kernel)} if kernel.isdigit() else {process.pid}
    kill_processes_with(RUN_FOLDER_ENV, str(private), sessions=sessions)
    shutil.rmtree(private, ignore_errors=True)


def check(active, commit, device, limit, stall=0):
    """Return None while a run goes on; else end what is left of it and return its End.

    It may take `limit` seconds, and `stall` without a new cell or step (0: as long as it likes).
    """
    elapsed = time.monotonic() - active.started
    beat = signature(active.private / "beat")
    if beat != active.beat:  # that it changes counts, not what it says: clocks may be set
        active.beat, active.beat_seen = beat, time.monotonic()
    progress = progress_of(active)
    if progress != active.progress:
        active.progress, active.progress_seen = progress, time.monotonic()
    if active.process.poll() is None:
        silence, still = (time.monotonic() - since for since in (active.beat_seen, active.progress_seen))
        if elapsed > limit:
            active.stopped = f"stopped after {elapsed / 60:.3g} minutes (--timeout)"
        elif silence > SILENCE_SECONDS:
            active.stopped = f"stopped, for the kernel gave no sign of life for {silence / 60:.3g} minutes"
        elif 0 < stall < still:
            where = f"at {progress}" if progress else "before the first cell"
            active.stopped = f"stopped, for it stood still {where} for {still / 60:.3g} minutes (--stall-minutes)"
        else:
            return None
    stopped = active.stopped
    in_cell, kernel_exit = cell_of(active), read_word(active.private / "kernel_exit")
    stop(active)
    record = read_record(active.run.record_path)
    record = record if signature(active.run.record_path) != active.record_before else None
    exit_code = active.process.returncode
    if exit_code and not (in_cell or stopped or record) and active.attempt < START_ATTEMPTS:
        return RunOutcome(None, f"the kernel did not start: {failure_reason(active.run)}")
    remark = f"; after the record: {stopped or failure_reason(active.run)}" if record and (stopped or exit_code) else ""
    if not record:
        status, reason = ("timeout", stopped) if stopped else ending_of(active, in_cell, kernel_exit)
        if re.search("No space left on device|[Qq]uota exceeded", reason):
            check_room(active.run.folder)
        record = write_ending(active, status, reason, commit, device)
    if lost := gpu_lost_reason(active, record, device):
        reason = f"the GPU was lost: {lost}"[:300]
        return RunOutcome(write_ending(active, "failed", reason, commit, device), reason, True)
    return RunOutcome(record, remark)


def check_room(folder):
    """Raise OSError where the output folder is full: that is no result of a run, which shall be made again."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(NOTEBOOK_ROOM_BYTES))


def gpu_lost_reason(active, record, device):
    """Return how a run shows that its GPU is gone, or None; PyTorch takes the CPU where it finds none."""
    if not device.visible:
        return None
    if record.get("device_type") == "cpu":
        return "the notebook found none and ran on the CPU"
    if record["status"] not in RETRIED:
        return None
    text = f"{record['reason']}\n{read_log(active.run)}"
    return str(record["reason"]) if nvml.is_lost(device.visible, text, active.gpu_before is not None) else None


def ending_of(active, in_cell, kernel_exit):
    """Return (status, reason) of a run that ended by itself without a record.

    The metadata of the executed notebook are not asked: papermill marks every cell completed when the kernel is killed.
    """
    exit_code, run = active.process.returncode, active.run
    if exit_code < 0:
        return "killed", f"papermill was ended by {signal_name(-exit_code)}{memory_reason(active, exit_code)}"
    if exit_code == DEAD_KERNEL_EXIT or re.search(r"^(\S+\.)?DeadKernelError\b", read_log(run), re.MULTILINE):
        code = int(kernel_exit or 0)
        how = f"ended by {signal_name(-code)}" if code < 0 else f"it exited with status {kernel_exit or 'unknown'}"
        return "killed", f"the kernel died: {how}{memory_reason(active, code)}"
    if exit_code and not in_cell:
        return "failed", f"the kernel did not start in {active.attempt} attempts: {failure_reason(run)}"
    if exit_code:
        return "failed", failure_reason(run)
    return "failed", f"the notebook ended without writing a record ({run.record_path.name})"


def memory_reason(active, code):
    """Return what the system's own count says about a kill: whether it was for want of the host's memory."""
    if code != -getattr(signal, "SIGKILL", 9):
        return ""
    now = oom_kills()
    if now is None or active.oom_kills is None:
        return " (is the host's memory exhausted?)"
    rose = now > active.oom_kills
    return ", for the host's memory was exhausted" if rose else " (the system has counted no kill for want of memory)"


def oom_kills(patterns=OOM_KILLS):
    """Return how many processes Linux has killed for want of memory, in this control group where it says, or None."""
    with suppress(OSError):
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        names = [""] + [path for _, kinds, path in groups if kinds in ("", "memory") and path != "/"]
        for pattern in patterns:
            for name in reversed(names):  # in a container the group's own path may not be there, only its root
                with suppress(OSError):
                    text = Path(pattern.format(group=name)).read_text()
                    if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
                        return int(found[1])
    return None


def signal_name(number):
    """Return the name of a signal, such as SIGKILL."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def write_ending(active, status, reason, commit, device):
    """Write the record of a run that has not ended well by itself, and return it as a flat dict."""
    run = active.run
    record = RunRecord(run.run_id, run.notebook.stem, run.precision, run.parameters, status=status, reason=reason)
    record.started_at, record.finished_at, record.commit = active.started_at, utc_now(), commit
    record.device_type, record.code_hash = "cuda" if device.visible else "cpu", active.code_hash
    if device.visible:
        record.gpu_name, record.gpu_uuid = device.name, device.visible.removeprefix("GPU-")
    write_record(record, run.folder)
    return read_record(run.record_path)


def failure_reason(run):
    """Return why papermill failed, in one line: the notebook's own sentence, its last error, or the log's last line."""
    text = next((line for line in reversed(read_log(run).split("\n")) if line.strip()), "it ended without a word")
    executed = run.folder / f"{run.run_id}.ipynb"
    with suppress(OSError, ValueError, KeyError, TypeError):
        small = executed.stat().st_size < NOTEBOOK_BYTES
        cells = json.loads(executed.read_text(encoding="utf-8"))["cells"] if small else ()
        for output in [output for cell in cells for output in cell.get("outputs", ())]:
            if output["output_type"] == "error":  # UserError: a mistake that the notebook itself explains
                text = output["evalue"] if output["ename"] == "UserError" else f"{output['ename']}: {output['evalue']}"
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split())
    for folder in (str(ROOT), sys.prefix, os.path.expanduser("~")):  # this machine's places are no part of a reason
        text = text.replace(folder + os.sep, "") if len(folder) > 1 else text
    return text if len(text) <= 300 else text[:297] + "..."


def read_log(run):
    """Return the end of what a run has written to its log so far."""
    with suppress(FileNotFoundError), run.log_path.open("rb") as log:
        log.seek(max(log.seek(0, os.SEEK_END) - LOG_BYTES, 0))
        return log.read().decode(errors="replace")
    return ""


def read_word(path):
    """Return the text of a small file, or "" where there is none that can be read."""
    with suppress(OSError, ValueError):
        return path.read_text()
    return ""


def signature(path):
    """Return what changes when a file is replaced or touched, or None where there is no file."""
    with suppress(OSError):
        return (path.stat().st_ino, path.stat().st_mtime_ns)
    return None


def read_record(path):
    """Return a record as a flat dict, or None where there is none that can be read and has a valid status."""
    with suppress(OSError, *MALFORMED):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("run_id") == path.stem and record.get("status") in STATUSES:
            return record if usable(record) else None
    return None


def usable(record):
    """Return whether the fields that a batch computes with hold what records hold; a person may have edited them."""
    lists = [record.get(name) or [] for name in ("epoch_seconds", "metric")]
    if not all(isinstance(value, list) for value in lists) or (lists[1] and "metric_better" not in record):
        return False
    numbers = [record.get(name) for name in ("samples_per_second", "peak_allocated_mib", "chance_metric")]
    texts = [record.get(name) or "" for name in ("reason", "metric_name", "gpu_uuid")]
    right = all(is_figure(value) for value in (*numbers, *lists[0], *lists[1]))
    return right and all(isinstance(text, str) for text in texts)


def is_figure(value):
    """Return whether a value is a number with which one can compute, or none."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < MAX_JSON_NUMBER)
