"""Section: inference."""

import statistics

from .bars import bar_chart, pool, read_extremes
from .layout import rate_unit
from .section import Section
from .theme import chart_style
from .verdicts import run_row, said_once, say_missing
from .words import short, span


def sample_unit(group):
    return "columns of text per second" if rate_unit(group).startswith("tokens") else rate_unit(group)


def find_latency(report):
    """Return what pool() returns of the latency of one sample, from its p10 to its p90."""
    latency, fastest, slowest = (
        pool(report, lambda run, name=name: [run[f"inference_{name}"]], height)
        for name, height in (
            ("latency_ms", statistics.median),
            ("latency_ms_p10", min),
            ("latency_ms_p90", max),
        )
    )
    return {key: (bar[0], fastest.get(key, bar)[0], slowest.get(key, bar)[0], bar[3]) for key, bar in latency.items()}


@chart_style()
def section(report):
    """Return the charts and the table of inference."""
    section = Section()
    say_missing(section, report, "Inference", "inference_latency_ms", "inference_reason")
    served = pool(report, lambda run: [run["inference_samples_per_second"]])
    if report.latency:
        figure, _ = bar_chart(report, "Latency of one sample", lambda group: "ms", report.latency, "runs")
        section.chart(figure, "inference_latency")
        read_extremes(section, report, report.latency, lambda group: "ms")
        figure, _ = bar_chart(report, "Throughput of inference", sample_unit, served, "runs")
        section.chart(figure, "inference_throughput")
        read_extremes(section, report, served, sample_unit)
        rows = []
        for number, run in report.timed:
            if run["inference_latency_ms"] is not None:
                peak, apart = run["inference_memory_mib"], run["inference_difference_fraction"]
                low, high = run["inference_latency_ms_p10"], run["inference_latency_ms_p90"]
                figures = {"latency, ms": short(run["inference_latency_ms"])}
                figures["p10 to p90, ms"] = span([low, high], "{:.3g}") if low and high else "-"
                figures["samples per second"] = short(run["inference_samples_per_second"] or 0)
                figures["memory, GiB"] = "-" if peak is None else short(peak / 1024)
                figures["apart from fp32"] = "-" if apart is None else f"{100 * apart:.2g}%"
                rows.append(run_row(report, number, run, **figures))
        section.table(said_once(rows), "Inference of every run")
    return section
