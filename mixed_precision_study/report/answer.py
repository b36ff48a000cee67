"""Section: the answer. Which precision for which model, what it buys, why, and what to try next.

The rules, all from records:

- A model's settings are those that most precisions share, then those with most ratios over fp32, then most runs.
- A precision counts if it trained and may be compared with fp32. fp32 itself counts too.
- A precision that loses quality does not count: it is named with what it loses. That is more than the margin, and
  beyond the scatter of its seeds. o3_fp16 and bf16_true have no fp32 weights, so they count only where they are shown
  to lose none beyond the margin.
- The fastest is used. Those that are less than 2% slower, or of which that cannot be told, are as good:
  of these, the one with the least memory is used. Where memory is within 2%, it is fp32 or tf32, else the fastest.
  Of fewer than three processes a difference below a fifth cannot be told, but as a CUDA graph.
  Where it is not the fastest itself, or tf32 is as good, the answer names that rival, says by how many per cent the
  used one is slower, and says what memory it saves, because a slower precision is never recommended without a word.
- A ratio stands with its interval, or with its number of processes. Only `judge` may call it faster.
- Quality has the words of `quality_difference` alone: nothing is equivalent below five seeds.
- On a CPU nothing is judged.
"""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ..analysis.bottleneck import OTHER_KERNELS, find_bottleneck, longest_others
from ..analysis.conditions import flags_of, host_of, said_of_made_up
from ..analysis.equivalence import AS_GOOD, WORSE, is_too_few
from ..analysis.speedup import FEWEST_PROCESSES, SMALLEST_CLAIMED, seconds_of_epoch
from ..analysis.trained import NO_FP32_WEIGHTS, by_seed, has_learned
from ..analysis.verdict import CANNOT_BE_TOLD, NOT_TRAINED, OUTCOMES, SAME, TOO_FEW_PROCESSES, interval_text, judge
from .comparisons import execution_of, ok_runs, runs_of, timed_runs
from .ladder import measured_ladders
from .memory_use import highest_peak, memory_saved
from .quality import may_be_used, outcome_in_words, quality_against_fp32
from .report import Report
from .section import Heading, Section
from .style import CPU_WARNING, PRECISIONS
from .verdicts import (
    example,
    left_out_of_times,
    mark_of,
    ratio_text,
    said_of_disturbed,
    said_of_power,
    said_once,
    same_but_for,
    speedup_between,
)
from .ways import find_changes, in_words, without_baseline
from .widths import Widths, row_of_pair, sentence_on
from .words import count, listed, plain, short, span

EAGER_SCATTER = 1.2  # two processes of the same settings differ by as much, but not as a CUDA graph
SMALLEST_GAIN = 1.05  # of a next step; processes of the same settings differ by as much
SMALLER_FORMATS = tuple(name for name in PRECISIONS if name not in ("fp32", "tf32"))
NAMED = 3  # models; of more their number is given
COMPARABLE = (*OUTCOMES, *TOO_FEW_PROCESSES.values())
NOT_TOLD = (CANNOT_BE_TOLD, SAME)
STEPS = {
    "compile": "compiled",
    "cuda_graph": "as one CUDA graph",
    "compile_cuda_graph": "as one compiled CUDA graph",
}
FORMATS = {  # of precisions whose names do not say it
    "o2_fp16": "Apex's O2, fp16 weights with an fp32 copy",
    "o3_fp16": "Apex's O3, fp16 throughout",
    "bf16_true": "bf16 throughout",
}
SUBJECTS = {
    "published": "Published figures, measured again",
    "ladder": "A ladder of settings",
    "scaling": "Growth with model and batch",
    "crossover": "Growth with the width",
    "inference": "Training and inference",
    "largest": "The largest batch",
    "ways": "Ways of running",
    "aa": "Equal runs against each other",
    "reference": "Mixed precision",
}
EQUAL = "Equal runs compare no precisions; python benchmarks/equal_runs.py says how often the rules tell them apart."
MANY_MODELS = 8  # a folder with as many repeats published experiments


@dataclass
class ModelAnswer:
    """What the records say about one model on one device."""

    model: str
    device: str
    settings: str  # the title of its comparison
    use: str | None  # precision; None where nothing can be recommended
    why_not: str = ""  # why nothing can be
    ratio: float | None = None  # of the time of fp32 to that of `use`
    ratio_text: str = ""  # with the interval or the number of processes
    judged: str = ""  # what may be said of the ratio
    time: str = "-"
    memory: str = "-"
    saved: float | None = None  # percent of fp32's memory
    rival: str | None = None  # the fastest precision where that is not `use`, or tf32 where that is as fast
    rival_ratio: float = 1.0  # of the time of fp32 to that of the rival
    slower: float | None = None  # by how many per cent `use` is slower than the rival, where that is the fastest
    slower_text: str = ""  # the same in words, with the rival, its ratio over fp32 and the interval
    saved_of_rival: float | None = None  # percent of the rival's memory
    quality: str = "-"
    limit: str = "-"
    next: str = "-"
    left_out: list[str] = field(default_factory=list)  # faster precisions that lose quality, in words
    step: tuple[str, float] | None = None  # the best measured step from `use`: its label and its gain
    execution: str = "eager"


def kind_of(report: Report) -> str:
    """Return what a folder of records studies: a key of SUBJECTS, found from the records.

    Every explained run has measured inference, so only the name of the folder tells the study of inference.
    """
    if Path(report.folder).resolve().name.startswith("inference") and report.latency:
        return "inference"
    if not report.comparisons:
        return "largest" if report.largest else "aa" if report.equal else "reference"
    if len({group["model"] for group in report.comparisons}) >= MANY_MODELS:
        return "published"
    if sum(len(family.members) for family in report.widths) > len(report.comparisons) / 2:
        return "crossover"
    if report.ladders and 2 * len(report.alone) >= len(report.comparisons):
        return "ladder"
    if without_baseline(report) and find_changes(report):
        return "ways"
    models = {group["model"] for group in report.comparisons}
    sizes = {(group["model"], group["batch"]) for group in report.comparisons}
    if len(sizes) >= 2 * len(models) or max_models_of_experiment(report) >= NAMED:
        return "scaling"
    return "reference"


def max_models_of_experiment(report: Report) -> int:
    """Return how many models the experiment with most of them has."""
    models: dict[str, set[str]] = {}
    for group in report.comparisons:
        models.setdefault(group["notebook"], set()).add(group["model"])
    return max(map(len, models.values()))


def names_of(models: list[str]) -> str:
    """Return the names of some models, or their number where they are many."""
    models = list(dict.fromkeys(models))
    return count(len(models), "model") if len(models) > NAMED else ", ".join(models)


def title_of(report: Report) -> str:
    """Return a title from study, device and models."""
    cards = {run["gpu_uuid"] for run in report.measured} - {None}
    devices = " and ".join(report.devices) or "no device"
    one = "one " if len(cards) == len(report.devices) == 1 and not report.on_cpu else ""
    models = names_of([group["model"] for group in report.every_group] or [run["model"] for run in report.equal])
    return f"{SUBJECTS[kind_of(report)]} on {one}{devices}" + (f": {models}" if models else "")


def facts_line(report: Report) -> str:
    """Return in one line when, where and how often was measured."""
    runs = report.measured

    def values(name: str) -> list[str]:
        return sorted({str(run[name]) for run in runs if run[name] is not None})

    days = sorted({run["started_at"][:10] for run in runs if run["started_at"]})
    parts = [span(days)] if days else []
    parts += [", ".join([" and ".join(report.devices), *power_limits(runs)])]
    parts += [", ".join(values("host_cpu")) or "CPU not recorded"]
    cores = sorted({int(run["host_cores"]) for run in runs if run["host_cores"]})
    parts += [f"{listed(cores)} CPU cores"] if cores else []
    parts += [f"PyTorch {', '.join(values('torch_version'))}"] if values("torch_version") else []
    parts += [f"CUDA {', '.join(values('cuda_version'))}"] if values("cuda_version") else []
    processes = sorted({speedup["processes"] for speedup in report.speedups.values()} - {0})
    parts += [count(len(runs), "run")]
    parts += [f"{span(processes)} {'process' if processes == [1] else 'processes'} a precision"] if processes else []
    return plain(" · ".join(parts)) + " · [results.csv](results.csv)"


def power_limits(runs: list[dict]) -> list[str]:
    """Return the power limits of the cards as one phrase, or nothing where none was read."""
    limits = sorted({round(run["power_watts_limit"]) for run in runs if run["power_watts_limit"]})
    return [f"power limit {span(limits, '{} W')}"] if limits else []


def comparable_in(report: Report, number: int) -> list[str]:
    """Return the precisions of a comparison that may be recommended, fp32 first: those that trained as they should."""
    group = report.comparisons[number]
    return [name for name in trained_in(report, number) if may_be_used(group, name)]


def left_out_for_quality(report: Report, number: int, use: str) -> list[str]:
    """Return in words the precisions that are faster than `use`, but lose quality or may do so."""
    group, best = report.comparisons[number], ratio_over_fp32(report, number, use)
    return [
        f"{name} for {group['model']}: {ratio_text(report.speedups[number, name, 'fp32'])} over fp32, but"
        f" {quality_of(group, name)}"
        for name in trained_in(report, number)
        if not may_be_used(group, name) and ratio_over_fp32(report, number, name) > best
    ]


def trained_in(report: Report, number: int) -> list[str]:
    """Return the precisions of a comparison that trained and can be compared with fp32, fp32 first."""
    if not ok_runs(report.comparisons[number], "fp32"):
        return []
    names = ["fp32"]
    for name in list(PRECISIONS)[1:]:
        speedup = report.speedups.get((number, name, "fp32"))
        safe = name not in NO_FP32_WEIGHTS or has_learned(ok_runs(report.comparisons[number], name))
        if safe and speedup and judge(speedup) in COMPARABLE:
            names.append(name)
    return names if len(names) > 1 else []


def ratio_over_fp32(report: Report, number: int, precision: str) -> float:
    """Return how many times as fast as fp32 a comparable precision is."""
    return 1.0 if precision == "fp32" else report.speedups[number, precision, "fp32"]["ratio"]


def as_fast(report: Report, number: int, precision: str, fastest: str) -> bool:
    """Return whether a precision is as fast as the fastest, or the difference cannot be told."""
    ratio = ratio_over_fp32(report, number, fastest) / ratio_over_fp32(report, number, precision)
    if ratio < SMALLEST_CLAIMED:
        return True
    group = report.comparisons[number]
    speedup = speedup_between(ok_runs(group, fastest), ok_runs(group, precision))
    if judge(speedup) in TOO_FEW_PROCESSES.values() and "cuda_graph" not in execution_of(group):
        return ratio < EAGER_SCATTER
    return judge(speedup) in NOT_TOLD


def recommended(report: Report, number: int) -> str | None:
    """Return the precision to use in a comparison, or None where nothing can be recommended."""
    names = comparable_in(report, number)
    if not names:
        return None
    fastest = max(names, key=lambda name: ratio_over_fp32(report, number, name))
    good = [name for name in names if name == fastest or as_fast(report, number, name, fastest)]
    memory = {name: highest_peak(ok_runs(report.comparisons[number], name)) for name in good}
    known = [value for value in memory.values() if value is not None]
    if len(known) < len(good):
        return fastest
    least = [name for name in good if (memory[name] or 0) <= SMALLEST_CLAIMED * min(known)]
    simple = [name for name in least if name not in SMALLER_FORMATS]
    return simple[0] if simple else max(least, key=lambda name: ratio_over_fp32(report, number, name))


def why_none(report: Report, number: int) -> str:
    """Return why nothing can be recommended in a comparison."""
    group = report.comparisons[number]
    runs = runs_of([group])
    ended_well = [name for name in PRECISIONS if ok_runs(group, name)]
    if not ended_well:
        return f"none of the {count(len(runs), 'run')} ended well"
    if "fp32" not in ended_well:
        return "no run in fp32 to compare with"
    if ended_well == ["fp32"]:
        return "only fp32 ended well"
    words = {judge(report.speedups.get((number, name, "fp32"))) for name in ended_well[1:]}
    return "no precision trained" if words == {NOT_TRAINED} else "; ".join(sorted(words))


def quality_of(group: dict, precision: str) -> str:
    """Return the mean of the last metrics in fp32 and in a precision over equal seeds, and what may be said of it."""
    metrics = [by_seed(ok_runs(group, name)) for name in ("fp32", precision)]
    if not all(metrics):
        return "not known"
    common = metrics[0].keys() & metrics[1].keys()
    ends = [short(fmean(values[seed] for seed in common or values)) for values in metrics]
    one = ok_runs(group, precision)[0]
    metric = (one["metric_name"] or "metric").replace("_", " ")
    if precision == "fp32":
        return f"{metric} {ends[1]}"
    change = f"{metric} {ends[0]} → {ends[1]}"
    if not (has_learned(ok_runs(group, "fp32")) or has_learned(ok_runs(group, precision))):
        if one["chance_metric"] is None:
            return f"{change}: whether they have learned is not known"
        return f"{change}: neither has learned much; a guess reaches {short(one['chance_metric'])}"
    found = quality_against_fp32(group, precision)
    if not found:
        return f"{change} (no common seed)"
    seeds = count(found["seeds"], "seed")
    if is_too_few(found):
        return f"{change} ({seeds}: too few to judge)"
    return f"{change} ({outcome_in_words(group, precision, found)}, {seeds})"


def cause_of(record: dict) -> str:
    """Return what limits a run, in a few words."""
    case = find_bottleneck(record)[0]
    busy, waiting = record["gpu_busy_fraction"], record["data_wait_fraction"] or 0
    if case == "kernel launches" and record.get("graph_gain"):
        return f"{case}: a CUDA graph is {record['graph_gain']} as fast"
    if case == "kernel launches" and busy is not None:
        return f"kernel launches: the GPU idles {1 - busy:.0%} of the step"
    if case == "data loading":
        return f"data loading: the loop waits for it {waiting:.0%} of the time"
    return f"{case}: {longest_others(record)}" if case == OTHER_KERNELS else case


def label_of_step(precision: str, group: dict) -> str:
    """Return a precision with its layout and execution as a label."""
    execution = STEPS.get(execution_of(group), "")
    layout = "in channels_last" if group["settings"].get("channels_last") == "true" else ""
    scaler = "with the device scaler" if group["settings"].get("scaler") == '"device"' and not execution else ""
    return " ".join(filter(None, [precision, layout, execution or "in eager mode", scaler]))


def next_measured(report: Report, number: int, use: str) -> tuple[str, float, str] | None:
    """Return the best other execution or layout of the same training, or None where none gained.

    It comes as its label, its gain over `use`, and this gain with its memory as text.
    """
    group = report.comparisons[number]
    best: tuple[float, str, str] = (SMALLEST_GAIN, "", "")
    for other_number in same_but_for(report, number, ("execution", "channels_last", "scaler")):
        other = report.comparisons[other_number]
        for precision in PRECISIONS if other is not group else ():
            if not may_be_used(other, precision):
                continue
            speedup = speedup_between(ok_runs(other, precision), ok_runs(group, use))
            if speedup and judge(speedup) in COMPARABLE and judge(speedup) not in NOT_TOLD:
                peak = highest_peak(ok_runs(other, precision))
                text = f"{ratio_text(speedup)} over {use}" + ("" if peak is None else f", {short(peak)} GiB")
                best = max(best, (speedup["ratio"], label_of_step(precision, other), text))
    gain, label, text = best
    return (label, gain, text) if label else None


def was_tried(report: Report, group: dict, setting: str, value: str) -> bool:
    """Return whether the model of a comparison was also run with another value of a setting."""
    names = ("notebook", "device", "model", "batch")
    alike = [other for other in report.comparisons if all(other[name] == group[name] for name in names)]
    return any(value in other["settings"].get(setting, "") for other in alike)


def next_bound(report: Report, group: dict, record: dict) -> str:
    """Return what to try next where no step was measured to gain, with the most that it can gain."""
    case = find_bottleneck(record)[0]
    busy, waiting = record["gpu_busy_fraction"], record["data_wait_fraction"] or 0
    if case == "kernel launches" and busy and record.get("execution") in ("eager", "compile"):
        return f"a CUDA graph alone: about {1 / busy:.1f}x"
    if case == "data loading" and waiting < 1:
        return f'loader="gpu" or more workers: at most {1 / (1 - waiting):.1f}x'
    ways = []
    if case == OTHER_KERNELS:
        ways += [] if was_tried(report, group, "channels_last", "true") else ["channels_last"]
        ways += [] if was_tried(report, group, "execution", "compile") else ["torch.compile"]
    if record["sample_unit"] != "images":
        ways = [way for way in ways if way != "channels_last"]
    return f"{' or '.join(ways)}: gain not measured here" if ways else "-"


def name_of_row(report: Report, group: dict) -> str:
    """Return the title of a comparison without what is usual, with the size of images where it differs."""
    lines = [line for line in group["lines"] if not line.startswith(("without ", "whole "))]
    sizes = {other["settings"].get("image_size") for other in report.comparisons if same_experiment(other, group)}
    if len(sizes - {None}) > 1 and group["settings"].get("image_size"):
        lines.append(f"{group['settings']['image_size']} pixels")
    steps = group["settings"].get("max_steps", "0")
    if steps.isdigit() and int(steps):  # a record may not know it: null
        lines.append(f"{int(steps):,} steps an epoch")
    return " · ".join([*lines, *([group["device"]] if len(report.devices) > 1 else [])])


def same_experiment(group: dict, other: dict) -> bool:
    """Return whether two comparisons are of one notebook."""
    return group["notebook"] == other["notebook"]


def answer_on(report: Report, number: int) -> ModelAnswer:
    """Return the answer for the model of one comparison."""
    group = report.comparisons[number]
    use = None if report.on_cpu else recommended(report, number)
    found = ModelAnswer(group["model"], group["device"], name_of_row(report, group), use)
    if use is None:
        found.why_not = "on a CPU nothing is judged" if report.on_cpu else why_none(report, number)
        return found
    speedup = report.speedups.get((number, use, "fp32"))
    times = [short(seconds_of_epoch(timed_runs(group, name))) for name in dict.fromkeys(("fp32", use))]
    found.time = f"{' → '.join(times)} s"
    if speedup:
        found.ratio, found.judged = speedup["ratio"], judge(speedup)
        found.ratio_text = ratio_text(speedup)
        found.time += f"; {ratios_in_words(speedup, report.speedups.get((number, use, 'tf32')))}"
    else:
        others = [(name, report.speedups[number, name, "fp32"]) for name in comparable_in(report, number)[1:]]
        found.time += "".join(f"; {name} {ratio_text(other)}" for name, other in others)
    found.time += mark_of(report, number, "fp32", use)
    memory = [highest_peak(ok_runs(group, name)) for name in dict.fromkeys(("fp32", use))]
    if None not in memory:
        found.memory = f"{' → '.join(short(value) for value in memory if value is not None)} GiB"
    if use != "fp32" and (saved := memory_saved(group, use, "fp32")) is not None:
        found.saved = saved
        found.memory += f" ({-round(saved):+d}%)" if round(saved) else ""
    name_rival(found, report, number, use)
    found.quality = quality_of(group, use)
    found.left_out = left_out_for_quality(report, number, use)
    record = example(group, use)
    found.execution = execution_of(group)
    found.limit = cause_of(record)
    if best := next_measured(report, number, use):
        found.step = best[:2]
        found.next = f"{best[0]}: {best[2]}, measured"
    else:
        found.next = next_bound(report, group, record)
    return found


def name_rival(found: ModelAnswer, report: Report, number: int, use: str) -> None:
    """Fill in the rival of the used precision, and by how much it is faster."""
    names, group = comparable_in(report, number), report.comparisons[number]
    fastest = max(names, key=lambda name: (ratio_over_fp32(report, number, name), name == use))
    if fastest != use:
        found.rival = fastest
    elif use in SMALLER_FORMATS and "tf32" in names and as_fast(report, number, "tf32", fastest):
        found.rival = "tf32"
    if found.rival is None:
        return
    found.rival_ratio = ratio_over_fp32(report, number, found.rival)
    found.saved_of_rival = memory_saved(group, use, found.rival)
    speedup = speedup_between(ok_runs(group, use), ok_runs(group, found.rival))
    if fastest != use and speedup and round(100 * speedup["ratio"]) < 100:
        found.slower = 100 * (1 - speedup["ratio"])
        interval = f" ({interval_text(speedup)})" if speedup["low"] else ""
        amount = f"{found.slower:.0f}% slower than {fastest}{interval}"
        found.slower_text = f"{amount}, the fastest at {found.rival_ratio:.2f}x"


def ratios_in_words(over_fp32: dict, over_tf32: dict | None) -> str:
    """Return the ratio over fp32 with what may be said of it, and that over tf32. "One process" is said once."""
    few = TOO_FEW_PROCESSES.values()
    word = judge(over_fp32)
    if over_tf32 is None:
        return ratio_text(over_fp32) + ("" if word in few else f", {word}")
    if word in few and judge(over_tf32) == word:
        return f"{over_fp32['ratio']:.2f}x, and {over_tf32['ratio']:.2f}x over tf32 ({word})"
    return f"{ratio_text(over_fp32)}{'' if word in few else f', {word}'}; {ratio_text(over_tf32)} over tf32"


def widths_told(report: Report) -> list[Widths]:
    """Return the models whose answer is from which width on a precision pays."""
    return report.widths if kind_of(report) == "crossover" and not report.on_cpu else []


def answers_of(report: Report) -> list[ModelAnswer]:
    """Return an answer for each model, data set and device, in the settings that have most to tell.

    Where these were run in eager mode and otherwise, both are told, eager mode first.
    """
    numbers: dict[tuple, list[int]] = {}
    apart = [id(group) for family in widths_told(report) for group in family.members]
    for number, group in enumerate(report.comparisons):
        if id(group) in apart:
            continue
        numbers.setdefault((group["notebook"], group["device"], group["model"]), []).append(number)

    def size(number: int) -> tuple[int, int, int, int]:
        group = report.comparisons[number]
        shared = sum(other["batch"] == group["batch"] for other in report.comparisons)
        trained = sum(bool(ok_runs(group, name)) for name in PRECISIONS)
        return trained, len(trained_in(report, number)), len(runs_of([group])), shared

    both = kind_of(report) == "reference" and not report.on_cpu
    found = []
    for same in numbers.values():
        most = max(same, key=size)
        told = [answer_on(report, number) for number in in_both_ways(report, most)] if both else []
        found += told if len(told) > 1 and all(one.use for one in told) else [answer_on(report, most)]
    return found


def in_both_ways(report: Report, number: int) -> list[int]:
    """Return the numbers of a comparison's training in eager mode and in the fastest other execution, if there are."""
    eager, others = [], []
    for one in same_but_for(report, number, ("execution",)):
        group = report.comparisons[one]
        seconds = [seconds_of_epoch(runs) for name in PRECISIONS if (runs := timed_runs(group, name))]
        if seconds and execution_of(group) == "eager":
            eager.append(one)
        elif seconds:
            others.append((min(seconds), one))
    return [*eager[:1], *(one for _, one in sorted(others)[:1])]


def memory_in_words(one: ModelAnswer) -> str:
    """Return how memory differs from that of fp32, to stand after "1.57x as fast as fp32", or nothing."""
    if one.saved is None:
        return ""
    if abs(one.saved) < 100 * (SMALLEST_CLAIMED - 1):
        return " with the same memory"
    return f" with {abs(one.saved):.0f}% {'less' if one.saved > 0 else 'more'} memory"


def said_of_model(one: ModelAnswer, other: ModelAnswer | None = None) -> str:
    """Return one sentence on a model: of its first execution, or of `other` with the first at the end."""
    return f"{said_of_execution(other)}; {said_of_eager(one)}." if other else f"{said_of_execution(one)}."


def said_of_execution(one: ModelAnswer) -> str:
    """Return what to use for a model in one execution, what it brings, and worse quality, without a full stop."""
    way = STEPS.get(one.execution, "")
    if one.use == "fp32":
        rest = f", but {one.step[0]} is {one.step[1]:.2f}x as fast" if one.step else ""
        text = f"For {one.model} {way or 'in eager mode'} nothing is shown to be faster than fp32{rest}"
        return f"{text}, though fp32 was {one.slower_text}" if one.slower_text else text
    use = f"For {one.model} {way} use {one.use}" if way else f"For {one.model} use {one.use}"
    fast = f"{one.ratio:.2f}x as fast as fp32" if one.ratio else "as fast as fp32"
    if one.judged in NOT_TOLD:
        fast = "not shown to be faster than fp32"
    worse = f", but {one.quality}" if f"({WORSE}" in one.quality else ""
    if one.rival is None:
        it_is = "it is " if one.judged in NOT_TOLD else ""
        return f"{use}: {it_is}{fast}{memory_in_words(one)}{worse}"
    rest = f", but was {one.slower_text}" if one.slower_text else f" and not shown to be faster than {one.rival}"
    return f"{use}{why_used(one)}: it is {fast}{rest}{worse}"


def why_used(one: ModelAnswer) -> str:
    """Return that a precision is used for the memory that it saves of its rival's, or nothing where it saves none."""
    if one.saved_of_rival is None or one.saved_of_rival < 100 * (SMALLEST_CLAIMED - 1):
        return ""
    return f" for its memory, {one.saved_of_rival:.0f}% less than in {one.rival}"


def said_of_eager(one: ModelAnswer) -> str:
    """Return what the sentence on a model adds on eager mode."""
    slower = f", though it was {one.slower_text}" if one.slower_text else ""
    if one.use == "fp32":
        return f"in eager mode nothing is shown to be faster than fp32{slower}"
    if one.judged in NOT_TOLD:
        return f"in eager mode {one.use}{why_used(one)}, not shown to be faster{slower}"
    if one.rival:
        return f"in eager mode {one.use}{why_used(one)}{slower}"
    return f"in eager mode {one.use}" + (f", {one.ratio:.2f}x" if one.ratio else "")


def said_of_slower(told: list[ModelAnswer]) -> list[str]:
    """Return in one sentence which of many models use a slower precision, what that costs, and what it saves."""
    by_pair: dict[tuple, list[ModelAnswer]] = {}
    for one in told:
        if one.slower_text:
            by_pair.setdefault((one.use, one.rival), []).append(one)
    parts = []
    for (use, rival), found in by_pair.items():
        percents = span([one.slower for one in found if one.slower is not None], "{:.0f}")
        ratios = span([one.rival_ratio for one in found], "{:.2f}x")
        saved = [one.saved_of_rival for one in found if one.saved_of_rival and why_used(one)]
        memory = f", but took {span(saved, '{:.0f}')}% less memory" if saved else ""
        where = f"for {names_of([one.model for one in found])}"
        parts.append(f"{where} {rival} was the fastest, at {ratios}: there {use} was {percents}% slower{memory}")
    text = "; ".join(parts)
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def said_of_many(by_use: dict[str, list[ModelAnswer]], asked: int) -> list[str]:
    """Return two sentences on many models: the precision that most of them use, and the others."""
    (use, most), *others = by_use.items()
    ratios = [one.ratio for one in most if one.ratio]
    amount = f": {span(ratios, '{:.2f}x')} as fast as fp32" if ratios else ""
    said = [f"Use {use} for {len(most)} of {count(asked, 'model')}{amount}."]
    parts = []
    for name, found in others:
        ratio = [f" ({one.ratio:.2f}x)" if one.ratio else "" for one in found]
        named = [one.model + text for one, text in zip(found, ratio, strict=True)]
        parts.append(f"{name} for {' and '.join(named) if len(named) <= NAMED else count(len(named), 'model')}")
    if parts:
        said.append(f"Use {', '.join(parts)}.")
    return said


def sentences_of(report: Report, answers: list[ModelAnswer]) -> list[str]:
    """Return the answer in at most four sentences."""
    if report.on_cpu:
        return [f"{CPU_WARNING}.", "It shows that the suite works, and nothing about speed."]
    by_use: dict[str, list[ModelAnswer]] = {}
    for one in answers:
        if one.use:
            by_use.setdefault(one.use, []).append(one)
    if not by_use:
        reasons = list(dict.fromkeys(one.why_not for one in answers))
        why = reasons[0] if len(reasons) == 1 else "the table says why"
        return [f"No precision can be recommended: {why}." if answers else "No comparison has a fixed batch size."]
    told = [one for one in answers if one.use]
    by_model: dict[tuple, list[ModelAnswer]] = {}
    for one in told:
        by_model.setdefault((one.model, one.device), []).append(one)
    if len(by_model) <= NAMED:
        said = [said_of_model(*same) for same in by_model.values()]
    else:
        said = said_of_many(dict(sorted(by_use.items(), key=lambda item: -len(item[1]))), len(answers))
        said += said_of_slower(told)
    steps = [one for one in told if one.step and one.use != "fp32"]
    without = [one.model for one in answers if not one.use]
    if steps:
        gains = span([one.step[1] for one in steps if one.step], "{:.2f}x")
        names = [one.model for one in steps]
        models = listed(names, "and") if len(names) <= NAMED else count(len(names), "model")
        said.append(f"The step in the last column brings another {gains} ({models}).")
    elif without:
        said.append(f"Nothing can be said of {names_of(without)}: the table says why.")
    elif (judged := {one.judged for one in told if one.ratio}) <= set(TOO_FEW_PROCESSES.values()):
        few = "single processes" if judged <= {TOO_FEW_PROCESSES[1]} else "of one or two processes"
        eager = any(one.execution == "eager" for one in told)
        said.append(f"These are {few}{': in eager mode two differ by up to a third' if eager else ''}.")
    return said


def trust_line(report: Report, answers: list[ModelAnswer]) -> str:
    """Return in a few sentences what can be trusted: processes, quality, hosts and disturbed runs."""
    speedups = [speedup for speedup in report.speedups.values() if speedup["processes"]]
    few = sum(speedup["processes"] < FEWEST_PROCESSES for speedup in speedups)
    named = [host_of(run) for run in report.measured if run["status"] != "unsupported"]  # the others ran somewhere
    hosts, unnamed = set(named) - {None}, named.count(None)
    seen = [run for _, run in report.timed] or report.equal
    disturbed = [run for _, run in report.disturbed] if report.timed else list(filter(flags_of, report.equal))
    said = []
    if few == len(speedups) > 0:
        said.append("No ratio has an interval: that takes three processes a precision.")
    elif few:
        said.append(
            f"{few} of {count(len(speedups), 'ratio')} {'has' if few == 1 else 'have'} no interval: that takes three"
            " processes a precision."
        )
    elif speedups:
        said.append("Every ratio over fp32 or tf32 has a 95% interval.")
        steps = [step.over_first for steps in measured_ladders(report) for step in steps if step.over_first]
        if single := sum(step["low"] is None for step in steps):
            said.append(
                f"{single} of {count(len(steps), 'step')} of the ladders {'has' if single == 1 else 'have'} none."
            )
    if any(one.use for one in answers):
        good = [one.model for one in answers if any(f"({word}," in one.quality for word in AS_GOOD)]
        shown = names_of(good) if good else "no model"
        said.append(f"A loss of quality beyond the margin is ruled out for {shown}: that takes five seeds.")
    if report.measured:
        where = f"The runs are from {count(len(hosts), 'host')}."
        if unnamed:
            where = f"{unnamed} of {count(len(named), 'run')} do not name their host."
        said.append(where if hosts else "How many hosts were used was not recorded.")
    if disturbed:
        said.append(said_of_disturbed(disturbed, len(seen), left_out_of_times(report.comparisons)))
    elif seen and not report.on_cpu:
        said.append("No run was seen throttled or sharing its GPU.")
    said += said_of_power(seen)
    return f"**What can be trusted.** {' '.join(said)}"


def row_of(one: ModelAnswer) -> dict[str, str]:
    """Return the answer for a model as a row of the table."""
    row = {"model": one.settings, "use": one.use or f"not known: {one.why_not}", "time of an epoch": one.time}
    row |= {"memory": one.memory, "quality": one.quality}
    return row | {"what limits it": one.limit, "try next": one.next}


def section(report: Report) -> Section:
    """Return the title, the answer, and a row for each model."""
    section = Section()
    answers = answers_of(report)
    section.parts.append(Heading(title_of(report), level=1))
    section.say(facts_line(report))
    kind = kind_of(report)
    families = widths_told(report)
    if kind == "ways" and not report.on_cpu:
        said = ["Precisions are not compared: no run in fp32.", in_words(report, find_changes(report))]
    elif kind == "aa" and not report.on_cpu:
        said = [EQUAL]
    elif families:
        runs = runs_of([group for family in families for group in family.members])
        held = [count(len({run["seed"] for run in runs}), "seed"), *power_limits(runs)]
        said = [*map(sentence_on, families), f"Each mode is set beside the next simpler one ({', '.join(held)})."]
        said += sentences_of(report, answers) if answers else []
    else:
        said = sentences_of(report, answers)
    if made_up := said_of_made_up(report.measured):
        section.say(f"**{made_up}**")
    section.say(f"**Answer.** {plain(' '.join(filter(None, said)))}")
    if used := [name for name in FORMATS if any(one.use == name for one in answers)]:
        section.say(plain("; ".join(f"{name}: {FORMATS[name]}" for name in used)) + ".")
    if left_out := [text for one in answers for text in one.left_out]:
        section.say(f"**Left out, though faster.** {plain('; '.join(left_out))}.")
    section.say(trust_line(report, answers))
    if families:
        section.table(said_once([row_of_pair(family, *pair) for family in families for pair in family.pairs]))
    if answers and kind != "ways" and not report.on_cpu:
        section.table([row_of(one) for one in answers])
    return section
