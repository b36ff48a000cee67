"""Section: what the numbers rest on: runs that failed, records that were left out, hardware,
software and method.
"""

from textwrap import shorten

import pandas as pd

from ..store.reading import NO_RECORD
from .names import ORDER, precision_name
from .section import Section
from .tables import Tables, device_name, said_of_found
from .words import count, plain

ENVIRONMENT = {
    "GPU": "gpu_name",
    "device memory (MiB)": "device_total_mib",
    "power limit (W)": "power_watts_limit",
    "driver": "driver_version",
    "CUDA": "cuda_version",
    "cuDNN": "cudnn_version",
    "PyTorch": "torch_version",
    "timm": "timm_version",
    "Python": "python_version",
    "host": "host_platform",
    "host CPU": "host_cpu",
    "host cores": "host_cores",
    "host (hash)": "host_id",
    "package": "package_version",
    "commit of the suite": "commit",
}
METHOD = """Every repeat starts a fresh process, because two identical eager runs can differ by up to 1.4 times while
the epochs within one process hardly differ. A ratio compares runs of one card and one seed, by the total time of
their epochs; its interval is Student's over the logarithms of the processes' ratios. *Faster* and *slower* need an
interval that excludes 1 and a difference of 2%; *the same within 5%* needs a 90% interval inside 0.95 to 1.05; all
else is inconclusive, which does not mean the same. No ratio is judged of runs that did not train, that heat or
hardware slowed on one side, or that lasted less than two seconds. Quality compares equal seeds with a margin that was
fixed before any run: 0.2 points of accuracy, 2% of perplexity, 0.02 of the mean absolute error; an outcome takes five
seeds."""
RUN_COLUMNS = ["precision", "gpu_uuid", "finished_at"]
SWITCHES = [*(f"fp32_precision_{part}" for part in ("matmul", "conv", "rnn")), "autocast_dtype"]
FILES_NAMED = 3  # files that are no records; of more their number is given


def section(tables: Tables) -> Section:
    """Return what ended badly, what was left out, the hardware and the method, folded."""
    section = Section("Method, hardware and records", folded=True, link="Method")
    section.say(plain(" ".join(filter(None, (tables.description, said_of_found(tables))))))
    rows = tables.trainings
    failed = rows[rows.status != "ok"]
    if len(failed):
        titles = tables.comparisons.title
        shown = [
            {
                "comparison": titles.get(one.comparison, "-"),
                "precision": precision_name(one.precision),
                "seed": one.seed,
                "status": one.status,
                "reason": shorten(one.reason or "-", 140, placeholder="…"),
            }
            for one in failed.itertuples()
        ]
        section.say(
            f"{count(len(failed), 'run')} of {len(rows)} did not end well, for these reasons:"
        )
        section.table(shown, "Runs that did not end well")
    left_out = [
        {"left out": path, "why": reason} for path, reason in tables.left_out if reason != NO_RECORD
    ]
    if others := [path for path, reason in tables.left_out if reason == NO_RECORD]:
        more = f" and {len(others) - FILES_NAMED} more" if len(others) > FILES_NAMED else ""
        left_out.append({"left out": ", ".join(others[:FILES_NAMED]) + more, "why": NO_RECORD})
    if left_out:
        section.table(left_out, "Records that were left out")
    if tables.other_code:
        section.say(
            f"{count(len(tables.other_code), 'record')} of {len(rows)} are of another "
            "state of their notebook than its"
            " newest. Those that run_all.py had set aside are left out, the others are used."
        )
    records = pd.DataFrame(
        list(rows.record), columns=[*RUN_COLUMNS, *ENVIRONMENT.values(), *SWITCHES]
    ).assign(device=rows.record.map(device_name).values)
    columns = {name: environment_of(found) for name, found in records.groupby("device")}
    titles = dict.fromkeys(title for column in columns.values() for title in column)
    section.table(
        [
            {"": title} | {name: one.get(title, "-") for name, one in columns.items()}
            for title in titles
        ]
    )
    for name, column in columns.items():
        differing = ", ".join(title for title, text in column.items() if " | " in text)
        if differing:
            section.say(
                f"Caution: the runs on {plain(name)} differ in {differing}; ratios.csv "
                "says which ratios do."
            )
    section.say(METHOD)
    return section


def environment_of(records: pd.DataFrame) -> dict[str, str]:
    """Return {title: text} of hardware and software; several values are set side by side."""
    column = {"runs": str(len(records)), "cards": str(records.gpu_uuid.nunique() or "-")}
    days = sorted(records.finished_at.dropna().str[:10])
    column["measured on"] = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not known"
    for title, name in ENVIRONMENT.items():
        values = {
            f"{one:.0f}" if isinstance(one, float) else str(one) for one in records[name].dropna()
        }
        column[title] = " | ".join(sorted(values)) or "not known"
    for precision in (one for one in ORDER if one in set(records.precision)):
        own = records[records.precision == precision].dropna(subset=SWITCHES[:3], how="all")
        found = {
            f"{' / '.join(map(str, one[:3]))}, autocast {'off' if pd.isna(one[3]) else one[3]}"
            for one in own[SWITCHES].itertuples(index=False)
        }
        column[f"switches, {precision_name(precision)}"] = " | ".join(sorted(found)) or "not known"
    return column
