"""What documents show of the committed records: tables and numbers in their text, and pictures.

python docs/figures.py      draw the pictures in docs/images anew, for light and dark pages
"""

import functools
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mixed_precision_study.report import growth, ladder, quality  # noqa: E402
from mixed_precision_study.report.charts import chart_style, opening, picture_of  # noqa: E402
from mixed_precision_study.report.names import short_name  # noqa: E402
from mixed_precision_study.report.section import Chart, Section  # noqa: E402
from mixed_precision_study.report.tables import Tables, bars_of, read_tables  # noqa: E402
from mixed_precision_study.report.words import span  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTHS = ("main/crossover-h100", "main/crossover-h200")
AMP = ("amp_fp16", "amp_bf16")  # both are shown, because choosing one after measuring favours it
CARDS = ("main/reference-h100", "main/reference-h200")
EAGER_SETS = (*CARDS, "main/ladder-h200", "main/quick-h100", "main/executed-h100", "checks/eager-hosts-h100.zip")
EAGER_SETS += tuple(f"archive/{name}.zip" for name in ("first-h200", "quick-earlier-h100", "quick-h200"))
BATCHES = {"ResNet-18": 128, "EfficientNet-B0": 32, "LSTM, 2 × 200 units": 20}  # of the three experiments
IMAGE_MODELS = list(BATCHES)[:2]


@functools.cache
def read(outputs: Path, folder: str) -> Tables:
    return read_tables(outputs / folder)


@functools.cache
def bars(outputs: Path, folders: tuple[str, ...], way: str) -> pd.DataFrame:
    """Return the bars_of() the three experiments in one way of execution, in NCHW layout, with their `folder`.

    `energy` is the share of the joules of TF32, and `strict` says how many times as fast the bar is as fp32.
    """
    parts = []
    for folder in folders:
        tables = read(outputs, folder)
        found = bars_of(tables, tables.comparisons.index)
        wanted = [
            comparison["name"] in BATCHES
            and comparison.batch == BATCHES[comparison["name"]]
            and comparison.way == way
            and not comparison.settings.get("channels_last")
            for _, comparison in tables.comparisons.loc[found.comparison].iterrows()
        ]
        strict = tables.ratios[tables.ratios.baseline == "fp32"].set_index(["comparison", "precision"]).ratio
        joules = found.comparison.map(found[found.precision == "tf32"].set_index("comparison").joules)
        keys = zip(found.comparison, found.precision, strict=True)
        found = found.assign(folder=folder, energy=found.joules / joules, strict=[strict.get(key) for key in keys])
        parts.append(found[wanted])
    return pd.concat(parts, ignore_index=True)


@functools.cache
def headline(outputs: Path) -> str:
    """Return the README's table: what AMP gains over TF32, a row for each model and format."""
    graphs, eager = bars(outputs, CARDS, "CUDA graph"), bars(outputs, EAGER_SETS, "eager")
    judged = read(outputs, "main/quality-h100").quality.merge(
        read(outputs, "main/quality-h100").comparisons["name"], left_on="comparison", right_index=True
    )
    head = ["AMP over TF32", "format", "speed, CUDA graph", "speed, eager", "memory", "energy", "quality (seeds)"]
    rows = [head, ["---"] * len(head)]
    for model in BATCHES:
        for precision in AMP:
            own, other = (one[(one.model == model) & (one.precision == precision)] for one in (graphs, eager))
            found = judged[(judged["name"] == model) & (judged.precision == precision)].iloc[0]
            cells = [model.partition(",")[0] if precision == AMP[0] else "", short_name(precision)]
            cells += [f"{span(one.ratio.dropna(), '{:.2f}')}×" for one in (own, other)]
            cells += [less(own.saved), less(1 - own.energy)]
            rows.append([*(cell.replace(" to ", "–") for cell in cells), f"{found.outcome} ({found.seeds})"])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def less(saved: pd.Series) -> str:
    """Return shares that are saved as "31 to 32% less"."""
    if saved.isna().any():
        return "not measured"
    return f"{span(100 * saved.abs(), '{:.0f}')}% {'less' if saved.min() > 0 else 'more'}"


def hosts(outputs: Path) -> str:
    """Return on how many hosts the runs of each experiment in the opening figure were made."""
    tables = read(outputs, "main/reference-h200")
    runs = tables.trainings[tables.trainings.timed].join(tables.comparisons["name"], on="comparison")
    numbers = runs.groupby("name").host.nunique()
    return "one machine" + "".join(f" ({model}: {number})" for model, number in numbers.items() if number > 1)


def grown(outputs: Path, folder: str) -> pd.DataFrame:
    """Return the pairs of neighbouring precisions over the width of ViT and Transformer."""
    tables = read(outputs, folder)
    return pd.concat([growth.pairs_of(tables, one) for one in growth.families_of(tables)], ignore_index=True)


@functools.cache
def numbers(outputs: Path) -> dict[str, str]:
    """Return {name: text} of the numbers that stand in sentences, between <!--name--> and <!--/-->."""
    graphs, eager = bars(outputs, CARDS, "CUDA graph"), bars(outputs, EAGER_SETS, "eager")
    images = graphs[graphs.model.isin(IMAGE_MODELS)]
    amp = images[images.precision.isin(AMP)]
    tf32 = pd.concat([graphs, eager])
    tf32 = tf32[(tf32.precision == "tf32") & tf32.model.isin(IMAGE_MODELS)]
    judged = read(outputs, "main/quality-h100").quality
    found = {"hosts": hosts(outputs), "tf32": one_digit(tf32.strict)}
    found |= {"memory": span(100 * amp.saved, "{:.0f}"), "energy": span(100 * amp.energy, "{:.0f}")}
    sets = eager[eager.precision.isin(AMP)].dropna(subset="ratio").groupby(["model", "precision"]).folder.nunique()
    found["sets"] = span(sets).replace("to", "or")
    found["seeds"] = span(list(judged[judged.precision.isin(AMP)].seeds))
    for model, short in zip(BATCHES, ("resnet", "efficientnet", "lstm"), strict=True):
        own, other = graphs[graphs.model == model], eager[eager.model == model]
        for precision in AMP:
            name = f"{short}_{short_name(precision)}"
            found[name] = one_digit(own[own.precision == precision].ratio)
            found[f"{name}_eager"] = span(other[other.precision == precision].ratio.dropna(), "{:.2f}")
            found[f"{name}_memory"] = span(100 * own[own.precision == precision].saved.abs(), "{:.0f}")
        sides = [one[(one.precision == "tf32") & one.folder.isin(CARDS)].set_index("folder").seconds
                 for one in (other, own)]  # fmt: skip
        found[f"{short}_graph"] = one_digit(sides[0] / sides[1])
    for precision in AMP:
        own = graphs[graphs.precision == precision]
        found |= {short_name(precision): one_digit(own.ratio), f"{short_name(precision)}_strict": one_digit(own.strict)}
    both = pd.concat([grown(outputs, folder).assign(folder=folder) for folder in WIDTHS])
    for precision, base, name in (("tf32", "fp32", "tf32_wide"), ("amp_bf16", "tf32", "bf16_wide")):
        found[name] = one_digit(both[(both.precision == precision) & (both.base == base)].ratio)
    widest = both[(both.precision == "fp8") & (both["size"] == 4096)]
    found["fp8_wide"] = span(100 * (widest.ratio - 1), "{:.0f}")
    vit = both[(both.precision == "fp8") & both.family.str.startswith("ViT")]
    found["fp8_vit"] = span(100 * (1 - vit.ratio), "{:.0f}")
    return found


def one_digit(ratios: pd.Series) -> str:
    return span(list(ratios.dropna()), "{:.1f}")


def charts_of(section: Section) -> list:
    return next(part for part in section.parts if isinstance(part, Chart)).figures


def main(outputs: Path = ROOT / "outputs") -> None:
    """Draw every picture twice, and the opening figure once more in one column for phones."""
    IMAGES.mkdir(exist_ok=True)
    pictures = {
        "opening": lambda: opening(bars_of(read(outputs, "main/reference-h200"))),
        "growth": lambda: charts_of(growth.section(read(outputs, "main/crossover-h200"))),
        "ladder": lambda: charts_of(ladder.section(read(outputs, "main/ladder-h200"))),
        "quality": lambda: charts_of(quality.section(read(outputs, "main/quality-h100"))),
    }
    for name, draw in pictures.items():
        for dark in (False, True):
            ending = "-dark" * dark
            with chart_style():
                (IMAGES / f"{name}{ending}.png").write_bytes(picture_of(draw(), dark=dark))
                if name == "opening":
                    (IMAGES / f"{name}-narrow{ending}.png").write_bytes(picture_of(draw(), dark=dark, columns=1))


if __name__ == "__main__":
    main()
