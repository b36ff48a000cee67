"""The order of the precisions of a repetition: the same whenever it is drawn, and fair to every
precision.
"""

import itertools
from collections import Counter

import pytest

from mixed_precision_study.measure.order import in_turn

NAMES = ["fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16"]


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("key", ["resnet18", "lstm"])
@pytest.mark.parametrize("begin", [0, 1])
def test_repetitions_are_a_square_of_williams(count, key, begin):
    """Each precision has each place once, and with an even number of them follows every other
    once.
    """
    rows = [in_turn(NAMES[:count], key, begin * count + repetition) for repetition in range(count)]
    assert all(
        sorted(column) == sorted(NAMES[:count]) for column in [*rows, *zip(*rows, strict=True)]
    )
    neighbours = Counter(pair for row in rows for pair in itertools.pairwise(row))
    if count % 2 == 0:
        assert neighbours == Counter(itertools.permutations(NAMES[:count], 2))
        assert rows[1::2] == [row[::-1] for row in rows[::2]]


def test_an_order_is_the_same_on_every_machine():
    assert in_turn(NAMES[:4], "resnet18", 0) == ["amp_fp16", "fp32", "amp_bf16", "tf32"]
    firsts = Counter(in_turn(NAMES[:4], f"comparison {number}", 0)[0] for number in range(2000))
    assert all(abs(count - 500) < 100 for count in firsts.values())  # a standard deviation of 19
