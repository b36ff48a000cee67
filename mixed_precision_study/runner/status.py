"""What a person sees of a study while it runs: lines, a log file, and on a terminal a line per device and a bar."""

import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..judge.conditions import flags_of, held_back, why_made_up
from ..measure.files import opened_to_append
from ..measure.nvml import GpuState
from ..parameters import printable
from ..record import comparison_key, read_run, write_flat
from .plan import Comparison, Run

LOG = logging.getLogger("mixed_precision.runner")
LOG.propagate = False
LOG.setLevel(logging.INFO)
logging.raiseExceptions = False  # a full disk must not end the study when its log is written
DRAW_SECONDS = 1.0  # between two updates of the view on a terminal
PLAIN_SECONDS = 60  # the same as lines of text
COLUMNS = 80  # of a terminal
TIMES_FILE = "logs/batch.json"  # below the output folder
BASELINE = "fp32"


def say(text: str, to_terminal: bool = True) -> None:
    """Print text above the status view, flush it, and add it to the log. What a terminal would obey is left out."""
    text = printable(text)
    LOG.info("%s", text)
    if to_terminal:
        tqdm.write(text)
        sys.stdout.flush()


class TolerantStream:
    """A stream whose terminal or pipe may close. What can no longer be shown is dropped."""

    def __init__(self, stream: Any):
        self.stream = stream
        stream.reconfigure(errors="backslashreplace")  # the terminal may lack a letter

    def write(self, text: str) -> None:
        with suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


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


class View:
    """A bar for the study and a line for each device on a terminal; elsewhere plain lines every minute."""

    def __init__(self, study: str, total: int, labels: Iterable[str]):
        self.quiet = not sys.stderr.isatty() or not total
        self.drawn = time.monotonic() if self.quiet else 0.0
        style: dict[str, Any] = {"disable": self.quiet, "dynamic_ncols": True}
        self.bar = tqdm(total=total, desc=study, unit="training", **style)
        self.lines = {
            label: tqdm(position=number, bar_format="{desc}", total=0, leave=False, **style)
            for number, label in enumerate(labels, 1)
        }

    def due(self) -> bool:
        """Return whether it is time to draw the view again."""
        return time.monotonic() - self.drawn > (PLAIN_SECONDS if self.quiet else DRAW_SECONDS)

    def draw(self, texts: dict[str, str], seconds_left: float | None) -> None:
        """Show {label: text} of the devices and the seconds until the end (None: not known yet)."""
        self.drawn = time.monotonic()
        left = "time left: known after the first run"
        if seconds_left is not None:
            end = datetime.fromtimestamp(time.time() + seconds_left)
            left = f"{tqdm.format_interval(seconds_left)} left, ends at about {end:%H:%M}"
        if self.quiet:
            for label, text in texts.items():
                say(f"{label}  {text}")
            say(left)
            return
        for label, line in self.lines.items():
            shown = printable(f"{label}  {texts.get(label, '-')}")
            line.set_description_str(shown if len(shown) < COLUMNS else f"{shown[: COLUMNS - 2]}…", refresh=True)
        self.bar.set_postfix_str(left, refresh=True)

    def close(self) -> None:
        for line in (*self.lines.values(), self.bar):
            line.close()


def read_seconds(folder: Path) -> dict[str, float]:
    """Return {name of a run: seconds} of the runs in this output folder, as they were measured before."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        seconds = json.loads((folder / TIMES_FILE).read_text(encoding="utf-8")).get("run_seconds", {})
        return {str(name): float(value) for name, value in seconds.items() if 0 < value < 1e9}
    return {}


def write_times(folder: Path, run_seconds: dict[str, float], **facts: Any) -> None:
    """Write the seconds of the runs, which order the next start, and `facts` about the whole study."""
    write_flat({**facts, "run_seconds": run_seconds}, folder / TIMES_FILE)


def estimator(runs: Iterable[Run], seconds: dict[str, float]) -> Callable[[Run], float]:
    """Return a function that gives the expected seconds of a run: recorded ones, else the minutes of the study.

    Those minutes are for one H200, so they are scaled to this machine by the runs whose seconds are known.
    """
    known = [seconds[run.name] / (60 * run.minutes) for run in runs if run.name in seconds and run.minutes > 0]
    factor = statistics.median(known) if known else 1.0
    return lambda run: seconds.get(run.name, 60 * run.minutes * factor)


def seconds_left(busy: list[float], waiting: Iterable[float]) -> float:
    """Return the expected seconds until all ends, from those of each device and those of the waiting jobs."""
    ends = sorted(busy) or [0.0]
    for job in sorted(waiting, reverse=True):  # the longest first, each to the device that is free first
        ends[0] += job
        ends.sort()
    return ends[-1]


def run_in_words(run: Run, progress: str, elapsed: float) -> str:
    """Return what a run trains and how far it is. The line should fit 80 columns, so the log has the whole name."""
    repeat = f", repetition {run.parameters['repeat'] + 1}" if run.parameters.get("repeat") else ""
    name = f"{run.parameters['model']} b{run.parameters['batch_size']}{repeat}"
    return f"{name}  {progress or 'starting'}  {tqdm.format_interval(elapsed)}"


def gpu_in_words(state: GpuState | None) -> str:
    """Return memory and utilisation of a GPU as NVML reports them."""
    if state is None:
        return ""
    busy = "" if state.busy_percent is None else f"  {state.busy_percent}% busy"
    return f"  {state.used_mib / 1024:.1f} of {state.total_mib / 1024:.0f} GiB{busy}"


def in_words(record: dict) -> str:
    """Return what was measured, with units, and why it must be read with caution; or why it was not measured."""
    if record["status"] != "ok":
        return str(record.get("reason"))
    seconds, metric = ([one for one in record.get(key) or () if one is not None] for key in ("epoch_seconds", "metric"))
    words = [f"{statistics.median(seconds):.3g} s/epoch"] if seconds else []
    units = {"samples_per_second": f"{record.get('sample_unit') or 'samples'}/s", "peak_allocated_mib": "MiB peak"}
    words += [f"{record[key]:,.0f} {unit}" for key, unit in units.items() if record.get(key) is not None]
    words += [f"{record.get('metric_name')} {metric[-1]:.4g}"] if metric else []
    flags = [f"made-up data, because {why}"] if (why := why_made_up(record)) else []
    flags += flags_of(record) if held_back(record) or record.get("gpu_shared") else []
    return ", ".join([*words, *(["Caution: " + "; ".join(flags)] if flags else [])])


def ratios_in_words(record: dict, comparison: Comparison) -> str | None:
    """Return how many times as fast as fp32 a training is that has ended, or None where that is not known.

    Of an fp32 training it is what is now known of the others. On a CPU nothing is said: its times mean nothing.
    """
    from ..judge.ratios import paired_ratio, paired_runs  # NumPy takes a while to load

    if record["status"] != "ok" or record.get("device_type") != "cuda":
        return None
    found = [read_run(path) for run in comparison for path in run.record_paths.values()]
    like = [one for one in found if one and comparison_key(one) == comparison_key(record)]
    base = [one for one in like if one["precision"] == BASELINE]
    words = []
    for precision in dict.fromkeys(one["precision"] for one in like):
        if precision != BASELINE and record["precision"] in (precision, BASELINE):
            ratio = paired_ratio(paired_runs([one for one in like if one["precision"] == precision], base))
            if ratio and not (ratio["untrained"] or ratio["unlike"]):
                words.append(f"{precision} {ratio['ratio']:.2f}x (n = {ratio['processes']})")
    if not words:
        return None
    execution = "" if record.get("execution", "eager") == "eager" else f" {record['execution']}"
    return f"{record['model']} b{record['batch_size']}{execution}, times as fast as {BASELINE}: {', '.join(words)}"


def table(comparisons: Iterable[Comparison]) -> str:
    """Return all trainings as aligned lines of text."""
    found = {p.stem: read_run(p) for runs in comparisons for run in runs for p in run.record_paths.values()}
    width = max(map(len, found))
    lines = [
        f"{name:<{width}}  {record['status']:<11}  {in_words(record)}" if record else f"{name:<{width}}  not run"
        for name, record in found.items()
    ]
    return "\n".join(lines)
