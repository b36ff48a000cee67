"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import SPARSE, flat, profiled

from mixed_precision_study.judge.bottleneck import OTHER_KERNELS, advice_of, find_bottleneck

LAUNCHES, LOADING, SIZES = "kernel launches", "data loading", "sizes not multiples of 8"
ON_CORES, WITHOUT_CORES = "arithmetic on Tensor Cores", "arithmetic without Tensor Cores"
GAIN = {"graph_gain": "1.25x (1.09 to 1.42)"}
ADVICE = [  # what limits, precision, parameters, and what is to be tried
    (LOADING, "fp32", {}, ["num_workers", 'loader="gpu"']),
    (LAUNCHES, "amp_fp16", {"execution": "compile"}, ["a larger batch", "a CUDA graph"]),
    (LAUNCHES, "amp_fp16", {"execution": "cuda_graph"}, ["a larger batch"]),
    (OTHER_KERNELS, "amp_fp16", {}, ["channels_last", "torch.compile"]),
    # a model without images
    (OTHER_KERNELS, "amp_fp16", {"channels_last": None}, ["torch.compile"]),
    (OTHER_KERNELS, "amp_bf16", {"channels_last": True, "execution": "compile"}, []),
    (OTHER_KERNELS, "tf32", {"channels_last": True, "execution": "compile"}, ["16-bit values"]),
    (SIZES, "tf32", {}, ["multiples of 8"]),
    (WITHOUT_CORES, "fp32", {}, ["tf32, amp_fp16 or amp_bf16"]),
    (ON_CORES, "amp_fp16", {}, []),
]


@pytest.mark.parametrize(
    "record, case, words",
    [
        # Idle from a fifth on; data loading where the loop waits for half of that or more.
        (profiled(busy=0.8), LAUNCHES, "idle 20% of the time between kernel launches"),
        (
            profiled(busy=0.81),
            ON_CORES,
            "70% of kernel time is convolution and matmul, 86% of it on Tensor Cores",
        ),
        (profiled(busy=0.8, data_wait_fraction=0.1), LOADING, "(10%)"),
        (profiled(busy=0.8, data_wait_fraction=0.09), LAUNCHES, "waits 9%"),
        (profiled(busy=0.1, data_wait_fraction=0.5), LOADING, "kernel launches (40%)"),
        # prefetch hides most of it
        (profiled(busy=0.81, data_wait_fraction=0.6), ON_CORES, "waits 60%"),
        (profiled(SPARSE, busy=0.7, misaligned_flops_fraction=1.0), LAUNCHES, ""),
        # a graph removes nothing but launches
        (profiled(SPARSE, busy=0.85) | GAIN, LAUNCHES, "1.25x"),
        (profiled(SPARSE, busy=None) | GAIN, "not known", ""),
        # Sizes matter to Tensor Cores only, from half of the work and three tenths of the time on.
        (profiled(misaligned_flops_fraction=0.5), SIZES, "and 50% of that work"),
        (profiled(misaligned_flops_fraction=0.49), ON_CORES, ""),
        (profiled(misaligned_flops_fraction=0.9, precision="fp32"), ON_CORES, ""),
        (profiled([["matmul", 0.3], ["copy", 0.7]], misaligned_flops_fraction=0.9), SIZES, ""),
        (
            profiled([["matmul", 0.29], ["copy", 0.71]], misaligned_flops_fraction=0.9),
            OTHER_KERNELS,
            "71%",
        ),
        # Arithmetic from half of the time on, on Tensor Cores from half of that.
        (
            profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.25),
            ON_CORES,
            "50% of it",
        ),
        (
            profiled([["matmul", 0.5], ["copy", 0.5]], tensor_core_fraction=0.24),
            WITHOUT_CORES,
            "48% of it",
        ),
        (
            profiled([["matmul", 0.6], ["copy", 0.4]], tensor_core_fraction=0.65),
            ON_CORES,
            "100% of it",
        ),
        (
            profiled(compute_limit_fraction=0.55),
            ON_CORES,
            "reaches 55% of what this card was measured to do",
        ),
        (profiled([["matmul", 0.49], ["copy", 0.51]]), OTHER_KERNELS, ""),
        (
            profiled([["attention", 0.9], ["copy", 0.1]], tensor_core_fraction=None),
            WITHOUT_CORES,
            "",
        ),
        (profiled([["depthwise convolution", 0.8], ["matmul", 0.2]]), OTHER_KERNELS, "80%"),
        (
            profiled(SPARSE),
            OTHER_KERNELS,
            "75% of kernel time is not arithmetic (elementwise 40%, normalisation 20%)",
        ),
        # What is missing.
        (profiled([]), "not known", "it was not profiled"),
        (
            flat(profile_reason="the profiler saw no kernel"),
            "not known",
            "the profiler saw no kernel",
        ),
    ],
)
def test_where_one_limit_ends_and_the_next_begins(record, case, words):
    found = find_bottleneck(record)
    assert found[0] == case and words in found[1]


@pytest.mark.parametrize("case, precision, parameters, words", ADVICE)
def test_advice_names_only_what_is_not_done_yet(case, precision, parameters, words):
    advice = advice_of(case, flat(precision, parameters))
    known = {word for row in ADVICE for word in row[3]}
    assert {word for word in known if word in advice} == set(words)
    assert bool(advice) == bool(words)
