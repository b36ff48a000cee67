"""Section: energy, as joules per 1,000 samples."""

import pandas as pd

from ..store.record import SHORTEST_FOR_ENERGY
from .names import precision_name
from .panels import add_panels, timed_trainings
from .section import Section
from .tables import Tables, energy_share
from .words import listed, short, span

ABOUT = f"""Joules per 1,000 samples are the median over runs of what the whole GPU used in timed epochs, without the
host. Percentages compare pairs on one card with TF32, or with fp32 where TF32 was not run. A run counts if it was
timed for at least {SHORTEST_FOR_ENERGY:g} s, because NVML counts in coarse steps."""


def energy_bars(tables: Tables) -> pd.DataFrame:
    """Return the median of joules per 1,000 samples (`value`), and the `share` of the `baseline`'s by pairs."""
    known = timed_trainings(tables).dropna(subset="joules")
    values = known.groupby(["comparison", "precision"]).joules.median().rename("value")
    bars = known.drop_duplicates(["comparison", "precision"]).join(
        values, on=["comparison", "precision"]
    )
    bars["baseline"] = ""
    for baseline in ("fp32", "tf32"):
        bars.loc[bars.comparison.isin(bars[bars.precision == baseline].comparison), "baseline"] = (
            baseline
        )
    sides = [
        [tables.runs(bar.comparison, name) for name in (bar.precision, bar.baseline)]
        for bar in bars.itertuples()
    ]
    return bars.assign(share=[energy_share(*runs) for runs in sides])


def finding(bars: pd.DataFrame) -> str:
    """Return the share of joules that AMP needs in each way, against TF32, or fp32 where it was not run."""
    amp = bars[bars.precision.isin(["amp_fp16", "amp_bf16"])].dropna(subset="share")
    shares = [
        f"{way} {span(list(100 * share), '{:.0f}')}%"
        for way, share in amp.groupby("way", sort=False).share
    ]
    bases = [precision_name(base) for base in sorted(set(amp.baseline), reverse=True)]
    return f"Energy of AMP as a share of {listed(bases)}: {', '.join(shares)}" if shares else ""


def section(tables: Tables) -> Section:
    """Return the bars of energy; the section is absent where no run was long enough."""
    bars = energy_bars(tables) if len(tables.comparisons) else pd.DataFrame()
    if bars.empty:
        return Section()
    section = Section("Energy", finding(bars), ABOUT)
    notes = ["" if pd.isna(share) else f"{share:.0%}" for share in bars.share]
    add_panels(section, bars.assign(label=bars.value.map(short) + " J", note=notes), "energy")
    return section
