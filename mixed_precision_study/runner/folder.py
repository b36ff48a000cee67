"""The output folder of a study: made, locked while one run_all.py writes to it, cleared of leftovers, or set aside."""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from .. import RUNNER_ENV
from ..parameters import UserError
from ..store.commit import ROOT
from .status import say, shown
from .watch import is_alive

LOCK = "logs/.lock"  # below the folder
REPORT_LOCK = "logs/.report.lock"
HALF_WRITTEN = ".*.[0-9]*.half-written"  # temporary files of written_whole()
OTHER = "choose another folder with --output-dir DIR"
# environment variable of all that is started for an output folder: its path
FOLDER_ENV = "MIXED_PRECISION_FOLDER"
# environment variable of all that a run or report starts: run_all.py and the log
LOG_ENV = "MIXED_PRECISION_LOG"


@contextmanager
def held(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Hold the output folder and end what is left in it. The operating system ends the lock with this process.

    With `fresh`, and after check_fresh(), an old folder is renamed first. Raise UserError where it cannot be held.
    """
    if fresh and os.path.isdir(folder):  # unlike Path.is_dir(), no error where the name is too long
        archive = folder.with_name(f"{folder.name}.archived-{time.strftime('%Y%m%dT%H%M%S')}")
        folder.rename(archive)
        say(f"the old results are kept in {shown(archive)}")
    make(folder)
    with locked(folder, LOCK):
        end_leftovers(folder)
        yield


@contextmanager
def locked(folder: Path, name: str, seconds: float = 0) -> Iterator[None]:
    """Hold a lock below an output folder, after at most so many seconds in which another process holds it.

    Raise UserError where it cannot be held. A link in its place is replaced, because it may lead anywhere.
    """
    path = folder / name
    if path.is_symlink():
        path.unlink()
    lock = FileLock(path, mode=0o600)  # whoever can open the file can hold the lock
    try:
        with suppress(Timeout):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            if seconds:
                say(f"another run_all.py draws a report in {shown(folder)}; this one waits for it")
            lock.acquire(timeout=seconds)
    except Timeout:  # before OSError: it is one
        raise UserError(f"{folder} is in use by another run_all.py; wait, or {OTHER}.") from None
    except (OSError, NotImplementedError) as error:
        # another user's lock, or a file system without locks
        raise UserError(
            f"the output folder {folder} cannot be locked ({error}); {OTHER}."
        ) from None
    try:
        yield
    finally:
        lock.release()


def end_leftovers(folder: Path) -> None:
    """End what a run_all.py that was killed has left of its runs, and remove the files that were half written."""
    living = {str(process.pid) for process in psutil.process_iter() if is_alive(process)}
    left = [
        process
        for process, given in ours(FOLDER_ENV, str(folder))
        if is_alive(process)
        and given.get(RUNNER_ENV, "").isdecimal()
        and given[RUNNER_ENV] not in living
    ]
    end(left)
    if left:
        say(f"ended {len(left)} processes that an interrupted run_all.py had left")
    for path in (*folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
        path.unlink(missing_ok=True)


def ours(name: str, value: str) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield (process, its environment) of this user's processes in whose environment `name` is `value`."""
    mine = psutil.Process().username()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it is another user's, or ends just now
            given = process.environ()
            if (
                given.get(name) == value
                and process.username() == mine
                and process.pid != os.getpid()
            ):
                yield process, given


def end_all_of(log: Path, family: Iterable[psutil.Process] = ()) -> None:
    """End a run, also what it started in the background, whose environment names this process and the log."""
    end(family)
    for _ in range(3):  # what is ended may have started more meanwhile
        end(process for process, _ in ours(LOG_ENV, f"{os.getpid()} {log}") if is_alive(process))


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


def check_fresh(folder: Path, *sources: Path) -> None:
    """Raise UserError where the folder must not be renamed: it is not ours, or in use, or what is needed is in it.

    That is the clone, the current folder, and `sources`, the notebooks and the studies file.
    """
    if os.path.isdir(folder) and any(folder.iterdir()):
        above = any(path.is_relative_to(folder) for path in (ROOT, Path.cwd(), *sources))
        if above or not (folder / "logs" / "batch.log").exists():
            raise UserError(
                f"--fresh would rename {folder}, which holds more than run_all.py has made; {OTHER}."
            )
        with held(folder):
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
        raise UserError(
            f"the output folder {folder} cannot be written ({error.strerror}); {OTHER}."
        ) from None
