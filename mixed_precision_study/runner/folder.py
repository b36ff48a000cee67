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
HALF_WRITTEN = ".*.[0-9]*.tmp"  # temporary files of written_whole()
OTHER = "choose another folder with --output-dir DIR"
FOLDER_ENV = "MIXED_PRECISION_FOLDER"  # environment variable of all that is started for an output folder: its path


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
    lock = FileLock(folder / LOCK, mode=0o600)  # whoever can open the file can hold the lock
    try:
        lock.acquire(timeout=0)
    except Timeout:  # before OSError: it is one
        raise UserError(f"{folder} is in use by another run_all.py; wait, or {OTHER}.") from None
    except (OSError, NotImplementedError) as error:  # another user's lock, or a file system without locks
        raise UserError(f"the output folder {folder} cannot be locked ({error}); {OTHER}.") from None
    try:
        end_leftovers(folder)
        yield
    finally:
        lock.release()


def end_leftovers(folder: Path) -> None:
    """End what a run_all.py that was killed has left of its runs, and remove the files that were half written."""
    living = {process.pid: process for process in psutil.process_iter() if is_alive(process)}
    left = []
    for process in living.values():
        with suppress(psutil.Error):  # it is another user's, or ends just now
            given = process.environ()
            if given.get(FOLDER_ENV) == str(folder) and int(given[RUNNER_ENV]) not in living:
                left.append(process)
    end(left)
    if left:
        say(f"ended {len(left)} processes that an interrupted run_all.py had left")
    for path in (*folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
        path.unlink(missing_ok=True)


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
    if os.path.isdir(folder) and any(folder.iterdir()):
        above = any(path.is_relative_to(folder) for path in (ROOT, Path.cwd()))
        if above or not (folder / "logs" / "batch.log").exists():
            raise UserError(f"--fresh would rename {folder}, which holds more than run_all.py has made; {OTHER}.")
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
        raise UserError(f"the output folder {folder} cannot be written ({error.strerror}); {OTHER}.") from None
