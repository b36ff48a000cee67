"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import SPARSE, flat, profiled

from mixed_precision_study.analysis.bottleneck import advice_of, find_bottleneck

ADVICE = [  # what limits, precision, parameters, and what is to be tried
    ("data loading", "fp32", {}, ["num_workers", 'loader="gpu"']),
    ("kernel launches", "amp_fp16", {}, ["a larger batch", "a CUDA graph"]),
    ("kernel launches", "amp_fp16", {"execution": "compile"}, ["a larger batch", "a CUDA graph"]),
    ("kernel launches", "amp_fp16", {"execution": "cuda_graph"}, ["a larger batch"]),
    ("kernels that move memory", "amp_fp16", {}, ["channels_last", "torch.compile"]),
    ("kernels that move memory", "amp_fp16", {"channels_last": None}, ["torch.compile"]),  # a model without images
    ("kernels that move memory", "amp_fp16", {"channels_last": True}, ["torch.compile"]),
    ("kernels that move memory", "amp_fp16", {"channels_last": True, "execution": "cuda_graph"}, ["torch.compile"]),
    ("kernels that move memory", "amp_bf16", {"channels_last": True, "execution": "compile"}, []),
    ("kernels that move memory", "tf32", {"channels_last": True, "execution": "compile"}, ["16-bit values"]),
    ("sizes not multiples of 8", "tf32", {}, ["multiples of 8"]),
    ("arithmetic without Tensor Cores", "fp32", {}, ["tf32, amp_fp16 or amp_bf16"]),
    ("arithmetic on Tensor Cores", "amp_fp16", {}, []),
    ("not known", "fp32", {}, []),
]


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
    assert "the profiler saw no kernel" in find_bottleneck(record)[1]


@pytest.mark.parametrize(
    "share, end",
    [
        (0.514, ", at 51% of this card's copying speed"),
        (0.594, ", at 59% of this card's copying speed"),
        (0.596, ", at 60% of this card's copying speed (memory-bound)"),
        (1.2, ", at 120% of this card's copying speed (memory-bound)"),
        (None, ""),
    ],
)
def test_only_near_the_gpus_copying_speed_are_kernels_called_memory_bound(share, end):
    case, text = find_bottleneck(profiled(SPARSE, bandwidth_limit_fraction=share))
    assert case == "kernels that move memory"
    assert text.endswith(f"(elementwise 40%, normalisation 20%){end}")
    assert "copying" not in find_bottleneck(profiled(bandwidth_limit_fraction=share))[1]  # it is not what limits


def test_no_share_is_above_the_whole():
    record = profiled([["matmul", 0.6], ["copy", 0.4]], tensor_core_fraction=0.65)  # told by other patterns of names
    assert "100% of it on Tensor Cores" in find_bottleneck(record)[1]


@pytest.mark.parametrize("case, precision, parameters, words", ADVICE)
def test_advice_names_only_what_is_not_done_yet(case, precision, parameters, words):
    advice = advice_of(case, flat(precision, parameters))
    known = {word for row in ADVICE for word in row[3]}
    assert {word for word in known if word in advice} == set(words)
    assert bool(advice) == bool(words)
