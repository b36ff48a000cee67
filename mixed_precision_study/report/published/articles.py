"""Section: every article with its figures beside the runs, and its claims."""

from collections import Counter

from ..section import Section
from ..theme import chart_style
from ..verdicts import said_once
from ..words import count, plain
from .charts import chart_beside, chart_machines, panels_apart, panels_beside, tensor_cores_text
from .claims import judge_published, without_counterpart
from .table import notes_of, row_beside, rows_of_rest


@chart_style()
def section(report):
    """Return, for every article that runs here tell something of, its charts, tables and claims; then the rest."""
    section, published = Section(), judge_published(report)
    shown_rows = sum(bool(row["beside"]) for row in published.rows)
    text = f"{shown_rows} of {count(len(published.rows), 'published row')} can be set beside runs of this folder"
    names = ", ".join(map(plain, published.beside))
    section.say(f"{text}: {names}." if names else f"{text}: no run is comparable with a published one.")
    beside, apart = panels_beside(published), panels_apart(published)
    for study in (study for study in published.claims if study in published.beside or published.claims[study]):
        show_article(section, published, study, beside.get(study), apart.get(study))
    chart_machines(section, published)
    if left := without_counterpart(published):
        section.say(f"### Published, nothing comparable here\n\n{count(len(left), 'row')} of the published figures.")
        section.table(rows_of_rest(report, left))
    return section


def show_article(section, published, study, parts, parts_apart):
    """Add the charts, tables and claims of an article."""
    rows, claims = [row for row in published.rows if row["study"] == study], published.claims[study]
    section.say(f"### {plain(study)}: {plain(rows[0]['title'])} ({plain(rows[0]['source'])}, {plain(rows[0]['year'])})")
    if parts:
        chart_beside(section, published.report, "published", study, f"{study}: published beside the runs", parts)
        tables = [(title, *own, *theirs) for title, (_, own, theirs) in parts.items()]
        section.table(said_once([row_beside(title, one) for title, *entries in tables for one in entries]))
        section.say(tensor_cores_text(published, study))
    if parts_apart:
        heading = f"{study}: published (own images, below) beside the runs"
        chart_beside(section, published.report, "similar", study, heading, parts_apart, ("speed", "epochs per hour"))
    if rows_alike := [row for row in rows if row["similar"]]:
        section.table(rows_of_rest(published.report, rows_alike))
    if notes := notes_of(row for row in rows if row["beside"] or row.get("told")):
        section.say(f"On the published figures: {plain(notes)}.")
    outcomes = Counter(claim["outcome"].partition(",")[0] for claim in claims)
    said = ", ".join(f"{word} {number}" for word, number in outcomes.most_common())
    section.say(f"**Of {count(sum(outcomes.values()), 'claim')} of {plain(study)}: {said or 'none can be compared'}.**")
    if claims:
        section.table(claims)
