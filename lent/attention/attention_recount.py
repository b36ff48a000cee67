"""A recount of the page on attention from the CSV files alone; it shares no code with the package.

    python attention_recount.py CLONE

Reads outputs/main/attention-h200/trainings.csv and errors.csv, computes the ratios, their intervals,
the interaction and the quality anew, and compares them with every number and cell of
docs/answers/attention.md and of the folder's README.md. Exit status 1 where one differs.
"""

import csv
import math
import re
import sys
from pathlib import Path

# Student's t of 95% and 90% (two-sided) by degrees of freedom, from a printed table
T95 = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 6: 2.44691, 7: 2.36462}
T90 = {1: 6.31375, 2: 2.91999, 3: 2.35336, 4: 2.13185, 5: 2.01505, 6: 1.94318, 7: 1.89458}
ARMS = {
    "base": ("tf32", "fp32", "auto"),
    "attention": ("tf32", "bf16", "auto"),
    "products": ("amp_bf16", "fp32", "auto"),
    "both": ("amp_bf16", "bf16", "auto"),
    "efficient": ("amp_bf16", "bf16", "efficient"),
}
ROWS = {
    "**bf16 AMP**": ("both", "base"),
    "attention, first": ("attention", "base"),
    "attention, second": ("both", "products"),
    "products, first": ("products", "base"),
    "products, second": ("both", "attention"),
    "bf16 AMP, efficient kernel": ("efficient", "base"),
}
wrong = []


def told(what: str, page: str, ours: str) -> None:
    mark = "" if page == ours else "   DIFFERS"
    print(f"{what:45} page {page:28} recount {ours}{mark}")
    if mark:
        wrong.append(what)


def mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def half(numbers: list[float], t: dict) -> float:
    middle, count = mean(numbers), len(numbers)
    variance = math.fsum((one - middle) ** 2 for one in numbers) / (count - 1)
    return t[count - 1] * math.sqrt(variance / count)


def trainings(folder: Path) -> list[dict]:
    with (folder / "trainings.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["status"] == "ok"]


def seconds(row: dict) -> float:
    """Return the timed seconds; there is one epoch."""
    assert float(row["epochs"]) == 1
    return float(row["seconds"])


def pairs(rows: list[dict], own: str, base: str, context: int) -> dict[tuple, float]:
    """Return {(seed, repetition, card): logarithm of base's seconds over the arm's}."""

    def of(arm: str) -> dict[tuple, float]:
        wanted = (*ARMS[arm], str(context), "768", "compile_cuda_graph")
        names = ("precision", "attention_dtype", "attention", "context", "width", "execution")
        found = {}
        for row in rows:
            if tuple(number_text(row[name]) for name in names) == wanted:
                place = row["seed"], number_text(row["repeat"]), row["gpu_uuid"]
                assert place not in found, f"two runs of {arm} at {place}"
                found[place] = seconds(row)
        return found

    first, second = of(own), of(base)
    return {place: math.log(second[place] / first[place]) for place in first if place in second}


def number_text(value: str) -> str:
    return value.removesuffix(".0")


def in_words(logs: list[float]) -> str:
    """Return a ratio with its interval as the table has it, or alone below three processes."""
    if not logs:
        return "-"
    middle = f"{math.exp(mean(logs)):.2f}"
    if len(logs) < 3:
        return middle
    wide = half(logs, T95)
    return f"{middle} ({math.exp(mean(logs) - wide):.2f}–{math.exp(mean(logs) + wide):.2f})"


def span(numbers: list[float], form: str) -> str:
    low, high = format(min(numbers), form), format(max(numbers), form)
    return low if low == high else f"{low} to {high}"


def interaction(rows: list[dict], context: int) -> list[float]:
    first = pairs(rows, "attention", "base", context)
    second = pairs(rows, "both", "products", context)
    return [second[one] - first[one] for one in first if one in second]


def holds_one(folder: Path) -> list[str]:
    """Return the contexts where the interval of the interaction holds 1."""
    rows, held = trainings(folder), []
    for name, context in (("long", 8192), ("middle", 1024), ("short", 128)):
        logs = interaction(rows, context)
        if len(logs) < 3 or abs(mean(logs)) <= half(logs, T95):
            held.append(name)
    return held


def main(root: Path) -> int:
    folder = root / "outputs/main/attention-h200"
    rows = trainings(folder)
    texts = {
        "answer": (root / "docs/answers/attention.md").read_text(encoding="utf-8"),
        "README": (folder / "README.md").read_text(encoding="utf-8"),
    }
    quoted = {
        (page, name): value
        for page, text in texts.items()
        for name, value in re.findall(r"<!--(\w+)-->(.*?)<!--/-->", text)
    }
    # the table
    table = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in texts["answer"].splitlines()
        if line.startswith("|")
    ]
    contexts = [int(cell.replace(",", "")) for cell in table[0][1:]]
    for line in table[2:]:
        for context, cell in zip(contexts, line[1:], strict=True):
            if line[0] == "interaction":
                ours = in_words(interaction(rows, context))
            else:
                ours = in_words([*pairs(rows, *ROWS[line[0]], context).values()])
            told(f"{line[0]} at {context}", cell.replace("~", "").replace("**", ""), ours)
    # the sentences
    known: dict[str, str] = {}
    counts, held = [], holds_one(folder)
    for name, context in (("long", 8192), ("middle", 1024), ("short", 128)):
        logs = [*pairs(rows, "both", "base", context).values()]
        known[name] = f"{math.exp(mean(logs)):.2f}"
        known[f"c_{name}"] = f"{context:,}"
        if name == "long":
            wide = half(logs, T95)
            known["long_low"] = f"{math.exp(mean(logs) - wide):.2f}"
            known["long_high"] = f"{math.exp(mean(logs) + wide):.2f}"
        words = ("first",) if name in held else ("first", "second")
        orders = [pairs(rows, *ROWS[f"attention, {order}"], context) for order in words]
        known[f"{name}_attention"] = span([math.exp(mean([*one.values()])) for one in orders], ".2f")
        names = [*ROWS.values()]
        counts += [len(found) for pair in names if (found := pairs(rows, *pair, context))]
    known["n"] = span(counts, ".0f")
    # the last bits per byte of the small GPT
    last = {
        (row["seed"], row["gpu_uuid"], row["attention_dtype"]): float(row["metric"])
        for row in rows
        if number_text(row["width"]) == "256"
    }
    logs = [
        math.log(last[seed, card, "bf16"] / value)
        for (seed, card, dtype), value in last.items()
        if dtype == "fp32" and (seed, card, "bf16") in last
    ]
    if len(logs) > 2:
        wide = half(logs, T90)
        known["worse"] = f"{math.exp(mean(logs)) - 1:+.2%}"
        known["worse_low"] = f"{math.exp(mean(logs) - wide) - 1:+.2%}"
        known["worse_high"] = f"{math.exp(mean(logs) + wide) - 1:+.2%}"
        known["seeds"] = "no one two three four five six seven eight".split()[len(logs)]
        known["margin"] = "1%"  # of the plan
    if (folder / "errors.csv").exists():
        with (folder / "errors.csv").open(encoding="utf-8", newline="") as file:
            found = [row for row in csv.DictReader(file) if row["output"]]
        for name, kernel, kind, form in (
            ("error_bf16", "flash", "bf16", ".1%"),
            ("error_tf32", "efficient", "tf32", ".5%"),
        ):
            values = [float(row["output"]) for row in found
                      if (row["kernel"], row["format"]) == (kernel, kind)]
            if values:
                known[name] = span(values, form)
    def ratio(own, base, context, execution="compile_cuda_graph"):
        def second(arm):
            wanted = (*arm, str(context), "768", execution, "0")
            names = ("precision", "attention_dtype", "attention", "context", "width", "execution", "repeat")
            (row,) = [row for row in rows if tuple(number_text(row[name]) for name in names) == wanted
                      and (arm[2] == "auto" or row["gpu_uuid"] == first_card)] or [None]
            return row
        a, b = second(own), second(base)
        return float(b["seconds"]) / float(a["seconds"]), float(a["gib"]) / float(b["gib"]) - 1
    first_card = next(row["gpu_uuid"] for row in rows if number_text(row["context"]) == "4096")
    base, att, prod, both = (ARMS[name] for name in ("base", "attention", "products", "both"))
    known["four"] = f"{ratio(both, base, 4096)[0]:.2f}"
    known["four_attention"] = span([ratio(att, base, 4096)[0], ratio(both, prod, 4096)[0]], ".2f")
    known["cudnn"] = f"{ratio(('amp_bf16', 'bf16', 'cudnn'), base, 8192)[0]:.2f}"
    known["flash"] = f"{ratio(('amp_bf16', 'bf16', 'flash'), base, 8192)[0]:.2f}"
    known["math"] = f"{ratio(('amp_bf16', 'bf16', 'math'), base, 1024)[0]:.2f}"
    known["math_tf32"] = f"{ratio(('tf32', 'fp32', 'math'), base, 1024)[0]:.2f}"
    known["math_peak"] = f"{ratio(('tf32', 'fp32', 'math'), base, 1024)[1]:.0%}"
    known["eager"] = f"{ratio(both, base, 1024, 'eager')[0]:.2f}"
    known["eager_attention"] = span([ratio(att, base, 1024, "eager")[0], ratio(both, prod, 1024, "eager")[0]], ".2f")
    words = {"2": "two", "3": "three", "4": "four"}
    for (page, name), value in quoted.items():
        ours = known.get(name, "not recounted")
        if page == "README" and name == "n":
            ours = " to ".join(words[one] for one in known["n"].split(" to "))
        told(f"{page}: {name}", value, ours)
    print(f"{len(rows)} trainings, {len(wrong)} numbers differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
