"""The output folder of a batch: made, checked, set aside, and held by one batch at a time."""

import os
import shutil
import socket
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError
from ..record import utc_now
from . import estimates
from .paths import ROOT, relative_to_root
from .process import OUTPUT_FOLDER_ENV, PRIVATE_FOLDERS_FILE, PRIVATE_PREFIX, kill_processes_with, read_word
from .status import say

TRACES = (".lock", "batch.log")  # what a batch leaves in logs/
HALF_WRITTEN = ".*.[0-9]*.tmp"  # files that were to be renamed


@contextmanager
def held(folder, fresh):
    """Hold the output folder for one batch, an old one set aside where `fresh` asks for it.

    The lock is the operating system's (flock, or its like on Windows), so that it ends with its process.
    """
    if fresh:
        check_fresh(folder)
    if fresh and os.path.exists(folder):  # a name that is too long is no error here
        set_aside(folder)
    make(folder)
    with locked(folder):
        if left := kill_processes_with(OUTPUT_FOLDER_ENV, str(folder)):
            say(f"ended {left} processes that an interrupted batch had left in {relative_to_root(folder)}")
        remove_leftovers(folder)
        try:
            yield
        finally:  # what an interruption has caught between its start and the note of it
            kill_processes_with(OUTPUT_FOLDER_ENV, str(folder))
            remove_leftovers(folder)


def remove_leftovers(folder):
    """Remove what killed processes could not: files half written, and the private folders of their runs."""
    noted, temporary = folder / "logs" / PRIVATE_FOLDERS_FILE, (Path(tempfile.gettempdir()), Path("/tmp"))
    for private in map(Path, read_word(noted).splitlines()):  # which may have come from anywhere
        if private.name.startswith(PRIVATE_PREFIX) and private.parent in temporary:
            shutil.rmtree(private, ignore_errors=True)
    with suppress(OSError):
        for path in (noted, *folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
            path.unlink(missing_ok=True)


def check_fresh(folder):
    """Raise UserError where the folder must not be set aside: the user stands in it, it is no batch's, or in use."""
    if any(path.is_relative_to(folder) for path in (ROOT, Path.cwd())):
        raise UserError(f"--fresh would move {folder} away from under you; choose another --output-dir.")
    if os.path.isdir(folder) and any(folder.iterdir()):
        if not any((folder / "logs" / name).exists() for name in TRACES):
            raise UserError(f"--fresh would rename {folder}, in which no batch has run; choose another --output-dir.")
        make(folder)
        with locked(folder):
            pass


def make(folder):
    """Make the output folder and check that it is writable."""
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder / "logs"):
            return
    except OSError as error:
        raise cannot_write(folder, error) from None


def cannot_write(folder, error):
    reason = f"cannot be written ({error.strerror}); choose another with --output-dir DIR"
    return UserError(f"the output folder {folder} {reason}.")


@contextmanager
def locked(folder):
    """Hold the lock of an output folder; raise UserError naming the batch that holds it."""
    lock, owner = FileLock(folder / "logs" / ".lock"), folder / "logs" / ".lock_owner"
    try:
        lock.acquire(timeout=0)
    except Timeout:  # an OSError, too
        who = read_word(owner) or "that is just beginning or ending"
        advice = "wait for it, or choose another --output-dir"
        raise UserError(f"{folder} is in use by another batch ({who}); {advice}.") from None
    except (OSError, NotImplementedError) as error:  # another user's lock, or a file system without locks
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"the output folder {folder} cannot be locked ({reason}); choose another --output-dir."
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()} since {utc_now()}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            owner.unlink()
        lock.release()


def set_aside(folder):
    """Rename an output folder, so that its results are kept; how long its runs took stays known."""
    archive = folder.with_name(f"{folder.name}.archived-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    seconds = estimates.read_seconds(folder)
    make(folder)
    try:
        if os.name == "nt":  # no folder with an open file in it can be renamed there
            with locked(folder):
                pass
            folder.rename(archive)
        else:
            with locked(folder):
                folder.rename(archive)
        say(f"the old results are kept in {relative_to_root(archive)}")
        make(folder)
        if seconds:
            estimates.write_batch(folder, seconds)
    except OSError as error:  # for example a mount point
        reason = f"--fresh cannot rename {folder} ({error.strerror}); without --fresh finished runs are kept"
        raise UserError(f"{reason}, or choose another --output-dir.") from None
