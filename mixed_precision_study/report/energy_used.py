"""Section: energy, as joules per 1,000 samples."""

import pandas as pd

from ..judge.arms import energy_share
from ..store.record import SHORTEST_FOR_ENERGY
from .panels import add_panels, timed_trainings
from .section import Section
from .tables import Tables
from .words import listed, short, span

ABOUT = f"""Joules per 1,000 samples are the median over runs of what the whole GPU used in timed epochs, without the
host. Percentages compare pairs on one card with TF32, or with fp32 where TF32 was not run. A run counts if it was
timed for at least {SHORTEST_FOR_ENERGY:g} s, because NVML counts in coarse steps."""


def energy_bars(tables: Tables) -> pd.DataFrame:
    """Return the median of joules per 1,000 samples (`value`), and the `share` of the
    `baseline`'s by pairs.
    """
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
    """Return the share of joules that the compared arms need in each way, against their base."""
    own = bars[bars.arm.isin(tables.compared_arms)].dropna(subset="share")
    shares = [
        f"{way} {span(list(100 * share), '{:.0f}')}%"
        for way, share in own.groupby("way", sort=False).share
    ]
    if not shares:
        return ""
    bases = [tables.called(base) for base in tables.axis.bases if base in set(own.baseline)]
    subject = tables.subject or "the compared arms"
    return f"Energy of {subject} as a share of {listed(bases)}: {', '.join(shares)}"


def section(tables: Tables) -> Section:
    """Return the bars of energy; the section is absent where no run was long enough."""
    bars = energy_bars(tables) if len(tables.comparisons) else pd.DataFrame()
    if bars.empty:
        return Section()
    section = Section("Energy", finding(tables, bars), ABOUT)
    notes = ["" if pd.isna(share) else f"{share:.0%}" for share in bars.share]
    add_panels(section, bars.assign(label=bars.value.map(short) + " J", note=notes), "energy")
    return section
