"""The runs that a study asks for: notebooks with their parameters, checked before any run starts."""

import ast
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..parameters import EXPERIMENTS, PRECISION_NAMES, check_timm_model, did_you_mean, is_timm_model
from ..parameters import check_values as check_declared_values
from ..record import run_id_of
from .notebook_file import MALFORMED, code_cells, hash_of, package_state
from .paths import ROOT, python_path, relative_to_root
from .studies import shortened

NEEDED = ("dataset", "model", "precisions", "batch_size", "seed", "data_dir", "output_dir")
TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
LONGEST_NAME = 200  # letters of a run id: a file name has at most 255 bytes


class Run(NamedTuple):
    """One notebook with one set of parameters and one precision, and where its results go."""

    run_id: str
    notebook: Path
    precision: str
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200

    @property
    def record_path(self) -> Path:
        return self.folder / f"{self.run_id}.json"

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / f"{self.run_id}.log"

    @property
    def code_hash(self) -> str:
        return code_hash(self.notebook, self.notebook.stat().st_mtime_ns, package_state())


Comparison = list[Run]  # equal in all but precision and repetition


@functools.cache
def code_hash(path: Path, changed: int, package: tuple) -> str:
    """Return hash_of() a notebook. It is computed again once the notebook (`changed`) or the `package` is written."""
    return hash_of(path.read_text(encoding="utf-8"))


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
    if name == "batch_size" and value == "max":
        return value
    is_scale = name == "loss_scale"  # "dynamic" or a number
    if (isinstance(default, float) and type(value) in (int, str)) or (is_scale and isinstance(value, str)):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if default is None or type(value) is type(default) or (is_scale and type(value) in (int, float)):
        return value
    wanted = '"dynamic" or a number' if is_scale else TYPE_WORDS.get(type(default), type(default).__name__)
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
    """Return the notebook's defaults, replaced by `given` and then by the -p `overrides`."""
    unknown = [name for name in (*given, *overrides) if name not in defaults]
    if unknown:
        raise UserError(f"notebook {notebook} has no parameter {unknown[0]}; {did_you_mean(str(unknown[0]), defaults)}")
    parameters = {**defaults, **given}
    for name, (text, value) in overrides.items():
        # Where the notebook wants text, a number or a date is text too.
        plain = isinstance(defaults[name], str) and not isinstance(value, str | list | dict) and name != "loss_scale"
        parameters[name] = text if plain else value
    return {name: fitted(name, value, defaults[name], notebook) for name, value in parameters.items()}


def combinations_of(sweep: Mapping[str, list]) -> list[dict]:
    """Return [{name: value}]: every combination of the swept values. Without a sweep it is one empty dict."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def passes_of(parameters: dict) -> list[dict]:
    """Return the parameters that each pass over the precisions sets: one repetition, and its number.

    Runs of one precision must alternate with the others. A notebook without the parameter `repeat` alternates by itself
    within its kernel: it has one pass that sets nothing.
    """
    if not {"repeats", "repeat"} <= set(parameters):
        return [{}]
    count = parameters["repeats"]
    if count > 1000:
        raise UserError(f"repeats is {count}; it can be 1000 at most.")
    # One below 1 is passed on: the notebook's own check refuses it.
    return [{"repeats": min(count, 1), "repeat": number} for number in range(max(count, 1))]


def trainings_of(parameters: dict) -> int:
    """Return how many trainings the parameters ask for."""
    return len(parameters["precisions"]) * max(parameters.get("repeats", 1), 1)


def plan(
    study: dict, notebooks: Path, folder: Path, overrides: dict[str, tuple[str, Any]], on_gpu: bool
) -> tuple[list[Comparison], list[str]]:
    """Return (comparisons, notebooks left out because they need a GPU).

    The runs of a comparison differ in precision and repetition only. Their order alternates: a b c, c b a, a b c. The
    comparison that takes longest comes first.
    """
    comparisons: dict[str, dict[str, Run]] = {}
    left_out = []
    for entry in study["runs"]:
        name = entry["notebook"]
        path = notebooks / f"{name}.ipynb"
        defaults = notebook_defaults(path)
        if not on_gpu and "cpu" not in entry:
            left_out.append(name)
            continue
        given = entry.get("parameters", {}) if on_gpu else entry["cpu"]
        sweep = entry.get("sweep", {}) if on_gpu else {}
        own = [merged_parameters(name, defaults, {**given, **values}, {}) for values in combinations_of(sweep)]
        minutes = entry.get("minutes", 1) / sum(map(trainings_of, own))  # of one training, without the overrides
        sweep = {key: values for key, values in sweep.items() if key not in overrides}
        for combination in combinations_of(sweep):
            parameters = merged_parameters(name, defaults, {**given, **combination}, overrides)
            passes = passes_of(parameters)
            # Two entries, or two values of a swept `repeats`, may ask for the same run, or for runs to be compared.
            runs = comparisons.setdefault(run_id_of(name, {**parameters, **passes[0]}, "any"), {})
            for number, values in enumerate(passes):
                for precision in parameters["precisions"][:: -1 if number % 2 else 1]:
                    one = {**parameters, **values, "precisions": [precision], "output_dir": relative_to_root(folder)}
                    run_id = run_id_of(name, one, precision)
                    if len(run_id) > LONGEST_NAME:
                        advice = "has too long a name for its files; use shorter values"
                        raise UserError(f"run {shortened(run_id)} {advice}.")
                    runs.setdefault(run_id, Run(run_id, path, precision, one, folder, minutes * trainings_of(one)))
    longest_first = sorted(comparisons.values(), key=lambda runs: -sum(run.minutes for run in runs.values()))
    return [list(runs.values()) for runs in longest_first], left_out


def check_values(comparisons: Iterable[Comparison]) -> None:
    """Raise UserError at the first value that a notebook of the suite would refuse.

    Unknown models are looked up in timm by another process, which loads PyTorch. That takes seconds and must not hold
    memory of a GPU that is about to be measured. Where the look-up fails, each notebook still checks for itself.
    """
    models = []
    for run, *_ in comparisons:
        notebook = run.notebook.stem
        if notebook not in EXPERIMENTS:
            continue  # it checks for itself
        try:
            values = check_declared_values(notebook, run.parameters)
        except UserError as error:
            raise UserError(f"notebook {notebook}: {error}") from None
        if is_timm_model(notebook, values["model"]):
            models.append([notebook, values["model"]])
    if not models:
        return
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path()}
    command = [sys.executable, "-m", "mixed_precision_study.runner.plan"]
    done = subprocess.run(
        command, input=json.dumps(models), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0 and (refusal := json.loads(done.stdout)):
        raise UserError(refusal)


def check_csv(comparisons: Iterable[Comparison]) -> None:
    """Raise UserError at the first csv_path that is no file on this machine."""
    for path in filter(None, (run.parameters.get("csv_path") for run, *_ in comparisons)):
        if not os.path.isfile(ROOT / path):
            raise UserError(f"csv_path {path} is no file here; give the CSV that names your images.")


def first_refusal(models: Iterable[tuple[str, str]]) -> str | None:
    """Return the sentence about the first of [(notebook, model)] that timm does not have, or None."""
    for notebook, model in models:
        try:
            check_timm_model(model)
        except UserError as error:
            return f"notebook {notebook}: {error}"
    return None


if __name__ == "__main__":  # the process that check_values starts
    with redirect_stdout(sys.stderr):  # packages may print when they are loaded
        refusal = first_refusal(json.load(sys.stdin))
    print(json.dumps(refusal))
