"""One run on this machine: start it, watch it, end it, and find out how it ended.

A run is execute_notebook.py in a session of its own, with its kernel below it. All its processes inherit an environment
variable that names the run, so they can be found and ended even after their parents have died.
"""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from ..errors import UserError, printable
from ..files import opened_to_append
from ..gpu import nvml
from ..parameters import EXPERIMENTS, reason_unsupported
from ..record import ORDER_ENV, STUDY_ENV, RunRecord, record_in, utc_now, write_record
from .devices import Device
from .notebook_file import MALFORMED, package_state
from .paths import ROOT, python_path, relative_to_root
from .plan import Run
from .prepared import FORKED_ENV, PREPARED_ENV

SHARES_PROCESSES = True  # a run's process may train other runs, too
EXECUTE = "mixed_precision_study.runner.execute_notebook"
DEAD_KERNEL_EXIT = 138  # exit status of execute_notebook.py
SILENCE_SECONDS = 240  # without a heartbeat; longer than a kernel may take to start
NOTEBOOK_ROOM_BYTES = 4 * 2**20  # for an executed notebook
LOG_BYTES = 2**18  # read from the end of a log: a notebook may print without end
NOTEBOOK_BYTES = 2**26  # larger executed notebooks are not searched for a reason
START_ATTEMPTS = 4
UNREADABLE = "unreadable"  # in place of a hash
RETRIED = ("failed", "timeout", "killed")  # statuses that are no result
RUN_FOLDER_ENV = "MIXED_PRECISION_RUN"  # environment variable: the run's private folder
OUTPUT_FOLDER_ENV = "MIXED_PRECISION_BATCH"  # environment variable: the output folder
PROGRESS_ENV = "MIXED_PRECISION_PROGRESS"  # environment variable: the file in which a notebook notes its step
PROBE = "import torch; torch.ones(8, device='cuda').sum().item()"
PROBE_SECONDS = 60
PRIVATE_PREFIX = "run-"  # names of private folders begin with it
OWNER_FILE = "output_folder"  # in a private folder: whose run it is
PREPARED_MODULE = "mixed_precision_study.runner.prepared"
SOCKET = "fork"  # of a prepared process, in its private folder
LISTEN_SECONDS = 10  # for it to listen, before it loads anything
A_CORE = 4  # prepared processes for each core that load at the same time
FEWEST_CORES = 4  # for several to load at the same time
LOADED_BYTES = 2 * 2**30  # of memory that each of them may need; about 0.8 GiB was seen
PRIVATE_FOLDERS_FILE = ".private"  # in logs/: the private folders that the next start removes after a SIGKILL
OOM_COUNTERS = (
    "/sys/fs/cgroup{group}/memory.events",
    "/sys/fs/cgroup/memory{group}/memory.oom_control",
    "/proc/vmstat",
)


@dataclass
class RunningProcess:
    """A run that is being executed."""

    run: Run
    device: Device
    commit: str | None
    process: subprocess.Popen
    private: Path  # folder of the kernel's sockets and of the status files of execute_notebook.py
    record_before: tuple | None  # signature of the record file before the start
    code_hash: str | None = None  # at the start; the notebook may be edited later
    attempt: int = 1
    gpu_before: nvml.GpuState | None = None
    oom_kills: int | None = None
    started_at: str = field(default_factory=utc_now)
    started: float = field(default_factory=time.monotonic)  # seconds
    beat: tuple | None = None  # signature of the last heartbeat
    beat_seen: float = field(default_factory=time.monotonic)
    progress: str = ""
    progress_seen: float = field(default_factory=time.monotonic)
    stopped: str = ""  # why it was stopped; kept in case Ctrl-C interrupts the stopping


@dataclass
class NeverStarted:
    """A run that its device cannot run, as write_ending() needs it."""

    run: Run
    device: Device
    commit: str | None
    code_hash: str
    started_at: str = field(default_factory=utc_now)


class RunOutcome(NamedTuple):
    """How a run ended. Without a record it must be started again."""

    record: dict | None
    remark: str = ""
    lost: bool = False  # its device was lost: the run must go to another one
    begun: bool = True  # the run had begun when its device was lost


def share_cores(devices: int) -> None:
    """Let each of several runs at a time use its share of the cores, where the user has not set it.

    With all cores each, they slow each other down.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    SHARED.clear()
    if devices > 1 and "OMP_NUM_THREADS" not in os.environ:
        SHARED["OMP_NUM_THREADS"] = str(max(1, cores // devices))


def child_environment(
    study: str,
    folder: Path,
    commit: str | None = None,
    device: Device | None = None,
    code_hash: str | None = None,
    order: int | None = None,
) -> dict[str, str]:
    """Return the environment of a run, in which it sees one GPU or none. `order` is its place in its comparison."""
    changes = {
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "MPLBACKEND": None,
        "MIXED_PRECISION_STUDY": study,
        "CUDA_VISIBLE_DEVICES": device.visible if device else "",
        "MIXED_PRECISION_COMMIT": commit,
        "MIXED_PRECISION_CODE_HASH": code_hash,
        ORDER_ENV: None if order is None else str(order),
        STUDY_ENV: None,  # launch() sets it
        OUTPUT_FOLDER_ENV: str(folder),
        "PYTHONPATH": python_path(),
        "TORCHINDUCTOR_CACHE_DIR": compiled_code_folder(),  # with Triton's cache below it
    }
    return {name: value for name, value in {**os.environ, **SHARED, **changes}.items() if value is not None}


def compiled_code_folder() -> str | None:
    """Return the folder in which compiled runs keep their code, private to this user. Raise UserError if it is not.

    PyTorch's own choice lies in /tmp, where another user may make it first and then put code of theirs into it. None
    is returned where there is no writable home: such runs keep their code in their private folders.
    """
    if given := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return given
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mixed_precision_study"
        folder.mkdir(parents=True, exist_ok=True)
        foreign = os.name == "posix" and folder.stat().st_uid != os.getuid()
        if not foreign:
            folder.chmod(0o700)
    except (OSError, RuntimeError):
        return None
    if foreign:
        raise UserError(f"{folder} belongs to another user, who could change what runs compile; rename or remove it.")
    return str(folder / "torchinductor")


def private_folder() -> Path:
    """Make a folder that only this user can enter. Its path is short enough for a socket's name (107 bytes)."""
    usual = tempfile.gettempdir()
    if os.name == "posix" and len(os.fsencode(usual)) > 80:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir="/tmp"))
    return Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=usual))


def start(command: Sequence[str], log_path: Path, environment: dict[str, str]) -> subprocess.Popen:
    """Start Python with these arguments in a session of its own, without a shell. Its output goes to `log_path`."""
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


def start_notebook(
    notebook: Path, executed: Path, parameters: dict, log_path: Path, environment: dict[str, str]
) -> tuple[subprocess.Popen, Path]:
    """Start execute_notebook.py and return (process, private folder). The parameters go through a file."""
    parameter_file = log_path.with_suffix(".yaml")
    for path in (executed, log_path, parameter_file):  # what is read after the run must come from it
        path.unlink(missing_ok=True)
    parameter_file.write_text(yaml.safe_dump(parameters), encoding="utf-8")
    private = private_folder()
    paths = [relative_to_root(path) for path in (notebook, executed, parameter_file)]
    environment = {**environment, RUN_FOLDER_ENV: str(private), PROGRESS_ENV: str(private / "progress")}
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private / "compiled"))
    try:
        (private / OWNER_FILE).write_text(environment[OUTPUT_FOLDER_ENV], encoding="utf-8")
        with opened_to_append(log_path.parent / PRIVATE_FOLDERS_FILE) as noted:
            noted.write(f"{private}\n")
        return start(["-m", EXECUTE, *paths, str(private), str(os.getpid())], log_path, environment), private
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise


def launch(run: Run, study: str, commit: str | None, device: Device, attempt: int = 1) -> RunningProcess:
    """Start a run. Raise nvml.GpuLost where its GPU is gone, IsADirectoryError where its results have no place."""
    check_places(run)
    gpu = nvml.gpu_state(device.visible) if device.visible else None
    executed = run.folder / f"{run.run_id}.ipynb"
    record_before = signature(run.record_path)
    kills = oom_kills()
    code_hash = hash_now(run)
    environment = child_environment(study, run.folder, commit, device, code_hash, run.order)
    environment[STUDY_ENV] = json.dumps(run.study)
    if (prepared := prepared_for(run)) is not None:
        environment |= {PREPARED_ENV: str(prepared.socket)} | ({} if prepared.once else {FORKED_ENV: "1"})
    process, private = start_notebook(run.notebook, executed, run.parameters, run.log_path, environment)
    return RunningProcess(run, device, commit, process, private, record_before, code_hash, attempt, gpu, kills)


def reason_not_to_start(run: Run, device: Device) -> str | None:
    """Return why the device cannot run the mode of a run of the suite, or None where it can or that is not known."""
    if run.notebook.stem not in EXPERIMENTS:
        return None
    capability = nvml.compute_capability(device.visible) if device.visible else None
    if device.visible and capability is None:
        return None
    return reason_unsupported(run.precision, run.parameters.get("execution", "eager"), capability)


@dataclass
class Forking:
    """The runs of a study whose kernels are forked.

    shared: from one process for all of them. alone: each from a process of its own, which forks no other.
    devices: on how many the study runs. On several, processes load before the first run only, as nothing may load while
    another device is timed.
    """

    study: str
    folder: Path
    shared: set[str]
    alone: set[str]
    devices: int = 1
    filled: bool = False  # processes for `alone` have been started


@dataclass
class PreparedProcess:
    """A process that forks kernels (prepared.py), the folder of its socket, and the package that it has loaded."""

    process: subprocess.Popen
    private: Path
    package: tuple
    log_path: Path
    once: bool  # it forks one kernel only
    taken: bool = False  # by a run, where it forks one only

    @property
    def socket(self) -> Path:
        return self.private / SOCKET

    def is_usable(self) -> bool:
        """Return whether it can fork the next kernel: it lives, and has loaded the code that the package has now."""
        return not self.taken and self.process.poll() is None and self.package == package_state()


SHARED: dict[str, str] = {}  # environment variables that share the host among runs at a time
FORKING: list[Forking] = []  # of the study that runs now, or none
PREPARED: list[PreparedProcess] = []  # those that have been started


@contextmanager
def forked_kernels(
    study: str, folder: Path, shared: Iterable[Run], alone: Iterable[Run] = (), devices: int = 1
) -> Iterator[None]:
    """Let the kernels of these runs be forked in this block, see Forking. What forks them is started when needed."""
    FORKING.append(Forking(study, folder, {run.run_id for run in shared}, {run.run_id for run in alone}, devices))
    try:
        yield
    finally:
        FORKING.clear()
        end_prepared()


def start_prepared(study: str, folder: Path, count: int = 0) -> None:
    """Start the process that forks all shared kernels, or `count` processes that fork one kernel each.

    They listen at once and answer when they have loaded everything.
    """
    privates = [private_folder() for _ in range(count or 1)]
    sockets = [str(private / SOCKET) for private in privates] if count else []
    for private in privates:
        (private / OWNER_FILE).write_text(str(folder), encoding="utf-8")
        with opened_to_append(folder / "logs" / PRIVATE_FOLDERS_FILE) as noted:
            noted.write(f"{private}\n")
        environment = {**child_environment(study, folder), RUN_FOLDER_ENV: str(private)}
        command = ["-m", PREPARED_MODULE, str(private / SOCKET), str(os.getpid()), *sockets]
        log_path = folder / "logs" / f"prepared-{private.name}.log"
        process = start(command, log_path, environment)
        PREPARED.append(PreparedProcess(process, private, package_state(), log_path, bool(count)))


def end_prepared(which: Iterable[PreparedProcess] | None = None) -> None:
    """End these prepared processes (default: all), and with them the kernels that they have forked."""
    for ended in list(PREPARED if which is None else which):
        PREPARED.remove(ended)
        kill_run(ended.process, ended.private)
        with suppress(OSError):
            ended.log_path.unlink()


def most_at_once() -> int:
    """Return how many processes may load at the same time: what fits in memory, and 0 where few cores gain nothing."""
    cores = os.cpu_count() or 1
    room = psutil.virtual_memory().available // LOADED_BYTES
    return int(min(A_CORE * cores, room)) if cores >= FEWEST_CORES else 0


def is_over(prepared: PreparedProcess, forking: Forking) -> bool:
    """Return whether a prepared process is of no use any more. On several devices its kernel may still run."""
    if prepared.taken and forking.devices > 1:
        return prepared.process.poll() is not None
    return not prepared.is_usable()


def next_usable(once: bool) -> PreparedProcess | None:
    """Return the first prepared process of a kind that can fork the next kernel, or None."""
    return next((one for one in PREPARED if one.once == once and one.is_usable()), None)


def prepared_for(run: Run) -> PreparedProcess | None:
    """Return the process that is to fork the kernel of a run, or None where the kernel starts by itself."""
    if not FORKING or run.run_id not in FORKING[0].shared | FORKING[0].alone:
        return None
    forking = FORKING[0]
    once = run.run_id in forking.alone
    end_prepared([one for one in PREPARED if one.once == once and is_over(one, forking)])
    if not next_usable(once):
        count = min(most_at_once(), len(forking.alone)) if once else 0
        if once and (count < 2 or (forking.filled and forking.devices > 1)):
            return None
        start_prepared(forking.study, forking.folder, count)
        forking.filled |= once
    found = next_usable(once)
    if not found:  # it has ended at once
        return None
    if once:
        forking.alone.discard(run.run_id)
        found.taken = True
    until = time.monotonic() + LISTEN_SECONDS
    while not found.socket.exists() and time.monotonic() < until and found.process.poll() is None:
        time.sleep(0.02)
    return found if found.socket.exists() else None


def check_places(run: Run) -> None:
    """Raise IsADirectoryError where a folder is in the place of a file of the run."""
    for path in (run.record_path, run.folder / f"{run.run_id}.ipynb", run.log_path, run.log_path.with_suffix(".yaml")):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder is in the place of a file of this run", str(path))


def hash_now(run: Run) -> str:
    """Return the hash of the run's code, or UNREADABLE where the notebook is broken or just being saved."""
    try:
        return run.code_hash
    except (OSError, *MALFORMED):
        return UNREADABLE


def processes_with(name: str, value: str, sessions: Collection[int] = ()) -> list[psutil.Process]:
    """Return this user's processes whose environment has `name=value`, and those in `sessions` whose leader is dead.

    Child processes inherit the environment. This process and zombies are left out.
    """
    found = []
    user = psutil.Process().username()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            session = os.getsid(process.pid) if hasattr(os, "getsid") else -1
            ours = process.environ().get(name) == value or (session in sessions and leader_is_gone(session))
            if ours and process.status() != psutil.STATUS_ZOMBIE and process.username() == user:
                found.append(process)
    return found


def leader_is_gone(session: int) -> bool:
    """Return whether the leader of a session is dead. A new process may have its number."""
    try:
        return psutil.Process(session).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_processes_with(name: str, value: str, seconds: float = 10, sessions: Collection[int] = ()) -> int:
    """Kill what processes_with() finds, repeatedly, for up to `seconds`. Return how many were killed.

    Their private folders are removed. Zombies hold nothing and are not waited for.
    """
    killed = set()
    folders = set()
    until = time.monotonic() + seconds
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


def memory_is_free(running: RunningProcess) -> bool:
    """Return whether the GPU memory of a run that has ended is free again."""
    return not running.device.visible or nvml.memory_is_free(running.device.visible, running.gpu_before)


def gpu_state(device: Device) -> nvml.GpuState | None:
    """Return the state of a device's GPU, or None where there is none or it is gone."""
    with suppress(nvml.GpuLost):
        return nvml.gpu_state(device.visible) if device.visible else None
    return None


def device_works(device: Device) -> bool:
    """Return whether a device that was lost can be used: NVML finds it and a new process computes on it."""
    if not device.visible:
        return True
    if gpu_state(device) is None:
        return False
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device.visible}
    silent = subprocess.DEVNULL
    command = [sys.executable, "-c", PROBE]
    process = subprocess.Popen(command, env=environment, stdin=silent, stdout=silent, stderr=silent)
    try:
        return process.wait(PROBE_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a broken driver may hold it for ever
        return False


def cell_of(running: RunningProcess) -> str:
    """Return the cell that a run is at, such as "3/58", or "" before the first."""
    return read_small_file(running.private / "cell")


def progress_of(running: RunningProcess) -> str:
    """Return how far a run is, such as "cell 9/40, amp_fp16, epoch 2/3, step 50/390", or "" before the first cell."""
    cell = cell_of(running)
    if not cell:  # also where the next one is just being written
        return running.progress
    steps = read_small_file(running.private / "progress")
    return ", ".join(filter(None, (f"cell {cell}", steps)))


def stop_all(processes: Collection[RunningProcess]) -> None:
    """End several runs. All are killed before the first is tidied up."""
    for running in processes:
        running.process.kill()
    for running in processes:
        stop(running)


def stop(running: RunningProcess) -> None:
    """End a run with all its processes, and remove its private folder."""
    kill_run(running.process, running.private)


def kill_run(process: subprocess.Popen, private: Path) -> None:
    """Kill a process that start_notebook has started and everything below it. Remove its private folder."""
    if process.poll() is None:
        process.kill()
    process.wait()
    sessions = {process.pid}
    kernel_session = read_small_file(private / "session")
    if kernel_session.isdigit():
        sessions.add(int(kernel_session))
        kill_forked(int(kernel_session))
    kill_processes_with(RUN_FOLDER_ENV, str(private), sessions=sessions)
    shutil.rmtree(private, ignore_errors=True)


def kill_forked(kernel: int) -> None:
    """Kill a kernel that a prepared process has forked: no environment variable names its run."""
    with suppress(psutil.Error, OSError):
        if psutil.Process(kernel).ppid() in [prepared.process.pid for prepared in PREPARED]:
            os.killpg(kernel, signal.SIGKILL)


def poll(running: RunningProcess, limit: float, stall: float = 0) -> RunOutcome | None:
    """Return None while a run goes on; else end all its processes and return its outcome.

    `limit` and `stall` are seconds: of the whole run, and without a new cell or step (0: no such limit).
    """
    note_signs_of_life(running)
    if running.process.poll() is None:
        reason = reason_to_stop(running, limit, stall)
        if not reason:
            return None
        running.stopped = reason
    return end_run(running)


def note_signs_of_life(running: RunningProcess) -> None:
    """Note when the heartbeat and the progress of a run last changed. Only a change counts: clocks may be set."""
    beat = signature(running.private / "beat")
    if beat != running.beat:
        running.beat = beat
        running.beat_seen = time.monotonic()
    progress = progress_of(running)
    if progress and progress != running.progress:  # "": its private folder has been removed
        running.progress = progress
        running.progress_seen = time.monotonic()


def reason_to_stop(running: RunningProcess, limit: float, stall: float) -> str:
    """Return why a run must be stopped, or "": it is over its limit, silent, or makes no progress."""
    now = time.monotonic()
    elapsed = now - running.started
    silent = now - running.beat_seen
    still = now - running.progress_seen
    if elapsed > limit:
        return f"stopped after {elapsed / 60:.3g} minutes (--timeout)"
    if silent > SILENCE_SECONDS and not running.private.is_dir():
        return f"stopped: its private folder {running.private.name} has been removed, so nobody could watch it"
    if silent > SILENCE_SECONDS:
        return f"stopped: the kernel gave no sign of life for {silent / 60:.3g} minutes"
    if 0 < stall < still:
        where = f"at {running.progress}" if running.progress else "before the first cell"
        return f"stopped: it stood still {where} for {still / 60:.3g} minutes (--stall-minutes)"
    return ""


def end_run(running: RunningProcess) -> RunOutcome:
    """End what is left of a run, write its record where it has none, and return its outcome."""
    run = running.run
    in_cell = cell_of(running) or running.progress
    kernel_exit = read_small_file(running.private / "kernel_exit")
    stop(running)
    record = read_record(run.record_path) if signature(run.record_path) != running.record_before else None
    exit_code = running.process.returncode
    remark = ""
    if not record and not run.log_path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the output folder has been removed", str(run.folder))
    if record:
        if running.stopped or exit_code:
            remark = f"; after the record: {running.stopped or failure_reason(run)}"
    elif exit_code and not (in_cell or running.stopped) and running.attempt < START_ATTEMPTS:
        return RunOutcome(None, f"the kernel did not start: {failure_reason(run)}")
    else:
        status, reason = ("timeout", running.stopped) if running.stopped else ending_of(running, in_cell, kernel_exit)
        if re.search("No space left on device|[Qq]uota exceeded", reason):
            check_room(run.folder)
        record = write_ending(running, status, reason)
    if lost := gpu_lost_reason(running, record):
        reason = f"the GPU was lost: {lost}"[:300]
        return RunOutcome(write_ending(running, "failed", reason), reason, lost=True)
    return RunOutcome(record, remark)


def check_room(folder: Path) -> None:
    """Raise OSError where the output folder is full. A full disk is no result of a run."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(NOTEBOOK_ROOM_BYTES))


def gpu_lost_reason(running: RunningProcess, record: dict) -> str | None:
    """Return what shows that the run's GPU is gone, or None. Without a GPU PyTorch runs on the CPU."""
    gpu = running.device.visible
    if not gpu:
        return None
    if record.get("device_type") == "cpu":
        return "the notebook found none and ran on the CPU"
    if record["status"] not in RETRIED:
        return None
    text = f"{record['reason']}\n{read_log(running.run)}"
    return str(record["reason"]) if nvml.is_lost(gpu, text, running.gpu_before is not None) else None


def ending_of(running: RunningProcess, in_cell: str, kernel_exit: str) -> tuple[str, str]:
    """Return (status, reason) of a run that ended by itself without a record.

    The executed notebook does not tell: papermill marks every cell as completed when the kernel is killed.
    """
    run = running.run
    exit_code = running.process.returncode
    if exit_code < 0:
        return "killed", f"papermill was ended by {signal_name(-exit_code)}{memory_reason(running, exit_code)}"
    if exit_code == DEAD_KERNEL_EXIT or re.search(r"^(\S+\.)?DeadKernelError\b", read_log(run), re.MULTILINE):
        code = int(kernel_exit or 0)
        how = f"ended by {signal_name(-code)}" if code < 0 else f"it exited with status {kernel_exit or 'unknown'}"
        return "killed", f"the kernel died: {how}{memory_reason(running, code)}"
    if exit_code and not in_cell:
        return "failed", f"the kernel did not start in {running.attempt} attempts: {failure_reason(run)}"
    if exit_code:
        return "failed", failure_reason(run)
    return "failed", f"the notebook ended without writing a record that can be used ({run.record_path.name})"


def memory_reason(running: RunningProcess, code: int) -> str:
    """Return whether a kill was due to the host's memory, by the system's own count of such kills."""
    if code != -getattr(signal, "SIGKILL", 9):
        return ""
    now = oom_kills()
    if now is None or running.oom_kills is None:
        return " (is the host's memory exhausted?)"
    if now > running.oom_kills:
        return " because the host's memory was exhausted"
    return " (the system counted no kill for lack of memory)"


def oom_kills(counters: Sequence[str] = OOM_COUNTERS) -> int | None:
    """Return how many processes Linux has killed for lack of memory, or None where no counter can be read.

    The count is of this control group where it has one, else of the host.
    """
    with suppress(OSError):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        groups = [""] + [path for _, kinds, path in lines if kinds in ("", "memory") and path != "/"]
        for counter in counters:
            for group in reversed(groups):  # in a container only the root may be visible
                with suppress(OSError):
                    text = Path(counter.format(group=group)).read_text()
                    if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
                        return int(found[1])
    return None


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_ending(running: Any, status: str, reason: str) -> dict:
    """Write the record of a run that could not write its own, and return it as a flat dict.

    `running` is a RunningProcess, a ray_cluster.RemoteRun or a NeverStarted.
    """
    run, device = running.run, running.device
    record = RunRecord(run.run_id, run.notebook.stem, run.precision, run.parameters, status=status, reason=reason)
    record.started_at = running.started_at
    record.finished_at = utc_now()
    record.commit = running.commit
    record.code_hash = running.code_hash
    record.order_in_comparison = run.order
    record.study = run.study
    record.device_type = "cuda" if device.visible else "cpu"
    if device.visible:
        record.gpu_name = device.name
        record.gpu_uuid = device.visible.removeprefix("GPU-")
    return json.loads(write_record(record, run.folder).read_text(encoding="utf-8"))


def failure_reason(run: Run) -> str:
    """Return in one line why papermill failed: the notebook's last error, else the last line of the log."""
    lines = [line for line in read_log(run).split("\n") if line.strip()]
    silent = "it ended without a word" if run.log_path.exists() else "its log has been removed"
    text = last_error(run.folder / f"{run.run_id}.ipynb") or (lines[-1] if lines else silent)
    text = " ".join(printable(text).split())
    for folder in (str(ROOT), sys.prefix, os.path.expanduser("~")):  # a record names no folder of this machine
        if len(folder) > 1:
            text = text.replace(folder + os.sep, "")
    return text if len(text) <= 300 else text[:297] + "..."


def last_error(executed: Path) -> str:
    """Return the last error of an executed notebook, or "". A UserError explains itself: only its sentence counts."""
    text = ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if executed.stat().st_size >= NOTEBOOK_BYTES:
            return ""
        cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
        for output in [output for cell in cells for output in cell.get("outputs", ())]:
            if output["output_type"] == "error":
                name = output["ename"]
                text = output["evalue"] if name == "UserError" else f"{name}: {output['evalue']}"
    return text


def read_log(run: Run) -> str:
    """Return the last LOG_BYTES of a run's log, or "" where there is none."""
    with suppress(FileNotFoundError), run.log_path.open("rb") as log:
        log.seek(max(log.seek(0, os.SEEK_END) - LOG_BYTES, 0))
        return log.read().decode(errors="replace")
    return ""


def read_small_file(path: Path) -> str:
    """Return the text of a file, or "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""  # a pipe would be waited for
    except (OSError, ValueError):
        return ""


def signature(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced or touched, or None where there is no file."""
    try:
        return path.stat().st_ino, path.stat().st_mtime_ns
    except OSError:
        return None


def read_record(path: Path) -> dict | None:
    """Return the record of a run, or None where it cannot be read, is of another run or cannot be used."""
    record = record_in(path)
    return record if record and record["run_id"] == path.stem else None
