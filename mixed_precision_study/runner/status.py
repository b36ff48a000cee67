"""What a person sees of a batch while it runs: lines, a log file, and on a terminal one line a device and a bar."""

import logging
import statistics
import sys
import time
from contextlib import contextmanager, suppress
from datetime import datetime

from tqdm import tqdm

from .estimates import in_time
from .process import read_record

LOG = logging.getLogger("mixed_precision.batch")
LOG.propagate = False
LOG.setLevel(logging.INFO)
logging.raiseExceptions = False  # a full disk must not end a batch by way of its log
SECONDS = 1.0  # between two looks at the devices
PLAIN_SECONDS = 600  # the same, where a look becomes lines


def say(text):
    """Print one line above the live view, at once also where the output is a file, and add it to the log."""
    LOG.info(text)
    tqdm.write(text)
    sys.stdout.flush()


class TolerantStream:
    """A stream whose reader may go away, as a terminal or a pipe does: what can no longer be shown is dropped."""

    def __init__(self, stream):
        self.stream = stream
        stream.reconfigure(errors="backslashreplace")  # a letter that the terminal lacks must not end a batch

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


@contextmanager
def log_in(folder):
    """Have everything that is said within this block also written to logs/batch.log below `folder`, with the time."""
    handler = logging.FileHandler(folder / "logs" / "batch.log", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        handler.close()


class View:
    """The bar of a batch and a line for each of its devices, drawn on a terminal; elsewhere said now and then."""

    def __init__(self, study, total, labels, wanted):
        quiet = not wanted or not sys.stderr.isatty() or not total
        style = {"disable": quiet, "leave": False, "dynamic_ncols": True}
        self.bar = tqdm(total=total, desc=study, unit="run", **{**style, "leave": True})
        form = {"bar_format": "{desc}", "total": 0}
        self.lines = {label: tqdm(position=number, **form, **style) for number, label in enumerate(labels, 1)}
        self.study, self.quiet, self.looked = study, quiet, time.monotonic() if quiet else 0.0

    def begin(self, text):
        """Note in the log that a run begins; where nothing is drawn, say so as well."""
        (say if self.quiet else LOG.info)(text)

    def due(self):
        """Return whether the view is to be drawn anew."""
        return time.monotonic() - self.looked > (PLAIN_SECONDS if self.quiet else SECONDS)

    def draw(self, texts, seconds_left):
        """Show {label: text} of the devices and when the batch is expected to end; None: that cannot be said yet."""
        self.looked = time.monotonic()
        if self.quiet:
            for label, text in texts.items():
                say(f"{label}  {text}")
            say(f"{self.study}: {end_in_words(seconds_left)}")
            return
        for label, line in self.lines.items():
            line.set_description_str(f"{label}  {texts.get(label, '-')}", refresh=True)
        self.bar.set_postfix_str(end_in_words(seconds_left), refresh=True)

    def close(self):
        for line in self.lines.values():
            line.close()
        self.bar.close()


def end_in_words(seconds):
    """Return the expected end as a time of day."""
    if seconds is None:
        return "end: known after the first run"
    return f"{in_time(seconds)} left, end about {datetime.fromtimestamp(time.time() + seconds):%H:%M}"


def run_in_words(run_id, progress, elapsed, left):
    """Return how far a run is: its cell and step, its time and the seconds that are left (None: not known)."""
    still = "" if left is None else f", about {in_time(left)} left"
    return f"{run_id}  {progress or 'starting'}  {in_time(elapsed)}{still}"


def gpu_in_words(state):
    """Return memory and utilisation of a GPU as NVML has them (a nvml.State or None)."""
    busy = "" if not state or state.busy_percent is None else f"  {state.busy_percent}% busy"
    return f"  {state.used_mib / 1024:.1f} of {state.total_mib / 1024:.0f} GiB{busy}" if state else ""


def in_words(record):
    """Return what was measured, with units, or why it was not."""
    _, epoch, speed, peak, metric, reason = row(record)
    unit = record.get("sample_unit") or "samples"
    words = ((epoch, f"{epoch} s/epoch"), (speed, f"{speed} {unit}/s"), (peak, f"{peak} MiB peak"), (metric, metric))
    return ", ".join(word for value, word in words if value) if record["status"] == "ok" else reason


def row(record):
    """Return the cells of one record in the final table: status, median epoch, speed, peak, last metric, reason."""
    seconds = [value for value in record.get("epoch_seconds") or () if value is not None]
    metric = [value for value in record.get("metric") or () if value is not None][-1:]
    speed, peak = record.get("samples_per_second"), record.get("peak_allocated_mib")
    return (
        record["status"],
        f"{statistics.median(seconds):.3g}" if seconds else "",
        "" if speed is None else f"{speed:,.0f}",
        "" if peak is None else f"{peak:,.0f}",
        f"{record.get('metric_name')} {metric[0]:.4g}" if metric else "",
        record.get("reason") or "",
    )


def table(comparisons):
    """Return all runs as aligned lines of text."""
    rows = [("run", "status", "epoch (s)", "samples/s", "peak (MiB)", "metric", "reason")]
    for run in (run for comparison in comparisons for run in comparison):
        record = read_record(run.record_path)
        rows.append((run.run_id, *(row(record) if record else ("not run", "", "", "", "", ""))))
    widths = [max(len(line[column]) for line in rows) for column in range(6)]
    padded = [[word.ljust(width) for word, width in zip(line, widths, strict=False)] + [line[6]] for line in rows]
    return "\n".join("  ".join(line).rstrip() for line in padded)
