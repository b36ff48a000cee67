"""Reports for the tests: the executed summary, and the sections of made-up records."""

from notebook_outputs import outputs_of

from mixed_precision_study.report.section import Sentence, Table
from mixed_precision_study.report.sections import sections_of
from mixed_precision_study.report.tables import read_tables
from mixed_precision_study.store.record import flat_record, write_record


def shown(notebook, kind="text/plain"):
    """Return all that the notebook shows: what it prints, and what it displays as `kind`."""
    printed = ["".join(output.get("text", "")) for output in outputs_of(notebook)]
    return "\n".join(
        printed + ["".join(output.get("data", {}).get(kind, "")) for output in outputs_of(notebook)]
    )


def write_all(folder, *records):
    for record in records:
        write_record(record, folder)


def read_all(folder, *records, **show):
    """Write records and return their Tables; `show` is what the study shows."""
    write_all(folder, *records)
    tables = read_tables(folder)
    tables.show |= show
    return tables


def flat(record, path="made up"):
    """Return a record as it is read back from its file."""
    return {**flat_record(record), "path": path}


def parts_of(section, kind):
    return [part for part in section.parts if isinstance(part, kind)]


def said_in(section):
    """Return the title of a section and its sentences, one in a line."""
    return "\n".join(
        [section.title, section.about, *(part.text for part in parts_of(section, Sentence))]
    )


def rows_in(section):
    """Return the tables of a section, each a list of rows."""
    return [part.rows for part in parts_of(section, Table)]


def cells_of(page):
    """Return the rows of a page's table as {first cell: the other cells}."""
    rows = (line.strip("|").split("|") for line in page.splitlines())
    return {name: cells for name, *cells in rows}


def all_parts(tables):
    """Return the parts of all sections of a report, one after the other."""
    return [part for section in sections_of(tables) for part in section]


def failures_in(tables):
    """Return what the sections say that could not be drawn, after showing every part as a
    notebook does.
    """
    sections = list(sections_of(tables))
    for part in (part for section in sections for part in section):
        if hasattr(part, "_repr_mimebundle_"):
            part._repr_mimebundle_()
    return [
        line
        for section in sections
        for line in said_in(section).splitlines()
        if "could not be drawn" in line
    ]
