"""Section: the same runs with another version of PyTorch."""

import itertools
from dataclasses import dataclass

from ..analysis.verdict import DIFFERENT, judge
from ..record import comparison_key
from .comparisons import ok_runs, over_runs
from .report import Report
from .section import Section
from .style import PRECISIONS
from .verdicts import judgement, ratio_text, said_once, speedup_between
from .words import natural, plain

REGRESSION = 0.05  # more time or memory than with the older version
TITLE = "Other versions of PyTorch"
ABOUT = f"""Runs of the same settings on the same kind of GPU that differ in the version of PyTorch. A regression takes
over {REGRESSION:.0%} more time, as far as the processes can tell, or over {REGRESSION:.0%} more memory."""


@dataclass
class Change:
    """What a newer version of PyTorch changed for one precision of a comparison."""

    title: str
    precision: str
    old: str  # version
    new: str
    speedup: dict  # of the newer over the older, see paired_ratio()
    memory: float | None  # peak of the newer as a share of the older's

    @property
    def name(self) -> str:
        return f"{self.precision} of {self.title}, {self.old} to {self.new}"

    @property
    def slower(self) -> bool:
        """Whether the newer version took over 5% more time, whatever may be said of it."""
        return self.speedup["ratio"] < 1 / (1 + REGRESSION)

    @property
    def takes_more_memory(self) -> bool:
        return self.memory is not None and self.memory > 1 + REGRESSION


def without_build(version: str) -> str:
    """Return a version without what says how it was built: 2.11.0+cu130 becomes 2.11.0."""
    return version.partition("+")[0]


def memory_of(runs: list[dict]) -> float | None:
    """Return the median peak of some runs in MiB, or None."""
    return over_runs(runs, lambda run: run["peak_allocated_mib"] or None)


def changes_in(report: Report) -> list[Change]:
    """Return what each newer version changed against the next older one, for every comparison and precision."""
    found = []
    older: dict[tuple, list[dict]] = {}
    for run in report.other_versions:
        older.setdefault((comparison_key(run), run["precision"]), []).append(run)
    for group, precision in itertools.product(report.comparisons, PRECISIONS):
        by_version: dict[str, list[dict]] = {}
        more = older.get((tuple(group["settings"].items()), precision), [])
        for run in [*ok_runs(group, precision), *(run for run in more if run["status"] == "ok")]:
            if run["torch_version"]:
                by_version.setdefault(without_build(run["torch_version"]), []).append(run)
        for old, new in itertools.pairwise(sorted(by_version, key=natural)):
            speedup = speedup_between(by_version[new], by_version[old])
            if speedup:
                peaks = memory_of(by_version[new]), memory_of(by_version[old])
                memory = peaks[0] / peaks[1] if peaks[0] and peaks[1] else None
                found.append(Change(group["title"], precision, old, new, speedup, memory))
    return found


def other_differences(speedup: dict) -> list[str]:
    """Return in what else than PyTorch and its libraries two sides differ."""
    return [text for text in speedup["differences"] if not text.startswith(("PyTorch", "CUDA", "cuDNN"))]


def row_of(report: Report, change: Change) -> dict:
    """Return a change as a row of the table."""
    row = {"comparison": change.title, "precision": change.precision, "from": change.old, "to": change.new}
    row |= {"time": ratio_text(change.speedup), "outcome": judgement(report, change.speedup)}
    row["memory"] = "-" if change.memory is None else f"{change.memory:.0%}"
    return row | {"differs too": "; ".join(other_differences(change.speedup)) or "-"}


def sentences_on(changes: list[Change]) -> list[str]:
    """Return which changes are regressions, and which only look like one."""
    slower = [change for change in changes if change.slower]
    told = [change for change in slower if judge(change.speedup) in DIFFERENT]
    larger = [change for change in changes if change.takes_more_memory]
    texts = []
    if told:
        names = "; ".join(f"{change.name}: {ratio_text(change.speedup)}" for change in told)
        texts.append(f"**Slower by over {REGRESSION:.0%}**: {plain(names)}.")
    if untold := [change for change in slower if change not in told]:
        words = [f"{change.name}: {change.speedup['ratio']:.2f}x, {judge(change.speedup)}" for change in untold]
        texts.append(f"Took over {REGRESSION:.0%} more time, but that is no outcome: {plain('; '.join(words))}.")
    if larger:
        names = "; ".join(f"{change.name}: {change.memory:.0%}" for change in larger)
        texts.append(f"**Over {REGRESSION:.0%} more memory**: {plain(names)}.")
    nothing = f"None of {len(changes)} took over {REGRESSION:.0%} more time or memory than with the version before."
    return texts or [nothing]


def section(report: Report) -> Section:
    """Return what other versions of PyTorch changed; nothing where all runs have the same."""
    section = Section(TITLE, ABOUT)
    changes = changes_in(report)
    if not changes:
        return section
    if not report.on_cpu:
        for text in sentences_on(changes):
            section.say(text)
    section.table(said_once([row_of(report, change) for change in changes]), "Each change of version in figures")
    return section
