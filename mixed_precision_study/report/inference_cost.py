"""Section: inference."""

from .bars import bar_chart, pool, values_in_words, values_of, with_shares
from .layout import MANY, rate_unit
from .report import Bar, Key, Report
from .section import Section
from .verdicts import row_of_run, said_once, say_missing
from .words import short, span

TITLE = "Inference"
ABOUT = """One forward pass of the trained model in its own precision. Latency: a single sample, median, with a
whisker from p10 to p90. Throughput: a batch as in training."""


def sample_unit(group: dict) -> str:
    """Return the unit of the throughput of inference."""
    return "columns of text per second" if rate_unit(group).startswith("tokens") else rate_unit(group)


def find_latency(report: Report) -> dict[Key, Bar]:
    """Return the bars of the latency of one sample in milliseconds, from its p10 to its p90."""
    fastest = pool(report, values_of("inference_latency_ms_p10"), min)
    slowest = pool(report, values_of("inference_latency_ms_p90"), max)
    latency = {}
    for key, bar in pool(report, values_of("inference_latency_ms")).items():
        latency[key] = (bar[0], fastest.get(key, bar)[0], slowest.get(key, bar)[0], bar[3])
    return latency


def inference_row(report: Report, number: int, run: dict) -> dict:
    """Return what inference costs in a run as a row of the table."""
    peak, difference = run["inference_memory_mib"], run["inference_difference_fraction"]
    low, high = run["inference_latency_ms_p10"], run["inference_latency_ms_p90"]
    row = {
        "latency, ms": short(run["inference_latency_ms"]),
        "p10 to p90, ms": span([low, high], "{:.3g}") if low and high else "-",
        "samples per second": short(run["inference_samples_per_second"] or 0),
        "memory, GiB": "-" if peak is None else short(peak / 1024),
        "apart from fp32": "-" if difference is None else f"{100 * difference:.2g}%",
    }
    return row_of_run(report, report.comparisons[number], run, **row)


def section(report: Report) -> Section:
    """Return the charts and the table of inference."""
    section = Section(TITLE, ABOUT)
    say_missing(section, report, "Inference", "inference_latency_ms", "inference_reason")
    if report.latency:
        if len(report.charted) <= 2 * MANY:
            draw_inference(section, report)
        rows = [inference_row(report, *run) for run in report.timed if run[1]["inference_latency_ms"] is not None]
        section.table(said_once(rows), "Inference of every run")
    return section


def draw_inference(section: Section, report: Report) -> None:
    """Draw latency and throughput."""
    title = with_shares("Latency of one sample", report, report.latency)
    figure, _ = bar_chart(report, title, lambda group: "ms", report.latency, "runs")
    section.chart(figure, "inference_latency", values_in_words(report, report.latency, lambda group: "ms"))
    served = pool(report, values_of("inference_samples_per_second"))
    title = with_shares("Throughput of inference", report, served)
    figure, _ = bar_chart(report, title, sample_unit, served, "runs")
    section.chart(figure, "inference_throughput", values_in_words(report, served, sample_unit))
