"""Section: energy, as joules per 1,000 samples."""

import pandas as pd

from ..judge.arms import energy_share
from ..store.record import SHORTEST_FOR_ENERGY
from .names import bare, in_way
from .panels import add_panels, timed_trainings
from .section import Section
from .tables import Tables
from .words import listed, short, span

ABOUT = f"""Joules per 1,000 samples are the median over runs of what the whole GPU used in timed epochs, without the
host. Percentages compare pairs on one card with TF32, or with fp32 where TF32 was not run. A run counts if it was
timed for at least {SHORTEST_FOR_ENERGY:g} s, because NVML counts in coarse steps."""


def energy_bars(tables: Tables) -> pd.DataFrame:
    """Return the median of joules per 1,000 samples (`value`), and the `share` of the `baseline`'s by pairs."""
    known = timed_trainings(tables).dropna(subset="joules")
    keys = ["comparison", "arm"]
    medians = tables.bars.set_index(keys).joules.rename("value")
    bars = known.drop_duplicates(keys).assign(baseline="").join(medians, on=keys)
    for base in tables.axis.bases:
        bars.loc[bars.comparison.isin(bars[bars.arm == base].comparison), "baseline"] = base
    sides = [
        [tables.runs(bar.comparison, name) for name in (bar.arm, bar.baseline)]
        for bar in bars.itertuples()
    ]
    return bars.assign(share=[energy_share(*runs) for runs in sides])


def finding(tables: Tables, bars: pd.DataFrame) -> str:
    """Return the title: the share of TF32's energy that AMP needs, in the format and way with most comparisons."""
    amp = bars[bars.arm.isin(tables.compared_arms)]
    sizes = amp.dropna(subset="share").groupby(["baseline", "arm", "way"]).size()
    if sizes.empty:
        return "Energy: joules per 1,000 samples"

    def weight(
        key: tuple,
    ) -> tuple:  # graphs are what is advised; of as many, TF32 and fp16 come first
        return sizes[key] * (2 if "graph" in key[2] else 1), key

    best = max(sizes.index, key=weight)
    own = amp.groupby(["baseline", "arm", "way"]).get_group(best)
    base, arm = map(tables.called, best[:2])
    what = " ".join(filter(None, (arm, in_way(best[2]), "needs")))
    if len(own) > 3 or own["name"].duplicated().any():
        shares = span([100 * share for share in own.share], "{:.0f}")
        return f"Energy: {what} {shares}% of {base}'s joules in {len(own)} comparisons"
    texts = [f"{row.share:.0%} for {bare(row.name)}" for row in own.itertuples()]
    texts[0] = texts[0].replace(" for", f" of {base}'s joules for", 1)
    return f"Energy: {what} {listed(texts, 'and')}"


def section(tables: Tables) -> Section:
    """Return the bars of energy; the section is absent where no run was long enough."""
    bars = energy_bars(tables) if len(tables.comparisons) else pd.DataFrame()
    if bars.empty:
        return Section("Energy")
    section = Section(finding(tables, bars), ABOUT)
    notes = ["" if pd.isna(share) else f"{share:.0%}" for share in bars.share]
    add_panels(section, bars.assign(label=bars.value.map(short) + " J", note=notes), "energy")
    return section
