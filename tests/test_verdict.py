"""The judgement on made-up records whose answers are known: pairs, ratios, intervals, limits, advice, sentences."""

import re
from dataclasses import asdict

import numpy as np
import pytest
import verdict
from record import NOT_WRITTEN, STATUSES, new_record

PARAMETERS = {"dataset": "cifar10", "model": "resnet18", "batch_size": 128, "seed": 0, "repeats": 1, "repeat": 0}
PARAMETERS |= {"epochs": 2, "execution": "eager", "channels_last": False, "precisions": ["fp32"]}
ON_GPU = {"status": "ok", "device_type": "cuda", "gpu_uuid": "GPU-1", "epoch_seconds": [4.0, 4.0]}
# Names and shares of kernel time in which convolution, matmul and attention have 0.7 together.
DENSE = [["convolution", 0.4], ["matmul", 0.2], ["normalisation", 0.2], ["attention", 0.1], ["elementwise", 0.1]]
SPARSE = [["elementwise", 0.4], ["convolution", 0.25], ["normalisation", 0.2], ["optimizer", 0.1], ["copy", 0.05]]


def flat(precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run on a GPU as it is read back: the parameters beside every field of RunRecord."""
    values = {**PARAMETERS, **(parameters or {})}
    record = new_record("cifar_resnet", values, precision, {**ON_GPU, **fields})
    return {**values, **{name: value for name, value in asdict(record).items() if name not in NOT_WRITTEN}}


def profiled(families=DENSE, busy=0.95, precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run whose kernels were looked at."""
    figures = {"kernel_family_fractions": families, "gpu_busy_fraction": busy, "tensor_core_fraction": 0.6, **fields}
    return flat(precision, parameters, **figures)


def timed(blocks, precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run with these times, an array (epochs, blocks) of seconds."""
    blocks = np.asarray(blocks, float)
    times = {"epoch_seconds": blocks.sum(1).tolist(), "block_seconds": blocks.ravel().tolist()}
    return flat(precision, {"epochs": len(blocks), **(parameters or {})}, **times, **fields)


def compared(ratio, repetitions=1, epochs=3, blocks=8, noise=0.02, between=0.0, seed=0):
    """Return pairs of noisy runs of which the first is `ratio` times as fast.

    `noise` is the standard deviation of a block, `between` that of whole repetitions, both as parts of the ratio. What
    slows both runs of a pair alike, as the clock does, is there too: pairing must take it out.
    """
    draw, pairs = np.random.default_rng(seed).normal, []
    for repetition in range(repetitions):
        size, shift = (epochs, blocks), np.exp(draw(0, between))
        common = np.exp(draw(0, 0.05, size))
        own, base = common * np.exp(draw(0, noise, size)), common * ratio * shift * np.exp(draw(0, noise, size))
        number = {"repeat": repetition}
        pairs.append((timed(own, "amp_fp16", number), timed(base, "fp32", number)))
    return pairs


def gained(ratio=2.0, low=1.9, high=2.1, seconds=60.0):
    """Return what paired_ratio returns, with these values."""
    counts = {"pairs": 6, "repetitions": 1, "seeds": 1}
    return {"ratio": ratio, "low": low, "high": high, **counts, "seconds": seconds}


def assert_reads_well(text, sentences=1):
    """Check that a text is whole sentences, each with one full stop, and that nothing unknown was put into words."""
    assert text.endswith(".")
    assert not re.search(r"\.\s*[.;:,)]|\bNone\b|\bnan\b|\binf\b|\(\)|\s\s|\[|\{", text), text
    assert len(re.findall(r"\.(?=\s|$)", text)) == sentences, text


# Times and pairs


def test_block_times_are_epochs_by_blocks():
    record = flat(epoch_seconds=[6.0, 15.0], block_seconds=[1, 2, 3, 4, 5, 6])
    assert verdict.block_times(record).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("blocks", [[], None, [1, 2, 3]], ids=["none", "older record", "not whole"])
def test_block_times_without_whole_blocks_are_the_epochs(blocks):
    record = flat(epoch_seconds=[6.0, 15.0], block_seconds=blocks)
    assert verdict.block_times(record).tolist() == [[6], [15]]
    del record["block_seconds"]
    assert verdict.block_times(record).tolist() == [[6], [15]]


def test_ratios_are_base_over_own_block_by_block():
    ratios = verdict.ratios_of(timed([[1, 2], [4, 5]]), timed([[2, 8], [4, 10]], "fp32"))
    assert ratios.tolist() == [[[2, 4], [1, 2]]]


def test_ratios_without_blocks_on_either_side_compare_epochs():
    blocks, epochs = timed([[1, 2], [4, 5]]), flat("fp32", epoch_seconds=[6.0, 3.0])
    assert verdict.ratios_of(blocks, epochs).tolist() == [[[2], [1 / 3]]]
    assert verdict.ratios_of(epochs, blocks).tolist() == [[[0.5], [3]]]
    assert verdict.ratios_of(epochs, epochs).tolist() == [[[1], [1]]]
    other = timed([[1, 2, 3], [1, 1, 1]], "fp32")  # cut otherwise: only whole epochs are equal work
    assert verdict.ratios_of(blocks, other).tolist() == [[[2], [1 / 3]]]


def test_ratios_of_unequal_numbers_of_epochs_use_those_that_both_have():
    short, long = timed([[1, 1]]), timed([[2, 3], [9, 9], [9, 9]], "fp32")
    assert verdict.ratios_of(short, long).tolist() == [[[2, 3]]]
    assert verdict.ratios_of(long, short).tolist() == [[[1 / 2, 1 / 3]]]


def test_repeats_inside_one_kernel_are_split_by_the_parameter_epochs():
    own, base = np.ones((6, 2)), np.arange(1.0, 13.0).reshape(6, 2)
    epochs = {"epochs": 2, "repeats": 3}
    ratios = verdict.ratios_of(timed(own, parameters=epochs), timed(base, "fp32", epochs))
    assert ratios.shape == (3, 2, 2)
    assert ratios[1].tolist() == [[5, 6], [7, 8]]
    gain = verdict.paired_ratio([(timed(own, parameters=epochs), timed(base, "fp32", epochs))])
    assert (gain["repetitions"], gain["pairs"]) == (3, 12)
    for unusable in (4, 7, 0, None):  # no whole number of repetitions: they are taken as one
        assert verdict.ratios_of(timed(own, parameters={"epochs": unusable}), timed(base, "fp32")).shape == (1, 6, 2)


def test_runs_are_paired_by_seed_repetition_and_card():
    def run(precision, seed=0, repeat=0, uuid="GPU-1", **fields):
        return flat(precision, {"seed": seed, "repeat": repeat}, gpu_uuid=uuid, **fields)

    base = [run("fp32"), run("fp32", seed=1), run("fp32", repeat=1), run("fp32", uuid="GPU-2")]
    runs = [run("tf32", uuid="GPU-2"), run("tf32", repeat=1), run("tf32"), run("tf32", seed=1)]
    pairs = verdict.paired_runs(runs, base)
    assert [own for own, _ in pairs] == runs
    assert [counterpart for _, counterpart in pairs] == [base[3], base[2], base[0], base[1]]
    strangers = [run("tf32", seed=2), run("tf32", repeat=2), run("tf32", uuid="GPU-3"), run("tf32", 1, 1)]
    assert verdict.paired_runs(strangers, base) == []
    assert verdict.paired_runs([run("tf32", status="diverged")], base) == []
    assert verdict.paired_runs([run("tf32")], [run("fp32", status="oom")]) == []


def test_runs_without_the_parameter_repeat_are_paired():
    own, base = flat("tf32"), flat("fp32")
    del own["repeat"], base["repeat"]
    assert verdict.paired_runs([own], [base]) == [(own, base)]


# Ratio and interval


def test_the_ratio_is_the_median_of_all_pairs_and_the_counts_are_right():
    own = [timed(np.ones((2, 2)), parameters={"seed": seed}) for seed in (0, 1)]
    base = [timed(times, "fp32", {"seed": seed}) for seed, times in ((0, [[2, 2], [3, 1]]), (1, [[2, 9], [1.5, 2]]))]
    gain = verdict.paired_ratio(list(zip(own, base, strict=True)))
    assert gain["ratio"] == 2
    assert gain["low"] <= 2 <= gain["high"]
    assert (gain["pairs"], gain["repetitions"], gain["seeds"], gain["seconds"]) == (8, 2, 2, 8)
    assert verdict.paired_ratio([(b, a) for a, b in zip(own, base, strict=True)])["ratio"] == 0.5


def test_repetitions_of_one_seed_are_no_further_seeds():
    gain = verdict.paired_ratio(compared(1.5, repetitions=3))
    assert (gain["repetitions"], gain["seeds"], gain["pairs"]) == (3, 1, 72)


def test_an_exact_ratio_has_an_interval_without_width():
    gain = verdict.paired_ratio(compared(1.5, noise=0))
    assert [gain[name] for name in ("ratio", "low", "high")] == pytest.approx([1.5] * 3)


def test_repetitions_of_unequal_length_are_cut_to_the_shortest():
    pairs = [*compared(1.5, epochs=3), *compared(1.5, epochs=2), *compared(1.5, epochs=3)]
    assert verdict.paired_ratio(pairs)["pairs"] == 3 * 2 * 8


def test_repetitions_that_were_cut_otherwise_are_compared_by_whole_epochs():
    pairs = [*compared(1.5, epochs=3), *compared(1.5, epochs=2), *compared(1.5, epochs=3, blocks=6)]
    gain = verdict.paired_ratio(pairs)
    assert gain["pairs"] == 3 * 2  # a tenth of an epoch is not the work of a sixth
    assert gain["ratio"] == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize(
    ("logarithms", "half"),
    [
        ([0.7, 0.8, 0.75], 4.30 * 0.05 / 3**0.5),
        ([0.7, 0.8], 12.71 * 0.005**0.5 / 2**0.5),
        ([0.0] * 11 + [0.12], 2.26 * 0.01),  # from ten groups on: the last of the table
    ],
)
def test_the_interval_is_widened_to_students_over_the_logarithms_of_the_groups(logarithms, half):
    groups, middle = np.exp(logarithms), np.mean(logarithms)
    repetitions = groups[:, None, None] * np.ones((1, 2, 4))
    epochs = groups[None, :, None] * np.ones((1, 1, 4))
    for ratios in (repetitions, epochs):  # of one repetition its epochs are the groups
        expected = (np.exp(middle - half), np.exp(middle + half))
        assert verdict.interval_of(ratios) == pytest.approx(expected)
        assert verdict.interval_of(1 / ratios) == pytest.approx((1 / expected[1], 1 / expected[0]))


def test_no_bound_of_an_interval_is_negative():
    ratios = np.array([0.02, 0.3])[None, :, None] * np.ones((1, 1, 4))
    low, high = verdict.interval_of(ratios)
    assert 0 < low < 0.02 and high > 0.3


def test_one_group_has_the_bootstraps_interval_alone():
    low, high = verdict.interval_of(np.array([[[1.9, 2.0, 2.1, 2.0, 1.95, 2.05]]]))
    assert 1.9 <= low < 2.0 < high <= 2.1


def test_groups_that_agree_are_not_widened():
    assert verdict.interval_of(np.full((3, 2, 4), 1.5)) == (1.5, 1.5)


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
    gains = [verdict.paired_ratio(compared(1.5, **shape, seed=seed)) for seed in range(200)]
    assert np.mean([gain["low"] <= 1.5 <= gain["high"] for gain in gains]) >= 0.92
    assert np.median([gain["high"] - gain["low"] for gain in gains]) < 0.15  # it says something, too
    assert np.median([gain["ratio"] for gain in gains]) == pytest.approx(1.5, rel=0.005)


def test_equal_runs_are_seldom_called_faster_or_slower():
    gains = [verdict.paired_ratio(compared(1.0, repetitions=3, between=0.003, seed=seed)) for seed in range(200)]
    words = [verdict.judge({**gain, "seconds": 60}) for gain in gains]
    assert words.count("no measurable difference") >= 190


def test_the_interval_grows_with_what_varies_between_repetitions():
    def width(**options):
        gains = [verdict.paired_ratio(compared(1.5, repetitions=4, seed=seed, **options)) for seed in range(20)]
        return np.mean([gain["high"] - gain["low"] for gain in gains])

    calm, noisy, unsteady = width(noise=0.005), width(noise=0.02), width(noise=0.005, between=0.05)
    assert noisy > 2 * calm
    # As many pairs with the same noise inside each repetition: drawing pairs alone would not see the difference.
    assert unsteady > 5 * calm


def test_more_pairs_narrow_the_interval():
    def width(epochs):
        gains = [verdict.paired_ratio(compared(1.5, epochs=epochs, seed=seed)) for seed in range(20)]
        return np.mean([gain["high"] - gain["low"] for gain in gains])

    assert width(1) > 2 * width(16)


def test_fewer_than_six_pairs_have_a_ratio_and_no_interval():
    assert verdict.FEWEST_PAIRS == 6
    for shape, known in (((1, 5), False), ((5, 1), False), ((1, 6), True), ((3, 2), True)):
        gain = verdict.paired_ratio(compared(2.0, epochs=shape[0], blocks=shape[1], noise=0))
        assert gain["ratio"] == pytest.approx(2)
        assert (gain["low"] is not None) == (gain["high"] is not None) == known, shape


def test_no_pairs_have_no_ratio():
    assert verdict.paired_ratio([]) is None
    assert verdict.paired_ratio(verdict.paired_runs([flat("tf32", {"seed": 1})], [flat("fp32")])) is None


def test_the_same_records_give_the_same_interval_whatever_was_drawn_before():
    first = verdict.paired_ratio(compared(1.5))
    np.random.seed(1)
    assert verdict.paired_ratio(compared(1.5)) == first
    assert all(type(first[name]) is float for name in ("ratio", "low", "high"))  # NumPy's own do not go into JSON


def test_seconds_are_those_of_the_shorter_side_over_all_pairs():
    pairs = [(flat(epoch_seconds=[1.0, 1.5]), flat("fp32", epoch_seconds=[3.0, 3.0]))] * 2
    assert verdict.paired_ratio(pairs)["seconds"] == 5
    assert verdict.paired_ratio([(base, own) for own, base in pairs])["seconds"] == 5


# The word


@pytest.mark.parametrize(
    "gain, word",
    [
        (None, "not paired: other card, seed or repetition"),
        (gained(low=None, high=None), "too short to tell"),
        (gained(seconds=1.999), "too short to tell"),
        (gained(seconds=2.0), "faster"),
        (gained(), "faster"),
        (gained(0.5, 0.4, 0.6), "slower"),
        (gained(1.3, 0.99, 1.6), "no measurable difference"),
        (gained(1.3, 1.0, 1.6), "no measurable difference"),
        (gained(1.3, 1.001, 1.6), "faster"),
        (gained(0.8, 0.6, 1.0), "no measurable difference"),
        (gained(0.8, 0.6, 0.999), "slower"),
        (gained(1.009, 1.008, 1.0095), "no measurable difference"),  # steady, and below what can be told apart
        (gained(1.011, 1.005, 1.02), "faster"),
        (gained(0.991, 0.9905, 0.992), "no measurable difference"),
        (gained(0.989, 0.98, 0.995), "slower"),
        (gained(1.0, 1.0, 1.0), "no measurable difference"),
        (gained(1.3, 0.9, 1.6, seconds=1.0), "too short to tell"),
    ],
)
def test_judge(gain, word):
    assert verdict.judge(gain) == word


# The limit


CASES = {
    "data loading": profiled(busy=0.5, data_wait_fraction=0.4),
    "kernel launches": profiled(busy=0.5, data_wait_fraction=0.1),
    "sizes not multiples of 8": profiled(misaligned_flops_fraction=0.9),
    "kernels that move memory": profiled(SPARSE),
    "arithmetic on Tensor Cores": profiled(compute_limit_fraction=0.55),
    "arithmetic without Tensor Cores": profiled(precision="fp32", tensor_core_fraction=0.0),
    "not known": flat(),
}
FIGURES = {
    "data loading": "the GPU is idle 50% of the time and the loop waits 40% for its data",
    "kernel launches": "the GPU is idle 50% of the time between kernel launches",
    "sizes not multiples of 8": "70% of kernel time is convolution and matmul, and 90% of that work has sizes not",
    "kernels that move memory": "75% of kernel time moves memory (elementwise 40%, normalisation 20%, optimizer 10%)",
    "arithmetic on Tensor Cores": "86% of it on Tensor Cores and reaches 55% of what this card was measured to do",
    "arithmetic without Tensor Cores": "70% of kernel time is convolution and matmul, 0% of it on Tensor Cores",
    "not known": "what limits it is not known (it was not profiled)",
}


@pytest.mark.parametrize("case", CASES)
def test_each_limit_is_told_with_its_figures(case):
    found, because = verdict.limit_of(CASES[case])
    assert found == case
    assert FIGURES[case] in because


@pytest.mark.parametrize(
    "record, case",
    [
        # Idle from a fifth on; data loading where the loop waits for half of that or more.
        (profiled(busy=0.8), "kernel launches"),
        (profiled(busy=0.81), "arithmetic on Tensor Cores"),
        (profiled(busy=1.1), "arithmetic on Tensor Cores"),  # profiled steps may be slower than timed ones
        (profiled(busy=0.0), "kernel launches"),
        (profiled(busy=0.8, data_wait_fraction=0.1), "data loading"),
        (profiled(busy=0.8, data_wait_fraction=0.09), "kernel launches"),
        (profiled(busy=0.81, data_wait_fraction=0.5), "arithmetic on Tensor Cores"),
        (profiled(SPARSE, busy=0.7, misaligned_flops_fraction=1.0), "kernel launches"),
        # Sizes matter to Tensor Cores only, from half of the work and three tenths of the time on.
        (profiled(misaligned_flops_fraction=0.5), "sizes not multiples of 8"),
        (profiled(misaligned_flops_fraction=0.49), "arithmetic on Tensor Cores"),
        (profiled(misaligned_flops_fraction=0.9, precision="tf32"), "sizes not multiples of 8"),
        (profiled(misaligned_flops_fraction=0.9, precision="fp32"), "arithmetic on Tensor Cores"),
        (profiled([["matmul", 0.3], ["copy", 0.7]], misaligned_flops_fraction=0.9), "sizes not multiples of 8"),
        (profiled([["matmul", 0.29], ["copy", 0.71]], misaligned_flops_fraction=0.9), "kernels that move memory"),
        # Arithmetic from half of the time on, on Tensor Cores from half of that.
        (profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.25), "arithmetic on Tensor Cores"),
        (profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.24), "arithmetic without Tensor Cores"),
        (profiled([["matmul", 0.49], ["copy", 0.51]]), "kernels that move memory"),
        (profiled([["attention", 0.9], ["copy", 0.1]], tensor_core_fraction=None), "arithmetic without Tensor Cores"),
        (profiled([["depthwise convolution", 0.8], ["matmul", 0.2]]), "kernels that move memory"),
        # What is missing.
        (profiled(busy=None), "not known"),
        (profiled([]), "not known"),
        (profiled(None), "not known"),
    ],
)
def test_where_one_limit_ends_and_the_next_begins(record, case):
    assert verdict.limit_of(record)[0] == case


def test_a_missing_profile_says_why():
    record = flat(profile_reason="the profiler saw no kernel")
    assert verdict.limit_of(record)[1] == "what limits it is not known (the profiler saw no kernel)"


def test_kernels_that_move_memory_say_how_near_to_the_cards_copying_they_are_where_that_is_known():
    known = verdict.limit_of(profiled(SPARSE, bandwidth_limit_fraction=0.514))[1]
    assert known.endswith("(elementwise 40%, normalisation 20%, optimizer 10%), at 51% of this card's copying speed")
    assert verdict.limit_of(profiled(SPARSE))[1].endswith("(elementwise 40%, normalisation 20%, optimizer 10%)")
    assert "copying" not in verdict.limit_of(profiled(bandwidth_limit_fraction=0.6))[1]  # it is not what limits


@pytest.mark.parametrize(
    "share, end", [(0.594, "59%"), (0.596, "60% (bound)"), (0.6, "60% (bound)"), (1.2, "120% (bound)")]
)
def test_only_near_the_cards_copying_speed_are_kernels_called_memory_bound(share, end):
    case, text = verdict.limit_of(profiled(SPARSE, bandwidth_limit_fraction=share))
    words = end.replace(" (bound)", " of this card's copying speed (memory-bound)")
    assert case == "kernels that move memory"
    assert text.endswith(f", at {words}" if "bound" in end else f", at {end} of this card's copying speed")
    sentence = verdict.verdict(profiled(SPARSE, bandwidth_limit_fraction=share), profiled(precision="fp32"), gained())
    assert text in sentence


def test_no_share_is_above_the_whole():
    record = profiled([["matmul", 0.6], ["copy", 0.4]], tensor_core_fraction=0.65)  # told by other patterns of names
    assert "100% of it on Tensor Cores" in verdict.limit_of(record)[1]


@pytest.mark.parametrize(
    "case, precision, parameters, words",
    [
        ("data loading", "fp32", {}, ': try more num_workers or data kept on the device (loader="gpu")'),
        ("kernel launches", "amp_fp16", {}, ": try a larger batch or a CUDA graph"),
        ("kernel launches", "amp_fp16", {"execution": "compile"}, ": try a larger batch or a CUDA graph"),
        ("kernel launches", "amp_fp16", {"execution": "cuda_graph"}, ": try a larger batch"),
        ("kernels that move memory", "amp_fp16", {}, ": try channels_last or torch.compile"),
        ("kernels that move memory", "amp_fp16", {"channels_last": True}, ": try torch.compile"),
        (
            "kernels that move memory",
            "amp_fp16",
            {"channels_last": True, "execution": "cuda_graph"},
            ": try torch.compile",
        ),
        ("kernels that move memory", "amp_bf16", {"channels_last": True, "execution": "compile"}, ""),
        (
            "kernels that move memory",
            "tf32",
            {"channels_last": True, "execution": "compile"},
            ": try 16-bit values, which",
        ),
        ("sizes not multiples of 8", "tf32", {}, ": try channels, units and vocabulary rounded up to multiples of 8"),
        ("arithmetic without Tensor Cores", "fp32", {}, ": try tf32, amp_fp16 or amp_bf16, where the card has"),
        ("arithmetic on Tensor Cores", "amp_fp16", {}, ""),
        ("not known", "fp32", {}, ""),
    ],
)
def test_advice_names_only_what_is_not_done_yet(case, precision, parameters, words):
    advice = verdict.advice_of(case, flat(precision, parameters))
    assert advice.startswith(words)
    assert bool(advice) == bool(words)


def test_advice_on_a_layout_is_for_notebooks_that_have_one():
    record = flat()
    del record["channels_last"]
    assert verdict.advice_of("kernels that move memory", record) == ": try torch.compile"


# What disturbed a run, and the sentence

HOT = {"throttled": True, "throttle_fractions": [["power cap", 0.4], ["heat", 0.05], ["idle", 0.04]]}


def test_flags_name_what_held_in_a_twentieth_of_the_samples():
    assert verdict.flags_of(flat()) == []
    assert verdict.flags_of(flat(throttled=False, throttle_fractions=[["heat", 0.04]], gpu_shared=False)) == []
    assert verdict.flags_of(flat(**HOT)) == ["throttled (power cap 40%, heat 5% of the time)"]
    assert verdict.flags_of(flat(gpu_shared=True)) == ["GPU shared with another process"]
    assert len(verdict.flags_of(flat(**HOT, gpu_shared=True))) == 2
    assert verdict.flags_of(flat(throttle_fractions=None)) == []


@pytest.mark.parametrize(
    "status, words",
    [
        ("oom", "amp_fp16 ran out of memory: the reason."),
        ("unsupported", "amp_fp16 cannot run here: the reason."),
        ("diverged", "amp_fp16 diverged: the reason."),
        ("failed", "amp_fp16 failed: the reason."),
    ],
)
def test_a_run_that_did_not_end_well_says_why(status, words):
    fields = {"status": status, "epoch_seconds": []}
    assert verdict.verdict(flat(**fields, reason="the reason"), flat("fp32"), None) == words
    on_cpu = flat(**fields, reason="the reason", device_type="cpu")
    assert verdict.verdict(on_cpu, flat("fp32"), None) == words
    # A notebook's own sentence has its full stop, and a record from elsewhere may have no reason.
    assert verdict.verdict(flat(**fields, reason="the reason."), flat("fp32"), None) == words
    assert_reads_well(verdict.verdict(flat(**fields), flat("fp32"), None))


def test_a_run_on_the_cpu_measures_nothing():
    text = verdict.verdict(flat(device_type="cpu"), flat("fp32", device_type="cpu"), gained())
    assert text == "amp_fp16 ran on the CPU, which proves that it works and measures nothing."


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_sentence(status):
    text = verdict.verdict(profiled(status=status, reason="the reason"), profiled(precision="fp32"), gained())
    assert text.startswith("amp_fp16 ")
    assert ("the reason" in text) == (status != "ok")
    assert_reads_well(text)


@pytest.mark.parametrize("case", CASES)
def test_a_measured_run_says_how_much_whether_that_is_certain_and_why(case):
    record = CASES[case]
    text = verdict.verdict(record, profiled(precision="fp32"), gained(2.004, 1.9, 2.1))
    assert text.startswith(f"{record['precision']} is 2.00x as fast as fp32 (1.90 to 2.10): faster; ")
    assert FIGURES[case] in text
    assert verdict.advice_of(case, record) in text
    assert_reads_well(text)


@pytest.mark.parametrize("case", CASES)
def test_only_where_the_gpu_idles_precision_is_called_beside_the_point(case):
    words = "so precision is not what limits you"
    equal = verdict.verdict(CASES[case], flat("fp32"), gained(1.0, 0.98, 1.02))
    assert ": no measurable difference; " in equal
    assert (words in equal) == (case in ("data loading", "kernel launches"))
    assert words not in verdict.verdict(CASES[case], flat("fp32"), gained())
    assert_reads_well(equal)


def test_too_short_and_unpaired_runs_are_not_judged():
    text = verdict.verdict(profiled(), flat("fp32"), gained(low=None, high=None))
    assert text.startswith("amp_fp16 is 2.00x as fast as fp32: too short to tell; ")
    assert_reads_well(text)
    text = verdict.verdict(profiled(), flat("fp32"), gained(seconds=1.0))
    assert "(1.90 to 2.10): too short to tell; " in text
    text = verdict.verdict(profiled(), flat("fp32"), None)
    assert text == "amp_fp16 cannot be set beside fp32: not paired: other card, seed or repetition."
    assert_reads_well(text)


@pytest.mark.parametrize("status", ["oom", "unsupported", "diverged", "failed", "timeout", "killed"])
def test_a_run_without_its_baseline_still_says_what_limits_it(status):
    base = flat("fp32", status=status, reason="the reason", epoch_seconds=[])
    text = verdict.verdict(CASES["kernels that move memory"], base, None)
    assert text.startswith(f"amp_fp16 has no fp32 to be compared with ({status}); 75% of kernel time moves memory")
    assert_reads_well(text)


def test_what_disturbed_either_run_comes_first():
    text = verdict.verdict(profiled(**HOT), profiled(precision="fp32", gpu_shared=True), gained())
    start = "MIND: amp_fp16 throttled (power cap 40%, heat 5% of the time); fp32 GPU shared with another process. "
    assert text.startswith(f"{start}amp_fp16 is 2.00x as fast as fp32")
    assert_reads_well(text, sentences=2)
    assert_reads_well(verdict.verdict(profiled(**HOT), flat("fp32"), None), sentences=2)
    assert verdict.verdict(profiled(), profiled(precision="fp32"), gained()).startswith("amp_fp16 is")


def test_bf16_that_runs_in_fp16_is_told():
    def text(precision, share, families=DENSE):
        record = profiled(families, precision=precision, fp16_kernel_fraction=share)
        return verdict.verdict(record, profiled(precision="fp32"), gained())

    assert "30% of kernel time is in fp16 all the same" in text("amp_bf16", 0.3)
    assert "in fp16 all the same" in text("amp_bf16", 0.05)
    for precision, share in (("amp_bf16", 0.04), ("amp_bf16", None), ("amp_fp16", 0.9)):
        assert "in fp16 all the same" not in text(precision, share)
    assert_reads_well(text("amp_bf16", 0.3))
    # What to try is said of the limit, not of the fp16 kernels.
    assert re.search(r"optimizer 10%\): try channels_last or torch.compile; 30% of", text("amp_bf16", 0.3, SPARSE))


def test_a_whole_comparison_from_records_to_the_sentence():
    pairs = verdict.paired_runs(*zip(*compared(2.0, repetitions=3), strict=True))
    own, base = pairs[0]
    text = verdict.verdict(own, base, verdict.paired_ratio(pairs))
    assert re.match(
        r"amp_fp16 is (1\.9\d|2\.0\d)x as fast as fp32 \(1\.9\d to 2\.0\d\): faster; what limits it is", text
    )
    assert_reads_well(text)
