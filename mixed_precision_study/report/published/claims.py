"""What an article claims of a precision: time, memory, metric and status; and all claims of an article, judged."""

from typing import NamedTuple

from ...analysis.equivalence import FEWEST_SEEDS_FOR_OUTCOME
from ..comparisons import gap_text
from ..report import Report
from ..verdicts import conditions_text, judgement, ratio_text
from ..words import count, short, span
from .matching import Entry, Published, match_published, own_entries, published_entries
from .ratios import (
    ALIKE,
    FAILS,
    GPU_GIB,
    HOLDS,
    UNKNOWN,
    direction,
    fp32_row,
    memory_limit,
    rows_of_ratio_claim,
    time_outcome,
    unknown,
)

ACCURACIES = ("accuracy", "best_accuracy")
ACCURACY_ALIKE = 0.01  # difference; about what single runs of several seeds differ by
STAND_IN = {"amp_fp16": "o2_fp16", "o2_fp16": "amp_fp16"}
MIXED_ENDS = unknown("the runs here did not all end alike")


class Claim(NamedTuple):
    """A claim about one published precision."""

    what: str
    published: str
    here: str
    outcome: str


def memory_text(ratio: float) -> str:
    """Return a change of memory as text."""
    if direction(ratio, ALIKE) == 0:
        return f"alike ({ratio - 1:+.1%})"
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'}"


def time_claim(report: Report, theirs: Entry, own: Entry | None, number: int) -> Claim | None:
    """Return the claim about time, or None where the article gives no speed-up."""
    claimed = theirs.ratio
    if not claimed:
        return None
    said = f"{claimed:.2f}x as fast as fp32"
    speedup = report.speedups.get((number, own.precision, "fp32")) if own else None
    if own is None or speedup is None:
        lacking = "fp32" if own and own.seconds else (own or theirs).precision
        gap = gap_text(report.comparisons[number]["runs"][lacking])
        return Claim("time", said, "no ratio", f"{UNKNOWN}, because of {lacking}: {gap}")
    here = ratio_text(speedup) + own.mark
    judged = judgement(report, speedup)
    return Claim("time", said, f"{here}, {judged}{conditions_text(speedup)}", time_outcome(claimed, speedup, judged))


def memory_claim(theirs: Entry, base: Entry | None, own: Entry | None, own_base: Entry | None) -> Claim | None:
    """Return the claim about memory against fp32, or None; PyTorch's peak and the whole device must agree."""
    if not (base and theirs.memory and base.memory):
        return None
    claimed = theirs.memory / base.memory
    ratios = {}
    if own and own_base:
        if own.memory and own_base.memory and theirs.memory_kind != "device_used":
            ratios["PyTorch's peak"] = own.memory / own_base.memory
        if own.device_memory and own_base.device_memory:
            ratios["the whole device"] = own.device_memory / own_base.device_memory
    here = ", ".join(f"{name} {memory_text(ratio)}" for name, ratio in ratios.items()) or "nothing to compare"
    directions = {direction(ratio, ALIKE) for ratio in ratios.values()}
    if not ratios:
        outcome = unknown("it was not measured here in both precisions")
    elif len(directions) > 1:
        outcome = unknown("the two disagree")
    else:
        outcome = HOLDS if directions == {direction(claimed, ALIKE)} else FAILS
    return Claim("memory", memory_text(claimed), here, outcome)


def metric_word(name: str, value: float, base: float) -> str:
    """Return higher, lower or alike: an accuracy by its difference, any other metric by its ratio."""
    apart = (value - base) / ACCURACY_ALIKE if name in ACCURACIES else (value / base - 1) / ALIKE
    if round(abs(apart), 6) <= 1:
        return "alike"
    return "higher" if apart > 0 else "lower"


def metric_word_here(quality: dict, name: str, base: float) -> str | None:
    """Return higher, lower or alike for a difference with an interval, or None where the seeds do not tell."""
    if quality["low"] is None:
        return None
    alike = ACCURACY_ALIKE if name in ACCURACIES else ALIKE
    if not (name in ACCURACIES or quality["is_ratio"]):
        alike *= base
    enough = quality["seeds"] >= FEWEST_SEEDS_FOR_OUTCOME
    if enough and -alike < quality["low90"] and quality["high90"] < alike:
        return "alike"
    if abs(quality["difference"]) <= alike or quality["low"] <= 0 <= quality["high"]:
        return None
    return "higher" if quality["difference"] > 0 else "lower"


def metric_claim(theirs: Entry, base: Entry | None, own: Entry | None, own_base: Entry | None) -> Claim | None:
    """Return the claim about the last metric against fp32, or None.

    Both runs here need the same number of epochs, and at least half as many as published.
    """
    if not (base and own and own_base):
        return None
    names = theirs.metrics.keys() & base.metrics.keys() & own.metrics.keys() & own_base.metrics.keys()
    if not names:
        return None
    name = min(names)
    texts = []
    for half, fp32 in ((theirs, base), (own, own_base)):
        when = f"best of {half.epochs} epochs" if name.startswith("best_") else f"after epoch {half.epochs}"
        texts.append(f"{half.metrics[name]:.4g} against {fp32.metrics[name]:.4g}, {when}")
    said = metric_word(name, theirs.metrics[name], base.metrics[name])
    seeds = own.quality["seeds"] if own.quality else 0
    here = metric_word_here(own.quality, name, own_base.metrics[name]) if own.quality else None
    equal = theirs.epochs == base.epochs and own.epochs == own_base.epochs
    if not (equal and theirs.epochs.isdigit() and own.epochs.isdigit()):
        outcome = unknown("the epochs differ")
    elif int(own.epochs) < int(theirs.epochs) / 2:
        outcome = unknown(f"{count(int(own.epochs), 'epoch')} is less than half of {theirs.epochs}")
    elif here is None:
        outcome = unknown(f"{count(seeds, 'seed')} of each cannot tell it")
    else:
        outcome = HOLDS if said == here else FAILS
    return Claim(name, texts[0], texts[1], outcome)


def oom_claim(report: Report, theirs: Entry, number: int) -> Claim:
    """Return the claim that a mode runs out of memory: here within a limit, or by what it needs of a larger GPU."""
    group = report.comparisons[number]
    capacity = GPU_GIB.get(theirs.gpu)
    runs = group["runs"][theirs.precision]
    statuses = {run["status"] for run in runs}
    totals = [run["device_total_mib"] / 1024 for run in runs if run["device_total_mib"]]
    room = memory_limit(group) or next(iter(totals), None)
    context = max((run["ledger_context_mib"] or 0) / 1024 for run in runs)
    needed = context + max((run["peak_allocated_mib"] or 0) / 1024 for run in runs)
    taken = max(needed, *(context + (run["peak_reserved_mib"] or 0) / 1024 for run in runs))
    here = gap_text(runs) or "ok"
    outcome = FAILS if here == "ok" else MIXED_ENDS
    if statuses == {"oom"}:
        here = f"oom within {short(room)} GiB" if room else "oom"
        smaller = capacity and room and room < 0.9 * capacity
        outcome = unknown(f"that GPU has {capacity} GiB") if smaller else HOLDS
    elif statuses == {"ok"} and capacity and needed > context:
        here = f"ok, with {span([needed, taken], '{:.1f}')} GiB; that GPU has {capacity} GiB"
        outcome = unknown("that lies between the two")
        if needed > capacity:
            outcome = HOLDS
        elif taken <= capacity:
            outcome = FAILS
    return Claim("memory", "out of memory", here, outcome)


def status_claim(report: Report, theirs: Entry, number: int) -> Claim | None:
    """Return the claim about a mode that did not end well, or None."""
    runs = report.comparisons[number]["runs"][theirs.precision]
    if theirs.status == "ok" or not runs:
        return None
    if theirs.status == "oom":
        return oom_claim(report, theirs, number)
    statuses = {run["status"] for run in runs}
    outcome = MIXED_ENDS
    if statuses == {theirs.status}:
        outcome = HOLDS
    elif statuses == {"ok"}:
        outcome = FAILS
    return Claim("status", theirs.status, gap_text(runs) or "ok", outcome)


def claims_of(report: Report, theirs: Entry, published: list[Entry], number: int) -> tuple[str | None, list[Claim]]:
    """Return (own precision, claims) of a published entry against one comparison."""
    entries = {entry.precision: entry for entry in own_entries(report, (number,))}
    own = entries.get(theirs.precision) or entries.get(STAND_IN.get(theirs.precision, ""))
    base = next((one for one in published if (one.gpu, one.precision) == (theirs.gpu, "fp32")), None)
    claims = [status_claim(report, theirs, number)]
    if theirs.precision != "fp32":
        claims.append(time_claim(report, theirs, own, number))
        claims.append(memory_claim(theirs, base, own, entries.get("fp32")))
        claims.append(metric_claim(theirs, base, own, entries.get("fp32")))
    return own.precision if own else None, [claim for claim in claims if claim]


def comparisons_for(report: Report, theirs: Entry, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the comparisons to judge an entry by: if it ran out of memory, those limited to its GPU's memory."""
    limited = tuple(n for n in numbers if memory_limit(report.comparisons[n]) == GPU_GIB.get(theirs.gpu))
    return limited if limited and theirs.status == "oom" else numbers


def rows_of_entry_claims(report: Report, numbers: tuple[int, ...], published: list[Entry], images: str) -> list[dict]:
    """Return the claims of published entries as rows of the table.

    A claim that one comparison cannot tell is left out where another on the same device can.
    """
    rows = []
    for theirs in published:
        found = []
        for number in comparisons_for(report, theirs, numbers):
            mode, claims = claims_of(report, theirs, published, number)
            stand_in = "" if mode in (None, theirs.precision) else f", {mode} in its place"
            found += [(report.comparisons[number], stand_in, claim) for claim in claims]
        told = {(group["device"], one.what) for group, _, one in found if not one.outcome.startswith(UNKNOWN)}
        for group, stand_in, claim in found:
            if (group["device"], claim.what) not in told or not claim.outcome.startswith(UNKNOWN):
                row = {"claim": f"{theirs.precision} on {theirs.gpu}, {group['batch']}: {claim.what}"}
                row |= {"published": claim.published, "runs here": f"{group['title']}{images}{stand_in}"}
                rows.append(row | {"here": claim.here, "outcome": claim.outcome})
    return rows


def judge_study(published: Published, study: str) -> list[dict]:
    """Return all claims of an article that runs here say something about; mark the rows of ratios as "judged"."""
    claims = []
    for matches, images in ((published.comparable, ""), (published.similar, ", other images")):
        for numbers, rows in matches.get(study, {}).items():
            claims += rows_of_entry_claims(published.report, numbers, published_entries(rows), images)
    for row in (row for row in published.rows if row["study"] == study):
        if found := rows_of_ratio_claim(published, row):
            claims += found
            for judged in (row, fp32_row(published, row) or row):
                judged["judged"] = True
    return claims


def judge_published(report: Report) -> Published:
    """Return the published rows with all claims judged."""
    published = match_published(report)
    for study in dict.fromkeys(row["study"] for row in published.rows):
        published.claims[study] = judge_study(published, study)
    return published


def without_counterpart(published: Published) -> list[dict]:
    """Return the published rows that no run here is compared with."""
    return [row for row in published.rows if not (row["comparable"] or row["similar"] or row["judged"])]
