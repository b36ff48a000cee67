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
