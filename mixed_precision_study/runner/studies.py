"""What is asked for: the studies of studies.yaml and the -p options of the command line."""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..parameters import did_you_mean
from ..report.study import checked_study
from .paths import expanded, relative_to_root

PATHS = ("data_dir", "csv_path")  # with -p they are relative to the current folder
ENTRY_KEYS: dict[str, Any] = {
    "notebook": str,
    "parameters": dict,
    "sweep": dict,
    "cpu": dict,
    "repeats": int,
    "minutes": (int, float),
}
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
HELP = "notebooks/studies.yaml explains the form at its head"


def load_studies(path: Path) -> dict[str, dict]:
    """Return {name: study} of a studies file, each with what is said `about` it.

    Raise UserError where the form of the file is wrong.
    """
    try:
        studies = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(studies, dict) or not studies:
        raise UserError(f"{path} must map names to studies; {HELP}.")
    for name, study in studies.items():
        entries = study.get("runs") if isinstance(study, dict) else None
        if not PLAIN_NAME.fullmatch(str(name)) or not isinstance(entries, list) or not entries:
            raise UserError(f"study {name} in {path} needs a plain name and a list of entries under `runs`; {HELP}.")
        for number, entry in enumerate(entries, 1):
            check_entry(entry, f"entry {number} of study {name} in {path}")
        study["about"] = checked_study({**study, "name": str(name)}, f"study {name} in {path}")._asdict()
    return {str(name): study for name, study in studies.items()}


def check_entry(entry: Any, where: str) -> None:
    """Raise UserError where an entry of a study has a wrong form."""
    if not isinstance(entry, dict) or not PLAIN_NAME.fullmatch(str(entry.get("notebook", ""))):
        raise UserError(f"{where} must name its `notebook`; {HELP}.")
    for key, value in entry.items():
        wrong = not isinstance(value, ENTRY_KEYS.get(key, ()))
        if wrong or (key == "minutes" and not 0 <= value < math.inf):
            raise UserError(f"{where} has an unknown key or a wrong kind of value at `{key}`; {HELP}.")
    if any("repeat" in entry.get(part, ()) for part in ("parameters", "sweep", "cpu")):
        raise UserError(f"{where} must give `repeats`, not `repeat`, which run_all.py sets; {HELP}.")
    for key, values in entry.get("sweep", {}).items():
        if key == "precisions" or not isinstance(values, list) or not values:
            raise UserError(f"{where} must sweep `{key}` over a list of values (not `precisions`); {HELP}.")


def chosen_studies(studies: dict[str, dict], words: Iterable[str]) -> dict[str, dict]:
    """Return the studies that are asked for as STUDY or STUDY/NOTEBOOK. Raise UserError at an unknown name.

    Without a word it is `quick`, or the only study of the file.
    """
    asked: dict[str, list[str]] = {}
    for word in list(words) or ([*studies] if len(studies) == 1 else ["quick"]):
        name, _, notebook = word.removesuffix(".ipynb").partition("/")
        if name not in studies:
            if name in notebooks_of(studies.values()):
                raise UserError(f"{name} is a notebook, not a study; write STUDY/{name}, such as quick/{name}.")
            raise UserError(f"unknown study {name}; {did_you_mean(name, studies, 'possible are')}")
        there = notebooks_of([studies[name]])
        if "/" in word and notebook not in there:
            raise UserError(f"study {name} does not run {notebook}; {did_you_mean(notebook, there, 'it runs')}")
        asked.setdefault(name, []).extend([notebook] if notebook else there)
    return {name: limited(studies[name], notebooks) for name, notebooks in asked.items()}


def limited(study: dict, only: Iterable[str]) -> dict:
    """Return a study with those of its entries alone that run one of these notebooks."""
    return {**study, "runs": [entry for entry in study["runs"] if entry["notebook"] in only]}


def notebooks_of(studies: Iterable[dict]) -> list[str]:
    """Return the notebooks that studies run, each once."""
    return list(dict.fromkeys(entry["notebook"] for study in studies for entry in study["runs"]))


def shortened(value: Any) -> str:
    """Return a value as text, at most its first 100 letters."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def parse_overrides(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, Any]]:
    """Return {name: (text, value)} of the -p options. Values are read as YAML; those of PATHS are whole paths.

    A name is that of a parameter, or NOTEBOOK.NAME for one notebook alone.
    """
    overrides: dict[str, tuple[str, Any]] = {}
    for name, text in pairs:
        parameter = name.rpartition(".")[2]
        if parameter == "output_dir":
            raise UserError("output_dir cannot be set with -p; use --output-dir DIR.")
        if parameter == "repeat":
            raise UserError("repeat cannot be set with -p, because run_all.py counts repetitions; use -p repeats N.")
        if parameter == "data_dir" and not text:
            raise UserError(f"data_dir is empty; give a folder, or leave -p {name} out.")
        if parameter in PATHS:
            path = relative_to_root(expanded(text, f"-p {name}")) if text else text
            overrides[name] = (path, path)
            continue
        try:
            overrides[name] = (text, yaml.safe_load(text))
        except (ValueError, RecursionError, yaml.YAMLError):
            raise UserError(f"-p {name} {shortened(text)} is not readable; quote the value as in YAML.") from None
    return overrides
