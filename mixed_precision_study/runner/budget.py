"""A budget of memory: of all trainings that a study plans, the fastest that is predicted to fit."""

from itertools import chain
from pathlib import Path

from ..judge.axis import grouped
from ..judge.fit import fastest_within, model_of, predict, table_of
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

    The table of predictions are the records of whole cards in the study's folder, or else those
    that the study names as `measured`. Raise UserError where there is none, or nothing fits.
    """
    axis = Study.model_validate(study["about"]).compares()
    table: list[dict] = []
    for place in (folder, ROOT / "outputs" / study["measured"]):
        table = table or table_of(newest_first(read_records(place)[0]))
    runs, found = {}, {}
    for run in chain(*comparisons):
        for run_id, (settings, precision) in run.trainings.items():
            wanted = {"notebook": run.notebook.stem, "precision": precision, "settings": settings}
            prediction = predict(table, axis, wanted)
            if prediction and not settings.get("adapters"):  # which are another model
                found[run_id] = prediction
                alone = run._replace(parameters=settings | {"precisions": [precision]}, ways=({},))
                runs[run_id] = alone, wanted
    chosen = []
    for same in grouped(runs, lambda run_id: model_of(runs[run_id][1])).values():
        if best := fastest_within({run_id: found[run_id] for run_id in same}, 1024 * gib):
            run, wanted = runs[best]
            arm = Tables(axis=axis).short(axis.arm_of(wanted))
            peak = found[best].peak_mib / 1024
            say(
                f"{run.title}: of {len(same)} ways {arm} is predicted to be the fastest that fits "
                f"into {gib:g} GiB, with a peak of {peak:.1f}"
            )
            chosen.append([run])
    if not chosen:
        raise UserError(
            f"nothing is predicted to fit into {gib:g} GiB; predictions need records that this "
            f"study measured without a limit, here or in outputs/{study['measured']}."
        )
    return chosen
