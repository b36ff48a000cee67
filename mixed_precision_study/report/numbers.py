"""Section: all numbers in one table."""

from pathlib import Path, PurePosixPath

import pandas as pd

from .names import METRICS
from .section import Section
from .tables import Tables, bars_of
from .words import short

ROWS_OPEN = 24  # a longer table is folded
# comparisons: with more of them nobody reads a chart of each, so that this table has to do
MANY = 30


def section(tables: Tables) -> Section:
    """Return a row for each precision of each comparison, whose first cell links to a record,
    and the CSV files.
    """
    section = Section("All numbers", link="Numbers")
    bars = bars_of(tables, tables.comparisons.index)
    if len(bars):
        timed = tables.trainings[tables.trainings.timed].drop_duplicates("comparison")
        metrics = timed.set_index("comparison").record.map(lambda run: run["metric_name"])
        names = {**METRICS, "mean_absolute_error": "MAE"}
        fair = tables.axis.bases[-1]
        cells = pd.DataFrame(
            {
                "model": bars.model,
                "task": bars.task,
                "run": (bars.way + ", " + bars.more).str.strip(", "),
                ", ".join(tables.axis.settings): bars.short,
                "s per epoch": bars.seconds.map(cell).where(bars.status == "ok", bars.status),
                f"over {tables.short(fair)}": two(bars.ratio.where(bars.baseline == fair)),
                "GiB": two(bars.gib),
                "J per 1,000": bars.joules.map(cell),
                "metric": bars.metric.map(cell),
                "of": bars.comparison.map(metrics).replace(names).fillna("-"),
                "GPU idle": bars.idle.map(lambda share: cell(share, "{:.0%}")),
                "runs": bars.runs,
            }
        )
        rows = cells.loc[:, (cells != "-").any()].to_dict("records")
        links = [path if is_beside(tables, path) else "" for path in bars.path]
        common = [name for name in ("task", "run", "of") if name in rows[0]]
        section.table(
            rows, "All numbers" if len(rows) > ROWS_OPEN else "", common, links=links, sortable=True
        )
        many = (
            f" Steps, memory and energy have no charts where there are more than {MANY} "
            "comparisons."
        )
        ratios = ", [ratios.csv](ratios.csv) one for each ratio" if len(tables.ratios) else ""
        section.say(
            "GiB is PyTorch's peak of memory without the data set, and MAE is the mean "
            "absolute error."
            " [trainings.csv](trainings.csv) has a row for each training with all that "
            f"was recorded{ratios}." + (many if len(tables.comparisons) > MANY else "")
        )
    return section


def two(numbers: pd.Series) -> pd.Series:
    return numbers.map(lambda number: cell(number, "{:.2f}"))


def is_beside(tables: Tables, path: str) -> bool:
    """Return whether a record is a file below the report's folder, so that it can be linked to."""
    return not PurePosixPath(path).is_absolute() and Path(tables.folder, path).is_file()


def cell(value: float | None, form: str = "") -> str:
    """Return a number with three significant digits or in the given form, "-" where it is not
    known.
    """
    if value is None or pd.isna(value):
        return "-"
    return form.format(value) if form else short(value)
