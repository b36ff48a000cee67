"""What the lines to copy gained: their numbers, their table and their picture.

The records are of benchmarks/lines.py. README has a comment above each line, as in "# compile: ...",
which `gains` fills.
"""

import functools
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from mixed_precision_study.report.charts import drawn_as  # noqa: E402
from mixed_precision_study.report.words import LOOKS, span  # noqa: E402

FOLDERS = ("checks/lines-h100", "checks/lines-h200")  # the first that measured a model counts
MODELS = {"resnet18": "ResNet-18", "efficientnet": "EfficientNet", "gpt": "GPT"}
ROWS = {"default": "PyTorch's default", "tf32": "TF32", "compile": "torch.compile"}
BREAKS = {  # where a word may end its line, because a table must not be wider than a phone
    "EfficientNet": "Efficient&shy;Net",
    "channels_last": "channels_<wbr>last",
    "torch.compile": "torch.<wbr>compile",
}
ARMS = {"fp16": "amp_fp16", "bf16": "amp_bf16"}  # the others are rows of TF32
FEWEST = 3  # processes, from which on a ratio has an interval that decides something


@functools.cache
def measured(outputs: Path) -> pd.DataFrame:
    """Return a row for each line of each model: what lines.summary_of() says of it, with the name
    of its `model`, its `card`, and `mean`, `low`, `high` and `pairs` of its gain over its base.
    """
    import lines  # it loads PyTorch, which nothing else here needs

    parts = []
    for folder in FOLDERS:
        rows = lines.results(outputs / folder / "measured.jsonl")
        runs = [row | {"run": row["process"]} for row in rows]
        for model, name in MODELS.items():
            found = pd.DataFrame(lines.summary_of(runs, model))
            if len(found):
                card = next(row["gpu"].split()[1] for row in rows if row["model"] == model)
                gained = pd.json_normalize(found.over_base).rename(columns={"n": "pairs"})
                parts.append(found.join(gained).assign(model=name, card=card))
    table = pd.concat(parts, ignore_index=True)
    cards = table.groupby("model").card.transform("first")
    return table[table.card == cards]


def gain(row: pd.Series) -> str:
    """Return a row's gain, with a "~" where it is of few processes or may be 1."""
    sure = row.pairs >= FEWEST and not row.low <= 1 <= row.high
    return f"{'' if sure else '~'}{row['mean']:#.2g}x"


def gains(outputs: Path) -> dict[str, str]:
    """Return {row: what its line gained in each model}, as "ResNet-18 ~0.95x, GPT 2.4x"."""
    table = measured(outputs)
    gained = table[table.pairs > 0]
    texts = gained.model + " " + gained.apply(gain, axis=1)
    return texts.groupby(gained.row).agg(", ".join).to_dict()


def numbers(outputs: Path) -> dict[str, str]:
    """Return {name: text} of what pages say of the lines: cards, processes, the gain of bf16, and
    what compiling with bf16 costs at most. It costs less where a row before compiled parts of it.
    """
    table = measured(outputs)
    bf16 = table[table.row == "bf16"].set_index("model")
    layout = table[(table.row == "channels_last") & (table.model == MODELS["efficientnet"])]
    cards = table.groupby("card").model.unique().map(" and ".join)
    runs = table.groupby("model", sort=False).n.agg(span)
    found = {f"line_{key}": interval(bf16.loc[name]) for key, name in MODELS.items()}
    return found | {
        "line_cards": "; ".join(f"{models}: {card}" for card, models in cards.items()),
        "line_runs": ", ".join(f"{model} {number}" for model, number in runs.items()),
        "line_layout": f"{layout['mean'].item():.1f}",
        "line_seconds": f"{bf16.cold_seconds.explode().max():.0f}",
        "line_steps": f"{bf16.cold_steps.explode().max():,}",
    }


def interval(row: pd.Series) -> str:
    """Return a gain with its interval and its number of processes."""
    return f"{row['mean']:.2f} ({row.low:.2f} to {row.high:.2f}, n = {row.pairs:.0f})"


def table_of(outputs: Path) -> str:
    """Return the table of the answer page: milliseconds a step and PyTorch's peak, line by line."""
    table = measured(outputs)
    texts = table.apply("{0.step_ms:.1f} ms, {0.allocated_gib:.1f} GiB".format, axis=1)
    table = table.assign(text=texts, column=table.model + ", " + table.card)
    cells = table.pivot(index="row", columns="column", values="text")
    cells = cells.loc[table.row.unique(), table.column.unique()].fillna("-").rename(index=ROWS)
    rows = [["line", *cells.columns], ["---"] * (1 + len(cells.columns))]
    rows += [[name, *row] for name, row in zip(cells.index, cells.values, strict=True)]
    text = "\n".join(f"|{'|'.join(row)}|" for row in rows)
    for name, broken in BREAKS.items():
        text = text.replace(name, broken)
    return text


def dot_rows(outputs: Path) -> pd.DataFrame:
    """Return rows of dots(): what each line to copy gained over the row that it adds to."""
    table = measured(outputs)
    table = table[table.pairs > 0]
    arms = table.row.map(ARMS).fillna("tf32")
    names = table.row.replace(ROWS) + table.step_ms.map(", {:.1f} ms a step".format)
    table = table.assign(
        panel=table.model,
        about=table.card + ", what each line gains",
        row=names,
        arm=arms,
        colour=arms.map({arm: colour for arm, (colour, _) in LOOKS.items()}),
        mark=arms.map({arm: mark for arm, (_, mark) in LOOKS.items()}),
        strong=False,
        ratio=table["mean"],
        lowest=table.low,
        highest=table.high,
        ranged=False,
        seconds=float("nan"),
        takes="",
        short="",
    )
    return drawn_as(table, list(MODELS.values()))
