"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import SPARSE, flat, profiled

from mixed_precision_study.judge.bottleneck import OTHER_KERNELS, advice_of, find_bottleneck

ADVICE = [  # what limits, precision, parameters, and what is to be tried
    ("data loading", "fp32", {}, ["num_workers", 'loader="gpu"']),
    ("kernel launches", "amp_fp16", {}, ["a larger batch", "a CUDA graph"]),
    ("kernel launches", "amp_fp16", {"execution": "compile"}, ["a larger batch", "a CUDA graph"]),
    ("kernel launches", "amp_fp16", {"execution": "cuda_graph"}, ["a larger batch"]),
    (OTHER_KERNELS, "amp_fp16", {}, ["channels_last", "torch.compile"]),
    (OTHER_KERNELS, "amp_fp16", {"channels_last": None}, ["torch.compile"]),  # a model without images
    (OTHER_KERNELS, "amp_fp16", {"channels_last": True}, ["torch.compile"]),
    (OTHER_KERNELS, "amp_fp16", {"channels_last": True, "execution": "cuda_graph"}, ["torch.compile"]),
    (OTHER_KERNELS, "amp_bf16", {"channels_last": True, "execution": "compile"}, []),
    (OTHER_KERNELS, "tf32", {"channels_last": True, "execution": "compile"}, ["16-bit values"]),
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
        (profiled([["matmul", 0.29], ["copy", 0.71]], misaligned_flops_fraction=0.9), OTHER_KERNELS),
        # Arithmetic from half of the time on, on Tensor Cores from half of that.
        (profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.25), "arithmetic on Tensor Cores"),
        (profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.24), "arithmetic without Tensor Cores"),
        (profiled([["matmul", 0.49], ["copy", 0.51]]), OTHER_KERNELS),
        (profiled([["attention", 0.9], ["copy", 0.1]], tensor_core_fraction=None), "arithmetic without Tensor Cores"),
        (profiled([["depthwise convolution", 0.8], ["matmul", 0.2]]), OTHER_KERNELS),
        # What is missing.
        (profiled(busy=None), "not known"),
        (profiled([]), "not known"),
        (profiled(None), "not known"),
    ],
)
def test_where_one_limit_ends_and_the_next_begins(record, case):
    assert find_bottleneck(record)[0] == case


@pytest.mark.parametrize(
    ("busy", "waiting", "case", "words"),
    [
        (0.1, 0.44, "kernel launches", "waits 44%"),
        (0.1, 0.5, "data loading", "kernel launches (40%)"),
        (0.81, 0.6, "arithmetic on Tensor Cores", "waits 60%"),  # prefetch hides most of it
    ],
)
def test_of_two_causes_of_idle_time_both_are_named(busy, waiting, case, words):
    found = find_bottleneck(profiled(busy=busy, data_wait_fraction=waiting))
    assert found[0] == case and words in found[1]


def test_a_missing_profile_says_why():
    record = flat(profile_reason="the profiler saw no kernel")
    assert "the profiler saw no kernel" in find_bottleneck(record)[1]


def test_other_kernels_are_named_by_their_families_without_a_share_of_the_copying_speed():
    found = [find_bottleneck(profiled(SPARSE, bandwidth_limit_fraction=share)) for share in (0.2, 0.9, None)]
    assert {case for case, _ in found} == {OTHER_KERNELS}
    assert {text for _, text in found} == {"75% of kernel time is not arithmetic (elementwise 40%, normalisation 20%)"}


@pytest.mark.parametrize(("busy", "kernels"), [(0.85, SPARSE), (0.85, [["matmul", 1.0]]), (0.5, SPARSE)])
def test_a_gain_as_a_cuda_graph_shows_that_launches_are_the_limit(busy, kernels):
    record = profiled(kernels, busy=busy) | {"graph_gain": "1.25x (1.09 to 1.42)"}
    assert find_bottleneck(record)[0] == "kernel launches"
    assert find_bottleneck(record | {"gpu_busy_fraction": None})[0] == "not known"


def test_no_share_is_above_the_whole():
    record = profiled([["matmul", 0.6], ["copy", 0.4]], tensor_core_fraction=0.65)  # told by other patterns of names
    assert "100% of it on Tensor Cores" in find_bottleneck(record)[1]


@pytest.mark.parametrize("case, precision, parameters, words", ADVICE)
def test_advice_names_only_what_is_not_done_yet(case, precision, parameters, words):
    advice = advice_of(case, flat(precision, parameters))
    known = {word for row in ADVICE for word in row[3]}
    assert {word for word in known if word in advice} == set(words)
    assert bool(advice) == bool(words)
