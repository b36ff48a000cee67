"""The runs that a study asks for: notebooks with their parameters, checked before any run starts."""

import ast
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_type_hints

from pydantic import create_model

from ..measure.commit import MALFORMED, ROOT, code_cells
from ..measure.order import in_turn
from ..parameters import EXPERIMENTS, Common, FromZero, Parameters, UserError, checked, did_you_mean
from ..record import run_id_of
from .studies import MOST_REPEATS, notebooks_of, relative_to_root, shortened

NEEDED = ("dataset", "model", "precisions", "batch_size", "seed", "data_dir", "output_dir")
LONGEST_NAME = 200  # letters of a run id: a file name has at most 255 bytes


class Run(NamedTuple):
    """One process: a notebook with its parameters, which trains one precision or several, and where it writes."""

    notebook: Path
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200
    order: int = 0  # place of its first training in its comparison, from 0
    study: dict | None = None  # what its study says of itself: name, description and show
    usual: frozenset[str] = frozenset()  # parameters with their defaults that do not stand in the notebook's cell

    @property
    def run_ids(self) -> dict[str, str]:
        """{precision: run_id} of its trainings, each of which leaves a record."""
        return {name: run_id_of(self.notebook.stem, self.parameters, name) for name in self.parameters["precisions"]}

    @property
    def name(self) -> str:
        """The name of its executed notebook, log and parameter file: its run_id where it has one only."""
        precisions = self.parameters["precisions"]
        words = precisions[0] if len(precisions) == 1 else f"{len(precisions)}_precisions"
        return run_id_of(self.notebook.stem, self.parameters, words)

    @property
    def passed(self) -> dict:
        """The parameters that papermill gets, which warns of each that does not stand in the notebook's cell."""
        return {name: value for name, value in self.parameters.items() if name not in self.usual}

    @property
    def record_paths(self) -> dict[str, Path]:
        return {precision: self.folder / f"{run_id}.json" for precision, run_id in self.run_ids.items()}

    @property
    def executed(self) -> Path:
        return self.folder / f"{self.name}.ipynb"

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"


Comparison = list[Run]  # equal in all but precision and repetition, or the steps of one ladder


def parameters_of(path: Path) -> tuple[type[Parameters], dict[str, Any]]:
    """Return (the declared parameters of a notebook, {name: value} of its cell tagged `parameters`).

    A notebook that is not the suite's own declares what its cell assigns. papermill.inspect_notebook would cut a text
    at its first '#', and takes two seconds to import. Raise UserError where there is no such cell.
    """
    try:
        source = next(cell.source for cell in code_cells(path) if cell.sets_parameters)
        cell: dict[str, Any] = {}
        line: Any
        for line in ast.parse(source).body:
            target: Any = line.targets[0] if isinstance(line, ast.Assign) else line.target
            cell[target.id] = ast.literal_eval(line.value)
    except FileNotFoundError:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.ipynb"))) or "none"
        raise UserError(f"there is no notebook {path.stem} beside the studies file; there are: {there}.") from None
    except (OSError, SyntaxError, StopIteration, *MALFORMED) as error:
        wanted = "must be a notebook with a cell tagged `parameters` that assigns plain literals"
        raise UserError(f"notebook {path.stem} {wanted} ({' '.join(str(error).split())}).") from None
    if path.stem in EXPERIMENTS:
        return EXPERIMENTS[path.stem], cell
    if missing := [name for name in NEEDED if name not in cell]:
        raise UserError(f"notebook {path.stem} lacks the parameters {', '.join(missing)} that every experiment has.")
    types = {float: FromZero, NoneType: Any}
    known = get_type_hints(Common, include_extras=True)
    fields: Any = {name: (known.get(name, types.get(type(one), type(one))), one) for name, one in cell.items()}
    return create_model(path.stem, __base__=Parameters, **fields), cell


def overrides_of(notebook: str, declared: type[Parameters], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return those -p overrides that a notebook gets. One for it alone, NOTEBOOK.NAME, goes before NAME."""
    for_all = {name: value for name, value in overrides.items() if name in declared.model_fields}
    split = {tuple(name.rpartition(".")[::2]): value for name, value in overrides.items()}
    return for_all | {name: value for (owner, name), value in split.items() if owner == notebook}


def check_overrides(studies: Iterable[dict], notebooks: Path, overrides: Mapping[str, Any]) -> None:
    """Raise UserError at a -p that none of the studies' notebooks knows."""
    known = {name: parameters_of(notebooks / f"{name}.ipynb")[0].model_fields for name in notebooks_of(studies)}
    for name in (one for one in overrides if one != "repeats"):
        owner, _, parameter = name.rpartition(".")
        if owner and owner not in known:
            raise UserError(f"-p {name}: no such notebook is asked for; {did_you_mean(owner, known, 'possible are')}")
        possible = {one for notebook in ([owner] if owner else known) for one in known[notebook]}
        if parameter not in possible:
            hint = did_you_mean(parameter, sorted(possible), "there are")
            raise UserError(f"-p {name}: there is no such parameter; {hint}")


def combinations_of(sweep: Mapping[str, list]) -> list[dict]:
    """Return [{name: value}]: every combination of the swept values. Without a sweep it is one empty dict."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def repeats_of(entry: dict, overrides: Mapping[str, Any], on_gpu: bool) -> int:
    """Return how many repetitions an entry makes. On the CPU it makes one, unless -p repeats asks for more."""
    asked = overrides.get("repeats", entry.get("repeats", 1) if on_gpu else 1)
    if type(asked) is not int or not 1 <= asked <= MOST_REPEATS:
        raise UserError(f"repeats is {shortened(asked)}; it must be a whole number from 1 to {MOST_REPEATS}.")
    return asked


def in_order(runs: Iterable[Run], comparison: str) -> Comparison:
    """Return the runs of a comparison in the order in which they are made, each with its place.

    Repetitions follow each other. In each of them the precisions stand in a row of a Latin square (measure/order.py),
    and so do the settings of each precision where several are interleaved. The order does not depend on what is
    finished.
    """
    runs = list(runs)
    precisions = list(dict.fromkeys(name for run in runs for name in run.parameters["precisions"]))

    def settings_of(run: Run) -> str:
        return repr([item for item in run.parameters.items() if item[0] not in ("precisions", "repeat")])

    settings = list(dict.fromkeys(map(settings_of, runs)))

    def place(run: Run) -> tuple[int, int, int]:
        repeat = run.parameters.get("repeat", 0)
        first = in_turn(precisions, comparison, repeat).index(run.parameters["precisions"][0])
        return repeat, first, in_turn(settings, comparison, repeat).index(settings_of(run))

    ordered: Comparison = []
    begun = 0
    for run in sorted(runs, key=place):
        ordered.append(run._replace(order=begun))
        begun += len(run.parameters["precisions"])
    return ordered


def plan(
    study: dict, notebooks: Path, folder: Path, overrides: Mapping[str, Any], on_gpu: bool
) -> tuple[list[Comparison], list[str]]:
    """Return (comparisons, notebooks left out because they need a GPU). The longest comparison comes first.

    A run trains all precisions one after the other. On a GPU each precision gets a process of its own where there are
    several repetitions, because then its times get an interval, and the process is the unit of that. The runs of a
    comparison differ in precision and repetition only and go to one GPU. In an interleaved study that holds for all
    runs of a notebook, because they are compared as the steps of a ladder. Swept seeds are numbered as repetitions, so
    that only the first of them explains. Raise UserError at the first value that a notebook would refuse.
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
        own = overrides_of(name, declared, overrides)
        given = cell | (entry.get("parameters", {}) if on_gpu else entry["cpu"])
        sweep = entry.get("sweep", {}) if on_gpu else {}
        repeats = repeats_of(entry, overrides, on_gpu)
        if repeats > 1 and "repeat" not in declared.model_fields:
            raise UserError(f"notebook {name} lacks the parameter `repeat`, so it cannot be repeated.")
        combinations = combinations_of({key: sweep[key] for key in sweep if key not in own})
        try:
            unchanged = [checked(name, given | one, declared) for one in combinations_of(sweep)]
            values = [checked(name, given | one | own, declared).model_dump() for one in combinations]
        except UserError as error:
            raise UserError(f"notebook {name}: {error}") from None
        trainings = sum(len(one.precisions) for one in unchanged) * repeats_of(entry, {}, on_gpu)
        for combination, parameters in zip(combinations, values, strict=True):
            each = [[one] for one in parameters["precisions"]]
            together = each if repeats > 1 and on_gpu else [parameters["precisions"]]
            first = repeats * sweep["seed"].index(combination["seed"]) if "seed" in combination else 0
            comparison = name if study.get("interleaved") else run_id_of(name, parameters | {"repeat": 0}, "any")
            for number, precisions in itertools.product(range(first, first + repeats), together):
                one = parameters | {"output_dir": relative_to_root(folder)}
                if "repeat" in one:
                    one["repeat"] = number
                ids = {precision: run_id_of(name, one, precision) for precision in precisions}
                if len(longest := max(ids.values(), key=len)) > LONGEST_NAME:
                    raise UserError(f"run {shortened(longest)} has too long a name for its files; use shorter values.")
                one["precisions"] = [precision for precision in precisions if ids[precision] not in planned]
                planned.update(ids.values())
                if new := len(one["precisions"]):  # none where entries overlap
                    fields = declared.model_fields.items()
                    hidden = {key for key, field in fields if key not in cell and one[key] == field.default}
                    minutes = entry.get("minutes", 1) / trainings * new
                    run = Run(path, one, folder, minutes, study=study.get("about"), usual=frozenset(hidden))
                    comparisons.setdefault(comparison, []).append(run)
    ordered = [in_order(runs, key) for key, runs in comparisons.items()]
    return sorted(ordered, key=lambda runs: -sum(run.minutes for run in runs)), left_out


def check_paths(comparisons: Iterable[Comparison]) -> None:
    """Raise UserError at the first csv_path that is no file, or data_dir that is something else than a folder."""
    for run, *_ in comparisons:
        csv, data = run.parameters.get("csv_path"), run.parameters["data_dir"]
        if csv and not os.path.isfile(ROOT / csv):
            raise UserError(f"csv_path {csv} is no file here; give the CSV that names your images.")
        if os.path.exists(ROOT / data) and not os.path.isdir(ROOT / data):
            raise UserError(f"data_dir {data} is no folder; give the folder of the data sets, or leave data_dir out.")
