"""Does the prediction choose the fastest remedies that fit into a budget of memory?

    python benchmarks/fit_budget.py FOLDER [FOLDER ...]

The folders hold the records of the studies fit, fit-held-out and fit-time. Predictions are made
from `fit`, in which the GPT of fit-held-out is not. Budgets are the midpoints
between neighbouring peaks of that GPT, from bf16 AMP in eager mode down to the least.
docs/contributors/plans.md has the rules. A choice is right if its measured peak is within the
budget and its step at most 5% longer than the shortest that is.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mixed_precision_study.judge.axis import Axis, grouped
from mixed_precision_study.judge.fit import Predicted, fastest_within, model_of, predict
from mixed_precision_study.report.files import study_of
from mixed_precision_study.store.reading import read_records

SLOWER = 1.05  # times the shortest step, up to which a choice is right
MOST_TOO_LARGE = 1
RULES = {  # choices that are the same for each budget: settings that differ from plain bf16 AMP
    "always compute every block again": {"checkpointing": 1},
    "always 8-bit moments": {"moments": "8bit"},
    "always compiled, loss in 8 parts, blocks again": {
        "execution": "compile",
        "loss_chunks": 8,
        "checkpointing": 1,
    },
}


class Arm(NamedTuple):
    """What was measured of an arm of the held-out model, and what is predicted."""

    peak_mib: float
    step_ms: float
    predicted: Predicted | None  # None where nothing like it was measured


def arms_of(records: list[dict], axis: Axis) -> dict[str, Arm]:
    """Return {arm: what was measured of it in the held-out model}; {} without its base, below
    which budgets begin.
    """
    good = [one for one in records if one["status"] == "ok" and not is_other_model(one)]
    models = {model_of(one) for one in good if study_name(one) == "fit-held-out"}
    held_out = [one for one in good if model_of(one) in models]
    table = [
        one
        for one in good
        if study_name(one) == "fit" and one["ledger_activations_mib"] is not None
    ]
    found: dict[str, Arm] = {}
    if plain_of(axis) not in {axis.arm_of(one) for one in held_out}:
        return found
    for arm, runs in grouped(held_out, axis.arm_of).items():
        peak = max(one["peak_allocated_mib"] for one in runs)
        step = fmean(one["step_ms_median"] for one in runs)
        found[arm] = Arm(peak, step, predict(table, axis, runs[0]))
    return found


def study_name(record: dict) -> str | None:
    return (record["study"] or {}).get("name")


def plain_of(axis: Axis) -> str:
    """Return the arm of bf16 AMP in eager mode without a remedy."""
    return axis.bases[0].replace("tf32", "amp_bf16", 1)


def is_other_model(record: dict) -> bool:
    """Return whether a training is of LoRA, or had a limit in force."""
    return bool(record["settings"].get("adapters") or record["settings"]["memory_limit_gib"])


def budgets_of(arms: dict[str, Arm], base: str) -> list[float]:
    """Return the midpoints between neighbouring peaks from that of the base to the least."""
    peaks = sorted({arm.peak_mib for arm in arms.values() if arm.peak_mib <= arms[base].peak_mib})
    return [(low + high) / 2 for low, high in pairwise(peaks)]


def judged(arms: dict[str, Arm], budgets: list[float], choose: Callable) -> list[str]:
    """Return for each budget whether a choice is right, slow, too large, or missing."""
    words = []
    for budget in budgets:
        shortest = min(arm.step_ms for arm in arms.values() if arm.peak_mib <= budget)
        chosen = arms.get(choose(budget))
        if chosen is None:
            words.append("missing")
        elif chosen.peak_mib > budget:
            words.append("too large")
        else:
            words.append("right" if chosen.step_ms <= SLOWER * shortest else "slow")
    return words


def arm_with(base: str, axis: Axis, changes: dict) -> str:
    """Return the base arm with some settings changed."""
    values = dict(zip(axis.settings, base.split(", "), strict=True)) | changes
    return ", ".join(str(value) for value in values.values())


def scores_of(records: list[dict], axis: Axis) -> tuple[list[float], dict[str, list[str]]]:
    """Return (budgets in MiB, {rule: its judgement of each budget})."""
    arms = arms_of(records, axis)
    base = plain_of(axis)
    budgets = budgets_of(arms, base)
    known = [arm.predicted for arm in arms.values() if arm.predicted]

    def choose(budget: float) -> str | None:
        best = fastest_within(known, budget)
        return best and best.arm

    found = {"predicted": judged(arms, budgets, choose)}
    for name, changes in RULES.items():
        chosen = arm_with(base, axis, changes)
        found[name] = judged(arms, budgets, lambda _, chosen=chosen: chosen)
    return budgets, found


def passes(found: dict[str, list[str]]) -> bool:
    """Return whether the prediction beats the two trivial rules, and is hardly ever too large."""
    own, *others = (words.count("right") for words in found.values())
    return own > max(others[:2]) and found["predicted"].count("too large") <= MOST_TOO_LARGE


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    folders = parser.parse_args(arguments).folders
    records = [one for folder in folders for one in read_records(folder)[0]]
    of_fit = [one for one in records if study_name(one) == "fit"]
    axis = study_of(folders[0], of_fit).compares()
    arms = arms_of(records, axis)
    if not arms:
        print("the held-out GPT was not measured in bf16 AMP, so there is no score")
        return 1
    print("measured GiB, predicted GiB, ms a step, arm")
    for name, arm in sorted(arms.items(), key=lambda item: -item[1].peak_mib):
        guess = f"{arm.predicted.peak_mib / 1024:6.2f}" if arm.predicted else "     -"
        print(f"{arm.peak_mib / 1024:6.2f} {guess} {arm.step_ms:7.1f}  {name}")
    budgets, found = scores_of(records, axis)
    print(f"{len(budgets)} budgets: {', '.join(f'{one / 1024:.2f}' for one in budgets)} GiB")
    for rule, words in found.items():
        counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        print(f"{rule}: {counts}")
    print("the prediction passes" if passes(found) else "the prediction does not pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
