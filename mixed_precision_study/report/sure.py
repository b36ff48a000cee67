"""Section: how sure the ratios are.

One row per model and way of execution, one-line cells, one merged footnote.
"""

from typing import Any

import pandas as pd

from ..judge.ratios import FEWEST_HOSTS, FEWEST_PROCESSES
from ..judge.verdict import DIFFERENT, FEW_HOSTS
from .findings import SOFTWARE_AND_HOST
from .section import Section
from .tables import Tables
from .words import count

CAUTIONS = {  # {code of a difference between two sides: what is said of it once}
    "order": "one side always ran first, so a drift of the host may look like a difference",
    "place": "the two sides had different places in the order of their process",
    "clock": "the clocks of the two sides differed",
    "one_clock": "the clocks of the two sides differed",
    "left_out": "pairs that heat or hardware slowed are left out",
    "forked": "the processes of the two sides were started in different ways",
    "throttled": "one side was throttled",
    "shared": "one side shared its GPU",
    "power_limit": "one side ran at the card's power limit",
}


def section(tables: Tables) -> Section:
    """Return the table of ratios over TF32 and over fp32, and what has to be minded in one
    footnote.
    """
    section = Section()
    if tables.ratios.empty or tables.on_cpu:
        return section
    ratios = tables.ratios[tables.ratios.comparison.isin(tables.charted.index)]
    section.title, section.finding = "How sure", finding_of(tables, ratios)
    columns = [
        f"{tables.short(arm)} over {tables.short(base)}"
        for base in reversed(tables.axis.bases)
        for arm in tables.arms
    ]
    over = ratios.arm.map(tables.short) + " over " + ratios.base.map(tables.short)
    cells = ratios.assign(over=over, cell=[cell_of(row) for row in ratios.itertuples()])
    cells = cells.pivot(index="comparison", columns="over", values="cell")
    charted = tables.charted.assign(model=tables.charted["name"])
    charted["run"] = [
        ", ".join(filter(None, texts)) for texts in charted[["way", "more"]].itertuples(index=False)
    ]
    if charted.groupby("model").task.nunique().max() > 1:  # else the name says the task
        charted["model"] += ", " + charted.task
    rows = charted[["model", "run"]].join(cells[[*filter(cells.__contains__, columns)]])
    section.table(rows.fillna("-").to_dict("records"), "Ratios" if len(rows) > 12 else "", ["run"])
    section.say(footnote(tables, ratios))
    return section


def cell_of(row: pd.Series) -> str:
    """Return a ratio with its interval, "1.51 (1.49–1.53)", or that of its hosts; "~" where 1
    lies in it.
    """
    if row.outcome == FEW_HOSTS:
        return range_of_hosts(row)
    if pd.isna(row.low):
        return f"{row.ratio:.2f}" + ("" if row.outcome in DIFFERENT or row.processes else "†")
    unsure = "" if row.outcome in DIFFERENT else "~" if row.low <= 1 <= row.high else ""
    fallen = "*" if row.outcome in DIFFERENT and not row.stands else ""
    digits = 1 if row.high >= 10 else 2  # seven columns fit
    return f"{unsure}{row.ratio:.{digits}f} ({row.low:.{digits}f}–{row.high:.{digits}f}){fallen}"


def range_of_hosts(row: Any) -> str:
    """Return the median of the hosts' ratios with their ends: "1.08 [1.05–1.23]", "~" where 1
    lies between them.
    """
    return (
        f"{'~' if row.lowest <= 1 <= row.highest else ''}{row.ratio:.2f} "
        f"[{row.lowest:.2f}–{row.highest:.2f}]"
    )


def finding_of(tables: Tables, ratios: pd.DataFrame) -> str:
    """Return how far graphs and eager runs repeat, as the half width of their intervals, and how
    far hosts differ.
    """
    known, hosts = ratios.dropna(subset=["low"]), ratios[ratios.outcome == FEW_HOSTS]
    apart = f"differ by up to {(hosts.highest / hosts.lowest).max():.1f} times between hosts"
    if known.empty and len(hosts):
        return f"Eager ratios {apart}"
    if known.empty:
        return "No ratio has an interval, because each rests on one or two processes"
    graph = known.comparison.map(tables.comparisons.way).str.contains("graph")
    half = known.high / known.ratio - 1
    known_to = [f"{half[rows].max():.0%}" for rows in (graph, ~graph) if rows.any()]
    if len(known_to) == 2:
        return (
            f"Ratios of CUDA graphs are known within {known_to[0]}, the other ratios within "
            f"{known_to[1]}"
        )
    if len(hosts):
        which = "of CUDA graphs" if graph.any() else "with an interval"
        return f"Ratios {which} are known within {known_to[0]}, and eager ones {apart}"
    return f"Ratios are known within {known_to[0]}"


def footnote(tables: Tables, ratios: pd.DataFrame) -> str:
    """Return all cautions merged: what the numbers are, hosts, order, correction, disturbed
    runs.
    """
    known, few = (
        ratios.dropna(subset=["low"]),
        ratios[(ratios.processes > 0) & (ratios.processes < FEWEST_PROCESSES)],
    )
    said = []
    if len(known):
        processes = sorted({int(one) for one in known.processes})
        span = f"{processes[0]}" if len(processes) == 1 else f"{processes[0]} to {processes[-1]}"
        said.append(
            f"Times as fast, with 95% intervals over {span} pairs of fresh processes, "
            "each on one card; ~ means that 1"
            " lies in the interval."
        )
    if len(few):
        said.append(
            f"{count(len(few), 'ratio')} of one or two processes have no interval, "
            "because so few do not show how far"
            " processes differ."
        )
    if (ratios.processes == 0).any():
        said.append(
            "† marks ratios of runs that are no pairs, as on two cards, so nothing is "
            "judged from them."
        )
    tested = tables.ratios.dropna(subset=["p"])
    fallen = tested[tested.outcome.isin(DIFFERENT) & ~tested.stands]
    if len(fallen):
        said.append(
            f"\\* marks {count(len(fallen), 'ratio')} whose difference is not "
            "significant after Holm's correction for"
            f" testing all {len(tested)} ratios of this report."
        )
    over_hosts = ratios[ratios.outcome == FEW_HOSTS]
    if len(over_hosts):
        fewest = int(over_hosts.hosts.min())
        said.append(
            f"[ ] holds the lowest and highest of {count(fewest, 'host')} or more around "
            "their median, because eager"
            f" times belong to a host. Of further hosts up to {2 / (fewest + 1):.0%} are "
            "expected outside."
        )
    eager = ~ratios.comparison.map(tables.comparisons.way).str.contains("graph")
    if eager.any() and ratios[eager].hosts.max() < FEWEST_HOSTS:
        said.append(
            "Eager times depend on the host, so their intervals hold for this host and "
            "may not hold for others."
        )
    codes = {found.code for differing in ratios.differences for found in differing}
    cautions = list(dict.fromkeys(text for code, text in CAUTIONS.items() if code in codes))
    if codes & SOFTWARE_AND_HOST.keys():
        cautions.append("the two sides differ in host or software, as ratios.csv says")
    if cautions:
        said.append(
            f"Caution, for some ratios: {'; '.join(cautions)}. Column *differences* of "
            "ratios.csv says which."
        )
    disturbed = tables.trainings[tables.trainings.disturbed]
    if len(disturbed):
        said.append(
            f"{count(len(disturbed), 'run')} of {len(tables.trainings)} were throttled "
            "or shared their GPU."
        )
    return " ".join(said)
