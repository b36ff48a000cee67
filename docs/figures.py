"""What documents show of the committed records: tables and numbers in their text, and pictures.

python docs/figures.py      draw the pictures in docs/images anew, which follow dark pages by
themselves
"""

import functools
import itertools
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import attention  # noqa: E402
import copied  # noqa: E402
import does_not_fit  # noqa: E402
import weights  # noqa: E402

from docs.outputs import readable  # noqa: E402
from docs.quoted import in_words  # noqa: E402
from docs.sheets import sheet_of  # noqa: E402
from mixed_precision_study.judge.verdict import SHORTEST_SECONDS  # noqa: E402
from mixed_precision_study.report import quality, settings  # noqa: E402
from mixed_precision_study.report.charts import (  # noqa: E402
    chart_style,
    dots,
    drawing_of,
    drawn_as,
    ratio_rows,
)
from mixed_precision_study.report.results import cell_of  # noqa: E402
from mixed_precision_study.report.section import Chart, Section  # noqa: E402
from mixed_precision_study.report.tables import Tables, bars_of, read_tables  # noqa: E402
from mixed_precision_study.report.words import (  # noqa: E402
    short_name,
    span,
)

IMAGES = ROOT / "docs" / "images"
WIDTHS = ("archive/crossover-h100.zip", "main/crossover-h200")
# both are shown, because choosing one after measuring favours it
AMP = FP16, BF16 = ("amp_fp16", "amp_bf16")
REFERENCE = "main/reference-h100"
HEADLINE = (REFERENCE, "main/headline-h200")  # of compiled graphs in channels_last
# graphs in the layout that is slower with AMP
WITHOUT_LAYOUT = ("archive/reference-earlier-h100.zip", "main/reference-h200")
WAYS = ("compiled CUDA graph", "CUDA graph", "eager")
SHOWN = (WAYS[0], WAYS[2])  # in the table of results.md
RESNET, EFFICIENTNET, LSTM = "ResNet-18", "EfficientNet-B0", "LSTM, 2 × 200 units"
BATCHES = {RESNET: 128, EFFICIENTNET: 32, LSTM: 20}  # of the three experiments
DATA = ("cifar10", "elpv", "wikitext-2", "wikitext-2-like")  # of the three experiments
IMAGE_MODELS = (RESNET, EFFICIENTNET)
SET_SPEEDS = {  # of eager mode in every set of records
    "resnet_fp16_sets": (RESNET, FP16),
    "efficientnet_fp16_sets": (EFFICIENTNET, FP16),
    "lstm_fp16_sets": (LSTM, FP16),
}
MEMORY = {  # ending of a number's name: what is compared, of a compiled graph
    "_memory": "peak_allocated_mib",
    "_memory_reserved": "peak_reserved_mib",
    "_memory_card": "device_used_mib",
}
MODELS = {"resnet": "resnet18", "efficientnet": "tf_efficientnet_b0", "lstm": "lstm"}
GRAPH_ENERGY = {  # % of the joules of TF32 that a compiled graph saves
    "resnet_fp16_graph_energy": (RESNET, FP16),
    "resnet_bf16_graph_energy": (RESNET, BF16),
    "efficientnet_fp16_graph_energy": (EFFICIENTNET, FP16),
    "efficientnet_bf16_graph_energy": (EFFICIENTNET, BF16),
    "lstm_fp16_graph_energy": (LSTM, FP16),
    "lstm_bf16_graph_energy": (LSTM, BF16),
}
EAGER_ENERGY = {  # % of the joules of TF32, in eager mode
    "resnet_fp16_energy": (RESNET, FP16),
    "efficientnet_fp16_energy": (EFFICIENTNET, FP16),
    "lstm_fp16_energy": (LSTM, FP16),
}
BUSY = 0.2  # share of a step that the GPU idles at most where it is called busy
EAGER = "more/eager-h200"
FULL = 0.03  # such a share of a step as fills the GPU, found after the study eager
PAYS = 1.05  # above it AMP pays, as the plan of the study eager says
STEP_GAINS = {  # name: the model, the precision, and the step that is added
    "resnet_graph_TF32": (RESNET, "tf32", "CUDA graph"),
    "resnet_graph_fp16": (RESNET, FP16, "CUDA graph"),
    "efficientnet_graph_TF32": (EFFICIENTNET, "tf32", "CUDA graph"),
    "lstm_graph_TF32": (LSTM, "tf32", "CUDA graph"),
    "resnet_layout_TF32": (RESNET, "tf32", "channels_last"),
    "resnet_layout_bf16": (RESNET, BF16, "channels_last"),
    "efficientnet_layout_TF32": (EFFICIENTNET, "tf32", "channels_last"),
    "efficientnet_layout_bf16": (EFFICIENTNET, BF16, "channels_last"),
}


@functools.cache
def read(outputs: Path, folder: str) -> Tables:
    """Return the Tables of a folder of results, or of a zip of one."""
    with readable(outputs / folder) as results:
        return read_tables(results)


@functools.cache
def bars(
    outputs: Path, folders: tuple[str, ...], way: str, channels_last: bool = False
) -> pd.DataFrame:
    """Return the bars_of() the three experiments in one way of execution and layout of images, with
    their `folder`.

    `strict` says how many times as fast the bar is as fp32, and `cell` is the ratio over TF32 with
    its interval or the range of its hosts.
    """
    parts = []
    for folder in folders:
        tables = read(outputs, folder)
        found = bars_of(tables, tables.comparisons.index)
        wanted = [
            comparison["name"] in BATCHES
            and comparison.batch == BATCHES[comparison["name"]]
            and comparison["data"] in DATA
            and comparison.way == way
            and comparison.settings.get("channels_last", channels_last) == channels_last
            for _, comparison in tables.comparisons.loc[found.comparison].iterrows()
        ]
        strict = tables.ratios[tables.ratios.base == "fp32"].set_index(["comparison", "arm"]).ratio
        found = found.assign(folder=folder, cell=[cell_of(one) for one in found.itertuples()])
        parts.append(found.join(strict.rename("strict"), on=strict.index.names)[wanted])
    return pd.concat(parts, ignore_index=True)


def referred(outputs: Path, way: str) -> pd.DataFrame:
    """Return the bars of the reference in one way: graphs in channels_last, eager mode without it,
    as people run it.
    """
    return bars(outputs, (REFERENCE,), way, way != "eager")


@functools.cache
def referred_trainings(outputs: Path) -> pd.DataFrame:
    """Return the table of the reference's trainings."""
    return pd.read_csv(outputs / REFERENCE / "trainings.csv", low_memory=False)


@functools.cache
def headline(outputs: Path) -> str:
    """Return the table of results.md: how fast AMP is over TF32, a row for each model and format."""
    ways = [referred(outputs, way) for way in SHOWN]
    rows = [["AMP over TF32", *SHOWN], ["---"] * (1 + len(SHOWN))]
    for model, precision in itertools.product(BATCHES, AMP):
        cells = [rows_of(one, model, precision).cell.iloc[0] for one in ways]
        name = f"{model.partition(',')[0]}, {short_name(precision)}"
        rows.append([name, *(cell.replace(" to ", "–") for cell in cells)])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


def gains(outputs: Path) -> pd.DataFrame:
    """Return what each step of the reference gains in each precision: the graph, the layout and
    the compiler.
    """
    tables = read(outputs, REFERENCE)
    return settings.ways_of(tables, pd.DataFrame()).join(tables.comparisons["name"], on="before")


def grown(outputs: Path, folder: str) -> pd.DataFrame:
    """Return the pairs of neighbouring precisions over the width of ViT and Transformer."""
    tables = read(outputs, folder)
    return pd.concat(
        [settings.pairs_of(tables, one) for one in settings.families_of(tables)], ignore_index=True
    )


@functools.cache
def numbers(outputs: Path) -> dict[str, str]:
    """Return {name: text} of the numbers that stand in sentences, between <!--name--> and
    <!--/-->.
    """
    found = over_models(outputs) | of_models(outputs) | of_steps(outputs) | of_widths(outputs)
    found |= in_eager_mode(outputs) | of_eager_study(outputs) | without_graph(outputs)
    found |= memory_saved(outputs) | largest_batches(outputs) | compiling_pays(outputs)
    return found | attention.numbers(outputs) | copied.numbers(outputs)


def over_models(outputs: Path) -> dict[str, str]:
    """Return the numbers that say how far the models lie apart."""
    ways = [referred(outputs, way) for way in WAYS]
    graphs, sets = bars(outputs, HEADLINE, WAYS[0], True), bars(outputs, sets_of(outputs), "eager")
    tf32 = pd.concat([*ways, bars(outputs, (*WITHOUT_LAYOUT, REFERENCE), "CUDA graph"), sets])
    tf32 = tf32[(tf32.precision == "tf32") & tf32.model.isin(IMAGE_MODELS)]
    judged = read(outputs, "main/quality-h100").quality
    ran = sets[(sets.precision == FP16) & (sets.baseline == "tf32")]
    amp = graphs[graphs.precision.isin(AMP)]
    bf16 = amp[amp.precision == BF16]
    return {
        "tf32": one_digit(tf32.strict),
        "sets": span(ran.groupby("model").folder.nunique()),
        "images": one_digit(bf16[bf16.model.isin(IMAGE_MODELS)].ratio),
        "seeds": span(list(judged[judged.precision.isin(AMP)].seeds)),
        "amp": one_digit(amp.ratio),
        "lstm": one_digit(pd.concat([rows_of(one, LSTM, BF16).ratio for one in (graphs, ways[1])])),
        "strict": one_digit(amp.strict),
        "launches": one_digit(launched(outputs)),
    }


def launched(outputs: Path) -> pd.Series:
    """Return how many times as many kernels as TF32 the image models launch in AMP, in eager
    mode.
    """
    table = referred_trainings(outputs)
    eager = table[(table.execution == "eager") & (table.model != MODELS["lstm"])]
    kernels = eager.pivot_table("kernels_per_step", "model", "precision")
    return kernels[list(AMP)].div(kernels.tf32, axis=0).stack()


def of_models(outputs: Path) -> dict[str, str]:
    """Return the numbers of one model in one precision over TF32."""
    compiled, eager = (referred(outputs, way) for way in SHOWN)
    without, sets = (
        bars(outputs, (*WITHOUT_LAYOUT, REFERENCE), "CUDA graph"),
        bars(outputs, sets_of(outputs), "eager"),
    )
    found = {
        "lstm_fp16_eager_memory": percent(rows_of(eager, LSTM, FP16).saved.abs()),
        "efficientnet_bf16_without": one_digit(rows_of(without, EFFICIENTNET, BF16).ratio),
    }
    for name, key in SET_SPEEDS.items():
        ends = rows_of(sets, *key)[["lowest", "highest"]].stack()
        found[name] = span(ends.dropna(), "{:.2f}")
    found |= {
        name: percent(1 - rows_of(compiled, *key).energy) for name, key in GRAPH_ENERGY.items()
    }
    found |= {name: percent(rows_of(eager, *key).energy) for name, key in EAGER_ENERGY.items()}
    return found


def of_steps(outputs: Path) -> dict[str, str]:
    """Return what a step of the reference gains in one model and precision."""
    steps = gains(outputs)
    keys = zip(steps.name, steps.precision, steps.added, strict=True)
    said = dict(zip(keys, ([one.lowest, one.highest] for one in steps.itertuples()), strict=True))
    return {name: span(said[key], "{:.1f}") for name, key in STEP_GAINS.items()}


def of_widths(outputs: Path) -> dict[str, str]:
    """Return what neighbouring precisions gain over the width of ViT and Transformer."""
    both = pd.concat([grown(outputs, folder) for folder in WIDTHS], ignore_index=True)
    vit = both.family.str.startswith("ViT")
    bf16 = (both.precision == BF16) & (both.base == "tf32")
    fp8 = both.precision == "fp8"
    return {
        "tf32_wide": one_digit(both[(both.precision == "tf32") & (both.base == "fp32")].ratio),
        "wide": one_digit(both[bf16].ratio),
        "bf16_wide": one_digit(both[bf16 & ~vit].ratio),
        "bf16_vit": one_digit(both[bf16 & vit].ratio),
        "fp8_vit": percent(1 - both[fp8 & vit].ratio),
    }


def in_eager_mode(outputs: Path) -> dict[str, str]:
    """Return what AMP gains in eager mode: our three models in the reference, on all machines
    that ran them, and by how busy TF32 keeps the GPU.

    Busy is a step in TF32 that leaves the GPU idle for less than BUSY, because that is what one
    sees before AMP is on. Image models in fp16 of every folder count, each comparison once.
    """
    usual, ours = referred(outputs, "eager"), bars(outputs, sets_of(outputs), "eager")
    usual = usual[usual.precision.isin(AMP)]
    ours = ours[ours.precision.isin(AMP) & (ours.baseline == "tf32")]
    found = pd.concat([timed_in(folder) for folder in live(outputs)], ignore_index=True)
    found = found[(found.precision == FP16) & (found.execution == "eager")]
    found = found.drop_duplicates(["model", "ratio"])  # two folders may show the same runs
    images = found[~found.model.isin(("lstm", "transformer"))]
    lstm = found[(found.model == "lstm") & (found.idle < BUSY)]
    parted = {"busy": images[images.idle < BUSY], "waiting": images[images.idle >= BUSY]}
    numbers = {
        "eager": one_digit(usual.ratio),
        "eager_all": one_digit(pd.concat([ours.lowest, ours.highest])),
        "busy_lstm": span(lstm.ratio, "{:.2f}"),
    }
    for name, part in parted.items():
        numbers[name] = one_digit(part.ratio)
        numbers[f"{name}_runs"] = str(len(part))
        numbers[f"{name}_faster"] = str(int((part.ratio > 1).sum()))
    return numbers


def eager_cells(outputs: Path) -> pd.DataFrame:
    """Return fp16 AMP over TF32 in the study eager, a row for each model and way that trained long
    enough: whether TF32 keeps the GPU `busy`, and whether AMP `pays` on every machine, NaN where
    that is inconclusive.
    """
    found = timed_in(outputs / EAGER)
    found = found[(found.precision == FP16) & (found.seconds >= SHORTEST_SECONDS)]
    above = found.lowest > PAYS
    pays = above.astype(float).where(above | (found.highest < 1))
    return found.assign(busy=found.idle < BUSY, pays=pays)


def of_eager_study(outputs: Path) -> dict[str, str]:
    """Return the numbers of the study eager: where fp16 AMP pays, by how busy TF32 keeps the GPU,
    and how often that rule and the rule that it always pays are right where the runs decide.
    """
    cells = eager_cells(outputs)
    decided = cells.dropna(subset="pays")
    each = on_each_machine(outputs)
    full, part = each[each.idle <= FULL], each[each.idle > FULL]
    found = {
        "study_full_share": f"{1 - FULL:.0%}",
        "study_full": str(len(full)),
        "study_full_pays": str(int((full.ratio > PAYS).sum())),
        "study_part": in_words(len(part)),
        "study_part_pays": in_words(int((part.ratio > PAYS).sum())),
        "study_fewer": in_words(int((cells.hosts < cells.hosts.max()).sum())),
        "study_machines": in_words(int(cells.hosts.max())),
        "study_share": f"{1 - BUSY:.0%}",
        "study_decided": str(len(decided)),
        "study_rule": str(int((decided.busy == decided.pays).sum())),
        "study_always": str(int(decided.pays.sum())),
    }
    for name, part in (("busy", cells[cells.busy]), ("waiting", cells[~cells.busy])):
        found |= {
            f"study_{name}": span(part[["lowest", "highest"]].stack(), "{:.2f}"),
            f"study_{name}_cells": str(len(part)),
            f"study_{name}_pays": str(int(part.pays.sum())),
            f"study_{name}_not": str(int((part.pays == 0).sum())),
        }
    return found


def on_each_machine(outputs: Path) -> pd.DataFrame:
    """Return the `ratio` of fp16 AMP over TF32 in the study eager, machine by machine, and TF32's
    `idle` share.

    It is told of each model and way that keeps the GPU busy in TF32 and trains long enough in both.
    """
    names = ["comparison", "host", "precision", "status", "seconds", "epoch_seconds_count", "idle"]
    table = pd.read_csv(outputs / EAGER / "trainings.csv", usecols=names)
    table = table[table.status == "ok"].assign(whole=table.seconds * table.epoch_seconds_count)
    wide = table.pivot_table(["whole", "idle"], ["comparison", "host"], "precision")
    kept = (wide.whole[["tf32", FP16]].min(axis=1) >= SHORTEST_SECONDS) & (wide.idle.tf32 < BUSY)
    found = {"ratio": wide.whole.tf32 / wide.whole[FP16], "idle": wide.idle.tf32}
    return pd.DataFrame(found)[kept].dropna()


@functools.cache
def usual_steps(outputs: Path) -> pd.DataFrame:
    """Return the trainings of ResNet-18 and EfficientNet at their usual batch in the study eager,
    with the milliseconds of TF32 on the same machine: `plain`, with a `fused` optimizer, and with
    the `layout` channels_last besides.
    """
    table = pd.read_csv(outputs / EAGER / "trainings.csv", low_memory=False)
    usual = {MODELS["resnet"]: BATCHES[RESNET], MODELS["efficientnet"]: BATCHES[EFFICIENTNET]}
    table = table[(table.status == "ok") & (table.batch_size == table.model.map(usual))]
    keys = ["model", "host", "seed"]
    changed = table[["fused", "channels_last"]].astype(bool).sum(axis=1)
    for count, name in enumerate(("plain", "fused_ms", "layout_ms")):
        tf32 = table[(table.precision == "tf32") & (changed == count)]
        table = table.join(tf32.set_index(keys).step_ms.rename(name), on=keys)
    return table


def best_steps(outputs: Path) -> pd.DataFrame:
    """Return the usual_steps() that are the shortest of their model and machine."""
    table = usual_steps(outputs)
    return table.loc[table.groupby(["model", "host", "seed"]).step_ms.idxmin()]


def without_graph(outputs: Path) -> dict[str, str]:
    """Return the milliseconds of the best step without a graph, its gain over TF32 as it is, and
    what a fused optimizer and channels_last after it gain in TF32, each over all machines.
    """
    best = best_steps(outputs)
    found = {}
    for name, model in itertools.islice(MODELS.items(), 2):
        own = best[best.model == model]
        found[f"best_{name}_ms"] = span(own.step_ms, "{:.1f}")
        found[f"best_{name}"] = one_digit(own.plain / own.step_ms)
        found[f"fused_{name}"] = one_digit(own.plain / own.fused_ms)
        found[f"eager_layout_{name}"] = one_digit(own.fused_ms / own.layout_ms)
    return found


def compiling_pays(outputs: Path) -> dict[str, str]:
    """Return after how many epochs compiling a graph has paid in AMP: what its warm-up takes
    longer, over what it saves in an epoch.
    """
    table = referred_trainings(outputs)
    graphs = table[
        table.execution.str.contains("graph") & (table.channels_last.astype(str) != "False")
    ]
    keys = ["execution", "model", "precision"]
    amp = graphs[graphs.precision.isin(AMP)]
    usual = amp.groupby(keys)[["warmup_seconds", "seconds"]].median()
    apart = usual.loc["compile_cuda_graph"] - usual.loc["cuda_graph"]
    epochs = -apart.warmup_seconds / apart.seconds
    found = {
        "pays": epochs,
        "resnet_pays": epochs["resnet18"],
        "efficientnet_pays": epochs["tf_efficientnet_b0"],
        "lstm_pays": epochs["lstm"],
    }
    return {name: span(own, "{:.0f}") for name, own in found.items()}


def memory_saved(outputs: Path) -> dict[str, str]:
    """Return by how many percent AMP lowers memory in a compiled graph, data left out: PyTorch's
    peak, what PyTorch reserves, and what nvidia-smi shows of the process.
    """
    table = referred_trainings(outputs)
    compiled = table[table.execution == "compile_cuda_graph"]
    keys = [compiled.model, compiled.precision]
    numbers = {}
    for ending, column in MEMORY.items():
        used = (compiled[column] - compiled.data_on_device_mib).groupby(keys).max().unstack()
        saved = 1 - used[list(AMP)].div(used.tf32, axis=0)
        numbers |= {f"{name}{ending}": percent(saved.loc[model]) for name, model in MODELS.items()}
        if ending != "_memory_reserved":
            numbers[ending.strip("_")] = percent(saved.stack())
    return numbers


def timed_in(folder: Path) -> pd.DataFrame:
    """Return a folder's ratios over TF32, with the share of TF32's step that the GPU idles."""
    ratios = pd.read_csv(folder / "ratios.csv", low_memory=False)
    trainings = pd.read_csv(folder / "trainings.csv", usecols=["comparison", "precision", "idle"])
    idle = trainings[trainings.precision == "tf32"].groupby("comparison").idle.mean()
    return ratios[ratios.base == "tf32"].join(idle, on="comparison")


def sets_of(outputs: Path) -> tuple[str, ...]:
    """Return every set of records: the folders of results, the archive and the checks."""
    zips = [
        path for name in ("archive", "checks") for path in sorted(outputs.glob(f"{name}/*.zip"))
    ]
    return tuple(path.relative_to(outputs).as_posix() for path in (*live(outputs), *zips))


def live(outputs: Path) -> list[Path]:
    """Return the folders of results with ratios, but for those that show trained models in use."""
    folders = sorted(path.parent for path in outputs.rglob("ratios.csv"))
    return [folder for folder in folders if not folder.name.startswith("inference")]


def largest_batches(outputs: Path) -> dict[str, str]:
    """Return how many times TF32's largest batch fits in fp16 AMP, where both filled one limit."""
    table = pd.read_csv(outputs / "main/published/trainings.csv", low_memory=False)
    filled = table[table.batch_size == "max"].dropna(subset="batch_size_used")
    sizes = filled.pivot_table(
        "batch_size_used", ["model", "dataset_used", "memory_limit_gib"], "precision"
    )
    ratio = (sizes[FP16] / sizes["tf32"]).dropna()
    lstm = ratio.index.get_level_values("model") == "lstm"
    return {"batch": one_digit(ratio[~lstm]), "batch_lstm": one_digit(ratio[lstm])}


def eager_rows(outputs: Path) -> pd.DataFrame:
    """Return rows of dots(): fp16 AMP over TF32 in eager mode, at the usual and at larger batches.

    The usual batch is of the reference's four hosts; the larger ones ran once, with at most 24 GiB.
    """
    usual = referred(outputs, "eager")
    tables = read(outputs, "main/published")
    more = bars_of(tables, tables.comparisons.index)
    more = more[(more.way == "eager") & more.model.isin(BATCHES)]
    more = more[more.run.str.contains("at most 24 GiB") & ~more.task.str.endswith("batch 32")]
    found = pd.concat([usual, more], ignore_index=True)
    found = found[(found.precision == FP16) & (found.baseline == "tf32")]
    batch = found.task.str.rpartition(", ")[2]
    idle = found.idle.map("GPU idles {:.0%}".format)
    found = found.assign(
        panel=found.model,
        about="fp16 AMP over TF32, eager mode",
        row=batch + ", " + idle,
        ranged=found.low.isna() & (found.hosts > 1),
        seconds=float("nan"),
        takes="",
    )
    return drawn_as(found, list(BATCHES))


def rows_of(bars: pd.DataFrame, model: str, precision: str) -> pd.DataFrame:
    return bars[(bars.model == model) & (bars.precision == precision)]


def percent(shares: pd.Series) -> str:
    return span(100 * shares, "{:.0f}")


def one_digit(ratios: pd.Series) -> str:
    return span(list(ratios.dropna()), "{:.1f}")


def charts_of(section: Section) -> list:
    return next(part for part in section.parts if isinstance(part, Chart)).figures


def main(outputs: Path = ROOT / "outputs") -> None:
    """Draw every picture in a row and, for phones, in one column."""
    IMAGES.mkdir(exist_ok=True)
    reference = read(outputs, REFERENCE)
    pictures = {
        "opening": lambda: dots(ratio_rows(bars_of(reference))),
        "eager": lambda: dots(eager_rows(outputs)),
        "lines": lambda: dots(copied.dot_rows(outputs)),
        "attention": lambda: attention.figures(outputs),
        "fit": lambda: does_not_fit.figures(outputs),
        "weights": lambda: weights.figures(outputs),
        "growth": lambda: charts_of(settings.growth_section(read(outputs, "main/crossover-h200"))),
        "quality": lambda: charts_of(quality.quality_section(read(outputs, "main/quality-h100"))),
    }
    for name, draw in pictures.items():
        with chart_style():
            figures = draw()
        drawings = [drawing_of(one, f"{name}{place}") for place, one in enumerate(figures)]
        for ending, columns in (("", min(3, len(drawings))), ("-narrow", 1)) if drawings else ():
            path = IMAGES / f"{name}{ending}.svg"
            path.write_text(sheet_of(drawings, columns), encoding="utf-8")


if __name__ == "__main__":
    main()
