"""What filled the memory of a training that ran out of it, and what is advised for that."""

import pytest
import torch
from conftest import experiment_of

from mixed_precision_study.diagnosis.diagnose import diagnose
from mixed_precision_study.explain.out_of_memory import FIRST

MIB = 2**20


def fail():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def cross_entropy():
    fail()


def step(model, optimizer, stepped, ends):
    if stepped:
        model(torch.ones(2, 512)).sum().backward()
        optimizer.step()
    ends()


@pytest.mark.parametrize(
    "peak, stepped, ends, part",
    [
        (1.5, False, fail, "weights"),
        (4.0, True, fail, "moments"),
        (9.0, True, fail, "activations"),
        (9.0, True, cross_entropy, "activations with logits"),
    ],
)
def test_the_largest_part_is_named_with_its_first_remedy(monkeypatch, peak, stepped, ends, part):
    model = torch.nn.Linear(512, 512, bias=False)  # 1 MiB
    optimizer = torch.optim.AdamW(model.parameters())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: int(peak * MIB))
    with pytest.raises(torch.OutOfMemoryError) as stopped, diagnose(on_report=id) as report:
        step(model, optimizer, stepped, ends)
    remedy = report.found["error"]["remedy"]
    assert remedy.startswith(part.capitalize()) and remedy.endswith(FIRST[part])
    assert stopped.value.__notes__ == [f"diagnose(): {remedy}"]


def test_a_record_says_it_with_the_command_that_predicts(monkeypatch):
    experiment = experiment_of(
        "transformer", dataset="synthetic", precisions=["fp32"], max_steps=1, context=64
    )
    experiment.parameters.memory_limit_gib = 12.0
    experiment.compute_loss = lambda *_: fail()
    (record,) = experiment.run()
    assert record.status == "oom" and "fill" not in record.reason  # nothing is known on a CPU
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 2**33)
    (record,) = experiment.run()
    assert "Activations fill" in record.reason
    assert "run_all.py fit/transformer -p model" in record.reason
    assert record.reason.endswith("-p vocabulary 256 -p memory_limit_gib 12")
