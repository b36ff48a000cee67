"""What a process that only explains gives to the timed runs of its precision."""

from made_up_runs import DENSE, flat
from mixed_precision_study.judge.explained import NOT_YET, TIME_ALONE, explain

FOUND = {
    "gpu_busy_fraction": 0.7,
    "kernel_family_fractions": DENSE,
    "tensor_core_fraction": 0.5,
    "compute_limit_fraction": 0.4,
    "ledger_activations_mib": 100.0,
    "gradient_flush_fraction_scaled": 0.01,
    "inference_latency_ms": 2.0,
}
OWN_OF_EACH = {"sm_clock_mhz_median": 1500.0, "throttled": True, "energy_joules": 7.0, "epoch_seconds": [0.1]}


def explanation(**fields):
    return flat(parameters={"purpose": "explain"}, **{**FOUND, **OWN_OF_EACH, **fields})


def test_timed_runs_get_what_they_lack_and_keep_what_they_measured():
    runs = [
        flat(kernel_forked=True, profile_reason="it was only timed", ledger_slack_mib=5.0, ledger_reason="only timed"),
        flat(gpu_busy_fraction=0.3, kernel_family_fractions=[]),
    ]
    explain(runs, [explanation(kernel_forked=False, ledger_slack_mib=6.0)])
    assert runs[0]["kernel_forked"] is True  # how a process was started is its own and no profile
    assert runs[0]["gpu_busy_fraction"] == 0.7 and runs[0]["kernel_family_fractions"] == DENSE
    assert runs[0]["profile_reason"] is None
    assert runs[1]["gpu_busy_fraction"] == 0.3 and runs[1]["kernel_family_fractions"] == []  # a profile is not mixed
    for run in runs:
        assert run["compute_limit_fraction"] == 0.4
        ledger = [run[f"ledger_{name}"] for name in ("activations_mib", "slack_mib", "reason")]
        assert ledger == [100.0, 6.0, None]  # of one process, so the parts add up
        assert run["gradient_flush_fraction_scaled"] == 0.01
        assert (run["sm_clock_mhz_median"], run["throttled"], run["energy_joules"]) == (None, None, None)
        assert run["epoch_seconds"] == [4.0, 4.0]
    assert [run["inference_latency_ms"] for run in runs] == [2.0, None]  # measured once, so counted once


def test_the_newest_explanation_that_ended_well_counts():
    old = explanation(gpu_busy_fraction=0.1, finished_at="2026-01")
    new = explanation(gpu_busy_fraction=0.2, finished_at="2026-02")
    failed = explanation(gpu_busy_fraction=0.9, finished_at="2026-03", status="failed")
    oom = {"status": "oom", "epoch_seconds": []}
    for run, given, busy in ((flat(), [new, failed, old], 0.2), (flat(), [failed], None), (flat(**oom), [new], None)):
        explain([run], given)
        assert run["gpu_busy_fraction"] == busy


def test_where_the_explanation_is_missing_the_reason_says_so():
    alone = {"profile_reason": TIME_ALONE, "energy_reason": "no NVML"}
    runs = [flat(parameters={"purpose": purpose}, **alone) for purpose in ("time", "aa")]
    explain(runs, [])
    assert [run["profile_reason"] for run in runs] == [NOT_YET, TIME_ALONE]
    assert {run["energy_reason"] for run in runs} == {"no NVML"}


def test_what_a_step_does_is_set_against_the_time_of_the_timed_run():
    counted = {"gpu_busy_ms_per_step": 6.0, "flops_per_step": 4e9, "achieved_tflop_per_second": 0.4}
    (run,) = runs = [flat(step_ms_median=8.0)]
    explain(runs, [explanation(**counted, step_ms_median=10.0)])
    assert run["gpu_busy_fraction"] == 0.75
    assert run["achieved_tflop_per_second"] == 0.5
    assert round(run["compute_limit_fraction"], 9) == 0.5  # 0.4 at 10 ms
