"""What a person reads of a study while it runs, on the terminal and in its log, and how long its
runs take.
"""

import json
import logging
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..judge.conditions import flags_of, why_made_up
from ..parameters import printable
from ..report.files import checked_study
from ..report.words import MADE_UP, said
from ..store.commit import MALFORMED
from ..store.files import opened_to_append
from ..store.record import read_run
from .plan import Comparison

LOG = logging.Logger("mixed_precision.runner", logging.INFO)
logging.raiseExceptions = False  # a full disk must not end the study when its log is written
TIMES_FILE = "logs/batch.json"  # below the output folder


def say(text: str) -> None:
    """Print text and add it to the log, without what a terminal would obey.

    The terminal or pipe may have closed.
    """
    text = printable(text)
    LOG.info("%s", text)
    try:
        print(f"{text}\n", end="", flush=True)  # in one piece, because each device says its own
    except OSError:
        sys.stdout = None  # type: ignore[assignment]  # Python would else try again at its end, and complain


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
    path = Path(path).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def read_seconds(folder: Path) -> dict[str, float]:
    """Return {name of a run: seconds} of the runs in this output folder, as they were measured
    before.
    """
    with suppress(OSError, *MALFORMED):
        seconds = json.loads((folder / TIMES_FILE).read_text(encoding="utf-8")).get(
            "run_seconds", {}
        )
        return {str(name): float(value) for name, value in seconds.items() if 0 < value < 1e9}
    return {}


def in_words(record: dict) -> str:
    """Return what was measured, with units, and why it must be read with caution; or why it was
    not measured.
    """
    if record["status"] != "ok":
        return str(record["reason"])
    seconds, metric = (
        [one for one in record[key] if one is not None] for key in ("epoch_seconds", "metric")
    )
    words = [f"{statistics.fmean(seconds):.3g} s/epoch"] if seconds else []
    units = {"samples_per_second": f"{record['sample_unit']}/s", "peak_allocated_mib": "MiB peak"}
    words += [
        f"{record[key]:,.0f} {unit}" for key, unit in units.items() if record[key] is not None
    ]
    words += [f"{record['metric_name']} {metric[-1]:.4g}"] if metric else []
    flags = [f"made-up data, because {MADE_UP[why]}"] if (why := why_made_up(record)) else []
    flags += map(said, flags_of(record))
    return ", ".join([*words, *(["Caution: " + "; ".join(flags)] if flags else [])])


def ratios_in_words(record: dict, comparison: Comparison) -> str | None:
    """Return how many times as fast as its base a training is that has ended, or None where that is
    not known.

    Of a base, as fp32, it is what is now known of the others. On a CPU nothing is said: its times
    mean nothing.
    """
    from ..judge.ratios import paired_ratio, paired_runs  # NumPy takes a while to load

    if record["status"] != "ok" or record["device_type"] != "cuda":
        return None
    found = [read_run(path) for run in comparison for path in run.record_paths.values()]
    axis = checked_study(record["study"] or {}, "the record").compares()
    like = [one for one in found if one and axis.rest_of(one) == axis.rest_of(record)]
    runs: dict[str, list[dict]] = {}
    for one in like:
        runs.setdefault(axis.arm_of(one), []).append(one)
    base = runs.pop(axis.bases[0], [])
    ratios = {arm: paired_ratio(paired_runs(runs[arm], base)) for arm in runs}
    words = [
        f"{name} {ratio['ratio']:.2f}x (n = {ratio['processes']})"
        for name, ratio in ratios.items()
        if ratio
        and axis.arm_of(record) in (name, axis.bases[0])
        and not (ratio["untrained"] or ratio["unlike"])
    ]
    settings = record["settings"]
    way = f"{settings['model']} b{settings['batch_size']} {settings.get('execution', 'eager')}"
    return f"{way}, times as fast as {axis.bases[0]}: {', '.join(words)}" if words else None


def table(comparisons: Iterable[Comparison]) -> str:
    """Return all trainings as aligned lines of text."""
    found = {
        p.stem: read_run(p)
        for runs in comparisons
        for run in runs
        for p in run.record_paths.values()
    }
    width = max(map(len, found))
    lines = [
        f"{name:<{width}}  {record['status']:<11}  {in_words(record)}"
        if record
        else f"{name:<{width}}  not run"
        for name, record in found.items()
    ]
    return "\n".join(lines)
