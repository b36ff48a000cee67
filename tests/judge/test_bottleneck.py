"""What limits a run and what to try, on made-up records whose answers are known."""

import pytest
from made_up_runs import CASES, DENSE, SPARSE, flat, profiled

from mixed_precision_study.judge.bottleneck import (
    OTHER_KERNELS,
    WITHOUT_TENSOR_CORES,
    find_bottleneck,
    remedies_of,
)
from mixed_precision_study.judge.finding import Finding

GAIN = Finding("gain", values={"ratio": 1.25, "low": 1.09, "high": 1.42})


def run_of(families=DENSE, matmul=None, gains=False, **fields):
    """Return a run of a case. matmul: its share of kernel time where copies take the rest; gains:
    whether it was faster as a graph.
    """
    if matmul is not None:
        families = [["matmul", matmul], ["copy", 1 - matmul]]
    record = profiled(SPARSE if families == "sparse" else families, **fields)
    return record | ({"graph_gain": GAIN} if gains else {})


@pytest.mark.parametrize(("fields", "codes", "values"), CASES["limits"])
def test_where_one_limit_ends_and_the_next_begins(fields, codes, values):
    found = find_bottleneck(run_of(**fields))
    assert [one.code for one in found] == codes.split()
    assert {name: found[0].values[name] for name in values} == pytest.approx(values)


def test_the_gain_as_a_graph_is_told():
    (found,) = find_bottleneck(profiled(SPARSE, busy=0.85) | {"graph_gain": GAIN})
    assert found.values["gain"] == GAIN


@pytest.mark.parametrize(("code", "precision", "parameters", "remedies"), CASES["remedies"])
def test_only_what_is_not_done_yet_is_to_be_tried(code, precision, parameters, remedies):
    record = flat(precision, parameters, kernel_family_fractions=[["convolution", 0.1]])
    assert remedies_of(code, record) == remedies.split()


@pytest.mark.parametrize(
    ("families", "remedies"),
    CASES["layouts"],
)
def test_the_layout_is_to_be_tried_where_convolutions_take_time(families, remedies):
    record = flat("amp_fp16", {"channels_last": False}, kernel_family_fractions=families)
    assert remedies_of(OTHER_KERNELS, record) == remedies


@pytest.mark.parametrize(
    ("capability", "remedies"),
    CASES["cores"],
)
def test_only_what_the_card_can_do_is_to_be_tried(capability, remedies):
    record = flat("fp32", {}) | {"compute_capability": capability}
    assert remedies_of(WITHOUT_TENSOR_CORES, record) == remedies
    assert remedies_of(WITHOUT_TENSOR_CORES, record | {"precision": "amp_fp16"}) == []
