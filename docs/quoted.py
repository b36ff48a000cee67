"""Numbers that a page quotes from the CSV files of results, so that none of them can drift.

A page has the number in its sentence, as in "<!--gain-->1.58<!--/--> times", and says in a comment
what it is, a line for each:

    <!-- numbers
    amp = ratios where precision == 'amp_fp16' and base == 'tf32'
    gain: ratio of amp as .2f
    -->

`ROWS = FILE where CONDITION` names rows, and `NAME: VALUE of ROWS as FORM` a number of them. VALUE
and CONDITION are expressions over columns, as pandas' `eval` reads them, and FORM is a format of
Python. Where several rows are found, their span is quoted, as in "1.50 to 1.66". `as word`
writes a number up to twelve as a word, and `as count` does so with the number of different values.
FILE is a CSV file beside the page, or with a folder one below `outputs/`, without its ending. A row
of `ratios` has the settings of its trainings, too.
"""

import functools
import re
from pathlib import Path

import pandas as pd

from mixed_precision_study.report.words import span

QUOTED = re.compile(r"<!--(\w+)-->.*?<!--/-->")
SAID = re.compile(r"<!-- numbers\n(.*?)\n-->", re.DOTALL)
ROWS = re.compile(r"(\w+) = (\S+) where (.+)")
NUMBER = re.compile(r"(\w+): (.+) of (\w+) as (\S+)")
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS += ("eleven", "twelve")


@functools.cache
def quoted(page: Path, text: str, outputs: Path) -> dict[str, str]:
    """Return {name: text} of the numbers that a page says that it quotes.

    Raises ValueError where a line cannot be read, or finds nothing.
    """
    rows: dict[str, pd.DataFrame] = {}
    numbers = {}
    for line in "\n".join(SAID.findall(text)).splitlines():
        if read := ROWS.fullmatch(line):
            name, file, condition = read.groups()
            folder = outputs if "/" in file else page.parent
            table = table_of(folder / f"{file}.csv")
            rows[name] = table[evaluated(table, condition)]
        elif (read := NUMBER.fullmatch(line)) and read[3] in rows:
            found = evaluated(rows[read[3]], read[2]).dropna()
            if not len(found):
                raise ValueError(f"{page.parent.name}: there is no value for: {line}")
            numbers[read[1]] = number_of(found, read[4])
        else:
            raise ValueError(
                f"{page.parent.name}: a line is ROWS = FILE where CONDITION, or "
                f"NAME: VALUE of ROWS as FORM, not: {line}"
            )
    return numbers


def evaluated(table: pd.DataFrame, expression: str) -> pd.Series:
    """Return an expression over columns; pandas takes long where it is given hundreds of them."""
    named = table.columns.intersection(re.findall(r"\w+", expression))
    return table[named].eval(expression)


def number_of(found: pd.Series, form: str) -> str:
    """Return the text of some values in a form."""
    if form == "count":
        return in_words(found.nunique())
    if form == "word":
        return span([in_words(int(number)) for number in found])
    return span(found, f"{{:{form}}}")


def in_words(number: int) -> str:
    """Return a number as a word up to twelve."""
    return WORDS[number] if number < len(WORDS) else str(number)


@functools.cache
def table_of(path: Path) -> pd.DataFrame:
    """Return a CSV file; rows of ratios get the settings of a training that they compare."""
    table = pd.read_csv(path, low_memory=False)
    trainings = path.with_name("trainings.csv")
    if path.stem != "ratios" or not trainings.exists():
        return table
    settings = table_of(trainings).drop_duplicates("comparison").set_index("comparison")
    return table.join(settings[settings.columns.difference(table.columns)], on="comparison")


def uncovered(sentence: str) -> list[str]:
    """Return the numbers in a sentence that are not quoted; digits in names, as in ResNet-18, are
    none.
    """
    rest = re.sub(r"\b[A-Za-z][\w/-]*\d[\w/-]*", "", QUOTED.sub("", sentence))
    return re.findall(
        rf"\d+(?:[.,]\d+)*%?|\b(?:{'|'.join([*WORDS[1:], 'half', 'twice'])})\b", rest, re.I
    )
