"""The runs that a study asks for: notebooks with their parameters, checked before any run starts."""

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..commit import MALFORMED, code_cells
from ..errors import UserError
from ..order import in_turn
from ..parameters import EXPERIMENTS, PRECISION_NAMES, check_timm_model, did_you_mean, is_timm_model
from ..parameters import check_values as check_declared_values
from ..record import MAX_TEXT, is_plain, run_id_of
from .paths import check_given, relative_to_root
from .studies import PATHS, notebooks_of, shortened

NEEDED = ("dataset", "model", "precisions", "batch_size", "seed", "data_dir", "output_dir")
WORDS = {"batch_size": "max", "loss_scale": "dynamic"}  # what may stand in place of a number
TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
MOST_REPEATS = 1000
LONGEST_NAME = 200  # letters of a run id: a file name has at most 255 bytes


class Run(NamedTuple):
    """One process: a notebook with its parameters, which trains one precision or several, and where it writes."""

    notebook: Path
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200
    order: int = 0  # place of its first training in its comparison, from 0
    study: dict | None = None  # what its study says of itself: name, description and show

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
    def record_paths(self) -> dict[str, Path]:
        return {precision: self.folder / f"{run_id}.json" for precision, run_id in self.run_ids.items()}

    @property
    def executed(self) -> Path:
        return self.folder / f"{self.name}.ipynb"

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"


Comparison = list[Run]  # equal in all but precision and repetition, or the steps of one ladder


def notebook_defaults(path: Path) -> dict[str, Any]:
    """Return {name: default} of the notebook's cell tagged `parameters`. Raise UserError where there is none.

    papermill.inspect_notebook would cut a text at its first '#', and takes two seconds to import.
    """
    try:
        tagged = [cell.source for cell in code_cells(path) if cell.sets_parameters]
        if not tagged:
            raise ValueError("there is no such cell")
        defaults = literals_of(tagged[0])
    except FileNotFoundError:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.ipynb"))) or "none"
        raise UserError(f"there is no notebook {path.stem} beside the studies file; there are: {there}.") from None
    except (OSError, SyntaxError, *MALFORMED) as error:
        wanted = "must be a notebook with a cell tagged `parameters` that assigns plain literals"
        raise UserError(f"notebook {path.stem} {wanted} ({' '.join(str(error).split())}).") from None
    missing = [name for name in NEEDED if name not in defaults]
    if missing:
        raise UserError(f"notebook {path.stem} lacks the parameters {', '.join(missing)} that every experiment has.")
    return defaults


def literals_of(source: str) -> dict[str, Any]:
    """Return {name: value} of code that only assigns literals."""
    values = {}
    node: Any
    for node in ast.parse(source).body:
        target: Any = node.targets[0] if isinstance(node, ast.Assign) else node.target
        values[target.id] = ast.literal_eval(node.value)
    return values


def fitted(name: str, value: Any, default: Any, notebook: str) -> Any:
    """Return `value` in the type of the notebook's `default`, so that both compute the same run id.

    Raise UserError where it does not fit.
    """
    if name == "precisions":
        return fitted_precisions(value)
    limit = 2**32 if name == "seed" else 2**63
    if type(value) is int and abs(value) >= limit and not isinstance(default, float):
        raise UserError(f"{name} is {shortened(value)}; it must be below {limit}.")
    if name in WORDS and value == WORDS[name]:
        return value
    is_scale = name == "loss_scale"  # "dynamic" or a number
    if (isinstance(default, float) and type(value) in (int, str)) or (is_scale and isinstance(value, str)):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if default is None or type(value) is type(default) or (is_scale and type(value) in (int, float)):
        return value
    wanted = "a number" if is_scale else TYPE_WORDS.get(type(default), type(default).__name__)
    if name in WORDS:
        wanted = f'"{WORDS[name]}" or {wanted}'
    raise UserError(f"parameter {name} of notebook {notebook} must be {wanted}, not {value!r}.")


def fitted_precisions(value: Any) -> list[str]:
    """Return the precisions of a list or of text with commas, each once. Raise UserError at an unknown one."""
    possible = f"possible are {', '.join(PRECISION_NAMES)}"
    names = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if not names:
        raise UserError(f"precisions is empty; {possible}.")
    unknown = [word for word in names if word not in PRECISION_NAMES] if isinstance(names, list) else [value]
    if unknown:
        raise UserError(f"unknown precision {', '.join(map(str, unknown))}; {possible}.")
    return list(dict.fromkeys(names))


def merged_parameters(notebook: str, defaults: dict, given: dict, overrides: dict[str, tuple[str, Any]]) -> dict:
    """Return the notebook's defaults, replaced by `given` and then by the `overrides` that it gets."""
    unknown = [name for name in given if name not in defaults]
    if unknown:
        raise no_such_parameter(str(unknown[0]), {notebook: defaults})
    parameters = {**defaults, **given}
    for name, (text, value) in overrides.items():
        # Where the notebook wants text, a number or a date is text too.
        plain = isinstance(defaults[name], str) and not isinstance(value, str | list | dict) and name != "loss_scale"
        parameters[name] = text if plain else value
    return {name: fitted(name, value, defaults[name], notebook) for name, value in parameters.items()}


def no_such_parameter(name: str, defaults: dict[str, dict]) -> UserError:
    """Return the error for a parameter that none of {notebook: its defaults} has."""
    known = sorted({key for values in defaults.values() for key in values})
    if len(defaults) == 1:
        return UserError(f"notebook {next(iter(defaults))} has no parameter {name}; {did_you_mean(name, known)}")
    hint = did_you_mean(name, known, "they have")
    return UserError(f"none of the notebooks {', '.join(defaults)} has a parameter {name}; {hint}")


def overrides_of(notebook: str, defaults: dict, overrides: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return those -p overrides that a notebook gets. One for it alone, NOTEBOOK.NAME, goes before NAME."""
    for_all = {name: value for name, value in overrides.items() if name in defaults}
    split = {tuple(name.rpartition(".")[::2]): value for name, value in overrides.items()}
    return {**for_all, **{name: value for (owner, name), value in split.items() if owner == notebook}}


def check_overrides(studies: Iterable[dict], notebooks: Path, overrides: dict[str, tuple[str, Any]]) -> list[str]:
    """Return a sentence for each -p that only some notebooks of the studies know. Raise UserError where none does."""
    defaults = {name: notebook_defaults(notebooks / f"{name}.ipynb") for name in notebooks_of(studies)}
    notices = []
    for name in overrides:
        if name == "repeats":  # how often run_all.py makes each run
            continue
        owner, _, parameter = name.rpartition(".")
        if owner and owner not in defaults:
            hint = did_you_mean(owner, defaults, "possible are")
            raise UserError(f"-p {name}: no notebook {owner} is asked for; {hint}")
        asked = {owner: defaults[owner]} if owner else defaults
        knowing = [notebook for notebook, values in asked.items() if parameter in values]
        if not knowing:
            raise no_such_parameter(parameter, asked)
        if len(knowing) < len(asked):
            others = ", ".join(notebook for notebook in asked if notebook not in knowing)
            notices.append(f"-p {name} is for {', '.join(knowing)}; without such a parameter: {others}")
    return notices


def combinations_of(sweep: Mapping[str, list]) -> list[dict]:
    """Return [{name: value}]: every combination of the swept values. Without a sweep it is one empty dict."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def repeats_of(entry: dict, overrides: dict[str, tuple[str, Any]], on_gpu: bool) -> int:
    """Return how many repetitions an entry makes. On the CPU it makes one, unless -p repeats asks for more."""
    asked = overrides["repeats"][1] if "repeats" in overrides else entry.get("repeats", 1) if on_gpu else 1
    if type(asked) is not int or not 1 <= asked <= MOST_REPEATS:
        raise UserError(f"repeats is {shortened(asked)}; it must be a whole number from 1 to {MOST_REPEATS}.")
    return asked


def in_order(runs: Iterable[Run], comparison: str) -> Comparison:
    """Return the runs of a comparison in the order in which they are made, each with its place.

    Repetitions follow each other. In each of them the precisions stand in a row of a Latin square (order.py), and so do
    the settings of each precision where several are interleaved. The order does not depend on what is finished.
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
    study: dict, notebooks: Path, folder: Path, overrides: dict[str, tuple[str, Any]], on_gpu: bool
) -> tuple[list[Comparison], list[str]]:
    """Return (comparisons, notebooks left out because they need a GPU). The longest comparison comes first.

    A run trains all precisions one after the other. On a GPU each precision gets a process of its own where there are
    several repetitions, because then its times get an interval, and the process is the unit of that. The runs of a
    comparison differ in precision and repetition only and go to one GPU. In an interleaved study that holds for all
    runs of a notebook, because they are compared as the steps of a ladder. Swept seeds are numbered as repetitions, so
    that only the first of them explains.
    """
    comparisons: dict[str, list[Run]] = {}
    planned: set[str] = set()
    left_out = []
    for entry in study["runs"]:
        name = entry["notebook"]
        path = notebooks / f"{name}.ipynb"
        defaults = notebook_defaults(path)
        if not on_gpu and "cpu" not in entry:
            left_out.append(name)
            continue
        own_overrides = overrides_of(name, defaults, overrides)
        given = entry.get("parameters", {}) if on_gpu else entry["cpu"]
        sweep = entry.get("sweep", {}) if on_gpu else {}
        own = [merged_parameters(name, defaults, {**given, **values}, {}) for values in combinations_of(sweep)]
        trainings = sum(len(one["precisions"]) for one in own) * repeats_of(entry, {}, on_gpu)
        minutes = entry.get("minutes", 1) / trainings  # of one training, without the overrides
        sweep = {key: values for key, values in sweep.items() if key not in own_overrides}
        repeats = repeats_of(entry, overrides, on_gpu)
        if repeats > 1 and "repeat" not in defaults:
            raise UserError(f"notebook {name} lacks the parameter `repeat`, so it cannot be repeated.")
        for combination in combinations_of(sweep):
            parameters = merged_parameters(name, defaults, {**given, **combination}, own_overrides)
            if repeats > 1 and on_gpu:
                together = [[precision] for precision in parameters["precisions"]]
            else:
                together = [parameters["precisions"]]
            first = repeats * sweep["seed"].index(combination["seed"]) if "seed" in sweep else 0
            comparison = name if study.get("interleaved") else run_id_of(name, {**parameters, "repeat": 0}, "any")
            for number, precisions in itertools.product(range(first, first + repeats), together):
                one = {**parameters, "output_dir": relative_to_root(folder)}
                if "repeat" in defaults:
                    one["repeat"] = number
                ids = {precision: run_id_of(name, one, precision) for precision in precisions}
                if len(longest := max(ids.values(), key=len)) > LONGEST_NAME:
                    raise UserError(f"run {shortened(longest)} has too long a name for its files; use shorter values.")
                new = [precision for precision in precisions if ids[precision] not in planned]  # entries may overlap
                planned.update(ids.values())
                if new:
                    run = Run(path, {**one, "precisions": new}, folder, minutes * len(new), study=study.get("about"))
                    comparisons.setdefault(comparison, []).append(run)
    ordered = [in_order(runs, key) for key, runs in comparisons.items()]
    return sorted(ordered, key=lambda runs: -sum(run.minutes for run in runs)), left_out


def check_values(comparisons: Collection[Comparison]) -> None:
    """Raise UserError at the first value that a notebook of the suite would refuse."""
    for run, *_ in comparisons:
        try:
            check_run(run.notebook.stem, run.parameters)
            for name, value in run.parameters.items():
                if not is_plain(value):  # its record could not be read, so that it would be run again and again
                    raise UserError(
                        f"{name} cannot stand in a record; texts and paths have {MAX_TEXT:,} letters at most."
                    )
        except UserError as error:
            raise UserError(f"notebook {run.notebook.stem}: {error}") from None


def check_run(notebook: str, parameters: dict) -> None:
    """Raise UserError at the first wrong parameter. A notebook that is not the suite's own checks for itself."""
    if notebook not in EXPERIMENTS:
        return
    values = check_declared_values(notebook, parameters)
    if is_timm_model(notebook, values["model"]) and (models := timm_models()):
        check_timm_model(values["model"], models)


@functools.cache
def timm_models() -> list[str]:
    """Return the models of timm, read from its source. It is empty where that cannot be read.

    Loading timm takes many seconds and could hold memory of a GPU. Each notebook asks timm itself.
    """
    found = find_spec("timm")
    if found is None or found.origin is None:
        return []
    sources = (path.read_text(encoding="utf-8") for path in Path(found.origin).parent.glob("models/*.py"))
    names = [re.findall(r"^@register_model\s+def (\w+)", source, re.MULTILINE) for source in sources]
    return sorted(itertools.chain(*names))


def check_paths(comparisons: Iterable[Comparison]) -> None:
    """Raise UserError at the first csv_path or data_dir that is none on this machine."""
    for run, *_ in comparisons:
        for name in PATHS:
            if path := run.parameters.get(name):
                check_given(name, path)
