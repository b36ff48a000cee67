"""Tables for documents, computed from the committed records and the published figures."""

import functools
import re

from mixed_precision_study.analysis.conditions import fairly_timed, host_of
from mixed_precision_study.analysis.equivalence import (
    EQUIVALENT,
    NOT_WORSE,
    UNKNOWN,
    is_too_few,
    quality_difference,
)
from mixed_precision_study.analysis.speedup import block_times, paired_ratio, paired_runs, seconds_of_epoch
from mixed_precision_study.analysis.student import MANY_RATIOS, stand_together
from mixed_precision_study.analysis.trained import by_seed
from mixed_precision_study.analysis.verdict import DIFFERENT, FASTER, SLOWER, interval_text, judge
from mixed_precision_study.parameters import PRECISION_NAMES
from mixed_precision_study.record import comparison_key, is_explanation, read_records
from mixed_precision_study.report.quality import difference_text, margin_text
from mixed_precision_study.report.tables import peak_gib
from mixed_precision_study.report.words import listed

HALF = ("amp_fp16", "o2_fp16")


def articles_list(articles):
    """Return the published speed-up and memory of half precision over fp32, by GPU, where both were published."""
    known = articles[articles.batch.notna() & (articles.baseline == "fp32") & articles.precision.isin(HALF)]
    known = known.assign(ratio=known.value / known.value_baseline, quantity=known.quantity.str.removeprefix("card "))
    of_training = ["card", "model", "batch", "precision", "year"]
    table = known.pivot_table("ratio", of_training, "quantity").dropna(subset=["time", "memory"]).reset_index()
    lines = [
        f"- {row.card}, {row.year}: {1 / row.time:.2f}x, memory {row.memory - 1:+.0%}"
        f" ({row.model}, batch {row.batch:g}, {row.precision})"
        for row in table.groupby(["card", "model", "batch"]).head(1).itertuples()
    ]
    return "\n".join(lines)


def memory_change(own, base):
    """Return how much more memory one takes than the other, in percent."""
    return f"{float(own) / float(base) - 1:+.0%}"


def timed(records):
    """Return the records without those of processes that only explain."""
    return [record for record in records if not is_explanation(record)]


def runs_table(records):
    """Return a line for each comparison: seconds per epoch, peak memory and last metric in every precision."""
    comparisons = {}
    for record in timed(records):
        comparisons.setdefault(comparison_key(record), {}).setdefault(record["precision"], []).append(record)
    present = [name for name in PRECISION_NAMES if any(name in runs for runs in comparisons.values())]
    lines = [f"| training | epochs | {' | '.join(f'`{name}`' for name in present)} |"]
    lines.append("|---" * (2 + len(present)) + "|")
    rows = []
    firsts = [next(iter(runs.values()))[0] for runs in comparisons.values()]
    names = [(training_label(one), one["epochs"]) for one in firsts]
    for one, name, runs in zip(firsts, names, comparisons.values(), strict=True):
        cells = [runs_figures(runs[mode]) if mode in runs else "" for mode in present]
        apart = ", data on record" if names.count(name) > 1 and one.get("data_fingerprint") else ""
        rows.append((name[0] + apart, name[1], cells))
    lines += [f"| {label} | {epochs} | {' | '.join(cells)} |" for label, epochs, cells in sorted(rows, key=by_numbers)]
    return "\n".join(lines)


def by_numbers(row):
    """Return a key that sorts a row by its label, with 64 before 256, then by its epochs."""
    label = re.sub(r"(?<=\d),(?=\d)", "", row[0])
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)], row[1]


def training_label(record):
    """Return what was trained and how, where that is not the notebook's default."""
    size = "largest batch" if record["batch_size"] == "max" else f"batch {record['batch_size']:,}"
    parts = [f"{record['model']} on {record['dataset_used']}", size]
    if record.get("units", 200) != 200:
        parts.append(f"{record['units']} units")
    if record.get("execution", "eager") != "eager":
        parts.append(record["execution"])
    if record.get("compile_mode", "default") != "default":
        parts.append(record["compile_mode"])
    if record.get("channels_last"):
        parts.append("channels_last")
    if record.get("optimizer", "sgd") != "sgd":
        parts.append(record["optimizer"])
    if record.get("rounding", "nearest") != "nearest":
        parts.append(f"{record['rounding']} rounding")
    if record.get("scaler", "pytorch") != "pytorch":
        parts.append("scaler on the device")
    if record.get("keep_batchnorm_fp32"):
        parts.append("batch normalisation in fp32")
    if record.get("loss_scale", "dynamic") != "dynamic":
        parts.append(f"loss scale {record['loss_scale']:,.10g}")
    if record.get("memory_limit_gib"):
        parts.append(f"{record['memory_limit_gib']:g} GiB at most")
    if record.get("image_size", 32) != 32:
        parts.append(f"{record['image_size']} pixels")
    if record.get("loader") == "workers":
        parts.append("two loader workers")
    return ", ".join(parts)


def runs_figures(runs):
    """Return seconds per epoch, peak memory and last metric of the ok runs of a precision, or how they ended."""
    ok = [run for run in runs if run["status"] == "ok"]
    if not ok:
        return "out of memory" if runs[0]["status"] == "oom" else runs[0]["status"]
    counted = fairly_timed(ok)
    seconds = seconds_of_epoch(counted)
    memory = highest_peak(ok)
    size = f"{ok[0]['batch_size_used']:,}: " if ok[0]["batch_size"] == "max" else ""
    fewer = f", {len(counted)} timed" if len(counted) < len(ok) else ""
    count = f" (n = {len(ok)}{fewer})" if len(ok) > 1 else ""
    return f"{size}{digits(seconds)} s, {digits(memory)} GiB, {last_metrics(ok)}{count}"


def highest_peak(runs):
    """Return the highest peak of PyTorch's memory without the data set in GiB, or None where it is not known."""
    return max((peak for run in runs if (peak := peak_gib(run)) is not None), default=None)


def digits(value):
    """Return a number with three significant digits."""
    return f"{value:#.3g}".rstrip(".")


def last_metrics(runs):
    """Return the last metric of the runs, from the smallest to the largest."""
    last = sorted(run["metric"][-1] for run in runs if run["metric"] and run["metric"][-1] is not None)
    if not last:
        return "no metric"
    texts = [metric_text(runs[0]["metric_name"], value) for value in (last[0], last[-1])]
    return " to ".join(dict.fromkeys(texts))


def metric_text(name, value):
    """Return a metric as people write it."""
    if name == "accuracy":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}"


def inference_table(records):
    """Return a line for each model, way of execution and precision: latency, throughput, memory, distance from fp32."""
    head = "| model | execution | precision | latency of one, ms (p10 to p90) | samples/s | MiB | off fp32 |"
    lines = [head, "|---" * 7 + "|"]
    rows = []
    for record in records:
        if record["status"] == "ok" and record["inference_latency_ms"] is not None:
            order = (record["model"], record["execution"], PRECISION_NAMES.index(record["precision"]))
            rows.append((order, inference_cells(record)))
    lines += [f"| {' | '.join(cells)} |" for _, cells in sorted(rows)]
    return "\n".join(lines)


def inference_cells(record):
    """Return the cells of a run in the table of inference."""
    low, middle, high = (record[f"inference_latency_ms{part}"] for part in ("_p10", "", "_p90"))
    off = record["inference_difference_fraction"]
    return [
        f"{record['model']}, batch {record['batch_size_used']:,}",
        record["execution"],
        f"`{record['precision']}`",
        f"{middle:.2f} ({low:.2f} to {high:.2f})",
        f"{record['inference_samples_per_second']:,.0f}",
        "-" if record["inference_memory_mib"] is None else f"{record['inference_memory_mib']:,.0f}",
        "-" if off is None else f"{off:.1g}",
    ]


# Comparisons of chosen runs

RESNET = {"notebook": "cifar_resnet", "model": "resnet18", "batch_size": 128}
EFFICIENTNET = {"notebook": "efficientnet_regression", "batch_size": 32}
LSTM = {"notebook": "lstm_language_model", "batch_size": 20}
EAGER = {"execution": "eager", "channels_last": False}
LAYOUT = {"execution": "eager", "channels_last": True}
COMPILED = {"execution": "compile", "channels_last": True}
GRAPH = {"execution": "compile_cuda_graph", "channels_last": True}
GRAPH_ALONE = {"execution": "cuda_graph"}
EXPERIMENTS = {  # what the README calls them, and the 16-bit mode of the ladder
    "ResNet-18, CIFAR-10, batch 128": (RESNET, "amp_bf16"),
    "EfficientNet-B0, 384 x 512, batch 32": (EFFICIENTNET, "amp_fp16"),
    "LSTM 2 x 200, WikiText-2, batch 20, 1,000 steps": (LSTM, "amp_bf16"),
}
AMP = ("amp_fp16", "amp_bf16")
QUALITY = "outputs/quality-h100/README.md"
NOT_JUDGED = "not judged"


def chosen(records, **wanted):
    """Return the ok timed records with these values. One without a field, such as the LSTM's layout, has any value."""
    ok = [record for record in timed(records) if record["status"] == "ok"]
    return [record for record in ok if all(record.get(name, value) == value for name, value in wanted.items())]


def compared(runs, base_runs, brief=False):
    """Return what may be said of how many times as fast the runs are, as text: ratio, interval, outcome, processes.

    `brief`: beside an interval without the outcome where it is simply faster or slower.
    """
    speedup = paired_ratio(paired_runs(runs, base_runs))
    if speedup is None:
        return "not paired"
    word = judge(speedup)
    ratio = f"{speedup['ratio']:.2f}x"
    if speedup["low"] is None:
        return f"{ratio} ({word})"
    ratio += f" ({speedup['low']:.2f} to {speedup['high']:.2f})"
    return ratio if brief and word in (FASTER, SLOWER) else f"{ratio}, {word}"


def headline(cards, apart="", trained=()):
    """Return the README's first table, times as fast as fp32 in each way, and below it how to read it.

    cards: the records of each card. apart: what over_batches() says. trained: records of whole trainings over seeds.
    """
    head = ["times as fast as fp32", "GPU", "fp32, s an epoch", "tf32", "AMP", "AMP over fp32, as CUDA graphs"]
    head += ["AMP's memory"] + (["AMP's quality"] if trained else [])
    found = [(name, pairs_in(one, records)) for name, (one, _) in EXPERIMENTS.items() for records in cards]
    found = [(name, pairs) for name, pairs in found if all(pairs[1])]  # with AMP in eager mode
    every = [pair for _, pairs in found for pair in pairs if all(pair)]
    weak = weak_pairs(every)
    rows = []
    for name, pairs in found:
        cells = headline_cells(pairs, weak)
        if trained:
            cells.append(quality_cell(EXPERIMENTS[name][0], trained) if cells[0] == card_of(trained[0]) else "-")
        rows.append(["" if name in {row[0] for row in rows} else name, *cells])
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
    records = [record for card in cards for record in card]
    return "\n".join([*lines, "", where(records, apart, quality_line(trained), len(every) if weak else 0)])


def pairs_in(experiment, records):
    """Return the runs of tf32, AMP and AMP as a graph with those they are compared with. A side not run is empty."""
    base = chosen(records, **experiment, **EAGER, precision="fp32")
    tf32 = chosen(records, **experiment, **EAGER, precision="tf32")
    graph_base = chosen(records, **experiment, **GRAPH_ALONE, precision="fp32")
    amp, graph = (fastest_amp(records, **experiment, **way) for way in (EAGER, GRAPH_ALONE))
    return [(tf32, base), (amp, base), (graph, graph_base)]


def over_batches(batches):
    """Return how far the eager ratios of an experiment lie apart from batch to batch, as text."""
    texts = []
    for name, (experiment, half) in EXPERIMENTS.items():
        ranges = []
        for precision in ("tf32", half):
            ratios = []
            for records in batches:
                own, base = (chosen(records, **experiment, **EAGER, precision=one) for one in (precision, "fp32"))
                if speedup := paired_ratio(paired_runs(own, base)):
                    ratios.append(speedup["ratio"])
            if len(ratios) > 1:
                ranges.append(f"{precision} {min(ratios):.2f}x to {max(ratios):.2f}x")
        if ranges:
            texts.append(f"{name.split()[0].rstrip(',')} {', '.join(ranges)}")
    if not texts:
        return ""
    hosts = {host_of(record) for records in batches for record in timed(records)} - {None}  # None: not known
    sets = f"Over {len(batches)} sets of runs on at least {len(hosts)} hosts"
    return f"- **Eager ratios differ from set to set.** {sets}: {'; '.join(texts)}."


def weak_pairs(pairs):
    """Return those pairs whose outcome does not stand when the ratios of all pairs are corrected."""
    speedups = [(pair, paired_ratio(paired_runs(*pair))) for pair in pairs]
    known = [(pair, speedup) for pair, speedup in speedups if speedup and speedup["p"] is not None]
    stands = [True] * len(known)
    if len(known) > MANY_RATIOS:
        stands = stand_together([speedup["p"] for _, speedup in known])
    return [pair for (pair, one), stand in zip(known, stands, strict=True) if judge(one) in DIFFERENT and not stand]


def headline_cells(pairs, weak):
    """Return the cells of an experiment on one card, with marks for what is weak."""
    amp, base = pairs[1]
    ratios = [ratio_cell(pair, weak) for pair in pairs]
    return [card_of(base[0]), f"{seconds_of_epoch(base):.2f}", *ratios, memory_change(*map(highest_peak, (amp, base)))]


def fastest_amp(records, **wanted):
    """Return the runs of that AMP mode whose epochs are shortest, or none."""
    modes = [chosen(records, **wanted, precision=precision) for precision in AMP]
    return min(filter(None, modes), key=seconds_of_epoch, default=[])


def ratio_cell(pair, weak):
    """Return the cell of one way against fp32, a dash where one of the two was not measured."""
    if not all(pair):
        return "-"
    runs, base_runs = pair
    name = f"{runs[0]['precision'].removeprefix('amp_')} " if runs[0]["precision"] in AMP else ""
    return name + compared(runs, base_runs, brief=True) + "\\*" * (pair in weak)


def where(records, apart, trained, weak):
    """Return in a few items how to read the first table, and on what its records were made.

    weak: how many ratios were corrected.
    """
    ok = [record for record in records if record["status"] == "ok" and record["gpu_name"]]
    if not ok:
        return "None yet."
    versions = ", ".join(sorted({run["torch_version"] for run in ok}))
    reading = "- In brackets: 95% intervals from three to six processes."
    reading += f" \\*: falls to Holm's correction of these {weak} ratios." if weak else ""
    reading += " Hosts and n: [H200](outputs/reference-h200/README.md), [H100](outputs/reference-h100/README.md)."
    about = "- TF32 is off in fp32. All is eager unless it says graph."
    about += " AMP: the faster of fp16 and bf16, chosen afterwards."
    about += " Memory: PyTorch's peak without the data set."
    about += f" WikiText-2's last articles are reordered. PyTorch {versions}."
    return "\n".join(filter(None, [reading, trained, apart, about]))


def outcomes_of(experiment, precisions, records):
    """Return what whole trainings over seeds say of these precisions: "fp16 and bf16 not worse (n = 9)"."""
    outcomes = {}
    for precision in precisions:
        if found := quality_over_seeds(experiment, precision, records):
            told = NOT_JUDGED if is_too_few(found) else found["outcome"]
            outcomes.setdefault(f"{told} (n = {found['seeds']})", []).append(precision.removeprefix("amp_"))
    return ", ".join(f"{listed(names, 'and')} {outcome}" for outcome, names in outcomes.items())


def quality_cell(experiment, records):
    """Return the cell of AMP's quality, with the margin."""
    found = [one for name in AMP if (one := quality_over_seeds(experiment, name, records))]
    return f"{outcomes_of(experiment, AMP, records)}, margin {margin_text(found[0])}" if found else "-"


def quality_line(records):
    """Return how to read the quality in the first table, and what is known of that of tf32."""
    if not records:
        return ""
    tf32 = {name: outcomes_of(experiment, ("tf32",), records) for name, (experiment, _) in EXPERIMENTS.items()}
    words = [
        f"{name.split(',')[0].removesuffix(' 2 x 200')} {text.removeprefix('tf32 ')}"
        for name, text in tf32.items()
        if text
    ]
    said = f"- Quality: the last metric of longer trainings as graphs, beside fp32, [over n seeds]({QUALITY})."
    said += " *Not worse*: no loss beyond the margin. *Equivalent*: no gain beyond it, either."
    return said + (f" In tf32: {', '.join(words)}." if words else "")


def quality_over_seeds(experiment, precision, records, seeds=None):
    """Return what quality_difference() says of a precision beside fp32, over all common seeds or some of them.

    It is None where a side or one of those seeds is missing. It also has the name of the metric.
    """
    own, base = (chosen(records, **experiment, precision=one) for one in (precision, "fp32"))
    sides = [
        {seed: last for seed, last in by_seed(side).items() if seeds is None or seed in seeds} for side in (own, base)
    ]
    if not all(sides) or (seeds and any(len(side) < len(seeds) for side in sides)):
        return None
    one = own[0]
    found = quality_difference(*sides, one["metric_name"], one["metric_better"])
    return found


def card_of(record):
    """Return the short name of a run's GPU, such as H100."""
    return record["gpu_name"].removeprefix("NVIDIA ").split()[0]


PILOT_SEEDS = range(4)


def quality_table(records):
    """Return how the last metric of each precision differs from fp32's: of all common seeds, and of the pilot's."""
    lines = [
        "| training | precision | seeds | difference from fp32 (90%) | margin | outcome | the first four seeds |",
        "|---" * 7 + "|",
    ]
    for name, (experiment, _) in EXPERIMENTS.items():
        for precision in PRECISION_NAMES[1:]:
            found = quality_over_seeds(experiment, precision, records)
            if not found:
                continue
            first = quality_over_seeds(experiment, precision, records, PILOT_SEEDS)
            early = f"{difference_text(first)}, {first['outcome']}" if first else "-"
            cells = [name.split(",")[0], precision, str(found["seeds"]), difference_text(found)]
            cells += [margin_text(found), found["outcome"], early]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def referee_sentences(times, trained):
    """Return one sentence for each experiment, and a table with the interval, n, card and host of each figure.

    `times` are records of equal runs in processes of their own, `trained` those of whole trainings over seeds.
    """
    lines = []
    table = [
        "| model | over fp32 | over tf32 | card and host | quality, 90% interval | margin |",
        "|---|---|---|---|---|---|",
    ]
    for name, (experiment, _) in EXPERIMENTS.items():
        runs = fastest_amp(times, **experiment, **GRAPH_ALONE)
        base, tf32 = (chosen(times, **experiment, **GRAPH_ALONE, precision=one) for one in ("fp32", "tf32"))
        if not (runs and base):
            continue
        precision, speedup = runs[0]["precision"], paired_ratio(paired_runs(runs, base))
        word = "" if judge(speedup) == FASTER else f" ({judge(speedup)})"
        change = memory_change(*map(highest_peak, (runs, base)))
        memory = f"takes {change[1:]} {'less' if change.startswith('-') else 'more'} memory"
        found = quality_over_seeds(experiment, precision, trained)
        fast = f"{precision} is {speedup['ratio']:.2f}x{word} as fast as fp32"
        lines.append(
            f"- **{name.split(', 1,000')[0]}**: on an {card_of(runs[0])}, as a graph, {fast}, {memory},"
            f" and {quality_clause(found)}."
        )
        quality = [f"{difference_text(found)}, n = {found['seeds']}", margin_text(found)] if found else ["-", "-"]
        ratios = [ratio_with_n(runs, base), ratio_with_n(runs, tf32) if tf32 else "-"]
        cells = [f"{name.split(',')[0]}, {precision}", *ratios, host_text([*runs, *base]), *quality]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *table]) if lines else ""


def host_text(runs):
    """Return the card and the processors of some runs."""
    cores = " or ".join(map(str, sorted({run["host_cores"] for run in runs})))
    cpu = runs[0]["host_cpu"].replace("(R)", "").removesuffix(" Processor")
    return f"{card_of(runs[0])}, {cpu}, {cores} cores"


def ratio_with_n(runs, base_runs):
    """Return a ratio with its interval and its number of processes, as text. Narrow intervals have a digit more."""
    speedup = paired_ratio(paired_runs(runs, base_runs))
    if speedup["low"] is None:
        return f"{speedup['ratio']:.2f}x ({interval_text(speedup)})"
    form = "{:.3f}" if speedup["high"] - speedup["low"] < 0.02 else "{:.2f}"
    ratio, low, high = (form.format(speedup[name]) for name in ("ratio", "low", "high"))
    word = "" if judge(speedup) == FASTER else f", {judge(speedup)}"
    return f"{ratio}x ({low} to {high}, n = {speedup['processes']}{word})"


def quality_clause(found):
    """Return what whole trainings say of quality, as the end of a sentence on a precision."""
    if not found:
        return "its quality is not measured yet"
    metric = found["metric"].replace("_", " ")
    return {
        EQUIVALENT: f"its {metric} is within {margin_text(found)} of fp32's",
        NOT_WORSE: f"its {metric} is not worse by more than {margin_text(found)}",
        UNKNOWN: f"whether its {metric} is as good cannot be told",
    }.get(found["outcome"], f"its {metric} is {found['outcome']}")


def ladder_table(records):
    """Return the steps of every ladder: seconds, ratio over the first step and over the step before, last metric."""
    parts = []
    for name, (experiment, half) in EXPERIMENTS.items():
        steps = {
            "fp32": {**EAGER, "precision": "fp32"},
            "tf32": {**EAGER, "precision": "tf32"},
            half: {**EAGER, "precision": half},
            "+ channels_last": {**LAYOUT, "precision": half},
            "+ torch.compile": {**COMPILED, "precision": half},
            "+ one CUDA graph": {**GRAPH, "precision": half},
            "+ batch four times as large": {**GRAPH, "precision": half, "batch_size": 4 * experiment["batch_size"]},
        }
        if experiment is LSTM:
            del steps["+ channels_last"]
        runs = {step: chosen(records, **{**experiment, **settings}) for step, settings in steps.items()}
        lines = [f"| {name} | s/epoch | over fp32 | over the step before | last metric |", "|---" * 5 + "|"]
        previous = None
        for step, own in runs.items():
            if not own:
                continue
            over = [compared(own, base) if base and base is not own else "" for base in (runs["fp32"], previous)]
            lines.append(f"| {step} | {digits(seconds_of_epoch(own))} | {over[0]} | {over[1]} | {last_metrics(own)} |")
            previous = own
        if len(lines) > 2:
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def graphs_table(records):
    """Return what one CUDA graph adds to eager fp32, and what the 16-bit mode of the ladder adds within it."""
    lines = [
        "| training | fp32, graph over eager | AMP over fp32, as graphs | both, over eager fp32 |",
        "|---|---|---|---|",
    ]
    for name, (experiment, half) in EXPERIMENTS.items():
        eager = chosen(records, **experiment, **EAGER, precision="fp32")
        graph = chosen(records, **experiment, **GRAPH_ALONE, precision="fp32")
        amp = chosen(records, **experiment, **GRAPH_ALONE, precision=half)
        cells = [compared(graph, eager), f"{half}: {compared(amp, graph)}", compared(amp, eager)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


SAID_BEFORE = (  # ratio over fp32 with its interval, as the README of 22 November 2026 had it: one process on one H200
    ("ResNet-18", RESNET, EAGER, "tf32", "2.18x (2.17 to 2.18)"),
    ("ResNet-18", RESNET, EAGER, "amp_fp16", "1.87x (1.70 to 2.01)"),
    ("ResNet-18", RESNET, EAGER, "amp_bf16", "2.17x (1.90 to 2.52)"),
    ("ResNet-18, one graph", RESNET, GRAPH_ALONE, "amp_fp16", "3.43x (3.34 to 3.44)"),
    ("EfficientNet", EFFICIENTNET, EAGER, "tf32", "1.21x (1.20 to 1.21)"),
    ("EfficientNet", EFFICIENTNET, EAGER, "amp_fp16", "1.59x (1.55 to 1.62)"),
    ("EfficientNet", EFFICIENTNET, EAGER, "amp_bf16", "1.19x (1.19 to 1.19)"),
    ("LSTM", LSTM, EAGER, "tf32", "1.06x (0.96 to 1.18)"),
    ("LSTM", LSTM, EAGER, "amp_fp16", "0.90x (0.84 to 0.95)"),
    ("LSTM", LSTM, EAGER, "amp_bf16", "0.89x (0.63 to 1.24)"),
    ("LSTM, one graph", LSTM, GRAPH_ALONE, "amp_fp16", "1.64x (1.64 to 1.65)"),
)


def before_table(h200, h100):
    """Return SAID_BEFORE beside what the records of each card say now."""
    lines = ["| over fp32 | said before, one process | H200 now | H100 now |", "|---|---|---|---|"]
    for name, experiment, way, precision, said in SAID_BEFORE:
        now = [
            compared(*(chosen(records, **experiment, **way, precision=one) for one in (precision, "fp32")), brief=True)
            for records in (h200, h100)
        ]
        lines.append(f"| {name}: {precision} | {' | '.join([said, *now])} |")
    return "\n".join(lines)


KERNELS = (
    ("ResNet-18", RESNET, "normalisation"),
    ("EfficientNet-B0", EFFICIENTNET, "normalisation"),
    ("EfficientNet-B0", EFFICIENTNET, "depthwise convolution"),
)


def kernels_table(records):
    """Return the ms a step that KERNELS take in each precision, from the runs that profiled a graph."""
    precisions = ["fp32", "tf32", "amp_fp16", "amp_bf16"]
    lines = [f"| ms a step | {' | '.join(precisions)} |", "|---" * 5 + "|"]
    for name, experiment, family in KERNELS:
        wanted = {**experiment, **GRAPH_ALONE, "purpose": "explain"}
        runs = {
            record["precision"]: dict(record["kernel_family_fractions"])[family] * record["gpu_busy_ms_per_step"]
            for record in records
            if all(record.get(field) == value for field, value in wanted.items())
        }
        cells = [f"{runs[precision]:.1f}" if precision in runs else "-" for precision in precisions]
        lines.append(f"| {name}: {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


ALONE = {"execution": "eager", "keep_batchnorm_fp32": False}
RESNET_152 = {"model": "resnet152", "dataset_used": "cifar100", "batch_size": 128}
RESNET_152_EAGER = {**RESNET_152, "execution": "eager"}
OTHER_COMPARISONS = (  # what, the folder of the records, what they have in common, the precision, its baseline
    ("ResNet-18, one graph", "published", {"model": "resnet18", "epochs": 30, **GRAPH_ALONE}, "amp_fp16", "fp32"),
    ("ResNet-18, one graph", "published", {"model": "resnet18", "epochs": 30, **GRAPH_ALONE}, "amp_fp16", "tf32"),
    ("LSTM, one graph", "published", {"model": "lstm", "epochs": 30, **GRAPH_ALONE}, "amp_fp16", "fp32"),
    ("ResNet-152, CIFAR-100, eager, 130 steps an epoch", "published", RESNET_152_EAGER, "amp_fp16", "fp32"),
    ("The same in both orders, another host", "order-h200", RESNET_152_EAGER, "amp_fp16", "fp32"),
    (
        "ResNet-152, CIFAR-100, one graph, 390 steps an epoch",
        "published",
        {**RESNET_152, **GRAPH_ALONE},
        "amp_fp16",
        "fp32",
    ),
    ("ResNet-50, eager", "published", {"model": "resnet50", "batch_size": 512, **ALONE}, "o2_fp16", "fp32"),
    ("WideResNet-28-10, eager", "published", {"model": "wide_resnet28_10"}, "amp_fp16", "fp32"),
)


def compared_table(outputs):
    """Return a line for each of OTHER_COMPARISONS; `outputs` is the folder of the committed records."""
    lines = ["| training | times as fast | last metrics |", "|---|---|---|"]
    for name, folder, common, precision, baseline in OTHER_COMPARISONS:
        records = read_records(outputs / folder)[0]
        own = chosen(records, **common, precision=precision)
        base = chosen(records, **common, precision=baseline)
        metrics = f"{last_metrics(own)} against {last_metrics(base)}"
        lines.append(f"| {name}: {precision} over {baseline} | {compared(own, base)} | {metrics} |")
    return "\n".join(lines)


# How well the meter agrees with itself, over all committed records

LEAST_CLOSE = 0.001  # of the allocator's reserve and the context beside NVML


@functools.cache
def on_a_gpu(outputs):
    """Return the committed records of runs on a GPU that ended well, but not those of whole batches."""
    records, _ = read_records(outputs)
    kept = [record for record in records if record["status"] == "ok" and record["device_type"] == "cuda"]
    return [record for record in kept if not record["path"].startswith("batches-")]


def block_gaps(record):
    """Return by how many seconds the blocks of each epoch, timed by CUDA events, differ from the wall clock."""
    if not record.get("block_seconds"):
        return []
    return abs(block_times(record).sum(1) - record["epoch_seconds"]).tolist()


def meter_list(outputs):
    """Return how far two clocks, and two counts of memory, lie apart."""
    gaps = [gap for record in on_a_gpu(outputs) for gap in block_gaps(record)]
    errors = [
        abs(record["ledger_error_fraction"])
        for record in on_a_gpu(outputs)
        if record.get("ledger_error_fraction") is not None
    ]
    if not (gaps and errors):
        return "None yet."
    close = sum(error <= LEAST_CLOSE for error in errors)
    return (
        f"- CUDA events (`block_seconds`) against the wall clock: at most {1000 * max(gaps):.1f} ms an epoch apart,"
        f" {len(gaps):,} epochs in `outputs`.\n"
        f"- Allocator's reserve and context against NVML (`ledger_error_fraction`): at most {LEAST_CLOSE:.1%} apart in"
        f" {close} of {len(errors)} runs in `outputs`, batches apart, {max(errors):.1%} in the worst."
        " This tests no part of the peak."
    )
