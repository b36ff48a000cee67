"""A process that has loaded what every run needs, and forks the kernel of each run. That saves many seconds a run.

    python -m mixed_precision_study.runner.prepared SOCKET PARENT
    python -m mixed_precision_study.runner.prepared SOCKET PARENT SOCKET OTHER_SOCKET ...

The second form is for times that get an interval: the process forks one kernel and ends. Several are started at once.
None of them answers before all of them have loaded, so nothing is loaded while a run is timed.

It listens at SOCKET, which lies in a private folder. It has one thread, never uses a GPU and does nothing while a run
is timed. A request is a JSON object (arguments, environment, folder) with three open files: the kernel's input, output
and errors. The answer is the kernel's process id, later its exit status, one a line.

The kernel is killed with its session when the connection closes, so it never outlives the process that asked for it.
When PARENT ends, this process ends, and so do its kernels.
"""

import gc
import glob
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

KERNEL = "mixed_precision_study.runner.kernel"
LOADED = (  # what every run needs; a package that is not installed is left out
    *("torch", "torchvision", "timm", "numpy", "pandas", "matplotlib.pyplot", "IPython", "ipykernel.kernelapp"),
    *("mixed_precision_study.experiment", "mixed_precision_study.own_model", "mixed_precision_study.report.results"),
    *("mixed_precision_study.data.cifar", "mixed_precision_study.data.elpv", "mixed_precision_study.data.wikitext"),
)
PREPARED_ENV = "MIXED_PRECISION_PREPARED"  # environment variable: the socket of the prepared process
FORKED_ENV = "MIXED_PRECISION_FORKED"  # environment variable of a kernel whose process forks others, too
REQUEST_BYTES = 2**20
PARENT_SECONDS = 1.0  # between two looks at whether the parent lives
LOADED_SUFFIX = ".loaded"  # of an empty file beside a socket whose process has loaded everything
LOAD_SECONDS = 120.0  # to wait for the others; one that takes longer has probably died


def load() -> None:
    """Import the packages of LOADED, and keep them out of the kernels' garbage collections."""
    reading = threading.Thread(target=read_ahead)
    reading.start()
    for name in LOADED:
        with suppress(ImportError):
            import_module(name)
    reading.join()  # a fork keeps one thread alone
    gc.freeze()


def read_ahead() -> None:
    """Where there is a GPU, ask the system to read the libraries from which cuDNN's search loads its kernels."""
    if not glob.glob("/dev/nvidia[0-9]*") or not hasattr(os, "posix_fadvise"):
        return
    for path in libraries():
        with suppress(OSError), open(path, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def libraries() -> list[str]:
    """Return the files of the installed CUDA libraries that hold kernels or make them: about 2 GB."""
    found = []
    for package, names in (("nvidia", ("cudnn*", "cublas*", "nvrtc")), ("torch", ("torch_cuda",))):
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for name in names:
                found += glob.glob(os.path.join(glob.escape(folder), "**", "lib", f"lib{name}.so*"), recursive=True)
    return found


def wait_for_others(path: str, sockets: list[str], parent: int) -> None:
    """Say that the process of the socket `path` has loaded, and wait until those of all `sockets` have."""
    open(path + LOADED_SUFFIX, "wb").close()
    until = time.monotonic() + LOAD_SECONDS
    while not all(os.path.exists(one + LOADED_SUFFIX) for one in sockets):
        if time.monotonic() > until or os.getppid() != parent:
            return
        time.sleep(0.05)


def end_without(parent: int) -> None:
    """In a kernel: end it when the process that has forked it is gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os.killpg(0, signal.SIGKILL)


def become_kernel(request: dict, files: list[int], parent: int) -> NoReturn:
    """Turn this forked process into a kernel. `files` become its input, output and errors."""
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [KERNEL, *request["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    import_module("mixed_precision_study.timing").startup.begin_again()
    threading.Thread(target=end_without, args=(parent,), daemon=True).start()
    runpy.run_module(KERNEL, run_name="__main__")
    sys.exit(0)


class Server:
    """Answers requests until its parent ends. With `once` it ends after the first kernel."""

    def __init__(self, path: str, parent: int, once: bool = False):
        self.parent = parent
        self.once = once
        self.over = False
        self.kernels: dict[int, socket.socket] = {}  # process id: the connection that asked for it
        self.selector = selectors.DefaultSelector()
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(f"{path}.new")
        self.listening.listen()
        os.rename(f"{path}.new", path)  # whoever sees it can connect
        self.selector.register(self.listening, selectors.EVENT_READ)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.woken = reader
        self.selector.register(reader, selectors.EVENT_READ)

    def serve(self) -> None:
        """Answer until the parent is gone, then kill the kernels."""
        while os.getppid() == self.parent and not self.over:
            for key, _ in self.selector.select(PARENT_SECONDS):
                if key.fileobj is self.listening:
                    self.accept()
                elif key.fileobj == self.woken:
                    os.read(self.woken, 512)
                else:
                    self.kill_of(key.fileobj)
            self.reap()
        for pid in self.kernels:
            kill_session(pid)

    def accept(self) -> None:
        """Read a request and fork its kernel."""
        connection, _ = self.listening.accept()
        text, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        while text and not text.endswith(b"\n"):
            more = connection.recv(REQUEST_BYTES)
            text = text + more if more else b""
        if not text:  # whoever asked has gone
            connection.close()
            return
        request = json.loads(text)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.leave()
            connection.close()
            become_kernel(request, files, parent)
        for file in files:
            os.close(file)
        self.kernels[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ)
        with suppress(OSError):
            connection.sendall(f"{pid}\n".encode())

    def leave(self) -> None:
        """In a kernel: let go of all that belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        self.listening.close()
        os.close(self.woken)
        for connection in self.kernels.values():
            connection.close()

    def kill_of(self, connection: Any) -> None:
        """Kill the kernel whose connection has closed."""
        for pid, own in self.kernels.items():
            if own is connection:
                kill_session(pid)
        self.selector.unregister(connection)

    def reap(self) -> None:
        """Tell the exit status of each kernel that has ended."""
        for pid in list(self.kernels):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            connection = self.kernels.pop(pid)
            self.over = self.once
            kill_session(pid)  # what it has left
            with suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            with suppress(KeyError):
                self.selector.unregister(connection)
            connection.close()


def kill_session(pid: int) -> None:
    """Kill the processes of a kernel's group."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


class ForkedKernel:
    """A kernel that the prepared process has forked, with the methods of subprocess.Popen that are used of one.

    Raises OSError where the prepared process does not answer.
    """

    stdin = stdout = stderr = None

    def __init__(self, path: str, arguments: list[str], environment: dict[str, str], folder: str):
        self.returncode: int | None = None
        self.lock = threading.Lock()
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        request = json.dumps({"arguments": arguments, "environment": environment, "folder": folder})
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self.connection, [f"{request}\n".encode()], [nothing.fileno(), 1, 2])
        self.lines = self.connection.makefile("r")
        line = self.lines.readline()
        if not line.strip().isdigit():
            raise ConnectionError("the prepared process has ended")
        self.pid = int(line)
        self.connection.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives. It is -9 where the prepared process has ended."""
        with self.lock:
            if self.returncode is None:
                try:
                    answer = self.connection.recv(64)
                except BlockingIOError:
                    return None
                except OSError:
                    answer = b""
                self.returncode = int(answer) if answer.strip() else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        while self.poll() is None:
            time.sleep(0.02)
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        """Send a signal to the kernel, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    own, runner, *sockets = sys.argv[1:]
    server = Server(own, int(runner), once=bool(sockets))
    load()
    wait_for_others(own, sockets, int(runner))
    server.serve()
