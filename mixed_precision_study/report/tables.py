"""The tables that every section reads: trainings, comparisons, ratios and quality, made from
records.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from pandas import DataFrame, Series

from ..judge.arms import compared, peak_gib
from ..judge.axis import PRECISION, PRECISIONS, Axis, grouped
from ..judge.conditions import fairly_timed, flags_of, host_of
from ..judge.divergence import find_diverged
from ..judge.equivalence import AS_GOOD, UNKNOWN
from ..judge.explained import explain
from ..judge.finding import Finding
from ..judge.ratios import FIELDS, geometric
from ..judge.stats import MANY_RATIOS, stand_together
from ..judge.trained import NO_FP32_WEIGHTS, has_learned, quality_lost
from ..judge.verdict import DIFFERENT, ON_CPU, SAME_TO
from ..parameters import UserError
from ..store.reading import NO_RECORD, LeftOut
from ..store.record import ADDED, Runs, comparison_key, is_explanation, last_metric
from .files import find_records, of_other_code, sort_out, study_of
from .words import (
    AMP,
    LOOKS,
    ORDER,
    WAYS,
    WRITTEN,
    arm_name,
    model_name,
    natural,
    outcome_words,
    said,
    setting_name,
    short_name,
    task_name,
    way_name,
)

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
# no title names them; no set, because a setting may be a list
UNTITLED = [("loss_scale", "dynamic"), ("rounding", "nearest")]
QUALITY = ("difference", "low", "high", "low90", "high90", "margin", "is_ratio", "seeds", "outcome")
COMPARISONS = (
    "notebook model name task way device data batch execution settings arms more run title"
)
REASONS = ("unlike", "one_order", "untrained", "lost")  # of a ratio, each a Finding
FIGURES = ("seconds", "joules", "samples_per_second", "gib", "metric", "idle")  # of a training
TABLE_COLUMNS = {  # of the tables, also where they have no row
    "comparisons": COMPARISONS.split(),
    "ratios": [
        "comparison",
        "precision",
        "baseline",
        "axis",
        "arm",
        "base",
        *FIELDS,
        "outcome",
        "saved",
        "energy",
        "stands",
    ],
    "quality": [
        "comparison",
        "precision",
        "arm",
        "base",
        "metric",
        "better",
        *QUALITY,
        "diverged",
        "usable",
    ],
}


def empty(name: str) -> DataFrame:
    """Return one of the tables without a row."""
    return DataFrame(columns=TABLE_COLUMNS[name])


@dataclass
class Tables:
    """What the records of a folder say. `trainings` and `ratios` are written as CSV files by their
    names.

    trainings: a row for each training, `record` has every field of its record (see
        docs/contributors/record.md)
    comparisons: a row for each set of runs on one GPU model in which only the arm, seed and
        repetition differ
    ratios: a row for each comparison, arm and base (as fp32 and TF32); above 1 the arm is the
        faster one
    quality: a row for each comparison and arm beside the first base, over equal seeds
    """

    # into which the report is written, and which the paths of records are relative to
    folder: str = "."
    source: str = "."  # where the records lie
    # held-out metric for the time to the same quality; 0: the experiments' own
    target_metric: float = 0.0
    name: str = ""  # of the study
    description: str = ""
    show: dict = field(default_factory=dict)  # what the study shows, see studies.yaml
    axis: Axis = PRECISIONS  # what it compares
    trainings: DataFrame = field(default_factory=DataFrame)
    comparisons: DataFrame = field(default_factory=partial(empty, "comparisons"))
    ratios: DataFrame = field(default_factory=partial(empty, "ratios"))
    quality: DataFrame = field(default_factory=partial(empty, "quality"))
    # (path, reason) of records that are not used
    left_out: LeftOut = field(default_factory=list)
    # records of other code than the newest of their notebook
    other_code: Runs = field(default_factory=list)
    on_cpu: bool = False  # every run was on the CPU, so nothing is judged

    @cached_property
    def looks(self) -> DataFrame:
        """`short` name, `colour`, `mark` and `place` of each arm, in the order of every table and
        chart: bases come first.
        """
        found = set(self.trainings.arm)
        named = dict.fromkeys((*self.axis.bases, *ORDER, *WAYS, *sorted(found, key=by_size)))
        arms = [arm for arm in named if arm in found]
        own = {arm: LOOKS.get(arm.split(", ")[0]) for arm in arms}
        free = [look for look in LOOKS.values() if look not in own.values()] or [*LOOKS.values()]
        taken = []
        for place, arm in enumerate(arms):
            look = own[arm]
            if not look or look in taken:  # another arm of this precision
                look = free[place % len(free)]
            taken.append(look)
        table = DataFrame(taken, arms, ["colour", "mark"])
        return table.assign(short=[self.short(arm) for arm in arms], place=range(len(arms)))

    @property
    def arms(self) -> list[str]:
        """All arms in the order of looks."""
        return list(self.looks.index)

    @property
    def compared_arms(self) -> list[str]:
        """The arms that titles speak of: AMP where precisions are compared, else all but a base."""
        usual = self.axis == PRECISIONS
        return [arm for arm in self.arms if (arm in AMP if usual else arm not in self.axis.bases)]

    @property
    def subject(self) -> str:
        """What titles call the compared arms: AMP, or the name of the only one."""
        if self.axis == PRECISIONS:
            return "AMP"
        several = len(self.compared_arms) != 1
        return "the compared arms" if several else self.called(self.compared_arms[0])

    def changed(self, arm: str) -> list[tuple[str, str]]:
        """Return the settings of an arm that its base has not, or the first one of a base."""
        bases = self.axis.bases[0].split(", ")
        rows = [*zip(self.axis.settings, arm.split(", "), bases, strict=False)]
        return [(name, one) for name, one, usual in rows if one != usual] or [rows[0][:2]]

    def short(self, arm: str) -> str:
        """Return the name of an arm for an axis: what its base has not, and true and false with
        their setting, as all values are of an axis of several settings, where two may be alike.
        """
        alone = len(self.axis.settings) == 1
        return ", ".join(
            short_name(value)
            if name == PRECISION or (alone and value not in ("true", "false"))
            else arm_name([name], value)
            for name, value in self.changed(arm)
        )

    def called(self, arm: str) -> str:
        """Return the name of an arm for a sentence: what its base has not."""
        return ", ".join(arm_name([name], value) for name, value in self.changed(arm))

    def runs(self, comparison: int, arm: str, ok: bool = True) -> Runs:
        """Return the records of a comparison in one arm, those that only explain left out."""
        rows = self.by_key.get((comparison, arm), ())
        return [one["record"] for one in rows if one["status"] == "ok" or not ok]

    def timed_runs(self, comparison: int, arm: str) -> Runs:
        """Return the ok records of an arm whose times count: see fairly_timed()."""
        return fairly_timed(self.runs(comparison, arm))

    @cached_property
    def fair(self) -> set[int]:
        """The ids of all timed_runs().

        A section that reads a time, a rate or an energy asks here first.
        """
        return {id(run) for key in self.by_key for run in self.timed_runs(*key)}

    @cached_property
    def by_key(self) -> dict:
        """{(comparison, arm): rows of `trainings`}, made once, as every section asks."""
        rows = self.trainings[~self.trainings.explains.astype(bool)].to_dict("records")
        return grouped(rows, itemgetter("comparison", "arm"))

    @cached_property
    def bars(self) -> DataFrame:
        """The rows of bars_of() for all comparisons, made once, as five sections ask."""
        keys = ["comparison", "arm"]
        rows = self.trainings[(self.trainings.comparison >= 0) & ~self.trainings.explains]
        timed = rows[rows.timed].astype(dict.fromkeys(FIGURES, float))
        fair = timed[timed.record.map(id).isin(self.fair)].groupby(keys)
        found = rows.drop_duplicates(keys).set_index(keys)[["precision", "status", "path"]]
        found = found.join(
            fair.agg(
                runs=("seconds", "size"),
                seconds=("seconds", geometric),
                seconds_low=("seconds", "min"),
                seconds_high=("seconds", "max"),
                joules=("joules", "median"),
                samples_per_second=("samples_per_second", geometric),
                idle=("idle", "median"),
                note=("disturbed", lambda found: "disturbed" * all(found)),
            )
        )
        found = found.join(timed.groupby(keys).agg(gib=("gib", "max"), metric=("metric", "mean")))
        found = found.reset_index().fillna({"runs": 0, "note": ""}).astype({"runs": int})
        found["status"] = found.status.where(found.runs == 0, "ok")
        found["model"] = found.comparison.map(self.comparisons["name"])
        found = found.join(self.comparisons[["task", "way", "run"]], on="comparison")
        bases = [self.base_in(number) for number in found.comparison]
        found["base"] = Series(bases, found.index, dtype=object)
        names = ["ratio", "low", "high", "processes", "hosts", "lowest", "highest", "outcome"]
        ratios = self.ratios.set_index([*keys, "base"])[[*names, "stands", "saved", "energy"]]
        found = found.join(ratios, on=ratios.index.names).rename(columns={"base": "baseline"})
        seconds = found.set_index(keys).seconds.rename("base_seconds")
        found = found.join(seconds, on=["comparison", "baseline"])
        found["stands"] = found.stands.eq(True)
        found = found.join(self.looks, on="arm")
        found["base_short"] = found.baseline.map(self.short)
        found["is_base"] = found.arm.isin(self.axis.bases)
        found["strong"] = stands_out(found)
        return found.sort_values(["comparison", "place"], ignore_index=True)

    def base_in(self, comparison: int) -> str:
        """Return the fair base of a comparison: the last that was run, else the first."""
        found = [base for base in self.axis.bases if self.runs(comparison, base)]
        return found[-1] if found else self.axis.bases[0]

    def between(self, own: Runs, base: Runs) -> dict | None:
        """Return compared() for two lists of ok runs, worked out once for each two lists."""
        sides = tuple(tuple(map(id, runs)) for runs in (own, base))
        if sides not in self.asked:
            self.asked[sides] = compared(own, base)
        return self.asked[sides]

    @cached_property
    def asked(self) -> dict:
        """{ids of two lists of runs: what between() answered}."""
        return {}

    @property
    def charted(self) -> DataFrame:
        """The comparisons of several arms, or all where none has them."""
        several = self.comparisons[self.comparisons.arms > 1]
        return several if len(several) else self.comparisons

    def csv(self) -> dict:
        """Return {"trainings.csv", "ratios.csv"}: all numbers, with the keys of precisions and
        parameters.
        """
        if self.trainings.empty:
            return {}
        own = self.trainings.drop(columns=["record", "arm"])
        flat = DataFrame(map(flattened, self.trainings.record), index=own.index)
        # pandas reads a key of dicts by .str, too, and None where there is no study
        flat["study"] = self.trainings.record.str["study"].str["name"]
        del flat["epoch_seconds_median"]  # `seconds` is the one figure of an epoch
        tables = {"trainings.csv": own.drop(columns=flat.columns, errors="ignore").join(flat)}
        if len(self.ratios):
            named = self.comparisons[
                ["notebook", "title", "device", "data", "model", "batch", "execution"]
            ]
            quality = self.quality.drop(columns="precision")
            quality = quality.set_index(["comparison", "arm", "base"])
            quality["outcome"] = quality.outcome.map(outcome_words)
            ratios = self.ratios.assign(
                outcome=self.ratios.outcome.replace(WRITTEN),
                differences=[
                    "; ".join(dict.fromkeys(map(said, found))) for found in self.ratios.differences
                ],
                **{name: self.ratios[name].map(said, na_action="ignore") for name in REASONS},
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
    """Return the Tables of a folder with run records, or of several; "outputs" stands for one's own
    runs.

    `target_metric` is the quality to which time is measured. For 0 the experiments have their own.
    The report belongs into `output_dir`, by default the first folder. Raise UserError where no
    record is usable.
    """
    given = [records_dir] if isinstance(records_dir, str | Path) else records_dir
    folder, records, left_out = find_records(given, output_dir)
    used, more_left_out = sort_out(records)
    source = ", ".join(map(str, given)) if given is records_dir else str(folder)
    others = of_other_code(used)
    aside = {id(record) for record in others if "other_code-" in record["path"]}
    used = [record for record in used if id(record) not in aside]
    if not used:
        raise UserError(
            f'no usable run record lies below records_dir = "{source}"; run an '
            "experiment notebook or run_all.py"
            " first, or upload records (JSON files, or one zip of them) in the Files "
            "panel of Colab or Kaggle, and run"
            " all cells."
        )
    # a report elsewhere is of the study of its records, but several folders have none in common
    own = given[0] if len(given) == 1 and not (folder / "study.yaml").is_file() else folder
    study = study_of(own, used)
    tables = Tables(str(folder), source, target_metric, study.name, study.description, study.show)
    axis = tables.axis = study.compares()
    tables.left_out = left_out + more_left_out
    tables.other_code = others
    tables.on_cpu = all(record["device_type"] == "cpu" for record in used)
    numbers = group(used, study.show, axis)
    tables.trainings = DataFrame([training_row(record, number, axis) for record, number in numbers])
    tables.comparisons = comparisons_of(tables.trainings, axis)
    tables.ratios = ratios_of(tables)
    tables.quality = quality_of(tables)
    return tables


def group(records: Runs, show: dict, axis: Axis = PRECISIONS) -> list[tuple[dict, int]]:
    """Return [(record, number of its comparison)] in the order of the report; -1 where a run has
    nothing to explain.

    Runs that learned nothing where others did are marked as diverged, and repetitions share what
    explains the first.
    """
    members = grouped(
        records, lambda record: axis.rest_of(record) if record["purpose"] != "aa" else ()
    )
    alone = members.pop((), [])
    groups = []
    for runs in members.values():
        timed = [record for record in runs if not is_explanation(record)]
        if not timed:
            alone += runs
            continue
        mark_diverged(timed, axis)
        for same in grouped(timed, axis.arm_of).values():
            explain(same)
        groups.append(runs)
    if show.get("steps"):
        mark_steps(groups, axis)
    groups.sort(key=place_of)
    found = [(record, number) for number, runs in enumerate(groups) for record in runs]
    return found + lent_baselines(groups, axis) + [(record, -1) for record in alone]


def mark_steps(groups: list, axis: Axis) -> None:
    """Mark runs beside other steps of a ladder, as in their own no other arm may have learned."""
    every = [one for runs in groups for one in runs if not is_explanation(one)]
    for timed in grouped(every, itemgetter("notebook")).values():
        batch = statistics.mode(one["settings"]["batch_size"] for one in timed)
        same = [one for one in timed if one["settings"]["batch_size"] == batch]
        mark_diverged(same, axis, "another step of the ladder")


def by_size(arm: str) -> tuple:
    """Return a sort key of arms: numbers by their size, then texts."""
    try:
        return 0, float(arm)
    except ValueError:
        return 1, natural(arm)


def place_of(runs: Runs) -> list:
    """Return a sort key of comparisons: by experiment, then by card, data and model, then by
    execution.
    """
    first = runs[0]
    settings = runs[0]["settings"]
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


def mark_diverged(runs: Runs, axis: Axis = PRECISIONS, others: str = "") -> None:
    """Mark the runs that learned nothing where `others` did."""
    others = others or f"another {' and '.join(axis.settings)}"
    for place, reason in find_diverged(runs, axis).items():
        runs[place].update(status="diverged", reason=said(reason, others=others))


def lent_baselines(groups: list, axis: Axis) -> list[tuple[dict, int]]:
    """Return the base runs lent to other rounding, which concerns bf16_true alone."""
    by_key = {axis.rest_of(runs[0]): runs for runs in groups}
    lent = []
    for number, runs in enumerate(groups):
        key = dict(axis.rest_of(runs[0]))
        if key.get("rounding") not in (None, '"nearest"'):
            nearest = by_key.get(tuple((key | {"rounding": '"nearest"'}).items()), [])
            wanted = set(axis.bases) - grouped(runs, axis.arm_of).keys()
            lent += [(one, number) for one in nearest if axis.arm_of(one) in wanted]
    return lent


def training_row(record: dict, number: int, axis: Axis = PRECISIONS) -> dict:
    """Return the row of `trainings`: seconds are those of an epoch, memory is in GiB, without
    the data set.
    """
    epochs = record["epoch_seconds"]
    samples = record["samples_per_epoch"]
    ok = record["status"] == "ok" and not is_explanation(record)
    measured = record if ok else dict.fromkeys(record)
    card = measured["device_used_mib"]
    busy = measured["gpu_busy_fraction"]
    return {
        "run_id": record["run_id"],
        "path": record.get("path", ""),
        "comparison": number,
        "precision": record["precision"],
        "arm": axis.arm_of(record),
        "status": record["status"],
        "reason": record["reason"],
        "explains": is_explanation(record),
        "timed": ok,
        "seed": record["settings"]["seed"],
        # older records name the GPU
        "host": "/".join(map(str, host_of(record) or ())) or record["gpu_uuid"] or "",
        "seconds": statistics.fmean(epochs) if ok else None,
        "samples_per_second": len(epochs) * samples / sum(epochs) if ok and samples else None,
        "gib": peak_gib(measured),
        "card_gib": None if card is None else card / 1024,
        "joules": measured["joules_per_1000_samples"],
        "metric": last_metric(record),
        "loss": (record["train_loss"] or [None])[-1],
        "idle": None if busy is None else 1 - busy,
        "step_ms": record["step_ms_median"],
        "disturbed": bool(flags_of(record)),
        "record": record,
    }


def comparisons_of(trainings: DataFrame, axis: Axis = PRECISIONS) -> DataFrame:
    """Return the table `comparisons`, with names for people and a title that no other comparison
    has.
    """
    rows = []
    for _, runs in trainings[trainings.comparison >= 0].groupby("comparison"):
        first = runs.record.iloc[0]
        settings = {name: json.loads(value) for name, value in axis.rest_of(first)}
        execution = "" if "execution" in axis.settings else settings.get("execution") or "eager"
        rows.append(
            {
                "notebook": first["notebook"],
                "model": "" if "model" in axis.settings else str(first["settings"]["model"]),
                "name": first["notebook"] if "model" in axis.settings else model_name(first),
                "task": task_name(first, "batch_size" not in axis.settings),
                "way": execution and way_name(execution),
                "device": device_name(first),
                "data": str(settings["dataset_used"]),
                "batch": "" if "batch_size" in axis.settings else first["settings"]["batch_size"],
                "execution": execution,
                "settings": settings,
                "arms": runs.arm.nunique(),
            }
        )
    # what names the same training is told apart by more
    for same in grouped(rows, itemgetter("notebook", "name", "task")).values():
        varied = varied_in([row["settings"] for row in same])
        for row in same:
            row["more"] = ", ".join(told_apart(row["settings"], varied))
    devices = len({row["device"] for row in rows}) > 1
    for row in rows:
        parts = [row["way"], row["more"], row["device"] if devices else ""]
        row["run"] = ", ".join(filter(None, parts))
        row["title"] = " · ".join(filter(None, [row["name"], row["task"], *parts]))
    return DataFrame(rows, columns=TABLE_COLUMNS["comparisons"])


def varied_in(several: list[dict]) -> set[str]:
    """Return the names of the settings in which some comparisons differ; a setting that one
    lacks is null.
    """
    names = {name for settings in several for name in settings}
    return {name for name in names if len({json.dumps(one.get(name)) for one in several}) > 1}


def told_apart(settings: dict, varied: set[str]) -> list[str]:
    """Return the `varied` settings of a comparison as labels; a memory limit is always named."""
    apart = {name for name in varied - NAMED_APART if (name, settings.get(name)) not in UNTITLED}
    if settings.get("memory_limit_gib"):
        apart.add("memory_limit_gib")
    # no key has a setting that is as older records trained, but one that is on has a name
    settings = {name: ADDED[name] for name in apart if ADDED.get(name)} | settings
    labels = [setting_name(name, settings[name]) for name in sorted(apart & settings.keys())]
    plain = [one for one in labels if not one.startswith(IDENTITY)]
    return plain or [one.removeprefix(IDENTITY) for one in labels]


def device_name(record: dict) -> str:
    """Return the short name of the device that a record was measured on."""
    name = record["gpu_name"] or ("CPU" if record["device_type"] == "cpu" else "unknown device")
    for brand in ("NVIDIA ", "Tesla ", "GeForce "):
        name = name.removeprefix(brand)
    return name.partition(" HBM")[0]


def ratios_of(tables: Tables) -> DataFrame:
    """Return the table `ratios`, written as ratios.csv: what compared() says, and these keys.

    comparison: number of the set of runs in which only the arm, the seed and the repetition differ
    precision, baseline: the precision of the arm and that of its base
    axis, arm, base: the settings in which the two differ, and what they are on either side
    stands: whether a difference is significant after Holm's correction for all ratios of the report
    notebook, title, device, data, model, batch, execution: of the comparison

    The gain of a CUDA graph is noted in eager records, for what limits them.
    """
    note_graph_gains(tables)
    rows = []
    for number, (arm, base) in product(tables.comparisons.index, tables.axis.pairs(tables.arms)):
        own = tables.runs(number, arm)
        others = tables.runs(number, base)
        if found := tables.between(own, others):
            rows.append(
                {
                    "comparison": number,
                    "precision": own[0]["precision"],
                    "baseline": others[0]["precision"],
                    "axis": ", ".join(tables.axis.settings),
                    "arm": arm,
                    "base": base,
                    "test": id(found),
                    **found,
                }
            )
    if not rows:
        return empty("ratios")
    table = DataFrame(rows)
    tests = table.drop_duplicates("test").set_index("test").p
    table["stands"] = table.test.map(corrected(tests)) & table.outcome.isin(DIFFERENT)
    return table[TABLE_COLUMNS["ratios"]]


def corrected(p_values: Series) -> Series:
    """Return of each p value whether it stands among many others; true where it is unknown."""
    stands = Series(True, p_values.index)
    known = p_values.dropna()
    if len(known) > MANY_RATIOS:
        stands[known.index] = stand_together(list(known))
    return stands


def note_graph_gains(tables: Tables) -> None:
    """Note in eager runs by how much a CUDA graph was faster, because that refutes that kernels
    are the limit.
    """
    for _, pair in alike(tables.comparisons, "execution"):
        by_way = dict(zip(pair.execution, pair.index, strict=True))
        for arm in tables.arms if {"eager", "cuda_graph"} <= set(by_way) else ():
            eager = tables.runs(by_way["eager"], arm)
            found = tables.between(tables.runs(by_way["cuda_graph"], arm), eager)
            if found and found["outcome"] in DIFFERENT and found["low"] > SAME_TO:
                for run in eager:
                    gain = {name: found[name] for name in ("ratio", "low", "high")}
                    run["graph_gain"] = Finding("gain", values=gain)


def alike(comparisons: DataFrame, *settings: str) -> Iterable[tuple[Any, DataFrame]]:
    """Return the comparisons in groups that are equal in all settings but these."""
    if comparisons.empty:
        return []
    keys = [
        json.dumps({name: value for name, value in one.items() if name not in settings})
        for one in comparisons.settings
    ]
    return comparisons.groupby(Series(keys, comparisons.index), sort=False)


def quality_of(tables: Tables) -> DataFrame:
    """Return the table `quality`: quality_difference() over the first base, and these keys.

    diverged: runs of the arm that did not learn; then the outcome is inconclusive, because the
        others are a selection
    usable: whether the arm may be recommended: no quality is lost beyond the margin
    """
    rows = []
    first = tables.axis.bases[0]
    for number, arm in product(tables.comparisons.index, tables.arms):
        own = tables.runs(number, arm)
        base = tables.runs(number, first)
        known = tables.between(own, base) if arm != first else None
        if not known or not known["quality"]:
            continue
        found = dict(known["quality"])
        diverged = sum(run["status"] == "diverged" for run in tables.runs(number, arm, ok=False))
        if diverged:
            found["outcome"] = UNKNOWN
        if tables.on_cpu:
            found["outcome"] = ON_CPU
        usable = not quality_lost(own, base)
        if own[0]["precision"] in NO_FP32_WEIGHTS:
            usable = found["outcome"] in AS_GOOD and has_learned(own)
        rows.append(
            {
                "comparison": number,
                "precision": own[0]["precision"],
                "arm": arm,
                "base": first,
                **found,
                "diverged": diverged,
                "usable": usable,
            }
        )
    return DataFrame(rows, columns=TABLE_COLUMNS["quality"])


def bars_of(tables: Tables, comparisons: Iterable[int] | None = None) -> DataFrame:
    """Return a row for each arm of some comparisons: seconds, GiB, status, ratio.

    Seconds are geometric means, so two bars divide to the ratio of their processes; seconds_low and
    seconds_high are the ends of the runs. Ratios are those over `baseline`, as TF32, or fp32 where
    no run was in TF32. `note` is "disturbed" where all runs of the arm were, by flags_of().
    """
    wanted = tables.charted.index if comparisons is None else comparisons
    return tables.bars[tables.bars.comparison.isin(wanted)].reset_index(drop=True)


def stands_out(bars: DataFrame) -> Series:
    """Return of each bar whether its ratio is above those of all other arms of its comparison, with
    intervals that do not overlap.
    """
    rivals = bars[bars.ratio.notna() & ~bars.is_base]
    highs = rivals.high.astype(float).fillna(float("inf")).groupby(rivals.comparison)
    second = highs.transform(lambda ends: ends.nlargest(2).iloc[-1])
    alone = highs.transform("size") == 1
    return (rivals.low.astype(float).gt(second) & ~alone).reindex(bars.index, fill_value=False)


def flattened(record: dict) -> dict:
    """Return a record as a row: lists of numbers as median and count, other lists and dicts as
    JSON.
    """
    row, fields = {}, {**record}
    for name, value in {**fields.pop("settings"), **fields}.items():
        if isinstance(value, list) and all(isinstance(one, (int, float)) for one in value):
            row[f"{name}_median"] = statistics.median(value) if value else None
            row[f"{name}_count"] = len(value)
        elif isinstance(value, Finding):
            row[name] = said(value)
        elif isinstance(value, (list, dict)):  # with eight digits, as csv_of() writes numbers
            row[name] = json.dumps(
                json.loads(json.dumps(value), parse_float=lambda one: float(f"{float(one):.8g}"))
            )
        else:
            row[name] = value
    return row


def csv_of(table: DataFrame) -> bytes:
    """Return a table as CSV. Numbers have eight digits, because nothing is measured more exactly.

    A text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    texts = table.select_dtypes(["object", "string"]).columns
    table = table.assign(**{name: table[name].map(inert) for name in texts}).rename(columns=inert)
    return table.convert_dtypes().to_csv(index=False, float_format="%.8g").encode()


def inert(value: object) -> object:
    """Return a value with an apostrophe before a text that begins as a formula does.

    Numbers stay what they are.
    """
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
