"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import SPARSE, flat, profiled

from mixed_precision_study.judge.bottleneck import (
    GRAPH_GAIN,
    LAUNCHES,
    LOADING,
    NOT_PROFILED,
    ON_TENSOR_CORES,
    OTHER_KERNELS,
    SIZES,
    WITHOUT_TENSOR_CORES,
    find_bottleneck,
    remedies_of,
)
from mixed_precision_study.judge.finding import Finding

GAIN = Finding("gain", values={"ratio": 1.25, "low": 1.09, "high": 1.42})


def busy(*shares, **fields):
    """Return a run whose kernels are matmul and copy in these shares."""
    return profiled([*map(list, zip(("matmul", "copy"), shares, strict=True))], **fields)


@pytest.mark.parametrize(
    ("record", "codes", "values"),
    [
        # Idle from a fifth on; data loading where the loop waits for half of that or more.
        (profiled(busy=0.8), LAUNCHES, {"idle": 0.2}),
        (profiled(busy=0.81), ON_TENSOR_CORES, {"arithmetic": 0.7, "on_cores": 6 / 7}),
        (
            profiled(busy=0.8, data_wait_fraction=0.1),
            f"{LOADING} also_launches",
            {"waiting": 0.1, "launches": 0.1},
        ),
        (profiled(busy=0.8, data_wait_fraction=0.09), f"{LAUNCHES} also_waits", {"waiting": 0.09}),
        (profiled(busy=0.8, data_wait_fraction=0.06), LAUNCHES, {"waiting": 0.06}),
        (profiled(busy=0.8, data_wait_fraction=0.14), LOADING, {"waiting": 0.14}),
        (profiled(busy=0.1, data_wait_fraction=0.5), f"{LOADING} also_launches", {"launches": 0.4}),
        # prefetch hides most of it
        (profiled(busy=0.81, data_wait_fraction=0.6), f"{ON_TENSOR_CORES} also_idle", {}),
        (profiled(SPARSE, busy=0.7, misaligned_flops_fraction=1.0), LAUNCHES, {"idle": 0.3}),
        # a graph removes nothing but launches
        (profiled(SPARSE, busy=0.85) | {"graph_gain": GAIN}, GRAPH_GAIN, {"idle": 0.15}),
        (profiled(SPARSE, busy=None) | {"graph_gain": GAIN}, NOT_PROFILED, {}),
        # Sizes matter to Tensor Cores only, from half of the work and three tenths of the time on.
        (profiled(misaligned_flops_fraction=0.5), SIZES, {"arithmetic": 0.7, "misaligned": 0.5}),
        (profiled(misaligned_flops_fraction=0.49), ON_TENSOR_CORES, {}),
        (profiled(misaligned_flops_fraction=0.9, precision="fp32"), ON_TENSOR_CORES, {}),
        (busy(0.3, 0.7, misaligned_flops_fraction=0.9), SIZES, {}),
        (busy(0.29, 0.71, misaligned_flops_fraction=0.9), OTHER_KERNELS, {"other": 0.71}),
        # Arithmetic from half of the time on, on Tensor Cores from half of that.
        (busy(0.5, 0.5, tensor_core_fraction=0.25), ON_TENSOR_CORES, {"on_cores": 0.5}),
        (busy(0.5, 0.5, tensor_core_fraction=0.24), WITHOUT_TENSOR_CORES, {"on_cores": 0.48}),
        (busy(0.6, 0.4, tensor_core_fraction=0.65), ON_TENSOR_CORES, {"on_cores": 1}),
        (profiled(compute_limit_fraction=0.55), f"{ON_TENSOR_CORES} reached", {}),
        (busy(0.49, 0.51), OTHER_KERNELS, {"other": 0.51}),
        (
            profiled([["attention", 0.9], ["copy", 0.1]], tensor_core_fraction=None),
            WITHOUT_TENSOR_CORES,
            {"on_cores": 0},
        ),
        (
            profiled([["depthwise convolution", 0.8], ["matmul", 0.2]]),
            OTHER_KERNELS,
            {"other": 0.8},
        ),
        (profiled(SPARSE), OTHER_KERNELS, {"other": 0.75}),
        # What is missing.
        (profiled([]), NOT_PROFILED, {}),
    ],
)
def test_where_one_limit_ends_and_the_next_begins(record, codes, values):
    found = find_bottleneck(record)
    assert [one.code for one in found] == codes.split()
    assert {name: found[0].values[name] for name in values} == pytest.approx(values)


def test_the_longest_other_kernels_and_why_none_are_known():
    (found,) = find_bottleneck(profiled(SPARSE))
    assert found.values["longest"] == {"elementwise": 0.4, "normalisation": 0.2}
    (found,) = find_bottleneck(flat(profile_reason="the profiler saw no kernel"))
    assert found.values == {"reason": "the profiler saw no kernel"}
    also = find_bottleneck(profiled(busy=0.81, data_wait_fraction=0.6))[1]
    assert also.values == pytest.approx({"idle": 0.19, "waiting": 0.6})
    assert find_bottleneck(profiled(compute_limit_fraction=0.55))[1].values == {"limit": 0.55}


def test_the_gain_as_a_graph_is_told():
    (found,) = find_bottleneck(profiled(SPARSE, busy=0.85) | {"graph_gain": GAIN})
    assert found.values["gain"] == GAIN


@pytest.mark.parametrize(
    ("code", "precision", "parameters", "remedies"),
    [
        (LOADING, "fp32", {}, "more_workers data_on_gpu"),
        (LAUNCHES, "amp_fp16", {"execution": "compile"}, "larger_batch graph"),
        (LAUNCHES, "amp_fp16", {"execution": "cuda_graph"}, "larger_batch"),
        (GRAPH_GAIN, "amp_fp16", {"execution": "eager"}, "larger_batch graph"),
        (OTHER_KERNELS, "amp_fp16", {}, "channels_last compile"),
        # a model without images
        (OTHER_KERNELS, "amp_fp16", {"channels_last": None}, "compile"),
        (OTHER_KERNELS, "amp_bf16", {"channels_last": True, "execution": "compile"}, ""),
        (OTHER_KERNELS, "tf32", {"channels_last": True, "execution": "compile"}, "16_bits"),
        (SIZES, "tf32", {}, "round_sizes"),
        (WITHOUT_TENSOR_CORES, "fp32", {}, "tensor_cores"),
        (WITHOUT_TENSOR_CORES, "amp_fp16", {}, ""),
        (ON_TENSOR_CORES, "amp_fp16", {}, ""),
        (NOT_PROFILED, "fp32", {}, ""),
    ],
)
def test_only_what_is_not_done_yet_is_to_be_tried(code, precision, parameters, remedies):
    record = flat(precision, parameters, kernel_family_fractions=[["convolution", 0.1]])
    assert remedies_of(code, record) == remedies.split()


@pytest.mark.parametrize(
    ("families", "remedies"),
    [
        ([["depthwise convolution", 0.06], ["layout change", 0.05]], ["channels_last", "compile"]),
        ([["matmul", 0.4], ["convolution", 0.09]], ["compile"]),  # as in a ViT
        ([["matmul", 0.4], ["normalisation", 0.6]], ["compile"]),  # as in GPT-2
    ],
)
def test_the_layout_is_to_be_tried_where_convolutions_take_time(families, remedies):
    record = flat("amp_fp16", {"channels_last": False}, kernel_family_fractions=families)
    assert remedies_of(OTHER_KERNELS, record) == remedies


@pytest.mark.parametrize(
    ("capability", "remedies"),
    [
        (None, ["tensor_cores"]),
        ("12.0", ["tensor_cores"]),
        ("8.0", ["tensor_cores"]),
        ("7.5", ["fp16_cores"]),
        ("7.0", ["fp16_cores"]),
        ("6.1", []),
    ],
)
def test_only_what_the_card_can_do_is_to_be_tried(capability, remedies):
    record = flat("fp32", {}) | {"compute_capability": capability}
    assert remedies_of(WITHOUT_TENSOR_CORES, record) == remedies
    assert remedies_of(WITHOUT_TENSOR_CORES, record | {"precision": "amp_fp16"}) == []
