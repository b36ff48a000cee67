"""Section: what fills the memory at the peak of training, and the memory of the whole card."""

import pandas as pd

from .growth import texts
from .names import bare
from .panels import add_panels, middle_runs, ok_trainings
from .section import Section
from .tables import Tables
from .words import listed, plain, span

ABOUT = """A bar is the memory at the peak of training by what it holds. Beside it stand PyTorch's peak without the data
set, which the report compares, and the whole card, which nvidia-smi shows. *Overhead* is what PyTorch's allocator had
reserved above the peak, and what CUDA and its libraries take."""
MEMORY_PARTS = {  # part of the memory: fields of the record, ledger_<name>_mib
    "weights, optimizer": ("parameters", "gradients", "optimizer", "masters"),
    "activations": ("activations",),
    "data set": ("data",),
    "overhead": ("slack", "context"),
}
# Neither of a precision nor of a step, and legible on light and dark pages.
PART_COLOURS = ("#8a7f1f", "#cfc66b", "#5f7f8f", "#8b939c60")
WARMS_UP_TO = 1.5  # times the peak of training: less is not worth a word


def memory_parts_of(record: dict) -> dict[str, float]:
    """Return {part: GiB} of a run.

    It is empty where a part is negative, or none is known but the overhead.
    """
    parts = {}
    for part, names in MEMORY_PARTS.items():
        known = [mib for name in names if (mib := record[f"ledger_{name}_mib"]) is not None]
        if min(known, default=0) < 0:
            return {}
        if known:
            parts[part] = sum(known) / 1024
    return parts if parts.keys() - {"overhead"} else {}


def finding(tables: Tables) -> str:
    """Return how far the compared arms change the peak of each model, against their base."""
    own = tables.ratios[tables.ratios.arm.isin(tables.compared_arms)].dropna(subset="saved")
    # the fair base comes last
    own = own.sort_values("base", key=lambda names: names.map(tables.axis.bases.index))
    own = own.drop_duplicates(["comparison", "arm"], keep="last")
    if own.empty or tables.on_cpu:
        return ""
    names = own.comparison.map(tables.comparisons["name"]).map(bare)
    changes = [
        f"{name} {span(list(-100 * saved), '{:+.0f}')}%"
        for name, saved in own.groupby(names, sort=False).saved
    ]
    bases = [tables.called(base) for base in tables.axis.bases if base in set(own.base)]
    return (
        f"Peak memory of {tables.subject or 'the compared arms'} against {listed(bases)}: "
        f"{', '.join(changes)}"
    )


def section(tables: Tables) -> Section:
    """Return the bars of what fills the memory; the section is absent where no run has a
    breakdown.
    """
    rows = ok_trainings(tables) if len(tables.comparisons) else pd.DataFrame()
    middle = (
        middle_runs(rows, lambda record: sum(memory_parts_of(record).values()))
        if len(rows)
        else rows
    )
    if middle.empty:
        return Section()
    section = Section("Memory", finding(tables), ABOUT)
    parts = pd.DataFrame(
        [memory_parts_of(record) for record in middle.record], middle.index, list(MEMORY_PARTS)
    )
    highest = rows.groupby(["comparison", "arm"])[["gib", "card_gib"]].max().add_prefix("most_")
    bars = middle.join(parts).join(highest, on=["comparison", "arm"])
    gib, card = (texts(bars[name], "{:,.2f}") for name in ("most_gib", "most_card_gib"))
    bars = bars.assign(label=[f"{one} GiB" for one in gib], note=[f"card {one}" for one in card])
    add_panels(
        section, bars, "memory_breakdown", dict(zip(MEMORY_PARTS, PART_COLOURS, strict=True))
    )
    warm = rows.assign(
        warm=[(record["peak_allocated_with_warmup_mib"] or 0) / 1024 for record in rows.record]
    )
    warm["growth"] = warm.warm / [
        (one["peak_allocated_mib"] or float("inf")) / 1024 for one in warm.record
    ]
    most = warm.loc[warm.growth.idxmax()]
    if most.growth >= WARMS_UP_TO:
        section.say(
            f"The warm-up takes up to {most.growth:.1f} times the peak of training, "
            "because cuDNN tries"
            f" its algorithms there: {most.warm:,.2f} GiB for {plain(most['name'])}."
        )
    return section
