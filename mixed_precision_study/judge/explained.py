"""The explanation of a precision's timed runs, where a run of its own made it."""

from ..record import EXPLAINING, FIELDS

TIME_ALONE = "the run was made for its time alone"  # the reason that a timed run gives
NOT_YET = "the run that measures it is missing"
ALWAYS_MEASURED = ("ledger_slack_mib", "ledger_context_mib")  # by a timed run as well, without a memory breakdown


def complete(record: dict, explanation: dict, kinds: tuple[tuple[str, ...], ...]) -> None:
    """Give a record the fields of some kinds from an explanation, where it has none of that kind."""
    for starts in kinds:
        names = [name for name in FIELDS if name.startswith(starts)]
        measured = [name for name in names if not name.endswith("_reason") and name not in ALWAYS_MEASURED]
        if all(record.get(name) in (None, []) for name in measured):
            record.update({name: explanation.get(name) for name in names if name in explanation})
            set_against_own_time(record, names)


def set_against_own_time(record: dict, names: list[str]) -> None:
    """Set what a step does, counted elsewhere, against the time that a step of this run took."""
    milliseconds = record.get("step_ms_median")
    busy = record.get("gpu_busy_ms_per_step")
    if "gpu_busy_fraction" in names and milliseconds and busy:
        record["gpu_busy_fraction"] = min(1.0, busy / milliseconds)
    flops = record.get("flops_per_step")
    achieved = record.get("achieved_tflop_per_second")
    if "achieved_tflop_per_second" in names and milliseconds and flops and achieved:
        record["achieved_tflop_per_second"] = flops / milliseconds / 1e9
        if record.get("compute_limit_fraction") is not None:
            record["compute_limit_fraction"] *= record["achieved_tflop_per_second"] / achieved


def explain(records: list[dict], explanations: list[dict]) -> None:
    """Give the timed records of one comparison and precision what they lack from the newest ok explanation.

    Inference goes to the first alone, because it was measured once. Where none explains, their reasons say so.
    """
    timed = [record for record in records if record["status"] == "ok"]
    known = [record for record in explanations if record["status"] == "ok"]
    known = known or [record for record in timed if record.get("repeat") == 0 and record.get("explanation_seconds")]
    if not timed:
        return
    if not known:
        for record in timed:
            if record.get("purpose") == "time":  # nothing explains an A/A run
                record.update({name: NOT_YET for name, value in record.items() if value == TIME_ALONE})
        return
    newest = max(known, key=lambda record: record.get("finished_at") or "")
    for record in timed:
        complete(record, newest, EXPLAINING[:4])
    complete(timed[0], newest, EXPLAINING[4:5])
