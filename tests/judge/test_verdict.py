"""What a ratio allows to say, on made-up comparisons whose answers are known."""

import pytest
from made_up_runs import CASES, gained

from mixed_precision_study.judge.verdict import (
    NOT_PAIRED,
    judge,
)


@pytest.mark.parametrize("fields, word", CASES["verdicts"])
def test_judge(fields, word):
    assert judge(gained(**fields)) == word


def test_without_a_ratio_nothing_is_judged():
    assert judge(None) == NOT_PAIRED
