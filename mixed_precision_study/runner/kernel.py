"""The kernel of a run: ipykernel without its open port.

    python -m mixed_precision_study.runner.kernel -f CONNECTION_FILE

ipykernel gets the output of forked processes, such as the workers of a DataLoader, through a port of this host. Any
local user can write to it. Here that output goes through a socket beside the connection file, in a private folder.
"""

import atexit
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

if __name__ == "__main__" and sys.path[0] in sys.path[1:]:
    del sys.path[0]  # the current folder, which `python -m` adds once more

import zmq
from ipykernel import iostream, kernelapp
from zmq.eventloop.zmqstream import ZMQStream

SOCKET = "forked"  # name of the socket
LINGER_MS = 3000  # for a forked process to send its output, as in ipykernel


def socket_path() -> str:
    """Return where the output of forked processes arrives, or "" where the platform has no such sockets."""
    folder = os.path.dirname(kernelapp.IPKernelApp.instance().abs_connection_file)
    path = os.path.join(folder, SOCKET)
    possible = zmq.has("ipc") and os.name == "posix" and len(os.fsencode(path)) <= zmq.IPC_PATH_MAX_LEN
    return path if possible else ""


class PrivateOutput(iostream.IOPubThread):
    """Sends the output of a kernel and of the processes that it forks."""

    def _setup_pipe_in(self) -> None:
        path = socket_path()
        if not path:
            self._pipe_flag = False
            return
        self._pipe_uuid = os.urandom(16)
        socket = self.socket.context.socket(zmq.PULL)
        socket.linger = 0
        socket.bind(f"ipc://{path}")
        self._pipe_in = ZMQStream(socket, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[Any, Any]:
        context = zmq.Context()  # a forked process needs one of its own
        socket = context.socket(zmq.PUSH)
        socket.linger = LINGER_MS
        socket.connect(f"ipc://{socket_path()}")
        return context, socket


def leave() -> NoReturn:
    """End this process as Python would, but leave its modules as they are: with PyTorch that saves three seconds."""
    atexit._run_exitfuncs()
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()  # type: ignore[union-attr]
    os._exit(0)


if __name__ == "__main__":
    kernelapp.IOPubThread = PrivateOutput  # type: ignore[misc]
    kernelapp.IPKernelApp.launch_instance()
    leave()
