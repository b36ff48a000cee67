"""What fits into a memory: the peak of a model under some remedies, from those that were measured.

The ledger of the nearest measured model, under the same remedies, is scaled part by part: weights,
moments and gradients by the number of weights, what blocks keep by tokens, width and layers,
temporaries by tokens and width, and logits by tokens and vocabulary.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from .axis import Axis, grouped

MARGIN = 0.03  # share of a limit that a prediction leaves free, because it errs
OF_GPT = ("context", "width", "layers", "vocabulary")  # models of timm grow with the batch alone
STATES = ("parameters", "optimizer", "masters", "gradients")


class Predicted(NamedTuple):
    """An arm with its peak in MiB, and the milliseconds of a step of the measured model, by which
    arms are put in order.
    """

    arm: str
    peak_mib: float
    step_ms: float


def sizes_of(settings: dict) -> dict[str, float]:
    """Return by what each part of a model's memory grows, and its `context`."""
    context, width, layers, vocabulary = (settings.get(name, 1) for name in OF_GPT)
    tokens = settings["batch_size"] * context
    return {
        "context": context,
        "weights": 12 * layers * width**2 + (vocabulary + context) * width,
        "blocks": tokens * width * layers,
        "temporaries": tokens * width,
        "logits": tokens * vocabulary,
    }


def model_of(record: dict) -> tuple:
    """Return what tells the models of a table apart."""
    settings = record["settings"]
    names = ("model", "batch_size", *OF_GPT)
    return record["notebook"], *(settings.get(name) for name in names)


def chunks_of(record: dict) -> int:
    return record["settings"].get("loss_chunks", 1)


def logits_in(same: list[dict], axis: Axis, execution: str) -> tuple[float, float]:
    """Return (MiB of a model's logits at the peak, MiB of them that the forward pass keeps), from
    trainings that differ in the chunks of the loss alone; zeros where there are none.
    """
    names = tuple(name for name in axis.settings if name != "loss_chunks")
    for arms in grouped(same, axis._replace(settings=names).arm_of).values():
        whole, parted = (end(arms, key=chunks_of) for end in (min, max))
        asked, chunks = whole["settings"], chunks_of(parted)
        plain = asked["execution"] == execution and not asked["checkpointing"]
        if plain and chunks_of(whole) < chunks:
            peak = whole["ledger_activations_mib"] - parted["ledger_activations_mib"]
            kept = whole["saved_activations_mib"] - parted["saved_activations_mib"]
            return peak / (1 - 1 / chunks), kept
    return 0, 0


def parts_of(record: dict, logits: float, kept_logits: float) -> dict[str, float]:
    """Return the MiB of a measured peak by what they grow with, without the data."""
    chunks, activations = chunks_of(record), record["ledger_activations_mib"]
    parts = record["settings"]["micro_batches"]
    of_logits = min(logits / chunks / parts, activations)
    kept = record["saved_activations_mib"] - (kept_logits / parts if chunks == 1 else 0)
    blocks = max(0, min(kept, activations - of_logits))
    return {
        "weights": sum(record[f"ledger_{name}_mib"] for name in STATES),
        "blocks": blocks,
        "temporaries": activations - of_logits - blocks,
        "logits": of_logits,
    }


def predict(table: list[dict], axis: Axis, wanted: dict) -> Predicted | None:
    """Return the prediction for a training that is `wanted`, as notebook, precision and settings,
    or None where no model like it was measured with its remedies. table: ok records with a ledger.

    The nearest model is that whose context differs least.
    """
    arm, asked = axis.arm_of(wanted), wanted["settings"]
    model, sizes = model_of(wanted)[:2], sizes_of(asked)
    known = [one for one in table if axis.arm_of(one) == arm and model_of(one)[:2] == model]

    def ratios(record: dict) -> dict[str, float]:
        return {name: sizes[name] / size for name, size in sizes_of(record["settings"]).items()}

    if not known:
        return None
    nearest = min(known, key=lambda one: abs(math.log(ratios(one)["context"])))
    same = [one for one in table if model_of(one) == model_of(nearest)]
    grown = ratios(nearest)
    parts = parts_of(nearest, *logits_in(same, axis, asked["execution"]))
    scaled = {name: part * grown[name] for name, part in parts.items()}
    # at the end of the backward pass all gradients are there, and nothing that blocks keep
    gradients = nearest["ledger_parameters_mib"] - nearest["ledger_gradients_mib"]
    at_end = 0 if asked["optimizer_in_backward"] else gradients * grown["weights"]
    either = max(scaled["blocks"] + scaled["logits"], at_end)
    peak = scaled["weights"] + scaled["temporaries"] + either + nearest["ledger_data_mib"]
    return Predicted(arm, peak, nearest["step_ms_median"])


def fastest_within(predictions: Iterable[Predicted], limit_mib: float) -> Predicted | None:
    """Return the fastest prediction that fits into a limit, or None where none does."""
    most = (1 - MARGIN) * limit_mib
    fits = [one for one in predictions if one.peak_mib <= most]
    return min(fits, key=lambda one: one.step_ms, default=None)
