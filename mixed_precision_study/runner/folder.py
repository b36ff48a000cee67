"""The output folder of a study: made, locked while one run_all.py writes to it, cleared of leftovers, or set aside."""

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..measure.files import written_whole
from ..parameters import UserError
from ..record import utc_now
from .paths import ROOT, shown
from .status import read_seconds, say, write_times
from .watch import is_alive

TRACES = (".lock", "batch.log")  # files in logs/ that show that run_all.py made the folder
LOCK_MODE = 0o600  # whoever can open the file can hold the lock
HALF_WRITTEN = ".*.[0-9]*.tmp"  # temporary files of written_whole()
OTHER = "choose another folder with --output-dir DIR"
STARTED = ".started"  # in logs/: the processes that run_all.py has started and not yet seen ending


@contextmanager
def held(folder: Path, fresh: bool) -> Iterator[None]:
    """Hold the output folder for one study. With `fresh` an old folder is set aside first.

    The operating system holds the lock (flock, or its like on Windows), so it ends with this process.
    """
    if fresh:
        check_fresh(folder)
        if os.path.exists(folder):  # unlike Path.exists, no error where the name is too long
            set_aside(folder)
    make(folder)
    with locked(folder):
        end_leftovers(folder)
        yield


def identity(process: psutil.Process) -> str:
    """Return a process id and its start time as text, because a number alone may be given to a new process."""
    return f"{process.pid} {process.create_time():.2f}"


def living(text: str) -> psutil.Process | None:
    """Return the process with this identity if it still runs."""
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(int(text.partition(" ")[0]))
        return process if identity(process) == text and is_alive(process) else None
    return None


def end_leftovers(folder: Path) -> None:
    """End the processes that a killed run_all.py has left, and remove the files that were half written.

    Where that run_all.py still lives, this folder is a copy of the one that it works in.
    """
    started = folder / "logs" / STARTED
    runner, *left = map(living, read_small_file(started).splitlines() or [""])
    if alive := [process for process in left if process and not runner]:
        end(alive)
        say(f"ended {len(alive)} processes that an interrupted run_all.py had left")
    with suppress(OSError):
        for path in (started, *folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
            path.unlink(missing_ok=True)


def note_started(folder: Path, processes: Iterable[psutil.Process]) -> None:
    """Note this process and those that it has started, so that the next start can end them if this one is killed."""
    lines = []
    for process in (psutil.Process(), *processes):
        with suppress(psutil.Error):
            lines.append(f"{identity(process)}\n")
    with suppress(OSError), written_whole(folder / "logs" / STARTED) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def read_small_file(path: Path) -> str:
    """Return the text of a file, or "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""  # a pipe would be waited for
    except (OSError, ValueError):
        return ""


def end(processes: Iterable[psutil.Process], seconds: float = 10) -> None:
    """Kill processes and all that they have started, and wait until they are gone."""
    family: set[psutil.Process] = set(processes)
    for process in list(family):
        with suppress(psutil.Error):
            family.update(process.children(recursive=True))
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    until = time.monotonic() + seconds
    while any(map(is_alive, family)) and time.monotonic() < until:
        time.sleep(0.02)


def check_fresh(folder: Path) -> None:
    """Raise UserError where the folder must not be set aside: the user stands in it, it is not ours, or in use."""
    if any(path.is_relative_to(folder) for path in (ROOT, Path.cwd())):
        raise UserError(f"--fresh would move {folder} away from under you; choose another --output-dir.")
    if os.path.isdir(folder) and any(folder.iterdir()):
        if not any((folder / "logs" / name).exists() for name in TRACES):
            raise UserError(f"--fresh would rename {folder}, which run_all.py did not make; {OTHER}.")
        make(folder)
        with locked(folder):
            pass


def make(folder: Path) -> None:
    """Make the output folder and check that it is writable, and that its logs lie in it and not where a link leads."""
    if (folder / "logs").is_symlink():
        raise UserError(f"{folder / 'logs'} is a link; remove it, or {OTHER}.")
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder / "logs"):
            return
    except OSError as error:
        raise UserError(f"the output folder {folder} cannot be written ({error.strerror}); {OTHER}.") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder. Raise UserError naming the process that holds it."""
    path, owner = folder / "logs" / ".lock", folder / "logs" / ".lock_owner"
    holder = f"process {os.getpid()} on {socket.gethostname()} since {utc_now()}"
    lock = FileLock(path, mode=LOCK_MODE)
    try:
        lock.acquire(timeout=0)
    except Timeout:  # before OSError: it is one
        who = read_small_file(owner) or "just beginning or ending"
        raise UserError(f"{folder} is in use by another run_all.py ({who}); wait for it, or {OTHER}.") from None
    except (OSError, NotImplementedError) as error:  # another user's lock, or a file system without locks
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the output folder {folder} cannot be locked ({reason}); {OTHER}.") from None
    try:
        with suppress(OSError), written_whole(owner) as temporary:
            temporary.write_text(holder)
        yield
    finally:
        if read_small_file(owner) == holder:  # else the folder was removed, and another run_all.py has made it again
            with suppress(OSError):
                owner.unlink()
        lock.release()


def lock_signature(folder: Path) -> tuple[int, int] | None:
    """Return what tells the lock of this folder from that of another folder in its place, None without a lock."""
    with suppress(OSError):
        found = (folder / "logs" / ".lock").stat()
        return found.st_dev, found.st_ino
    return None


def set_aside(folder: Path) -> None:
    """Rename an output folder, so that its results are kept. The new folder gets the seconds that its runs took."""
    archive = folder.with_name(f"{folder.name}.archived-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    seconds = read_seconds(folder)
    make(folder)
    try:
        with locked(folder):
            end_leftovers(folder)
        folder.rename(archive)  # after the lock, because Windows renames no folder in which a file is open
        say(f"the old results are kept in {shown(archive)}")
        make(folder)
        if seconds:
            write_times(folder, seconds)
    except OSError as error:  # for example a mount point
        advice = f"leave --fresh out, because finished runs are kept, or {OTHER}"
        raise UserError(f"--fresh cannot rename {folder} ({error.strerror}); {advice}.") from None
