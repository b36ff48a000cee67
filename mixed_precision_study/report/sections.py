"""The sections of the report in the order in which they are read, after its first screen.

Rules of the first screen. A card shows both 16-bit formats of AMP, because choosing one after
measuring would favour it. It shows them in the way of execution in which the faster one of those
that lose no quality is fastest. On a CPU nothing is judged, so the screen lists what worked.
"""

from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot as plt
from pandas import DataFrame

from ..judge.axis import arm_named, grouped
from ..judge.bottleneck import IDLE
from ..judge.equivalence import AS_GOOD, FEWEST_SEEDS_FOR_OUTCOME
from ..judge.ratios import FEWEST_PROCESSES
from ..parameters import error_line
from .articles import articles_section
from .charts import chart_style, dots, dots_note, ratio_rows
from .costs import (
    MOST_MODELS,
    energy_section,
    inference_section,
    memory_section,
    time_section,
    why_section,
)
from .files import place_of_project
from .quality import quality_section
from .results import MANY, days_of, method_section, numbers_section, sure_section, tilde_of
from .section import Cards, Chart, File, Heading, Section
from .settings import USUAL_WAY, growth_section, steps_section
from .tables import Tables, bars_of
from .words import (
    AMP,
    bare,
    count,
    in_way,
    listed,
    outcome_words,
    plain,
    said_of_age,
    said_of_made_up,
    short,
    span,
)

LITTLE_GAIN = 1.05  # in eager mode; where AMP gains no more, a CUDA graph is what to try
ASKED = "How much faster is training with AMP (automatic mixed precision)? · "
LINES = (
    "For your own loop, README has the [lines to copy](<{0}/README.md#lines-to-copy>), and two"
    " answers say [which of them to add](<{0}/docs/answers/which-lines-do-i-add.md>) and [whether"
    " AMP is worth it in eager mode](<{0}/docs/answers/is-amp-worth-it-in-eager-mode.md>)."
)
MOST_NUMBERS = 3  # of a card
NO_COMPARISON = "These runs compare no {} with {}"
CPU = "CPU smoke test: it shows that the suite works and says nothing about speed"


def best_of(tables: Tables, bars: DataFrame) -> DataFrame:
    """Return the bar of the fastest usable format below fp32 and TF32 for each model and task."""
    usable = bars[(bars.status == "ok") & ~bars.is_base & bars.ratio.notna()]
    if len(tables.quality):
        keys = ["comparison", "arm"]
        lost = tables.quality[~tables.quality.usable.astype(bool)].set_index(keys).index
        usable = usable[~usable.set_index(keys).index.isin(lost)]
    return (  # epochs of different lengths compare by samples, which older records do not have
        usable.sort_values(["samples_per_second", "seconds"], ascending=[False, True])
        .drop_duplicates(["model", "task"])
        .sort_index()
    )


def finding(tables: Tables, bars: DataFrame) -> tuple[str, str]:
    """Return (title, way): how many times as fast each 16-bit format trains as TF32, in the way
    of most cards.
    """
    if tables.on_cpu:
        return CPU, ""
    best = best_of(tables, bars)
    amp = bars[bars.arm.isin(tables.compared_arms) & bars.ratio.notna()]
    if best.empty or amp.empty:
        return nothing_compared(tables), ""
    way = way_of_title(best, bars)
    # TF32 where it was run
    shown = amp[amp.way == way]
    shown = shown[shown.baseline == shown.baseline.max()]
    text = said_of_ratios(tables, shown)
    models = list(shown.model.map(bare).unique())
    if shown.model.nunique() < bars.model.nunique() and shown.model.nunique() <= 2:
        text += f" ({listed(models, 'and')})"
    text = ", ".join(filter(None, (in_way(way), text)))
    return text[0].upper() + text[1:], way


def way_of_title(best: DataFrame, bars: DataFrame) -> str:
    """Return the way of most cards if every model ran in it, else the first of such ways."""
    models = bars.groupby("way", sort=False).model.nunique()
    ways = list(models.index[models == bars.model.nunique()])
    usual = best.way.mode()[0]
    return usual if usual in ways or not ways else ways[0]


def said_of_ratios(tables: Tables, shown: DataFrame) -> str:
    """Return how many times as fast each compared arm is as its base, over bars of one way; of an
    axis of several settings the arm that is fastest where most were compared, for want of room.
    """
    arms = [arm for arm in tables.compared_arms if arm in set(shown.arm)]
    if len(tables.axis.settings) > 1:
        by = ["size", "mean"]
        arms = [*shown.groupby("arm", sort=False).ratio.agg(by).nlargest(1, by).index]
    ratios = [span(list(shown.ratio[shown.arm == arm]), "{:.1f}") for arm in arms]
    base = tables.called(shown.baseline.iloc[0])
    text = f"{tables.called(arms[0])} trains {ratios[0]} times as fast as {base}"
    for arm, ratio in zip(arms[1:], ratios[1:], strict=True):
        text += f", and {tables.called(arm)} {ratio} times"
    return text


def nothing_compared(tables: Tables) -> str:
    bases = listed([tables.called(base) for base in tables.axis.bases])
    return NO_COMPARISON.format(" and ".join(tables.axis.settings), bases)


def said_below(tables: Tables, bars: DataFrame, title: str, found: str, way: str) -> str:
    """Return what stands below the title: made-up data first, then the baseline and fp32.

    Below another title than the finding, and where nothing is compared, stands what the study is
    about.
    """
    records = list(tables.trainings.record)
    said = [said_of_made_up(records), said_of_age(records)]
    if tables.on_cpu:
        return said[0]
    if title != found or "times as fast" not in title:
        return " ".join(filter(None, [*said, tables.description]))
    if "tf32" in set(bars.baseline):
        said.append(
            "AMP computes in 16 bits where that is safe. By default PyTorch uses TF32 in"
            " convolutions and RNNs, so TF32 is the fair baseline."
        )
        over = tables.ratios[(tables.ratios.base == "fp32") & tables.ratios.arm.isin(AMP)]
        over = over[over.comparison.isin(bars[bars.way == way].comparison)]
        if len(over):
            said.append(
                f"AMP is {span(list(over.ratio), '{:.1f}')} times as fast as fp32 that is"
                " executed in the same way."
            )
    return " ".join(filter(None, said))


def quality_line(tables: Tables, number: int, arm: str) -> str:
    """Return in a clause whether an arm keeps the quality of its base, or why that is not known."""
    found = tables.quality[(tables.quality.comparison == number) & (tables.quality.arm == arm)]
    if found.empty:
        return f"quality not compared with {tables.called(tables.axis.bases[0])}"
    one = found.iloc[0]
    name = one.metric.replace("_", " ")
    if one.seeds < FEWEST_SEEDS_FOR_OUTCOME:
        few = count(one.seeds, "seed")
        return (
            f"{name} not judged from {few} "
            f"(judged from {FEWEST_SEEDS_FOR_OUTCOME} on, see study quality)"
        )
    kept = one.outcome in AS_GOOD
    within = "no loss beyond the margin" if kept else outcome_words(one.outcome)
    return f"{name}: {within}, {one.seeds} seeds"


def each(clauses: dict) -> str:
    """Return {name: clause} as one line, in which clauses that are alike are said once."""
    alike = grouped(clauses, clauses.__getitem__)
    return " · ".join(f"{listed(names, 'and')}: {clause}" for clause, names in alike.items())


def cards_of(tables: Tables, bars: DataFrame) -> list[dict]:
    """Return a card for each model: name, task, the numbers of both formats, how, cost and
    quality.
    """
    cards = []
    for best in best_of(tables, bars).itertuples():
        block = bars[bars.comparison == best.comparison]
        shown = block[block.arm.isin(tables.compared_arms) & block.ratio.notna()]
        if shown.empty:
            shown = block[block.arm == best.arm]
        if len(shown) > MOST_NUMBERS:  # the chart below has all of them
            shown = shown.nlargest(MOST_NUMBERS, ["processes", "ratio"])
        base = tables.called(best.baseline)
        names = list(shown.short)
        how = in_way(best.way) or "in the same way"
        if shown.processes.min() < FEWEST_PROCESSES:
            how += f" ({count(int(shown.processes.min()), 'run')}, so no interval)"
        seconds = [f"{name} {short(one)}" for name, one in zip(names, shown.seconds, strict=True)]
        lines = [
            f"{how[0].upper()}{how[1:]}",
            f"{base} {short(best.base_seconds)} → {', '.join(seconds)} s/epoch",
        ]
        if shown.saved.notna().all():
            saved = zip(names, map(memory_words, shown.saved), strict=True)
            lines.append(each(dict(saved)))
        quality = [quality_line(tables, best.comparison, arm) for arm in shown.arm]
        lines.append(each(dict(zip(names, quality, strict=True))))
        numbers = dict(zip(names, map(number_of, shown.itertuples()), strict=True))
        cards.append(
            dict(
                name=best.model,
                task=best.task,
                numbers=numbers,
                against=f"as fast as {base}",
                lines=lines,
                strong=list(shown.short[shown.strong]),
            )
        )
    return cards


def number_of(bar: Any) -> str:
    """Return a ratio for a card: "1.70×", with "~" where its side of 1 is not told."""
    return f"{tilde_of(bar)}{bar.ratio:.2f}×"


def memory_words(saved: float) -> str:
    """Return a share of the peak that is saved in words, such as "31% less peak memory"."""
    change = round(100 * saved)
    if not change:
        return "the same peak memory"
    return f"{abs(change)}% {'less' if change > 0 else 'more'} peak memory"


def facts(tables: Tables) -> str:
    """Return card, software and date of the runs in one line."""
    records = [one for one in tables.trainings.record if one["status"] != "unsupported"]
    devices = {str(one["gpu_name"] or "CPU").partition(" HBM")[0] for one in records}
    versions = {
        ".".join(str(one["torch_version"]).split(".")[:2])
        for one in records
        if one["torch_version"]
    }
    hosts = len(set(tables.trainings.host) - {""})
    parts = [
        listed(sorted(devices), "and"),
        f"PyTorch {listed(sorted(versions), 'and')}" if versions else "",
        count(len(tables.trainings), "run"),
        count(hosts, "machine") if hosts else "",
        days_of([one["finished_at"] for one in records]),
    ]
    return " · ".join(filter(None, parts))


def worked(tables: Tables) -> DataFrame:
    """Return a row for each comparison of a CPU run: which arms trained, which need a GPU, which
    failed.
    """
    ends = {"ok": "worked", "unsupported": "needs a GPU"}
    ended = tables.bars.status.map(ends).fillna("failed")
    arms = tables.bars.groupby(["comparison", ended], sort=False).short.agg(", ".join).unstack()
    arms = arms.reindex(columns=[*ends.values(), "failed"])
    named = tables.comparisons[["name", "task", "run"]].rename(columns={"name": "model"})
    return named.join(arms)


def what_waits(tables: Tables, bars: DataFrame) -> str:
    """Return what to run next where AMP gained little in eager mode, the best that was run, and
    the GPU waited; else "".
    """
    eager = bars[(bars.way == "eager") & bars.arm.isin(AMP) & bars.ratio.notna()]
    keys = ["model", "task"]
    best = best_of(tables, bars).set_index(keys)
    ways: dict = {}
    waiting = []
    gains = eager.groupby(keys, sort=False).agg(gain=("ratio", "max"), idle=("idle", "min"))
    waits = gains[(gains.gain < LITTLE_GAIN) & (gains.idle >= IDLE)].idle
    for key in gains.index:
        name = bare(key[0])
        if key in best.index and best.way[key] != "eager":
            ways.setdefault(parameters_of(tables, best.comparison[key]), []).append(name)
        elif key in waits:
            waiting.append(f"{name} (at least {waits[key]:.0%} idle)")
    said = []
    if ways:
        # with such parameters quick would train in this way several times
        study = plain(tables.name or "quick")
        study = "reference" if study.startswith("quick") else study
        commands = [
            f"`python run_all.py {study} {words}` ({plain(listed(names, 'and'))})"
            for words, names in ways.items()
        ]
        said.append(
            "The numbers above are not of PyTorch's usual eager mode, which is slower here. "
            f"These commands train as they were trained: {'; '.join(commands)}."
        )
    if waiting:
        said.append(
            f"AMP gained little for {plain(listed(waiting, 'and'))}, because in eager mode the GPU"
            " waits for the CPU. A larger batch or a CUDA graph ends that, so measure the graph"
            " next, too: `python run_all.py quick`."
        )
    return " ".join(said)


def parameters_of(tables: Tables, comparison: int) -> str:
    """Return the parameters in which a way differs from the usual one, as run_all.py takes them."""
    settings = tables.comparisons.settings[comparison]
    given = {name: settings.get(name, usual) for name, usual in USUAL_WAY.items()}
    return " ".join(
        f"-p {name} {arm_named([value])}"
        for name, value in given.items()
        if value not in (None, USUAL_WAY[name])
    )


def first_screen(tables: Tables, subject: Section | None = None, question: str = "") -> Section:
    """Return the first screen.

    Where a study has a `subject`, its question, finding and figure open the report. Where some
    trainings had their GPU alone, the title and what stands below it leave out the others.
    """
    bars = bars_of(tables)
    shared = [row.comparison for row in tables.trainings.itertuples() if row.record["gpu_shared"]]
    alone = bars[~bars.comparison.isin(shared)]
    timed = alone if len(alone) else bars
    found, way = finding(tables, timed) if len(bars) else (nothing_compared(tables), "")
    opened = subject if subject and subject.parts and not tables.on_cpu else None
    title = question if opened else found
    screen = Section()
    asked = ASKED if "AMP" in title else ""
    screen.parts.append(Heading(title, level=1, above=asked + plain(facts(tables))))
    if text := said_below(tables, timed, title, found, way):
        screen.say(plain(text))
    if opened:
        opened.title = ""
        screen.parts += opened
        if "times as fast" in found and found != title:
            screen.say(f"**Time.** {plain(found)}.")
    elif tables.on_cpu:
        screen.table(worked(tables), common=("task", "run"))
        screen.say(
            "Times on a CPU say nothing about mixed precision on a GPU, so none is shown here. On a"
            " machine with an NVIDIA GPU, or in a notebook of Colab or Kaggle with one, run"
            " `python run_all.py`."
        )
    elif len(bars) and bars.model.nunique() <= MOST_MODELS:
        add_answer(screen, tables, bars, found)
    return screen


def add_answer(screen: Section, tables: Tables, bars: DataFrame, found: str) -> None:
    """Add the cards, what to run next, lines to copy, and the ratios as dots."""
    if cards := cards_of(tables, bars):
        screen.parts.append(Cards(cards))
    if said := what_waits(tables, bars):
        screen.say(said)
    rows = ratio_rows(bars)
    if len(rows):
        if place := place_of_project(tables.folder):
            screen.say(LINES.format(place))
        screen.say(dots_note(rows))
        screen.chart(dots(rows), "ratios", f"{found}. Dots of the ratios, a row for each way.")
        bases = plain(listed(list(rows.base_short.unique())))
        screen.say(
            f"A dot says how many times as fast training is as in {bases} in the same row,"
            " whose seconds of an epoch stand at the right."
        )


# what a study shows: the section that opens its report, and the question that it answers
SUBJECTS = {
    "articles": (articles_section, "Do the published speed-ups recur?"),
    "steps": (steps_section, "What does each step gain?"),
    "over": (growth_section, "How do time and memory grow?"),
    "inference": (inference_section, "Is the trained model faster in use?"),
    "execution": (steps_section, "What does each way of execution gain?"),
    "quality": (quality_section, "Does training in 16 bits end as well as in fp32?"),
}
SECTIONS = (
    time_section,
    why_section,
    sure_section,
    steps_section,
    growth_section,
    quality_section,
    memory_section,
    energy_section,
    inference_section,
    articles_section,
    numbers_section,
    method_section,
)
EACH = (time_section, why_section, memory_section, energy_section)  # these draw each comparison


def drawn(make: Callable, tables: Tables, *more: Any) -> Section:
    """Return a section with its charts drawn.

    One that fails says so, because the others must not be lost with it.
    """
    try:
        with chart_style():
            section = make(tables, *more)
            for part in section.parts:
                if isinstance(part, Chart):
                    part.png  # noqa: B018  # drawn here, where an error costs this section alone
        return section
    except Exception as error:  # odd values in a record may raise anything
        plt.close("all")
        failed = Section(make.__name__.removesuffix("_section").replace("_", " ").capitalize())
        failed.say(
            f"**This section could not be drawn**, so it is missing: {plain(error_line(error))}"
        )
        return failed


def sections_of(tables: Tables) -> Iterator[Section]:
    """Draw the sections of a report after its CSV files.

    A section without parts has nothing to show.
    """
    # before anything is drawn
    yield Section(parts=[File(name, content) for name, content in tables.csv().items()])
    asked = [SUBJECTS[name] for name in SUBJECTS if tables.show.get(name)]
    subject, question = asked[0] if asked else (None, "")
    yield drawn(first_screen, tables, drawn(subject, tables) if subject else None, question)
    few = len(tables.comparisons) <= MANY
    for section in SECTIONS:
        if section is not subject and (few or section not in EACH):
            yield drawn(section, tables)
