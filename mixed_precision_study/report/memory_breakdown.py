"""Section: what fills the memory."""

from itertools import groupby

from .bars import gap_reasons, middle_runs, pool, stack_chart
from .layout import ONE_LINE_EACH, name_of
from .memory_use import gib, memory_saved
from .report import Key, Report
from .section import Section
from .style import MEMORY_STYLES, PRECISIONS
from .theme import chart_style
from .verdicts import said_once, say_missing
from .words import count, gibibytes, plain, span

TITLE = "What fills the memory"
ABOUT = """The memory at the peak of training, by what it holds. *Activations and workspace* are the rest of PyTorch's
peak, *slack* is what its allocator had reserved above that, and the *context* belongs to CUDA and its libraries."""

FIELDS = {  # part of the memory: fields of the record, ledger_<name>_mib
    "weights, gradients, optimizer": ("parameters", "gradients", "optimizer", "masters"),
    "data set": ("data",),
    "activations and workspace": ("activations",),
    "allocator slack": ("slack",),
    "context and libraries": ("context",),
}
WEIGHTS, DATA, ACTIVATIONS, SLACK, CONTEXT = FIELDS
HALF = ("amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16")
NOTHING = 0.05  # a smaller share of the memory is not worth a word
HALVED = (0.45, 0.55)  # of fp32's activations
WARMS_UP_TO = 1.5  # times the peak of training: less is not worth a word


def memory_parts_of(record: dict) -> dict[str, float]:
    """Return {part: GiB} of a run, empty where it has none, or one with a negative part."""
    values = {name: record[f"ledger_{name}_mib"] for names in FIELDS.values() for name in names}
    if any(mib is not None and mib < 0 for mib in values.values()):
        return {}
    parts = {}
    for part, names in FIELDS.items():
        known = [values[name] for name in names if values[name] is not None]
        if known:
            parts[part] = sum(known) / 1024
    return parts


def runs_with_breakdown(report: Report) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle run of those with a memory breakdown}."""
    return middle_runs(report, lambda record: sum(memory_parts_of(record).values()))


def total_label(record: dict) -> str:
    """Return the sum of the parts; without the context it is a lower bound."""
    bound = "\u2265 " if record["ledger_context_mib"] is None else ""
    return f"{bound}{gibibytes(sum(memory_parts_of(record).values()))} GiB"


def finding_on(report: Report, number: int, stacks: dict[Key, dict[str, float]]) -> str:
    """Return what 16 bits save of a comparison's memory, and why, as a clause; nothing without both to compare."""
    base = stacks.get((number, "fp32"))
    half = next((stacks[number, name] for name in HALF if (number, name) in stacks), None)
    if not base or not half or not base.get(ACTIVATIONS):
        return ""
    model = report.comparisons[number]["model"]
    whole = sum(base.values())
    saved = 1 - sum(half.values()) / whole
    part, size = max(base.items(), key=lambda item: item[1])
    if saved < NOTHING:
        return f"{model}: {size / whole:.0%} is {part}, so 16 bits save nothing"
    left = half.get(ACTIVATIONS, 0) / base[ACTIVATIONS]
    verb = "halve" if HALVED[0] <= left <= HALVED[1] else f"cut by {1 - left:.0%}"
    if left > 1 - NOTHING:
        return f"{model}: 16 bits save {saved:.0%}, but no activations"
    return f"{model}: 16 bits {verb} the activations and save {saved:.0%}"


def findings(report: Report, stacks: dict[Key, dict[str, float]]) -> list[str]:
    """Return what 16 bits save in each comparison."""
    clauses = (finding_on(report, number, stacks) for number in report.charted)
    return list(dict.fromkeys(clause for clause in clauses if clause))


def part_row(report: Report, key: Key, record: dict) -> dict:
    """Return the parts of a run's memory as a row of the table."""
    parts = memory_parts_of(record)
    row = {"comparison": report.comparisons[key[0]]["title"], "precision": key[1]}
    row |= {f"{part}, GiB": gibibytes(parts[part]) if part in parts else "-" for part in FIELDS}
    return row | {"all, GiB": total_label(record).removesuffix(" GiB")}


@chart_style()
def section(report: Report) -> Section:
    """Return the chart of what fills the memory, and sentences on it."""
    section = Section(TITLE, ABOUT)
    runs = runs_with_breakdown(report)
    if runs:
        draw_breakdowns(section, report, runs)
        say_savings(section, report)
        say_warm_up(section, report)
        section.table(said_once([part_row(report, key, run) for key, run in runs.items()]), "The memory in figures")
        say_check(section, report)
        say_missing(section, report, "The memory breakdown", "ledger_activations_mib", "ledger_reason")
    return section


def draw_breakdowns(section: Section, report: Report, runs: dict[Key, dict]) -> None:
    """Draw what fills the memory of some runs."""
    stacks = {key: memory_parts_of(record) for key, record in runs.items()}
    labels = {key: total_label(record) for key, record in runs.items()}
    gaps = gap_reasons(report, "ledger_reason")
    clauses = [] if report.on_cpu else findings(report, stacks)
    title = "What fills the memory"
    if 0 < len(clauses) <= ONE_LINE_EACH:
        title = "\n".join(clauses)
    figure = stack_chart(report, title, "GiB at the peak of training", MEMORY_STYLES, stacks, labels, gaps)
    texts = []
    for number, keys in groupby(labels, key=lambda key: key[0]):
        sums = ", ".join(f"{key[1]} {labels[key]}" for key in keys)
        texts.append(f"{report.comparisons[number]['title']}: {sums}.")
    section.chart(figure, "memory_breakdown", " ".join([*(f"{clause}." for clause in clauses), *texts][:12]))
    if len(clauses) > ONE_LINE_EACH:
        section.say("\n".join(f"- {plain(clause)}." for clause in clauses))


def say_savings(section: Section, report: Report) -> None:
    """Say what the precisions save of fp32's peak."""
    texts = []
    for precision in list(PRECISIONS)[1:]:
        shares = [memory_saved(group, precision, "fp32") for group in report.comparisons]
        known = [round(share) for share in shares if share is not None]
        if known:
            texts.append(f"{precision} {span(known, '{}%')}")
    if texts:
        section.say(f"Saved of fp32's peak in PyTorch, without the data set: {', '.join(texts)}.")


def say_warm_up(section: Section, report: Report) -> None:
    """Say where the warm-up takes far more than the training."""
    warm_up = pool(report, gib("peak_allocated_with_warmup_mib"), max)
    growth = {key: bar[0] / report.peaks[key][0] for key, bar in warm_up.items() if report.peaks.get(key, (0,))[0]}
    most = max(growth, key=growth.__getitem__, default=None)
    if most and growth[most] >= WARMS_UP_TO:
        text = f"up to {growth[most]:.1f} times the peak of training: {gibibytes(warm_up[most][0])} GiB"
        section.say(f"The warm-up, in which cuDNN tries its algorithms, takes {text} ({name_of(report, *most)}).")


def say_check(section: Section, report: Report) -> None:
    """Say how near the sums come to NVML's figure, and how far the parts were confirmed by blocks of memory."""
    errors = [abs(r["ledger_error_fraction"]) for _, r in report.timed if r["ledger_error_fraction"] is not None]
    texts = []
    if errors:
        texts.append(f"What NVML saw the runs add differs from these sums by {max(errors):.1%} at most.")
    checked = [run for run in report.timed if run[1]["ledger_unattributed_fraction"] is not None]
    if checked:
        right = [run for run in checked if not run[1]["ledger_blocks_reason"]]
        texts.append(f"Live blocks of memory confirm the parts in {len(right)} of {count(len(checked), 'run')}.")
    if texts:
        section.say(" ".join(texts))
    for number, record in checked:
        if record["ledger_blocks_reason"]:
            name = name_of(report, number, record["precision"])
            section.say(f"Do not trust the parts of {name}: {plain(record['ledger_blocks_reason'])}.")
