"""What a warm-up changes in a model and its optimizer, and that all of it is put back."""

from collections import deque

import pytest
import torch
from conftest import seeded
from small_training import losses_of_a_loop
from torch import nn

from mixed_precision_study.own_model import compare
from mixed_precision_study.train import step
from mixed_precision_study.train.as_found import AsFound

INPUTS = [torch.rand(8, 16, generator=seeded(one)) for one in range(5)]


class Counting(nn.Module):
    """A model whose output depends on all kinds of state that a step changes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.steps, self.past, self.facts, self.late = 0, deque([0.0], maxlen=9), {"n": [0]}, None
        self.noise = seeded(7)
        self.plain = torch.ones(3)

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.steps += 1
            self.past.append(float(self.steps))
            self.facts["n"][0] += 1
            self.facts["new"] = self.late = torch.ones(1)
            self.plain.mul_(2)
        many = (
            self.seen + self.steps + len(self.past) + self.facts["n"][0] + self.plain.log2().sum()
        )
        return self.layer(x) * torch.rand(1, generator=self.noise) / many


class OwnCounters(torch.optim.Optimizer):
    """It warms its rate up by counters in its groups, in itself and in an optimizer within it."""

    def __init__(self, weights):
        super().__init__(weights, {"lr": 0.1, "k": 0})
        self.inner, self.calls = torch.optim.AdamW(self.param_groups[0]["params"], lr=0.01), 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["k"], group["total"] = group["k"] + 1, group.get("total", 0) + 1
            for weight in group["params"]:
                weight.sub_(
                    weight.grad,
                    alpha=group["lr"] * min(1, (group["k"] + self.calls + group["total"]) / 60),
                )
        self.inner.step()


def loss(model, x):
    return nn.functional.mse_loss(model(x).float(), x)


def plain_losses(epochs=2):
    torch.manual_seed(0)
    model = Counting()
    return losses_of_a_loop(model, OwnCounters(model.parameters()), loss, [INPUTS] * epochs)


@pytest.mark.parametrize("count", [1, 12, 40])
def test_any_warm_up_leaves_the_losses_of_a_loop(monkeypatch, count):
    monkeypatch.setattr(step, "steps_until_stable", lambda *given: usual(*given[:3], count, count))
    given = {"make_optimizer": OwnCounters, "precisions": ["fp32"], "epochs": 2, "max_steps": 9}
    (record,) = compare("counting", Counting, INPUTS, loss, **given)
    assert (record.status, record.warmup_steps) == ("ok", count)
    assert record.train_loss == pytest.approx(plain_losses(), rel=1e-6)


usual = step.steps_until_stable


class Annealed:
    """A loss with a counter of its own."""

    def __init__(self):
        self.calls, self.scales = 0, []

    def __call__(self, model, batch):
        self.calls += 1
        self.scales.append(self.calls)
        return loss(model, batch) * self.calls


def test_a_loss_with_a_counter_begins_anew_in_each_precision():
    annealed = Annealed()
    given = {"precisions": ["fp32", "amp_bf16"], "epochs": 2, "max_steps": 9, "lr": 0.001}
    records = compare("annealed", lambda: nn.Linear(16, 16), INPUTS, annealed, **given)
    assert [record.status for record in records] == ["ok", "ok"]
    assert records[1].train_loss == pytest.approx(records[0].train_loss, rel=1e-2)
    assert annealed.calls == 2 * len(INPUTS)


def test_objects_keep_their_identity_and_what_is_new_is_gone():
    model = Counting()
    plain, facts, past, weights = model.plain, model.facts, model.past, [*model.parameters()]
    found = AsFound(model)
    for _ in range(3):
        model(INPUTS[0])
    found.put_back()
    assert (model.steps, list(past), facts, model.late) == (0, [0.0], {"n": [0]}, None)
    assert model.seen == 0 and torch.equal(plain, torch.ones(3))
    assert model.plain is plain and model.facts is facts and model.past is past
    assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))


def test_rings_and_tensors_that_cannot_be_written_pass():
    with torch.inference_mode():
        kept = torch.ones(2)
    ring: list = [torch.zeros(1).expand(3), kept]
    ring.append(ring)
    AsFound(ring).put_back()
    assert len(ring) == 3 and ring[2] is ring
