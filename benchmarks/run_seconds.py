"""Print where the seconds of each run of a study went, as a table in Markdown.

    python benchmarks/run_seconds.py outputs/quick

The parts come from the records, the whole from the study's own clock (logs/batch.json). What is in neither, such as the
start and the end of the kernel, is "rest". A run that is not the first of its kernel has no start-up times.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from mixed_precision_study.record import read_records  # noqa: E402
from mixed_precision_study.runner.estimates import read_seconds  # noqa: E402

START = ("import", "preflight", "data", "model", "warmup")
WITHIN = ("search", "compile")  # parts of the warm-up


def seconds_of(record: dict, whole: float | None) -> dict[str, float | None]:
    """Return {part: seconds} of a run, None for what is not known. `whole` is what the study's clock says."""
    parts: dict[str, float | None] = {part: record.get(f"startup_{part}_seconds") for part in START}
    parts["training"] = sum(record["epoch_seconds"])
    for part in ("evaluation", "explanation"):
        parts[part] = record.get(f"{part}_seconds")
    known = sum(filter(None, parts.values()))
    inner = {part: record.get(f"{part}_seconds") for part in WITHIN}
    return {"whole": whole, **parts, "rest": None if whole is None else whole - known, **inner}


def rows_of(records: Iterable[dict], wholes: dict[str, float]) -> list[dict]:
    """Return a row for each run that ended well, in the order in which they were made."""
    ended = sorted((one for one in records if one["status"] == "ok"), key=lambda one: one["started_at"] or "")
    rows = []
    for record in ended:
        name = f"{record['notebook']} {record['model']} {record.get('execution', 'eager')} {record['precision']}"
        rows.append({"run": name, **seconds_of(record, wholes.get(record["run_id"]))})
    return rows


def table_of(rows: list[dict]) -> str:
    """Return the rows as a table in Markdown: seconds with one decimal."""
    if not rows:
        return "no run ended well"
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" + "|---:" * (len(rows[0]) - 1) + "|"]
    for row in rows:
        cells = [
            value if isinstance(value, str) else "-" if value is None else f"{value:.1f}" for value in row.values()
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell_of(value: str | float | None) -> str:
    """Return a text as it is, a number with one decimal, and "-" for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.1f}"


def main(words: list[str]) -> int:
    """Print the table of one folder and return the exit status."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        print("run_seconds.py: give one folder of records, for example outputs/quick.", file=sys.stderr)
        return 2
    folder = Path(words[0])
    print(table_of(rows_of(read_records(folder)[0], read_seconds(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
