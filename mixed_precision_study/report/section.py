"""What a section of the report returns: sentences, tables, cards and charts, each of which a
notebook can show.

The page (report/template) is made of the same outputs. What it shows in its own way, such as charts
as SVG, stands in the metadata of an output, which notebooks ignore: GitHub would prefer an SVG to
the PNG, and shows it on any ground.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from ..store.files import written_whole
from .charts import DOTS, PIXELS, drawing_of, picture_of
from .files import of_a_report, template
from .words import plain, short, span

NUMBER_LETTERS = 12  # of a cell that is a number with its unit
ROWS_IN_SIGHT = 6  # a longer table can be folded


@dataclass
class Sentence:
    """A sentence in Markdown."""

    text: str

    def _repr_mimebundle_(self, **_):
        return {"text/markdown": self.text, "text/plain": self.text}


@dataclass
class Heading:
    """The title of the report (level 1) or of a section. The page begins a part with the latter."""

    title: str  # as text: nothing in it takes effect
    folded: bool = False
    level: int = 2
    link: str = ""  # word or two in the bar of the page; "": the title, or none where it is folded
    above: str = ""  # line above the title of the report, such as card and date

    def _repr_mimebundle_(self, **_):
        name = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        link = self.link or ("" if self.folded else self.title)
        heading = vars(self) | {"name": name, "link": link}
        if self.level == 1:  # as HTML: of Markdown the text would become an anchor, too
            page = template("title.html").render(vars(self))
            return {"text/html": page, "text/plain": self.title}, {"report": heading}
        text = f"## {plain(self.title)}"
        return {"text/markdown": text, "text/plain": text}, {"section": heading}


@dataclass
class Table:
    """Rows as dicts, shown as text and never as HTML.

    folded: a name under which a long table is folded.
    caption: what holds for all rows, such as the columns that are constant.
    links: an address for each row, which its first cell links to; relative, or "" for none.
    sortable: a click on a heading sorts the page's table, as numbers where a cell begins with one.
    """

    rows: list[dict]
    folded: str = ""
    caption: str = ""
    links: list[str] | None = None
    sortable: bool = False

    def frame(self) -> DataFrame:
        """Return the rows as texts and numbers: whole numbers stay whole."""
        return DataFrame(self.rows, dtype=object).where(lambda cells: cells.notna(), "-")

    def html(self) -> str:
        """Return the table as HTML. Columns that hold numbers are aligned to the right."""
        frame = self.frame()
        return template("table.html").render(
            vars(self) | {"folded": self.folded if len(frame) > ROWS_IN_SIGHT else ""},
            heads=list(frame),
            numeric=[is_numeric(frame[column]) for column in frame],
            cells=frame.to_numpy(),
        )

    def _repr_mimebundle_(self, **_):
        with pd.option_context("display.max_colwidth", None):
            return {"text/html": self.html(), "text/plain": self.frame().to_string(index=False)}


def is_numeric(column: Iterable[object]) -> bool:
    """Return whether the cells of a column are numbers, with a unit perhaps.

    Some may be empty or a dash.
    """
    texts = {str(value).strip() for value in column} - {"", "-"}
    return bool(texts) and all(
        re.match(r"[-+~\u2212]?\d", text) and len(text) <= NUMBER_LETTERS for text in texts
    )


def texts(column: Iterable, form: str = "") -> list[str | None]:
    """Return numbers as the cells of a column, in a form or with three significant digits; None
    where one is unknown.
    """
    write = form.format if form else short
    return [None if pd.isna(value) else write(value).replace("-", "−") for value in column]


def spans(values: Series, names: Series, form: str = "{}", unit: str = "") -> str:
    """Return "eager 1 to 2%, CUDA graph 3%": the span of the values of each name, in order."""
    parts = values.groupby(names, sort=False)
    return ", ".join(f"{name} {span(list(part), form)}{unit}" for name, part in parts)


def ratio_texts(rows: DataFrame) -> list[str | None]:
    """Return "1.52 (1.50–1.54)" for each row, "1.52" where there is no interval, None where there
    is no ratio.
    """
    found = rows[["ratio", "low", "high"]].astype(float)
    limits = [" ({:.2f}–{:.2f})".format(*one) for one in found[["low", "high"]].to_numpy()]
    ends = Series(limits, rows.index).where(found.low.notna(), "")
    return list(found.ratio.map("{:.2f}".format).add(ends).where(found.ratio.notna(), None))


@dataclass
class Cards:
    """Big numbers for each model: dicts with texts `name`, `task`, `against` and `lines`, `numbers`
    by arm, and the arms whose number is `strong`.
    """

    cards: list[dict]

    def _repr_mimebundle_(self, **_):
        texts = []
        for card in self.cards:
            said = ", ".join(f"{arm} {number}" for arm, number in card["numbers"].items())
            texts.append(
                f"{card['name']}, {card['task']}: {said} {card['against']}; "
                f"{'; '.join(card['lines'])}"
            )
        page = template("cards.html").render(cards=self.cards)
        return {"text/html": page, "text/plain": "\n".join(texts)}


@dataclass
class Chart:
    """Figures of Matplotlib that stand beside each other where there is room, and the name of
    their file.
    """

    figures: list[Figure]
    name: str
    finding: str  # what the picture shows, in a sentence, as its alternative text

    @cached_property
    def png(self) -> bytes:
        """The figures as one PNG on white."""
        return picture_of(self.figures)

    def _repr_mimebundle_(self, **_):
        drawings = [
            drawing_of(one, f"{self.name}{place}") for place, one in enumerate(self.figures)
        ]
        widths = [round(one.get_figwidth() * PIXELS) for one in self.figures]
        chart = {"drawings": drawings, "widths": widths}
        # as PNG has it
        shown = {
            "alt": self.finding,
            "width": int.from_bytes(self.png[16:20], "big") * PIXELS // DOTS,
        }
        return {"image/png": self.png, "text/plain": self.finding}, {
            "image/png": shown,
            "chart": chart,
        }


@dataclass
class File:
    """A file that `save` writes, and that is not shown."""

    name: str
    content: bytes

    def _ipython_display_(self):
        """Show nothing."""


Part = Heading | Sentence | Table | Cards | Chart | File


@dataclass
class Section:
    """A section of the report: a fixed title, what was found, what it is about, and its parts as
    they are read.

    Empty ones are absent.
    """

    title: str = ""
    finding: str = ""  # a sentence as text, without its full stop
    about: str = ""  # Markdown
    parts: list[Part] = field(default_factory=list)
    folded: bool = False  # the page shows the title alone until it is opened
    link: str = ""  # see Heading

    def __iter__(self) -> Iterator[Part]:
        shown = any(not isinstance(part, File) for part in self.parts)
        if shown and self.title:
            yield Heading(self.title, self.folded, link=self.link)
        if shown and self.finding:
            yield Sentence(f"**{plain(self.finding)}.**")
        if shown and self.about:
            yield Sentence(self.about)
        yield from self.parts

    def say(self, text: str) -> None:
        """Add a sentence in Markdown."""
        self.parts.append(Sentence(text))

    def table(
        self, columns: Any, folded: str = "", common: Iterable[str] = (), **options: Any
    ) -> None:
        """Add a table of what pandas makes a frame of, with `options` of Table. Gaps are None.

        A column of gaps is left out, and one of `common` with one value stands in its caption.
        """
        frame = DataFrame(columns, dtype=object).dropna(axis=1, how="all")
        same = [
            name for name in common if name in frame and frame[name].nunique() == 1 < len(frame)
        ]
        if same:
            options["caption"] = f"All rows: {' · '.join(frame[same].iloc[0])}"
        frame = frame.drop(columns=same)
        self.parts.append(
            Table(frame.where(frame.notna(), "-").to_dict("records"), folded, **options)
        )

    def chart(self, figures: list[Figure], name: str, finding: str) -> None:
        """Add a chart of figures, if there are any. The finding is its alternative text."""
        for figure in figures:
            plt.close(figure)
        if figures:
            self.parts.append(Chart(figures, name, finding))


def save(part: Part, folder: str | Path) -> Sentence | None:
    """Write a chart or a file into a folder; return a sentence where that is not allowed."""
    if isinstance(part, Chart):
        name = f"{part.name}.png"
        content = part.png
    elif isinstance(part, File):
        name = part.name
        content = part.content
    else:
        return None
    try:
        if not of_a_report(Path(folder) / name):
            return Sentence(
                f"{name} was not saved, because a file of that name lies there already."
            )
        with written_whole(Path(folder) / name) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        return Sentence(f"{name} was not saved: {plain(error.strerror)}.")
    return None
