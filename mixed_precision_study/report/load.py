"""Read the records of a folder and judge them: the report that every section is drawn from."""

from collections.abc import Sequence
from pathlib import Path

from ..analysis.conditions import flags_of
from ..errors import UserError
from ..record import NO_RECORD
from .bars import pool
from .comparisons import group_runs, label_groups, mark_diverged, ok_runs, runs_of, sweeps_of
from .environment import device_of
from .epoch_time import pool_times, uneven_experiments
from .inference_cost import find_latency
from .ladder_steps import find_ladders
from .memory_use import gib, peak_gib
from .reading import find_records, of_other_code, sort_out
from .report import Report
from .section import Section
from .style import PRECISIONS
from .verdicts import find_sentences, find_speedups, stand_after_correction
from .widths import find_widths
from .words import count

TITLE = "What was found, what was left out, and where it ran"
ABOUT = """Left out are unreadable files, records that contradict themselves, and older copies of a run. CPU runs are
left out where there are GPU runs, and runs on made-up data where there are runs on real data.

Times hold for this hardware and software only. A mark shows what differed between runs on one device."""

NAMED = 3  # files that are no records; of more their number is given


def load(records_dir: str | Path | Sequence[str], target_metric: float = 0.0, output_dir: str | Path = "") -> Report:
    """Return the Report of a folder with run records, or of several; "outputs" stands for one's own runs.

    `target_metric` is the quality to which time is measured. For 0 the experiments have their own. The report belongs
    into `output_dir`, by default the first folder.
    """
    folder, records, left_out = find_records(records_dir, output_dir)
    used, more_left_out = sort_out(records)
    equal = [record for record in used if record.get("purpose") == "aa"]
    used = [record for record in used if record.get("purpose") != "aa"]
    source = str(folder) if isinstance(records_dir, str | Path) else ", ".join(records_dir)
    report = Report(str(folder), source, target_metric, used, left_out + more_left_out, equal=equal)
    report.others = of_other_code(used)
    report.aside = [record for record in report.others if "other_code-" in record["path"]]
    report.used = [record for record in used if record not in report.aside]
    kinds = {record["device_type"] for record in report.measured}
    report.on_cpu = "cpu" in kinds and "cuda" not in kinds
    for record in sorted(report.measured, key=device_of):
        report.devices.setdefault(device_of(record), []).append(record)
    compare(report)
    judge_runs(report)
    report.uneven = uneven_experiments(report)
    report.epoch_times = pool_times(report)
    report.peaks = pool(report, lambda run: [peak for peak in [peak_gib(run)] if peak is not None], max)
    report.whole = pool(report, gib("device_used_mib"), max)
    report.latency = find_latency(report)
    return report


def compare(report: Report) -> None:
    """Group the records of a report into comparisons, and find those that belong to a ladder or a sweep alone."""
    report.every_group = group_runs(report.used)
    label_groups(report.every_group)
    report.largest = [group for group in report.every_group if group["settings"]["batch_size"] == '"max"']
    report.comparisons = [group for group in report.every_group if group not in report.largest]
    report.ladders = find_ladders(report)
    for ladder in report.ladders:  # each step is a comparison of its own, in which no other run may have learned
        first = ladder[0][3][0]
        alike = [run for *_, runs in ladder for run in runs if run["batch_size"] == first["batch_size"]]
        mark_diverged(alike, "another step of the ladder")
    report.widths = find_widths(report)
    report.sweeps = sweeps_of(report.comparisons)
    swept = {id(run) for scales in report.sweeps.values() for runs in scales.values() for run in runs}
    elsewhere = {number for ladder in report.ladders for _, number, _, runs in ladder if runs}
    for number, group in enumerate(report.comparisons):
        if any(id(run) in swept for run in runs_of([group])):
            elsewhere.add(number)
    report.alone = {number for number in elsewhere if sum(map(bool, report.comparisons[number]["runs"].values())) == 1}
    numbers = list(range(len(report.comparisons)))
    report.charted = [number for number in numbers if number not in report.alone] or numbers


def judge_runs(report: Report) -> None:
    """Find the speed-ups of a report's runs, and which runs were disturbed."""
    report.speedups = find_speedups(report)
    stands = stand_after_correction(list(report.speedups.values()))
    report.standing = {key for key, stand in zip(report.speedups, stands, strict=True) if stand}
    report.sentences = find_sentences(report)
    seen: set[int] = set()  # a run that is lent to another comparison is listed once
    for number, group in enumerate(report.comparisons):
        for precision in PRECISIONS:
            runs = ok_runs(group, precision)
            report.timed += [(number, record) for record in runs if id(record) not in seen]
            seen |= set(map(id, runs))
            report.several_runs |= len(runs) > 1
    report.disturbed = [(number, record) for number, record in report.timed if flags_of(record)]


def found(report: Report) -> str:
    """Return how many records were found, used and left out."""
    used = len(report.used) + len(report.aside) + len(report.equal)
    others = no_records(report)
    left_out = len(report.left_out) - len(others)
    text = f"{count(used + left_out, 'record')} found below {report.source}: {used} used, {left_out} left out"
    return f"{text}; beside them {count(len(others), 'JSON file')} without a record." if others else f"{text}."


def no_records(report: Report) -> list[str]:
    """Return the paths of the JSON files that are no records at all."""
    return [path for path, reason in report.left_out if reason == NO_RECORD]


def rows_left_out(report: Report) -> list[dict[str, str]]:
    """Return a row for each record that was left out, and one for all files that are no records."""
    rows = [{"left out": path, "why": reason} for path, reason in report.left_out if reason != NO_RECORD]
    if others := no_records(report):
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        rows.append({"left out": f"{', '.join(others[:NAMED])}{more}", "why": NO_RECORD})
    return rows


def section(report: Report) -> Section:
    """Return what was left out, and which records were measured by other code."""
    section = Section(TITLE, ABOUT)
    if report.left_out:
        section.table(rows_left_out(report))
    if report.others:
        rest = "all of them are used"
        if report.aside:
            rest = f"{count(len(report.aside), 'record')} that run_all.py had set aside left out"
        text = f"{count(len(report.others), 'record')} of another state of the notebook than its newest; {rest}"
        section.say(f"**Other code:** {text}.")
        rows = [{"of other code": record["path"], "code": record["code_hash"]} for record in report.others]
        section.table(rows, "Which, and of which code")
    return section


def stop_without_records(report: Report) -> None:
    """Raise UserError where no record is usable."""
    if not (report.used or report.aside or report.equal):
        raise UserError(
            f'no usable run record lies below records_dir = "{report.source}"; run an experiment notebook or run_all.py'
            " first, or upload records (JSON files, or one zip of them) in the Files panel of Colab or Kaggle, and run"
            " all cells."
        )
