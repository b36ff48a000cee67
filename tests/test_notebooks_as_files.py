"""Where a notebook opens with a GPU, and the second example of your_model."""

import importlib.machinery
import importlib.util
import json
import sys
import types

import nbformat
import pytest
import torch
from conftest import EXPERIMENTS, NOTEBOOKS, read_notebook, refuses, run_cells

from mixed_precision_study import own_model, standalone

TRAIN = (*EXPERIMENTS, "your_model")


@pytest.mark.parametrize("name", (*TRAIN, "summary"))
def test_one_click_opens_it_with_a_gpu_where_it_trains(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    metadata, trains = notebook.metadata, name in TRAIN
    assert metadata.get("accelerator") == ("GPU" if trains else None)
    assert metadata["colab"].get("gpuType") == ("T4" if trains else None)
    kaggle = metadata["kaggle"]
    assert kaggle["accelerator"] == ("nvidiaTeslaT4" if trains else "none")
    assert (kaggle["isGpuEnabled"], kaggle["isInternetEnabled"]) == (trains, True)
    packed = standalone.standalone_notebook(NOTEBOOKS / f"{name}.ipynb", b"")
    assert json.loads(packed)["metadata"] == read_notebook(name)["metadata"]


def test_your_model_is_the_first_standalone_notebook(tmp_path):
    assert next(standalone.build(tmp_path)).stem == "your_model"


class Language(torch.nn.Module):
    """A made-up model in the form of transformers'."""

    def __init__(self, config):
        super().__init__()
        self.scores = torch.nn.Embedding(64, 64)

    def forward(self, input_ids, labels):
        scores = self.scores(input_ids[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, labels[:, 1:].flatten())
        return types.SimpleNamespace(loss=loss)


def from_pretrained(name):
    if name != "here":
        raise OSError("no network, with a long explanation")
    return Language({}).half()


def run_example(monkeypatch, pretrained, installed=True):
    """Run your_model up to its second example and return the calls of compare()."""
    calls = []
    monkeypatch.setattr(own_model, "compare", lambda *given, **named: calls.append((given, named)))
    module = types.ModuleType("transformers")
    module.__spec__ = importlib.machinery.ModuleSpec("transformers", None)
    module.GPT2Config, module.GPT2LMHeadModel = dict, Language
    module.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", module if installed else None)
    if not installed:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: None if name == "transformers" else find(name, *rest),
        )
    run_cells("your_model", "pretrained", pretrained=pretrained)
    return calls


@pytest.mark.parametrize("pretrained", ["random", "here"])
def test_the_second_example_trains_a_model_of_transformers(monkeypatch, pretrained):
    _, (given, named) = run_example(monkeypatch, pretrained)
    name, make_model, batches, compute_loss = given
    losses = [compute_loss(make_model(), batch) for batch in batches[:2]]
    assert name == "your_model" and pretrained in named["model"]
    assert all(loss.dtype == torch.float32 and loss.requires_grad for loss in losses)
    # each number is followed by the next one, so the model can learn it
    assert torch.equal((batches[0]["input_ids"][:, :-1] + 1) % 64, batches[0]["labels"][:, 1:])
    assert named["evaluate"](make_model(), named["eval_batches"]).ndim == 0


def test_by_default_the_second_example_only_says_how_to_run_it(monkeypatch, capsys):
    assert len(run_example(monkeypatch, "")) == 1
    assert "pretrained" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("installed, said", [(True, "random"), (False, "pip install")])
def test_no_transformers_or_network_is_one_sentence(monkeypatch, installed, said):
    with refuses(said):
        run_example(monkeypatch, "elsewhere", installed)
