"""The output folder of a study: made, locked while one run_all.py writes to it, cleared of leftovers, or set aside."""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..measure.commit import ROOT
from ..measure.files import opened_to_append
from ..parameters import UserError
from .status import say, shown
from .watch import is_alive

LOCK_MODE = 0o600  # whoever can open the file can hold the lock
HALF_WRITTEN = ".*.[0-9]*.tmp"  # temporary files of written_whole()
OTHER = "choose another folder with --output-dir DIR"
STARTED = "logs/.started"  # below the folder: this run_all.py, then what it has started


@contextmanager
def held(folder: Path, fresh: bool) -> Iterator[None]:
    """Hold the output folder for one study. With `fresh`, and after check_fresh(), an old folder is renamed first."""
    if fresh and os.path.isdir(folder):  # unlike Path.is_dir(), no error where the name is too long
        with locked(folder):
            end_leftovers(folder)
        archive = folder.with_name(f"{folder.name}.archived-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
        folder.rename(archive)  # after the lock, because Windows renames no folder in which a file is open
        say(f"the old results are kept in {shown(archive)}")
    with locked(folder):
        end_leftovers(folder)
        note_started(folder, psutil.Process())
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
    runner, *left = map(living, read_small_file(folder / STARTED).splitlines() or [""])
    if alive := [process for process in left if process and not runner]:
        end(alive)
        say(f"ended {len(alive)} processes that an interrupted run_all.py had left")
    for path in (folder / STARTED, *folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
        path.unlink(missing_ok=True)


def note_started(folder: Path, process: psutil.Process) -> None:
    """Note a process, so that the next start can end it and what it has started if this run_all.py is killed."""
    with suppress(psutil.Error), opened_to_append(folder / STARTED) as file:
        file.write(f"{identity(process)}\n")


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
    """Raise UserError where the folder must not be renamed: the user stands in it, it is not ours, or in use."""
    if any(path.is_relative_to(folder) for path in (ROOT, Path.cwd())):
        raise UserError(f"--fresh would move {folder} away from under you; choose another --output-dir.")
    if os.path.isdir(folder) and any(folder.iterdir()):
        if not any((folder / "logs" / name).exists() for name in (".lock", "batch.log")):
            raise UserError(f"--fresh would rename {folder}, which run_all.py did not make; {OTHER}.")
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
    """Make an output folder and hold its lock, which the operating system ends with this process.

    Raise UserError naming the process that holds it.
    """
    make(folder)
    lock = FileLock(folder / "logs" / ".lock", mode=LOCK_MODE)
    try:
        lock.acquire(timeout=0)
    except Timeout:  # before OSError: it is one
        who = read_small_file(folder / STARTED).partition(" ")[0] or "just beginning"
        raise UserError(f"{folder} is in use by another run_all.py (process {who} here); wait, or {OTHER}.") from None
    except (OSError, NotImplementedError) as error:  # another user's lock, or a file system without locks
        raise UserError(f"the output folder {folder} cannot be locked ({error}); {OTHER}.") from None
    try:
        yield
    finally:
        lock.release()


def lock_signature(folder: Path) -> tuple[int, int] | None:
    """Return what tells the lock of this folder from that of another folder in its place, None without a lock."""
    with suppress(OSError):
        found = (folder / "logs" / ".lock").stat()
        return found.st_dev, found.st_ino
    return None
