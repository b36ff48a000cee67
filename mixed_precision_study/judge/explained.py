"""What explains a precision, shared by its repetitions, because only the first of them is
explained.
"""

from ..store.record import EXPLAINING, PLACES, Runs

# by each run, without a memory breakdown
ALWAYS_MEASURED = ("ledger_slack_mib", "ledger_context_mib")
OF_ONE_RUN = "inference"  # part of an explanation that stands for no other run


def explain(runs: Runs) -> None:
    """Give the ok runs of one comparison and precision what they lack from the newest of them
    that was explained.
    """
    ok = [run for run in runs if run["status"] == "ok"]
    explained = [run for run in ok if run["explanation_seconds"]]
    if not explained:
        return
    newest = max(explained, key=lambda run: run["finished_at"] or "")
    for run in ok:
        for part in EXPLAINING:
            if part != OF_ONE_RUN:
                complete(run, newest, part)


def complete(run: dict, explained: dict, part: str) -> None:
    """Give a run a part of the explanation, where it has nothing of that part."""
    names = [
        name
        for name, place in PLACES.items()
        if place[-1] == part and name != "explanation_seconds"
    ]
    measured = [
        name for name in names if not name.endswith("_reason") and name not in ALWAYS_MEASURED
    ]
    if all(run[name] in (None, []) for name in measured):
        run.update({name: explained[name] for name in names})
        set_against_own_time(run, part)


def set_against_own_time(run: dict, part: str) -> None:
    """Set what a step does, counted elsewhere, against the time that a step of this run took."""
    milliseconds = run["step_ms_median"]
    busy = run["gpu_busy_ms_per_step"]
    flops = run["flops_per_step"]
    achieved = run["achieved_tflop_per_second"]
    if part == "kernels" and milliseconds and busy:
        run["gpu_busy_fraction"] = min(1.0, busy / milliseconds)
    if part == "work" and milliseconds and flops and achieved:
        run["achieved_tflop_per_second"] = flops / milliseconds / 1e9
        if run["compute_limit_fraction"] is not None:
            run["compute_limit_fraction"] *= run["achieved_tflop_per_second"] / achieved
