"""The runs that a study becomes: notebooks with their own parameters and those asked for, checked before any starts."""

import ast
import functools
import itertools
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..parameters import EXPERIMENTS, PRECISION_NAMES, check_timm_model, did_you_mean, is_timm_model
from ..parameters import check_values as check_declared_values
from ..record import run_id_of
from .notebook_file import MALFORMED, code_cells, hash_of, package_state
from .paths import ROOT, python_path, relative_to_root
from .studies import shortened

NEEDED = ("dataset", "model", "precisions", "batch_size", "seed", "data_dir", "output_dir")
TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
LONGEST_NAME = 200  # letters of a run's name: files hold 255 bytes of it, the ending and a number included


class Run(NamedTuple):
    """One notebook with one set of parameters and one precision, and where its results go."""

    run_id: str
    notebook: Path
    precision: str
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200

    @property
    def record_path(self):
        return self.folder / f"{self.run_id}.json"

    @property
    def log_path(self):
        return self.folder / "logs" / f"{self.run_id}.log"

    @property
    def code_hash(self):
        return code_hash(self.notebook, self.notebook.stat().st_mtime_ns, package_state())


def notebook_defaults(path):
    """Return {name: default} of the notebook's cell tagged `parameters`.

    It is read here because papermill.inspect_notebook cuts a text at its first '#' and takes two seconds to import.
    """
    try:
        tagged = [cell.source for cell in code_cells(path) if cell.sets_parameters]
        if not tagged:
            raise ValueError("there is no such cell")
        nodes = ast.parse(tagged[0]).body
        pairs = [(n.targets[0] if isinstance(n, ast.Assign) else n.target, n.value) for n in nodes]
        defaults = {target.id: ast.literal_eval(value) for target, value in pairs}
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


@functools.cache
def code_hash(path, changed, package):
    """Return a short hash of a notebook's code and the package's that measures; records that differ in it do not mix.

    The cell tagged `parameters` is left out: its values are part of a run's name already. `changed` is when the file
    was last written, `package` the same of the package: what is edited while a batch runs has another hash from then.
    """
    return hash_of(path.read_text(encoding="utf-8"))


def fitted(name, value, default, notebook):
    """Return `value` in the type of the notebook's `default`, so that both compute the same run id."""
    if name == "precisions":
        names = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
        if not names:
            raise UserError(f"precisions is empty; possible are {', '.join(PRECISION_NAMES)}.")
        unknown = [str(word) for word in names if word not in PRECISION_NAMES] if isinstance(names, list) else [value]
        if unknown:
            words = ", ".join(map(str, unknown))
            raise UserError(f"unknown precision {words}; possible are {', '.join(PRECISION_NAMES)}.")
        return list(dict.fromkeys(names))
    most = 2**32 if name == "seed" else 2**63
    if type(value) is int and abs(value) >= most and not isinstance(default, float):
        raise UserError(f"{name} is {shortened(value)}; it must be below {most}.")
    scale = name == "loss_scale"  # "dynamic" or a number
    if name == "batch_size" and value == "max":
        return value
    if (isinstance(default, float) and type(value) in (int, str)) or (scale and isinstance(value, str)):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if default is None or type(value) is type(default) or (scale and type(value) in (int, float)):
        return value
    wanted = '"dynamic" or a number' if scale else TYPE_WORDS.get(type(default), type(default).__name__)
    raise UserError(f"parameter {name} of notebook {notebook} must be {wanted}, not {value!r}.")


def merged_parameters(notebook, defaults, given, overrides):
    """Return the notebook's parameters with `given` and then the -p `overrides` in place of its defaults."""
    unknown = [name for name in (*given, *overrides) if name not in defaults]
    if unknown:
        raise UserError(f"notebook {notebook} has no parameter {unknown[0]}; {did_you_mean(str(unknown[0]), defaults)}")
    parameters = {**defaults, **given}
    for name, (text, value) in overrides.items():
        # Where the notebook wants text, a number or a date is text too.
        plain = isinstance(defaults[name], str) and not isinstance(value, str | list | dict) and name != "loss_scale"
        parameters[name] = text if plain else value
    return {name: fitted(name, value, defaults[name], notebook) for name, value in parameters.items()}


def combinations_of(sweep):
    """Return [{name: value}]: every combination of the swept values, one empty one where nothing is swept."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def passes_of(parameters):
    """Return what each pass over the precisions sets: one run of each precision per repetition, and its number.

    Within a kernel a notebook changes the order from one repetition to the next by itself. Here each precision has a
    kernel of its own, so that the runs must alternate. A notebook without the parameter `repeat` repeats by itself.
    """
    if not {"repeats", "repeat"} <= set(parameters):
        return [{}]
    if parameters["repeats"] > 1000:
        raise UserError(f"repeats is {parameters['repeats']}; it can be 1000 at most.")
    count = parameters["repeats"]  # one below 1 is passed on: the notebook's own check refuses it with a sentence
    return [{"repeats": min(count, 1), "repeat": number} for number in range(max(count, 1))]


def weight(parameters):
    """Return how many trainings the parameters ask for."""
    return len(parameters["precisions"]) * max(parameters.get("repeats", 1), 1)


def plan(study, notebooks, folder, overrides, on_gpu):
    """Return (comparisons, left out): lists of runs equal in all but precision and repetition, and what needs a GPU.

    The comparison that takes longest comes first. In each the repetitions alternate: a b c, c b a, a b c.
    """
    comparisons, left_out = {}, []
    for entry in study["runs"]:
        name, path = entry["notebook"], notebooks / f"{entry['notebook']}.ipynb"
        defaults = notebook_defaults(path)
        if not on_gpu and "cpu" not in entry:
            left_out.append(name)
            continue
        given, sweep = (entry.get("parameters", {}), entry.get("sweep", {})) if on_gpu else (entry["cpu"], {})
        own = [merged_parameters(name, defaults, {**given, **values}, {}) for values in combinations_of(sweep)]
        minutes = entry.get("minutes", 1) / sum(map(weight, own))  # they are for the entry without the overrides
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
                        raise UserError(
                            f"run {shortened(run_id)} has too long a name for its files; use shorter values."
                        )
                    runs.setdefault(run_id, Run(run_id, path, precision, one, folder, minutes * weight(one)))
    comparisons = [list(runs.values()) for runs in comparisons.values()]
    return sorted(comparisons, key=lambda runs: -sum(run.minutes for run in runs)), left_out


def check_values(comparisons):
    """Raise UserError at the first value that a notebook of the suite would refuse, before any run starts.

    Models of timm that are not known here are looked up in a process of its own. It loads PyTorch, which takes seconds
    and must not hold memory of a GPU that is about to be measured.
    """
    models = []
    for run, *_ in comparisons:
        notebook = run.notebook.stem
        if notebook not in EXPERIMENTS:
            continue  # it checks for itself
        try:
            values = check_declared_values(notebook, run.parameters)
        except UserError as stop:
            raise UserError(f"notebook {notebook}: {stop}") from None
        if is_timm_model(notebook, values["model"]):
            models.append([notebook, values["model"]])
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path()}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
    command = [sys.executable, "-m", "mixed_precision_study.runner.plan"]
    done = subprocess.run(command, input=json.dumps(models), **options) if models else None
    # Where the check itself cannot run, each notebook still checks for itself.
    if done and done.returncode == 0 and (refusal := json.loads(done.stdout)):
        raise UserError(refusal)


def check_csv(comparisons):
    """Raise UserError at the first csv_path that is no file on this machine."""
    for path in filter(None, (run.parameters.get("csv_path") for run, *_ in comparisons)):
        if not os.path.isfile(ROOT / path):
            raise UserError(f"csv_path {path} is no file here; give the CSV that names your images.")


def first_refusal(models):
    """Return the sentence about the first of [(notebook, model)] that timm does not have, or None."""
    for notebook, model in models:
        try:
            check_timm_model(model)
        except UserError as stop:
            return f"notebook {notebook}: {stop}"
    return None


if __name__ == "__main__":  # the process of check_values
    with redirect_stdout(sys.stderr):  # for what a package may print when it is loaded
        refusal = first_refusal(json.load(sys.stdin))
    print(json.dumps(refusal))
