"""The output folder of a study: made, locked while one run_all.py writes to it, cleared of
leftovers, or set aside.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..parameters import UserError
from ..store.commit import ROOT
from ..store.variables import FOLDER_ENV, RUNNER_ENV
from .status import say, shown
from .watch import end, is_alive

LOCK = "logs/.lock"  # below the folder
REPORT_LOCK = "logs/.report.lock"
HALF_WRITTEN = ".*.[0-9]*.half-written"  # temporary files of written_whole()
OTHER = "choose another folder with --output-dir DIR"


@contextmanager
def held(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Hold the output folder and end what is left in it. The operating system ends the lock with
    this process.

    With `fresh`, and after check_fresh(), an old folder is renamed first. Raise UserError where it
    cannot be held.
    """
    if fresh and os.path.isdir(folder):  # unlike Path.is_dir(), no error where the name is too long
        archive = folder.with_name(f"{folder.name}.archived-{time.strftime('%Y%m%dT%H%M%S')}")
        folder.rename(archive)
        say(f"the old results are kept in {shown(archive)}")
    make(folder)
    with locked(folder, LOCK):
        end_leftovers(folder)
        for path in (*folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
            path.unlink(missing_ok=True)
        try:
            yield
        finally:  # what a run left in the background, because its papermill was killed
            end_leftovers(folder)


@contextmanager
def locked(folder: Path, name: str, seconds: float = 0) -> Iterator[None]:
    """Hold a lock below an output folder, after at most so many seconds in which another process
    holds it.

    Raise UserError where it cannot be held. A link in its place is replaced, because it may lead
    anywhere.
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
    """End what was started for a folder by this run_all.py, or by one that was killed."""
    running = list(filter(is_alive, psutil.process_iter(["environ", "username"])))
    mine = psutil.Process().username()  # root sees what others run, too
    others = {str(process.pid) for process in running} - {str(os.getpid())}
    left = []
    for process in running:
        given = process.info["environ"] or {}  # None where it is another user's
        runner = given.get(RUNNER_ENV, "")
        ours = given.get(FOLDER_ENV) == str(folder) and runner.isdecimal()
        if ours and process.info["username"] == mine and runner not in others:
            left.append(process)
    if left:
        end(left)
        say(f"ended {len(left)} processes that an interrupted run_all.py or a notebook had left")


def check_fresh(folder: Path, *sources: Path) -> None:
    """Raise UserError where the folder must not be renamed: it is not ours, or in use, or what is
    needed is in it.

    That is the clone, the current folder, and `sources`, the notebooks and the studies file.
    """
    if os.path.isdir(folder) and any(folder.iterdir()):
        above = any(path.is_relative_to(folder) for path in (ROOT, Path.cwd(), *sources))
        if above or not (folder / "logs" / "batch.log").exists():
            raise UserError(
                f"--fresh would rename {folder}, which holds more than run_all.py has made; "
                f"{OTHER}."
            )
        with held(folder):
            pass


def make(folder: Path) -> None:
    """Make the output folder and check that it is writable, and that its logs lie in it and not
    where a link leads.
    """
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
