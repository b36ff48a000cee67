"""An axis: which settings tell arms apart, and which arm is compared with which."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..store.record import comparison_key

PRECISION = "precision"  # the setting that stands beside the others in a record
MAY_DIFFER = re.compile(r"identity\s(?!weights)")  # between the arms of other settings
SIMPLER = {  # {precision: those that have one thing less}
    "tf32": ("fp32",),
    "amp_fp16": ("tf32",),
    "amp_bf16": ("tf32",),
    "o2_fp16": ("amp_fp16",),
    "o3_fp16": ("amp_fp16",),
    "bf16_true": ("amp_bf16",),
    "fp8": ("amp_bf16",),
}


class Axis(NamedTuple):
    """What a study compares: the values of some settings, each of which is an arm.

    settings: their names; "precision" is one of them
    bases: the arms that others are compared with; the last one that was run is the fair one
    simpler: {arm: the arms that have one thing less}, so that one thing at a time is compared
    """

    settings: tuple[str, ...] = (PRECISION,)
    bases: tuple[str, ...] = ("fp32", "tf32")
    simpler: Mapping[str, tuple[str, ...]] = SIMPLER

    def arm_of(self, record: dict) -> str:
        """Return the arm of a run: the values of the settings of this axis as one text."""
        values = {PRECISION: record["precision"], **record["settings"]}
        return arm_named([values.get(name) for name in self.settings])

    def rest_of(self, record: dict) -> tuple:
        """Return what must be equal before two arms are compared, as (name, JSON) pairs.

        Other settings make another model, optimizer or batches of one's own, so there the
        hashes of these may differ, but not those of the weights that a training begins with.
        """
        key = dict(comparison_key(record)) | {PRECISION: json.dumps(record["precision"])}
        if self.settings != (PRECISION,):
            key = {name: key[name] for name in key if not MAY_DIFFER.match(name)}
        return tuple(item for item in key.items() if item[0] not in self.settings)

    def pairs(self, arms: list[str]) -> list[tuple[str, str]]:
        """Return [(arm, base)] in the order of arms, each with every base that comes before it,
        then with arms that have one setting less changed.
        """
        found = []
        for place, arm in enumerate(arms):
            found += [(arm, base) for base in self.bases if base in arms[:place]]
            found += [(arm, one) for one in arms if one not in self.bases and self.adds(arm, one)]
        return found

    def adds(self, arm: str, other: str) -> bool:
        """Return whether an arm changes one setting of the first base more than another does."""
        values = (one.split(", ") for one in (arm, other, self.bases[0]))
        parted = [one == usual for own, one, usual in zip(*values, strict=False) if own != one]
        return parted == [True]

    def simpler_arms(self, arm: str, known: Iterable[str]) -> list[str]:
        """Return the next simpler arms that are `known`; of one that is not, its own simpler
        ones.
        """
        near = self.simpler.get(arm, () if arm in self.bases else self.bases[:1])
        if found := [one for one in near if one in known]:
            return found
        return list(dict.fromkeys(far for one in near for far in self.simpler_arms(one, known)))


def grouped(items: Iterable, key: Callable) -> dict[Any, list]:
    """Return {key of an item: all items that have it}, as they come."""
    found: dict = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


PRECISIONS = Axis()  # what is compared where a study says nothing


def arm_named(values: Iterable) -> str:
    """Return the values of an arm as one text, each as one writes it in YAML; 1.0 is 1."""
    texts = []
    for value in values:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        texts.append(value if isinstance(value, str) else json.dumps(value))
    return ", ".join(texts)
