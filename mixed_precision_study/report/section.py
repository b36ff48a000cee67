"""What a section of the report returns: sentences, tables and charts, each of which a notebook can show."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
from matplotlib.figure import Figure

from .style import MEMORY_STYLES, PRECISIONS, RED
from .theme import chart_style
from .words import plain

NO_FORMULA = "mathjax_ignore tex2jax_ignore"  # classes of HTML: a dollar sign in a table begins no formula
ROWS_IN_SIGHT = 24  # a longer table can be folded


@dataclass
class Sentence:
    """A sentence in Markdown."""

    text: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/markdown": self.text, "text/plain": self.text}


@dataclass
class Table:
    """Rows as dicts, shown as text and never as HTML; a long table may be `folded` under a name."""

    rows: list[dict]
    folded: str = ""

    def frame(self) -> pd.DataFrame:
        """Return the rows as texts and numbers: whole numbers stay whole."""
        return pd.DataFrame(self.rows, dtype=object).where(lambda cells: cells.notna(), "-")

    def html(self) -> str:
        """Return the table as HTML."""
        with pd.option_context("display.max_colwidth", None):  # a reason is shown in full
            page = self.frame().to_html(index=False, border=0, classes=NO_FORMULA)
        page = re.sub("<(t[dh])>", r'<\1 style="text-align: left">', page)
        if self.folded and len(self.rows) > ROWS_IN_SIGHT:
            return f"<details><summary>{self.folded}: {len(self.rows)} rows</summary>{page}</details>"
        return page

    def _repr_mimebundle_(self, include=None, exclude=None):
        with pd.option_context("display.max_colwidth", None):
            return {"text/html": self.html(), "text/plain": self.frame().to_string(index=False)}


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
    """Return tints of the colours of all charts, 194 in all, as a palette of PIL: red, green, blue, red, ..."""
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
    parts: list[Sentence | Table | Chart | File] = field(default_factory=list)
    folded: bool = False

    def __iter__(self) -> Iterator[Sentence | Table | Chart | File]:
        if self.parts and self.title:
            yield Sentence(f"## {self.title}")
        if self.parts and self.about:
            yield Sentence(self.about)
        yield from self.parts

    def say(self, text: str) -> None:
        """Add a sentence in Markdown."""
        self.parts.append(Sentence(text))

    def table(self, rows: list[dict], folded: str = "") -> None:
        """Add a table."""
        self.parts.append(Table(rows, folded))

    def chart(self, figure: Figure, name: str, finding: str = "") -> None:
        """Add a chart, or a sentence where it is empty. The finding is its alternative text."""
        plt.close(figure)
        if figure.axes:
            self.parts.append(Chart(figure, name, finding))
        else:  # as where every run searched its largest batch: those have a chart of their own
            self.say(f"Nothing to draw as {name.replace('_', ' ')}: no run has a fixed batch size.")


def save(part: Sentence | Table | Chart | File, folder: str | Path) -> Sentence | None:
    """Write a chart or a file into a folder; return a sentence where that is not allowed."""
    if isinstance(part, Chart):
        name, content = f"{part.name}.png", part.png
    elif isinstance(part, File):
        name, content = part.name, part.content
    else:
        return None
    try:
        (Path(folder) / name).write_bytes(content)
    except OSError as error:
        return Sentence(f"{name} was not saved: {plain(error.strerror)}.")
    return None
