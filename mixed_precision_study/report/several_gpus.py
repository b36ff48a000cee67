"""Section: equal runs on several GPU models, side by side."""

from .comparisons import families
from .report import Report
from .section import Section
from .time_and_memory import draw_rows
from .words import count

TITLE = "Several GPUs"
ABOUT = """The same runs on each GPU. Hosts differ too: where the GPU waits for the CPU, the host sets the time."""
MOST = 6  # comparisons in the chart


def section(report: Report) -> Section:
    """Return the bars of each comparison that ran on more than one GPU model, a row each."""
    section = Section(TITLE, ABOUT)
    alike = families([report.comparisons[number] for number in report.charted], "gpu_name")
    rows = [[report.comparisons.index(group) for group in groups] for groups in alike if len(groups) > 1]
    if rows:
        draw_rows(section, report, rows[:MOST], "Time and memory on each GPU", "several_gpus")
    if len(rows) > MOST:
        section.say(f"The chart shows {MOST} of {count(len(rows), 'comparison')}; the table has them all.")
    return section
