"""Section: peak of memory, and throughput."""

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..record import samples_in_epoch
from .bars import Read, bar_chart, pool, say_extremes, values_of
from .comparisons import ok_runs
from .layout import name_of, rate_unit
from .report import Report
from .section import Section
from .style import DATA_SET_STYLE, DIAMOND, PRECISIONS
from .theme import chart_style
from .words import short, span

TITLE = "Memory and throughput"
ABOUT = """A bar is the largest peak of what PyTorch had allocated in the timed steps. Its pale foot is the data set
kept on the GPU, which no precision makes smaller.
The diamond is the whole GPU as NVML sees it after training. Throughput is samples per epoch divided by its time."""


def gib(field: str) -> Read:
    """Return a reader of one field in GiB for pool()."""
    return values_of(field, scale=1024)


def memory_saved(group: dict, precision: str, baseline: str) -> float | None:
    """Return the percentage of the baseline's peak that is saved, both less the data on the device; None if unknown."""
    peaks = []
    for name in (precision, baseline):
        runs = [record for record in ok_runs(group, name) if record["peak_allocated_mib"] is not None]
        peaks.append(max([run["peak_allocated_mib"] - (run["data_on_device_mib"] or 0) for run in runs], default=0))
    return 100 * (1 - peaks[0] / peaks[1]) if min(peaks) > 0 else None


def rates(record: dict) -> list[float]:
    """Return the samples per second of every timed epoch."""
    samples = samples_in_epoch(record)
    return [samples / seconds for seconds in record["epoch_seconds"] if samples]


@chart_style()
def section(report: Report) -> Section:
    """Return the charts of memory and throughput, and sentences on them."""
    section = Section(TITLE, ABOUT)
    draw_memory(section, report)
    say_memory(section, report)
    draw_throughput(section, report)
    return section


def draw_memory(section: Section, report: Report) -> None:
    """Draw the peak of PyTorch and of the whole device."""
    data = pool(report, gib("data_on_device_mib"), max)
    bars = {}
    values = {}
    for key, (peak, _, _, n) in report.peaks.items():
        bars[key] = (peak, peak, peak, n)
        if key in report.whole:
            whole = report.whole[key][0]
            bars[key] = (peak, peak, max(peak, whole), n)
            values[key] = f"{short(peak)}\n({short(whole)})"
    extra: list[Line2D | Patch] = []
    if report.whole:
        extra.append(Line2D([], [], **DIAMOND, label="(whole device, by NVML)"))
    if any(bar[0] for bar in data.values()):
        extra.append(Patch(**DATA_SET_STYLE, label="the data set in it"))
    figure, places = bar_chart(report, "Peak memory", lambda group: "GiB", bars, "runs", values=values, extra=extra)
    for key, (axes, x, width) in places.items():
        if key in data:
            axes.bar(x, data[key][0], 0.92 * width, **DATA_SET_STYLE)
        if key in report.whole:
            axes.plot(x, report.whole[key][0], **DIAMOND)
    section.chart(figure, "peak_memory")


def say_memory(section: Section, report: Report) -> None:
    """Say what the precisions save, and what the device and the warm-up take beyond the peak of training."""
    say_extremes(section, report, report.peaks, lambda group: "GiB")
    for precision in list(PRECISIONS)[1:]:
        shares = [memory_saved(group, precision, "fp32") for group in report.comparisons]
        known = [round(share) for share in shares if share is not None]
        if known:
            section.say(f"{precision} saves **{span(known, '{}%')}** of fp32's peak, not counting the data set.")
    above = [report.whole[key][0] - report.peaks[key][0] for key in report.peaks if key in report.whole]
    if above:
        section.say(f"The whole device uses {span(above, '{:.2f}')} GiB more than PyTorch's peak.")
    warm_up = pool(report, gib("peak_allocated_with_warmup_mib"), max)
    growth = {key: bar[0] / report.peaks[key][0] for key, bar in warm_up.items() if key in report.peaks}
    if growth:
        most = max(growth, key=growth.__getitem__)
        text = f"up to {growth[most]:.1f} times the peak of training: {short(warm_up[most][0])} GiB"
        section.say(f"The warm-up, in which cuDNN tries its algorithms, takes {text} ({name_of(report, *most)}).")


def draw_throughput(section: Section, report: Report) -> None:
    """Draw the samples per second."""
    throughput = pool(report, rates)
    figure, _ = bar_chart(report, "Throughput of training", rate_unit, throughput, "epochs")
    section.chart(figure, "throughput")
    say_extremes(section, report, throughput, rate_unit)
