"""A budget of memory: of all trainings that a study plans, the fastest that is predicted to fit."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from ..judge.fit import Predicted, fastest_within, predict
from ..judge.ratios import newest_first
from ..parameters import UserError, sized
from ..report.files import Study
from ..report.tables import Tables
from ..store.commit import ROOT
from ..store.reading import read_records
from .plan import Comparison, Run
from .status import say


def within_limit(
    comparisons: list[Comparison], study: dict, folder: Path, overrides: Mapping
) -> list[Comparison]:
    """Return one training for each model: the fastest that is predicted to fit into the limit of
    the overrides, which is said; all trainings without a limit or without a `measured` folder.

    Predictions are made from the records in the study's folder, or from those that the study names
    as `measured` where they predict more ways of a model. Raise UserError where nothing fits.
    """
    gib = overrides.get("memory_limit_gib")
    if not (gib and study.get("measured")):
        return comparisons
    axis = Study.model_validate(study["about"]).compares()
    tables = [measured_in(place) for place in (folder, ROOT / "outputs" / study["measured"])]
    models: dict[str, list[dict[Predicted, Run]]] = {}
    for run in chain(*comparisons):
        (settings, precision), *_ = run.trainings.values()
        if settings["adapters"]:  # which are another model
            continue
        wanted = {"notebook": run.notebook.stem, "precision": precision, "settings": settings}
        found = models.setdefault(sized(run.notebook.stem, settings), [{} for _ in tables])
        for known, table in zip(found, tables, strict=True):
            if prediction := predict(table, axis, wanted):
                known.setdefault(prediction, run)
    chosen = []
    for model, found in models.items():
        runs = max(found, key=len)
        if best := fastest_within(runs, 1024 * gib):
            arm, peak = Tables(axis=axis).short(best.arm), best.peak_mib / 1024
            say(
                f"{model}: of {len(runs)} ways {arm} is predicted to be the fastest that fits into "
                f"{gib:g} GiB, with a peak of {peak:.1f} as PyTorch counts it, data included; "
                f"steps were timed on {best.card or 'an unknown card'}"
            )
            chosen.append([runs[best]])
        else:
            say(f"{model}: of {len(runs)} ways whose memory is known none fits into {gib:g} GiB")
    if not chosen:
        raise UserError(
            f"nothing is predicted to fit into {gib:g} GiB; predictions need records that this "
            f"study measured, here or in outputs/{study['measured']}."
        )
    return chosen


def measured_in(place: Path) -> list[dict]:
    """Return the records of a folder that predictions are made from, the newest first: those of
    known batches without a limit, since the run that a limit chose stands for no other way.
    """
    return [
        one
        for one in newest_first(read_records(place)[0])
        if one["ledger_activations_mib"] is not None
        and not one["settings"]["memory_limit_gib"]
        and one["settings"]["batch_size"] != "max"
    ]
