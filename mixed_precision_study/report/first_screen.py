"""The first screen: the finding as title, a card for each model, and the opening figure of time and memory.

Rules. A card shows the fastest 16-bit format of its model that loses no quality beyond the margin, in the way of
execution in which it is fastest. It was chosen after measuring, so the figure shows every format. Where TF32 is faster
than that, the card says by how much. On a CPU nothing is judged.
"""

import pandas as pd

from ..judge.conditions import said_of_made_up
from ..judge.equivalence import AS_GOOD, FEWEST_SEEDS_FOR_OUTCOME
from ..judge.ratios import FEWEST_PROCESSES
from .charts import opening, opening_note
from .names import AMP, bare, in_way
from .section import Cards, Heading, Section, Sentence
from .tables import Tables, bars_of
from .words import count, listed, plain, short, span, times

# comparisons of the opening figure; further ones stand in the table of all numbers
MOST_BLOCKS = 60
MOST_MODELS = 6  # with more models the study's own figure opens the report
ALIKE_WITHIN = 0.02  # a memory or ratio within this share is called the same
NO_COMPARISON = "These runs compare no {} with {}"
CPU = "CPU smoke test: it shows that the suite works and says nothing about speed"


def best_of(tables: Tables, bars: pd.DataFrame) -> pd.DataFrame:
    """Return the bar of the fastest usable format below fp32 and TF32 for each model and task."""
    usable = bars[(bars.status == "ok") & ~bars.is_base & bars.ratio.notna()]
    if len(tables.quality) and len(usable):
        lost = tables.quality[~tables.quality.usable.astype(bool)]
        lost = set(zip(lost.comparison, lost.arm, strict=True))
        keys = zip(usable.comparison, usable.arm, strict=True)
        usable = usable[[key not in lost for key in keys]]
    return usable.sort_values("seconds").drop_duplicates(["model", "task"]).sort_index()


def finding(tables: Tables, bars: pd.DataFrame) -> tuple[str, str]:
    """Return (title, way): how many times as fast each 16-bit format trains as TF32, in the way of most cards."""
    if tables.on_cpu:
        return CPU, ""
    best = best_of(tables, bars)
    amp = bars[bars.arm.isin(tables.compared_arms) & bars.ratio.notna()]
    if best.empty or amp.empty:
        return nothing_compared(tables), ""
    ways = [
        way
        for way in dict.fromkeys(bars.way)
        if set(bars[bars.way == way].model) == set(bars.model)
    ]
    way = best.way.mode()[0] if best.way.mode()[0] in ways or not ways else ways[0]
    # TF32 where it was run
    shown = amp[(amp.way == way) & (amp.baseline == amp[amp.way == way].baseline.max())]
    arms = [arm for arm in tables.compared_arms if arm in set(shown.arm)]
    ratios = [span(list(shown.ratio[shown.arm == arm]), "{:.1f}") for arm in arms]
    base = tables.called(shown.baseline.iloc[0])
    text = f"{tables.called(arms[0])} trains {ratios[0]} times as fast as {base}"
    for arm, ratio in zip(arms[1:], ratios[1:], strict=True):
        text += f", and {tables.called(arm)} {ratio} times"
    if shown.model.nunique() < bars.model.nunique() and shown.model.nunique() <= 2:
        text += f" ({listed(list(shown.model.map(bare).unique()), 'and')})"
    text = ", ".join(filter(None, (in_way(way), text)))
    return text[0].upper() + text[1:], way


def nothing_compared(tables: Tables) -> str:
    bases = listed([tables.called(base) for base in tables.axis.bases])
    return NO_COMPARISON.format(" and ".join(tables.axis.settings), bases)


def memory_of(tables: Tables, bars: pd.DataFrame) -> str:
    """Return how much memory the compared arms save beside their base, a clause for each model."""
    found = bars[
        bars.arm.isin(tables.compared_arms)
        & bars.saved.notna()
        & (bars.baseline == bars.baseline.max())
    ]
    clauses = []
    for model, saved in (100 * found.saved.astype(float)).groupby(found.model, sort=False):
        more = saved.mean() < 0
        how = f"{span(sorted(-saved if more else saved), '{:.0f}')}% {'more' if more else 'less'}"
        clauses.append(
            f"{'as much' if saved.abs().max() < 100 * ALIKE_WITHIN else how} for {bare(model)}"
        )
    if not 0 < len(clauses) <= MOST_MODELS or not tables.subject:
        return ""
    clauses[0] = clauses[0].replace(" for", " memory for", 1)
    base = tables.called(found.baseline.iloc[0])
    return f"Compared with {base}, {tables.subject} needs {listed(clauses, 'and')}."


def said_below(tables: Tables, bars: pd.DataFrame, title: str, found: str, way: str) -> str:
    """Return what stands below the title: made-up data first, then the baseline, strict fp32, memory and eager mode.

    Below another title than the finding, and where nothing is compared, stands what the study is about.
    """
    said = [said_of_made_up(list(tables.trainings.record))]
    if title != found or "times as fast" not in title:
        return " ".join(filter(None, [*said, tables.description]))
    if "tf32" in set(bars.baseline):
        said.append(
            "By default PyTorch uses TF32 in convolutions and RNNs, so TF32 is the fair baseline."
        )
        if "graph" in way:
            said.append(
                "It is captured, too, so what the graph gains by itself is not in these numbers."
            )
        over = tables.ratios[(tables.ratios.base == "fp32") & tables.ratios.arm.isin(AMP)]
        over = over[over.comparison.isin(bars[bars.way == way].comparison)]
        if len(over):
            said.append(
                f"Over strict fp32, run alike, AMP is {span(list(over.ratio), '{:.1f}')} times as fast."
            )
    said.append(memory_of(tables, bars[bars.way == way]))
    eager = bars[(bars.way == "eager") & bars.arm.isin(AMP) & bars.ratio.notna()]
    if len(eager) and "graph" in way:
        ratios, base = span(list(eager.ratio), "{:.2f}"), eager.base_short.iloc[0]
        said.append(
            f"In eager mode AMP is {ratios} times as fast as {base}, which depends on the host machine."
        )
    return " ".join(filter(None, said))


def quality_line(tables: Tables, number: int, arm: str) -> str:
    """Return in one line whether an arm keeps the quality of its base, or why that is not known."""
    found = tables.quality[(tables.quality.comparison == number) & (tables.quality.arm == arm)]
    if found.empty:
        return f"Quality not compared with {tables.called(tables.axis.bases[0])}"
    one = found.iloc[0]
    name = one.metric.replace("_", " ").capitalize()
    if one.seeds < FEWEST_SEEDS_FOR_OUTCOME:
        return f"{name} not judged: {one.seeds} of {FEWEST_SEEDS_FOR_OUTCOME} seeds"
    within = "no loss beyond the margin" if one.outcome in AS_GOOD else one.outcome
    return f"{name}: {within}, {one.seeds} seeds"


def cards_of(tables: Tables, bars: pd.DataFrame) -> list[dict[str, str]]:
    """Return a card for each model: name, task, number, what it is compared with, how, cost and quality."""
    cards = []
    for best in best_of(tables, bars).itertuples():
        base = tables.called(best.baseline)
        own = bars[bars.comparison == best.comparison].set_index("arm")
        against = f"as fast as {base}"
        first = tables.axis.bases[0]
        runs = [tables.runs(best.comparison, arm) for arm in (best.arm, first)]
        if best.baseline != first and (strict := tables.between(*runs)):
            against += f", {times(strict['ratio'])} as fast as {tables.called(first)}"
        seconds = own.seconds[best.baseline], best.seconds
        cost = f"{base} {' → '.join(map(short, seconds))} s/epoch"
        if pd.notna(best.saved):
            change = round(100 * best.saved)
            cost += (
                f" · {abs(change)}% {'less' if change > 0 else 'more'} memory"
                if change
                else " · the same memory"
            )
        how = tables.called(best.arm) + (f", all {in_way(best.way)}" if best.way else "")
        if best.ratio < 1 - ALIKE_WITHIN:
            how += f": {base} is {1 / best.ratio - 1:.0%} faster"
        elif best.processes < FEWEST_PROCESSES:
            how += f" ({count(int(best.processes), 'run')}, so no interval)"
        number = ("~" if pd.notna(best.low) and best.low <= 1 <= best.high else "") + times(
            best.ratio
        )
        lines = [how, cost, quality_line(tables, best.comparison, best.arm)]
        cards.append(
            dict(name=best.model, task=best.task, number=number, against=against, lines=lines)
        )
    return cards


def facts(tables: Tables) -> str:
    """Return card, software and date of the runs in one line."""
    records = [one for one in tables.trainings.record if one["status"] != "unsupported"]
    devices = listed(
        sorted({str(one["gpu_name"] or "CPU").partition(" HBM")[0] for one in records}), "and"
    )
    versions = listed(
        sorted(
            {
                ".".join(str(one["torch_version"]).split(".")[:2])
                for one in records
                if one["torch_version"]
            }
        ),
        "and",
    )
    stamps = pd.Series([str(one["finished_at"])[:10] for one in records])
    ends = sorted(set(pd.to_datetime(stamps, format="%Y-%m-%d", errors="coerce").dropna()))
    days = list(dict.fromkeys(f"{day.day} {day:%B %Y}" for day in (*ends[:1], *ends[-1:])))
    if len(days) == 2 and days[0].split()[1:] == days[1].split()[1:]:
        days[0] = days[0].split()[0]
    hosts = len(set(tables.trainings.host) - {""})
    parts = [
        devices,
        f"PyTorch {versions}" if versions else "",
        count(len(tables.trainings), "run"),
    ]
    parts += [count(hosts, "host") if hosts else "", " to ".join(days)]
    return " · ".join(filter(None, parts))


def opening_bars(bars: pd.DataFrame, way: str) -> pd.DataFrame:
    """Return the bars of the opening figure: of a model's three or more ways, eager mode and that of the title."""
    fastest = bars.sort_values("seconds").drop_duplicates(["model", "task", "way"]).comparison
    groups = bars.groupby(["model", "task"])
    several = groups.comparison.transform("nunique") > 2
    both = groups.way.transform(lambda ways: {"eager", way} <= set(ways))
    return bars[~(several & both) | bars.comparison.isin(fastest) & bars.way.isin(["eager", way])]


def section(tables: Tables, subject: Section | None = None) -> Section:
    """Return the first screen. Where a study has a `subject` of its own, its title and figure open the report."""
    bars = bars_of(tables)
    found, way = finding(tables, bars) if len(bars) else (nothing_compared(tables), "")
    opened = subject if subject and subject.parts and subject.title and not tables.on_cpu else None
    title = opened.title if opened else found
    screen = Section()
    screen.parts.append(Heading(title, level=1, above=plain(facts(tables))))
    if text := said_below(tables, bars, title, found, way):
        screen.say(plain(text))
    if opened:
        screen.parts += [
            opened.parts[0],
            *([Sentence(opened.about)] if opened.about else []),
            *opened.parts[1:],
        ]
        if "times as fast" in found and found != title:
            screen.say(f"**Time.** {plain(found)}.")
    elif len(bars) and bars.model.nunique() <= MOST_MODELS:
        shown = opening_bars(bars, way)
        shown = shown[shown.comparison.isin(shown.comparison.unique()[:MOST_BLOCKS])]
        figures = opening(shown)
        if not tables.on_cpu and (cards := cards_of(tables, bars)):
            screen.parts.append(Cards(cards, over=len(cards) == len(figures) <= 3))
        screen.chart(
            figures,
            "time_and_memory",
            f"{found}. Bars of the seconds of an epoch and of peak memory.",
        )
        elsewhere = "Other comparisons stand further down." if len(shown) < len(bars) else ""
        screen.say(f"{opening_note(shown)} {elsewhere}".strip())
    return screen
