"""What a section of the report returns: sentences, tables and charts, each of which a notebook can show."""

import io
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image

from .style import PARTS, PRECISIONS, RED
from .theme import chart_style
from .words import plain

NO_FORMULA = "mathjax_ignore tex2jax_ignore"  # a dollar sign in a table begins none


@dataclass
class Sentence:
    """A sentence in Markdown."""

    text: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/markdown": self.text, "text/plain": self.text}


@dataclass
class Table:
    """Rows as dicts, shown as text and never as HTML; a long table may be `folded` under a name."""

    rows: list
    folded: str = ""

    def frame(self):
        """Return the rows as texts and numbers: whole numbers stay whole."""
        return pd.DataFrame(self.rows, dtype=object).where(lambda cells: cells.notna(), "-")

    def html(self):
        """Return the table as HTML."""
        with pd.option_context("display.max_colwidth", None):  # a reason is shown in full
            page = self.frame().to_html(index=False, border=0, classes=NO_FORMULA)
        page = re.sub("<(t[dh])>", r'<\1 style="text-align: left">', page)
        if self.folded and self.rows[24:]:
            return f"<details><summary>{self.folded}: {len(self.rows)} rows</summary>{page}</details>"
        return page

    def _repr_mimebundle_(self, include=None, exclude=None):
        with pd.option_context("display.max_colwidth", None):
            return {"text/html": self.html(), "text/plain": self.frame().to_string(index=False)}


@dataclass
class Chart:
    """A figure of Matplotlib and the name of its file."""

    figure: object
    name: str

    @property
    def alt(self):
        return f"Chart: {self.name.replace('_', ' ')}"

    @cached_property
    def png(self):
        """The figure as a PNG; tints of its own colours alone keep the file small."""
        picture, small, palette = io.BytesIO(), io.BytesIO(), PIL.Image.new("P", (1, 1))
        with chart_style():
            self.figure.savefig(picture, format="png", dpi=110)
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


def palette_of_charts():
    """Return the tints of the colours of all charts, as a palette of PIL."""
    steps = (0, *range(4, 25))  # none too near to white, which must stay white
    colours = [(colour, steps) for colour in (RED, *(style[0] for style in PRECISIONS.values()))]
    colours += [(colour, (8, 12, 16, 20, 24)) for colour, _ in PARTS]  # 194 tints; a palette holds 256
    colours = [(bytes.fromhex(colour[1:]), steps) for colour, steps in colours]
    tints = [[255 - (255 - part) * step // 24 for part in colour] for colour, steps in colours for step in steps]
    return [part for tint in tints for part in tint]


@dataclass
class Section:
    """A section of the report: its parts in the order in which they are read."""

    parts: list = field(default_factory=list)

    def __iter__(self):
        return iter(self.parts)

    def say(self, text):
        """Add a sentence in Markdown."""
        self.parts.append(Sentence(text))

    def table(self, rows, folded=""):
        """Add a table."""
        self.parts.append(Table(rows, folded))

    def chart(self, figure, name):
        """Add a chart; one without axes is said to be empty."""
        plt.close(figure)
        if figure.axes:
            self.parts.append(Chart(figure, name))
        else:  # as where every run searched its largest batch: those have a chart of their own
            self.say(f"Nothing to draw as {name.replace('_', ' ')}: no runs at a batch size that was asked for.")

    @property
    def sentences(self):
        return [part.text for part in self.parts if isinstance(part, Sentence)]

    @property
    def tables(self):
        return [part.rows for part in self.parts if isinstance(part, Table)]

    @property
    def charts(self):
        return {part.name: part.figure for part in self.parts if isinstance(part, Chart)}


def save(part, folder):
    """Write a chart or a file into a folder; return None, or a sentence where that is not allowed."""
    files = {Chart: lambda: (f"{part.name}.png", part.png), File: lambda: (part.name, part.content)}
    if type(part) not in files:
        return None
    name, content = files[type(part)]()
    try:
        (Path(folder) / name).write_bytes(content)
    except OSError as error:
        return Sentence(f"{name} was not saved: {plain(error.strerror)}.")
    return None
