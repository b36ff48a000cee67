"""Print where the seconds of the runs of a study went, as a table in Markdown. Equal runs (n) are
one row of medians.

    python benchmarks/run_seconds.py outputs/quick

The parts of a training come from its record. The whole is known of a process that trained one
precision, because it comes from the study's own clock (logs/batch.json). "start" is what comes
before the notebook's first cell, "end" what comes after its last. They need logs/batch.log and the
executed notebook. "rest" is in none of the parts: other cells, and start and end where they are not
known. A training that is not the first of its process has no start-up times.
"""

import json
import re
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from mixed_precision_study.runner.status import read_seconds  # noqa: E402
from mixed_precision_study.store.reading import read_records  # noqa: E402
from mixed_precision_study.store.record import is_explanation  # noqa: E402

STARTUP = ("import", "preflight", "data", "model", "warmup")
WITHIN = ("search", "compile")  # parts of the warm-up
# a line of logs/batch.log
BEGINS = re.compile(r"^([\d-]+ [\d:]+,\d+)  \S+  (\S+)  begins$", re.MULTILINE)


def start_and_end(
    folder: Path, run_id: str, whole: float | None, began: dict[str, datetime]
) -> dict[str, float]:
    """Return the seconds of a run before its notebook's first cell and after its last, {} where
    they are not known.
    """
    with suppress(OSError, ValueError, KeyError):
        notebook = json.loads((folder / f"{run_id}.ipynb").read_text(encoding="utf-8"))
        times = notebook["metadata"]["papermill"]
        start = (datetime.fromisoformat(times["start_time"]) - began[run_id]).total_seconds()
        if whole is not None and start >= 0:
            return {"start": start, "end": whole - start - times["duration"]}
    return {}


def begins_of(folder: Path) -> dict[str, datetime]:
    """Return {run_id: when the study last started it}."""
    with suppress(OSError):
        lines = BEGINS.findall((folder / "logs" / "batch.log").read_text(encoding="utf-8"))
        return {
            run_id: datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").astimezone()
            for when, run_id in lines
        }
    return {}


def seconds_of(
    record: dict, whole: float | None, outside: dict[str, float]
) -> dict[str, float | None]:
    """Return {part: seconds} of a run, None for what is not known.

    whole: what the study's clock says. outside: what start_and_end() says.
    """
    parts: dict[str, float | None] = {"start": outside.get("start")}
    parts |= {part: record.get(f"startup_{part}_seconds") for part in STARTUP}
    parts["training"] = sum(record["epoch_seconds"])
    for part in ("evaluation", "explanation"):
        parts[part] = record.get(f"{part}_seconds")
    parts["end"] = outside.get("end")
    known = sum(filter(None, parts.values()))
    inner = {part: record.get(f"{part}_seconds") for part in WITHIN}
    return {"whole": whole, **parts, "rest": None if whole is None else whole - known, **inner}


def name_of(record: dict) -> str:
    """Return the name of the row: what changes where the seconds of a run go."""
    settings = record["settings"]
    name = (
        f"{record['notebook']} {settings['model']} {settings.get('execution', 'eager')} "
        f"{record['precision']}"
    )
    if settings.get("compile_mode", "default") != "default":
        name += f" {settings['compile_mode']}"
    if settings.get("scaler", "pytorch") != "pytorch":
        name += f" {settings['scaler']} scaler"
    return name


def rows_of(folder: Path) -> list[dict]:
    """Return a row for each training of a folder that ended well, in the order in which they were
    made.

    Of a run that was made again only the last counts: the older record is kept in a folder beside
    it.
    """
    wholes = read_seconds(folder)
    began = begins_of(folder)
    ended = [
        one for one in read_records(folder)[0] if one["status"] == "ok" and not is_explanation(one)
    ]
    newest = {
        record["run_id"]: record
        for record in sorted(ended, key=lambda one: one["started_at"] or "")
    }
    rows = []
    for record in sorted(newest.values(), key=lambda one: one["started_at"] or ""):
        run_id = record["run_id"]
        outside = start_and_end(folder, run_id, wholes.get(run_id), began)
        rows.append({"run": name_of(record), **seconds_of(record, wholes.get(run_id), outside)})
    return rows


def medians(rows: list[dict]) -> list[dict]:
    """Return a row of medians, and their number n, for the rows of each name;

    None where no row knows a part.
    """
    named: dict[str, list[dict]] = {}
    for row in rows:
        named.setdefault(row["run"], []).append(row)
    found = []
    for name, same in named.items():
        known = {
            part: [row[part] for row in same if row[part] is not None]
            for part in same[0]
            if part != "run"
        }
        parts = {part: median(values) if values else None for part, values in known.items()}
        found.append({"run": name, "n": str(len(same)), **parts})
    return found


def table_of(rows: list[dict]) -> str:
    """Return the rows as a table in Markdown: seconds with one decimal."""
    if not rows:
        return "no run ended well"
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" + "|---:" * (len(rows[0]) - 1) + "|"]
    lines += ["| " + " | ".join(map(cell_of, row.values())) + " |" for row in rows]
    return "\n".join(lines)


def cell_of(value: str | float | None) -> str:
    """Return a text as it is, a number with one decimal, and "-" for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.1f}"


def main(words: list[str]) -> int:
    """Print the table of one folder and return the exit status."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        print(
            "run_seconds.py: give one folder of records, for example outputs/quick.",
            file=sys.stderr,
        )
        return 2
    print(table_of(medians(rows_of(Path(words[0])))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
