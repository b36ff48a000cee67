"""The files of a report: the study and the records that it reads, where it may be written, and its
page.
"""

import importlib.metadata
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from ..judge.axis import PRECISION, PRECISIONS, Axis, arm_named, grouped
from ..parameters import UserError, printable
from ..store.commit import MALFORMED, ROOT
from ..store.files import read_file, written_whole
from ..store.reading import LeftOut, read_records
from ..store.record import Runs, comparison_key, data_asked_for

MOST_LETTERS, MOST_VALUES = 2**18, 100_000  # of a file in YAML; studies.yaml has 20,000 letters
# letters of which neither markup nor mathematics can be made
PLAIN_TEXT = re.compile(r"[^<>&\[\]`$\\|*~\n\t]{0,1000}")


class Plain(yaml.SafeLoader):
    """YAML whose numbers are those that people read.

    0100 (octal), 1:30 (base 60) and numbers of more than 40 digits stay texts, which checks refuse.
    """


def number_of(loader: Plain, node: yaml.ScalarNode) -> Any:
    if re.match(r"[-+]?0[0-7_]|.*:|.{41}", node.value):
        return node.value
    return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)


Plain.add_constructor("tag:yaml.org,2002:int", number_of)
Plain.add_constructor("tag:yaml.org,2002:float", number_of)


def plain_yaml(text: str, where: str) -> Any:
    """Return what YAML holds.

    Raise UserError, which begins with `where`, if it is wrong or large.
    """
    try:
        if len(text) > MOST_LETTERS:
            raise ValueError(f"it has more than {MOST_LETTERS:,} letters")
        loader = Plain(text)
        node = loader.get_single_node()
        if node and any(total > MOST_VALUES for total in accumulate(sizes_in(node))):
            raise ValueError(f"it has more than {MOST_VALUES:,} values, aliases written out")
        return loader.construct_document(node) if node else None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where} cannot be read as YAML ({reason[:300]}).") from None


def sizes_in(node: yaml.Node) -> Iterator[float]:
    """Yield the size of each value in a part of YAML, aliases written out; in a circle they have
    no end.
    """
    yield 1 + len(node.value) / 100
    if isinstance(node, yaml.CollectionNode):
        for part in chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value:
            yield from sizes_in(part)


def yaml_in(path: Path) -> Any:
    """Return what a file of YAML holds. Raise UserError where it is missing or cannot be read."""
    try:
        text = read_file(path).decode()
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); give a file like studies.yaml."
        ) from None
    return plain_yaml(text, str(path))


def usual(text: str) -> str:
    """Return a text that can stand in a page or a chart. Raise ValueError at another one."""
    if not PLAIN_TEXT.fullmatch(text) or printable(text) != text:
        raise ValueError("it has letters of which markup could be made")
    return text


Usual = Annotated[str, AfterValidator(usual)]
Value = bool | int | float | Usual
Values = Value | Annotated[list[Value], Field(min_length=1)]


def labelled(step: dict) -> dict:
    """Return a step of a ladder. Raise ValueError where no text is its label."""
    if not isinstance(step.get("label"), str):
        raise ValueError("each step needs a `label`")
    return step


# the parts of an explanation, each of which has a field for a reason in a record
Part = Literal["inference", "ledger", "profile", "attention", "limit", "gradient", "update"]
# {what a report may show: its values}, see the head of notebooks/studies.yaml
SHOWN: dict[str, Any] = {
    "over": Values,
    "with": Values,
    "explained": list[Part],
    "steps": list[Annotated[dict[Usual, Values], AfterValidator(labelled)]],
    **dict.fromkeys(("quality", "articles", "inference", "execution"), Literal[True]),
}
Show = with_config(ConfigDict(strict=True, extra="forbid"))(
    TypedDict("Show", SHOWN, total=False)  # type: ignore[misc, operator]
)


class Study(BaseModel):
    """What a study says of itself."""

    model_config = ConfigDict(strict=True)
    name: Usual = ""
    description: Usual = ""
    show: Show = {}  # type: ignore[valid-type]
    axis: Values = PRECISION  # the setting, or the list of settings, in which its arms differ
    # of the axis; None of precisions: TF32, or fp32 where that was not run
    base: Values | None = None

    def compares(self) -> Axis:
        """Return the axis of the study, with its base."""
        if self.base is None:
            return PRECISIONS
        return Axis(tuple(as_list(self.axis)), (arm_named(as_list(self.base)),), {})


def study_of(folder: str | Path, records: Runs) -> Study:
    """Return what study.yaml says, or raise UserError; else what most records say, of which
    errors do no harm.
    """
    path = Path(folder) / "study.yaml"
    if path.is_file():
        return checked_study(yaml_in(path), str(path))
    found = Counter(json.dumps(record["study"]) for record in records if record.get("study"))
    for text, times in found.most_common(1):
        said = json.loads(text)
        if 2 * times > found.total():
            with suppress(UserError, AttributeError):
                shown = said.get("show", {}).items()
                said["show"] = {key: value for key, value in shown if can_show({key: value})}
                return checked_study(said, "a record")
    return Study()


def checked_study(said: Any, where: str, form: type[Study] = Study) -> Any:
    """Return the study of a mapping in its `form`. Raise UserError at the first that is wrong."""
    try:
        study = form.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        place = ", ".join(
            f"entry {part + 1}" if isinstance(part, int) else f"`{part}`" for part in first["loc"]
        )
        raise UserError(
            f"{where} is wrong{place and ' at ' + place}: {first['msg']}; "
            "see the head of notebooks/studies.yaml."
        ) from None
    if study.base is None and as_list(study.axis) != [PRECISION]:
        raise UserError(
            f"{where} has an `axis` without the `base` that its arms are compared with."
        )
    if study.base is not None and len(as_list(study.base)) != len(as_list(study.axis)):
        raise UserError(f"{where} needs as many values of `base` as its `axis` has settings.")
    return study


def as_list(value: Any) -> list:
    """Return a list of values, of one value that alone."""
    return value if isinstance(value, list) else [value]


def can_show(said: dict) -> bool:
    """Return whether this version knows what a study wants to show."""
    with suppress(ValidationError):
        return bool(TypeAdapter(Show).validate_python(said))
    return False


OWN_RUNS = "outputs"
RECORDS = (".json", ".zip")
# folders of committed results, as in .gitignore
PUBLISHED = ("main", "more", "checks", "archive", "executed")
PLACE = ("device_type", "gpu_name")
# What a run finds out only when it has started.
KNOWN_LATE = (*PLACE, "dataset_used", "data_fingerprint", "identity", "synthetic")


def settings_of(record: dict) -> tuple:
    """Return the comparison key without KNOWN_LATE, and the data that were asked for."""
    return (
        data_asked_for(record),
        *(item for item in comparison_key(record) if item[0].partition(" ")[0] not in KNOWN_LATE),
    )


def learn_place(records: Runs) -> None:
    """Complete runs that ended before they knew their device or data, if all runs with equal
    settings agree on them.
    """
    placed = grouped(records, lambda one: bool(one["device_type"] and one["dataset_used"]))
    alike = grouped(placed.get(True, ()), settings_of)
    for record in placed.get(False, ()):
        known = {
            name: record[name] for name in (*KNOWN_LATE, "gpu_uuid") if record[name] is not None
        }
        there = [one for one in alike.get(settings_of(record), ()) if known.items() <= one.items()]
        if len(set(map(known_late, there))) == 1:
            record.update(
                {name: there[0][name] for name in (*KNOWN_LATE, "model_title", "data_title")}
            )


def known_late(record: dict) -> tuple:
    return tuple(json.dumps(record[name]) for name in KNOWN_LATE)


def copy_key(record: dict, gpu_uuid: str | None) -> tuple:
    """Return what two files of one run share. The same run id on another GPU is another run."""
    return (record["run_id"], gpu_uuid, *known_late(record))


def why_not(record: dict, standing: dict, on_gpu: bool, real: set[tuple]) -> str | None:
    """Return why a sound record is not used, or None;

    `standing` has the copies that stand, by their key.
    """
    kept = standing[copy_key(record, record["gpu_uuid"])]
    if kept is not record:
        if folder_of(kept) == folder_of(record):
            return f"older copy of {kept['path']}"
        return f"copy of {kept['path']}, which stands because its folder comes first"
    if on_gpu and record["device_type"] == "cpu":
        return "ran on the CPU, beside runs on a GPU"
    if record["synthetic"] and (settings_of(record), *map(record.get, PLACE)) in real:
        return "synthetic data, beside real data in the same comparison"
    return None


def folder_of(record: dict) -> PurePath:
    """Return the folder or archive that a record was read from."""
    return PurePath(record["path"]).parent


def sort_out(records: Runs) -> tuple[Runs, LeftOut]:
    """Return (records to use, [(path, reason)] of the others).

    Of several copies of a run those in the folder that was read first stand, and of these the
    newest, because anybody can write a later date into a record.
    """
    learn_place(records)
    places = {place: number for number, place in enumerate(dict.fromkeys(map(folder_of, records)))}
    in_order = sorted(
        records, key=lambda record: (-places[folder_of(record)], record["finished_at"] or "")
    )
    standing = {
        copy_key(record, uuid): record for record in in_order for uuid in (record["gpu_uuid"], None)
    }
    on_gpu = any(record["device_type"] == "cuda" for record in records)
    asked = {data_asked_for(record) for record in records if record["synthetic"]}
    real = {
        (settings_of(record), *map(record.get, PLACE))
        for record in records
        if record["synthetic"] is False and data_asked_for(record) in asked
    }
    reasons = [(record, why_not(record, standing, on_gpu, real)) for record in records]
    used = [record for record, reason in reasons if not reason]
    return used, [(record["path"], reason) for record, reason in reasons if reason]


def own_runs(folder: Path) -> list[Path]:
    """Return what may hold one's own records in `outputs`: all that the study does not publish."""
    found = [path for path in folder.glob("[!.]*") if path.is_dir() or path.suffix in RECORDS]
    return sorted(path for path in found if path.name not in PUBLISHED)


def find_records(
    given: Sequence[str | Path], output: str | Path = ""
) -> tuple[Path, Runs, LeftOut]:
    """Return (folder of the report, records, [(path, reason) of what is no record]).

    `given` are folders and zips, which are read where they lie; paths are
    relative to `output`, by default the first of them. The default "outputs" stands for one's own
    runs: beside the notebook, in the clone, or uploaded to the working folder; what the study
    publishes there is left out. Raise UserError where there is none.
    """
    places = [*map(Path, given)]
    first = places[0]
    if places == [Path(OWN_RUNS)]:
        folders = [*filter(Path.is_dir, (Path(OWN_RUNS), Path("..", OWN_RUNS)))] or [Path()]
        first = next(filter(own_runs, folders), folders[-1])
        places = own_runs(first)
    output = Path(output or first)
    records = []
    left_out = []
    for place in places:
        if not place.exists():
            raise UserError(
                f'there is no folder records_dir = "{place}"; set it to the folder with '
                "the run records."
            )
        found, others = read_records(place)
        way: PurePath = place if place.is_dir() else place.parent
        way = seen_from(way, output)
        records += [{**record, "path": (way / record["path"]).as_posix()} for record in found]
        left_out += [((way / path).as_posix(), reason) for path, reason in others]
    return output, records, left_out


def seen_from(place: PurePath, folder: str | Path) -> PurePath:
    """Return the way from a folder to a place, which is the place itself on another drive of
    Windows.
    """
    with suppress(ValueError):
        return PurePath(os.path.relpath(place, folder))
    return place


def project_address() -> str | None:
    """Return the address of the project on the web, as pyproject.toml of this clone or else the
    installed package has it; None where it has none.
    """
    with suppress(OSError, *MALFORMED):
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        return settings["project"]["urls"]["Repository"]
    with suppress(*MALFORMED, importlib.metadata.PackageNotFoundError):
        said = importlib.metadata.metadata("mixed-precision-study").get_all("Project-URL") or []
        return dict(entry.split(", ", 1) for entry in said)["Repository"]
    return None


def place_of_project(folder: str | Path) -> str:
    """Return where a page in a folder finds README and docs: on the web, because pages are copied,
    else in this clone; "" where there is neither.
    """
    if address := project_address():
        return f"{address}/blob/main"
    return seen_from(ROOT, folder).as_posix() if (ROOT / "docs" / "answers").is_dir() else ""


def of_other_code(records: Runs) -> Runs:
    """Return the records measured by other code than the newest of their notebook; those without
    a hash are not.
    """
    known = sorted(
        (one for one in records if one["code_hash"]), key=lambda one: one["finished_at"] or ""
    )
    newest = {one["notebook"]: one["code_hash"] for one in known}
    return [one for one in known if one["code_hash"] != newest[one["notebook"]]]


MARKS = {  # pattern that a file of a report has in its first MiB, and a person's file lacks
    ".ipynb": b"injected-parameters",  # papermill adds them
    ".html": b"<b>Mixed precision study</b>",
    ".csv": b"comparison,explains,timed,|comparison,precision,baseline,|article,year,card,",
    ".png": rb"(?s)\A.{37}PLTE",  # at once behind the head, where other programs write more
}


def of_a_report(path: Path, mark: bytes = b"") -> bool:
    """Return whether an earlier report wrote this file, as its contents show, or nothing stands
    there.

    `mark` is the pattern of its contents, by default that of its ending in MARKS. A link
    stands for nothing, because written_whole() replaces it and leaves alone what it leads to.
    """
    if path.is_symlink() or not path.exists():
        return True
    return path.is_file() and bool(
        re.search(mark or MARKS[path.suffix], path.read_bytes()[: 2**20])
    )


def check_place(folder: Path) -> None:
    """Raise UserError where a report in `folder` would replace a file of a person's."""
    drawn = folder / "summary.ipynb"
    log = folder / "logs" / "summary.log"
    taken = [path for path in (drawn, drawn.with_suffix(".html")) if not of_a_report(path)]
    if log.is_file() and not any(folder.glob("logs/.*lock")):
        taken.append(log)
    if taken:
        advice = "which no report has written; choose another folder with --output-dir DIR"
        raise UserError(f"a report would replace {taken[0]}, {advice}.")


def template(name: str, **filters: Callable) -> Any:
    """Return a template of Jinja with these filters, which escapes all that it is given."""
    import jinja2  # here, because run_all.py reads studies without it

    loader = jinja2.PackageLoader("mixed_precision_study.report", "template")
    environment = jinja2.Environment(loader=loader, autoescape=True)
    environment.filters.update(printable=lambda value: printable(str(value)), **filters)
    return environment.get_template(name)


def place_of(cell: dict) -> int:
    """Return where a reader wants a cell of the summary: title, report, words, and other code."""
    if cell.get("id") in ("title", "report"):
        return ("title", "report").index(cell["id"])
    return 2 if cell["cell_type"] == "markdown" else 3


def write_page(notebook: str | Path) -> None:
    """Write the page of an executed summary beside it, and put the summary's own cells in the
    order of place_of(). nbconvert would parse it once more, which takes a second.
    """
    import mistune  # here, because run_all.py reads studies without it

    notebook = Path(notebook)
    markdown = mistune.create_markdown(plugins=["strikethrough", "table"])
    content = json.loads(notebook.read_text(encoding="utf-8"))
    content["cells"].sort(key=place_of)
    with written_whole(notebook) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page = template("page.html", markdown=markdown).render(nb=content)
    with written_whole(notebook.with_suffix(".html")) as temporary:
        temporary.write_text(page, encoding="utf-8")
