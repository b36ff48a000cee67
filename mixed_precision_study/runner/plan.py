"""The runs that a study asks for: notebooks with their parameters, checked before any run
starts.
"""

import ast
import functools
import itertools
import json
import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..measure.order import in_turn
from ..parameters import Parameters, UserError, assignments, checked, declared_by, did_you_mean
from ..store.commit import MALFORMED, code_cells
from ..store.record import run_id_of
from .devices import Cards
from .studies import MOST_REPEATS, notebooks_of, relative_to_root

USUAL_CARDS = Cards()
OF_THE_RUN = ("precisions", "repeat", "output_dir")  # parameters that every plan sets
MOST_RUNS = 10_000  # of a study


class Run(NamedTuple):
    """One process: a notebook with its parameters, which trains one precision or several, and
    where it writes.
    """

    notebook: Path
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200
    order: int = 0  # place of its first training in its comparison, from 0
    study: dict | None = None  # what its study says of itself: name, description and show
    given: tuple[str, ...] = ()  # parameters that the cell, the study, -p or the plan sets
    # which parameters are other ones in each way that it trains, one way after the other
    ways: tuple[dict, ...] = ({},)

    @property
    def trainings(self) -> dict[str, tuple[dict, str]]:
        """{run_id: (parameters, precision)} of its trainings, each of which leaves a record."""
        return {
            run_id_of(self.notebook.stem, parameters, precision): (parameters, precision)
            for parameters in (self.parameters | way for way in self.ways)
            for precision in parameters["precisions"]
        }

    @property
    def name(self) -> str:
        """The name of its executed notebook and log: its run_id where it has one only."""
        precisions = self.parameters["precisions"]
        words = precisions[0] if len(precisions) == 1 else f"{len(precisions)}_precisions"
        return run_id_of(self.notebook.stem, self.parameters, words)

    @property
    def title(self) -> str:
        """What it trains, for a person: notebook, model, batch, and each way with its precisions."""
        settings = self.parameters
        ways = [self.parameters | way for way in self.ways]
        trained = [f"{way['execution']} {' '.join(way['precisions'])}" for way in ways]
        numbers = [f"{name} {settings[name]}" for name in ("seed", "repeat") if settings[name]]
        name = f"{self.notebook.stem} {settings['model']}, batch {settings['batch_size']}"
        return ", ".join([name, *numbers, *trained])

    @property
    def record_paths(self) -> dict[str, Path]:
        """{run_id: path of its record}."""
        return {run_id: self.folder / f"{run_id}.json" for run_id in self.trainings}

    @property
    def executed(self) -> Path:
        return self.folder / f"{self.name}.ipynb"

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"


Comparison = list[Run]  # equal in all but precision and repetition, or the steps of one ladder


def parameters_of(path: Path) -> tuple[type[Parameters], dict[str, Any]]:
    """Return (the declared parameters of a notebook, {name: value} of its cell tagged
    `parameters`).

    papermill.inspect_notebook would cut a text at its first '#', and takes two seconds to import.
    Raise UserError where there is no such cell.
    """
    try:
        return declared_in(
            path.stem, next(cell.source for cell in code_cells(path) if cell.sets_parameters)
        )
    except (OSError, SyntaxError, StopIteration, MemoryError, *MALFORMED) as error:
        wanted = "must be a notebook with a cell tagged `parameters` that assigns plain literals"
        raise UserError(
            f"notebook {path.stem} {wanted} ({' '.join(str(error).split())})."
        ) from None


@functools.cache
def declared_in(notebook: str, source: str) -> tuple[type[Parameters], dict[str, Any]]:
    """Return what parameters_of() does, from the cell's source, once for each."""
    ast.parse(source)
    cell = {name: ast.literal_eval(value or "") for name, (value, _) in assignments(source).items()}
    json.dumps(cell)  # a record holds them
    return declared_by(notebook, source, cell), cell


def check_overrides(studies: Iterable[dict], notebooks: Path, overrides: Mapping[str, Any]) -> None:
    """Raise UserError at a -p that none of the studies' notebooks knows."""
    known = {
        name: parameters_of(notebooks / f"{name}.ipynb")[0].model_fields
        for name in notebooks_of(studies)
    }
    plain = sorted({one for fields in known.values() for one in fields})
    of_one = [
        f"{notebook}.{one}"
        for notebook, fields in known.items()
        for one in fields
        if one != "repeat"
    ]
    for name in overrides:
        if name not in (*plain, *of_one, "repeats"):
            hint = did_you_mean(name, of_one if "." in name else plain, "there are")
            raise UserError(f"-p {name}: there is no such parameter; {hint}")


def in_order(runs: list[Run], comparison: str) -> Comparison:
    """Return the runs of a comparison in the order in which they are made, each with its place.

    Repetitions follow each other. In each of them the precisions stand in a row of a Latin square
    (measure/order.py), and so do the settings of each precision where several are interleaved. The
    order does not depend on what is finished.
    """
    precisions = list(dict.fromkeys(name for run in runs for name in run.parameters["precisions"]))

    def settings_of(run: Run) -> str:
        return repr(
            [item for item in run.parameters.items() if item[0] not in ("precisions", "repeat")]
        )

    settings = list(dict.fromkeys(map(settings_of, runs)))

    def place(run: Run) -> tuple[int, int, int]:
        repeat = run.parameters.get("repeat", 0)
        first = in_turn(precisions, comparison, repeat).index(run.parameters["precisions"][0])
        return repeat, first, in_turn(settings, comparison, repeat).index(settings_of(run))

    ordered = sorted(runs, key=place)
    begun = itertools.accumulate((len(run.trainings) for run in ordered), initial=0)
    return [run._replace(order=first) for run, first in zip(ordered, begun, strict=False)]


def for_cards(precisions: list[str], lacking: Collection[str]) -> list[str]:
    """Return the precisions that the cards here can run, where fp32 stands in for TF32.

    Where none is left, all are returned, because their records then say why.
    """
    found = ["fp32" if one == "tf32" and one in lacking else one for one in precisions]
    return [one for one in dict.fromkeys(found) if one not in lacking] or precisions


def new_ways(notebook: str, ways: list[dict], planned: set[str]) -> list[dict]:
    """Return ways with the precisions that are not planned yet, and add these to what is planned."""
    found = []
    for way in ways:
        ids = {precision: run_id_of(notebook, way, precision) for precision in way["precisions"]}
        new = [precision for precision in ids if ids[precision] not in planned]
        planned.update(ids.values())
        if new:  # none where entries overlap
            found.append(way | {"precisions": new})
    return found


def one_precision_each(ways: list[dict]) -> list[list[dict]]:
    """Return the ways of each process where every training has one of its own."""
    return [[way | {"precisions": [one]}] for way in ways for one in way["precisions"]]


def run_of(
    notebook: Path,
    folder: Path,
    ways: list[dict],
    minutes: float,
    study: dict | None,
    given: tuple[str, ...],
) -> Run:
    """Return the run that trains ways one after the other; `minutes` are those of a training."""
    first = ways[0]
    changes = [{key: way[key] for key in way if way[key] != first[key]} for way in ways]
    count = sum(len(way["precisions"]) for way in ways)
    return Run(notebook, first, folder, count * minutes, 0, study, given, tuple(changes))


def plan(
    study: dict,
    notebooks: Path,
    folder: Path,
    overrides: Mapping[str, Any],
    on_gpu: bool,
    cards: Cards = USUAL_CARDS,
) -> tuple[list[Comparison], list[str]]:
    """Return (comparisons, notebooks left out because they need a GPU).

    A run trains all precisions one after the other, and so the ways of its entry. A precision that
    the `cards` here lack is not planned, unless an override asks for it. On a GPU each
    training gets a process of its own where there are several repetitions, because then its times
    get an interval, and the process is the unit of that. The runs of a comparison differ in
    precision, way and repetition only and go to one GPU. In an interleaved study that holds for all
    runs of a notebook, because they are compared as the steps of a ladder. Swept seeds are numbered
    as repetitions, so that only the first of them explains. An override of `repeat` leaves that
    repetition alone, as for another host. Raise UserError at the first value that a notebook would
    refuse.
    """
    comparisons: dict[str, list[Run]] = {}
    planned: set[str] = set()
    left_out = []
    for entry in study["runs"]:
        name = entry["notebook"]
        path = notebooks / f"{name}.ipynb"
        declared, cell = parameters_of(path)
        if not on_gpu and "cpu" not in entry:
            left_out.append(name)
            continue
        own = {key: value for key, value in overrides.items() if key in declared.model_fields}
        own |= {
            key[len(name) + 1 :]: value
            for key, value in overrides.items()
            if key.startswith(f"{name}.")
        }
        given = cell | (entry.get("parameters", {}) if on_gpu else entry["cpu"])
        given |= entry.get("small", {}) if on_gpu and cards.small else {}
        sweep = entry.get("sweep", {}) if on_gpu else {}
        usual = entry.get("repeats", 1) if on_gpu else 1  # repetitions
        repeats = overrides.get("repeats", usual)
        if type(repeats) is not int or not 1 <= repeats <= MOST_REPEATS:
            raise UserError(
                f"repeats is {reprlib.repr(repeats)}; it must be a whole number from 1 "
                f"to {MOST_REPEATS}."
            )
        swept = {key: sweep[key] for key in sweep if key not in own}
        if math.prod(map(len, swept.values())) * repeats + len(planned) > MOST_RUNS:
            raise UserError(
                f"notebook {name} would run more than {MOST_RUNS:,} times; sweep or repeat less."
            )
        combinations = [
            dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())
        ]
        ways = entry.get("ways", [{}]) if on_gpu else [{}]
        try:
            values = [
                [checked(name, given | one | way | own, declared).model_dump() for way in ways]
                for one in combinations
            ]
        except UserError as error:
            raise UserError(f"notebook {name}: {error}") from None
        if "precisions" not in own:
            for one in itertools.chain(*values):
                one["precisions"] = for_cards(one["precisions"], cards.lacking)
        # of a training
        minutes = entry.get("minutes", 1) / usual
        minutes /= sum(len(one["precisions"]) for one in itertools.chain(*values))
        for combination, of_ways in zip(combinations, values, strict=True):
            first = (
                repeats * sweep["seed"].index(combination["seed"]) if "seed" in combination else 0
            )
            comparison = (
                name
                if study.get("interleaved")
                else run_id_of(name, of_ways[0] | {"repeat": 0}, "any")
            )
            set_here = tuple({*given, *combination, *own, *OF_THE_RUN})
            for number in range(first, first + repeats):
                here = {"output_dir": relative_to_root(folder), "repeat": number}
                new = new_ways(name, [one | here for one in of_ways], planned)
                processes = one_precision_each(new) if repeats > 1 and on_gpu else [new]
                for process in filter(None, processes):
                    run = run_of(path, folder, process, minutes, study.get("about"), set_here)
                    comparisons.setdefault(comparison, []).append(run)
    ordered = [in_order(runs, key) for key, runs in comparisons.items()]
    alone = overrides.get("repeat")
    kept = [
        [run for run in runs if alone in (None, run.parameters.get("repeat"))] for runs in ordered
    ]
    if any(ordered) and not any(kept):
        raise UserError(
            "the repetition of -p repeat is not planned, because they count from 0 to "
            "`repeats` less one."
        )
    return list(filter(None, kept)), left_out
