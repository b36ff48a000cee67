"""The tables that every section reads: trainings, comparisons, ratios and quality, made from records."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from ..judge.conditions import fairly_timed, flags_of, host_of
from ..judge.divergence import find_diverged
from ..judge.equivalence import AS_GOOD, UNKNOWN, quality_difference
from ..judge.explained import explain
from ..judge.ratios import geometric, paired_ratio, paired_runs, seconds_of_epoch, unpaired_ratio
from ..judge.stats import MANY_RATIOS, stand_together
from ..judge.trained import NO_FP32_WEIGHTS, by_seed, has_learned, quality_lost
from ..judge.verdict import DIFFERENT, SAME_TO, judge
from ..parameters import UserError
from ..store.reading import NO_RECORD
from ..store.record import comparison_key, is_explanation, last_metric
from .names import ORDER, WAYS, model_name, setting_name, task_name, way_name
from .selection import find_records, of_other_code, sort_out
from .words import natural

ON_CPU = "not judged: CPU"
NAMED_APART = {
    "notebook",
    "device_type",
    "gpu_name",
    "dataset_used",
    "model",
    "batch_size",
    "execution",
}
# begins the names of hashes, which tell comparisons apart where nothing else does
IDENTITY = "identity "
UNTITLED = {("loss_scale", "dynamic"), ("rounding", "nearest")}  # no title names them
QUALITY = ("difference", "low", "high", "low90", "high90", "margin", "is_ratio", "seeds", "outcome")
COMPARISONS = (
    "notebook model name task way device data batch execution settings precisions more title"
)
COLUMNS = {  # of the tables, also where they have no row
    "comparisons": COMPARISONS.split(),
    "ratios": [
        "comparison",
        "precision",
        "baseline",
        *unpaired_ratio(1.0),
        "outcome",
        "saved",
        "energy",
        "stands",
    ],
    "quality": ["comparison", "precision", "metric", "better", *QUALITY, "diverged", "usable"],
}


@dataclass
class Tables:
    """What the records of a folder say. `trainings` and `ratios` are written as CSV files by their names.

    trainings: a row for each training, `record` has every field of its record (see docs/record.md)
    comparisons: a row for each set of runs on one GPU model in which only precision, seed and repetition differ
    ratios: a row for each comparison, precision and baseline (fp32, TF32); above 1 the precision is the faster one
    quality: a row for each comparison and precision beside fp32, over equal seeds
    """

    # into which the report is written, and which the paths of records are relative to
    folder: str = "."
    source: str = "."  # where the records lie
    # held-out metric for the time to the same quality; 0: the experiments' own
    target_metric: float = 0.0
    name: str = ""  # of the study
    description: str = ""
    show: dict = field(default_factory=dict)  # what the study shows, see studies.yaml
    trainings: pd.DataFrame = field(default_factory=pd.DataFrame)
    comparisons: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=COLUMNS["comparisons"])
    )
    ratios: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS["ratios"]))
    quality: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS["quality"]))
    # (path, reason) of records that are not used
    left_out: list[tuple[str, str]] = field(default_factory=list)
    # records of other code than the newest of their notebook
    other_code: list[dict] = field(default_factory=list)
    on_cpu: bool = False  # every run was on the CPU, so nothing is judged

    def runs(self, comparison: int, precision: str, ok: bool = True) -> list[dict]:
        """Return the records of a comparison in one precision, those that only explain left out."""
        rows = self.by_key.get((comparison, precision), ())
        return [one["record"] for one in rows if one["status"] == "ok" or not ok]

    def timed_runs(self, comparison: int, precision: str) -> list[dict]:
        """Return the ok records of a precision whose times count: see fairly_timed()."""
        return fairly_timed(self.runs(comparison, precision))

    @cached_property
    def fair(self) -> set[int]:
        """The ids of all timed_runs(). A section that reads a time, a rate or an energy asks here first."""
        return {id(run) for key in self.by_key for run in self.timed_runs(*key)}

    @cached_property
    def by_key(self) -> dict[tuple[int, str], list[dict]]:
        """{(comparison, precision): rows of `trainings`}, made once because every section asks for them."""
        found: dict[tuple[int, str], list[dict]] = {}
        for row in self.trainings[~self.trainings.explains.astype(bool)].to_dict("records"):
            found.setdefault((row["comparison"], row["precision"]), []).append(row)
        return found

    @cached_property
    def bars(self) -> dict[int, list[dict]]:
        """{comparison: rows of bars_of()}, made once because five sections ask for them."""
        names = ["ratio", "low", "high", "processes", "outcome", "stands", "saved", "energy"]
        ratios = self.ratios.set_index(["comparison", "precision", "baseline"])[names].to_dict(
            "index"
        )
        bars: dict[int, list[dict]] = {number: [] for number in self.comparisons.index}
        for comparison, precision in product(self.comparisons.itertuples(), ORDER):
            number = comparison.Index
            if runs := self.by_key.get((number, precision)):
                baseline = "tf32" if self.runs(number, "tf32") else "fp32"
                fair = [run for run in runs if id(run["record"]) in self.fair]
                seconds, joules, rates = (
                    [run[name] for run in fair if pd.notna(run[name])]
                    for name in ("seconds", "joules", "samples_per_second")
                )
                gib, metrics = (
                    [run[name] for run in runs if run["timed"] and pd.notna(run[name])]
                    for name in ("gib", "metric")
                )
                row = {
                    "comparison": number,
                    "model": comparison.name,
                    "task": comparison.task,
                    "way": comparison.way,
                    "more": comparison.more,
                    "precision": precision,
                    "baseline": baseline,
                    "runs": len(fair),
                    "seconds": geometric(seconds) if seconds else None,
                    "seconds_low": min(seconds, default=None),
                    "seconds_high": max(seconds, default=None),
                    "gib": max(gib, default=None),
                    "joules": statistics.median(joules) if joules else None,
                    "samples_per_second": geometric(rates) if rates else None,
                    "metric": statistics.fmean(metrics) if metrics else None,
                    "status": "ok" if fair else runs[0]["status"],
                }
                unknown = dict.fromkeys(names) | {"stands": False}
                bars[number].append(row | ratios.get((number, precision, baseline), unknown))
        return bars

    def between(self, own: list[dict], base: list[dict]) -> dict | None:
        """Return how many times as fast some ok runs are as others, see `ratio_between`, with the outcome."""
        found = ratio_between(own, base)
        return found and found | {"outcome": ON_CPU if self.on_cpu else judge(found)}

    @property
    def charted(self) -> pd.DataFrame:
        """The comparisons that compare precisions, or all where none does."""
        several = self.comparisons[self.comparisons.precisions > 1]
        return several if len(several) else self.comparisons

    def csv(self) -> dict[str, bytes]:
        """Return {"trainings.csv", "ratios.csv"}: all numbers, with the keys of precisions and parameters."""
        if self.trainings.empty:
            return {}
        flat = pd.DataFrame(
            [flattened(record) for record in self.trainings.record], index=self.trainings.index
        )
        flat = flat.drop(columns="epoch_seconds_median")  # `seconds` is the one figure of an epoch
        own = self.trainings.drop(
            columns=["record", *(name for name in self.trainings if name in flat)]
        )
        tables = {"trainings.csv": own.join(flat)}
        if len(self.ratios):
            named = self.comparisons[
                ["notebook", "title", "device", "data", "model", "batch", "execution"]
            ]
            quality = self.quality.assign(baseline="fp32").set_index(
                ["comparison", "precision", "baseline"]
            )
            ratios = self.ratios.assign(
                differences=["; ".join(found) for found in self.ratios.differences]
            )
            tables["ratios.csv"] = ratios.join(named, on="comparison")
            if len(quality):
                tables["ratios.csv"] = tables["ratios.csv"].join(
                    quality.add_prefix("quality_"), on=quality.index.names
                )
        return {name: csv_of(table) for name, table in tables.items()}


def read_tables(
    records_dir: str | Path | Sequence[str], target_metric: float = 0.0, output_dir: str | Path = ""
) -> Tables:
    """Return the Tables of a folder with run records, or of several; "outputs" stands for one's own runs.

    `target_metric` is the quality to which time is measured. For 0 the experiments have their own. The report belongs
    into `output_dir`, by default the first folder. Raise UserError where no record is usable.
    """
    from .study import study_of

    folder, records, left_out = find_records(records_dir, output_dir)
    used, more_left_out = sort_out(records)
    source = str(folder) if isinstance(records_dir, str | Path) else ", ".join(records_dir)
    others = of_other_code(used)
    aside = {id(record) for record in others if "other_code-" in record["path"]}
    used = [record for record in used if id(record) not in aside]
    if not used:
        raise UserError(
            f'no usable run record lies below records_dir = "{source}"; run an experiment notebook or run_all.py'
            " first, or upload records (JSON files, or one zip of them) in the Files panel of Colab or Kaggle, and run"
            " all cells."
        )
    study = study_of(folder, used)
    tables = Tables(str(folder), source, target_metric, study.name, study.description, study.show)
    tables.left_out, tables.other_code = left_out + more_left_out, others
    tables.on_cpu = all(record["device_type"] == "cpu" for record in used)
    numbers = group(used, study.show)
    tables.trainings = pd.DataFrame([training_row(record, number) for record, number in numbers])
    tables.comparisons = comparisons_of(numbers)
    tables.ratios = ratios_of(tables)
    tables.quality = quality_of(tables)
    return tables


def group(records: list[dict], show: dict) -> list[tuple[dict, int]]:
    """Return [(record, number of its comparison)] in the order of the report; -1 where a run has nothing to explain.

    Runs that learned nothing where others did are marked as diverged, and repetitions share what explains the first.
    """
    members: dict[tuple, list[dict]] = {}
    for record in records:
        members.setdefault(comparison_key(record) if record["purpose"] != "aa" else (), []).append(
            record
        )
    alone = members.pop((), [])
    groups = []
    for runs in members.values():
        timed = [record for record in runs if not is_explanation(record)]
        if not timed:
            alone += runs
            continue
        mark_diverged(timed)
        for precision in ORDER:
            explain([one for one in timed if one["precision"] == precision])
        groups.append(runs)
    # each step is a comparison of its own, in which no other precision may have learned
    if show.get("steps"):
        for notebook in {runs[0]["notebook"] for runs in groups}:
            timed = [
                one
                for runs in groups
                for one in runs
                if one["notebook"] == notebook and not is_explanation(one)
            ]
            batch = statistics.mode(one["settings"]["batch_size"] for one in timed)
            mark_diverged(
                [one for one in timed if one["settings"]["batch_size"] == batch],
                "another step of the ladder",
            )
    groups.sort(key=place_of)
    found = [(record, number) for number, runs in enumerate(groups) for record in runs]
    return found + lent_baselines(groups) + [(record, -1) for record in alone]


def place_of(runs: list[dict]) -> list:
    """Return a sort key of comparisons: by experiment, then by card, data and model, then by execution."""
    first, settings = runs[0], runs[0]["settings"]
    way = str(settings.get("execution") or "eager")
    execution = [*WAYS].index(way) if way in WAYS else len(WAYS)
    texts = (
        first["notebook"],
        first["gpu_name"],
        first["dataset_used"],
        model_name(first),
        settings["batch_size"],
    )
    return [*map(natural, texts), execution, natural(comparison_key(first))]


def mark_diverged(runs: list[dict], others: str = "another precision") -> None:
    """Mark the runs that learned nothing where `others` did. Runs of several machines may share a run id."""
    numbered = {str(index): run for index, run in enumerate(runs)}
    for name, reason in find_diverged(
        [run | {"run_id": name} for name, run in numbered.items()]
    ).items():
        numbered[name].update(status="diverged", reason=reason.replace("another precision", others))


def lent_baselines(groups: list[list[dict]]) -> list[tuple[dict, int]]:
    """Return the fp32 and TF32 runs lent to a comparison with stochastic rounding, which concerns bf16_true alone."""
    keys = [dict(comparison_key(runs[0])) for runs in groups]
    rounding = [key.pop("rounding", None) for key in keys]
    lent = []
    for number, key in enumerate(keys):
        if rounding[number] != '"stochastic"':
            continue
        for other, runs in enumerate(groups):
            if rounding[other] == '"nearest"' and keys[other] == key:
                own = {record["precision"] for record in groups[number]}
                lent += [
                    (one, number) for one in runs if one["precision"] in {"fp32", "tf32"} - own
                ]
    return lent


def training_row(record: dict, number: int) -> dict:
    """Return the row of `trainings`: seconds are those of an epoch, memory is in GiB, without the data set."""
    epochs, samples = record["epoch_seconds"], record["samples_per_epoch"]
    ok = record["status"] == "ok" and not is_explanation(record)
    return {
        "run_id": record["run_id"],
        "path": record.get("path", ""),
        "comparison": number,
        "precision": record["precision"],
        "status": record["status"],
        "reason": record["reason"],
        "explains": is_explanation(record),
        "timed": ok,
        "seed": record["settings"]["seed"],
        # older records name the GPU
        "host": "/".join(map(str, host_of(record) or ())) or record["gpu_uuid"] or "",
        "seconds": statistics.fmean(epochs) if ok else None,
        "samples_per_second": len(epochs) * samples / sum(epochs) if ok and samples else None,
        "gib": peak_gib(record) if ok else None,
        "card_gib": record["device_used_mib"] / 1024
        if ok and record["device_used_mib"] is not None
        else None,
        "joules": record["joules_per_1000_samples"] if ok else None,
        "metric": last_metric(record),
        "loss": (record["train_loss"] or [None])[-1],
        "idle": 1 - record["gpu_busy_fraction"]
        if ok and record["gpu_busy_fraction"] is not None
        else None,
        "step_ms": record["step_ms_median"],
        "disturbed": bool(flags_of(record)),
        "record": record,
    }


def peak_gib(record: dict) -> float | None:
    """Return the peak of PyTorch's memory in GiB, less the data set that lies on the device, or None if unknown."""
    if record["peak_allocated_mib"] is None:
        return None
    return (record["peak_allocated_mib"] - (record["data_on_device_mib"] or 0)) / 1024


def comparisons_of(numbers: list[tuple[dict, int]]) -> pd.DataFrame:
    """Return the table `comparisons`, with names for people and a title that no other comparison has."""
    firsts: dict[int, dict] = {}
    precisions: dict[int, set] = {}
    for record, number in numbers:
        if number >= 0:
            firsts.setdefault(number, record)
            precisions.setdefault(number, set()).add(record["precision"])
    rows = []
    alike: dict[tuple, list[dict]] = {}  # {what names the same training: its rows}
    for number, first in sorted(firsts.items()):
        settings = {name: json.loads(value) for name, value in comparison_key(first)}
        execution = settings.get("execution") or "eager"
        row = {
            "notebook": first["notebook"],
            "model": str(first["settings"]["model"]),
            "name": model_name(first),
            "task": task_name(first),
            "way": way_name(execution),
            "device": device_name(first),
            "data": str(settings["dataset_used"]),
            "batch": first["settings"]["batch_size"],
            "execution": execution,
            "settings": settings,
            "precisions": len(precisions[number]),
        }
        rows.append(row)
        alike.setdefault((row["notebook"], row["name"], row["task"]), []).append(row)
    for same in alike.values():
        varied = varied_in([row["settings"] for row in same])
        for row in same:
            row["more"] = ", ".join(told_apart(row["settings"], varied))
    devices = len({row["device"] for row in rows}) > 1
    for row in rows:
        parts = [
            row["name"],
            row["task"],
            row["way"],
            row["more"],
            row["device"] if devices else "",
        ]
        row["title"] = " · ".join(filter(None, parts))
    return pd.DataFrame(rows, columns=COLUMNS["comparisons"])


def varied_in(several: list[dict]) -> set[str]:
    """Return the names of the settings in which some comparisons differ; a setting that one lacks is null."""
    names = {name for settings in several for name in settings}
    return {name for name in names if len({json.dumps(one.get(name)) for one in several}) > 1}


def told_apart(settings: dict, varied: set[str]) -> list[str]:
    """Return the `varied` settings of a comparison as labels; a memory limit is always named."""
    labels = []
    for name, value in settings.items():
        limit = name == "memory_limit_gib" and value
        apart = name not in NAMED_APART and (name, value) not in UNTITLED
        if limit or (apart and name in varied):
            labels.append(setting_name(name, value))
    plain = [one for one in labels if not one.startswith(IDENTITY)]
    return plain or [one.removeprefix(IDENTITY) for one in labels]


def device_name(record: dict) -> str:
    """Return the short name of the device that a record was measured on."""
    name = record["gpu_name"] or ("CPU" if record["device_type"] == "cpu" else "unknown device")
    for brand in ("NVIDIA ", "Tesla ", "GeForce "):
        name = name.removeprefix(brand)
    return name.partition(" HBM")[0]


def ratio_between(own: list[dict], base: list[dict]) -> dict | None:
    """Return the ratio of two lists of ok runs, by their mean epochs where no run has a counterpart."""
    if not own or not base:
        return None
    if found := paired_ratio(paired_runs(own, base)):
        return found
    mine, theirs = (seconds_of_epoch(fairly_timed(runs)) for runs in (own, base))
    return unpaired_ratio(theirs / mine)


def ratios_of(tables: Tables) -> pd.DataFrame:
    """Return the table `ratios`. The gain of a CUDA graph is noted in eager records, for what limits them."""
    note_graph_gains(tables)
    rows, known = [], {}
    for number in tables.comparisons.index:
        runs = {name: tables.runs(number, name) for name in ORDER}
        for place, precision in enumerate(ORDER):
            for baseline in ORDER[: min(place, 2)]:
                sides = tuple(tuple(map(id, runs[name])) for name in (precision, baseline))
                if sides not in known:  # runs that are lent have one ratio, once
                    known[sides] = tables.between(runs[precision], runs[baseline])
                if found := known[sides]:
                    own, base = (
                        max(filter(None, map(peak_gib, runs[name])), default=0)
                        for name in (precision, baseline)
                    )
                    saved = 1 - own / base if own and base else None
                    row = {"comparison": number, "precision": precision, "baseline": baseline}
                    energy = energy_share(runs[precision], runs[baseline])
                    rows.append(row | found | {"saved": saved, "energy": energy, "test": id(found)})
    if not rows:
        return pd.DataFrame(columns=COLUMNS["ratios"])
    table = pd.DataFrame(rows)
    tests = table.dropna(subset="p").drop_duplicates("test")
    stands = dict(zip(tests.test, stand_together(list(tests.p)), strict=True))
    if len(tests) <= MANY_RATIOS:
        stands = dict.fromkeys(table.test, True)
    table["stands"] = [
        stands.get(test, False) and outcome in DIFFERENT
        for test, outcome in zip(table.test, table.outcome, strict=True)
    ]
    return table.drop(columns="test")


def energy_share(own: list[dict], base: list[dict]) -> float | None:
    """Return the share of the baseline's joules: the geometric mean of pairs, as cards differ, else of medians."""
    name = "joules_per_1000_samples"
    sides = [fairly_timed([run for run in runs if run[name]]) for runs in (own, base)]
    if not all(sides):
        return None
    if pairs := [run[name] / other[name] for run, other in paired_runs(*sides)]:
        return geometric(pairs)
    mine, theirs = (statistics.median(run[name] for run in runs) for runs in sides)
    return mine / theirs


def note_graph_gains(tables: Tables) -> None:
    """Note in eager runs by how much a CUDA graph was faster, because that refutes that kernels are the limit."""
    for _, pair in alike(tables.comparisons, "execution"):
        by_way = dict(zip(pair.execution, pair.index, strict=True))
        for precision in ORDER if {"eager", "cuda_graph"} <= set(by_way) else ():
            own = tables.runs(by_way["eager"], precision)
            found = ratio_between(tables.runs(by_way["cuda_graph"], precision), own)
            if found and judge(found) in DIFFERENT and found["low"] > SAME_TO:
                for run in own:
                    run["graph_gain"] = (
                        f"{found['ratio']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
                    )


def alike(comparisons: pd.DataFrame, *settings: str) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Return the comparisons in groups that are equal in all settings but these."""
    if comparisons.empty:
        return []
    keys = [
        json.dumps({name: value for name, value in one.items() if name not in settings})
        for one in comparisons.settings
    ]
    return comparisons.groupby(pd.Series(keys, comparisons.index), sort=False)


def quality_of(tables: Tables) -> pd.DataFrame:
    """Return the table `quality`. Where runs diverged it is inconclusive, because the others are a selection."""
    rows = []
    for number in tables.comparisons.index:
        base = tables.runs(number, "fp32")
        for precision in ORDER[1:]:
            runs = tables.runs(number, precision, ok=False)
            own = [run for run in runs if run["status"] == "ok"]
            named = [run for run in (*base, *own) if run["metric_name"]]
            if not own or not named:
                continue
            found = quality_difference(by_seed(own), by_seed(base), named[0])
            if not found:
                continue
            diverged = sum(run["status"] == "diverged" for run in runs)
            if diverged:
                found["outcome"] = UNKNOWN
            if tables.on_cpu:
                found["outcome"] = ON_CPU
            row = {"comparison": number, "precision": precision, "metric": found["metric"]}
            row["better"] = named[0]["metric_better"]
            usable = (
                found["outcome"] in AS_GOOD and has_learned(own)
                if precision in NO_FP32_WEIGHTS
                else not quality_lost(own, base)
            )
            rows.append(
                row
                | {name: found[name] for name in QUALITY}
                | {"diverged": diverged, "usable": usable}
            )
    return pd.DataFrame(rows, columns=COLUMNS["quality"])


def bars_of(tables: Tables, comparisons: Iterable[int] | None = None) -> pd.DataFrame:
    """Return a row for each bar of the opening figure: comparison, precision, seconds of an epoch, GiB and status.

    Seconds are geometric means, so two bars divide to the ratio of their processes; seconds_low and seconds_high are
    the ends of the runs. Ratios are those over TF32, or over fp32 where no run was in TF32 (`baseline`).
    """
    wanted = tables.charted.index if comparisons is None else comparisons
    return pd.DataFrame([bar for number in wanted for bar in tables.bars[number]])


def flattened(record: dict) -> dict:
    """Return a record as a row: lists of numbers as median and count, other lists and dicts as JSON."""
    row: dict = {}
    fields = {name: value for name, value in record.items() if name != "settings"}
    for name, value in {**record["settings"], **fields}.items():
        if isinstance(value, list) and all(isinstance(one, (int, float)) for one in value):
            row[f"{name}_median"] = statistics.median(value) if value else None
            row[f"{name}_count"] = len(value)
        else:
            row[name] = json.dumps(value) if isinstance(value, (list, dict)) else value
    return row


def csv_of(table: pd.DataFrame) -> bytes:
    """Return a table as CSV. A text that a spreadsheet would run as a formula begins with an apostrophe."""
    texts = table.select_dtypes(["object", "string"]).columns
    table = table.assign(**{name: table[name].map(inert) for name in texts}).rename(columns=inert)
    return table.convert_dtypes().to_csv(index=False).encode()


def inert(value: object) -> object:
    """Return a value with an apostrophe before a text that begins as a formula does. Numbers stay what they are."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def said_of_found(tables: Tables) -> str:
    """Return how many records were found, used and left out."""
    others = [path for path, reason in tables.left_out if reason == NO_RECORD]
    left_out = len(tables.left_out) - len(others)
    used = tables.trainings.record.map(id).nunique() if len(tables.trainings) else 0
    text = (
        f"{used + left_out} records found below {tables.source}: {used} used, {left_out} left out"
    )
    return f"{text}, and {len(others)} JSON files that are no records." if others else f"{text}."
