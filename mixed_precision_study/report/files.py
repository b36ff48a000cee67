"""Section without text: the files trainings.csv and ratios.csv, which are written before any other section is drawn."""

from .section import File, Section
from .tables import Tables


def section(tables: Tables) -> Section:
    """Return the CSV files of the tables."""
    return Section(parts=[File(name, content) for name, content in tables.csv().items()])
