"""A budget of memory: of all trainings that a study plans, the fastest that is predicted to fit."""

from itertools import chain
from pathlib import Path

from ..judge.fit import fastest_within, model_of, predict
from ..judge.ratios import newest_first
from ..parameters import UserError
from ..report.files import Study
from ..report.tables import Tables
from ..store.commit import ROOT
from ..store.reading import read_records
from .plan import Comparison
from .status import say


def within_limit(
    comparisons: list[Comparison], study: dict, folder: Path, gib: float
) -> list[Comparison]:
    """Return one training for each model: the fastest that is predicted to fit into a limit, which
    is said.

    The table of predictions are the records in the study's folder, or else those that the study
    names as `measured`. Raise UserError where there is none, or nothing fits.
    """
    axis = Study.model_validate(study["about"]).compares()
    table: list[dict] = []
    for place in (folder, ROOT / "outputs" / study["measured"]):
        records = newest_first(read_records(place)[0])
        table = table or [one for one in records if one["ledger_activations_mib"] is not None]
    models: dict[tuple, dict] = {}
    for run in chain(*comparisons):
        (settings, precision), *_ = run.trainings.values()
        wanted = {"notebook": run.notebook.stem, "precision": precision, "settings": settings}
        prediction = predict(table, axis, wanted)
        if prediction and not settings["adapters"]:  # which are another model
            models.setdefault(model_of(wanted), {}).setdefault(prediction, run)
    chosen = []
    for runs in models.values():
        if best := fastest_within(runs, 1024 * gib):
            arm, peak = Tables(axis=axis).short(best.arm), best.peak_mib / 1024
            say(
                f"{runs[best].title}: of {len(runs)} ways {arm} is predicted to be the fastest "
                f"that fits into {gib:g} GiB, with a peak of {peak:.1f}"
            )
            chosen.append([runs[best]])
        else:
            say(f"{next(iter(runs.values())).title}: nothing is predicted to fit into {gib:g} GiB")
    if not chosen:
        raise UserError(
            f"nothing is predicted to fit into {gib:g} GiB; predictions need records that this "
            f"study measured, here or in outputs/{study['measured']}."
        )
    return chosen
