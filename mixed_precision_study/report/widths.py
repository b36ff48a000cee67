"""From which width of a model on a precision pays over the next simpler one, in time, memory, energy and loss."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..analysis.speedup import FEWEST_PROCESSES
from ..analysis.trained import has_learned
from ..analysis.verdict import DIFFERENT, OUTCOMES, judge
from .comparisons import gap_text, ok_runs, over_runs, timed_runs, width_of
from .memory_use import peak_gib
from .report import Report
from .style import PRECISIONS
from .verdicts import speedup_of
from .words import count, listed, span

LOSS_BAR = 0.02  # nats: what the last training loss may be above the base's; 2% of perplexity
LESS = 0.98  # of the base's memory or energy
OF_WIDTH = ("units", "heads", "model", "max_steps", "epochs", "lr")  # settings that may differ between the widths
SIMPLER = {  # the mode that a mode is measured against, the first that was run
    "tf32": ("fp32",),
    "amp_fp16": ("tf32", "fp32"),
    "amp_bf16": ("tf32", "fp32"),
    "o2_fp16": ("amp_fp16", "tf32", "fp32"),
    "o3_fp16": ("amp_fp16", "tf32", "fp32"),
    "bf16_true": ("amp_bf16", "tf32", "fp32"),
    "fp8": ("amp_bf16", "tf32", "fp32"),
}
KINDS = {"transformer": "Transformer language model", "vit": "ViT"}  # of models, see width_of
WITHIN, OUTSIDE = "within the bar", "outside the bar"
UNSURE, UNTRAINED, TOO_FEW = "cannot be told", "hardly trained", "fewer than three runs"


@dataclass
class Widths:
    """Comparisons of one model in which nothing but its width and the length and rate of the training differs."""

    model: str  # its kind
    title: str
    groups: dict[int, dict]  # {width: the comparison of most modes and processes}, for time and memory
    for_energy: dict[int, dict]  # {width: the one in which most modes have an energy}
    all_groups: dict[int, list[dict]]  # {width: all its comparisons}

    @property
    def precisions(self) -> list[str]:
        """The modes that were run at any width."""
        return [name for name in PRECISIONS if any(group["runs"][name] for group in self.groups.values())]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(mode, simpler mode) for every mode that has a simpler one."""
        return [(name, base) for name in self.precisions if (base := simpler(self, name))]

    @property
    def members(self) -> list[dict]:
        """All comparisons."""
        return [group for groups in self.all_groups.values() for group in groups]

    def for_loss(self, precision: str, base: str) -> dict[int, dict]:
        """{width: the comparison that tells the losses of two modes apart best}: learned, three runs, least scatter."""
        both = {
            width: [group for group in groups if loss_above(group, precision, base) is not None]
            for width, groups in self.all_groups.items()
        }

        def resolution(group: dict) -> tuple:
            runs = min(len(losses_of(group, name)) for name in (precision, base))
            trained = is_trained(group, (precision, base))
            return trained, min(runs, FEWEST_PROCESSES), -loss_scatter(group, precision, base)

        return most({width: groups for width, groups in both.items() if groups}, resolution)


def find_widths(report: Report) -> list[Widths]:
    """Return the models that were run at three widths or more, in at least two modes."""
    found: dict[tuple, dict[int, list[dict]]] = {}
    for group in report.comparisons:
        if width := width_of(group):
            kind, number = width
            rest = tuple(item for item in group["settings"].items() if item[0] not in OF_WIDTH)
            found.setdefault((kind, rest), {}).setdefault(number, []).append(group)
    families = []
    for (kind, _), of_width in found.items():
        if len(of_width) < 3:
            continue
        first = next(iter(of_width.values()))[0]
        device = f", {first['device']}" if len(report.devices) > 1 else ""
        widths = dict(sorted(of_width.items()))
        family = Widths(
            KINDS[kind],
            f"{KINDS[kind]}, {first['data']}, {first['batch']}{device}",
            most(widths, lambda group: (modes_of(group), processes_of(group), steps_of(group))),
            most(widths, lambda group: (modes_with_energy(group), processes_of(group))),
            widths,
        )
        if len(family.precisions) > 1:
            families.append(family)
    return families


def most(widths: dict[int, list[dict]], size: Callable[[dict], tuple]) -> dict[int, dict]:
    """Return {width: its comparison of which `size` is largest}."""
    return {width: max(groups, key=size) for width, groups in widths.items()}


def modes_of(group: dict) -> int:
    """Return how many modes of a comparison ended well."""
    return sum(bool(ok_runs(group, name)) for name in PRECISIONS)


def processes_of(group: dict) -> int:
    """Return the most timed processes that a precision of a comparison has."""
    return max(len(timed_runs(group, name)) for name in PRECISIONS)


def steps_of(group: dict) -> int:
    """Return the steps of a comparison's trainings."""
    runs = [run for name in PRECISIONS for run in ok_runs(group, name)]
    return max((len(run["epoch_seconds"]) * (run["steps_per_epoch"] or 0) for run in runs), default=0)


def modes_with_energy(group: dict) -> int:
    """Return how many modes of a comparison have an energy."""
    return sum(median_of(group, name, "joules_per_1000_samples") is not None for name in PRECISIONS)


def is_trained(group: dict, precisions: Iterable[str]) -> bool:
    """Return whether any of these modes of a comparison has learned."""
    return any(has_learned(ok_runs(group, name)) for name in precisions)


def simpler(family: Widths, precision: str) -> str | None:
    """Return the mode that a mode is measured against, or None for the simplest."""
    return next((name for name in SIMPLER.get(precision, ()) if name in family.precisions), None)


def median_of(group: dict, precision: str, field: str) -> float | None:
    """Return the median of a field over the timed runs of a precision, None where none has it."""
    return over_runs(timed_runs(group, precision), lambda run: run[field])


def ratio_of(group: dict, precision: str, base: str) -> float | None:
    """Return the speed-up of a mode over a base, or None."""
    speedup = speedup_of(group, precision, base)
    return speedup["ratio"] if speedup else None


def share_of(read: Callable[[dict], float | None]) -> Callable[[dict, str, str], float | None]:
    """Return a function of (comparison, mode, base): the mode's median of what is read, as a share of the base's."""

    def share(group: dict, precision: str, base: str) -> float | None:
        own, other = (over_runs(timed_runs(group, name), read) for name in (precision, base))
        return own / other if own is not None and other else None

    return share


memory_share = share_of(peak_gib)  # without the data set
energy_share = share_of(lambda run: run["joules_per_1000_samples"])


def losses_of(group: dict, precision: str) -> list[float]:
    """Return the last training losses of a precision's runs."""
    return [run["train_loss"][-1] for run in ok_runs(group, precision) if run["train_loss"]]


def loss_above(group: dict, precision: str, base: str) -> float | None:
    """Return by how many nats the last training loss of a mode is above that of the base, in the median."""
    own, other = (losses_of(group, name) for name in (precision, base))
    return statistics.median(own) - statistics.median(other) if own and other else None


def loss_scatter(group: dict, *precisions: str) -> float:
    """Return by how many nats the last training losses of equal runs differ at most; 0 of single ones."""
    found = [losses_of(group, name) for name in precisions]
    return max((max(losses) - min(losses) for losses in found if losses), default=0.0)


def nats_text(*losses: float) -> str:
    """Return "+0.012" or "+0.012 to +0.034". A loss that rounds to 0 has no minus."""
    return span([round(loss, 3) + 0.0 for loss in losses], "{:+.3f}")


def judge_loss(group: dict, precision: str, base: str) -> str | None:
    """Return whether the last training loss of a mode is within the bar, or None where it is not known."""
    above = loss_above(group, precision, base)
    if above is None:
        return None
    if not is_trained(group, (precision, base)):
        return UNTRAINED
    if min(len(losses_of(group, name)) for name in (precision, base)) < FEWEST_PROCESSES:
        return TOO_FEW
    scatter = loss_scatter(group, precision, base)
    if scatter >= abs(above - LOSS_BAR):
        return UNSURE
    return WITHIN if above < LOSS_BAR else OUTSIDE


def is_faster(group: dict, precision: str, base: str) -> bool | None:
    """Return whether a mode may be called faster than a base, or None where nothing can be said."""
    speedup = speedup_of(group, precision, base)
    if speedup is None or judge(speedup) not in OUTCOMES:
        return None
    return judge(speedup) in DIFFERENT and speedup["ratio"] > 1


def takes_less(share: float | None) -> bool | None:
    return None if share is None else share <= LESS


def at(widths: list[int]) -> str:
    """Return "200 and 256"."""
    return listed([f"{width:,}" for width in widths], "and")


def first_width(found: dict[int, bool]) -> int | None:
    """Return the smallest width from which on all is true, or None. The widths are in order."""
    first = None
    for width, holds in reversed(found.items()):
        if not holds:
            break
        first = width
    return first


def claim_on(found: dict[int, bool | None]) -> str:
    """Return from which width on something is true, of the widths at which it is known."""
    known = {width: holds for width, holds in found.items() if holds is not None}
    if not known:
        return "not known"
    held = [width for width, holds in known.items() if holds]
    if held == list(known):
        return "at all widths" if held == list(found) else f"at {at(held)}"
    if not held:
        smaller_unknown = [width for width, holds in found.items() if holds is None and width < max(known)]
        names = [f"{width:,}" for width in known]
        return f"not at {listed(names, 'or')}" if smaller_unknown else f"at no width up to {names[-1]}"
    first = first_width(known)
    return f"only at {at(held)}" if first in (None, max(known)) else f"from {first:,} on"


def from_width(found: dict[int, bool | None]) -> str:
    """Return from which width on something is true, and where it is not known."""
    unknown = [width for width, holds in found.items() if holds is None]
    if not 0 < len(unknown) < len(found):
        return claim_on(found)
    return f"{claim_on(found)}; not known at {at(unknown)}"


def told_widths(family: Widths, precision: str, base: str) -> list[int]:
    """Return the widths at which both modes ended well."""
    return [w for w, group in family.groups.items() if ok_runs(group, precision) and ok_runs(group, base)]


def faster_at(family: Widths, precision: str, base: str) -> dict[int, bool | None]:
    """Return {width: whether a mode may be called faster than a base there}."""
    return {width: is_faster(family.groups[width], precision, base) for width in told_widths(family, precision, base)}


def loss_in_words(family: Widths, precision: str, base: str) -> str:
    """Return at which widths the training loss of a mode is outside the bar, or cannot be judged."""
    of: dict[str, list[int]] = {}
    groups = family.for_loss(precision, base)
    for width, group in groups.items():
        if outcome := judge_loss(group, precision, base):
            of.setdefault(outcome, []).append(width)
    if of.keys() == {WITHIN}:
        return WITHIN
    parts = []
    for outcome in (OUTSIDE, WITHIN, UNSURE, UNTRAINED, TOO_FEW):
        if outcome not in of:
            continue
        judged = [groups[width] for width in of[outcome]]
        part = f"{outcome} at {at(of[outcome])}"
        above = nats_text(*(loss_above(group, precision, base) or 0 for group in judged))
        scatter = span([loss_scatter(group, precision, base) for group in judged], "{:.3f}")
        if outcome == OUTSIDE:
            part += f" ({above} nats)"
        elif outcome == UNSURE:
            part += f" ({above} nats, equal runs differ by {scatter})"
        parts.append(part)
    return "; ".join(parts) or "not known"


def row_of_pair(family: Widths, precision: str, base: str) -> dict[str, str]:
    """Return from which width on a mode pays over a base, as a row of the report's first table."""
    told = told_widths(family, precision, base)
    row = {"comparison": family.title, "mode": precision, "against": base, "times as fast": "-"}
    gaps: dict[str, list[int]] = {}
    for width, group in family.groups.items():
        if width not in told:
            gaps.setdefault(gap_text(group["runs"][precision], f"no {base}"), []).append(width)
    missing = [f"{gap} at {at(widths)}" for gap, widths in gaps.items()]
    if not told:
        dashes = dict.fromkeys(("less memory", "less energy", "training loss"), "-")
        return row | {"faster": "; ".join(missing)} | dashes
    memory = {width: takes_less(memory_share(family.groups[width], precision, base)) for width in told}
    energy = {width: takes_less(energy_share(family.for_energy[width], precision, base)) for width in told}
    ratios = [ratio for width in told if (ratio := ratio_of(family.groups[width], precision, base))]
    if ratios:
        row["times as fast"] = span(ratios, "{:.2f}x")
    row["faster"] = "; ".join([from_width(faster_at(family, precision, base)), *missing])
    return row | {
        "less memory": from_width(memory),
        "less energy": from_width(energy),
        "training loss": loss_in_words(family, precision, base),
    }


def sentence_on(family: Widths) -> str:
    """Return from which width on each mode is faster than the next simpler one, and which train less well."""
    by_claim: dict[str, list[str]] = {}
    losses = []
    for precision, base in family.pairs:
        if told_widths(family, precision, base):
            by_claim.setdefault(claim_on(faster_at(family, precision, base)), []).append(precision)
        judged = [judge_loss(group, precision, base) for group in family.for_loss(precision, base).values()]
        if number := judged.count(OUTSIDE):
            of = count(sum(outcome in (OUTSIDE, WITHIN) for outcome in judged), "width")
            losses.append(f"{precision} ({number} of {of} judged)")
    unknown = by_claim.pop("not known", [])
    parts = [f"{listed(names, 'and')} {claim.replace('from', 'from width')}" for claim, names in by_claim.items()]
    said = [f"faster are {', '.join(parts)}"] if parts else []
    said += [f"nothing can be said of {listed(unknown, 'and')}"] if unknown else []
    said += [f"the training loss is above the bar for {listed(losses, 'and')}"] if losses else []
    return f"{family.title}: {'; '.join(said)}."
