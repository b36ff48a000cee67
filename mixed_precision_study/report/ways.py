"""Section: what another way of running brings, in the same precision."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.verdict import DIFFERENT
from .comparisons import ok_runs, setting_text
from .ladder_steps import LAYERS
from .memory_use import highest_peak
from .report import Key, Report
from .section import Section
from .style import PRECISIONS
from .verdicts import conditions_text, judgement, ratio_text, said_once, speedup_between, stand_after_correction
from .words import count, plain

TITLE = "The same precision, run in another way"
ABOUT = """Both sides train in the same precision with the same settings but one. A ratio above 1 means that the change
is faster. Steps of a ladder are in its own chapter."""

USUAL = {  # setting: the value that others are compared with, as JSON
    "execution": '"eager"',
    "compile_mode": '"default"',
    "scaler": '"pytorch"',
    "rounding": '"nearest"',
    "channels_last": "false",
    "allow_fp16_accumulation": "false",
    "loader": '"gpu"',
}
NAMED = 3  # changes that a sentence names


@dataclass
class Change:
    """Two comparisons that differ in one setting, and what that does in one precision."""

    before: int  # number of a comparison
    after: int
    setting: str
    precision: str
    speedup: dict  # of `after` over `before`


def adds(setting: str, before: str, after: str) -> bool:
    """Return whether the second value of a setting (JSON) adds something to the first."""
    if setting != "execution":
        return before == USUAL[setting] and after not in (before, "null")
    layers, more = LAYERS.get(before.strip('"')), LAYERS.get(after.strip('"'))
    return bool(layers and more and layers != more and all(one <= two for one, two in zip(layers, more, strict=True)))


def pairs_of(report: Report) -> Iterator[tuple[int, int, str]]:
    """Yield (number, number, setting) of the comparisons of which the second changes one setting of the first."""
    for setting, usual in USUAL.items():
        alike: dict[tuple, list[int]] = {}
        for number, group in enumerate(report.comparisons):
            rest = tuple(item for item in group["settings"].items() if item[0] != setting)
            alike.setdefault(rest, []).append(number)
        for numbers in alike.values():
            values = {number: report.comparisons[number]["settings"].get(setting, usual) for number in numbers}
            for before in numbers:
                for after in (one for one in numbers if adds(setting, values[before], values[one])):
                    yield before, after, setting


def find_changes(report: Report) -> list[Change]:
    """Return what one setting changes, in every precision that ran on both sides and in no ladder."""
    climbed: set[Key] = {(number, precision) for steps in report.ladders for _, number, precision, _ in steps}
    found = []
    for before, after, setting in sorted(pairs_of(report)):
        for precision in PRECISIONS:
            if {(before, precision), (after, precision)} <= climbed:
                continue
            own, other = (ok_runs(report.comparisons[number], precision) for number in (after, before))
            speedup = None if own == other else speedup_between(own, other)  # lent runs are the same
            if speedup and speedup["processes"]:
                found.append(Change(before, after, setting, precision, speedup))
    return found


def without_baseline(report: Report) -> bool:
    """Return whether no comparison has a run in fp32 or tf32, so that only ways of running can be compared."""
    return not any(report.runs(number, name) for number in report.charted for name in ("fp32", "tf32"))


def label_of(report: Report, change: Change) -> str:
    """Return what a change sets, as a short label."""
    return setting_text(change.setting, report.comparisons[change.after]["settings"][change.setting])


def memory_text(report: Report, change: Change) -> str:
    """Return how much more memory PyTorch's peak is after a change, in percent."""
    before, after = (
        highest_peak(ok_runs(report.comparisons[number], change.precision)) for number in (change.before, change.after)
    )
    return f"{after / before - 1:+.0%}".replace("-0%", "+0%") if before and after else "not measured"


def row_of(report: Report, change: Change, stands: bool) -> dict:
    """Return a change as a row of the table. `stands`: whether it differs from 1 when all changes are corrected."""
    group = report.comparisons[change.before]
    word = judgement(report, change.speedup)
    if word in DIFFERENT and not stands:
        word += ", not after Holm's correction"
    return {
        "comparison": f"{group['notebook']}: {group['title']}",
        "with": label_of(report, change),
        "precision": change.precision,
        "processes": change.speedup["processes"],
        "times as fast": ratio_text(change.speedup),
        "verdict": word + conditions_text(change.speedup),
        "memory": memory_text(report, change),
    }


def in_words(report: Report, changes: list[Change]) -> str:
    """Return how many changes have an outcome, and the largest of them."""
    stands = stand_after_correction([change.speedup for change in changes])
    told = [change for change, stand in zip(changes, stands, strict=True) if stand]
    text = f"Of {count(len(changes), 'change')} of one setting, {len(told)} are shown to change the time"
    told.sort(key=lambda change: change.speedup["ratio"], reverse=True)
    parts = []
    for change in told[:NAMED]:
        model = report.comparisons[change.before]["model"]
        parts.append(f"{model} {change.precision} with {label_of(report, change)} {ratio_text(change.speedup)}")
    return text + (f"; most: {', '.join(parts)}." if parts else ".")


def section(report: Report) -> Section:
    """Return the table of what one setting changes."""
    section = Section(TITLE, ABOUT)
    changes = find_changes(report)
    if not changes:
        return section
    if not report.on_cpu and not without_baseline(report):  # else the answer says it
        section.say(plain(in_words(report, changes)))
    stands = stand_after_correction([change.speedup for change in changes])
    rows = [row_of(report, change, stand) for change, stand in zip(changes, stands, strict=True)]
    section.table(said_once(rows), "One setting changed")
    return section
