"""Why memory did not go down, from the parts at its peak."""

import pytest
from made_up_runs import CASES, flat

from mixed_precision_study.judge.memory_reason import memory_reason

NAMES = ("parameters", "gradients", "optimizer", "masters", "data", "activations")


def run(precision, *sizes, **fields):
    """Return a record whose memory at the peak has these parts in MiB:

    NAMES without masters and data, then these.
    """
    sizes = dict(
        zip(("parameters", "gradients", "optimizer", "activations", "data"), sizes, strict=False)
    )
    parts = {f"ledger_{name}_mib": float(sizes.get(name, 0)) for name in NAMES}
    return flat(precision, peak_allocated_mib=float(sum(sizes.values())), **parts, **fields)


@pytest.mark.parametrize(
    ("before", "after", "code", "share"),
    CASES["memory"],
)
def test_the_largest_part_is_the_reason(before, after, code, share):
    reason = memory_reason(run("amp_fp16", *after), run("fp32", *before))
    assert (reason.code, reason.values) == (code, {"share": pytest.approx(share)})


def test_there_is_none_where_memory_went_down():
    half = run("amp_fp16", 10, 10, 10, 170)
    assert memory_reason(half, run("fp32", 10, 10, 10, 340)) is None
    tf32 = run("tf32", 100, 100, 200, 40)
    assert memory_reason(tf32, tf32) is None
    assert (
        memory_reason(
            flat("amp_fp16", peak_allocated_mib=9.0), flat("fp32", peak_allocated_mib=9.0)
        )
        is None
    )
    assert memory_reason(flat("amp_fp16"), flat("fp32")) is None
    mixed = run("amp_fp16", 20, 20, 10, 50), run("fp32", 20, 20, 10, 56)
    assert memory_reason(*mixed) is None  # no part says it alone
