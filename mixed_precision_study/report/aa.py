"""Section: how often equal runs are called different on this host."""

from pathlib import Path

from ..analysis.aa import equal_runs, false_positive_rate, is_equal_run, same_host
from ..record import read_records
from .environment import data_of
from .reading import sort_out
from .report import Report
from .section import File, Section
from .style import CPU_WARNING
from .table import results_csv
from .theme import chart_style
from .words import count, span

TITLE = "Equal runs against each other"
ABOUT = """How far can these verdicts be trusted? `python run_all.py aa` makes 24 equal processes of each of three
runs. They are judged three against three, as two precisions are. A rate above 5% by more than its
error means that the intervals on this host are too narrow."""

PROCESSES = 24  # of each run in the study
STUDY = "aa"  # also the name of its folder, beside those of the other studies
WANTED = 0.05  # the rate that a 95% interval promises at most


def equal_runs_on(used: list[dict], here: list[dict], folder: str | Path) -> list[dict]:
    """Return the equal runs `here` and in the folder of the study `aa` beside `folder`: those of a host in `used`.

    Where no other records are used, all are returned.
    """
    found = {(record["run_id"], record["gpu_uuid"]): record for record in [*equal_runs_beside(folder), *here]}
    current = [record for record in found.values() if "other_code-" not in record["path"]]
    return [record for record in current if not used or any(same_host(record, other) for other in used)]


def equal_runs_beside(folder: str | Path) -> list[dict]:
    """Return the equal runs in the folder of the study `aa` that lies beside `folder`."""
    own = Path(folder).resolve()
    beside = own.parent / STUDY
    if own == beside or not beside.is_dir():
        return []
    records, _ = read_records(beside)
    return [record for record in sort_out(records)[0] if is_equal_run(record)]


def rates_of(records: list[dict]) -> list[tuple[list[dict], dict]]:
    """Return (equal runs, what `false_positive_rate` finds in them) of every run with enough processes."""
    judged = ((runs, false_positive_rate(runs)) for runs in equal_runs(records))
    return [(runs, found) for runs, found in judged if found]


def in_words(report: Report) -> str:
    """Return in two sentences how often equal runs were called different, and what that says of the verdicts."""
    told = [found for _, found in report.equal_rates if found["rate"] is not None]
    if not told:
        return f"Too few equal runs: the study makes {PROCESSES} of each."
    rates = [found["rate"] for found in told]
    said = f"Three equal runs against three others are called faster or slower in {span(rates, '{:.1%}')} of cases."
    if any(found["rate"] - (found["error"] or 0) > WANTED for found in told):
        return f"{said} That is more than {WANTED:.0%}: intervals on this host are too narrow."
    return f"{said} The rules allow {WANTED:.0%}, so verdicts hold on this host."


def row_of(runs: list[dict], found: dict) -> dict:
    """Return what was found in equal runs as a row of the table."""
    rate = "no verdict" if found["rate"] is None else f"{found['rate']:.1%}"
    if found["rate"] is not None and found["error"] is not None:
        rate += f" ± {found['error']:.1%}"
    first = runs[0]
    return {
        "equal runs": f"{first['notebook']}: {first['model']}, {data_of(first)}, b{first['batch_size']}",
        "execution": first.get("execution") or "-",
        "precision": first["precision"],
        "processes": found["processes"],
        "scatter between them": f"{found['scatter']:.1%}",
        "called faster or slower": rate,
        "of splits": found["splits"],
    }


@chart_style()
def section(report: Report) -> Section:
    """Return how often equal runs of this host are called faster or slower than each other; nothing without them."""
    section = Section(TITLE, ABOUT)
    rows = [row_of(*rate) for rate in report.equal_rates]
    if not rows:
        return section
    if {record["device_type"] for record in report.equal} == {"cpu"}:
        section.say(f"**{CPU_WARNING}.**")
    processes = sum(row["processes"] for row in rows)
    section.say(
        f"On this host {processes} processes of {count(len(rows), 'run')} were judged against others of the same run,"
        " three against three, as two precisions are. A verdict may call"
        f" {WANTED:.0%} of such splits faster or slower."
    )
    section.table(rows)
    if not report.used:  # else the file of the comparisons has this name
        section.parts.append(File("results.csv", results_csv(report, {})))
    return section
