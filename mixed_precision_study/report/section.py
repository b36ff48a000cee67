"""What a section of the report returns: sentences, tables and charts, each of which a notebook can show."""

import html
import io
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
from matplotlib.figure import Figure

from ..errors import printable
from ..files import written_whole
from .style import MEMORY_STYLES, PRECISIONS, RED, chart_style
from .words import plain

NO_FORMULA = "mathjax_ignore tex2jax_ignore"  # classes of HTML: a dollar sign in a table begins no formula
NUMBER_LETTERS = 12  # a longer text is no number with its unit
ROWS_IN_SIGHT = 6  # a longer table can be folded


@dataclass
class Sentence:
    """A sentence in Markdown."""

    text: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/markdown": self.text, "text/plain": self.text}


@dataclass
class Heading:
    """The title of the report (level 1) or of a section. The page (report/template) begins a part with the latter."""

    title: str  # as text: nothing in it takes effect
    folded: bool = False
    level: int = 2

    def _repr_mimebundle_(self, include=None, exclude=None):
        name = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        heading = {"name": name, "title": self.title, "folded": self.folded}
        if self.level == 1:  # as HTML: of Markdown the text would become an anchor, too
            return {"text/html": f"<h1>{html.escape(self.title)}</h1>", "text/plain": self.title}, {"report": heading}
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

    def frame(self) -> pd.DataFrame:
        """Return the rows as texts and numbers: whole numbers stay whole."""
        return pd.DataFrame(self.rows, dtype=object).where(lambda cells: cells.notna(), "-")

    def html(self) -> str:
        """Return the table as HTML. Columns that hold numbers are aligned to the right."""
        frame = self.frame()
        numeric = [column for column in frame if is_numeric(frame[column])]
        head = "".join(cell("th", column, column in numeric, ' scope="col"') for column in frame)
        lines = []
        for index, row in enumerate(frame.itertuples(index=False, name=None)):
            link = self.links[index] if self.links else ""
            cells = [cell("td", value, name in numeric) for name, value in zip(frame, row, strict=True)]
            if link:
                cells[0] = cell("td", row[0], frame.columns[0] in numeric, href=link)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        kinds = f"{NO_FORMULA} sortable" if self.sortable else NO_FORMULA
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
        page = f'<figure class="table"><table class="{kinds}">{caption}{body}</table></figure>'
        if self.folded and len(self.rows) > ROWS_IN_SIGHT:
            name = html.escape(self.folded)
            return f"<details><summary>{name}: {len(self.rows)} rows</summary>{page}</details>"
        return page

    def _repr_mimebundle_(self, include=None, exclude=None):
        with pd.option_context("display.max_colwidth", None):
            return {"text/html": self.html(), "text/plain": self.frame().to_string(index=False)}


def is_numeric(column: Iterable[object]) -> bool:
    """Return whether the cells of a column are numbers, with a unit perhaps. Some may be empty or a dash."""
    texts = {str(value).strip() for value in column} - {"", "-"}
    return bool(texts) and all(re.match(r"[-+\u2212]?\d", text) and len(text) <= NUMBER_LETTERS for text in texts)


def cell(tag: str, value: object, numeric: bool, more: str = "", href: str = "") -> str:
    """Return a cell of a table as HTML, with its text escaped."""
    kind = ' class="number"' if numeric else ""
    text = html.escape(printable(str(value)))
    if href:
        text = f'<a href="{html.escape(urllib.parse.quote(href))}">{text}</a>'
    return f"<{tag}{kind}{more}>{text}</{tag}>"


@dataclass
class Chart:
    """A figure of Matplotlib and the name of its file."""

    figure: Figure
    name: str
    finding: str = ""  # what the picture shows, in a sentence

    @property
    def alt(self) -> str:
        """The alternative text of the picture."""
        return self.finding or f"Chart: {self.name.replace('_', ' ')}"

    @cached_property
    def png(self) -> bytes:
        """The figure as a PNG. A palette with tints of its colours keeps the file small."""
        picture, small = io.BytesIO(), io.BytesIO()
        with chart_style():
            self.figure.savefig(picture, format="png", dpi=110)
        palette = PIL.Image.new("P", (1, 1))
        palette.putpalette(palette_of_charts())
        image = PIL.Image.open(picture).convert("RGB").quantize(palette=palette, dither=PIL.Image.Dither.NONE)
        image.save(small, format="png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": self.png, "text/plain": self.alt}, {"image/png": {"alt": self.alt}}


@dataclass
class File:
    """A file that `save` writes, and that is not shown."""

    name: str
    content: bytes

    def _ipython_display_(self):
        """Show nothing."""


def palette_of_charts() -> list[int]:
    """Return tints of the colours of all charts as a palette of PIL: red, green, blue, red, ..."""
    many = (0, *range(4, 25))  # in 24ths; none too near to white, which must stay white
    few = (8, 12, 16, 20, 24)
    colours = [(colour, many) for colour in (RED, *(style.colour for style in PRECISIONS.values()))]
    colours += [(colour, few) for colour, _ in MEMORY_STYLES.values()]
    palette = []
    for colour, steps in colours:
        for step in steps:
            palette += [255 - (255 - part) * step // 24 for part in bytes.fromhex(colour[1:])]
    return palette


@dataclass
class Section:
    """A section of the report: its title, what it is about, and its parts in the order in which they are read.

    A section without parts is absent: neither its title nor what it is about is shown.
    """

    title: str = ""
    about: str = ""  # Markdown
    parts: list[Heading | Sentence | Table | Chart | File] = field(default_factory=list)
    folded: bool = False  # the page shows the title alone until it is opened

    def __iter__(self) -> Iterator[Heading | Sentence | Table | Chart | File]:
        if self.parts and self.title:
            yield Heading(self.title, self.folded)
        if self.parts and self.about:
            yield Sentence(self.about)
        yield from self.parts

    def say(self, text: str) -> None:
        """Add a sentence in Markdown."""
        self.parts.append(Sentence(text))

    def table(self, rows: list[dict], folded: str = "", **options: Any) -> None:
        """Add a table; `options` are those of Table."""
        self.parts.append(Table(rows, folded, **options))

    def chart(self, figure: Figure, name: str, finding: str) -> None:
        """Add a chart, or a sentence where it is empty. The finding is its alternative text."""
        plt.close(figure)
        if figure.axes:
            self.parts.append(Chart(figure, name, finding))
        else:  # as where every run searched its largest batch: those have a chart of their own
            self.say(f"Nothing to draw as {name.replace('_', ' ')}: no run has a fixed batch size.")


def save(part: Heading | Sentence | Table | Chart | File, folder: str | Path) -> Sentence | None:
    """Write a chart or a file into a folder; return a sentence where that is not allowed."""
    if isinstance(part, Chart):
        name, content = f"{part.name}.png", part.png
    elif isinstance(part, File):
        name, content = part.name, part.content
    else:
        return None
    try:
        with written_whole(Path(folder) / name) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        return Sentence(f"{name} was not saved: {plain(error.strerror)}.")
    return None
