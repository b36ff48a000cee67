"""Speed-ups, what may be said of them, and what disturbed the runs."""

import html
import statistics
from collections import Counter
from itertools import groupby

from ..analysis.bottleneck import find_bottleneck
from ..analysis.speedup import paired_ratio, paired_runs
from ..analysis.verdict import flags_of, judge, verdict
from .comparisons import ok_runs, run_label
from .section import Section
from .style import DAGGER, PRECISIONS
from .theme import chart_style
from .words import count, plain


def baselines_of(precision):
    """Return what a precision is set beside: fp32 and tf32; tf32 only beside fp32, and fp32 beside nothing."""
    return list(PRECISIONS)[: min(list(PRECISIONS).index(precision), 2)]


def speedup_between(runs, others, read=lambda run: run["epoch_seconds"], more_is_faster=False):
    """Return what paired_ratio() says about two lists of ok runs, or None where one is empty.

    Where no run has a counterpart, as on another card, it is the ratio of the medians of what `read` finds in the
    runs, times or, where more is faster, throughputs; without interval.
    """
    if not runs or not others:
        return None
    if speedup := paired_ratio(paired_runs(runs, others)):
        return speedup
    own, other = (statistics.median(value for run in part for value in read(run)) for part in (runs, others))
    ratio = own / other if more_is_faster else other / own
    return {"ratio": ratio, "low": None, "high": None, "pairs": 0, "repetitions": 0, "seeds": 0, "seconds": 0}


def speedup_of(group, precision, baseline):
    """Return the gain of one precision of a comparison over another, or None."""
    return speedup_between(ok_runs(group, precision), ok_runs(group, baseline))


def ratio_text(speedup):
    """Return a ratio with its interval, or why it has none."""
    spread = f"{speedup['low']:.2f} to {speedup['high']:.2f}" if speedup["low"] is not None else "no interval"
    return f"{speedup['ratio']:.2f}x ({spread})"


def judgement(report, speedup):
    """Return what a gain allows to say in a few words; the CPU allows nothing."""
    return "not judged: CPU" if report.on_cpu else judge(speedup if speedup["pairs"] else None)


def flags_in(group, *precisions):
    """Return what disturbed any ok run of these precisions, each phrase once."""
    runs = [(name, run) for name in precisions for run in ok_runs(group, name)]
    return list(dict.fromkeys(f"{name} {flag}" for name, run in runs for flag in flags_of(run)))


def mark_of(report, number, *precisions):
    """Return the dagger that marks a figure of disturbed runs, or nothing."""
    return DAGGER * bool(flags_in(report.comparisons[number], *precisions))


def example(group, precision):
    """Return the run that a sentence speaks of: the first ok one, else the first, else a stand-in."""
    runs = ok_runs(group, precision) or group["runs"][precision] or [{"precision": precision, "status": "not run"}]
    return runs[0]


def sentence_on(group, precision, baseline, speedup):
    """Return the verdict on two precisions of a comparison; a `gain` without pairs is none."""
    return verdict(
        example(group, precision), example(group, baseline), speedup if speedup and speedup["pairs"] else None
    )


def said_before(sentence, record):
    """Return a further sentence on a run without what limits it, which the first has said."""
    head, found, _ = sentence.partition(f"; {find_bottleneck(record)[1]}")
    return f"{head}." if found else sentence


def marked_in(report, number):
    """Return the dagger with the precisions of a comparison that it marks, or nothing."""
    marked = [name for name in PRECISIONS if mark_of(report, number, name)]
    return f"{DAGGER} {', '.join(marked)}" * bool(marked)


def row_of_run(report, group, record, **more):
    """Return the first columns of a table with a row per run, and `more`."""
    which = {"run": run_label(record)} if report.several_runs else {}
    return {"comparison": f"{group['notebook']}: {group['title']}", "precision": record["precision"], **which, **more}


def run_row(report, number, record, **more):
    return row_of_run(report, report.comparisons[number], record, **more)


def said_once(rows):
    """Return the rows with each comparison named only where it begins."""
    blocks = [list(block) for _, block in groupby(rows, lambda row: row["comparison"])]
    return [row | {"comparison": row["comparison"] * (row is block[0])} for block in blocks for row in block]


def say_missing(section, report, what, field, reason):
    """Say in how many of the runs that ended well something was not measured, and why."""
    missing = [record for _, record in report.timed if record[field] is None]
    reasons = Counter(record[reason] or "the record does not say why" for record in missing)
    reasons = "; ".join(f"{plain(text)} ({number})" for text, number in reasons.items())
    if len(missing) == len(report.timed):
        section.say(f"{what} was not measured in any run, so there is no chart: {reasons or 'no run ended well'}.")
    elif missing:
        section.say(
            f"{what} was not measured in {len(missing)} of the {len(report.timed)} runs that ended well: {reasons}."
        )


def find_speedups(report):
    """Return {(comparison number, precision, baseline): gain}."""
    speedups = {}
    for number, group in enumerate(report.comparisons):
        for precision in PRECISIONS:
            for baseline in baselines_of(precision):
                if speedup := speedup_of(group, precision, baseline):
                    speedups[number, precision, baseline] = speedup
    return speedups


def find_sentences(report):
    """Return {(comparison number, precision, baseline): verdict}."""
    sentences = {}
    for number, group in ((number, report.comparisons[number]) for number in report.charted):
        for precision in (name for name, runs in group["runs"].items() if runs):
            record = example(group, precision)
            for baseline in baselines_of(precision) or ["fp32"] * (record["status"] != "ok"):
                speedup = report.speedups.get((number, precision, baseline))
                if baseline == "fp32" or speedup:
                    sentences[number, precision, baseline] = sentence_on(group, precision, baseline, speedup)
    return sentences


@chart_style()
def section(report):
    """Return the verdicts on every comparison, and the runs that were disturbed."""
    section = Section()
    said_of = {}  # notebook: what is said of each of its comparisons
    for number, group in ((number, report.comparisons[number]) for number in report.charted):
        lines, said = [f"**{plain(group['notebook'])}: {plain(group['title'])}**\n"], set()
        for precision, baseline in (key[1:] for key in report.sentences if key[0] == number):
            sentence = report.sentences[number, precision, baseline]
            sentence = said_before(sentence, example(group, precision)) if precision in said else sentence
            said.add(precision)
            lines.append(f"- {plain(sentence)} {mark_of(report, number, precision, baseline)}")
        lines += [] if lines[1:] else ["- fp32 alone: there is nothing to be compared."]
        said_of.setdefault(group["notebook"], []).append("\n".join(lines))
    for notebook, texts in said_of.items():
        words = Counter(
            judgement(report, speedup)
            for key, speedup in report.speedups.items()
            if report.comparisons[key[0]]["notebook"] == notebook
        )
        many = f"{html.escape(notebook)}: verdicts on {len(texts)} comparison{'s' * (len(texts) > 1)}"
        many += "".join(f", {count} times {word}" for word, count in words.most_common())
        folded = [f"<details><summary>{many}</summary>\n", *texts, "</details>"] if len(report.charted) > 12 else texts
        section.say("\n\n".join(folded))
    disturbed_runs(section, report)
    return section


def disturbed_runs(section, report):
    """Say which runs were throttled or shared their GPU."""
    ended_well = [(group, run) for group in report.every_group for name in PRECISIONS for run in ok_runs(group, name)]
    flagged = [(group, record) for group, record in ended_well if flags_of(record)]  # with those of the largest batches
    unknown = [record for _, record in ended_well if record["throttled"] is None and record["gpu_shared"] is None]
    if flagged:
        section.say(
            f"{DAGGER} marks, here and in the charts, what was disturbed while the clock ran: {len(flagged)} of the"
            f" {len(ended_well)} runs that ended well were throttled or shared their GPU."
        )
        section.table(said_once([row_of_run(report, *run, flags="; ".join(flags_of(run[1]))) for run in flagged]))
    elif len(unknown) < len(ended_well):
        section.say("No run was seen throttled or sharing its GPU.")
    if unknown and not report.on_cpu:
        section.say(f"Whether the card was throttled or shared is not known for {count(len(unknown), 'run')}.")
