"""What documents show of the committed records: tables and numbers in their text, and pictures.

python docs/figures.py      draw the pictures in docs/images anew, for light and dark pages
"""

import functools
import sys
from itertools import product
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mixed_precision_study.report import first_screen, growth, ladder, quality  # noqa: E402
from mixed_precision_study.report.charts import chart_style, opening, picture_of  # noqa: E402
from mixed_precision_study.report.names import short_name  # noqa: E402
from mixed_precision_study.report.section import Chart, Section  # noqa: E402
from mixed_precision_study.report.sure import cell_of  # noqa: E402
from mixed_precision_study.report.tables import Tables, bars_of, read_tables  # noqa: E402
from mixed_precision_study.report.words import span  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTHS = ("main/crossover-h100", "main/crossover-h200")
AMP = ("amp_fp16", "amp_bf16")  # both are shown, because choosing one after measuring favours it
REFERENCE = "main/reference-h100"
NCHW = ("archive/reference-earlier-h100.zip", "main/reference-h200")  # graphs in the layout that is slower with AMP
EAGER_SETS = (*NCHW, "main/ladder-h200", "main/quick-h100", "main/executed-h100")
EAGER_SETS += tuple(f"archive/{name}.zip" for name in ("first-h200", "quick-earlier-h100", "quick-h200"))
WAYS = ("compiled CUDA graph", "CUDA graph", "eager")
SHOWN = (WAYS[0], WAYS[2])  # in the README's table
BATCHES = {"ResNet-18": 128, "EfficientNet-B0": 32, "LSTM, 2 × 200 units": 20}  # of the three experiments
NAMES = dict(zip(BATCHES, ("resnet", "efficientnet", "lstm"), strict=True))  # of the numbers below
STEPS = {"CUDA graph": "graph", "channels_last": "layout", "torch.compile": "compile"}
IMAGE_MODELS = list(BATCHES)[:2]


@functools.cache
def read(outputs: Path, folder: str) -> Tables:
    return read_tables(outputs / folder)


@functools.cache
def bars(outputs: Path, folders: tuple[str, ...], way: str, channels_last: bool = False) -> pd.DataFrame:
    """Return the bars_of() the three experiments in one way of execution and layout of images, with their `folder`.

    `energy` is the share of the joules of TF32, `strict` says how many times as fast the bar is as fp32, and `cell` is
    the ratio over TF32 with its interval or the range of its hosts, whose ends are `lowest` and `highest`.
    """
    parts = []
    for folder in folders:
        tables = read(outputs, folder)
        found = bars_of(tables, tables.comparisons.index)
        wanted = [
            comparison["name"] in BATCHES
            and comparison.batch == BATCHES[comparison["name"]]
            and comparison.way == way
            and comparison.settings.get("channels_last", channels_last) == channels_last
            for _, comparison in tables.comparisons.loc[found.comparison].iterrows()
        ]
        over = tables.ratios.assign(cell=[cell_of(row) for row in tables.ratios.itertuples()])
        over = over.set_index(["baseline", "comparison", "precision"])[["ratio", "cell", "lowest", "highest"]]
        keys = [(one.comparison, one.precision) for one in found.itertuples()]
        found = found.assign(folder=folder)
        found["strict"] = [over.ratio.get(("fp32", *key)) for key in keys]
        for name in ("cell", "lowest", "highest"):
            found[name] = [over[name].get(("tf32", *key)) for key in keys]
        parts.append(found[wanted])
    return pd.concat(parts, ignore_index=True)


def referred(outputs: Path, way: str) -> pd.DataFrame:
    """Return the bars of the reference in one way: graphs in channels_last, eager mode in NCHW as people run it."""
    return bars(outputs, (REFERENCE,), way, way != "eager")


@functools.cache
def headline(outputs: Path) -> str:
    """Return the README's table: what AMP gains over TF32, a row for each model and format."""
    ways = [referred(outputs, way) for way in SHOWN]
    judged = read(outputs, "main/quality-h100").quality.merge(
        read(outputs, "main/quality-h100").comparisons["name"], left_on="comparison", right_index=True
    )
    head = ["AMP over TF32", "format", *(f"speed, {way}" for way in SHOWN), "memory", "energy", "quality (seeds)"]
    rows = [head, ["---"] * len(head)]
    for model in BATCHES:
        for precision in AMP:
            own = [one[(one.model == model) & (one.precision == precision)] for one in ways]
            found = judged[(judged["name"] == model) & (judged.precision == precision)].iloc[0]
            cells = [model.partition(",")[0] if precision == AMP[0] else "", short_name(precision)]
            cells += [one.cell.iloc[0] for one in own]
            cells += [less(own[0].saved), less(1 - own[0].energy)]
            rows.append([*(cell.replace(" to ", "–") for cell in cells), f"{found.outcome} ({found.seeds})"])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def less(saved: pd.Series) -> str:
    """Return shares that are saved as "31 to 32% less"."""
    if saved.isna().any():
        return "not measured"
    return f"{span(100 * saved.abs(), '{:.0f}')}% {'less' if saved.min() > 0 else 'more'}"


def gains(outputs: Path) -> pd.DataFrame:
    """Return what each step of the reference gains in each precision: the graph, the layout and the compiler."""
    tables = read(outputs, REFERENCE)
    return ladder.ways_of(tables, pd.DataFrame()).join(tables.comparisons["name"], on="before")


def grown(outputs: Path, folder: str) -> pd.DataFrame:
    """Return the pairs of neighbouring precisions over the width of ViT and Transformer."""
    tables = read(outputs, folder)
    return pd.concat([growth.pairs_of(tables, one) for one in growth.families_of(tables)], ignore_index=True)


@functools.cache
def numbers(outputs: Path) -> dict[str, str]:
    """Return {name: text} of the numbers that stand in sentences, between <!--name--> and <!--/-->."""
    ways = {way: referred(outputs, way) for way in WAYS}
    graphs, sets = ways[WAYS[0]], bars(outputs, EAGER_SETS, "eager")
    ways["NCHW"] = bars(outputs, (*NCHW, REFERENCE), "CUDA graph")
    images = graphs[graphs.model.isin(IMAGE_MODELS)]
    tf32 = pd.concat([*ways.values(), sets])
    tf32 = tf32[(tf32.precision == "tf32") & tf32.model.isin(IMAGE_MODELS)]
    judged = read(outputs, "main/quality-h100").quality
    counted = sets[sets.precision == AMP[0]].groupby("model").folder.nunique()
    found = {"tf32": one_digit(tf32.strict), "sets": span(counted).replace("to", "or")}
    for name, column in (("memory", graphs.saved), ("energy", 1 - graphs.energy)):
        found[name] = span(100 * column[graphs.precision.isin(AMP)], "{:.0f}")
    found["images"] = one_digit(images[images.precision.isin(AMP)].ratio)
    found["seeds"] = span(list(judged[judged.precision.isin(AMP)].seeds))
    for precision, (model, short) in product(AMP, NAMES.items()):
        name = f"{short}_{short_name(precision)}"
        own, graph, host, nchw, earlier = (
            one[(one.model == model) & (one.precision == precision)] for one in (*ways.values(), sets)
        )
        found |= {name: one_digit(own.ratio), f"{name}_captured": one_digit(graph.ratio)}
        found |= {f"{name}_nchw": one_digit(nchw.ratio), f"{name}_sets": span(earlier.ratio.dropna(), "{:.2f}")}
        found[f"{name}_eager"] = span([*host.lowest, *host.highest], "{:.2f}")
        found[f"{name}_memory"] = span(100 * own.saved, "{:.0f}")
        found[f"{name}_eager_memory"] = span(100 * host.saved.abs(), "{:.0f}")
        found[f"{name}_energy"] = span(100 * host.energy, "{:.0f}")
    for one in gains(outputs).itertuples():
        name = f"{NAMES[one.name]}_{STEPS[one.added]}_{short_name(one.precision)}"
        found[name] = span([one.lowest, one.highest], "{:.1f}")
    for precision in AMP:
        own = graphs[graphs.precision == precision]
        found |= {short_name(precision): one_digit(own.ratio), f"{short_name(precision)}_strict": one_digit(own.strict)}
    both = pd.concat([grown(outputs, folder).assign(folder=folder) for folder in WIDTHS], ignore_index=True)
    both["vit"] = both.family.str.startswith("ViT")
    found["tf32_wide"] = one_digit(both[(both.precision == "tf32") & (both.base == "fp32")].ratio)
    bf16 = both[(both.precision == "amp_bf16") & (both.base == "tf32")]
    found |= {"bf16_wide": one_digit(bf16[~bf16.vit].ratio), "bf16_vit": one_digit(bf16[bf16.vit].ratio)}
    widest = both[(both.precision == "fp8") & (both["size"] == 4096)]
    found["fp8_wide"] = span(100 * (widest.ratio - 1), "{:.0f}")
    vit = both[(both.precision == "fp8") & both.vit]
    found["fp8_vit"] = span(100 * (1 - vit.ratio), "{:.0f}")
    return found


def one_digit(ratios: pd.Series) -> str:
    return span(list(ratios.dropna()), "{:.1f}")


def charts_of(section: Section) -> list:
    return next(part for part in section.parts if isinstance(part, Chart)).figures


def main(outputs: Path = ROOT / "outputs") -> None:
    """Draw every picture in a row and, for phones, in one column, each for light and dark pages."""
    IMAGES.mkdir(exist_ok=True)
    pictures = {
        "opening": lambda: opening(first_screen.opening_bars(bars_of(read(outputs, REFERENCE)), WAYS[0])),
        "growth": lambda: charts_of(growth.section(read(outputs, "main/crossover-h200"))),
        "ladder": lambda: charts_of(ladder.section(read(outputs, REFERENCE))),
        "quality": lambda: charts_of(quality.section(read(outputs, "main/quality-h100"))),
    }
    for name, draw in pictures.items():
        for dark in (False, True):
            ending = "-dark" * dark
            with chart_style():
                figures = draw()
                (IMAGES / f"{name}{ending}.png").write_bytes(picture_of(figures, dark=dark))
                (IMAGES / f"{name}-narrow{ending}.png").write_bytes(picture_of(figures, dark=dark, columns=1))


if __name__ == "__main__":
    main()
