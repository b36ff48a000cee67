"""How much faster: pairs, ratios and intervals of made-up records whose answers are known."""

import numpy as np
import pytest
from made_up_runs import compared, flat, timed

from mixed_precision_study.analysis.speedup import (
    block_times,
    interval_of,
    paired_ratio,
    paired_runs,
    ratios_of,
)
from mixed_precision_study.analysis.verdict import judge


def test_block_times_are_epochs_by_blocks():
    record = flat(epoch_seconds=[6.0, 15.0], block_seconds=[1, 2, 3, 4, 5, 6])
    assert block_times(record).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("blocks", [[], None, [1, 2, 3]], ids=["none", "older record", "not whole"])
def test_block_times_without_whole_blocks_are_the_epochs(blocks):
    record = flat(epoch_seconds=[6.0, 15.0], block_seconds=blocks)
    assert block_times(record).tolist() == [[6], [15]]
    del record["block_seconds"]
    assert block_times(record).tolist() == [[6], [15]]


def test_ratios_are_base_over_own_block_by_block():
    ratios = ratios_of(timed([[1, 2], [4, 5]]), timed([[2, 8], [4, 10]], "fp32"))
    assert ratios.tolist() == [[[2, 4], [1, 2]]]


def test_ratios_without_blocks_on_either_side_compare_epochs():
    blocks, epochs = timed([[1, 2], [4, 5]]), flat("fp32", epoch_seconds=[6.0, 3.0])
    assert ratios_of(blocks, epochs).tolist() == [[[2], [1 / 3]]]
    assert ratios_of(epochs, blocks).tolist() == [[[0.5], [3]]]
    assert ratios_of(epochs, epochs).tolist() == [[[1], [1]]]
    other = timed([[1, 2, 3], [1, 1, 1]], "fp32")  # cut otherwise: only whole epochs are equal work
    assert ratios_of(blocks, other).tolist() == [[[2], [1 / 3]]]


def test_ratios_of_unequal_numbers_of_epochs_use_those_that_both_have():
    short, long = timed([[1, 1]]), timed([[2, 3], [9, 9], [9, 9]], "fp32")
    assert ratios_of(short, long).tolist() == [[[2, 3]]]
    assert ratios_of(long, short).tolist() == [[[1 / 2, 1 / 3]]]


def test_repeats_inside_one_kernel_are_split_by_the_parameter_epochs():
    own, base = np.ones((6, 2)), np.arange(1.0, 13.0).reshape(6, 2)
    epochs = {"epochs": 2, "repeats": 3}
    ratios = ratios_of(timed(own, parameters=epochs), timed(base, "fp32", epochs))
    assert ratios.shape == (3, 2, 2)
    assert ratios[1].tolist() == [[5, 6], [7, 8]]
    speedup = paired_ratio([(timed(own, parameters=epochs), timed(base, "fp32", epochs))])
    assert (speedup["repetitions"], speedup["pairs"]) == (3, 12)
    for unusable in (4, 7, 0, None):  # no whole number of repetitions: they are taken as one
        assert ratios_of(timed(own, parameters={"epochs": unusable}), timed(base, "fp32")).shape == (1, 6, 2)


def test_runs_are_paired_by_seed_repetition_and_card():
    def run(precision, seed=0, repeat=0, uuid="GPU-1", **fields):
        return flat(precision, {"seed": seed, "repeat": repeat}, gpu_uuid=uuid, **fields)

    base = [run("fp32"), run("fp32", seed=1), run("fp32", repeat=1), run("fp32", uuid="GPU-2")]
    runs = [run("tf32", uuid="GPU-2"), run("tf32", repeat=1), run("tf32"), run("tf32", seed=1)]
    pairs = paired_runs(runs, base)
    assert [own for own, _ in pairs] == runs
    assert [counterpart for _, counterpart in pairs] == [base[3], base[2], base[0], base[1]]
    strangers = [run("tf32", seed=2), run("tf32", repeat=2), run("tf32", uuid="GPU-3"), run("tf32", 1, 1)]
    assert paired_runs(strangers, base) == []
    assert paired_runs([run("tf32", status="diverged")], base) == []
    assert paired_runs([run("tf32")], [run("fp32", status="oom")]) == []
    older = [flat("tf32"), flat("fp32")]
    for record in older:
        del record["repeat"]
    assert paired_runs(older[:1], older[1:]) == [tuple(older)]


def test_the_ratio_is_the_median_of_all_pairs_and_the_counts_are_right():
    own = [timed(np.ones((2, 2)), parameters={"seed": seed}) for seed in (0, 1)]
    base = [timed(times, "fp32", {"seed": seed}) for seed, times in ((0, [[2, 2], [3, 1]]), (1, [[2, 9], [1.5, 2]]))]
    speedup = paired_ratio(list(zip(own, base, strict=True)))
    assert speedup["ratio"] == 2
    assert speedup["low"] <= 2 <= speedup["high"]
    assert (speedup["pairs"], speedup["repetitions"], speedup["seeds"], speedup["seconds"]) == (8, 2, 2, 8)
    assert paired_ratio([(b, a) for a, b in zip(own, base, strict=True)])["ratio"] == 0.5


def test_repetitions_of_one_seed_are_no_further_seeds_and_an_exact_ratio_has_an_interval_without_width():
    speedup = paired_ratio(compared(1.5, repetitions=3, noise=0))
    assert (speedup["repetitions"], speedup["seeds"], speedup["pairs"]) == (3, 1, 72)
    assert [speedup[name] for name in ("ratio", "low", "high")] == pytest.approx([1.5] * 3)


def test_repetitions_of_unequal_length_are_cut_to_the_shortest():
    pairs = [*compared(1.5, epochs=3), *compared(1.5, epochs=2), *compared(1.5, epochs=3)]
    assert paired_ratio(pairs)["pairs"] == 3 * 2 * 8


def test_repetitions_that_were_cut_otherwise_are_compared_by_whole_epochs():
    pairs = [*compared(1.5, epochs=3), *compared(1.5, epochs=2), *compared(1.5, epochs=3, blocks=6)]
    speedup = paired_ratio(pairs)
    assert speedup["pairs"] == 3 * 2  # a tenth of an epoch is not the work of a sixth
    assert speedup["ratio"] == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize(
    ("logarithms", "half"),
    [
        ([0.7, 0.8, 0.75], 4.30 * 0.05 / 3**0.5),
        ([0.7, 0.8], 12.71 * 0.005**0.5 / 2**0.5),
        ([0.0] * 11 + [0.12], 2.26 * 0.01),  # from ten groups on: the last of the table
    ],
)
def test_the_interval_is_widened_to_students_over_the_logarithms_of_the_groups(logarithms, half):
    groups = np.exp(logarithms)
    middle = np.mean(logarithms)
    repetitions = groups[:, None, None] * np.ones((1, 2, 4))
    epochs = groups[None, :, None] * np.ones((1, 1, 4))
    for ratios in (repetitions, epochs):  # of one repetition its epochs are the groups
        expected = (np.exp(middle - half), np.exp(middle + half))
        assert interval_of(ratios) == pytest.approx(expected)
        assert interval_of(1 / ratios) == pytest.approx((1 / expected[1], 1 / expected[0]))


def test_intervals_of_few_groups():
    low, high = interval_of(np.array([0.02, 0.3])[None, :, None] * np.ones((1, 1, 4)))
    assert 0 < low < 0.02 and high > 0.3  # never negative
    low, high = interval_of(np.array([[[1.9, 2.0, 2.1, 2.0, 1.95, 2.05]]]))  # one group: the bootstrap alone
    assert 1.9 <= low < 2.0 < high <= 2.1
    assert interval_of(np.full((3, 2, 4), 1.5)) == (1.5, 1.5)


@pytest.mark.parametrize(
    "shape",
    [
        {"epochs": 1, "blocks": 6},  # the fewest pairs that give an interval
        {"epochs": 6, "blocks": 1},  # records without blocks
        {},
        {"repetitions": 3, "epochs": 2, "between": 0.005},
        {"repetitions": 8, "epochs": 2, "between": 0.02, "noise": 0.01},
        {"repetitions": 3, "epochs": 1, "between": 0.01, "noise": 0.01},
    ],
    ids=str,
)
def test_the_interval_holds_the_known_ratio_in_about_95_of_100_comparisons(shape):
    speedups = [paired_ratio(compared(1.5, **shape, seed=seed)) for seed in range(200)]
    assert np.mean([speedup["low"] <= 1.5 <= speedup["high"] for speedup in speedups]) >= 0.92
    assert np.median([speedup["high"] - speedup["low"] for speedup in speedups]) < 0.15  # it says something, too
    assert np.median([speedup["ratio"] for speedup in speedups]) == pytest.approx(1.5, rel=0.005)


def test_equal_runs_are_seldom_called_faster_or_slower():
    speedups = [paired_ratio(compared(1.0, repetitions=3, between=0.003, seed=seed)) for seed in range(200)]
    words = [judge({**speedup, "seconds": 60}) for speedup in speedups]
    assert words.count("no measurable difference") >= 190


def width(**options):
    """Return the mean width of the interval of 20 comparisons."""
    speedups = [paired_ratio(compared(1.5, seed=seed, **options)) for seed in range(20)]
    return np.mean([speedup["high"] - speedup["low"] for speedup in speedups])


def test_the_interval_grows_with_what_varies_between_repetitions():
    calm, noisy = width(repetitions=4, noise=0.005), width(repetitions=4, noise=0.02)
    assert noisy > 2 * calm
    # As many pairs with the same noise inside each repetition: drawing pairs alone would not see the difference.
    assert width(repetitions=4, noise=0.005, between=0.05) > 5 * calm


def test_more_pairs_narrow_the_interval():
    assert width(epochs=1) > 2 * width(epochs=16)


def test_fewer_than_six_pairs_have_a_ratio_and_no_interval():
    for shape, known in (((1, 5), False), ((5, 1), False), ((1, 6), True), ((3, 2), True)):
        speedup = paired_ratio(compared(2.0, epochs=shape[0], blocks=shape[1], noise=0))
        assert speedup["ratio"] == pytest.approx(2)
        assert (speedup["low"] is not None) == (speedup["high"] is not None) == known, shape


def test_no_pairs_have_no_ratio():
    assert paired_ratio([]) is None
    assert paired_ratio(paired_runs([flat("tf32", {"seed": 1})], [flat("fp32")])) is None


def test_the_same_records_give_the_same_interval_whatever_was_drawn_before():
    first = paired_ratio(compared(1.5))
    np.random.seed(1)
    assert paired_ratio(compared(1.5)) == first
    assert all(type(first[name]) is float for name in ("ratio", "low", "high"))  # NumPy's own do not go into JSON


def test_seconds_are_those_of_the_shorter_side_over_all_pairs():
    pairs = [(flat(epoch_seconds=[1.0, 1.5]), flat("fp32", epoch_seconds=[3.0, 3.0]))] * 2
    assert paired_ratio(pairs)["seconds"] == 5
    assert paired_ratio([(base, own) for own, base in pairs])["seconds"] == 5
