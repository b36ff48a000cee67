"""Results in tables: how sure the ratios are, all numbers, what they rest on, and how an
experiment notebook shows its own.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import product
from operator import itemgetter
from pathlib import Path
from textwrap import shorten
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame, Series, isna

from ..judge.axis import grouped
from ..judge.bottleneck import find_bottleneck, remedies_of
from ..judge.conditions import conditions_of
from ..judge.memory_reason import memory_reason
from ..judge.ratios import FEWEST_HOSTS, FEWEST_PROCESSES, interaction
from ..judge.verdict import DIFFERENT, FEW_HOSTS, NOT_TRAINED, range_tells_side
from ..store.record import DISTURBED, RunRecord, Runs, flat_record
from .charts import chart_style, draw_bars, memory_bars, picture_of, second_bars
from .section import Section, Sentence, ratio_texts, spans, texts
from .tables import (
    Tables,
    bars_of,
    comparisons_of,
    device_name,
    mark_diverged,
    ratios_of,
    said_of_found,
    training_row,
)
from .words import (
    ORDER,
    SOFTWARE_AND_HOST,
    count,
    in_way,
    listed,
    model_name,
    outcome_words,
    plain,
    precision_name,
    said,
    said_of_commits,
    said_of_side,
    short,
    span,
    tried,
    way_name,
)

CAUTIONS = {  # {code of a difference between two sides: what is said of it once}
    "order": "one side always ran first, so a drift of the machine may look like a difference",
    "place": "the two sides had different places in the order of their process",
    "clock": "the clocks of the two sides differed",
    "one_clock": "the clocks of the two sides differed",
    "left_out": "pairs that heat, hardware or another process disturbed are left out",
    "forked": "the processes of the two sides were started in different ways",
    "throttled": "one side was throttled",
    "shared": "one side shared its GPU",
    "power_limit": "one side ran at the card's power limit",
}


def sure_section(tables: Tables) -> Section:
    """Return the table of ratios over TF32 and over fp32, and what has to be minded in one
    footnote.
    """
    section = Section()
    if tables.ratios.empty or tables.on_cpu:
        return section
    ratios = tables.ratios[tables.ratios.comparison.isin(tables.charted.index)]
    section.title = "How sure"
    section.finding = sure_finding(tables, ratios)
    columns = [
        f"{tables.short(arm)} over {tables.short(base)}"
        for base in dict.fromkeys([*reversed(tables.axis.bases), *tables.arms])
        for arm in tables.arms
    ]
    over = ratios.arm.map(tables.short) + " over " + ratios.base.map(tables.short)
    cells = ratios.assign(over=over, cell=[cell_of(row) for row in ratios.itertuples()])
    cells = cells.pivot(index="comparison", columns="over", values="cell")
    charted = tables.charted.assign(model=tables.charted["name"])
    if charted.groupby("model").task.nunique().max() > 1:  # else the name says the task
        charted["model"] += ", " + charted.task
    rows = charted[["model", "run"]].join(cells[[*filter(cells.__contains__, columns)]])
    rows["run"] = rows.run.replace("", None)
    section.table(rows, "Ratios" if len(rows) > 12 else "", ["run"])
    section.say(footnote(tables, ratios))
    section.parts += map(Sentence, interactions(tables))
    return section


def interactions(tables: Tables) -> Iterator[str]:
    """Yield how far the gain of a setting depends on another one, where all four arms were run."""
    base = tables.axis.bases[0]
    adds = tables.axis.adds
    for number, both in product(tables.charted.index, tables.arms):
        arms = [base, *(one for one in tables.arms if adds(both, one) and adds(one, base)), both]
        found = interaction(*(tables.runs(number, arm) for arm in arms)) if len(arms) == 4 else {}
        for text in ratio_texts(DataFrame([found])) if found else ():
            first, second = map(tables.short, arms[1:3])
            title = tables.comparisons.title[number]
            yield plain(f"{title}: {second} gains {text} times as much with {first} as without it.")


def cell_of(row: Series) -> str:
    """Return a ratio with its interval, "1.51 (1.49–1.53)", or that of its machines; "~" where
    that does not tell its side of 1.
    """
    if row.outcome == FEW_HOSTS:
        return range_of_hosts(row)
    if isna(row.low):
        return f"{row.ratio:.2f}" + ("" if row.outcome in DIFFERENT or row.processes else "†")
    fallen = "*" if row.outcome in DIFFERENT and not row.stands else ""
    digits = 1 if row.high >= 10 else 2  # seven columns fit
    ends = f"({row.low:.{digits}f}–{row.high:.{digits}f}){fallen}"
    return f"{tilde_of(row)}{row.ratio:.{digits}f} {ends}"


def range_of_hosts(row: Any) -> str:
    """Return the median of the machines' ratios with their ends: "~1.08 [1.05–1.23]"."""
    return f"{tilde_of(row)}{row.ratio:.2f} [{row.lowest:.2f}–{row.highest:.2f}]"


def tilde_of(row: Any) -> str:
    """Return "~" where it is not told on which side of 1 a ratio lies, else nothing.

    A ratio that has neither an interval nor a range says by other marks that nothing is told.
    """
    if row.outcome == FEW_HOSTS:
        sure = range_tells_side(row.lowest, row.highest, row.hosts)
    else:
        sure = row.outcome in DIFFERENT or isna(row.low) or not row.low <= 1 <= row.high
    return "" if sure else "~"


def sure_finding(tables: Tables, ratios: DataFrame) -> str:
    """Return how wide the intervals are in each way, as the half of one, and how far machines
    differ.
    """
    known = ratios.dropna(subset=["low"])
    hosts = ratios[ratios.outcome == FEW_HOSTS]
    said = []
    if len(known):
        half = 100 * (known.high / known.ratio - 1).astype(float)
        ways = known.comparison.map(tables.comparisons.way).replace("", "any way")
        said.append(f"Ratios are known within: {spans(half, ways, '{:.0f}', '%')}")
    if len(hosts):
        apart = (hosts.highest / hosts.lowest).max()
        said.append(f"Eager ratios differ by up to {apart:.1f} times between machines")
    return ". ".join(said) or "No ratio has an interval, because each rests on few processes"


def footnote(tables: Tables, ratios: DataFrame) -> str:
    """Return all cautions merged: what the numbers are, machines, order, correction, disturbed
    runs.
    """
    known = ratios.dropna(subset=["low"])
    few = ratios[(ratios.processes > 0) & (ratios.processes < FEWEST_PROCESSES)]
    said = []
    if len(known):
        pairs = span(known.processes, "{:.0f}")
        said.append(
            f"Times as fast, with 95% intervals over {pairs} pairs of fresh processes, "
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
            f"[ ] holds the lowest and highest of {count(fewest, 'machine')} or more around "
            "their median, because eager"
            f" times belong to a machine. Of further machines up to {2 / (fewest + 1):.0%} are "
            f"expected outside. {said_of_side(fewest)}"
        )
    eager = ~ratios.comparison.map(tables.comparisons.way).str.contains("graph")
    if eager.any() and ratios[eager].hosts.max() < FEWEST_HOSTS:
        said.append(
            "Eager times depend on the machine, so their intervals hold for this one and "
            "may not hold for others."
        )
    codes = {found.code for differing in ratios.differences for found in differing}
    cautions = list(dict.fromkeys(text for code, text in CAUTIONS.items() if code in codes))
    if codes & SOFTWARE_AND_HOST.keys():
        cautions.append("the two sides differ in machine or software, as ratios.csv says")
    if cautions:
        said.append(
            f"Caution, for some ratios: {'; '.join(cautions)}. Column *differences* of "
            "ratios.csv says which."
        )
    disturbed = tables.trainings[tables.trainings.disturbed]
    if len(disturbed):
        said.append(
            f"{count(len(disturbed), 'run')} of {len(tables.trainings)} were disturbed: throttled, "
            "or on a shared GPU."
        )
    return " ".join(said)


ROWS_OPEN = 24  # a longer table is folded
# comparisons: with more of them nobody reads a chart of each, so that this table has to do
MANY = 30


def numbers_section(tables: Tables) -> Section:
    """Return a row for each precision of each comparison, whose first cell links to a record,
    and the CSV files.
    """
    section = Section("All numbers", link="Numbers")
    bars = bars_of(tables, tables.comparisons.index)
    if bars.empty:
        return section
    timed = tables.trainings[tables.trainings.timed].drop_duplicates("comparison")
    metrics = timed.set_index("comparison").record.map(lambda run: run["metric_name"])
    fair = tables.axis.bases[-1]
    cells = {
        "model": bars.model,
        "task": bars.task,
        "run": bars.run.replace("", None),
        ", ".join(tables.axis.settings): bars.short,
        "s per epoch": Series(texts(bars.seconds)).where(bars.status == "ok", bars.status),
        f"over {tables.short(fair)}": texts(bars.ratio.where(bars.baseline == fair), "{:.2f}"),
        "GiB": texts(bars.gib, "{:.2f}"),
        "J per 1,000": texts(bars.joules),
        "metric": texts(bars.metric),
        "of": bars.comparison.map(metrics).replace("mean_absolute_error", "MAE"),
        "GPU idle": texts(bars.idle, "{:.0%}"),
        "runs": bars.runs,
    }
    # files below the report's folder can be linked to
    links = [
        "" if path.startswith("/") or not Path(tables.folder, path).is_file() else path
        for path in bars.path
    ]
    folded = "All numbers" if len(bars) > ROWS_OPEN else ""
    section.table(cells, folded, ("task", "run", "of"), links=links, sortable=True)
    said = (
        "GiB is PyTorch's peak of memory without the data set, and MAE is the mean absolute error."
        " [trainings.csv](trainings.csv) has a row for each training with all that was recorded"
    )
    said += ", [ratios.csv](ratios.csv) one for each ratio." if len(tables.ratios) else "."
    if len(tables.comparisons) > MANY:
        said += f" Of more than {MANY} comparisons time, steps, memory and energy have no charts."
    section.say(said)
    return section


ENVIRONMENT = {
    "GPU": "gpu_name",
    "device memory (MiB)": "device_total_mib",
    "power limit (W)": "power_watts_limit",
    "driver": "driver_version",
    "CUDA": "cuda_version",
    "cuDNN": "cudnn_version",
    "PyTorch": "torch_version",
    "timm": "timm_version",
    "Python": "python_version",
    "machine": "host_platform",
    "CPU": "host_cpu",
    "cores": "host_cores",
    "machine (hash)": "host_id",
    "package": "package_version",
    "commit of the suite": "commit",
}
METHOD = """Every repeat starts a fresh process, because two identical eager runs can differ by up
to 1.4 times while the epochs within one process hardly differ. A ratio compares runs of one card
and one seed, by the total time of their epochs; its interval is Student's over the logarithms of
the processes' ratios. *Faster* and *slower* need an interval that excludes 1 and a difference of
2%; *the same within 5%* needs a 90% interval inside 0.95 to 1.05; all else is inconclusive, which
does not mean the same. No ratio is judged of runs that did not train, that heat or hardware slowed
on one side, or that lasted less than two seconds. Quality compares equal seeds with a margin that
was fixed before any run: 0.2 points of accuracy, 2% of perplexity, 0.02 of the mean absolute error;
an outcome takes five seeds."""
FILES_NAMED = 3  # of those that are left out for one reason; of more their number is given


def method_section(tables: Tables) -> Section:
    """Return what ended badly, what was left out, the hardware and the method, folded."""
    section = Section("Method, hardware and records", folded=True, link="Method")
    section.say(plain(f"{tables.description} {said_of_found(tables)}"))
    add_failed(section, tables)
    if left_out := left_out_rows(tables):
        section.table(left_out, "Records that were left out")
    if tables.other_code:
        section.say(
            f"{count(len(tables.other_code), 'record')} of {len(tables.trainings)} are of another"
            " state of their notebook than its newest. Those that run_all.py had set aside are left"
            " out, the others are used."
        )
    # a training of several arms stands in several rows
    once = {record["path"]: record for record in tables.trainings.record}
    section.say(said_of_commits([*once.values()]))
    add_environment(section, tables)
    section.say(METHOD)
    return section


def add_failed(section: Section, tables: Tables) -> None:
    """Add the table of the runs that did not end well, with their reasons."""
    failed = tables.trainings[tables.trainings.status != "ok"]
    if failed.empty:
        return
    section.say(
        f"{count(len(failed), 'run')} of {len(tables.trainings)} did not end well, for these"
        " reasons:"
    )
    cells = {
        "comparison": failed.comparison.map(tables.comparisons.title),
        "precision": failed.precision.map(precision_name),
        "seed": failed.seed,
        "status": failed.status,
        "reason": [shorten(reason or "-", 140, placeholder="…") for reason in failed.reason],
    }
    section.table(cells, "Runs that did not end well")


def left_out_rows(tables: Tables) -> list[dict]:
    """Return a row for each reason why a record or file is not used, with the names of a few."""
    rows = []
    for reason, same in grouped(tables.left_out, itemgetter(1)).items():
        paths = [path for path, _ in same]
        more = f" and {len(paths) - FILES_NAMED} more" if len(paths) > FILES_NAMED else ""
        rows.append({"left out": ", ".join(paths[:FILES_NAMED]) + more, "why": reason})
    return rows


def add_environment(section: Section, tables: Tables) -> None:
    """Add the table of hardware and software, a column for each device, and what differs."""
    records = sorted(tables.trainings.record, key=lambda one: ORDER.index(one["precision"]))
    by_device = grouped(records, device_name)
    columns = {name: environment_of(by_device[name]) for name in sorted(by_device)}
    titles = dict.fromkeys(title for column in columns.values() for title in column)
    section.table(DataFrame(columns, titles).rename_axis("").reset_index())
    for name, column in columns.items():
        differing = ", ".join(title for title, text in column.items() if " | " in text)
        if differing:
            section.say(
                f"Caution: the runs on {plain(name)} differ in {differing};"
                " ratios.csv says which ratios do."
            )


def days_of(stamps: Iterable[str | None]) -> str:
    """Return the first and the last day of some times: "27 November 2026 to 28 November 2026"."""
    first = Series([str(one)[:10] for one in stamps], dtype=object)
    days = pd.to_datetime(first, format="%Y-%m-%d", errors="coerce").dropna()
    return span([*days], "{0.day} {0:%B %Y}") if len(days) else ""


def environment_of(records: Runs) -> dict:
    """Return {title: text} of hardware and software; several values are set side by side."""
    column = {
        "runs": str(len(records)),
        "cards": str(len({one["gpu_uuid"] for one in records} - {None}) or "-"),
        "measured on": days_of(one["finished_at"] for one in records) or "not known",
    }
    for title, name in ENVIRONMENT.items():
        column[title] = side_by_side(one[name] for one in records)
    for precision, own in grouped(records, itemgetter("precision")).items():
        column[f"switches, {precision_name(precision)}"] = side_by_side(map(switches_of, own))
    return column


def side_by_side(values: Iterable[Any]) -> str:
    """Return the different values as one text."""
    known = [one for one in values if one is not None]
    texts = {f"{one:.0f}" if isinstance(one, float) else str(one) for one in known}
    return " | ".join(sorted(texts)) or "not known"


def switches_of(record: dict) -> str | None:
    """Return PyTorch's switches as they were read back, or None where none was."""
    values = [record[f"fp32_precision_{part}"] for part in ("matmul", "conv", "rnn")]
    if not any(values):
        return None
    return f"{' / '.join(map(str, values))}, autocast {record['autocast_dtype'] or 'off'}"


LINE_LENGTH = 100  # characters of a sentence's line
CPU_WARNING = (
    "These runs were a smoke test on the CPU: they say nothing about what mixed precision buys."
)
PICTURE_WIDTH = 330  # pixels of the picture


def tables_of(records: list[RunRecord]) -> Tables:
    """Return the tables of one notebook's run: one comparison, in which no run is compared by
    its place.
    """
    flat = [flat_record(record) | {"runs_before_in_process": None} for record in records]
    # the first one names the model
    flat.sort(key=lambda one: (one["status"] != "ok", ORDER.index(one["precision"])))
    mark_diverged(flat)
    tables = Tables(on_cpu=any(one["device_type"] == "cpu" for one in flat))
    tables.trainings = DataFrame([training_row(one, 0) for one in flat])
    tables.comparisons = comparisons_of(tables.trainings)
    tables.ratios = ratios_of(tables)
    return tables


def bars_in(tables: Tables) -> DataFrame:
    """Return the rows of bars_of(), without a ratio on the CPU and for runs that did not train."""
    bars = bars_of(tables)
    bars.index = bars.precision.to_list()
    bars.loc[bars.outcome.eq(NOT_TRAINED) | tables.on_cpu, "ratio"] = float("nan")
    numbers = ["seconds", "seconds_low", "seconds_high", "gib", "metric", "ratio", "low", "high"]
    return bars.astype(dict.fromkeys(numbers, float))


def results_table(records: list[RunRecord]) -> DataFrame:
    """Return the result as texts, a row per precision: a gap is empty, and a column of gaps is
    left out.
    """
    tables = tables_of(records)
    bars = bars_in(tables)
    sizes = {one["precision"]: one["batch_size_used"] for one in reversed(tables.trainings.record)}
    metric = next((record.metric_name for record in records if record.metric_name), "metric")
    columns = {
        "batch": Series(sizes, dtype=float).map("{:,.0f}".format),
        "seconds per epoch": bars.seconds.map(short),
        f"times as fast as {precision_name(bars.baseline.iloc[0])}": bars.ratio.map(
            "{:.2f}".format
        ),
        "memory, GiB": bars.gib.map("{:.2f}".format),
        metric.replace("_", " "): bars.metric.map("{:.4g}".format),
    }
    if columns["batch"].nunique() == 1:
        del columns["batch"]
    table = DataFrame(columns).loc[bars.index].replace("nan", "")
    return table.loc[:, (table != "").any()].rename(index=precision_name)


def remark_on(record: dict, base: dict, ratio: dict | None) -> str:
    """Return what the table leaves open of a run: why it failed or gained nothing, else what
    limits it and what to try, and what disturbed it or its baseline.
    """
    name = record["precision"]
    if record["status"] != "ok":
        # a reason may be a whole sentence
        reason = (record["reason"] or "no reason was recorded").rstrip(".")
        return f"{name} ({outcome_words(record['status'])}): {reason}."
    if ratio and ratio["untrained"]:
        return f"{said(ratio['untrained'])}, so it has no speed-up."
    doubts = conditions_of(record, name)
    if ratio:
        doubts = [*doubts, *ratio["differences"], ratio["unlike"], ratio["lost"]]
    cautions = "; ".join(dict.fromkeys(said(one) for one in doubts if one))
    return f"{name}: {reasons_of(record, base)}." + (f" Caution: {cautions}." if cautions else "")


def reasons_of(record: dict, base: dict) -> str:
    """Return what limits a run and what to try, and why its memory or its format is not as
    expected.
    """
    limits = find_bottleneck(record)
    text = "".join(map(said, limits))
    if remedies := remedies_of(limits[0].code, record):
        text += f": try {tried(remedies)}"
    half = record["fp16_kernel_fraction"] or 0
    if record["precision"] == "amp_bf16" and half >= DISTURBED:
        text += (
            f"; {half:.0%} of kernel time is in fp16 all the same (autocast runs cuDNN's RNNs in"
            " fp16)"
        )
    if reason := memory_reason(record, base):
        text += f"; memory did not go down: {said(reason)}"
    return text


def conclusion(tables: Tables) -> str:
    """Return the answer in a sentence: what 16 bits gain over TF32 (or fp32); nothing where no such
    ratio is known.
    """
    if tables.on_cpu:
        return CPU_WARNING
    bars = bars_in(tables)
    gains = bars[bars.ratio.notna()]
    if gains.empty:
        return ""
    base = gains.baseline.iloc[0]
    name = gains.index[0]
    run = next(one for one in tables.trainings.record if one["precision"] == name)
    way = in_way(way_name(run["settings"].get("execution")))
    amounts = [f"{precision_name(arm)} {ratio:.2f} times" for arm, ratio in gains.ratio.items()]
    answer = f"{model_name(run)} {way}: {listed(amounts, 'and')} as fast as {precision_name(base)}"
    shares = [f"{share:.2f}" for share in (gains.gib / bars.gib[base]).dropna()]
    if len(shares) == len(gains):
        answer += f", with {listed([*dict.fromkeys(shares)], 'and')} of its peak memory"
    return f"{answer}."


def remarks_of(tables: Tables) -> list[str]:
    """Return a sentence for each run, with what its row in the table leaves open."""
    if tables.on_cpu:
        return [CPU_WARNING]
    remarks = []
    against = tables.runs(0, tables.base_in(0))
    for record in tables.trainings.record:
        ratio = tables.between([record], against) if record["status"] == "ok" else None
        text = remark_on(record, against[0] if against else record, ratio)
        remarks.append(re.sub(r"\w+", lambda found: precision_name(found[0]), text))
    return remarks


def order_of(records: list[RunRecord]) -> str:
    """Return what is to be known of several runs of one process, or nothing of a single one."""
    order = sorted(
        (one.runs_before_in_process, precision_name(one.precision))
        for one in records
        if one.status == "ok" and one.runs_before_in_process is not None
    )
    if len(order) < 2:
        return ""
    return (
        f"One process ran {listed([name for _, name in order], 'and')}, in this "
        "order. One run of each gives no interval, so a small difference may be chance."
    )


def in_notebook() -> bool:
    """Return whether IPython runs this process, which compare() and diagnose() do not need."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show_text(text: str) -> None:
    """Show a paragraph as Markdown, or, outside IPython, as lines of text."""
    if in_notebook():
        from IPython.display import display

        display(Sentence(plain(text)))
    else:
        print(textwrap.fill(text, LINE_LENGTH))


def pictures_of(rows: DataFrame) -> tuple[list[Figure], str]:
    """Return the bars of seconds and of memory, closed, because else a notebook shows them again,
    and what they are.
    """
    note = "Bars of the seconds of an epoch"
    parts = [second_bars(rows)]
    if rows.gib.notna().any():
        parts.append(memory_bars(rows))
        note += ", and of PyTorch's peak of memory without the data set"
    with chart_style():
        figures = [draw_bars(part) for part in parts]
    for figure in figures:
        plt.close(figure)
    return figures, f"{note}."


def show(records: list[RunRecord]) -> None:
    """Show the result of a notebook, way by way, and outside IPython as text."""
    for way in grouped(records, lambda one: json.dumps(one.settings | {"precisions": []})).values():
        show_way(way)


def show_way(records: list[RunRecord]) -> None:
    """Show what one way has given, its conclusion first."""
    tables = tables_of(records)
    rows = bars_in(tables)
    show_table = print
    if answer := conclusion(tables):
        show_text(answer)
    if in_notebook():
        from IPython.display import Image, display

        show_table = display
    if in_notebook() and not tables.on_cpu and len(rows) > 1:
        figures, note = pictures_of(rows)
        display(Image(picture_of(figures), width=PICTURE_WIDTH, alt=note))
        show_text(note)
    with pd.option_context(
        "display.max_colwidth", None, "display.max_columns", None, "display.width", 1000
    ):
        show_table(results_table(records))
    for sentence in filter(None, (order_of(records), *remarks_of(tables))):
        if sentence != answer:
            show_text(sentence)
