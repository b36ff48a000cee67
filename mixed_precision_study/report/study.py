"""What a study says of itself: its name, what it is about, and what its report has to show."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..judge.axis import PRECISION, PRECISIONS, Axis, arm_named
from ..parameters import UserError, printable
from ..store.files import read_file

MOST_LETTERS, MOST_VALUES = 2**18, 100_000  # of a file in YAML; studies.yaml has 20,000 letters
# what `show` may hold beside over, with and steps
FLAGS = ("quality", "articles", "inference", "execution")
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


class Study(NamedTuple):
    name: str
    description: str
    show: dict[str, Any]  # see the head of notebooks/studies.yaml
    axis: Any = PRECISION  # the setting, or the list of settings, in which its arms differ
    base: Any = None  # of the axis; None of precisions: TF32, or fp32 where that was not run

    def compares(self) -> Axis:
        """Return the axis of the study, with its base."""
        if self.base is None:
            return PRECISIONS
        return Axis(tuple(as_list(self.axis)), (arm_named(as_list(self.base)),), {})


def study_of(folder: str | Path, records: Iterable[dict]) -> Study:
    """Return what study.yaml says, or raise UserError; else what most records say, of which
    errors do no harm.
    """
    path = Path(folder) / "study.yaml"
    if path.is_file():
        return checked_study(yaml_in(path), str(path))
    found = Counter(json.dumps(record["study"]) for record in records if record.get("study"))
    for text, times in found.most_common(1):
        said = json.loads(text)
        with suppress(UserError, AttributeError):
            said["show"] = {
                key: value for key, value in said.get("show", {}).items() if can_show(key, value)
            }
            return checked_study(said if 2 * times > found.total() else {}, "a record")
    return Study("", "", {})


def checked_study(said: Any, where: str) -> Study:
    """Return the study of a mapping, see Study. Raise UserError at the first that is wrong."""
    show = said.get("show", {}) if isinstance(said, dict) else None
    if not isinstance(show, dict):
        raise UserError(
            f"{where} must map name, description and show to what they are; studies.yaml "
            "explains them."
        )
    texts = {key: said.get(key, "") for key in ("name", "description")}
    wrong = [key for key, text in texts.items() if not isinstance(text, str) or not are_usual(text)]
    wrong += [key for key, value in show.items() if not can_show(key, value)]
    compares = {key: said[key] for key in ("axis", "base") if said.get(key) is not None}
    wrong += [key for key, value in compares.items() if not usable(value)]
    if wrong:
        raise UserError(
            f"{where} has an unknown `{wrong[0]}` or a wrong value of it; studies.yaml "
            "explains the form."
        )
    study = Study(texts["name"], texts["description"], show, **compares)
    check_base(study, where)
    return study


def check_base(study: Study, where: str) -> None:
    """Raise UserError where an axis has no base, or a base lacks a value for a setting."""
    settings = as_list(study.axis)
    if study.base is None and settings != [PRECISION]:
        raise UserError(
            f"{where} has an `axis` without the `base` that its arms are compared with."
        )
    if study.base is not None and len(as_list(study.base)) != len(settings):
        raise UserError(f"{where} needs as many values of `base` as its `axis` has settings.")


def usable(value: Any) -> bool:
    """Return whether an axis or a base can be this value: it is usual, and no empty list."""
    return value != [] and are_usual(value)


def as_list(value: Any) -> list:
    """Return a list of values, of one value that alone."""
    return value if isinstance(value, list) else [value]


def can_show(key: str, value: Any) -> bool:
    """Return whether `show` may hold this value at this key."""
    if key == "steps":
        steps: list[Any] = value if isinstance(value, list) else [None]
        labelled = all(
            isinstance(step, dict) and isinstance(step.get("label"), str) for step in steps
        )
        return labelled and all(
            are_usual(word) for step in steps for word in (*step, *step.values())
        )
    return are_usual(value) if key in ("over", "with") else key in FLAGS and value is True


def are_usual(values: Any) -> bool:
    """Return whether a setting, or a list of them, is of numbers and texts that can stand in a
    page or a chart.
    """
    texts = [one for one in as_list(values) if not isinstance(one, int | float)]
    return all(
        isinstance(text, str) and PLAIN_TEXT.fullmatch(text) and printable(text) == text
        for text in texts
    )
