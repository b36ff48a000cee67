"""What a person sees of a study while it runs: lines, a log file, and on a terminal a line per device and a bar."""

import logging
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..analysis.conditions import flags_of, held_back, why_made_up
from ..errors import printable
from ..files import opened_to_append
from ..gpu.nvml import GpuState
from ..record import comparison_key, is_explanation
from .estimates import duration_text
from .plan import Comparison, Run
from .process import read_record

LOG = logging.getLogger("mixed_precision.runner")
LOG.propagate = False
LOG.setLevel(logging.INFO)
logging.raiseExceptions = False  # a full disk must not end the study when its log is written
DRAW_SECONDS = 1.0  # between two updates of the view on a terminal
PLAIN_SECONDS = 60  # the same as lines of text
COLUMNS = 80  # of a terminal
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
    """A bar for the study and a line for each device on a terminal; elsewhere lines of text every 10 minutes."""

    def __init__(self, study: str, total: int, labels: Iterable[str], wanted: bool):
        self.study = study
        self.quiet = not wanted or not sys.stderr.isatty() or not total
        self.drawn = time.monotonic() if self.quiet else 0.0
        style = {"disable": self.quiet, "dynamic_ncols": True}
        self.bar = tqdm(total=total, desc=study, unit="run", **style)
        self.lines = {
            label: tqdm(position=number, bar_format="{desc}", total=0, leave=False, **style)
            for number, label in enumerate(labels, 1)
        }

    def begin(self, text: str) -> None:
        """Note in the log that a run begins, and say so where nothing is drawn."""
        say(text, to_terminal=self.quiet)

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
            line.set_description_str(cut(f"{label}  {texts.get(label, '-')}"), refresh=True)
        self.bar.set_postfix_str(end_in_words(seconds_left), refresh=True)

    def close(self) -> None:
        for line in self.lines.values():
            line.close()
        self.bar.close()


def end_in_words(seconds: float | None) -> str:
    """Return the expected end as a time of day."""
    if seconds is None:
        return "end: known after the first run"
    return f"{duration_text(seconds)} left, end about {datetime.fromtimestamp(time.time() + seconds):%H:%M}"


def fits(label: str, *texts: str) -> bool:
    """Return whether the line of a device fits a terminal of COLUMNS."""
    return len(label) + 2 + sum(map(len, texts)) < COLUMNS


def cut(line: str) -> str:
    """Return a line that fits a terminal of COLUMNS."""
    line = printable(line)
    return line if len(line) < COLUMNS else f"{line[: COLUMNS - 2]}…"


def run_in_words(run: Run, progress: str, elapsed: float, left: float | None, processes: int = 1) -> str:
    """Return how far a run is: its short name, epoch and step or cell, time so far, and seconds left (None: not known).

    `processes` is how many the comparison has of this precision. The line should fit 80 columns, so it repeats nothing.
    The log has the whole name.
    """
    rest = "" if left is None else f", {duration_text(left)} left"
    steps = progress.partition(", ")[2].removeprefix(f"{run.precision}, ")
    where = steps or progress or "starting"
    return f"{short_name(run, processes)}  {where}  {duration_text(elapsed)}{rest}"


def short_name(run: Run, processes: int = 1) -> str:
    """Return model, precision, batch size, and which of the processes of this precision the run is."""
    name = f"{run.parameters['model']} {run.precision} b{run.parameters['batch_size']}"
    if run.parameters.get("purpose") == "explain":
        return f"{name} explained"
    if processes > 1:
        return f"{name}, {run.parameters.get('repeat', 0) + 1} of {processes}"
    return name


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
    """Return how many times as fast as fp32 a run that has ended is, or None where that is not known.

    Of an fp32 run it is what is now known of the others. On a CPU nothing is said: its times mean nothing.
    """
    from ..analysis.speedup import paired_ratio, paired_runs  # NumPy takes a while to load

    if record["status"] != "ok" or record.get("device_type") != "cuda" or is_explanation(record):
        return None
    found = [read_record(run.record_path) for run in comparison]
    like = [one for one in found if one and comparison_key(one) == comparison_key(record)]
    words = []
    for precision in dict.fromkeys(one["precision"] for one in like):
        if precision == BASELINE or record["precision"] not in (precision, BASELINE):
            continue
        own, base = ([one for one in like if one["precision"] == name] for name in (precision, BASELINE))
        ratio = paired_ratio(paired_runs(own, base))
        if ratio and not (ratio["untrained"] or ratio["unlike"]):
            count = "one process" if ratio["processes"] == 1 else f"{ratio['processes']} processes"
            words.append(f"{precision} {ratio['ratio']:.2f}x ({count})")
    if not words:
        return None
    execution = "" if record.get("execution", "eager") == "eager" else f" {record['execution']}"
    return f"{record['model']} b{record['batch_size']}{execution}, times as fast as {BASELINE}: {', '.join(words)}"


def row(record: dict) -> tuple[str, ...]:
    """Return a record's cells of the final table: status, median epoch, speed, peak, last metric, reason."""
    seconds = [value for value in record.get("epoch_seconds") or () if value is not None]
    speed = record.get("samples_per_second")
    if record.get("purpose") == "explain":  # its few steps are compared with nothing
        seconds = []
        speed = None
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
    """Return all runs as aligned lines of text."""
    rows: list[tuple[str, ...]] = [("run", "status", "epoch (s)", "samples/s", "peak (MiB)", "metric", "reason")]
    for run in (run for comparison in comparisons for run in comparison):
        record = read_record(run.record_path)
        rows.append((run.run_id, *(row(record) if record else ("not run", "", "", "", "", ""))))
    widths = [max(len(line[column]) for line in rows) for column in range(6)]
    padded = [[word.ljust(width) for word, width in zip(line, widths, strict=False)] + [line[6]] for line in rows]
    return "\n".join("  ".join(line).rstrip() for line in padded)
