"""Downloads that are cut, garbled or too long end with a sentence; the data are made up where none were named."""

import functools
import hashlib
import socket
import threading
from types import SimpleNamespace

import pytest
import torch
from made_up_data import settings_of

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks import cifar, download, wikitext

HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "whole": HEAD + b"Content-Length: 2\r\n\r\nok",
    "cut": HEAD + b"Content-Length: 100\r\n\r\no",
    "empty": b"",
    "garbage": b"\0\xff no HTTP \r\n\r\n",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
    "cut chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nok",
    "redirect to a file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\n\r\n",
    "redirect to nonsense": b"HTTP/1.1 302 Found\r\nLocation: http://[bad/\r\n\r\n",
}


@pytest.fixture
def serving():
    """A function that starts a server of one answer, and returns its address."""
    sockets = []

    def serve(answer):
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def reply():
            while True:
                try:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(2**16)
                        connection.sendall(answer)
                except OSError:
                    if listening.fileno() < 0:
                        return

        threading.Thread(target=reply, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield serve
    for listening in sockets:
        listening.close()


def sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ANSWERS)
def test_what_does_not_come_whole_raises_an_error_of_the_system(serving, monkeypatch, name):
    address = f"{serving(ANSWERS[name])}x.txt"
    if name == "whole":
        assert download.downloaded(address, sha, sha(b"ok")) == b"ok"
        monkeypatch.setattr(download, "MOST_BYTES", 1)  # a longer answer is cut, so that none is endless
    with pytest.raises(OSError):  # whatever its text
        download.downloaded(address, sha, sha(b"ok"))


@pytest.mark.parametrize(
    ("module", "notebook", "name"),
    [(cifar, "cifar_resnet", "cifar10"), (wikitext, "lstm_language_model", "wikitext-2")],
)
def test_named_data_are_refused_and_others_made_up(serving, monkeypatch, tmp_path, capsys, module, notebook, name):
    address = serving(ANSWERS["garbage"])
    monkeypatch.setattr(wikitext, "WIKITEXT_URL", address)
    kind = SimpleNamespace(base_folder="b", url=address, tgz_md5="0", filename="f")
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
    given = functools.partial(settings_of, notebook, data_dir=str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path)):
        module.load(given(dataset=name), torch.device("cpu"))
    assert module.load(given(dataset="auto"), torch.device("cpu")).source == "synthetic"
    assert "MADE-UP" in capsys.readouterr().out and socket.getdefaulttimeout() is None
