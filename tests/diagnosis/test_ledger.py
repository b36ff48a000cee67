"""What the ledger of one optimizer names, from what it has counted."""

import pytest
import torch
from diagnosis_cases import sgd

from mixed_precision_study.diagnosis.ledger import Ledger


@pytest.mark.parametrize(
    "due, times, told", [(10, 2, False), (10, 3, True), (40, 3, False), (40, 4, True)]
)
@pytest.mark.parametrize(
    "count, rule", [("through", "scheduled though skipped"), ("skipped", "steps skipped")]
)
def test_often_is_three_times_and_a_tenth_of_what_was_due(count, rule, due, times, told):
    ledger = Ledger(sgd([torch.zeros(1, requires_grad=True)]))
    ledger.due = due
    setattr(ledger, count, times)
    assert [name for name, _ in ledger.mistakes()] == [rule] * told


@pytest.mark.parametrize("fused", (False, True))
def test_a_step_of_many_16_bit_weights_is_read_once(monkeypatch, fused):
    weights = [torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16)) for _ in range(5)]
    optimizer = torch.optim.AdamW(weights, 1e-3, fused=fused)
    ledger, reads = Ledger(optimizer), []
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    ledger.begin_step(optimizer, [])
    optimizer.step()
    for name in ("item", "tolist", "cpu", "__float__", "__bool__", "__int__"):
        plain = getattr(torch.Tensor, name)

        def noted(tensor, plain=plain):
            reads.append(tensor)
            return plain(tensor)

        monkeypatch.setattr(torch.Tensor, name, noted)
    ledger.end_step(optimizer, False, 1)
    assert [len(read) for read in reads] == [2 * len(weights)]
    assert ledger.whole == pytest.approx(sum(map(len, weights)) * (1e-3 + 1e-5) ** 2, rel=0.01)
    assert ledger.arrived == 0  # half of what lies between 1 and the number below it is 2e-3
