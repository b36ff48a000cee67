"""How numbers and texts are written, and names for people: of precisions, models, tasks, ways of
execution and settings.

Keys stand in the CSV files alone.
"""

import html
import re
from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from ..parameters import printable
from ..store.record import data_asked_for


def plain(text: object) -> str:
    """Return `text` on one line, escaped so that neither Markdown nor HTML in it takes effect,
    nor becomes a link.
    """
    text = html.escape(" ".join(printable(str(text)).split()), quote=False)
    return re.sub(r"([\\`*_\[\]$|~@]|:(?=//)|(?<=www)\.)", r"\\\1", text)


def count(number: int, word: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def listed(values: list, word: str = "or") -> str:
    """Return "2, 15 or 32"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} {word} {last}" if first else last


def natural(text: object) -> list[int | str]:
    """Return a sort key that puts resnet18 before resnet101."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(text))]


def short(number: float) -> str:
    """Return a number with three significant digits."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:#.3g}".rstrip(".")


def span(numbers: Collection[float], form: str = "{}") -> str:
    """Return "smallest to largest", or one number where both look alike."""
    return " to ".join(
        dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers)))
    )


def texts(column: Iterable, form: str = "") -> list[str | None]:
    """Return numbers as the cells of a column, in a form or with three significant digits; None
    where one is unknown.
    """
    write = form.format if form else short
    return [None if pd.isna(value) else write(value).replace("-", "−") for value in column]


def spans(values: pd.Series, names: pd.Series, form: str = "{}", unit: str = "") -> str:
    """Return "eager 1 to 2%, CUDA graph 3%": the span of the values of each name, in order."""
    parts = values.groupby(names, sort=False)
    return ", ".join(f"{name} {span(list(part), form)}{unit}" for name, part in parts)


def ratio_texts(rows: pd.DataFrame) -> list[str | None]:
    """Return "1.52 (1.50–1.54)" for each row, "1.52" where there is no interval, None where there
    is no ratio.
    """
    found = rows[["ratio", "low", "high"]].astype(float)
    limits = [" ({:.2f}–{:.2f})".format(*one) for one in found[["low", "high"]].to_numpy()]
    ends = pd.Series(limits, rows.index).where(found.low.notna(), "")
    return list(found.ratio.map("{:.2f}".format).add(ends).where(found.ratio.notna(), None))


def times(ratio: float) -> str:
    """Return "1.5×", with two decimals where one would hide on which side of 1 it is."""
    return f"{ratio:.2f}×" if ratio < 0.995 or 1.005 < ratio < 1.05 else f"{ratio:.1f}×"


# key of a precision: (short name, full name), in the order of every table and chart
NAMES = {
    "fp32": ("fp32", "fp32"),
    "tf32": ("TF32", "TF32"),
    "amp_fp16": ("fp16", "fp16 AMP"),
    "amp_bf16": ("bf16", "bf16 AMP"),
    "o2_fp16": ("O2", "fp16 weights (Apex O2)"),
    "o3_fp16": ("O3", "fp16 throughout (Apex O3)"),
    "bf16_true": ("pure bf16", "bf16 throughout"),
    "fp8": ("fp8", "fp8"),
}
LOOKS = {  # (colour, marker), the same in every chart
    "fp32": ("#8b939c", "v"),
    "tf32": ("#0072b2", "D"),
    "amp_fp16": ("#e69f00", "o"),
    "amp_bf16": ("#009e73", "s"),
    "o2_fp16": ("#cc79a7", "P"),
    "o3_fp16": ("#d55e00", "X"),
    "bf16_true": ("#56b4e9", "^"),
    "fp8": ("#8c564b", "d"),
}
ORDER = list(NAMES)
# both are printed, because choosing one afterwards favours it
AMP = ("amp_fp16", "amp_bf16")
COLOURS = {key: colour for key, (colour, _) in LOOKS.items()}
WAYS = {
    "eager": "eager",
    "compile": "compiled",
    "cuda_graph": "CUDA graph",
    "compile_cuda_graph": "compiled CUDA graph",
}
TRUTH = {"true": True, "false": False}  # as YAML writes it
METRICS = {
    "accuracy": "accuracy",
    "perplexity": "perplexity",
    "mean_absolute_error": "mean absolute error",
}


def short_name(precision: str) -> str:
    """Return the name of a precision for an axis."""
    return NAMES[precision][0] if precision in NAMES else precision


def precision_name(precision: str) -> str:
    """Return the name of a precision for a sentence."""
    return NAMES[precision][1] if precision in NAMES else precision


def model_name(record: dict) -> str:
    """Return the name of the model of a record as its experiment gives it, else its key."""
    return record["model_title"] or str(record["settings"]["model"])


def arm_name(settings: Sequence[str], arm: str) -> str:
    """Return the name of an arm for a sentence: its own, else what is set to what."""
    names = zip(settings, arm.split(", "), strict=False)
    return ", ".join(setting_name(name, TRUTH.get(value, value)) for name, value in names)


def bare(model: str) -> str:
    """Return the name of a model without its size, for a sentence."""
    return model.partition(",")[0]


def task_name(record: dict, sized: bool = True) -> str:
    """Return data and (`sized`) batch of a record, such as "CIFAR-10, batch 128"; made-up data
    are named.
    """
    key = str(record["dataset_used"] or data_asked_for(record) or "unknown data")
    data = record["data_title"] or ("made-up data" if key == "synthetic" else key)
    if record["synthetic"] and key != "synthetic":
        data += " (made up)"
    if not sized:
        return data
    size = record["settings"]["batch_size"]
    return f"{data}, " + ("largest batch" if size == "max" else f"batch {size}")


def way_name(execution: str | None) -> str:
    """Return how steps were executed, in words."""
    return WAYS.get(execution or "eager", str(execution))


def in_way(way: str) -> str:
    """Return a way of execution as a clause."""
    return "in eager mode" if way == "eager" else f"as a {way}" if "graph" in way else way


def setting_name(name: str, value: object) -> str:
    """Return a parameter with its value as a short label."""
    if name == "data_fingerprint":
        return "data not recorded" if value is None else f"data {str(value)[:6]}"
    if name.startswith("identity "):
        return f"{name} {value}"
    if value is None:
        return f"{name} unknown"
    if name == "precision":
        return precision_name(str(value))
    if name == "execution":
        return way_name(str(value))
    if name == "memory_limit_gib":
        return f"at most {value:g} GiB" if value else "whole card"
    if name == "max_steps" and value == 0:
        return "whole epochs"
    if isinstance(value, bool):
        name = {"keep_batchnorm_fp32": "fp32 BatchNorm"}.get(name, name)
        return name if value else f"without {name}"
    if name == "scaler":
        return "loss scaler on the GPU" if value == "device" else "usual loss scaler"
    if name == "rounding":
        return f"{value} rounding"
    if name == "optimizer":
        return str(value)
    return f"{name.replace('_', ' ')} {f'{value:g}' if isinstance(value, int | float) else value}"
