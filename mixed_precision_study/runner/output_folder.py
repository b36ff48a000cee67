"""The output folder of a study: made, checked, set aside, and locked while one run_all.py writes to it."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError
from ..files import written_whole
from ..record import utc_now
from . import estimates
from .paths import ROOT, shown
from .process import (
    OUTPUT_FOLDER_ENV,
    OWNER_FILE,
    PRIVATE_FOLDERS_FILE,
    PRIVATE_PREFIX,
    RUN_FOLDER_ENV,
    kill_processes_with,
    processes_with,
    read_small_file,
)
from .status import say

TRACES = (".lock", "batch.log")  # files in logs/ that show that run_all.py made the folder
LOCK_MODE = 0o600  # whoever can open the file can hold the lock
HALF_WRITTEN = ".*.[0-9]*.tmp"  # temporary files of written_whole()


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
        if killed := kill_processes_with(OUTPUT_FOLDER_ENV, str(folder)):
            say(f"ended {killed} processes that an interrupted run_all.py left in {shown(folder)}")
        remove_leftovers(folder)
        try:
            yield
        finally:  # Ctrl-C may have come before a process that was started could be noted
            kill_processes_with(OUTPUT_FOLDER_ENV, str(folder))
            remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes could not: half-written files and the private folders of their runs."""
    noted = folder / "logs" / PRIVATE_FOLDERS_FILE
    temporary = (Path(tempfile.gettempdir()), Path("/tmp"))
    for private in map(Path, read_small_file(noted).splitlines()):  # anybody may have written or copied this file
        named_like_ours = private.name.startswith(PRIVATE_PREFIX) and private.parent in temporary
        if named_like_ours and belongs_to(private, folder) and not processes_with(RUN_FOLDER_ENV, str(private)):
            shutil.rmtree(private, ignore_errors=True)
    with suppress(OSError):
        for path in (noted, *folder.glob(HALF_WRITTEN), *folder.glob(f"logs/{HALF_WRITTEN}")):
            path.unlink(missing_ok=True)


def belongs_to(private: Path, folder: Path) -> bool:
    """Return whether a private folder is of a run that writes into the output folder."""
    owner = private / OWNER_FILE
    return not private.is_symlink() and not owner.is_symlink() and read_small_file(owner) == str(folder)


def check_fresh(folder: Path) -> None:
    """Raise UserError where the folder must not be set aside: the user stands in it, it is not ours, or in use."""
    if any(path.is_relative_to(folder) for path in (ROOT, Path.cwd())):
        raise UserError(f"--fresh would move {folder} away from under you; choose another --output-dir.")
    if os.path.isdir(folder) and any(folder.iterdir()):
        if not any((folder / "logs" / name).exists() for name in TRACES):
            reason = "which run_all.py has not made; choose another --output-dir"
            raise UserError(f"--fresh would rename {folder}, {reason}.")
        make(folder)
        with locked(folder):
            pass


def make(folder: Path) -> None:
    """Make the output folder and check that it is writable, and that its logs lie in it and not where a link leads."""
    if (folder / "logs").is_symlink():
        raise UserError(f"{folder / 'logs'} is a link; remove it, or choose another folder with --output-dir DIR.")
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder / "logs"):
            return
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); choose another with --output-dir DIR"
        raise UserError(f"the output folder {folder} {reason}.") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder. Raise UserError naming the process that holds it."""
    path = folder / "logs" / ".lock"
    lock = FileLock(path, mode=LOCK_MODE)
    owner = folder / "logs" / ".lock_owner"
    try:
        lock.acquire(timeout=0)
        with suppress(PermissionError):  # another user's
            path.chmod(LOCK_MODE)  # it may be older than this mode
    except Timeout:  # before OSError: it is one
        who = read_small_file(owner) or "just beginning or ending"
        advice = "wait for it, or choose another --output-dir"
        raise UserError(f"{folder} is in use by another run_all.py ({who}); {advice}.") from None
    except (OSError, NotImplementedError) as error:  # another user's lock, or a file system without locks
        reason = f"cannot be locked ({getattr(error, 'strerror', None) or error}); choose another --output-dir"
        raise UserError(f"the output folder {folder} {reason}.") from None
    try:
        with suppress(OSError), written_whole(owner) as temporary:
            temporary.write_text(f"process {os.getpid()} on {socket.gethostname()} since {utc_now()}")
        yield
    finally:
        with suppress(OSError):
            owner.unlink()
        lock.release()


def set_aside(folder: Path) -> None:
    """Rename an output folder, so that its results are kept. The new folder gets the seconds that its runs took."""
    archive = folder.with_name(f"{folder.name}.archived-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    seconds = estimates.read_seconds(folder)
    make(folder)
    try:
        with locked(folder):
            if os.name != "nt":
                folder.rename(archive)
        if os.name == "nt":  # Windows renames no folder in which a file is open, such as the lock
            folder.rename(archive)
        say(f"the old results are kept in {shown(archive)}")
        make(folder)
        if seconds:
            estimates.write_times(folder, seconds)
    except OSError as error:  # for example a mount point
        reason = f"--fresh cannot rename {folder} ({error.strerror}); without --fresh finished runs are kept"
        raise UserError(f"{reason}, or choose another --output-dir.") from None
