"""The runs that a study asks for: notebooks with their parameters, checked before any run
starts.
"""

import ast
import functools
import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..measure.order import in_turn
from ..parameters import Parameters, UserError, assignments, checked, declared_by, did_you_mean
from ..store.commit import MALFORMED, code_cells
from ..store.record import run_id_of
from .devices import Cards
from .studies import Entry, notebooks_of, relative_to_root

USUAL_CARDS = Cards()
OF_THE_RUN = ("precisions", "repeat", "output_dir")  # parameters that every plan sets
MOST_RUNS = 10_000  # of a study
STAND_INS = {"tf32": "fp32", "amp_bf16": "amp_fp16"}  # {what a card lacks: what it trains instead}


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
        """What it trains for a person: notebook, model, batch, and each way with its precisions."""
        settings = self.parameters
        model = " ".join(dict.fromkeys([self.notebook.stem, settings["model"]]))
        words = [f"{model}, batch {settings['batch_size']}"]
        words += [f"{name} {settings[name]}" for name in ("seed", "repeat") if settings[name]]
        for way in self.ways:
            way = settings | way
            words.append(f"{way['execution']} {' '.join(way['precisions'])}")
        return ", ".join(dict.fromkeys(words))

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


def trainings_in(runs: Iterable[Run]) -> int:
    """Return how many trainings these runs make."""
    return sum(len(run.trainings) for run in runs)


Comparison = list[Run]  # equal in all but precision and repetition, or the steps of one ladder


def parameters_of(path: Path) -> tuple[type[Parameters], dict]:
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
def declared_in(notebook: str, source: str) -> tuple[type[Parameters], dict]:
    """Return what parameters_of() does, from the cell's source, once for each."""
    ast.parse(source)
    cell = {name: ast.literal_eval(value or "") for name, (value, _) in assignments(source).items()}
    json.dumps(cell)  # a record holds them
    return declared_by(notebook, source, cell), cell


def check_overrides(studies: Iterable[dict], notebooks: Path, overrides: Mapping) -> None:
    """Raise UserError at a -p that none of the studies' notebooks knows."""
    plain: set = set()
    of_one_notebook = []
    for notebook in notebooks_of(studies):
        fields = parameters_of(notebooks / f"{notebook}.ipynb")[0].model_fields
        plain.update(fields)
        of_one_notebook += [f"{notebook}.{name}" for name in fields if name != "repeat"]
    for name in overrides:
        known = of_one_notebook if "." in name else sorted(plain)
        if name not in (*known, "repeats"):
            raise UserError(
                f"-p {name}: there is no such parameter; {did_you_mean(name, known, 'there are')}"
            )


def in_order(runs: list[Run], comparison: str) -> Comparison:
    """Return the runs of a comparison in the order in which they are made, each with its place.

    Repetitions follow each other. In each of them the precisions stand in a row of a Latin square
    (measure/order.py), and so do the settings of each precision where several are interleaved. The
    order does not depend on what is finished.
    """
    precisions = list(dict.fromkeys(name for run in runs for name in run.parameters["precisions"]))

    def settings_of(run: Run) -> str:
        return repr(run.parameters | {"precisions": None, "repeat": None})

    settings = list(dict.fromkeys(map(settings_of, runs)))

    def place(run: Run) -> tuple[int, int, int]:
        repeat = run.parameters["repeat"]
        first = in_turn(precisions, comparison, repeat).index(run.parameters["precisions"][0])
        return repeat, first, in_turn(settings, comparison, repeat).index(settings_of(run))

    ordered = sorted(runs, key=place)
    begun = itertools.accumulate((len(run.trainings) for run in ordered), initial=0)
    return [run._replace(order=first) for run, first in zip(ordered, begun, strict=False)]


class Setting(NamedTuple):
    """One combination of the values that an entry of a study sweeps, and how often it is run."""

    notebook: Path
    ways: list[dict]  # all parameters of each way that a process trains, checked
    given: tuple[str, ...]  # parameters that the cell, the study, -p or the plan sets
    repetitions: range  # their numbers
    minutes: float  # of one training, rough, on one H200

    def runs(
        self, folder: Path, study: dict | None, apart: bool, planned: set[str]
    ) -> Iterator[Run]:
        """Yield the runs of each repetition: one of all trainings, or with `apart` one of each.

        Trainings whose run_ids are `planned` are left out, because entries of a study may overlap,
        and those of the runs are added to it.
        """
        place = relative_to_root(folder)
        for number in self.repetitions:
            left = unplanned(self.notebook.stem, self.repeated(number, place), planned)
            for ways in processes_for(left, apart):
                first = ways[0]
                others = [
                    {name: way[name] for name in way if way[name] != first[name]} for way in ways
                ]
                minutes = self.minutes * sum(len(way["precisions"]) for way in ways)
                yield Run(
                    self.notebook, first, folder, minutes, 0, study, self.given, tuple(others)
                )

    def repeated(self, number: int, place: str) -> list[dict]:
        """Return the ways of a repetition. A seed among them counts as one more, because only the
        first repetition explains.
        """
        seeds = list(dict.fromkeys(way["seed"] for way in self.ways))
        return [
            way | {"output_dir": place, "repeat": number + seeds.index(way["seed"])}
            for way in self.ways
        ]


def processes_for(ways: list[dict], apart: bool) -> list[list[dict]]:
    """Return the ways in lists, each for a process of its own: with `apart` one for each training.

    Ways that convolve in one layout of which only some search share none, because PyTorch keeps its
    choice of algorithms for each layout, searched or not, as long as the process lives.
    """
    if apart:
        return [[way | {"precisions": [name]}] for way in ways for name in way["precisions"]]
    searched = {(way.get("channels_last"), way["cudnn_benchmark"]) for way in ways}
    if len(dict(searched)) < len(searched):
        return [[way] for way in ways]
    return [ways] if ways else []


def unplanned(notebook: str, ways: list[dict], planned: set[str]) -> list[dict]:
    """Return the ways with those precisions whose run_ids are not planned yet, and add these."""
    found = []
    for way in ways:
        run_ids = {name: run_id_of(notebook, way, name) for name in way["precisions"]}
        left = [name for name in run_ids if run_ids[name] not in planned]
        planned.update(run_ids.values())
        if left:
            found.append(way | {"precisions": left})
    return found


def overrides_for(notebook: str, declared: type[Parameters], overrides: Mapping) -> dict:
    """Return {parameter: value} of the overrides that a notebook knows; NOTEBOOK.NAME wins."""
    start = f"{notebook}."
    of_it_last = sorted(overrides, key=lambda name: name.startswith(start))
    known = {name.removeprefix(start): overrides[name] for name in of_it_last}
    return {name: value for name, value in known.items() if name in declared.model_fields}


def swept_settings(
    entry: Entry,
    notebooks: Path,
    overrides: Mapping,
    room: int,
    lacking: Collection[str],
) -> list[Setting]:
    """Return what an entry of a study asks for, where the overrides win over all that it sets.

    Precisions that the cards are `lacking` are left out, unless an override asks for them.
    Swept seeds are numbered as repetitions, so that only the first of them explains. Raise
    UserError at the first value that the notebook would refuse, and at more than `room` runs.
    """
    name = entry.notebook
    path = notebooks / f"{name}.ipynb"
    declared, cell = parameters_of(path)
    asked = overrides_for(name, declared, overrides)
    swept = {key: values for key, values in entry.sweep.items() if key not in asked}
    repeats = overrides.get("repeats", entry.repeats)
    count = math.prod(map(len, swept.values()))
    if count * repeats > room:
        raise UserError(
            f"notebook {name} would run more than {MOST_RUNS:,} times; sweep or repeat less."
        )
    if "precisions" in asked:
        lacking = ()
    settings = []
    for values in itertools.product(*swept.values()):
        combination = cell | entry.parameters | dict(zip(swept, values, strict=True)) | asked
        ways = [
            checked_for(name, combination | way | asked, declared, lacking)
            for way in itertools.chain(*map(each_of, entry.ways))
        ]
        first = repeats * swept["seed"].index(combination["seed"]) if "seed" in swept else 0
        values_swept = math.prod(map(len, entry.sweep.values()))  # also those that -p replaces
        trainings = entry.repeats * values_swept * sum(len(way["precisions"]) for way in ways)
        names = tuple(sorted({*combination, *OF_THE_RUN}))  # a set has no order
        settings.append(
            Setting(path, ways, names, range(first, first + repeats), entry.minutes / trainings)
        )
    return settings


def each_of(way: dict) -> Iterator[dict]:
    """Yield the ways that one stands for: a list of values stands for each of them, but for the
    precisions.
    """
    lists = [
        value if isinstance(value, list) and name != "precisions" else [value]
        for name, value in way.items()
    ]
    for values in itertools.product(*lists):
        yield dict(zip(way, values, strict=True))


def checked_for(
    notebook: str, values: dict, declared: type[Parameters], lacking: Collection[str]
) -> dict:
    """Return the parameters of a way as the notebook gets them, on cards that are `lacking` some
    precisions, where fp32 stands in for TF32, and fp16 AMP for bf16 AMP.

    Where none is left, all are kept, because their records then say why.
    """
    try:
        way = checked(notebook, values, declared).model_dump()
    except UserError as error:
        raise UserError(f"notebook {notebook}: {error}") from None
    found = [STAND_INS.get(one, one) if one in lacking else one for one in way["precisions"]]
    left = [one for one in dict.fromkeys(found) if one not in lacking]
    return way | {"precisions": left or way["precisions"]}


def plan(
    study: dict,
    notebooks: Path,
    folder: Path,
    overrides: Mapping,
    on_gpu: bool,
    cards: Cards = USUAL_CARDS,
) -> tuple[list[Comparison], list[str]]:
    """Return (comparisons, notebooks left out because they need a GPU).

    A run trains all precisions one after the other, and so the ways of its entry. On a GPU each
    training gets a process of its own where its entry says so, or where there are several
    repetitions, because then its times get an interval, and the process is the unit of that. The
    runs of a comparison differ in precision, way and repetition only and go to one GPU. In an
    interleaved study that holds for all runs of a notebook, because they are compared as the steps
    of a ladder. An override of `repeat` leaves that repetition alone, as for another host. Raise
    UserError at the first value that a notebook would refuse.
    """
    comparisons: dict = {}
    planned: set = set()
    left_out = []
    for entry in map(Entry.model_validate, study["runs"]):
        name = entry.notebook
        if not on_gpu:
            if entry.cpu is None:
                left_out.append(name)
                continue
            entry = Entry(notebook=name, parameters=entry.cpu, minutes=entry.minutes)
        elif cards.small:
            entry.parameters |= entry.small
        room = MOST_RUNS - len(planned)
        for setting in swept_settings(entry, notebooks, overrides, room, cards.lacking):
            comparison = name
            if not study.get("interleaved"):
                comparison = run_id_of(name, setting.ways[0] | {"repeat": 0}, "any")
            apart = on_gpu and (entry.apart or len(setting.repetitions) > 1)
            runs = [*setting.runs(folder, study.get("about"), apart, planned)]
            comparisons.setdefault(comparison, []).extend(runs)
    ordered = [in_order(runs, key) for key, runs in comparisons.items() if runs]
    return one_repetition(ordered, overrides.get("repeat")), left_out


def one_repetition(comparisons: list[Comparison], number: int | None) -> list[Comparison]:
    """Return the comparisons with the repetition of this number alone, or whole where it is None.

    Raise UserError where no run is left.
    """
    if number is None:
        return comparisons
    chosen = [[run for run in runs if run.parameters["repeat"] == number] for runs in comparisons]
    kept = [runs for runs in chosen if runs]
    if comparisons and not kept:
        raise UserError(
            "the repetition of -p repeat is not planned, "
            "because they count from 0 to `repeats` less one."
        )
    return kept
