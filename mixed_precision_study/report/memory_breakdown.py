"""Section: what fills the memory."""

from collections import Counter

from matplotlib.lines import Line2D

from .bars import draw_stacks, gap_reasons, middle_runs
from .layout import name_of, panels, shown_in
from .section import Section
from .style import BREAKDOWN_STYLES, COMPONENTS, DIAMOND, part_handles
from .theme import chart_style
from .verdicts import say_missing
from .words import count, short


def ledger_of(record):
    """Return {component: GiB} of a run, empty where it has no ledger."""
    parts = {label: record[f"ledger_{name}_mib"] for name, label in COMPONENTS.items()}
    return {label: max(0, mib) / 1024 for label, mib in parts.items() if mib is not None}


def used_by_run(record):
    """Return the GiB that the device's use rose by, as NVML has it, or None."""
    sides = record["device_used_mib"], record["device_used_before_mib"]
    return None if None in sides else (sides[0] - sides[1]) / 1024


def runs_in_ledger(report):
    """Return {(comparison number, precision): the middle run of those with a ledger}."""
    return middle_runs(report, lambda record: sum(ledger_of(record).values()))


@chart_style()
def section(report):
    """Return the chart of what fills the memory, and what is largest in it."""
    section = Section()
    in_ledger = runs_in_ledger(report)
    ledgers = {key: ledger_of(record) for key, record in in_ledger.items()}
    nvml = {key: used for key, record in in_ledger.items() if (used := used_by_run(record)) is not None}
    if ledgers:
        styles = {
            part: style
            for part, style in BREAKDOWN_STYLES.items()
            if any(parts.get(part) for parts in ledgers.values())
        }
        handles = part_handles(styles) + [Line2D([], [], **DIAMOND, label="the run's use by NVML")] * bool(nvml)
        figure, place_images = panels(report, "Memory ledger", 2.9, handles)
        least = {
            key: "" if record["ledger_context_mib"] is not None else "\u2265 " for key, record in in_ledger.items()
        }
        labels = {key: least[key] + short(sum(parts.values())) for key, parts in ledgers.items()}
        for number, (axes,) in place_images:
            draw_stacks(
                report, axes, number, BREAKDOWN_STYLES, ledgers, gap_reasons(report, "ledger_reason"), labels, 7
            )
            axes.set_ylabel("GiB")
            for x, precision in enumerate(shown_in(report, number)):
                if (number, precision) in ledgers.keys() & nvml.keys():
                    axes.plot(x, nvml[number, precision], **DIAMOND)
        section.chart(figure, "memory_ledger")
        fullest = {key: max(parts, key=parts.get) for key, parts in ledgers.items()}
        text = ", ".join(f"{part} in {number}" for part, number in Counter(fullest.values()).most_common())
        share = {key: ledgers[key][part] / sum(ledgers[key].values()) for key, part in fullest.items()}
        most = max(share, key=share.get)
        text += f"; the highest share is that of **{fullest[most]}**: **{share[most]:.0%}** ({name_of(report, *most)})"
        section.say(f"The largest component of {count(len(ledgers), 'bar')}: {text}.")
        errors = [abs(r["ledger_error_fraction"]) for _, r in report.timed if r["ledger_error_fraction"] is not None]
        section.say(
            f"The ledger's sum differs from NVML's figure by {max(errors):.1%} at most."
            if errors
            else "NVML gave no figure."
        )
    say_missing(section, report, "A memory ledger", "ledger_activations_mib", "ledger_reason")
    return section
