"""Section: what fills the memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from .bars import ONE_COLUMN, gap_reasons, middle_runs, pool, stack_chart
from .layout import name_of
from .memory_use import gib, memory_saved
from .report import Key, Report
from .section import Section
from .style import MEMORY_STYLES, PRECISIONS
from .verdicts import said_once, say_missing
from .words import count, gibibytes, span

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
HALF = ("amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16", "bf16_true", "fp8")
NOTHING = 0.05  # a smaller share of the memory is not worth a word
HALVED = (0.45, 0.55)  # of fp32's activations
NAMED = 4  # of more models the number of comparisons is given
WARMS_UP_TO = 1.5  # times the peak of training: less is not worth a word


def memory_parts_of(record: dict) -> dict[str, float]:
    """Return {part: GiB} of a run. It is empty where a part is negative, or none is known but slack and context."""
    values = {name: record[f"ledger_{name}_mib"] for names in FIELDS.values() for name in names}
    if any(mib is not None and mib < 0 for mib in values.values()):
        return {}
    parts = {}
    for part, names in FIELDS.items():
        known = [values[name] for name in names if values[name] is not None]
        if known:
            parts[part] = sum(known) / 1024
    return parts if parts.keys() - {SLACK, CONTEXT} else {}


def runs_with_breakdown(report: Report) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle run of those with a memory breakdown}."""
    return middle_runs(report, lambda record: sum(memory_parts_of(record).values()))


def total_label(record: dict) -> str:
    """Return the sum of the parts; without the context it is a lower bound."""
    bound = "\u2265 " if record["ledger_context_mib"] is None else ""
    return f"{bound}{gibibytes(sum(memory_parts_of(record).values()))} GiB"


@dataclass
class Saving:
    """What 16 bits save of a comparison's memory."""

    number: int  # of the comparison
    saved: list[float]  # share of fp32's memory, by each 16-bit mode
    activations: float  # those in 16 bits / those in fp32
    part: str  # the largest in fp32
    share: float  # of that part in fp32

    @property
    def kind(self) -> str:
        """Which of the clauses on savings the comparison belongs to."""
        least = min(self.saved)
        if least >= NOTHING and self.activations <= 1 - NOTHING:
            return "less"
        return "other" if self.part == ACTIVATIONS or least >= NOTHING else "nothing"


def saving_of(number: int, stacks: dict[Key, dict[str, float]]) -> Saving | None:
    """Return what the modes of 16 bits save against fp32, or None without both. The activations are the first one's."""
    base = stacks.get((number, "fp32"))
    halves = [stacks[number, name] for name in HALF if (number, name) in stacks]
    if not base or not halves or not base.get(ACTIVATIONS):
        return None
    whole = sum(base.values())
    part = max(base, key=base.__getitem__)
    left = halves[0].get(ACTIVATIONS, 0) / base[ACTIVATIONS]
    saved = [1 - sum(half.values()) / whole for half in halves]
    return Saving(number, saved, left, part, base[part] / whole)


def percents(shares: Iterable[float]) -> str:
    """Return "20%" or "20 to 30%"."""
    return f"{span([100 * share for share in shares], '{:.0f}')}%"


def clause_on(kind: str, savings: list[Saving]) -> str:
    """Return what 16 bits save in comparisons of one kind."""
    saved = percents(max(0, saved) for saving in savings for saved in saving.saved)
    left = percents(saving.activations for saving in savings)
    if kind == "less":
        halved = all(HALVED[0] <= saving.activations <= HALVED[1] for saving in savings)
        by = "" if halved else f" by {percents(1 - saving.activations for saving in savings)}"
        return f"16 bits {'halve' if halved else 'cut'} the activations{by} and save {saved} of the memory"
    if kind == "nothing":
        share = percents(saving.share for saving in savings)
        parts = " or ".join(dict.fromkeys(saving.part for saving in savings))
        return f"16 bits save nothing: activations stay at {left} of fp32's, {parts} take {share}"
    return f"16 bits save {saved}: their activations are {left} of fp32's"


def findings(report: Report, stacks: dict[Key, dict[str, float]]) -> list[str]:
    """Return what 16 bits save, in up to three clauses that name their models."""
    savings = [saving for number in report.charted if (saving := saving_of(number, stacks))]
    kinds: dict[str, list[Saving]] = {}
    for saving in savings:
        kinds.setdefault(saving.kind, []).append(saving)
    models = {kind: {report.comparisons[one.number]["model"] for one in found} for kind, found in kinds.items()}
    clauses = []
    for kind, found in kinds.items():
        names = []
        for one in found:
            group = report.comparisons[one.number]
            alone = sum(group["model"] in others for others in models.values()) == 1
            names.append(group["model"] if alone else group["title"])
        names = list(dict.fromkeys(names))
        where = ", ".join(names) if len(names) <= NAMED else count(len(found), "comparison")
        clauses.append(f"{clause_on(kind, found)} ({where})")
    return clauses


def part_row(report: Report, key: Key, record: dict) -> dict:
    """Return the parts of a run's memory as a row of the table."""
    parts = memory_parts_of(record)
    row = {"comparison": report.comparisons[key[0]]["title"], "precision": key[1]}
    row |= {f"{part}, GiB": gibibytes(parts[part]) if part in parts else "-" for part in FIELDS}
    return row | {"all, GiB": total_label(record).removesuffix(" GiB")}


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
    title = "\n".join(clauses) or "What fills the memory"
    figure = stack_chart(report, title, "GiB at the peak of training", MEMORY_STYLES, stacks, labels, gaps, gibibytes)
    texts = []
    for number, keys in groupby(labels, key=lambda key: key[0]):
        sums = ", ".join(f"{key[1]} {labels[key]}" for key in keys)
        texts.append(f"{report.comparisons[number]['title']}: {sums}.")
    if len(texts) > ONE_COLUMN:
        sums = span([sum(parts.values()) for parts in stacks.values()], "{:.2f}")
        texts = [f"{sums} GiB in {len(texts)} comparisons."]
    section.chart(figure, "memory_breakdown", " ".join([*(f"{clause}." for clause in clauses), *texts]))


def say_savings(section: Section, report: Report) -> None:
    """Say what the precisions save of fp32's peak."""
    texts = []
    for precision in list(PRECISIONS)[1:]:
        shares = [memory_saved(group, precision, "fp32") for group in report.comparisons]
        known = [round(share) for share in shares if share is not None]
        if known:
            texts.append(f"{precision} {span(known, '{}%')}")
    if texts:
        section.say(f"Saved of fp32's peak in PyTorch, without the data set (below 0: more): {', '.join(texts)}.")


def say_warm_up(section: Section, report: Report) -> None:
    """Say where the warm-up takes far more than the training."""
    warm_up = pool(report, gib("peak_allocated_with_warmup_mib"), max)
    peaks = pool(report, gib("peak_allocated_mib"), max)
    growth = {key: bar[0] / peaks[key][0] for key, bar in warm_up.items() if peaks.get(key, (0,))[0]}
    most = max(growth, key=growth.__getitem__, default=None)
    if most and growth[most] >= WARMS_UP_TO:
        text = f"up to {growth[most]:.1f} times the peak of training: {gibibytes(warm_up[most][0])} GiB"
        section.say(f"The warm-up, in which cuDNN tries its algorithms, takes {text} ({name_of(report, *most)}).")


def say_check(section: Section, report: Report) -> None:
    """Say how near the sums come to NVML's figure."""
    errors = [abs(r["ledger_error_fraction"]) for _, r in report.timed if r["ledger_error_fraction"] is not None]
    if errors:
        section.say(f"What NVML saw the runs add differs from these sums by {max(errors):.1%} at most.")
