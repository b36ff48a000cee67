"""Execute one notebook through papermill; run_all.py starts this in a process of its own for every run.

    python -m mixed_precision_study.runner.execute_notebook NOTEBOOK EXECUTED PARAMETERS.yaml FOLDER PARENT

FOLDER is private to the run and holds what the kernel is reached by: sockets where the platform has them, so that no
other user or host can reach it and no two kernels want the same port. Here the run also shows how it does: `beat` is
touched while the kernel answers, `cell` says how far it is, `progress` at which step within the cell, where the
notebook tells that, `session` which one the kernel leads, `kernel_exit` what a dead kernel ended with. The run does not
outlive PARENT, which started it.
"""

import logging
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.modules.setdefault(
    "rfc3987_syntax", None
)  # jsonschema would read a grammar for 1.3 s to check IRIs: there are none

import papermill
import psutil
import yaml
import zmq
from jupyter_client import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.iorw import LocalHandler, papermill_io
from traitlets.config import Config

from ..files import written_whole
from .notebook_file import hash_of

DEAD_KERNEL_EXIT = 138  # as papermill's own command line has it
START_SECONDS = 120  # a kernel that has not answered by then has not started


class WholeFiles(LocalHandler):
    """Reads the notebook whose code the record will name; writes the executed one whole or not at all."""

    def read(self, path):
        text, wanted = super().read(path), os.environ.get("MIXED_PRECISION_CODE_HASH")
        if wanted and hash_of(text) != wanted:
            raise OSError("the notebook was edited while its run was starting")
        return text

    def write(self, buf, path):
        with written_whole(path) as temporary:
            temporary.write_text(buf, encoding="utf-8")


class Kernel(AsyncKernelManager):
    """A kernel whose heart is watched from the moment there is a client to ask it."""

    def client(self, **options):
        client = super().client(**options)
        folder = Path(self.connection_file).parent
        (folder / "session").write_text(str(self.provisioner.pid))
        threading.Thread(target=note_beats, args=(client, self, folder / "beat"), daemon=True).start()
        return client


def note_beats(client, kernel, path):
    """Touch `path` every second in which the kernel has answered and its process lives."""
    process = kernel.provisioner.process
    while True:
        code = process.poll()
        if code is not None:  # noted at once: papermill's clean-up forgets the process
            path.with_name("kernel_exit").write_text(str(code))
            return
        if client.hb_channel.is_beating() and path.with_name("cell").exists():
            path.touch()
        time.sleep(0.5)


def follow(parent, folder):
    """Wait until the process that started this one is gone, then end the kernel and this process."""
    while os.getppid() == parent if os.name == "posix" else psutil.pid_exists(parent):
        time.sleep(1)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended by itself must not spare the others
            child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def kernel_settings(folder):
    """Return how the kernel is reached: over sockets in `folder`, else over TCP on this host alone."""
    address = str(folder / "kernel")  # jupyter_client adds "-1" to "-5"
    if zmq.has("ipc") and os.name == "posix" and len(os.fsencode(address)) + 2 <= zmq.IPC_PATH_MAX_LEN:
        way = {"transport": "ipc", "ip": address}
    else:
        way = {"transport": "tcp", "ip": "127.0.0.1"}
    return Config({"KernelManager": {**way, "connection_file": str(folder / "kernel.json")}})  # holds the kernel's key


def plain(path):
    """Return a path in which papermill, which puts parameters into paths, takes braces for what they are."""
    return path.replace("{", "{{").replace("}", "}}")


def main(notebook, executed, parameter_file, folder, parent):
    """Execute the notebook and return the exit status."""
    folder = Path(folder)
    threading.Thread(target=follow, args=(int(parent), folder), daemon=True).start()
    logging.basicConfig(level="INFO", format="%(message)s")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # silences a warning about frozen modules
    for path in (notebook, executed):
        papermill_io.register(path, WholeFiles())

    def note_cell(cell, cell_index):
        with suppress(OSError):
            (folder / "progress").unlink()  # of the cell before
        (folder / "cell").write_text(f"{cell_index + 1}/{count}")

    parameters = yaml.safe_load(Path(parameter_file).read_text(encoding="utf-8"))
    count = len(papermill.iorw.load_notebook_node(notebook).cells) + bool(parameters)
    options = {"kernel_manager_class": Kernel, "config": kernel_settings(folder), "on_cell_start": note_cell}
    settings = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": START_SECONDS}
    try:
        papermill.execute_notebook(plain(notebook), plain(executed), parameters, **settings, **options)
    except DeadKernelError as error:
        print(f"DeadKernelError: {error}", file=sys.stderr)
        time.sleep(1)  # for note_beats to see it, too
        return DEAD_KERNEL_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
