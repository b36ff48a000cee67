"""The sections of the report in the order in which they are read: modules with a function
`section(tables)`.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt

from ..parameters import error_line
from . import (
    articles,
    bars,
    energy_used,
    first_screen,
    growth,
    in_use,
    ladder,
    memory_used,
    numbers,
    provenance,
    quality,
    sure,
    why,
)
from .charts import chart_style
from .section import Chart, File, Section
from .tables import Tables
from .words import plain

SUBJECTS = {  # what a study shows: the section that opens its report, and the question that it answers
    "articles": (articles, "Do the published speed-ups recur?"),
    "steps": (ladder, "What does each step gain?"),
    "over": (growth, "How do time and memory grow?"),
    "inference": (in_use, "Is the trained model faster in use?"),
    "execution": (ladder, "What does each way of execution gain?"),
    "quality": (quality, "Does training in 16 bits end as well as in fp32?"),
}
SECTIONS = (
    bars,
    why,
    sure,
    ladder,
    growth,
    quality,
    memory_used,
    energy_used,
    in_use,
    articles,
    numbers,
    provenance,
)
EACH = (why, memory_used, energy_used)  # these draw each comparison


def drawn(module: ModuleType, tables: Tables, *more: Any) -> Section:
    """Return a section with its charts drawn.

    One that fails says so, because the others must not be lost with it.
    """
    try:
        with chart_style():
            section = module.section(tables, *more)
            for part in section.parts:
                if isinstance(part, Chart):
                    part.png  # noqa: B018  # drawn here, where an error costs this section alone
        return section
    except Exception as error:  # odd values in a record may raise anything
        plt.close("all")
        failed = Section(module.__name__.rpartition(".")[2].replace("_", " ").capitalize())
        failed.say(
            f"**This section could not be drawn**, so it is missing: {plain(error_line(error))}"
        )
        return failed


def sections_of(tables: Tables) -> Iterator[Section]:
    """Draw the sections of a report after its CSV files.

    A section without parts has nothing to show.
    """
    # before anything is drawn
    yield Section(parts=[File(name, content) for name, content in tables.csv().items()])
    asked = [SUBJECTS[name] for name in SUBJECTS if tables.show.get(name)]
    subject, question = asked[0] if asked else (None, "")
    yield drawn(first_screen, tables, drawn(subject, tables) if subject else None, question)
    few = len(tables.comparisons) <= numbers.MANY
    for module in SECTIONS:
        if module is not subject and (few or module not in EACH):
            yield drawn(module, tables)
