"""Section: the figures of every article, the runs that are comparable with them, and the article's claims."""

from collections import Counter

from ..report import Report
from ..section import Section
from ..theme import chart_style
from ..verdicts import said_once
from ..words import count, plain
from .charts import add_chart, chart_several_gpus, find_panels, tensor_cores_text
from .claims import judge_published, without_counterpart
from .matching import Published
from .table import notes_of, row_of_entry, rows_of_rest

TITLE = "Beside the published figures"
ABOUT = """The figures of published articles (`data/published_results.csv`) beside the runs that repeat them, and
what became of each claim. A run counts only if experiment, data set, model and batch size are the same,
it ran on a GPU, and its epochs are whole. Where an article had images of its own, only ratios are
compared. The grey bars are marked *published, other software*, because the articles leave much open.

| claim about | compared with | holds if |
|---|---|---|
| time | the ratio to fp32, by the outcome under *Verdicts* | the change has the same direction. No change (within \
5%) is confirmed by *the same within 5%* alone, and a speed-up is refuted by that or by its opposite. *Larger* or \
*smaller here*: by more than 1.5 times |
| memory | PyTorch's peak and the whole GPU, which must agree | the change has the same direction; within 3% \
counts as alike |
| quality | the metric after equally many epochs, at least half of the article's, over seeds | the change has the \
same direction; within 1 point of accuracy or 3% of another metric counts as alike. 10% for single steps |
| out of memory | runs within that GPU's memory, or what they took of this one | they do not fit either |
| largest batch | searches on the article's data set | the published ratio lies within their resolution |
| slow data loading | runs with worker processes | data loading limits them |

`amp_fp16` and `o2_fp16` stand in for each other where the published mode was not run."""


@chart_style()
def section(report: Report) -> Section:
    """Return charts, tables and claims of every article that runs here can be compared with, then the other rows."""
    section = Section(TITLE, ABOUT)
    published = judge_published(report)
    matched = sum(bool(row["comparable"]) for row in published.rows)
    names = ", ".join(map(plain, published.comparable)) or "none"
    section.say(f"{matched} of {count(len(published.rows), 'published row')} are comparable with runs here: {names}.")
    for study, claims in published.claims.items():
        if claims or study in published.comparable:
            show_article(section, published, study)
    chart_several_gpus(section, published)
    if rest := without_counterpart(published):
        section.say(f"### Published, nothing comparable here\n\n{count(len(rest), 'row')} of the published figures.")
        section.table(rows_of_rest(report, rest))
    return section


def show_article(section: Section, published: Published, study: str) -> None:
    """Add the charts, tables and claims of an article."""
    report = published.report
    claims = published.claims[study]
    rows = [row for row in published.rows if row["study"] == study]
    section.say(f"### {plain(study)}: {plain(rows[0]['title'])} ({plain(rows[0]['source'])}, {plain(rows[0]['year'])})")
    if panels := find_panels(published, published.comparable.get(study, {})):
        add_chart(section, report, "published", study, panels)
        entries = [row_of_entry(title, entry) for title, entries in panels.items() for entry in entries]
        section.table(said_once(entries))
        section.say(tensor_cores_text(published, study))
    if panels := find_panels(published, published.similar.get(study, {})):
        add_chart(section, report, "similar", study, panels)
    if similar := [row for row in rows if row["similar"]]:
        section.table(rows_of_rest(report, similar))
    if notes := notes_of(row for row in rows if row["comparable"] or row["judged"]):
        section.say(f"Notes on the published figures: {plain(notes)}.")
    outcomes = Counter(claim["outcome"].partition(",")[0] for claim in claims)
    said = ", ".join(f"{word} {number}" for word, number in outcomes.most_common())
    section.say(f"**Of {count(len(claims), 'claim')} of {plain(study)}: {said or 'none can be compared'}.**")
    if claims:
        section.table(claims)
