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
    """Return a row for each precision of each comparison, whose first cell links to a record, and the CSV files."""
    section = Section("All numbers", link="Numbers")
    bars = bars_of(tables, tables.comparisons.index)
    if len(bars):
        keys, timed = ["comparison", "arm"], tables.trainings[tables.trainings.timed]
        idle = timed[timed.record.map(id).isin(tables.fair)].groupby(keys).idle.median()
        metrics = timed.drop_duplicates("comparison").set_index("comparison").record
        paths = tables.trainings.drop_duplicates(keys).set_index(keys).path
        rows, links, fair = [], [], tables.axis.bases[-1]
        for bar in bars.itertuples():
            path = str(paths[bar.comparison, bar.arm])
            beside = not PurePosixPath(path).is_absolute() and Path(tables.folder, path).is_file()
            links.append(path if beside else "")  # none into an archive
            metric = (
                str(metrics[bar.comparison]["metric_name"]) if bar.comparison in metrics else "-"
            )
            row = {
                "model": bar.model,
                "task": bar.task,
                "run": ", ".join(filter(None, (bar.way, bar.more))),
                ", ".join(tables.axis.settings): bar.short,
                "s per epoch": cell(bar.seconds) if bar.status == "ok" else bar.status,
                f"over {tables.short(fair)}": cell(bar.ratio, "{:.2f}")
                if bar.baseline == fair
                else "-",
                "GiB": cell(bar.gib, "{:.2f}"),
                "J per 1,000": cell(bar.joules),
                "metric": cell(bar.metric),
                "of": {**METRICS, "mean_absolute_error": "MAE", "None": "-"}.get(metric, metric),
                "GPU idle": cell(idle.get((bar.comparison, bar.arm)), "{:.0%}"),
                "runs": bar.runs,
            }
            rows.append(row)
        filled = {name for row in rows for name, value in row.items() if value != "-"}
        rows = [{name: row[name] for name in row if name in filled} for row in rows]
        common = [name for name in ("task", "run", "of") if name in rows[0]]
        section.table(
            rows, "All numbers" if len(rows) > ROWS_OPEN else "", common, links=links, sortable=True
        )
        many = f" Steps, memory and energy have no charts where there are more than {MANY} comparisons."
        ratios = ", [ratios.csv](ratios.csv) one for each ratio" if len(tables.ratios) else ""
        section.say(
            "GiB is PyTorch's peak of memory without the data set, and MAE is the mean absolute error."
            f" [trainings.csv](trainings.csv) has a row for each training with all that was recorded{ratios}."
            + (many if len(tables.comparisons) > MANY else "")
        )
    return section


def cell(value: float | None, form: str = "") -> str:
    """Return a number with three significant digits or in the given form, "-" where it is not known."""
    if value is None or pd.isna(value):
        return "-"
    return form.format(value) if form else short(value)
