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
# other settings that memory depends on; what they change is not predicted
ALIKE = (
    "model",
    "image_size",
    "optimizer",
    "fused",
    "attention",
    "dropout",
    "compile_mode",
    "loader",
)
STATES = ("parameters", "optimizer", "masters")


class Predicted(NamedTuple):
    """An arm with its peak in MiB, and the milliseconds of a step of the measured model, by which
    arms are put in order, on the card that they were measured on.
    """

    arm: str
    peak_mib: float
    step_ms: float
    card: str | None = None


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
    names = (*ALIKE, "batch_size", *OF_GPT)
    return record["notebook"], *map(settings.get, names)


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
            # a compiler may need more memory for a loss in parts
            return max(0, peak / (1 - 1 / chunks)), max(0, kept)
    return 0, 0


def is_at_end(record: dict) -> bool:
    """Return whether a peak was measured at the end of the backward pass, when all gradients are
    there. Of several parts of a batch the later ones find those of the first at any time.
    """
    return (
        record["settings"]["micro_batches"] == 1
        and 2 * record["ledger_gradients_mib"] > record["ledger_parameters_mib"]
    )


def parts_of(record: dict, logits: float, kept_logits: float) -> dict[str, float]:
    """Return the MiB of a measured peak by what they grow with, without data and gradients.

    What blocks and logits took before the peak of is_at_end() is at most what gradients take.
    """
    chunks, activations = chunks_of(record), record["ledger_activations_mib"]
    parts = record["settings"]["micro_batches"]
    room = record["ledger_gradients_mib"] if is_at_end(record) else activations
    of_logits = min(logits / chunks / parts, room)
    kept = record["saved_activations_mib"] - (kept_logits / parts if chunks == 1 else 0)
    blocks = max(0, min(kept, room - of_logits))
    return {
        "weights": sum(record[f"ledger_{name}_mib"] for name in STATES),
        "blocks": blocks,
        "temporaries": activations - (0 if is_at_end(record) else of_logits + blocks),
        "logits": of_logits,
    }


def growth(wanted: dict, record: dict) -> dict[str, float]:
    """Return how many times as large each of sizes_of() a training is as a measured one."""
    sizes, known = sizes_of(wanted["settings"]), sizes_of(record["settings"])
    return {name: sizes[name] / known[name] for name in sizes}


def most_like(table: list[dict], wanted: dict) -> list[dict]:
    """Return the records of the measured model that is most like a wanted training: its context
    differs least, then what its blocks keep.

    They are of one model, because milliseconds of two cannot be put in order.
    """
    kept = 1 + len(ALIKE)
    alike = [one for one in table if model_of(one)[:kept] == model_of(wanted)[:kept]]

    def distances(record: dict) -> list[float]:
        grown = growth(wanted, record)
        return [abs(math.log(grown[name])) for name in ("context", "blocks")]

    nearest = min(alike, key=distances, default=wanted)
    return [one for one in alike if model_of(one) == model_of(nearest)]


def predict(table: list[dict], axis: Axis, wanted: dict) -> Predicted | None:
    """Return the prediction for a training that is `wanted`, as notebook, precision and settings,
    or None where the model most like it was not measured with its remedies, where its vocabulary is
    another one and no loss in parts told what logits take, or where its batch is still to be
    searched. table: ok records with a ledger.
    """
    arm, asked = axis.arm_of(wanted), wanted["settings"]
    if asked["batch_size"] == "max":
        return None
    same = most_like(table, wanted)
    measured = next((one for one in same if axis.arm_of(one) == arm), None)
    if measured is None:
        return None
    grown = growth(wanted, measured)
    logits = logits_in(same, axis, asked["execution"])
    if not logits[0] and asked.get("vocabulary") != measured["settings"].get("vocabulary"):
        return None
    parts = parts_of(measured, *logits)
    scaled = {name: part * grown[name] for name, part in parts.items()}
    # at its start the backward pass finds what blocks keep, at its end all gradients
    there = 0 if is_at_end(measured) else measured["ledger_gradients_mib"]
    later = 0 if asked["optimizer_in_backward"] else measured["ledger_parameters_mib"]
    at_start = scaled["blocks"] + scaled["logits"] + there * grown["weights"]
    either = max(at_start, max(there, later) * grown["weights"])
    peak = scaled["weights"] + scaled["temporaries"] + either + measured["ledger_data_mib"]
    return Predicted(arm, peak, measured["step_ms_median"], measured.get("gpu_name"))


def fastest_within(predictions: Iterable[Predicted], limit_mib: float) -> Predicted | None:
    """Return the fastest prediction that fits into a limit, or None where none does."""
    fits = [one for one in predictions if one.peak_mib <= (1 - MARGIN) * limit_mib]
    return min(fits, key=lambda one: one.step_ms, default=None)
