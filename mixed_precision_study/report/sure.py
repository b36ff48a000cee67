"""Section: how sure the ratios are. One row per model and way of execution, one-line cells, one merged footnote."""

import pandas as pd

from ..analysis.speedup import FEWEST_PROCESSES
from ..analysis.verdict import DIFFERENT
from .names import ORDER, short_name
from .section import Section
from .tables import Tables
from .words import count, listed

FEWEST_HOSTS = 3  # below, a ratio in eager mode belongs to its host
CAUTIONS = (  # pattern of a condition in which two sides differ, and what is said of it once
    ("always ran before", "one precision always ran first, so a drift of the host may look like a difference"),
    ("was run", "the two precisions had different places in the order of their process"),
    ("clock", "the clocks of the two sides differed"),
    ("pairs were slowed", "pairs that heat or hardware slowed are left out"),
    ("kernel of", "the processes of the two sides were started in different ways"),
    ("throttled", "one side was throttled"),
    ("shared", "one side shared its GPU"),
    ("power limit", "one side ran at the card's power limit"),
)


def section(tables: Tables) -> Section:
    """Return the table of ratios over TF32 and over fp32, and what has to be minded in one footnote."""
    section = Section()
    if tables.ratios.empty or tables.on_cpu:
        return section
    ratios = tables.ratios[tables.ratios.comparison.isin(tables.charted.index)]
    section.title = title_of(tables, ratios)
    rows = []
    for number, comparison in tables.charted.iterrows():
        cells = ratios[ratios.comparison == number].set_index(["precision", "baseline"])
        row = {
            "model": comparison["name"],
            "task": comparison.task,
            "run": ", ".join(filter(None, (comparison.way, comparison.more))),
        }
        for precision in ORDER:
            for baseline in ("tf32", "fp32"):
                if (precision, baseline) in cells.index:
                    row[f"{short_name(precision)} over {short_name(baseline)}"] = cell_of(
                        cells.loc[(precision, baseline)]
                    )
        rows.append(row)
    ratios_named = list(dict.fromkeys(name for row in rows for name in list(row)[3:]))
    ratios_named.sort(key=lambda name: name.endswith("over fp32"))
    names = ["model", "task", "run", *ratios_named]
    section.table([{name: row.get(name, "-") for name in names} for row in rows], "Ratios" if len(rows) > 12 else "")
    section.say(footnote(tables, ratios))
    return section


def cell_of(row: pd.Series) -> str:
    """Return a ratio with its interval in one line: "1.51 (1.49–1.53)", "~" where the interval includes 1."""
    if row.low is None or row.low != row.low:
        return f"{row.ratio:.2f}" + ("" if row.outcome in DIFFERENT or row.processes else " (unpaired)")
    unsure = "" if row.outcome in DIFFERENT else "~" if row.low <= 1 <= row.high else ""
    fallen = "*" if row.outcome in DIFFERENT and not row.stands else ""
    return f"{unsure}{row.ratio:.2f} ({row.low:.2f}–{row.high:.2f}){fallen}"


def title_of(tables: Tables, ratios: pd.DataFrame) -> str:
    """Return how far graphs and eager runs repeat, as the half width of their intervals."""
    known = ratios.dropna(subset=["low"])
    if known.empty:
        return "How sure: these are single runs, so no ratio has an interval"
    graph = known.comparison.map(tables.comparisons.way).str.contains("graph")
    half = known.high / known.ratio - 1
    said = [
        f"{name} ratios are known within {half[rows].max():.0%}"
        for name, rows in (("CUDA graph", graph), ("eager", ~graph))
        if rows.any()
    ]
    return f"How sure: {listed(said, 'and')}"


def footnote(tables: Tables, ratios: pd.DataFrame) -> str:
    """Return all cautions merged: what the numbers are, hosts, order, correction, disturbed runs."""
    known, few = ratios.dropna(subset=["low"]), ratios[(ratios.processes > 0) & (ratios.processes < FEWEST_PROCESSES)]
    said = []
    if len(known):
        processes = sorted({int(one) for one in known.processes})
        span = f"{processes[0]}" if len(processes) == 1 else f"{processes[0]} to {processes[-1]}"
        said.append(
            f"Times as fast, with 95% intervals over {span} fresh processes on one card; ~ means that the interval"
            " includes 1."
        )
    if len(few):
        said.append(
            f"{count(len(few), 'ratio')} of one or two processes have no interval, because"
            " nothing is known about how processes differ."
        )
    tested = tables.ratios.dropna(subset=["p"])
    fallen = tested[tested.outcome.isin(DIFFERENT) & ~tested.stands]
    if len(fallen):
        said.append(
            f"* marks {count(len(fallen), 'difference')} that Holm's correction for all"
            f" {len(tested)} ratios of this report does not keep."
        )
    eager = ~ratios.comparison.map(tables.comparisons.way).str.contains("graph")
    if eager.any() and ratios[eager].hosts.max() < FEWEST_HOSTS:
        said.append(
            "Eager times belong to their host, so an interval holds for this host and not for every one with this card."
        )
    differing = [text for texts in ratios.differences for text in texts]
    cautions = [text for pattern, text in CAUTIONS if any(pattern in one for one in differing)]
    if any(" against " in one and "clock" not in one for one in differing):
        cautions.append("the two sides differ in host or software, as ratios.csv says")
    if cautions:
        said.append(
            f"Caution, for some ratios: {'; '.join(cautions)}. The column *differences* of ratios.csv names them."
        )
    disturbed = tables.trainings[tables.trainings.disturbed]
    if len(disturbed):
        said.append(f"{count(len(disturbed), 'run')} of {len(tables.trainings)} were throttled or shared their GPU.")
    return " ".join(said)
