"""What a person reads of a study while it runs, on the terminal and in its log, and how long its
runs take.
"""

import json
import logging
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..judge.axis import Axis
from ..judge.conditions import flags_of
from ..judge.verdict import NOT_TRAINED
from ..parameters import printable
from ..report.files import checked_study
from ..report.words import (
    model_name,
    outcome_words,
    precision_name,
    said,
    said_of_made_up,
    short,
    short_name,
    way_name,
)
from ..store.commit import MALFORMED
from ..store.files import opened_to_append
from ..store.record import Runs, last_metric, read_run
from .plan import Comparison
from .studies import relative_to_root

if TYPE_CHECKING:
    import pandas as pd

LOG = logging.Logger("mixed_precision.runner", logging.INFO)
logging.raiseExceptions = False  # a full disk must not end the study when its log is written
TIMES_FILE = "logs/batch.json"  # below the output folder
LACKING = r", (no|without) [^,]+"  # in the name of a row


def say(text: str, in_log: str = "") -> None:
    """Print text and add it to the log, or there what is to stand `in_log`, without what a
    terminal would obey.

    The terminal or pipe may have closed.
    """
    text = printable(text)
    LOG.info("%s", printable(in_log) or text)
    try:
        print(f"{text}\n", end="", flush=True)  # in one piece, because each device says its own
    except OSError:
        # Python would else try again at its end, and complain
        sys.stdout = None  # type: ignore[assignment]


@contextmanager
def log_in(folder: Path) -> Iterator[None]:
    """Also write what is said in this block to logs/batch.log below `folder`, with the time."""
    with opened_to_append(folder / "logs" / "batch.log") as log:
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
        LOG.addHandler(handler)
        try:
            yield
        finally:
            LOG.removeHandler(handler)


def shown(path: str | Path) -> str:
    """Return a path that opens from the current folder: relative where it lies below, else the
    whole path.
    """
    return relative_to_root(path, Path.cwd())


def read_seconds(folder: Path) -> dict:
    """Return {name of a run: seconds} of the runs in this output folder, as they were measured
    before.
    """
    with suppress(OSError, *MALFORMED):
        seconds = json.loads((folder / TIMES_FILE).read_text(encoding="utf-8")).get(
            "run_seconds", {}
        )
        return {str(name): float(value) for name, value in seconds.items() if 0 < value < 1e9}
    return {}


def way_of(record: dict) -> str:
    """Return how a run was trained as a person names it: model, batch, execution and layout."""
    settings = record["settings"]
    layout = ", channels_last" if settings.get("channels_last") else ""
    batch = f"batch {settings['batch_size']}"
    return f"{model_name(record)}, {batch}, {way_name(settings.get('execution'))}{layout}"


def in_words(record: dict) -> str:
    """Return what was measured, with units, or why it was not measured."""
    if record["status"] != "ok":
        return str(record["reason"])
    seconds = record["epoch_seconds"]
    metric = last_metric(record)
    words = [f"{statistics.fmean(seconds):.3g} s/epoch"] if seconds else []
    units = {"samples_per_second": f"{record['sample_unit']}/s", "peak_allocated_mib": "MiB peak"}
    words += [f"{short(record[key])} {unit}" for key, unit in units.items() if record[key]]
    words += [f"{record['metric_name']} {metric:.4g}"] if metric is not None else []
    return ", ".join(words)


def say_ended(where: str, record: dict) -> None:
    """Say what became of a training. The log names its record, too, and why to read it with
    caution.
    """
    found = in_words(record)
    cautions = cautions_of([record]) if record["status"] == "ok" else []
    say(
        f"{where}  {way_of(record)}, {precision_name(record['precision'])}: {found}",
        "  ".join([where, record["run_id"], record["status"], found, *cautions]),
    )


def ratios_in_words(record: dict, comparison: Comparison) -> str | None:
    """Return how many times as fast as its base a training is that has ended, or None where that is
    not known.

    Of a base, as TF32, it is what is now known of the others. On a CPU nothing is said: its times
    mean nothing.
    """
    if record["status"] != "ok" or record["device_type"] != "cuda":
        return None
    axis = checked_study(record["study"] or {}, "the record").compares()
    runs = alike(record, comparison, axis)
    own = axis.arm_of(record)
    base = next((arm for arm in reversed(axis.bases) if arm in runs), "")
    base_runs = runs.pop(base, [])
    arms = runs if own == base else [own]
    words = [short_ratio(arm, runs[arm], base_runs) for arm in arms]
    found = ", ".join(filter(None, words))
    return f"{way_of(record)}, over {short_name(base)}: {found}" if found else None


def short_ratio(arm: str, runs: Runs, base_runs: Runs) -> str:
    """Return how many times as fast an arm is, or nothing where its runs are no fair pairs."""
    from ..judge.ratios import paired_ratio, paired_runs  # NumPy takes a while to load

    ratio = paired_ratio(paired_runs(runs, base_runs))
    if not ratio or ratio["untrained"] or ratio["unlike"]:
        return ""
    return f"{short_name(arm)} {ratio['ratio']:.2f}x (n = {ratio['processes']})"


def alike(record: dict, comparison: Comparison, axis: Axis) -> dict:
    """Return {arm: ok records} of the trainings that differ from an ok one in their arm alone.

    An arm without a record is yet to come.
    """
    runs: dict = {}
    rest = axis.rest_of(record)
    for run in comparison:
        for run_id, (parameters, precision) in run.trainings.items():
            found = read_run(run.record_paths[run_id])
            other = found or record | {"precision": precision, "settings": parameters}
            if other["status"] == "ok" and axis.rest_of(other) == rest:
                runs.setdefault(axis.arm_of(other), []).extend([found] if found else [])
    return runs


def table(folder: Path) -> str:
    """Return a table of what the records of a folder say, a row for each way of each model, and
    below it each caution once.

    Beside the speed stand the changes of memory and energy, where they are known. On a CPU it says
    only what worked.
    """
    import pandas as pd  # it takes a while to load

    from ..report.tables import read_tables

    tables = read_tables(folder)
    named = tables.comparisons
    # what a row has not needs no word, unless it is all that tells two rows apart
    names = (named["name"] + ", " + named["run"]).str.replace(LACKING, "", regex=True)
    names = names.str.strip(", ").mask(names.duplicated(keep=False), named.title)
    bars = tables.bars.assign(row=tables.bars.comparison.map(names))
    if tables.on_cpu:
        ends = {"ok": "worked", "unsupported": "needs a GPU"}
        bars = bars.assign(over=bars.short, speed=bars.status.replace(ends))
    else:
        bars = with_changes(bars[bars.arm.isin(tables.compared_arms or tables.arms)])
    shown = [name for name in ("speed", "peak memory", "energy") if name in bars]
    arms = {over: own.set_index("row")[shown] for over, own in bars.groupby("over", sort=False)}
    frame = pd.concat(arms, axis=1).dropna(axis=1, how="all").fillna("").rename_axis(None)
    if tables.on_cpu:
        frame = frame.droplevel(1, axis=1)
    return "\n".join([frame.to_string(), *cautions_of(list(tables.trainings.record))])


def with_changes(bars: "pd.DataFrame") -> "pd.DataFrame":
    """Return bars with the texts of table(): the ratio of each, or else how it ended, and how much
    more memory and energy it took.
    """
    percent = "{:+.0%}".format
    figures = bars[["ratio", "saved", "energy"]].astype(float)
    texts = {"speed": figures.ratio.map("{:.2f}x".format, na_action="ignore").astype(object)}
    for name, change in {"peak memory": -figures.saved, "energy": figures.energy - 1}.items():
        texts[name] = (change.round(2) + 0.0).map(percent, na_action="ignore")  # -0.0 becomes 0.0
    bars = bars.assign(over=bars.short + "/" + bars.base_short, **texts)
    bars["speed"] = bars.speed.fillna(bars.status)
    bars.loc[bars.outcome == NOT_TRAINED, "speed"] = outcome_words(NOT_TRAINED)
    return bars


def cautions_of(records: Runs) -> list[str]:
    """Return why records must be read with caution, each reason in one sentence."""
    flags = Counter(said(flag).partition(" (")[0] for one in records for flag in flags_of(one))
    counted = [f"{flag} in {number} of {len(records)} trainings" for flag, number in flags.items()]
    return [f"Caution: {text}" for text in (said_of_made_up(records), *counted) if text]
