"""The order of the runs of a comparison: random, the same whenever it is drawn, and fair to every precision."""

from collections import Counter

from mixed_precision_study.order import shuffled_blocks

NAMES = ["fp32", "tf32", "amp_fp16", "amp_bf16"]


def test_every_block_holds_each_precision_once():
    for block in shuffled_blocks([NAMES] * 5, "a"):
        assert sorted(block) == sorted(NAMES)


def test_an_order_that_is_drawn_again_is_the_same_however_many_blocks_follow():
    three = shuffled_blocks([NAMES] * 3, "resnet18")
    assert shuffled_blocks([NAMES] * 3, "resnet18") == three
    assert shuffled_blocks([NAMES] * 5, "resnet18")[:3] == three
    assert three == [  # on every machine
        ["amp_bf16", "amp_fp16", "tf32", "fp32"],
        ["fp32", "tf32", "amp_fp16", "amp_bf16"],
        ["tf32", "amp_bf16", "amp_fp16", "fp32"],
    ]


def test_of_any_two_precisions_each_has_run_before_the_other():
    for number in range(200):
        blocks = shuffled_blocks([NAMES] * 3, f"comparison {number}")
        for one in NAMES:
            for other in NAMES:
                assert one == other or any(block.index(one) < block.index(other) for block in blocks)


def test_no_block_begins_as_the_one_before_it():
    for names in (NAMES, NAMES[:2]):
        for number in range(200):
            firsts = [block[0] for block in shuffled_blocks([names] * 3, f"comparison {number}")]
            assert firsts[0] != firsts[1] != firsts[2]


def test_every_precision_has_every_place_equally_often():
    """Of 2,000 comparisons a place falls to each of four precisions 500 times, with a standard deviation of 19."""
    drawn = [block for number in range(2000) for block in shuffled_blocks([NAMES] * 3, str(number))]
    for place in range(4):
        counts = Counter(block[place] for block in drawn)
        assert all(abs(counts[name] - 1500) < 200 for name in NAMES), (place, counts)


def test_one_precision_alone_is_left_as_it_is():
    assert shuffled_blocks([["fp32"], ["fp32"], []], "a") == [["fp32"], ["fp32"], []]
