"""Which runs are compared with which, and how a comparison is called."""

from collections import Counter

from ..record import comparison_key, find_diverged
from .environment import data_of, device_of
from .reading import PLACE
from .section import Section
from .style import LOUD, PRECISIONS
from .theme import chart_style
from .words import count, natural, plain


def mark_diverged(runs, others="another precision"):
    """Mark the runs that learned nothing where `others` did; runs of several machines may have one name."""
    for place, reason in find_diverged([run | {"run_id": place} for place, run in enumerate(runs)]).items():
        runs[place].update(status="diverged", reason=reason.replace("another precision", others))


def group_runs(records):
    """Return the comparisons in order, each a dict with its runs per precision; mark runs that learned nothing."""
    members, groups = {}, []
    for record in records:
        members.setdefault(comparison_key(record), []).append(record)
    for key, runs in members.items():
        mark_diverged(runs)
        group = {"notebook": runs[0]["notebook"], "device": device_of(runs[0]), "data": data_of(runs[0])}
        group |= {"model": str(runs[0]["model"]), "batch": f"b{runs[0]['batch_size']}", "settings": dict(key)}
        group["runs"] = {name: [record for record in runs if record["precision"] == name] for name in PRECISIONS}
        groups.append(group)
    return sorted(groups, key=lambda group: [natural(value) for name, value in group.items() if name != "runs"])


def setting_text(name, value):
    """Return a parameter as a short label; `value` is JSON."""
    words = {"true": name, "false": f"no {name}", "null": f"{name} unknown"}
    plain_value = value.strip('"').removesuffix(".0")
    if name == "memory_limit_gib" and value != "null":
        return "whole card" if plain_value == "0" else f"at most {plain_value} GiB"
    return words.get(value) or (plain_value if name == "execution" else f"{name}={plain_value}")


SAID = {"notebook", "dataset_used", "model", "batch_size", *PLACE}


def told_apart(group, peers, said=SAID, lacking=(None,)):
    """Return the settings in which a comparison differs from its peers, as labels; which older ones lack is none."""
    values = {name: {peer["settings"].get(name) for peer in peers}.difference(lacking) for name in group["settings"]}
    names = [name for name, found in values.items() if name not in said and len(found) > 1]
    return [setting_text(name, group["settings"][name]) for name in names]


def label_groups(groups):
    """Give every comparison `lines` (for an axis) and a `title`: model, data, batch, and what else tells it apart.

    Its `differing` settings are all in which the comparisons of its experiment differ.
    """
    several, titles = len({group["device"] for group in groups}) > 1, {}
    for group in groups:
        peers = [other for other in groups if other["notebook"] == group["notebook"]]
        alike = [peer for peer in peers if all(peer[name] == group[name] for name in ("data", "model", "batch"))]
        group["differing"] = told_apart(group, peers)
        apart = [line for line in told_apart(group, alike) if line != "loss_scale=dynamic"]  # the usual one
        limit = group["settings"].get("memory_limit_gib", "null")
        limited = [setting_text("memory_limit_gib", limit)] * (limit not in ("null", "0", "0.0"))  # is always said
        apart += [line for line in limited if line not in apart]
        group["lines"] = [group["model"], f"{group['data']}, {group['batch']}", *apart]
        group["title"] = " · ".join([*group["lines"], *([group["device"]] * several)])
        titles.setdefault((group["notebook"], group["title"]), []).append(group)
    for same in titles.values():  # such as older records, which lack a parameter
        for group in same:
            group["lines"] += (more := told_apart(group, same, lacking=()))
            group["title"] = " · ".join([group["title"], *more])


def usual_of(report, notebook):
    """Return the commonest settings of an experiment as labels, of those in which its comparisons differ; few: none."""
    values = {}
    for group in (group for group in report.comparisons if group["notebook"] == notebook):
        for name, value in group["settings"].items():
            values.setdefault(name, Counter())[value] += 1
    values = {name: found for name, found in values.items() if name not in SAID and len(found) > 1}
    return [setting_text(name, found.most_common(1)[0][0]) for name, found in values.items() if len(values) > 3]


def sweeps_of(groups):
    """Return {(settings but the loss scale, precision): {scale or "dynamic": runs}} of three fixed scales or more."""
    sweeps = {}
    for group in groups:
        settings = tuple(item for item in group["settings"].items() if item[0] != "loss_scale")
        for precision in (name for name, runs in group["runs"].items() if runs and "fp16" in name):
            scale = group["runs"][precision][0].get("loss_scale")
            sweeps.setdefault((settings, precision), {}).setdefault(scale, []).extend(group["runs"][precision])
    return {key: runs for key, runs in sweeps.items() if sum(type(scale) in (int, float) for scale in runs) >= 3}


def family_title(group):
    """Return the title of a comparison without its batch size."""
    return group["title"].replace(f", {group['batch']}", "", 1)


def families(groups, setting, kind=lambda group: None):
    """Return lists of the comparisons that are equal in every setting but one and are of the same `kind`."""
    found = {}
    for group in groups:
        key = (kind(group), *(item for item in group["settings"].items() if item[0] != setting))
        found.setdefault(key, []).append(group)
    return list(found.values())


def runs_of(groups):
    return [run for group in groups for runs in group["runs"].values() for run in runs]


def ok_runs(group, precision):
    return [record for record in group["runs"][precision] if record["status"] == "ok"]


def run_label(record):
    """Return what tells a run from the others of its comparison and precision."""
    repeat = record.get("repeat")
    return f"seed {record['seed']}" + (f", repetition {repeat}" if repeat is not None else "")


def gap_text(runs, absent=""):
    """Return what stands where a bar is missing, or beside one that not all runs have reached."""
    statuses = Counter(record["status"] for record in runs)
    failed = [f"{status} ({count} of {len(runs)})" for status, count in statuses.items() if status != "ok"]
    if len(statuses) == 1:
        failed = [text.partition(" ")[0] for text in failed]
    return ", ".join(failed) or (absent if runs else "not run")


def usual_settings(report):
    """Return {experiment: its commonest settings, as labels}."""
    return {
        notebook: usual_of(report, notebook)
        for notebook in dict.fromkeys(group["notebook"] for group in report.comparisons)
    }


def rows_of_comparisons(report):
    """Return the comparisons as rows of a table, with what is not the same in all."""
    usual = usual_settings(report)
    rows = [{"experiment": group["notebook"], "comparison": group["title"]} for group in report.comparisons]
    for row, group in zip(rows, report.comparisons, strict=True):
        rest = [label for label in group["differing"] if label not in usual[group["notebook"]]]
        row["not the same in all"] = " · ".join(rest) or "-"
    return rows


def rows_of_failed(report):
    """Return the runs that did not end well as rows of a table."""
    return [
        {"comparison": f"{group['notebook']}: {group['title']}"}
        | {"precision": record["precision"], "run": run_label(record)}
        | {name: record[name] for name in ("status", "reason")}
        for group in report.every_group
        for runs in group["runs"].values()
        for record in runs
        if record["status"] != "ok"
    ]


@chart_style()
def section(report):
    """Return the table of the comparisons, and what did not end well."""
    section = Section()
    if report.on_cpu:
        section.say(
            f"**{LOUD}.** Every run was on the CPU: what follows shows that the suite works, and nothing about speed."
        )
    section.table(rows_of_comparisons(report))
    for notebook, labels in ((notebook, labels) for notebook, labels in usual_settings(report).items() if labels):
        section.say(f"Where the table says nothing else, {plain(notebook)} has: {plain(' · '.join(labels))}.")
    failed = rows_of_failed(report)
    section.say(
        f"{len(failed)} of the {len(report.used)} runs did not end well{', for these reasons:' if failed else '.'}"
    )
    if failed:
        section.table(failed)
    if len(report.charted) < len(report.comparisons):
        text = f"{count(len(report.alone), 'comparison')} of one precision alone"
        text += ", steps of a ladder or sweep of loss scales: shown"
        section.say(f"{text} there and in the tables of runs, and left out of the verdicts and the other charts.")
    return section
