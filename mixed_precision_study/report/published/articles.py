"""Section: published ratios beside those here, and every claim of an article once."""

from collections import Counter

from ..report import Report
from ..section import Section
from ..verdicts import said_once
from ..words import count, plain
from .claims import judge_published, without_counterpart
from .dumbbells import draw_pairs, finding_of, pairs_of
from .matching import Published, own_entries, published_entries
from .ratios import FAILS, HOLDS, UNKNOWN
from .table import notes_of, row_of_entry, rows_of_rest

TITLE = "Beside the published figures"
ABOUT = """The ratios of published articles beside those of the runs that repeat them. A run counts if experiment,
data, model and batch size agree, it ran on a GPU, and its epochs are whole. The articles used other GPUs and older
software. `amp_fp16` and `o2_fp16` stand in for each other."""

OUTCOMES = (HOLDS, FAILS, UNKNOWN)


def outcome_on_model(outcomes: list[str]) -> str:
    """Return one outcome of a claim on a model: it fails where any run contradicts it."""
    told = {outcome.partition(",")[0] for outcome in outcomes}
    if FAILS in told:
        return FAILS
    return HOLDS if HOLDS in told else UNKNOWN


def row_of_claim(study: str, alike: list[dict]) -> dict:
    """Return a claim as one row, with the number of models on which it holds."""
    models: dict[str, list[str]] = {}
    for row in alike:
        models.setdefault(row["runs here"].partition(" ")[0].rstrip(","), []).append(row["outcome"])
    counts = Counter(map(outcome_on_model, models.values()))
    said = [f"{outcome} on {counts[outcome]}" for outcome in OUTCOMES if counts[outcome]]
    here = f"{alike[0]['runs here']}: {alike[0]['here']}"
    more = f", and {len(alike) - 1} more" if len(alike) > 1 else ""
    outcome = f"{', '.join(said)} of {count(len(models), 'model')}"
    if len(models) == 1:
        outcome = alike[0]["outcome"] if len(alike) == 1 else next(iter(counts))
    return {
        "article": study,
        "claim": alike[0]["claim"],
        "published": alike[0]["published"],
        "here": here + more,
        "outcome": outcome,
    }


def claims_of(published: Published) -> dict[tuple, list[dict]]:
    """Return {(study, claim, what is published): the runs here that it is judged by}."""
    claims: dict[tuple, list[dict]] = {}
    for study, rows in published.claims.items():
        for row in rows:
            claims.setdefault((study, row["claim"], row["published"]), []).append(row)
    return claims


def rows_of_claims(published: Published) -> list[dict]:
    """Return every claim of every article once."""
    return [row_of_claim(key[0], alike) for key, alike in claims_of(published).items()]


def claims_in_words(report: Report) -> str:
    """Return how many claims of the articles hold, as a sentence; a claim fails where any model contradicts it."""
    found = claims_of(judge_published(report)).values()
    counts = Counter(outcome_on_model([row["outcome"] for row in alike]) for alike in found)
    held, failed, unknown = (counts[outcome] for outcome in OUTCOMES)
    if not counts:
        return ""
    claims = count(sum(counts.values()), "published claim")
    return f"Of {claims} {held} hold here, {failed} do not, {unknown} cannot be told."


def section(report: Report) -> Section:
    """Return one chart of ratios, one table of claims, and the figures behind them, folded."""
    section = Section(TITLE, ABOUT)
    published = judge_published(report)
    claims = rows_of_claims(published)
    if not (claims or published.comparable):
        return section
    matched = sum(bool(row["comparable"]) for row in published.rows)
    names = ", ".join(map(plain, published.comparable)) or "none"
    section.say(f"{matched} of {count(len(published.rows), 'published row')} are comparable with runs here: {names}.")
    if pairs := pairs_of(published):
        section.chart(draw_pairs(pairs), "published_ratios", finding_of(pairs))
    if claims:
        section.table(claims, "Claims of the articles")
    if figures := rows_of_figures(published):
        section.table(said_once(figures), "Figures of the articles and of the runs here")
    if notes := notes_of(row for row in published.rows if row["comparable"] or row["judged"]):
        folded = f"<details><summary>Notes on the published figures</summary>\n\n{plain(notes)}\n\n</details>"
        section.say(folded)
    if rest := rows_of_rest(report, [*similar_rows(published), *without_counterpart(published)]):
        section.table(rest, "Published, nothing comparable here")
    return section


def similar_rows(published: Published) -> list[dict]:
    """Return the published rows whose images differ from those here."""
    return [row for row in published.rows if row["similar"]]


def rows_of_figures(published: Published) -> list[dict]:
    """Return the figures of the articles and of the comparable runs as rows of a table."""
    rows = []
    for matches in published.comparable.values():
        for numbers, found in matches.items():
            first = published.report.comparisons[numbers[0]]
            title = f"{first['notebook']}: {' · '.join(first['lines'][:2])}"
            entries = own_entries(published.report, numbers) + published_entries(found)
            rows += [row_of_entry(title, entry) for entry in entries]
    return rows
