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

from ..analysis.conditions import flags_of, held_back, why_made_up
from ..errors import printable
from ..files import opened_to_append
from ..gpu.nvml import GpuState
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
        self.study = study
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
        """Show {label: text} of the devices and the expected end (None: not known yet)."""
        self.drawn = time.monotonic()
        if self.quiet:
            for label, text in texts.items():
                say(f"{label}  {text}")
            say(f"{self.study}: {end_in_words(seconds_left)}")
            return
        for label, line in self.lines.items():
            shown = printable(f"{label}  {texts.get(label, '-')}")
            line.set_description_str(shown if len(shown) < COLUMNS else f"{shown[: COLUMNS - 2]}…", refresh=True)
        self.bar.set_postfix_str(end_in_words(seconds_left), refresh=True)

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
    """Return a function that gives the expected seconds of a run.

    These are the recorded ones, else the minutes of the study. Those are for one H200 and are scaled to this machine by
    the runs whose seconds are known.
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


def duration_text(seconds: float) -> str:
    """Return a duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def end_in_words(seconds: float | None) -> str:
    """Return the expected end as a time of day."""
    if seconds is None:
        return "end: known after the first run"
    return f"{duration_text(seconds)} left, end about {datetime.fromtimestamp(time.time() + seconds):%H:%M}"


def run_in_words(run: Run, progress: str, elapsed: float) -> str:
    """Return what a run trains and how far it is. The line should fit 80 columns, so the log has the whole name."""
    precisions = run.parameters["precisions"]
    what = precisions[0] if len(precisions) == 1 else f"{len(precisions)} precisions"
    repeat = f", repetition {run.parameters['repeat'] + 1}" if run.parameters.get("repeat") else ""
    name = f"{run.parameters['model']} b{run.parameters['batch_size']} {what}{repeat}"
    return f"{name}  {progress or 'starting'}  {duration_text(elapsed)}"


def gpu_in_words(state: GpuState | None) -> str:
    """Return memory and utilisation of a GPU as NVML reports them."""
    if state is None:
        return ""
    busy = "" if state.busy_percent is None else f"  {state.busy_percent}% busy"
    return f"  {state.used_mib / 1024:.1f} of {state.total_mib / 1024:.0f} GiB{busy}"


def in_words(record: dict) -> str:
    """Return what was measured, with units, or why it was not."""
    _, epoch, speed, peak, metric, reason = row(record)
    if record["status"] != "ok":
        return reason
    unit = record.get("sample_unit") or "samples"
    words = (
        (epoch, f"{epoch} s/epoch"),
        (speed, f"{speed} {unit}/s"),
        (peak, f"{peak} MiB peak"),
        (metric, metric),
        (reason, f"Caution: {reason}"),
    )
    return ", ".join(word for value, word in words if value)


def ratios_in_words(record: dict, comparison: Comparison) -> str | None:
    """Return how many times as fast as fp32 a training is that has ended, or None where that is not known.

    Of an fp32 training it is what is now known of the others. On a CPU nothing is said: its times mean nothing.
    """
    from ..analysis.speedup import paired_ratio, paired_runs  # NumPy takes a while to load

    if record["status"] != "ok" or record.get("device_type") != "cuda":
        return None
    found = [read_run(path) for run in comparison for path in run.record_paths.values()]
    like = [one for one in found if one and comparison_key(one) == comparison_key(record)]
    words = []
    for precision in dict.fromkeys(one["precision"] for one in like):
        if precision == BASELINE or record["precision"] not in (precision, BASELINE):
            continue
        own, base = ([one for one in like if one["precision"] == name] for name in (precision, BASELINE))
        ratio = paired_ratio(paired_runs(own, base))
        if ratio and not (ratio["untrained"] or ratio["unlike"]):
            words.append(f"{precision} {ratio['ratio']:.2f}x (n = {ratio['processes']})")
    if not words:
        return None
    execution = "" if record.get("execution", "eager") == "eager" else f" {record['execution']}"
    return f"{record['model']} b{record['batch_size']}{execution}, times as fast as {BASELINE}: {', '.join(words)}"


def row(record: dict) -> tuple[str, ...]:
    """Return a record's cells of the final table: status, median epoch, speed, peak, last metric, reason."""
    seconds = [value for value in record.get("epoch_seconds") or () if value is not None]
    speed = record.get("samples_per_second")
    metric = [value for value in record.get("metric") or () if value is not None]
    peak = record.get("peak_allocated_mib")
    return (
        record["status"],
        f"{statistics.median(seconds):.3g}" if seconds else "",
        "" if speed is None else f"{speed:,.0f}",
        "" if peak is None else f"{peak:,.0f}",
        f"{record.get('metric_name')} {metric[-1]:.4g}" if metric else "",
        record.get("reason") or disturbance(record),
    )


def disturbance(record: dict) -> str:
    """Return that a run's data are made up, or that it was slowed so that its times do not count, or nothing."""
    made_up = f"made-up data, because {why}" if (why := why_made_up(record)) else ""
    flags = flags_of(record) if held_back(record) or record.get("gpu_shared") else []
    return "; ".join(filter(None, [made_up, *flags]))


def table(comparisons: Iterable[Comparison]) -> str:
    """Return all trainings as aligned lines of text."""
    rows: list[tuple[str, ...]] = [("training", "status", "epoch (s)", "samples/s", "peak (MiB)", "metric", "reason")]
    for path in (path for comparison in comparisons for run in comparison for path in run.record_paths.values()):
        record = read_run(path)
        rows.append((path.stem, *(row(record) if record else ("not run", "", "", "", "", ""))))
    widths = [max(len(line[column]) for line in rows) for column in range(6)]
    padded = [[word.ljust(width) for word, width in zip(line, widths, strict=False)] + [line[6]] for line in rows]
    return "\n".join("  ".join(line).rstrip() for line in padded)
