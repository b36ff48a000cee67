"""Which runs are compared with which, and the names of the comparisons."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..analysis.conditions import fairly_timed
from ..analysis.explained import explain
from ..divergence import find_diverged
from ..record import comparison_key, is_explanation
from .environment import data_of, device_of
from .reading import PLACE
from .report import Report
from .section import Section
from .style import CPU_WARNING, PRECISIONS
from .words import count, natural, plain

TITLE = "What is compared with what"
ABOUT = """A comparison is a set of runs on one GPU model in which only precision, seed and repetition differ.
A run that did not end well leaves a labelled gap."""
VIT_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}


def mark_diverged(runs: list[dict], others: str = "another precision") -> None:
    """Mark the runs that learned nothing where `others` did. Runs of several machines may share a run id."""
    numbered = {str(index): run for index, run in enumerate(runs)}
    for name, reason in find_diverged([run | {"run_id": name} for name, run in numbered.items()]).items():
        numbered[name].update(status="diverged", reason=reason.replace("another precision", others))


def group_runs(records: list[dict]) -> list[dict]:
    """Return the comparisons in order, and mark runs that learned nothing.

    Each is a dict of notebook, device, data, model, batch, settings ({name: JSON}) and runs ({precision: records}).
    Runs that only explain are under `explaining`, and what they found is in the records of the runs that were timed.
    """
    members: dict[tuple, list[dict]] = {}
    for record in records:
        members.setdefault(comparison_key(record), []).append(record)
    groups = []
    for key, runs in members.items():
        timed = [record for record in runs if not is_explanation(record)]
        explaining = [record for record in runs if is_explanation(record)]
        if not timed:
            continue
        mark_diverged(timed)
        group = {
            "notebook": timed[0]["notebook"],
            "device": device_of(timed[0]),
            "data": data_of(timed[0]),
            "model": str(timed[0]["model"]),
            "batch": f"b{timed[0]['batch_size']}",
            "settings": dict(key),
            "runs": {name: [record for record in timed if record["precision"] == name] for name in PRECISIONS},
            "explaining": explaining,
        }
        for name, found in group["runs"].items():
            explain(found, [record for record in explaining if record["precision"] == name])
        groups.append(group)
    lend_baselines(groups)
    return sorted(groups, key=place_of)


def place_of(group: dict) -> list:
    """Return a sort key of comparisons: the widths of one model are in order."""
    kind, width = width_of(group) or (group["model"], 0)
    before = [natural(group[name]) for name in ("notebook", "device", "data")]
    return [*before, natural(kind), width, *(natural(group[name]) for name in ("batch", "settings"))]


def width_of(group: dict) -> tuple[str, int] | None:
    """Return the kind of a comparison's model, "transformer" or "vit", and its width; None of other models."""
    if group["model"] == "transformer" and "units" in group["settings"]:
        return "transformer", int(json.loads(group["settings"]["units"]))
    if found := re.match(rf"vit_({'|'.join(VIT_WIDTHS)})_", group["model"]):
        return "vit", VIT_WIDTHS[found[1]]
    return None


def lend_baselines(groups: list[dict]) -> None:
    """Give a comparison with stochastic rounding the fp32 and tf32 runs of the one that rounds to nearest.

    The setting concerns bf16_true alone. The two comparisons must be equal in all else.
    """
    for same in families(groups, "rounding"):
        by_rounding = {group["settings"].get("rounding"): group for group in same}
        nearest, stochastic = by_rounding.get('"nearest"'), by_rounding.get('"stochastic"')
        if nearest and stochastic:
            for name in ("fp32", "tf32"):
                stochastic["runs"][name] = stochastic["runs"][name] or nearest["runs"][name]


def execution_of(group: dict) -> str:
    """Return how the steps of a comparison were executed."""
    return group["settings"].get("execution", '"eager"').strip('"')


def way_of(group: dict) -> str:
    """Return "as one graph" where the steps of a comparison were CUDA graphs, else "eager"."""
    return "as one graph" if "cuda_graph" in execution_of(group) else "eager"


def setting_text(name: str, value: str) -> str:
    """Return a parameter as a short label; `value` is JSON."""
    text = value.strip('"').removesuffix(".0")
    if name == "data_fingerprint":
        return "data not recorded" if value == "null" else f"data {text[:6]}"
    if value == "null":
        return f"{name} unknown"
    if name == "memory_limit_gib":
        return "whole card" if text == "0" else f"at most {text} GiB"
    if name == "max_steps" and text == "0":
        return "whole epochs"
    if value in ("true", "false"):
        return name if value == "true" else f"without {name}"
    if name == "rounding":
        return f"{text} rounding"
    return text if name in ("execution", "optimizer") else f"{name}={text}"


USUAL = ("loss_scale=dynamic", "nearest rounding")  # no title names them
NAMED_APART = {"notebook", "dataset_used", "model", "batch_size", *PLACE}  # settings that every title has anyway


def told_apart(
    group: dict, peers: list[dict], named: Collection[str] = NAMED_APART, lacking: tuple = (None,)
) -> list[str]:
    """Return the settings in which a comparison differs from its peers, as labels.

    Settings in `named` are left out, and a value in `lacking` is no difference: older records have fewer settings.
    """
    values = {name: {peer["settings"].get(name) for peer in peers}.difference(lacking) for name in group["settings"]}
    names = [name for name, found in values.items() if name not in named and len(found) > 1]
    return [setting_text(name, group["settings"][name]) for name in names]


def label_groups(groups: list[dict]) -> None:
    """Give every comparison `lines` (for an axis) and a `title`: model, data, batch, and what else tells it apart.

    Its `differing` settings are all in which the comparisons of its experiment differ.
    """
    several_devices = len({group["device"] for group in groups}) > 1
    titles: dict[tuple, list[dict]] = {}
    for group in groups:
        peers = [other for other in groups if other["notebook"] == group["notebook"]]
        alike = [peer for peer in peers if all(peer[name] == group[name] for name in ("data", "model", "batch"))]
        group["differing"] = told_apart(group, peers)
        labels = [label for label in told_apart(group, alike) if label not in USUAL]
        limit = group["settings"].get("memory_limit_gib", "null")
        if limit not in ("null", "0", "0.0"):  # always named
            labels = list(dict.fromkeys([*labels, setting_text("memory_limit_gib", limit)]))
        group["lines"] = [group["model"], f"{group['data']}, {group['batch']}", *labels]
        group["title"] = " · ".join([*group["lines"], group["device"]] if several_devices else group["lines"])
        titles.setdefault((group["notebook"], group["title"]), []).append(group)
    for same in titles.values():  # such as older records, which lack a parameter
        for group in same:
            more = told_apart(group, same, lacking=())
            group["lines"] += more
            group["title"] = " · ".join([group["title"], *more])


def sweeps_of(groups: list[dict]) -> dict[tuple, dict]:
    """Return {(settings but the loss scale, precision): {scale or "dynamic": runs}} of three fixed scales or more."""
    sweeps: dict[tuple, dict] = {}
    for group in groups:
        settings = tuple(item for item in group["settings"].items() if item[0] != "loss_scale")
        for precision, runs in group["runs"].items():
            if runs and "fp16" in precision:
                sweep = sweeps.setdefault((settings, precision), {})
                sweep.setdefault(runs[0].get("loss_scale"), []).extend(runs)
    return {key: runs for key, runs in sweeps.items() if sum(type(scale) in (int, float) for scale in runs) >= 3}


def family_title(group: dict) -> str:
    """Return the title of a comparison without its batch size."""
    return group["title"].replace(f", {group['batch']}", "", 1)


def families(
    groups: Iterable[dict], setting: str, kind: Callable[[dict], object] = lambda group: None
) -> list[list[dict]]:
    """Return lists of the comparisons that are equal in every setting but one and are of the same `kind`."""
    found: dict[tuple, list[dict]] = {}
    for group in groups:
        key = (kind(group), *(item for item in group["settings"].items() if item[0] != setting))
        found.setdefault(key, []).append(group)
    return list(found.values())


def runs_of(groups: Iterable[dict]) -> list[dict]:
    """Return all runs of some comparisons."""
    return [run for group in groups for runs in group["runs"].values() for run in runs]


def ok_runs(group: dict, precision: str) -> list[dict]:
    """Return the runs of a comparison in one precision that ended well."""
    return [record for record in group["runs"][precision] if record["status"] == "ok"]


def timed_runs(group: dict, precision: str) -> list[dict]:
    """Return the runs of a precision whose times and energy count: see `fairly_timed`."""
    return fairly_timed(ok_runs(group, precision))


def over_runs(
    runs: list[dict], read: Callable[[dict], float | None], combine: Callable[[list[float]], float] = statistics.median
) -> float | None:
    """Return the median of a figure over the runs that have it, or what else `combine` makes of them."""
    values = [value for run in runs if (value := read(run)) is not None]
    return combine(values) if values else None


def middle_run(runs: list[dict], size: Callable[[dict], Any]) -> dict | None:
    """Return the run with the median of `size(record)`, of those where that is known."""
    known = sorted((record for record in runs if size(record)), key=size)
    return known[(len(known) - 1) // 2] if known else None


def profiled_run(runs: list[dict]) -> dict | None:
    """Return the middle run of those that were profiled, or None."""
    return middle_run(runs, busy_if_profiled)


def busy_if_profiled(run: dict) -> float | None:
    """Return the share of a step in which the GPU is busy, None where the step was not profiled."""
    return run["gpu_busy_fraction"] if run["kernel_family_fractions"] else None


def run_label(record: dict) -> str:
    """Return what tells a run from the others of its comparison and precision."""
    repeat = record.get("repeat")
    label = f"seed {record['seed']}" + (f", repetition {repeat}" if repeat is not None else "")
    return f"{label}, which only explains" if is_explanation(record) else label


def gap_text(runs: list[dict], absent: str = "") -> str:
    """Return why a bar is missing: statuses of the runs that failed, "not run", or `absent` where all ended well."""
    statuses = Counter(record["status"] for record in runs)
    failed = [f"{status} ({number} of {len(runs)})" for status, number in statuses.items() if status != "ok"]
    if len(statuses) == 1:
        failed = [text.partition(" ")[0] for text in failed]
    return ", ".join(failed) or (absent if runs else "not run")


def usual_settings(report: Report) -> dict[str, list[str]]:
    """Return {experiment: labels of the commonest values of the settings that differ in it}; none where few differ."""
    counts: dict[str, dict[str, Counter]] = {}
    for group in report.comparisons:
        of_experiment = counts.setdefault(group["notebook"], {})
        for name, value in group["settings"].items():
            of_experiment.setdefault(name, Counter())[value] += 1
    usual = {}
    for notebook, values in counts.items():
        differing = {name: found for name, found in values.items() if name not in NAMED_APART and len(found) > 1}
        labels = [setting_text(name, found.most_common(1)[0][0]) for name, found in differing.items()]
        usual[notebook] = labels if len(labels) > 3 else []
    return usual


def rows_of_comparisons(report: Report) -> list[dict]:
    """Return the comparisons as rows of a table, with what is not the same in all."""
    usual = usual_settings(report)
    rows = []
    for group in report.comparisons:
        rest = [label for label in group["differing"] if label not in usual[group["notebook"]]]
        row = {"experiment": group["notebook"], "comparison": group["title"]}
        rows.append(row | {"not the same in all": " · ".join(rest) or "-"})
    return rows


def rows_of_failed(report: Report) -> list[dict]:
    """Return the runs that did not end well as rows of a table."""
    rows = []
    for group in report.every_group:
        for record in [*runs_of([group]), *group["explaining"]]:
            if record["status"] != "ok":
                row = {"comparison": f"{group['notebook']}: {group['title']}", "precision": record["precision"]}
                rows.append(row | {"run": run_label(record), "status": record["status"], "reason": record["reason"]})
    return rows


def section(report: Report) -> Section:
    """Return the table of the comparisons, and what did not end well."""
    section = Section(TITLE, ABOUT)
    if not report.used:
        return section
    if report.on_cpu:
        section.say(
            f"**{CPU_WARNING}.** Every run was on the CPU. It shows that the suite works, and nothing about speed."
        )
    section.table(rows_of_comparisons(report))
    for notebook, labels in usual_settings(report).items():
        if labels:
            section.say(f"Unless the table says otherwise, {plain(notebook)} has: {plain(' · '.join(labels))}.")
    failed = rows_of_failed(report)
    if failed:
        section.say(f"{len(failed)} of the {len(report.used)} runs did not end well, for these reasons:")
        section.table(failed, "Runs that did not end well")
    else:
        section.say("The run finished." if len(report.used) == 1 else f"All {len(report.used)} runs finished.")
    if len(report.charted) < len(report.comparisons):
        section.say(
            f"{count(len(report.alone), 'comparison')} of one precision alone belong to a ladder or a sweep of loss"
            " scales. They are shown there and in the tables of runs, and not in the verdicts and the other charts."
        )
    return section
