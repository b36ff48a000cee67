"""Downloads that are cut, garbled or late: data that were named are refused, and others are made up."""

import io
from http.client import BadStatusLine
from types import SimpleNamespace
from unittest.mock import Mock
from urllib import request

import pytest
import torch

from mixed_precision_study.parameters import UserError, checked
from mixed_precision_study.tasks import cifar, wikitext


@pytest.mark.parametrize("answer", [b"", b"another", TimeoutError(), BadStatusLine("\0")])
@pytest.mark.parametrize(
    ("module", "notebook", "name"),
    [(cifar, "cifar_resnet", "cifar10"), (wikitext, "lstm_language_model", "wikitext-2")],
)
def test_named_data_are_refused_and_others_made_up(monkeypatch, tmp_path, capsys, module, notebook, name, answer):
    fails = isinstance(answer, Exception)
    monkeypatch.setattr(request, "urlopen", Mock(side_effect=answer if fails else lambda *_, **__: io.BytesIO(answer)))
    kind = SimpleNamespace(base_folder="b", url="http://x/f", tgz_md5="0", filename="f")
    monkeypatch.setitem(cifar.KINDS, "cifar10", kind)
    with pytest.raises(UserError, match=str(tmp_path)):
        module.load(checked(notebook, {"data_dir": str(tmp_path), "dataset": name}), torch.device("cpu"))
    made_up = module.load(checked(notebook, {"data_dir": str(tmp_path), "dataset": "auto"}), torch.device("cpu"))
    assert made_up.source == "synthetic" and "MADE-UP" in capsys.readouterr().out
    assert request.urlopen.call_args.kwargs["timeout"]
