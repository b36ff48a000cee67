"""Section: where the time of a step goes, and what limits it."""

from itertools import groupby

from ..analysis.bottleneck import ARITHMETIC, find_bottleneck
from .bars import ONE_COLUMN, gap_reasons, middle_runs, stack_chart
from .comparisons import busy_if_profiled, way_of
from .layout import MANY
from .report import Key, Report
from .section import Section
from .style import PRECISIONS, STEP_STYLES
from .verdicts import said_once, say_missing
from .words import count, percent, plain, short, span, tally

TITLE = "Why: where the time of a step goes"
ABOUT = """A bar is one training step. *Arithmetic* is convolution, matmul and attention. The other kernels are
normalisation, layout conversion, elementwise work and copies. *Idle* is the time in which no kernel ran. Faster
arithmetic does not shorten it. More launches lengthen it, as those of AMP's casts."""

CLEAR_BOUND = 1.05  # a smaller speed-up by filling the idle time is not worth a word
CLEARLY_LESS = 0.8  # of fp32's arithmetic
NAMED = 4  # of more comparisons those with each largest part are counted
HALF = ("amp_bf16", "amp_fp16", "o2_fp16", "o3_fp16", "bf16_true", "fp8")


def profiled_runs(report: Report) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle run of those that were profiled}."""
    return middle_runs(report, busy_if_profiled)


def parts_of_step(record: dict) -> dict[str, float]:
    """Return the milliseconds of a profiled step in arithmetic, in other kernels and idle; empty without a time."""
    step = record["step_ms_median"]
    if not step:
        return {}
    busy = min(1, record["gpu_busy_fraction"])
    families = dict(record["kernel_family_fractions"])
    arithmetic = busy * min(1, sum(families.get(name, 0) for name in ARITHMETIC))
    return dict(zip(STEP_STYLES, (step * arithmetic, step * (busy - arithmetic), step * (1 - busy)), strict=True))


def without_idle(record: dict) -> float | None:
    """Return about how many times as fast a run could be if the GPU were never idle, or None.

    It is no bound: as one graph the kernels themselves take less time, too.
    """
    busy = record["gpu_busy_fraction"]
    return 1 / busy if busy and busy <= 1 else None


def while_busy(record: dict) -> float | None:
    """Return what a run reaches of the measured FLOPs per second while the GPU is busy."""
    compute, busy = record["compute_limit_fraction"], record["gpu_busy_fraction"]
    return compute / busy if compute is not None and busy else None


def step_row(report: Report, key: Key, record: dict) -> dict:
    """Return where the time of a run's step goes and how near it comes to the limits, as a row of the table."""
    number, precision = key
    parts = parts_of_step(record)
    row: dict = {"comparison": report.comparisons[number]["title"], "precision": precision}
    row["step, ms"] = short(record["step_ms_median"]) if parts else "-"
    row |= {f"{part}, ms": short(parts[part]) if parts else "-" for part in STEP_STYLES}
    row["waits for data"] = percent(record["data_wait_fraction"])
    row["of the measured FLOP/s"] = percent(while_busy(record))
    row["on Tensor Cores"] = percent(record["tensor_core_fraction"])
    if len(report.charted) > MANY:  # else a sentence on the model says so
        bound = without_idle(record)
        row["limited by"] = find_bottleneck(record)[0]
        row["without idle time, at most"] = f"{bound:.2f}x" if bound else "-"
    return row


def family_row(report: Report, key: Key, record: dict) -> dict:
    """Return the families of kernels of a run, the longest first, as a row of the table."""
    families = [f"{name} {share:.0%}" for name, share in record["kernel_family_fractions"] if share >= 0.005]
    names = {"comparison": report.comparisons[key[0]]["title"], "precision": key[1]}
    return names | {"share of kernel time": ", ".join(families)}


def fastest_half(number: int, stacks: dict[Key, dict[str, float]]) -> Key | None:
    """Return the run of a comparison with the shortest step in 16 bits, or None."""
    found = [(number, name) for name in HALF if (number, name) in stacks]
    return min(found, key=lambda key: sum(stacks[key].values()), default=None)


def finding_on_steps(report: Report, stacks: dict[Key, dict[str, float]], runs: dict[Key, dict]) -> str:
    """Return what 16 bits do to the arithmetic and what limits them then, or nothing where that is not clear."""
    shares = []
    limits: list[tuple[str, str, str]] = []
    for number, group in report.charted_groups:
        half, base = fastest_half(number, stacks), stacks.get((number, "fp32"), {})
        if half and base.get("arithmetic"):
            shares.append(stacks[half]["arithmetic"] / base["arithmetic"])
            limits.append((way_of(group), find_bottleneck(runs[half])[0], group["model"]))
    if not shares or max(shares) > CLEARLY_LESS:
        return ""
    cut = span([100 * share for share in shares], "{:.0f}")
    return f"In 16 bits arithmetic takes {cut}% of its time in fp32. Then the limit is {limits_in_words(limits)}"


def limits_in_words(limits: list[tuple[str, str, str]]) -> str:
    """Return what limits the trainings; `limits` are (way of execution, limit, model) of each.

    Eager mode and graphs are told apart where each has one limit. Otherwise the models of a few are named.
    """
    by_way: dict[str, set[str]] = {}
    models: dict[str, list[str]] = {}
    for way, limit, model in limits:
        by_way.setdefault(way, set()).add(limit)
        models.setdefault(limit, []).append(model)
    if len(by_way) > 1 and all(len(found) == 1 for found in by_way.values()):
        return ", ".join(f"{limit} ({way})" for way in sorted(by_way, reverse=True) for limit in by_way[way])
    ordered = sorted(models, key=lambda limit: -len(models[limit]))
    if len(limits) <= NAMED:
        return ", ".join(f"{limit} ({', '.join(dict.fromkeys(models[limit]))})" for limit in ordered)
    counts = ", ".join(f"{limit} in {len(models[limit])}" for limit in ordered)
    return f"{counts} of {len(limits)} comparisons"


def alternative_text(report: Report, stacks: dict[Key, dict[str, float]], title: str) -> str:
    """Return the figures of the chart in a sentence for each of a few comparisons, or its title and the idle time."""
    texts = []
    idle = []
    for number, keys in groupby(stacks, key=lambda key: key[0]):
        steps = []
        for key in keys:
            total = sum(stacks[key].values())
            idle.append(stacks[key]["idle"] / total)
            steps.append(f"{key[1]} {short(total)} ms, {idle[-1]:.0%} idle")
        texts.append(f"{report.comparisons[number]['title']}: {'; '.join(steps)}.")
    if len(texts) <= ONE_COLUMN:
        return " ".join(texts)
    return f"{title}; idle {span(idle, '{:.0%}')} of a step in {len(texts)} comparisons."


def limits_of(report: Report, number: int, runs: dict[Key, dict]) -> str:
    """Return what limits the precisions of a comparison, and what they could gain without idle time, as a sentence."""
    here = {name: runs[number, name] for name in PRECISIONS if (number, name) in runs}
    cases: dict[str, list[str]] = {}
    for name, record in here.items():
        cases.setdefault(find_bottleneck(record)[0], []).append(name)
    text = "; ".join(f"{case} ({', '.join(names)})" for case, names in cases.items())
    bounds = {name: without_idle(record) for name, record in here.items()}
    clear = [f"{name} {bound:.2f}x" for name, bound in bounds.items() if bound and bound >= CLEAR_BOUND]
    gain = f" Without idle time about: {', '.join(clear)}." if clear else ""
    return f"- **{plain(report.comparisons[number]['title'])}** is limited by {text}.{gain}"


def section(report: Report) -> Section:
    """Return the chart of a step's time, what limits every run, and the table of the figures."""
    section = Section(TITLE, ABOUT)
    runs = profiled_runs(report)
    if not runs:
        return section
    draw_steps(section, report, runs)
    say_limits(section, report, runs)
    rows = [step_row(report, key, record) for key, record in runs.items()]
    section.table(said_once(rows), "A step in figures; the share of FLOP/s counts from busy time")
    section.table(said_once([family_row(report, key, run) for key, run in runs.items()]), "The families of kernels")
    say_missing(section, report, "Where the time goes", "gpu_busy_fraction", "profile_reason")
    return section


def draw_steps(section: Section, report: Report, runs: dict[Key, dict]) -> None:
    """Draw the milliseconds of a step."""
    stacks = {key: parts for key, record in runs.items() if (parts := parts_of_step(record))}
    if not stacks:
        return
    labels = {}
    for key, parts in stacks.items():
        total = sum(parts.values())
        labels[key] = f"{short(total)} ms, idle {parts['idle'] / total:.0%}"
    finding = "" if report.on_cpu else finding_on_steps(report, stacks, runs)
    title = finding or "Where the time of a step goes"
    about = "milliseconds of a training step"
    gaps = gap_reasons(report, "profile_reason")
    figure = stack_chart(report, title, about, STEP_STYLES, stacks, labels, gaps)
    section.chart(figure, "step_time", alternative_text(report, stacks, title))


def say_limits(section: Section, report: Report, runs: dict[Key, dict]) -> None:
    """Say what limits every run: once for each model, or as a tally of many."""
    if report.on_cpu:
        return
    if len(report.charted) > MANY:
        cases = tally((find_bottleneck(record)[0] for record in runs.values()), "{} {}")
        section.say(f"What limits {count(len(runs), 'precision')} of {len(report.charted)} comparisons: {cases}.")
        return
    section.say("\n".join(limits_of(report, number, runs) for number in dict.fromkeys(key[0] for key in runs)))
