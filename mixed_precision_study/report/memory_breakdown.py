"""Section: what fills the memory."""

from matplotlib.lines import Line2D

from .bars import draw_stacks, gap_reasons, middle_runs
from .layout import name_of, panels, shown_in
from .report import Key, Report
from .section import Section
from .style import DIAMOND, MEMORY_STYLES, part_patches
from .theme import chart_style
from .verdicts import say_missing
from .words import count, plain, short, tally

TITLE = "What fills the memory"
ABOUT = """The memory at the peak, by what it holds. Parameters, gradients, optimizer state and fp32 master copies
are counted tensor by tensor; activations and workspace are the rest of PyTorch's peak. Slack is what its
allocator had reserved above that. The context belongs to CUDA and its libraries. The diamond is the same
sum as the driver reports it."""

FIELDS = ("parameters", "gradients", "optimizer", "masters", "data", "activations", "slack", "context")


def memory_parts_of(record: dict) -> dict[str, float]:
    """Return {part: GiB} of a run, empty where it has none, or one with a negative part."""
    values = [record[f"ledger_{name}_mib"] for name in FIELDS]
    if any(mib is not None and mib < 0 for mib in values):
        return {}
    return {part: mib / 1024 for part, mib in zip(MEMORY_STYLES, values, strict=True) if mib is not None}


def used_by_run(record: dict) -> float | None:
    """Return by how many GiB the run raised the device's use, according to NVML, or None."""
    used, before = record["device_used_mib"], record["device_used_before_mib"]
    return None if used is None or before is None else (used - before) / 1024


def runs_with_breakdown(report: Report) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle run of those with a memory breakdown}."""
    return middle_runs(report, lambda record: sum(memory_parts_of(record).values()))


@chart_style()
def section(report: Report) -> Section:
    """Return the chart of what fills the memory, and sentences on it."""
    section = Section(TITLE, ABOUT)
    runs = runs_with_breakdown(report)
    if runs:
        draw_breakdowns(section, report, runs)
        say_largest_parts(section, report, {key: memory_parts_of(record) for key, record in runs.items()})
    say_missing(section, report, "The memory breakdown", "ledger_activations_mib", "ledger_reason")
    return section


def draw_breakdowns(section: Section, report: Report, runs: dict[Key, dict]) -> None:
    """Draw what fills the memory of some runs. A sum without the context is a lower bound."""
    stacks = {key: memory_parts_of(record) for key, record in runs.items()}
    nvml = {key: used for key, record in runs.items() if (used := used_by_run(record)) is not None}
    styles = {name: style for name, style in MEMORY_STYLES.items() if any(parts.get(name) for parts in stacks.values())}
    handles: list = part_patches(styles)
    if nvml:
        handles.append(Line2D([], [], **DIAMOND, label="the run's use by NVML"))
    labels = {key: short(sum(parts.values())) for key, parts in stacks.items()}
    for key, record in runs.items():
        if record["ledger_context_mib"] is None:
            labels[key] = "\u2265 " + labels[key]
    gaps = gap_reasons(report, "ledger_reason")
    figure, placed = panels(report, "Memory breakdown", 2.9, handles)
    for number, (axes,) in placed:
        draw_stacks(report, axes, number, MEMORY_STYLES, stacks, gaps, labels, lift=7)
        axes.set_ylabel("GiB")
        for x, precision in enumerate(shown_in(report, number)):
            if (number, precision) in nvml:
                axes.plot(x, nvml[number, precision], **DIAMOND)
    section.chart(figure, "memory_ledger")


def say_largest_parts(section: Section, report: Report, stacks: dict[Key, dict[str, float]]) -> None:
    """Say which part is the largest, and how near the sums come to NVML's figures."""
    largest = {key: max(parts, key=parts.__getitem__) for key, parts in stacks.items()}
    shares = {key: stacks[key][part] / sum(stacks[key].values()) for key, part in largest.items()}
    most = max(shares, key=shares.__getitem__)
    text = f"**{largest[most]}** with **{shares[most]:.0%}** ({name_of(report, *most)})"
    parts = tally(largest.values())
    section.say(f"The largest component of {count(len(stacks), 'bar')}: {parts}; the highest share has {text}.")
    errors = [abs(r["ledger_error_fraction"]) for _, r in report.timed if r["ledger_error_fraction"] is not None]
    if errors:
        text = f"Peak, slack and context together differ from NVML's figure by {max(errors):.1%} at most."
        section.say(f"{text} This tests what the allocator has reserved, not the parts of the peak.")
    else:
        section.say("NVML gave no figure.")
    say_blocks(section, report)


def say_blocks(section: Section, report: Report) -> None:
    """Say how far the parts of the peak were confirmed by the live blocks of an eager step."""
    checked = [run for run in report.timed if run[1]["ledger_unattributed_fraction"] is not None]
    if not checked:
        section.say("The parts of the peak were not checked by blocks of memory in any run.")
        return
    most = max(record["ledger_unattributed_fraction"] for _, record in checked)
    right = [run for run in checked if not run[1]["ledger_blocks_reason"]]
    text = f"In {len(right)} of {count(len(checked), 'run')} the live blocks at the peak confirm the parts"
    section.say(f"{text}; at most {most:.1%} of a peak belongs to nothing known.")
    for number, record in checked:
        if record["ledger_blocks_reason"]:
            name = name_of(report, number, record["precision"])
            section.say(f"Do not trust the parts of {name}: {plain(record['ledger_blocks_reason'])}.")
