"""What is asked for: the studies of a studies file, the -p options of the command line, and
paths.
"""

import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..judge.axis import PRECISION
from ..parameters import OfATraining, UserError, did_you_mean
from ..report.files import Study, as_list, checked_study, plain_yaml, yaml_in
from ..store.commit import ROOT

PATHS = ("data_dir", "csv_path")  # with -p they are relative to the current folder
MOST_REPEATS = 1000
FORM = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Names = Annotated[list[PlainName], Field(min_length=1)]
Settings = dict[str, Any]


class Entry(BaseModel):
    """One notebook with its parameters."""

    model_config = FORM
    notebook: PlainName
    parameters: Settings = {}
    sweep: dict[str, Annotated[list, Field(min_length=1)]] = {}
    ways: Annotated[list[dict[OfATraining, Any]], Field(min_length=1)] = [{}]
    small: Settings = {}
    cpu: Settings | None = None  # without, it needs a GPU
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS)] = 1
    minutes: Annotated[float, Field(ge=0)] = 1


class StudyForm(Study):
    """A study as it stands in a file."""

    model_config = FORM
    name: PlainName
    axis: PlainName | Names = PRECISION  # type: ignore[assignment]
    interleaved: bool = False
    runs: Annotated[list[Entry], Field(min_length=1)]

    @model_validator(mode="after")
    def has_a_base(self) -> "StudyForm":
        """Take the first value that is swept of each setting on the axis where no base is given."""
        names = as_list(self.axis)
        for entry in self.runs if self.base is None else ():
            if self.base is None and all(name in entry.sweep for name in names):
                self.base = [entry.sweep[name][0] for name in names]
        return self


def load_studies(path: Path) -> dict:
    """Return {name: study} of a studies file, each with what is said `about` it.

    A file may also hold a single study with its name, as the study.yaml of an output folder does.
    Raise UserError where the form is wrong.
    """
    studies = yaml_in(path)
    if not isinstance(studies, dict) or not studies:
        raise UserError(
            f"{path} must map names to studies; see the head of notebooks/studies.yaml."
        )
    if isinstance(studies.get("runs"), list):
        studies = {str(studies.get("name", "study")): studies}
    forms = [form_of(str(name), study, path) for name, study in studies.items()]
    return {form.name: described(form, path) for form in forms}


def form_of(name: str, study: Any, path: Path) -> StudyForm:
    """Return a study of a file in its form. Raise UserError where it has another one."""
    where = f"study {name} in {path}"
    if isinstance(study, dict):
        study = {**study, "name": name}
    form = checked_study(study, where, StudyForm)
    for number, entry in enumerate(form.runs, 1):
        settings = {*entry.parameters, *entry.sweep, *entry.small, *(entry.cpu or ())}
        if "precisions" in entry.sweep or "repeat" in settings:
            reason = (
                "must neither sweep `precisions` nor set `repeat`, "
                "which run_all.py counts up to `repeats`"
            )
            raise UserError(
                f"entry {number} of {where} {reason}; see the head of notebooks/studies.yaml."
            )
    return form


def described(form: StudyForm, path: Path) -> dict:
    """Return a study with what it says of itself as `about`.

    Raise UserError where no run can have its base.
    """
    said = form.model_dump(exclude_unset=True)
    if form.axis != PRECISION:  # only runs of one GPU are pairs
        said.setdefault("interleaved", True)
    if form.base is not None:
        check_values(form, as_list(form.base), f"study {form.name} in {path}")
    return said | {"about": form.model_dump(include=set(Study.model_fields))}


def check_values(form: StudyForm, base: list, where: str) -> None:
    """Raise UserError where no run can have the base, because then nothing is compared."""
    for name, value in zip(as_list(form.axis), base, strict=True):
        parameter = "precisions" if name == PRECISION else name
        given = [{**entry.parameters, **entry.sweep}.get(parameter) for entry in form.runs]
        known = [value for values in given for value in as_list(values)]
        if None not in known and value not in known:
            advice = did_you_mean(str(value), list(map(str, known)), "possible are")
            raise UserError(f"no run of {where} has {name} {value}, its base; {advice}")


def notebooks_for(path: Path, studies: dict) -> Path:
    """Return the folder of the notebooks of a studies file: its own, or the clone's where none of
    them lies there.

    Beside study.yaml, in an output folder, only notebooks are run that the clone lacks, because it
    may be a stranger's.
    """
    names = [f"{name}.ipynb" for name in notebooks_of(studies.values())]
    of_clone = ROOT / "notebooks"
    beside = path.parent
    in_clone = path.name == "study.yaml" and all((of_clone / name).exists() for name in names)
    if not in_clone and any((beside / name).exists() for name in names):
        return beside
    return of_clone


def chosen_studies(studies: dict, words: Iterable[str]) -> dict:
    """Return the studies that are asked for as STUDY or STUDY/NOTEBOOK. Raise UserError at an
    unknown name.

    Without a word it is `quick`, or all studies of a file that has no such study.
    """
    asked: dict = {}
    for word in list(words) or (["quick"] if "quick" in studies else studies):
        name, _, notebook = word.removesuffix(".ipynb").partition("/")
        if name not in studies:
            raise UserError(f"unknown study {name}; {did_you_mean(name, studies, 'possible are')}")
        there = notebooks_of([studies[name]])
        if "/" in word and notebook not in there:
            raise UserError(
                f"study {name} does not run {notebook}; {did_you_mean(notebook, there, 'it runs')}"
            )
        asked.setdefault(name, []).extend([notebook] if notebook else there)
    chosen = {}
    for name, notebooks in asked.items():
        runs = [entry for entry in studies[name]["runs"] if entry["notebook"] in notebooks]
        chosen[name] = studies[name] | {"runs": runs}
    return chosen


def notebooks_of(studies: Iterable[dict]) -> list[str]:
    """Return the notebooks that studies run, each once."""
    return list(dict.fromkeys(entry["notebook"] for study in studies for entry in study["runs"]))


def parse_overrides(pairs: Iterable[tuple[str, str]]) -> dict:
    """Return {name: value} of the -p options. Values are read as YAML; those of PATHS are whole
    paths.

    A name is that of a parameter, or NOTEBOOK.NAME for one notebook alone.
    """
    overrides = {}
    for name, text in pairs:
        parameter = name.rpartition(".")[2]
        if parameter == "output_dir":
            raise UserError(
                "output_dir cannot be set with -p, because run_all.py sets it; "
                "use --output-dir DIR."
            )
        if parameter in PATHS:
            overrides[name] = text and relative_to_root(expanded(text, f"-p {name}"))
        else:
            overrides[name] = plain_yaml(text, f"-p {name} {text[:100]}")
    repeats = overrides.get("repeats", 1)
    if type(repeats) is not int or not 1 <= repeats <= MOST_REPEATS:
        raise UserError(
            f"repeats is {reprlib.repr(repeats)}; it must be a whole number from 1 "
            f"to {MOST_REPEATS}."
        )
    return overrides


def relative_to_root(path: str | Path, root: Path = ROOT) -> str:
    """Return a path relative to `root` where it lies below, so that no record names a folder of
    this machine.
    """
    path = Path(path).resolve()
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def expanded(text: str, option: str) -> Path:
    """Return the whole path that the user gave.

    Raise UserError where it cannot be a parameter or in a record.
    """
    try:
        text.encode()
        return Path(text).expanduser().resolve()
    except (UnicodeEncodeError, RuntimeError) as error:
        # RuntimeError: no such home, or a link to itself
        raise UserError(
            f"{option} {text!a} cannot be used ({error}); write another path."
        ) from None
