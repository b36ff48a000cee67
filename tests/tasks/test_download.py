"""Downloads that are cut, garbled or late end with an OSError; the data are made up where none were named."""

import hashlib
import http.client
import io
from types import SimpleNamespace
from urllib import request

import pytest
import torch
from made_up_data import settings_of

from mixed_precision_study.parameters import UserError
from mixed_precision_study.tasks import cifar, download, wikitext

WRONG = (b"", b"o", b"another", TimeoutError(), http.client.BadStatusLine("\0"), ValueError("Port could not be cast"))


@pytest.fixture
def answering(monkeypatch):
    """Return a function that has every address answer so: with these bytes, or with an error."""

    def set_answer(answer):
        def urlopen(url, timeout):
            assert timeout
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        monkeypatch.setattr(request, "urlopen", urlopen)

    return set_answer


def test_what_does_not_come_whole_raises_an_error_of_the_system(answering):
    def sha(content):
        return hashlib.sha256(content).hexdigest()

    answering(b"ok")
    assert download.downloaded("http://x/x.txt", sha, sha(b"ok")) == b"ok"
    for answer in WRONG:
        answering(answer)
        with pytest.raises(OSError):  # whatever its text
            download.downloaded("http://x/x.txt", sha, sha(b"ok"))


@pytest.mark.parametrize(
    ("module", "notebook", "name"),
    [(cifar, "cifar_resnet", "cifar10"), (wikitext, "lstm_language_model", "wikitext-2")],
)
def test_named_data_are_refused_and_others_made_up(answering, monkeypatch, tmp_path, capsys, module, notebook, name):
    answering(b"garbage")
    kind = SimpleNamespace(base_folder="b", url="http://x/f", tgz_md5="0", filename="f")
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
    with pytest.raises(UserError, match=str(tmp_path)):
        module.load(settings_of(notebook, data_dir=str(tmp_path), dataset=name), torch.device("cpu"))
    made_up = module.load(settings_of(notebook, data_dir=str(tmp_path), dataset="auto"), torch.device("cpu"))
    assert made_up.source == "synthetic" and "MADE-UP" in capsys.readouterr().out
