"""Golden figures: the ratios, the comparisons of quality and the charts of the report on each
folder of records.

    python tests/golden/figures.py --write tests/golden/figures      record
    python tests/golden/figures.py --compare tests/golden/figures    make anew and name every
    difference

A difference that is meant is recorded anew, with its reason in CONTRIBUTING.md.
"""

import argparse
import json
import sys
from pathlib import Path
from unittest import mock

import matplotlib

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from conftest import results  # noqa: E402
from golden.series import differences, plain, series_of  # noqa: E402

from docs.outputs import readable  # noqa: E402
from mixed_precision_study.judge import arms, verdict  # noqa: E402
from mixed_precision_study.report import sections, settings, tables  # noqa: E402
from mixed_precision_study.report.charts import chart_style  # noqa: E402
from mixed_precision_study.report.section import Chart  # noqa: E402
from mixed_precision_study.store.record import comparison_key  # noqa: E402

INTERVAL = ("ratio", "low", "high", "low90", "high90", "p", "processes", "seeds")
# why a ratio is not judged, or is no recommendation
REASONS = ("untrained", "unlike", "one_order", "lost")
# recorded when outcomes were words
WORDS = {verdict.NOT_TRAINED: "did not train", verdict.TOO_SHORT: "too short to tell"}
WORDS |= {verdict.FEW_HOSTS: "range over hosts", verdict.ON_CPU: "not judged: CPU"}


def recorded_figures(name):
    """Return the figures of committed results, a folder or a zip of one."""
    with readable(results(name)) as folder:
        return figures_of(folder)


def figures_of(folder):
    """Return {"ratios", "quality", "charts"} of the report on a folder.

    Every ratio that it asks for is noted.
    """
    noted, between, charts = [], arms.ratio_between, {}

    def noting(own, base, *options):
        noted.append((own, base, between(own, base, *options)))
        return noted[-1][2]

    with mock.patch.object(arms, "ratio_between", noting), chart_style():
        report = tables.read_tables(str(folder))
        for section in (sections.first_screen, *sections.SECTIONS):
            for part in (part for part in section(report).parts if isinstance(part, Chart)):
                charts[part.name] = list(map(series_of, part.figures))
    values = {}
    for name, value in (
        item for record in report.trainings.record for item in comparison_key(record)
    ):
        values.setdefault(name, set()).add(value)
    several = sorted(name for name, found in values.items() if len(found) > 1)
    names = dict.fromkeys(
        ("notebook", "model", "dataset_used", "batch_size", "execution", *several)
    )
    standing = {(row.ratio, row.p) for row in report.ratios.itertuples() if row.stands}
    ratios = {}
    # the first of a key is that of the table
    for own, base, one in (each for each in noted if each[2]):
        outcome = verdict.ON_CPU if report.on_cpu else verdict.judge(one)
        row = {name: one[name] for name in INTERVAL} | {"outcome": in_words(outcome)}
        row["reasons"] = [name for name in REASONS if one[name]]
        row["stands"] = (one["ratio"], one["p"]) in standing
        ratios.setdefault(key_of(own, base, names), row)
    return plain({"ratios": ratios, "quality": dict(quality_of(report, names)), "charts": charts})


def in_words(outcome):
    """Return an outcome as the recorded figures hold it."""
    return WORDS.get(outcome, outcome.replace("_", " "))


def key_of(own, base, names):
    """Return the key of two lists of runs: their settings, "own / base" where they differ, and
    their precisions.
    """
    sides = [dict(comparison_key(runs[0])) for runs in (own, base)]
    pairs = {name: dict.fromkeys(side[name] for side in sides if name in side) for name in names}
    settings = [
        f"{name} {' / '.join(pair)}".replace('"', "") for name, pair in pairs.items() if pair
    ]
    return f"{', '.join(settings)}: {own[0]['precision']} over {base[0]['precision']}"


def quality_of(report, names):
    """Yield each last metric beside that of fp32, and each training loss beside that of the next
    simpler mode.
    """
    for row in report.quality.to_dict("records"):
        sides = [report.runs(row["comparison"], row[side], ok=False) for side in ("arm", "base")]
        found = {name: row[name] for name in (*tables.QUALITY, "metric")}
        yield key_of(*sides, names), found | {"outcome": in_words(row["outcome"])}
    for family in settings.families_of(report):
        for row in settings.pairs_of(report, family).dropna(subset="above").itertuples():
            sides = [report.runs(row.loss_comparison, name) for name in (row.precision, row.base)]
            found = {
                "difference": row.above,
                "margin": settings.LOSS_BAR,
                "outcome": row.loss_outcome,
            }
            yield f"training loss, {key_of(*sides, names)}", found


def compared(old, new, name):
    """Return a line for each difference of the figures of a folder."""
    return [
        "{}: {!s:.200} became {!s:.200}".format(*found) for found in differences(old, new, name)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument(
        "folders", nargs="*", help="names of committed results; by default all that are recorded"
    )
    args = parser.parse_args()
    folder = args.write or args.compare
    paths = [folder / f"{name}.json" for name in args.folders] or sorted(folder.glob("*.json"))
    found = []
    for path in paths:
        new = recorded_figures(path.stem)
        if args.write:  # with lines, so that a change can be read
            text = json.dumps(new, sort_keys=True, separators=(",", ":"))
            path.write_text(text.replace("},", "},\n") + "\n", encoding="utf-8")
        found += compared(json.loads(path.read_text(encoding="utf-8")), new, path.stem)
    if args.write:
        version = ".".join(matplotlib.__version__.split(".")[:2])
        (folder / "matplotlib.txt").write_text(version + "\n", encoding="utf-8")
    print(
        "\n".join(found)
        or f"{len(paths)} folders" + (" written" if args.write else ", no difference")
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
