"""Read the records of a folder and judge them: the report that every section is drawn from."""

from ..analysis.verdict import flags_of
from ..errors import UserError
from .bars import pool
from .comparisons import group_runs, label_groups, mark_diverged, ok_runs, runs_of, sweeps_of
from .environment import device_of
from .epoch_time import uneven_experiments
from .inference_cost import find_latency
from .ladder_steps import find_ladders
from .memory_use import gib
from .reading import find_records, of_other_code, sort_out
from .report import Report
from .section import Section
from .style import PRECISIONS
from .theme import chart_style
from .verdicts import find_sentences, find_speedups
from .words import count


def load(records_dir):
    """Return the Report of a folder with run records; "." without records gives way to ../outputs."""
    folder, records, left_out = find_records(records_dir)
    used, more_left_out = sort_out(records)
    report = Report(folder, used, left_out + more_left_out)
    report.others = of_other_code(used)
    report.aside = [one for one in report.others if "other_code-" in one["path"]]  # what run_all.py measures again
    report.used = [one for one in used if one not in report.aside]
    kinds = {record["device_type"] for record in report.used}
    report.on_cpu = "cpu" in kinds and "cuda" not in kinds
    names = sorted(set(map(device_of, report.used)))
    report.devices = {name: [record for record in report.used if device_of(record) == name] for name in names}
    compare(report)
    judge_runs(report)
    report.uneven = uneven_experiments(report)
    report.epoch_times = pool(report, lambda record: record["epoch_seconds"])
    report.peaks, report.whole = (pool(report, gib(f"{name}_mib"), max) for name in ("peak_allocated", "device_used"))
    report.latency = find_latency(report)
    return report


def compare(report):
    """Group the records of a report into comparisons, and find those that belong to a ladder or a sweep alone."""
    report.every_group = group_runs(report.used)
    label_groups(report.every_group)
    report.largest = [group for group in report.every_group if group["settings"]["batch_size"] == '"max"']
    report.comparisons = [group for group in report.every_group if group not in report.largest]  # never mixed
    report.ways_up = find_ladders(report)
    for way in report.ways_up:  # each step is a comparison of its own, in which none other may have learned
        alike = [run for *_, runs in way for run in runs if run["batch_size"] == way[0][3][0]["batch_size"]]
        mark_diverged(alike, "another step of the ladder")
    steps = {number for way in report.ways_up for _, number, _, runs in way if runs}
    report.sweeps = sweeps_of(report.comparisons)
    swept = {id(run) for scales in report.sweeps.values() for runs in scales.values() for run in runs}
    groups = list(enumerate(report.comparisons))
    steps |= {number for number, group in groups if any(id(run) in swept for run in runs_of([group]))}
    report.alone = {number for number in steps if sum(map(bool, report.comparisons[number]["runs"].values())) == 1}
    report.charted = [number for number, _ in groups if number not in report.alone] or [number for number, _ in groups]


def judge_runs(report):
    """Find what the runs of a report gain over each other, and which of them were disturbed."""
    report.speedups = find_speedups(report)
    report.sentences = find_sentences(report)
    report.timed = [
        (number, record)
        for number, group in enumerate(report.comparisons)
        for precision in PRECISIONS
        for record in ok_runs(group, precision)
    ]
    report.several_runs = any(
        len(ok_runs(group, precision)) > 1 for group in report.comparisons for precision in PRECISIONS
    )
    report.disturbed = [(number, record) for number, record in report.timed if flags_of(record)]  # in the charts


def found(report):
    """Return how many records were found, used and left out."""
    used, left_out = len(report.used) + len(report.aside), len(report.left_out)
    return f"{count(used + left_out, 'record')} found below {report.folder}: {used} used, {left_out} left out."


@chart_style()
def section(report):
    """Return what was left out, and which records were measured by other code."""
    section = Section()
    if report.left_out:
        section.table([{"left out": path, "why": reason} for path, reason in report.left_out])
    if report.others:
        rest = (
            f"{count(len(report.aside), 'record')} that run_all.py had set aside left out"
            if report.aside
            else "all of them used"
        )
        text = f"{count(len(report.others), 'record')} of another state of the notebook than its newest; {rest}"
        section.say(f"**Other code:** {text}.")
        rows = [{"of other code": one["path"], "code": one["code_hash"]} for one in report.others]
        section.table(rows, "Which, and of which code")
    return section


def stop_without_records(report):
    """Stop with one sentence where no record is usable."""
    if not (report.used or report.aside):
        raise UserError(
            f'no usable run record lies below records_dir = "{report.folder}"; run an experiment notebook or run_all.py'
            " first, or upload records (JSON files, or one zip of them) in the Files panel of Colab or Kaggle, and run"
            " all cells."
        )
