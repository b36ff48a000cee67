"""Speed-ups, what may be said of them, and which runs were disturbed."""

import html
import statistics
from collections.abc import Callable
from itertools import groupby

from ..analysis.conditions import FLAGGED, at_power_limit, fairly_timed, flags_of
from ..analysis.explained import NOT_YET, TIME_ALONE
from ..analysis.speedup import FEWEST_PROCESSES, paired_ratio, paired_runs, unpaired_ratio
from ..analysis.student import MANY_RATIOS, stand_together
from ..analysis.verdict import DIFFERENT, SAME_TO, interval_text, judge, verdict
from .comparisons import execution_of, ok_runs, profiled_run, run_label, timed_runs
from .layout import MANY, name_of
from .report import PairKey, Report
from .section import Section
from .style import DISTURBED_MARK, PRECISIONS
from .words import count, listed, plain, tally

TITLE = "Verdicts"
ABOUT = """One sentence for each precision against fp32 and against tf32: the speed-up with its 95% interval, what
may be said of it, what limits the run, and what to try.

| what is said | when |
|---|---|
| *faster*, *slower* | the interval excludes 1, and the difference is at least 2% |
| *faster, by less than 5%* | the same, and the 90% interval lies between 0.95 and 1.05 |
| *the same within 5%* | the 90% interval lies between 0.95 and 1.05, and it is not the case above |
| *cannot be told* | all else. The sentence names the smallest difference that could have been seen |
| *one process*, *two processes* | a number without an interval: nothing is known about how processes differ |
| *did not train* | too many steps were skipped, or the run learned less than half of what its baseline did |
| *other conditions* | heat, hardware or another clock slowed one side only |
| *too short to tell* | less than two seconds of timed training |

Processes of one precision differ by up to a third in eager mode. Epochs within a process do not show that.
Where one precision always ran first, a drift of the host may look like 5% in eager mode, so no smaller difference
has an outcome there.
`run_all.py` with `-p repeats 3` gives intervals, and `-p repeats 5` gives intervals about half as wide."""


def baselines_of(precision: str) -> list[str]:
    """Return what a precision is compared with: fp32 with nothing, tf32 with fp32, the others with both."""
    return list(PRECISIONS)[: min(list(PRECISIONS).index(precision), 2)]


def speedup_between(
    runs: list[dict],
    others: list[dict],
    read: Callable[[dict], list[float]] = lambda run: run["epoch_seconds"],
    more_is_faster: bool = False,
) -> dict | None:
    """Return what paired_ratio() says about two lists of ok runs, or None where one is empty.

    Where no run has a counterpart, as on another GPU, it is the ratio of the medians of `read(run)`, without an
    interval. These are times, or throughputs where more is faster.
    """
    if not runs or not others:
        return None
    if speedup := paired_ratio(paired_runs(runs, others)):
        return speedup
    own, other = (
        statistics.median(value for run in part for value in read(run)) for part in map(fairly_timed, (runs, others))
    )
    return unpaired_ratio(own / other if more_is_faster else other / own)


def speedup_of(group: dict, precision: str, baseline: str) -> dict | None:
    """Return the speed-up of one precision of a comparison over another, or None."""
    return speedup_between(ok_runs(group, precision), ok_runs(group, baseline))


def ends_of(speedup: dict) -> tuple[float, float]:
    """Return the ends of the interval of a speed-up, or twice its ratio where it has none."""
    return speedup["low"] or speedup["ratio"], speedup["high"] or speedup["ratio"]


def ratio_text(speedup: dict) -> str:
    """Return a ratio with its interval as text, or with the reason why it has none."""
    return f"{speedup['ratio']:.2f}x ({interval_text(speedup)})"


def judgement(report: Report, speedup: dict) -> str:
    """Return in a few words what may be said of a speed-up; nothing is said of the CPU."""
    return "not judged: CPU" if report.on_cpu else judge(speedup)


def conditions_text(speedup: dict) -> str:
    """Return in which conditions the two sides of a speed-up differ, to stand after its outcome, or nothing."""
    return f" (MIND: {'; '.join(speedup['differences'])})" if speedup["differences"] else ""


def flags_in(group: dict, *precisions: str) -> list[str]:
    """Return what disturbed any run of these precisions whose time counts, each phrase once."""
    runs = [(name, run) for name in precisions for run in timed_runs(group, name)]
    return list(dict.fromkeys(f"{name} {flag}" for name, run in runs for flag in flags_of(run)))


def mark_of(report: Report, number: int, *precisions: str) -> str:
    """Return the mark of figures of disturbed runs, or nothing."""
    return DISTURBED_MARK if flags_in(report.comparisons[number], *precisions) else ""


def left_out_of_times(groups: list[dict]) -> int:
    """Return how many runs are left out of the times because heat or hardware slowed them: see `fairly_timed`."""
    sides = [(group, name) for group in groups for name in PRECISIONS]
    ended_well = {id(run) for side in sides for run in ok_runs(*side)}
    return len(ended_well - {id(run) for side in sides for run in timed_runs(*side)})


def said_of_disturbed(disturbed: list[dict], total: int, left_out: int) -> str:
    """Return how many of `total` runs were disturbed, and what follows from that."""
    how = [text for text, holds in FLAGGED.items() if any(map(holds, disturbed))]
    said = f"{len(disturbed)} of {count(total, 'run')} {listed(how)}"
    if left_out == len(disturbed):
        return f"{said}: heat or hardware slowed them, so their times are left out."
    said += f": {DISTURBED_MARK} marks them."
    return f"{said} {left_out} were slowed by heat or hardware, so their times are left out." if left_out else said


def said_of_power(runs: list[dict]) -> list[str]:
    """Return in one sentence how many runs reached the card's power limit, or nothing."""
    number = sum(map(at_power_limit, runs))
    if not number:
        return []
    return [f"{number} of {count(len(runs), 'run')} ran at the card's power limit. Under another limit ratios differ."]


def example(group: dict, precision: str) -> dict:
    """Return the run that a sentence is about: the middle one of those profiled, else the first, else a stand-in."""
    ok = timed_runs(group, precision)
    runs = ok or group["runs"][precision] or [{"precision": precision, "status": "not run"}]
    return profiled_run(ok) or runs[0]


def sentence_on(group: dict, precision: str, baseline: str, speedup: dict | None, with_reason: bool = True) -> str:
    """Return the verdict on two precisions of a comparison; a speed-up without pairs counts as none."""
    paired = speedup if speedup and speedup["processes"] else None
    return verdict(example(group, precision), example(group, baseline), paired, with_reason)


def marked_in(report: Report, number: int) -> str:
    """Return the mark with the precisions of a comparison that have it, or nothing."""
    marked = [name for name in PRECISIONS if mark_of(report, number, name)]
    return f"{DISTURBED_MARK} {', '.join(marked)}" if marked else ""


def row_of_run(report: Report, group: dict, record: dict, **more: object) -> dict:
    """Return the first columns of a table with a row per run, and `more`."""
    row = {"comparison": f"{group['notebook']}: {group['title']}", "precision": record["precision"]}
    if report.several_runs:
        row["run"] = run_label(record)
    return row | more


def said_once(rows: list[dict]) -> list[dict]:
    """Return the rows with each comparison named only where it begins."""
    named = []
    for title, block in groupby(rows, lambda row: row["comparison"]):
        named += [row | {"comparison": "" if index else title} for index, row in enumerate(block)]
    return named


def say_missing(section: Section, report: Report, what: str, field: str, reason: str) -> None:
    """Say in how many of the runs that ended well something was not measured, and why.

    Nothing is said where no run measured it: the section is absent then. Nor of runs that were made for their time
    alone, where another one explains them; where none does, their number is said.
    """
    lacking = [record for _, record in report.timed if record[field] is None]
    missing = [record for record in lacking if record[reason] not in (TIME_ALONE, NOT_YET)]
    alone = sum(record[reason] == NOT_YET for record in lacking)
    if len(lacking) == len(report.timed):
        return
    runs = f"of the {len(report.timed)} runs that ended well"
    if alone:
        section.say(f"{alone} {runs} had only their time measured.")
    if missing:
        why = tally((plain(record[reason] or "the record does not say why") for record in missing), "{} ({})")
        section.say(f"{what} was not measured in {len(missing)} {runs}: {why}.")


def same_but_for(report: Report, number: int, names: tuple[str, ...]) -> list[int]:
    """Return the numbers of the comparisons that differ from one in these settings at most; its own is among them."""

    def others_of(group: dict) -> dict:
        return {name: value for name, value in group["settings"].items() if name not in names}

    wanted = others_of(report.comparisons[number])
    return [one for one, group in enumerate(report.comparisons) if others_of(group) == wanted]


def note_graph_gains(report: Report) -> None:
    """Note in eager runs how many times as fast the same training was as a CUDA graph, if by more than the margin.

    `find_bottleneck` reads it: such a gain refutes that kernels are the limit.
    """
    for number, group in enumerate(report.comparisons):
        graphs = same_but_for(report, number, ("execution",)) if execution_of(group) == "eager" else []
        graphs = [one for one in graphs if execution_of(report.comparisons[one]) == "cuda_graph"]
        for precision in PRECISIONS if graphs else ():
            own = ok_runs(group, precision)
            speedup = speedup_between(ok_runs(report.comparisons[graphs[0]], precision), own)
            if speedup and judge(speedup) in DIFFERENT and speedup["low"] > SAME_TO:
                for run in own:
                    run["graph_gain"] = ratio_text(speedup)


def find_speedups(report: Report) -> dict[PairKey, dict]:
    """Return {(comparison number, precision, baseline): speed-up}. Runs that are lent have one speed-up, once."""
    note_graph_gains(report)
    speedups: dict[PairKey, dict] = {}
    known: dict[tuple, dict | None] = {}
    for number, group in enumerate(report.comparisons):
        for precision in PRECISIONS:
            for baseline in baselines_of(precision):
                runs = tuple(tuple(map(id, ok_runs(group, name))) for name in (precision, baseline))
                if runs not in known:
                    known[runs] = speedup_of(group, precision, baseline)
                if speedup := known[runs]:
                    speedups[number, precision, baseline] = speedup
    return speedups


def stand_after_correction(speedups: list[dict]) -> list[bool]:
    """Return for every ratio whether it differs from 1 after Holm's correction for all of them.

    Up to MANY_RATIOS with an interval are not corrected. A ratio without an interval never stands. One that is in the
    list twice is one test.
    """
    tested = list({id(speedup): speedup for speedup in speedups if speedup["p"] is not None}.values())
    if len(tested) <= MANY_RATIOS:
        return [judge(speedup) in DIFFERENT for speedup in speedups]
    stands = dict(zip(map(id, tested), stand_together([speedup["p"] for speedup in tested]), strict=True))
    return [stands.get(id(speedup), False) and judge(speedup) in DIFFERENT for speedup in speedups]


def find_sentences(report: Report) -> dict[PairKey, str]:
    """Return {(comparison number, precision, baseline): verdict}; fp32 itself has one where it failed."""
    sentences = {}
    for number, group in report.charted_groups:
        for precision in (name for name, runs in group["runs"].items() if runs):
            if precision == "fp32" and example(group, precision)["status"] != "ok":
                sentences[number, "fp32", "fp32"] = sentence_on(group, "fp32", "fp32", None)
            for baseline in baselines_of(precision):
                speedup = report.speedups.get((number, precision, baseline))
                if baseline == "fp32" or speedup:
                    sentences[number, precision, baseline] = sentence_on(group, precision, baseline, speedup)
    return sentences


def verdicts_on(report: Report, number: int) -> str:
    """Return the verdicts on a comparison as a list in Markdown."""
    group = report.comparisons[number]
    lines = []
    said = set()
    for precision, baseline in (key[1:] for key in report.sentences if key[0] == number):
        sentence = report.sentences[number, precision, baseline]
        if precision in said:  # and with it why
            speedup = report.speedups[number, precision, baseline]
            sentence = sentence_on(group, precision, baseline, speedup, with_reason=False)
        said.add(precision)
        lines.append(f"- {plain(sentence)} {mark_of(report, number, precision, baseline)}")
    lines = lines or ["- fp32 alone: nothing to compare."]
    return "\n".join([f"**{plain(group['notebook'])}: {plain(group['title'])}**\n", *lines])


def section(report: Report) -> Section:
    """Return the verdicts on every comparison, and the runs that were disturbed."""
    section = Section(TITLE, ABOUT)
    texts_of: dict[str, list[str]] = {}  # {notebook: what is said of each of its comparisons}
    for number, group in report.charted_groups:
        texts_of.setdefault(group["notebook"], []).append(verdicts_on(report, number))
    for notebook, texts in texts_of.items():
        words = [
            judgement(report, speedup)
            for key, speedup in report.speedups.items()
            if report.comparisons[key[0]]["notebook"] == notebook
        ]
        if len(report.charted) > MANY:
            heading = f"{html.escape(notebook)}: verdicts on {count(len(texts), 'comparison')}"
            heading = ", ".join(filter(None, [heading, tally(words, "{1} times {0}")]))
            texts = [f"<details><summary>{heading}</summary>\n", *texts, "</details>"]
        section.say("\n\n".join(texts))
    say_ratios(section, report)
    say_disturbed(section, report)
    return section


def say_ratios(section: Section, report: Report) -> None:
    """Say how many ratios the report holds, which have an interval, and which stand when all are corrected."""
    if report.on_cpu or not report.speedups:
        return
    speedups = list(report.speedups.values())
    few = [speedup for speedup in speedups if 0 < speedup["processes"] < FEWEST_PROCESSES]
    told = [speedup for speedup in speedups if judge(speedup) in DIFFERENT]
    tested = sum(speedup["p"] is not None for speedup in speedups)
    text = f"This report holds {count(len(speedups), 'ratio')}, {tested} of them with an interval."
    if tested > MANY_RATIOS:
        text += f" At 95% each, one in twenty may be wrong. {len(report.standing)} of the {len(told)} differences"
        text += f" stand after Holm's correction for {tested} ratios."
        fallen = [
            key
            for key, speedup in report.speedups.items()
            if judge(speedup) in DIFFERENT and key not in report.standing
        ]
        names = [f"{name_of(report, *key[:2])} against {key[2]}" for key in fallen]
        text += f" These do not: {'; '.join(names)}." if names else ""
    section.say(text)
    if few:
        section.say(
            f"{count(len(few), 'ratio')} of fewer than {FEWEST_PROCESSES} processes a side: a number without an"
            " interval and without an outcome. `-p repeats 3` gives one, `-p repeats 5` one about half as wide."
        )


def say_disturbed(section: Section, report: Report) -> None:
    """Say which runs were throttled or shared their GPU, those of the largest batches among them."""
    ended_well = [(group, run) for group in report.every_group for name in PRECISIONS for run in ok_runs(group, name)]
    flagged = [(group, record) for group, record in ended_well if flags_of(record)]
    unknown = [record for _, record in ended_well if record["throttled"] is None and record["gpu_shared"] is None]
    if flagged:
        left_out = left_out_of_times(report.every_group)
        section.say(said_of_disturbed([run for _, run in flagged], len(ended_well), left_out))
        rows = [row_of_run(report, group, run, flags="; ".join(flags_of(run))) for group, run in flagged]
        section.table(said_once(rows))
    elif len(unknown) < len(ended_well):
        section.say("No run was seen throttled or sharing its GPU.")
    for text in said_of_power([run for _, run in ended_well]):
        section.say(text)
    if unknown and not report.on_cpu:
        section.say(f"It is not known whether the GPU was throttled or shared in {count(len(unknown), 'run')}.")
