"""What the explained repetition gives to those that were only timed."""

from made_up_runs import DENSE, flat

from mixed_precision_study.judge.explained import explain

FOUND = {"explanation_seconds": 3.0, "gpu_busy_fraction": 0.7, "kernel_family_fractions": DENSE}
OWN_OF_EACH = {"sm_clock_mhz_median": 1500.0, "throttled": True, "epoch_seconds": [0.1]}


def explained(**fields):
    return flat(**{**FOUND, **OWN_OF_EACH, **fields})


def test_a_repetition_keeps_what_it_measured():
    run = flat(gpu_busy_fraction=0.3, kernel_family_fractions=[])
    explain([explained(), run])
    # a profile is not mixed
    assert run["gpu_busy_fraction"] == 0.3 and run["kernel_family_fractions"] == []
    assert run["sm_clock_mhz_median"] is run["throttled"] is None
    assert run["epoch_seconds"] == [4.0, 4.0]


def test_the_newest_explanation_that_ended_well_counts():
    old, new = (
        explained(gpu_busy_fraction=0.1, finished_at="2026-01"),
        explained(gpu_busy_fraction=0.2, finished_at="2026-02"),
    )
    failed = explained(gpu_busy_fraction=0.9, finished_at="2026-03", status="failed")
    oom = {"status": "oom", "epoch_seconds": []}
    for run, given, busy in (
        (flat(), [new, failed, old], 0.2),
        (flat(), [failed], None),
        (flat(**oom), [new], None),
    ):
        explain([run, *given])
        assert run["gpu_busy_fraction"] == busy
