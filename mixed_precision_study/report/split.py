"""What each of two settings gains of what both gain, where a study has all four arms of them."""

from collections.abc import Iterator

import pandas as pd

from ..judge.split import split_of
from .section import File, Section, ratio_texts
from .tables import Tables, csv_of
from .words import arm_name

ABOUT = """Each setting is changed alone, and after the other one, because its gain may depend on
the order. The interaction is 1 where it does not. In brackets are 95% intervals over processes."""
PARTS = {  # code of a part: what the table calls it
    "first_alone": "{0} alone",
    "first_after": "{0} after {1}",
    "second_alone": "{1} alone",
    "second_after": "{1} after {0}",
    "both": "both",
    "interaction": "interaction",
}


def squares_of(tables: Tables) -> Iterator[tuple[list[str], list[str]]]:
    """Yield ([base, first setting changed, second, both], names of the two changes) of each arm
    that differs from its base in two settings.
    """
    base = tables.axis.bases[0].split(", ")
    for arm in tables.arms:
        both = arm.split(", ")
        places = [n for n, pair in enumerate(zip(base, both, strict=False)) if len({*pair}) == 2]
        if len(places) == 2:
            singles = [[*base[:n], both[n], *base[n + 1 :]] for n in places]
            names = [arm_name([tables.axis.settings[n]], both[n]) for n in places]
            yield [", ".join(one) for one in (base, *singles, both)], names


def splits_of(tables: Tables) -> pd.DataFrame:
    """Return a row for each part of split_of(), written as splits.csv: its numbers, and these keys.

    comparison, arm: those of ratios.csv, where the arm has both settings changed
    part, gain: which gain it is, and the same in words
    """
    rows = [
        {"comparison": number, "arm": corners[3], "part": part, "gain": PARTS[part].format(*names)}
        | found
        for number in tables.comparisons.index
        for corners, names in squares_of(tables)
        for part, found in split_of(*(tables.runs(number, arm) for arm in corners)).items()
    ]
    return pd.DataFrame(rows)


def split_section(tables: Tables) -> Section:
    """Return splits.csv, and the same as a table."""
    section = Section("Two settings, one after the other")
    parts = splits_of(tables)
    if len(parts) and not tables.on_cpu:
        section.parts.append(File("splits.csv", csv_of(parts)))
        parts = parts.join(tables.comparisons[["name", "task", "run"]], on="comparison")
        section.say(ABOUT)
        cells = {
            "model": parts["name"],
            "task": parts.task,
            "run": parts.run,
            "with": parts.gain,
            "times as fast": ratio_texts(parts),
            "n": parts.processes,
        }
        section.table(cells, "Both orders in numbers", ("task", "run"))
    return section
