"""Execute one notebook with papermill. run_all.py starts this program in a process of its own for every run.

    python -m mixed_precision_study.runner.execute_notebook NOTEBOOK EXECUTED PARAMETERS.yaml FOLDER PARENT

FOLDER is private to the run. The kernel is reached by sockets in it, where the platform has them: no other user or host
can reach it, and no two kernels need the same port. The folder also holds five status files: `beat` (touched while the
kernel answers), `cell`, `progress` (the step within the cell, where the notebook tells it), `session` (the kernel's
session id) and `kernel_exit` (the exit status of a dead kernel).

The run ends when PARENT, the process that started it, ends.
"""

import logging
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # saves jsonschema 1.3 s of reading a grammar

import papermill
import psutil
import yaml
import zmq
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import LocalProvisioner
from nbclient.exceptions import DeadKernelError
from papermill.iorw import LocalHandler, papermill_io
from traitlets.config import Config

from ..files import written_whole
from .notebook_file import hash_of
from .prepared import FORKED_ENV, PREPARED_ENV, ForkedKernel

KERNEL = "mixed_precision_study.runner.kernel"
DEAD_KERNEL_EXIT = 138  # as in papermill's own command line
START_SECONDS = 120  # a kernel that has not answered by then has not started


class WholeFiles(LocalHandler):
    """Reads the notebook and checks its hash; writes the executed one whole or not at all."""

    def read(self, path: str) -> str:
        """Return the notebook's text. Raise OSError where it is not the one that the record will name."""
        text = super().read(path)
        wanted = os.environ.get("MIXED_PRECISION_CODE_HASH")
        if wanted and hash_of(text) != wanted:
            raise OSError("the notebook was edited while its run was starting")
        return text

    def write(self, buf: str, path: str) -> None:
        with written_whole(path) as temporary:
            temporary.write_text(buf, encoding="utf-8")


class ForkedProvisioner(LocalProvisioner):
    """Starts a kernel by the prepared process; where that does not answer, as usual."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        try:
            process = ForkedKernel(os.environ[PREPARED_ENV], cmd[3:], options["env"], os.getcwd())
        except OSError as error:
            options["env"].pop(FORKED_ENV, None)
            print(f"the prepared process does not answer ({error}); the kernel starts by itself", file=sys.stderr)
            return await super().launch_kernel(cmd, **options)
        self.process = process  # type: ignore[assignment]
        self.pid = self.pgid = process.pid  # type: ignore[assignment]
        self.cwd = os.getcwd()  # type: ignore[assignment]
        return self.connection_info


class Kernel(AsyncKernelManager):
    """A kernel of this Python. Its heartbeat is noted as soon as it has a client."""

    def __init__(self, *words: Any, **options: Any):
        super().__init__(*words, **options)
        if os.environ.get(PREPARED_ENV):
            self.provisioner = ForkedProvisioner(kernel_id="forked", kernel_spec=self.kernel_spec, parent=self)

    @property
    def kernel_spec(self) -> KernelSpec:
        """How to start it. An installed kernelspec may be of another Python, so none is looked up."""
        command = [sys.executable, "-m", KERNEL, "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")

    def client(self, **options: Any) -> Any:
        client = super().client(**options)
        folder = Path(self.connection_file).parent
        provisioner: Any = self.provisioner
        (folder / "session").write_text(str(provisioner.pid))
        threading.Thread(target=note_beats, args=(client, provisioner.process, folder / "beat"), daemon=True).start()
        return client


def note_beats(client: Any, process: Any, path: Path) -> None:
    """Touch `path` every half second while the kernel answers and its process lives."""
    while True:
        code = process.poll()
        if code is not None:  # noted at once: papermill forgets the process when it cleans up
            with suppress(OSError):  # process.py notices where the folder has been removed
                path.with_name("kernel_exit").write_text(str(code))
            return
        if client.hb_channel.is_beating() and path.with_name("cell").exists():
            with suppress(OSError):
                path.touch()
        time.sleep(0.5)


def end_with_parent(parent: int, folder: Path) -> None:
    """Wait until the process that started this one is gone, then end the kernel and this process."""
    while os.getppid() == parent if os.name == "posix" else psutil.pid_exists(parent):
        time.sleep(1)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended by itself
            child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def kernel_settings(folder: Path) -> Config:
    """Return how the kernel is reached: over sockets in `folder`, else over TCP on this host alone."""
    settings = {"transport": "tcp", "ip": "127.0.0.1"}
    address = str(folder / "kernel")  # jupyter_client adds "-1" to "-5"
    if zmq.has("ipc") and os.name == "posix" and len(os.fsencode(address)) + 2 <= zmq.IPC_PATH_MAX_LEN:
        settings = {"transport": "ipc", "ip": address}
    connection_file = str(folder / "kernel.json")  # holds the kernel's key
    return Config({"KernelManager": {**settings, "connection_file": connection_file}})


def with_escaped_braces(path: str) -> str:
    """Return a path for papermill, which would put parameters in place of braces."""
    return path.replace("{", "{{").replace("}", "}}")


def main(notebook: str, executed: str, parameter_file: str, folder_name: str, parent: str) -> int:
    """Execute the notebook and return the exit status."""
    folder = Path(folder_name)
    threading.Thread(target=end_with_parent, args=(int(parent), folder), daemon=True).start()
    logging.basicConfig(level="INFO", format="%(message)s")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # silences a warning about frozen modules
    for path in (notebook, executed):
        papermill_io.register(path, WholeFiles())
    parameters = yaml.safe_load(Path(parameter_file).read_text(encoding="utf-8"))
    count = len(papermill.iorw.load_notebook_node(notebook).cells) + bool(parameters)  # papermill adds their cell

    def note_cell(cell: Any, cell_index: int) -> None:
        with suppress(OSError):
            (folder / "progress").unlink()  # of the cell before
        with suppress(OSError):
            (folder / "cell").write_text(f"{cell_index + 1}/{count}")

    try:
        papermill.execute_notebook(
            with_escaped_braces(notebook),
            with_escaped_braces(executed),
            parameters,
            kernel_name="python3",
            progress_bar=False,
            log_output=True,
            start_timeout=START_SECONDS,
            kernel_manager_class=Kernel,
            config=kernel_settings(folder),
            on_cell_start=note_cell,
        )
    except DeadKernelError as error:
        print(f"DeadKernelError: {error}", file=sys.stderr)
        time.sleep(1)  # until note_beats has seen it, too
        return DEAD_KERNEL_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
