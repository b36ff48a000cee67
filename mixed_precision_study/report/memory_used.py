"""Section: what fills the memory at the peak of training, and the memory of the whole card."""

import pandas as pd

from .growth import texts
from .names import bare
from .panels import add_panels, middle_runs, ok_trainings
from .section import Section
from .tables import Tables
from .words import listed, span

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
LEAST_SAVING = 0.05  # a smaller saving is not worth a word
WARMS_UP_TO = 1.5  # times the peak of training: less is not worth a word


def memory_parts_of(record: dict) -> dict[str, float]:
    """Return {part: GiB} of a run. It is empty where a part is negative, or none is known but the overhead."""
    parts = {}
    for part, names in MEMORY_PARTS.items():
        known = [mib for name in names if (mib := record[f"ledger_{name}_mib"]) is not None]
        if min(known, default=0) < 0:
            return {}
        if known:
            parts[part] = sum(known) / 1024
    return parts if parts.keys() - {"overhead"} else {}


def finding(tables: Tables, rows: pd.DataFrame) -> str:
    """Return the title: how much of the peak AMP saves, for which models, and for which it saves nothing."""
    if tables.ratios.empty or tables.on_cpu or not tables.subject:
        return "Memory: what fills it"
    found = tables.ratios[tables.ratios.arm.isin(tables.compared_arms)].dropna(subset="saved")
    # TF32, else fp32
    found = found.sort_values("base").drop_duplicates(["comparison", "arm"], keep="last")
    found["model"] = found.comparison.map(rows.groupby("comparison")["name"].first().map(bare))
    saved = (
        found.groupby("model")
        .saved.agg(["min", "max"])
        .reindex(rows["name"].map(bare).unique())
        .dropna()
    )
    less = saved[saved["min"] >= LEAST_SAVING]
    same = saved[saved["max"].abs().combine(saved["min"].abs(), max) < LEAST_SAVING]
    if less.empty:
        return "Memory: what fills it"
    texts = [
        f"{span([100 * row.min, 100 * row.max], '{:.0f}')}% for {row.Index}"
        for row in less.itertuples()
    ]
    if len(texts) > 3:
        ends = span([100 * less["min"].min(), 100 * less["max"].max()], "{:.0f}")
        texts = [f"{ends}% for {len(less)} of {len(saved)} models"]
    title = f"Memory: {tables.subject} saves {listed(texts, 'and')}"
    return (
        f"{title}, but nothing for {listed(list(same.index), 'and')}"
        if 0 < len(same) <= 2
        else title
    )


def section(tables: Tables) -> Section:
    """Return the bars of what fills the memory; the section is absent where no run has a breakdown."""
    rows = ok_trainings(tables) if len(tables.comparisons) else pd.DataFrame()
    middle = (
        middle_runs(rows, lambda record: sum(memory_parts_of(record).values()))
        if len(rows)
        else rows
    )
    if middle.empty:
        return Section("Memory")
    section = Section(finding(tables, rows), ABOUT)
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
            f"The warm-up takes up to {most.growth:.1f} times the peak of training, because cuDNN tries its algorithms "
            f"there: {most.warm:,.2f} GiB for {most['name']}."
        )
    return section
