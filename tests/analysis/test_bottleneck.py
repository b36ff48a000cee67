"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import CASES, FIGURES, SPARSE, flat, gained, profiled

from mixed_precision_study.analysis.bottleneck import advice_of, find_bottleneck
from mixed_precision_study.analysis.verdict import verdict


@pytest.mark.parametrize("case", CASES)
def test_each_limit_is_told_with_its_figures(case):
    found, because = find_bottleneck(CASES[case])
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
    assert find_bottleneck(record)[0] == case


def test_a_missing_profile_says_why():
    record = flat(profile_reason="the profiler saw no kernel")
    assert find_bottleneck(record)[1] == "what limits it is not known (the profiler saw no kernel)"


def test_kernels_that_move_memory_say_how_near_to_the_cards_copying_they_are_where_that_is_known():
    known = find_bottleneck(profiled(SPARSE, bandwidth_limit_fraction=0.514))[1]
    assert known.endswith("(elementwise 40%, normalisation 20%, optimizer 10%), at 51% of this card's copying speed")
    assert find_bottleneck(profiled(SPARSE))[1].endswith("(elementwise 40%, normalisation 20%, optimizer 10%)")
    assert "copying" not in find_bottleneck(profiled(bandwidth_limit_fraction=0.6))[1]  # it is not what limits


@pytest.mark.parametrize(
    "share, end", [(0.594, "59%"), (0.596, "60% (bound)"), (0.6, "60% (bound)"), (1.2, "120% (bound)")]
)
def test_only_near_the_cards_copying_speed_are_kernels_called_memory_bound(share, end):
    case, text = find_bottleneck(profiled(SPARSE, bandwidth_limit_fraction=share))
    words = end.replace(" (bound)", " of this card's copying speed (memory-bound)")
    assert case == "kernels that move memory"
    assert text.endswith(f", at {words}" if "bound" in end else f", at {end} of this card's copying speed")
    sentence = verdict(profiled(SPARSE, bandwidth_limit_fraction=share), profiled(precision="fp32"), gained())
    assert text in sentence


def test_no_share_is_above_the_whole():
    record = profiled([["matmul", 0.6], ["copy", 0.4]], tensor_core_fraction=0.65)  # told by other patterns of names
    assert "100% of it on Tensor Cores" in find_bottleneck(record)[1]


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
    advice = advice_of(case, flat(precision, parameters))
    assert advice.startswith(words)
    assert bool(advice) == bool(words)


def test_advice_on_a_layout_is_for_notebooks_that_have_one():
    record = flat()
    del record["channels_last"]
    assert advice_of("kernels that move memory", record) == ": try torch.compile"
