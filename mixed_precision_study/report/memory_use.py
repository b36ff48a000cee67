"""Section: peak of memory, and throughput."""

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..record import samples_in_epoch
from .bars import bar_chart, pool, read_extremes
from .comparisons import ok_runs
from .layout import name_of, rate_unit
from .section import Section
from .style import DIAMOND, FOOT, PRECISIONS
from .theme import chart_style
from .words import short, span


def gib(name):
    """Return a reader of one field in GiB."""
    return lambda record: [record[name] / 1024] if record[name] is not None else []


def memory_saved(group, precision, baseline):
    """Return the percentage of the baseline's peak that is saved, both less the data on the device; None if unknown."""
    peaks = []
    for name in (precision, baseline):
        runs = [record for record in ok_runs(group, name) if record["peak_allocated_mib"] is not None]
        peaks.append(max([run["peak_allocated_mib"] - (run["data_on_device_mib"] or 0) for run in runs], default=0))
    return 100 * (1 - peaks[0] / peaks[1]) if min(peaks) > 0 else None


def rates(record):
    """Return the samples per second of every timed epoch."""
    samples = samples_in_epoch(record)
    return [samples / seconds for seconds in record["epoch_seconds"] if samples]


@chart_style()
def section(report):
    """Return the charts of memory and throughput, and what they say."""
    section = Section()
    draw_memory(section, report)
    draw_throughput(section, report)
    return section


def draw_memory(section, report):
    """Draw the peak of PyTorch and of the whole device."""
    kept = pool(report, gib("data_on_device_mib"), max)
    bars = {
        key: (bar[0], bar[0], max(bar[0], report.whole.get(key, bar)[0]), bar[3]) for key, bar in report.peaks.items()
    }
    values = {
        key: f"{short(report.peaks[key][0])}\n({short(report.whole[key][0])})"
        for key in report.peaks
        if key in report.whole
    }
    extra = [Line2D([], [], **DIAMOND, label="(whole device, by NVML)")] if report.whole else []
    extra += [Patch(**FOOT, label="the data set in it")] if any(bar[0] for bar in kept.values()) else []
    figure, places = bar_chart(report, "Peak memory", lambda group: "GiB", bars, "runs", values=values, extra=extra)
    for key, (axes, x, width) in places.items():
        if key in kept:
            axes.bar(x, kept[key][0], 0.92 * width, **FOOT)
        if key in report.whole:
            axes.plot(x, report.whole[key][0], **DIAMOND)
    section.chart(figure, "peak_memory")
    read_extremes(section, report, report.peaks, lambda group: "GiB")
    for precision in list(PRECISIONS)[1:]:
        shares = [memory_saved(group, precision, "fp32") for group in report.comparisons]
        shares = [round(share) for share in shares if share is not None]
        if shares:
            section.say(f"{precision} saves **{span(shares, '{}%')}** of fp32's peak, the data set apart.")
    above = [report.whole[key][0] - report.peaks[key][0] for key in report.peaks if key in report.whole]
    if above:
        section.say(f"The whole device stands {span(above, '{:.2f}')} GiB above PyTorch's peak.")
    searched = pool(report, gib("peak_allocated_with_warmup_mib"), max)
    grown = {key: bar[0] / report.peaks[key][0] for key, bar in searched.items() if key in report.peaks}
    if grown:
        most = max(grown, key=grown.get)
        text = f"up to {grown[most]:.1f} times the peak of training: {short(searched[most][0])} GiB"
        text += f" ({name_of(report, *most)})"
        section.say(f"The warm-up, in which cuDNN tries its algorithms, takes {text}.")


def draw_throughput(section, report):
    """Draw the samples per second."""
    throughput = pool(report, rates)
    figure, _ = bar_chart(report, "Throughput of training", rate_unit, throughput, "epochs")
    section.chart(figure, "throughput")
    read_extremes(section, report, throughput, rate_unit)
