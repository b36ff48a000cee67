"""What an article claims, and whether it holds here."""

import json
import math
import re
import statistics

from ...analysis.bottleneck import find_bottleneck
from ..batch_sizes import failing_above, size_of
from ..comparisons import family_title, gap_text, ok_runs
from ..environment import describe
from ..layout import rate_unit
from ..style import PRECISIONS
from ..training_curves import last_metrics, metric_of
from ..verdicts import judgement, ratio_text, speedup_between
from ..words import count, short, span
from .matching import (
    ACCURACY_ALIKE,
    ALIKE,
    CARD_GIB,
    bare,
    differences,
    match_published,
    of_same_model,
    own_entries,
    published_entries,
)

HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot be told"
TIME_ALIKE = 0.05  # a change of time against fp32 by less counts as none
SIMILAR = {"amp_fp16": "o2_fp16", "o2_fp16": "amp_fp16"}
SIZED = 1.5  # a factor of time that is as many times another is said to be larger or smaller here
STEP_ALIKE = 0.1  # figures of a single step of training, or of one sample, vary more
PIXELS = {"fastai-cifar100": 64}  # a side of the images, where a study enlarges them, as in studies.yaml
UNPAIRED, TOLD = "it is too short, or not paired", ("faster", "slower", "no measurable difference")


def change(value, base, words):
    """Return (change as text, its word): `words` are those for more and for less."""
    ratio = value / base
    word = "alike" if abs(ratio - 1) <= ALIKE else words[ratio < 1]
    return f"{abs(ratio - 1):.0%} {words[ratio < 1]}" if word != "alike" else f"alike ({ratio - 1:+.1%})", word


def memory_limit(group):
    """Return the GiB that the runs of a comparison might take of their card, or 0 for all of it."""
    return json.loads(group["settings"].get("memory_limit_gib", "0")) or 0


def time_claim(report, theirs, own, number):
    """Return (what, published, here, outcome) about time, or None where nothing is claimed."""
    if not (claimed := theirs["ratio"]):
        return None
    word = "alike" if abs(claimed - 1) < TIME_ALIKE else "faster" if claimed > 1 else "slower"
    claim = ("time", f"{claimed:.2f}x as fast as fp32")
    speedup = own and report.speedups.get((number, own["precision"], "fp32"))
    if not speedup:
        lacking = own["precision"] if own and not own["seconds"] else "fp32" if own else theirs["precision"]
        return (
            *claim,
            "no ratio",
            f"{UNTOLD}, because of {lacking}: {gap_text(report.comparisons[number]['runs'][lacking])}",
        )
    here, judged = ratio_text(speedup) + own["mark"], judgement(report, speedup)
    if judged not in ("faster", "slower", "no measurable difference"):
        return *claim, here, f"{UNTOLD}, because it is {judged}"
    alike = judged == "no measurable difference" or abs(speedup["ratio"] - 1) < TIME_ALIKE
    outcome = HOLDS if word == ("alike" if alike else judged) else FAILS
    return *claim, f"{here}, {judged}", sized(outcome, claimed, speedup["ratio"])


def memory_claim(theirs, base, own, own_base):
    """Return likewise about memory; PyTorch's peak and the whole device must agree."""
    if not (base and theirs["memory"] and base["memory"]):
        return None
    text, word = change(theirs["memory"], base["memory"], ("more", "less"))
    names = {"memory": "PyTorch's peak", "device": "the whole device"}
    names = {"device": names["device"]} if theirs["kind"] == "device_used" else names
    pairs = {name: (own[field], own_base[field]) for field, name in names.items()} if own and own_base else {}
    found = {name: change(*pair, ("more", "less")) for name, pair in pairs.items() if all(pair)}
    if not found:
        return "memory", text, "nothing to compare", f"{UNTOLD}, because it was not measured here in both"
    here, words = ", ".join(f"{name} {said}" for name, (said, _) in found.items()), {said for _, said in found.values()}
    if len(words) > 1:
        return "memory", text, here, f"{UNTOLD}, because the two disagree"
    return "memory", text, here, HOLDS if words == {word} else FAILS


def metric_claim(theirs, base, own, own_base):
    """Return likewise about the last metric; here it needs equal epochs in both, and half as many as published."""
    names = theirs["metrics"].keys() & base["metrics"].keys() if base else set()
    names = sorted(names & own["metrics"].keys() & own_base["metrics"].keys()) if own and own_base else []
    if not names:
        return None
    pairs = [tuple(one["metrics"][names[0]] for one in pair) for pair in ((theirs, base), (own, own_base))]
    texts = [f"{pair[0]:.4g} against {pair[1]:.4g}" for pair in pairs]
    texts = [f"{text} after epoch {one['epochs']}" for text, one in zip(texts, (theirs, own), strict=True)]
    lengths = [one["epochs"] for one in (theirs, base, own, own_base)]
    if lengths[0] != lengths[1] or lengths[2] != lengths[3] or not all(length.isdigit() for length in lengths):
        return names[0], *texts, f"{UNTOLD}, because the epochs differ"
    if int(lengths[2]) < int(lengths[0]) / 2:
        few = f"{count(int(lengths[2]), 'epoch')} is less than half of {lengths[0]}"
        return names[0], *texts, f"{UNTOLD}, because {few}"
    words = [metric_word(names[0], *pair) for pair in pairs]
    if words[0] != words[1] and own["runs"] == own_base["runs"] == 1:
        return names[0], *texts, f"{UNTOLD}, because there is one run of each"
    return names[0], *texts, HOLDS if words[0] == words[1] else FAILS


def metric_word(name, value, base):
    """Return higher, lower or alike: an accuracy by its difference, any other metric by its ratio."""
    apart = (value - base) / ACCURACY_ALIKE if name == "accuracy" else (value / base - 1) / ALIKE
    return "alike" if round(abs(apart), 6) <= 1 else "higher" if apart > 0 else "lower"


def sized(outcome, claimed, here):
    """Return the outcome of a claim about time; where it holds, also whether the factor is far from the published."""
    far = outcome == HOLDS and max(here / claimed, claimed / here) > SIZED
    return f"{outcome}, {'larger' if here > claimed else 'smaller'} here" if far else outcome


def oom_claim(report, theirs, number):
    """Return (here, outcome) about a mode that ran out of memory: on a card, or within a limit, of at most its size."""
    runs, card = report.comparisons[number]["runs"][theirs["precision"]], CARD_GIB.get(theirs["gpu"])
    limit = memory_limit(report.comparisons[number])
    room = limit or next((run["device_total_mib"] / 1024 for run in runs if run["device_total_mib"]), None)
    context = max((run["ledger_context_mib"] or 0) / 1024 for run in runs)
    needed = context + max((run["peak_allocated_mib"] or 0) / 1024 for run in runs)
    taken = max([needed, *((run["peak_reserved_mib"] or 0) / 1024 + context for run in runs)])
    if {run["status"] for run in runs} == {"oom"}:
        smaller = card and room and room < 0.9 * card
        where = f"oom within {short(room)} GiB" if room else "oom"
        return where, f"{UNTOLD}, because that card has {card} GiB" if smaller else HOLDS
    if {run["status"] for run in runs} == {"ok"} and card and needed > context:
        text = f"ok, with {span([needed, taken], '{:.1f}')} GiB; that card has {card} GiB"
        return text, HOLDS if needed > card else FAILS if taken <= card else f"{UNTOLD}, because it is too near"
    return gap_text(runs) or "ok", f"{UNTOLD}, because it did not end in one way here" if gap_text(runs) else FAILS


def status_claim(report, theirs, number):
    """Return (what, published, here, outcome) about a mode that did not end well, or None."""
    runs = report.comparisons[number]["runs"][theirs["precision"]]
    if theirs["status"] == "ok" or not runs:
        return None
    if theirs["status"] == "oom":
        return "memory", "out of memory", *oom_claim(report, theirs, number)
    here = {run["status"] for run in runs}
    told = {theirs["status"]: HOLDS, "ok": FAILS}.get(next(iter(here))) if len(here) == 1 else None
    told = told or f"{UNTOLD}, because it did not end in one way here"
    return "status", theirs["status"], gap_text(runs) or "ok", told


def claims_of(report, theirs, both, number):
    """Return (own precision, [claims]) of a published mode beside one comparison; `both` are all published entries."""
    own = {one["precision"]: one for one in own_entries(report, number, [number])}
    mode = theirs["precision"] if theirs["precision"] in own else SIMILAR.get(theirs["precision"])
    base = next((one for one in both if (one["gpu"], one["precision"]) == (theirs["gpu"], "fp32")), None)
    pairs = (base, own.get(mode), own.get("fp32"))
    claims = [status_claim(report, theirs, number)]
    if theirs["precision"] != "fp32":
        claims += [time_claim(report, theirs, own.get(mode), number), memory_claim(theirs, *pairs)]
        claims += [metric_claim(theirs, *pairs)]
    return mode if mode in own else None, [claim for claim in claims if claim]


def base_of(published, row):
    """Return the published row of fp32 that a row is to be compared with, or None."""
    names = ("study", "gpu", "model", "batch_size", "metric_name", "time_of")
    others = [
        one for one in published.rows if one["precision"] == "fp32" and all(one[name] == row[name] for name in names)
    ]
    return next(iter(others), None)


def ratios_of_largest(sizes, group, mode):
    """Return (ratio of the largest batch in a mode to that in fp32, the least and the most that it may be)."""
    failing = {name: failing_above(size, group["runs"][name]) or size for name, size in sizes.items()}
    return sizes[mode] / sizes["fp32"], sizes[mode] / failing["fp32"], failing[mode] / sizes["fp32"]


def timed_claim(report, number, precision, baseline="fp32"):
    """Return (comparison, what is found, ratio or in words why there is none) of a speed-up in a comparison."""
    speedup, group = report.speedups.get((number, precision, baseline)), report.comparisons[number]
    lacking = [f"{name}: {gap}" for name in (precision, baseline) if (gap := gap_text(group["runs"][name]))]
    text = f"{precision} {ratio_text(speedup)}, {judgement(report, speedup)}" if speedup else ", ".join(lacking)
    return group["title"], text, speedup["ratio"] if speedup and judgement(report, speedup) in TOLD else UNPAIRED


def half_of(report, number):
    """Return the 16-bit mode of a comparison that stands for the articles' mixed precision: O2 before autocast."""
    return next((name for name in ("o2_fp16", "amp_fp16") if ok_runs(report.comparisons[number], name)), "amp_fp16")


def other_images(row, group):
    """Return why the images of a comparison are not those that a published row speaks of, or None."""
    here, pixels = json.loads(group["settings"].get("image_size", "null")), PIXELS.get(row["study"])
    if row["dataset"] and bare(group["data"]) != bare(row["dataset"]):
        return f"the data here are {group['data']}, not {row['dataset']}"
    return (
        f"the images here have {here or 'unknown'} pixels a side, not {pixels}" if pixels not in (None, here) else None
    )


def why_not_data_loading(runs):
    """Return why runs tell nothing of a slow loader, or None: data loading must be what limits every one of them."""
    if all(find_bottleneck(run)[0] == "data loading" for run in runs):
        return None
    waits = [100 * run["data_wait_fraction"] for run in runs if run["data_wait_fraction"] is not None]
    waited = f"{span(waits, '{:.0f}%')} of the time" if waits else "not known"
    cores = describe(run["host_cores"] for run in runs)
    return f"data loading does not limit these runs (host cores: {cores}; waiting for data: {waited})"


def mixed_over_fp32(report, row):
    """Return what is found about the time in mixed precision: of the model named, or with loader workers."""
    numbers, slow_loader = of_same_model(report, row), "cores" in (row["note"] or "")
    if slow_loader:  # what the loader costs does not depend on the model
        fits = lambda n: report.comparisons[n]["settings"].get("loader") == '"workers"'  # noqa: E731
        numbers = [n for n in report.charted if fits(n) and report.comparisons[n]["batch"] == f"b{row['batch_size']:g}"]
    numbers = [n for n in numbers if bare(report.comparisons[n]["data"]) == bare(row["dataset"])]
    found = []
    for n in numbers:
        title, text, told = timed_claim(report, n, half_of(report, n))
        runs = [run for name in ("fp32", half_of(report, n)) for run in ok_runs(report.comparisons[n], name)]
        why = why_not_data_loading(runs) if slow_loader else other_images(row, report.comparisons[n])
        found.append((title, text, why or told))
    return found


def largest_ratios(report, row):
    """Return what is found about the largest batch: searches on its images, within the memory of the article's card."""
    card, found = CARD_GIB.get(row["gpu"]), []
    searches = [group for group in report.largest if rate_unit(group).startswith("images")]
    searches = [group for group in searches if not other_images(row, group)] or searches  # others can tell nothing
    within = [group for group in searches if memory_limit(group) == card]
    for group in within or searches:
        sizes = {name: max(map(size_of, runs)) for name in PRECISIONS if (runs := ok_runs(group, name))}
        if mode := next((name for name in ("o2_fp16", "amp_fp16") if name in sizes and "fp32" in sizes), None):
            ratios = ratios_of_largest(sizes, group, mode)
            text = f"{sizes[mode]:,} in {mode} against {sizes['fp32']:,}"
            text += f": {ratios[1]:.2f} to {ratios[2]:.2f} times" * (ratios[1] < ratios[2])
            found.append((family_title(group), text, other_images(row, group) or ratios))
    return found


def logged(report, row):
    """Return what is found about a figure of the training log at one step: a mode against fp32."""
    what, step = re.fullmatch(r"train_(\w+)_at_step_(\d+)", row["metric_name"]).groups()
    column, found = {"loss": 2, "accuracy": 3}[what], []
    for number in row["beside"]:
        ends = {}
        for name in (row["precision"], "fp32"):
            runs = [entry for run in ok_runs(report.comparisons[number], name) for entry in run["training_log"]]
            ends[name] = next((entry[column] for entry in runs if entry[:2] == [1, int(step)]), None)
        if all(ends.values()):
            mode, fp32 = ends[row["precision"]], ends["fp32"]
            found.append((report.comparisons[number]["title"], f"{mode:.4g} against {fp32:.4g}", mode / fp32))
    return found


def by_scale(published, row):
    """Return what is found about the time at a row's loss scale against that at the first scale published."""
    first, found = first_scale(published, row), []
    for group in published.report.comparisons:
        own = json.loads(group["settings"].get("loss_scale", "null"))
        rest = {name: value for name, value in group["settings"].items() if name != "loss_scale"}
        if own != row["loss_scale"] or bare(group["model"]) != bare(row["model"]) or differences(row, group):
            continue
        bases = [
            other
            for other in published.report.comparisons
            if {**other["settings"], "loss_scale": None} == {**rest, "loss_scale": None}
        ]
        bases = [
            other for other in bases if json.loads(other["settings"].get("loss_scale", "null")) == first["loss_scale"]
        ]
        runs = [ok_runs(one, row["precision"]) for one in (group, *bases[:1])]
        if speedup := len(runs) == 2 and speedup_between(*runs):
            near = speedup["pairs"] or abs(speedup["ratio"] - 1) <= ALIKE  # on two cards only what is alike can be told
            text = f"{ratio_text(speedup)} of the speed at {first['loss_scale']:g}"
            found.append(
                (
                    group["title"],
                    text + ", on another card" * (not speedup["pairs"]),
                    speedup["ratio"] if near else UNPAIRED,
                )
            )
    return found


def first_scale(published, row):
    """Return the first published row that differs from a row in the loss scale alone."""
    names = ("study", "gpu", "model", "batch_size", "precision", "time_of")
    return next(one for one in published.rows if one["seconds"] and all(one[name] == row[name] for name in names))


def inferred(report, row):
    """Return what is found about the latency of one image in fp32 over that in 16 bit, once for every model."""
    keys = [
        n
        for n in report.charted
        if rate_unit(report.comparisons[n]).startswith("images") and (n, "fp32") in report.latency
    ]
    modes = {n: row["precision"] if (n, row["precision"]) in report.latency else half_of(report, n) for n in keys}
    modes = {n: mode for n, mode in modes.items() if (n, mode) in report.latency}
    times = {n: (report.latency[n, "fp32"][0], report.latency[n, mode][0]) for n, mode in modes.items()}
    found = {report.comparisons[n]["model"]: n for n in reversed(modes)}.values()
    text = {n: f"{short(times[n][0])} ms in fp32, {short(times[n][1])} ms in {modes[n]}" for n in found}
    return [(report.comparisons[n]["title"], text[n], times[n][0] / times[n][1]) for n in reversed(found)]


def without_figures(report, row):
    """Return what the runs of the models of a row show, which was published as a drawing alone."""
    found = []
    for n in (n for n in of_same_model(report, row) if bare(report.comparisons[n]["data"]) == bare(row["dataset"])):
        title, text, _ = timed_claim(report, n, half_of(report, n))
        ends = {name: [*last_metrics(report.comparisons[n], name).values()] for name in (half_of(report, n), "fp32")}
        if all(ends.values()):
            both = " against ".join(f"{statistics.median(values):.4g}" for values in ends.values())
            text += f"; {metric_of(report.comparisons[n])[0]} {both} in fp32"
        found.append((title, text, None))
    return found


def claim_of(published, row):
    """Return (what is claimed, as published, the ratio, share that counts as alike, what is found), or None.

    These are the claims of a published row that are no figure of one run.
    """
    base, name, metric = base_of(published, row), row["metric_name"] or "", row["metric"]
    if row["precision"] == "fp32":
        return None
    if name == "fp32_time_over_mixed":
        what = "time with loader workers" if "cores" in (row["note"] or "") else "time"
        return what, f"fp32 takes {metric:g}x as long", metric, TIME_ALIKE, mixed_over_fp32(published.report, row)
    if name == "largest_batch_over_fp32":
        return "largest batch", f"about {metric:g}x that of fp32", metric, ALIKE, largest_ratios(published.report, row)
    if name == "largest_batch" and base:
        ratio = metric / base["metric"]
        return (
            "largest batch",
            f"{metric:g} against {base['metric']:g}",
            ratio,
            ALIKE,
            largest_ratios(published.report, row),
        )
    if name.startswith("train_") and base:
        text = f"{metric:.4g} against {base['metric']:.4g}"
        return name.replace("_", " "), text, metric / base["metric"], STEP_ALIKE, logged(published.report, row)
    if row["time_of"] == "frame" and base:
        ratio = base["time_seconds"] / row["time_seconds"]
        text = f"{1000 * base['time_seconds']:g} ms in fp32, {1000 * row['time_seconds']:g} ms"
        return "one image, no training", text, ratio, STEP_ALIKE, inferred(published.report, row)
    if row["loss_scale"] and row["seconds"] and (first := first_scale(published, row)) is not row:
        text = f"{short(row['seconds'])} s against {short(first['seconds'])} s at {first['loss_scale']:g}"
        what, ratio = f"time at loss scale {row['loss_scale']:g}", first["seconds"] / row["seconds"]
        return what, text, ratio, ALIKE, by_scale(published, row)
    if row["status"] == "ok" and not any((metric, row["time_seconds"], row["memory_mib"])):
        return "time", "drawn, without figures", None, ALIKE, without_figures(published.report, row)
    return None


def direction(ratio, alike):
    return 0 if abs(ratio - 1) <= alike else math.copysign(1, ratio - 1)


def outcome_of(claimed, found, alike, what=""):
    """Return whether a ratio holds that was published as `claimed`; `found` says why there is none, is one, or three.

    Of three the second and third are the least and the most that it may be.
    """
    if claimed is None or isinstance(found, str):
        return f"{UNTOLD}, because {'no figure was published' if claimed is None else found}"
    found, low, high = found if isinstance(found, tuple) else (found, math.inf, -math.inf)
    if low <= claimed <= high:
        return HOLDS
    outcome = HOLDS if direction(claimed, alike) == direction(found, alike) else FAILS
    return sized(outcome, claimed, found) if what.startswith(("time", "one image")) else outcome


def claims_in(published, row):
    """Return the claim of a row as rows of the table, one for every comparison that shows something."""
    what, said, claimed, alike, found = claim_of(published, row) or (None, None, None, None, [])
    name = " ".join(part for part in (row["precision"], f"on {row['gpu']}" if row["gpu"] else "") if part)
    for one in (one for one in (row, base_of(published, row)) if one and found):
        one["told"] = True
    claims = [{"claim": f"{name}: {what}", "published": said, "runs here": title} for title, *_ in found]
    ends = [{"here": text, "outcome": outcome_of(claimed, ratio, alike, what)} for _, text, ratio in found]
    return [claim | end for claim, end in zip(claims, ends, strict=True)]


def told_by(report, one, numbers):
    """Return the comparisons that can tell of a published mode: what ran out of memory, on as much as that card has."""
    limited = [n for n in numbers if memory_limit(report.comparisons[n]) == CARD_GIB.get(one["gpu"])]
    return limited if limited and one["status"] == "oom" else numbers


def direct_claims(report, numbers, theirs, images):
    """Return the claims on time, memory, metric and status of published modes as rows of the table.

    Of a claim that cannot be told by one comparison there is a row only where no other on the same card can tell it.
    """
    rows = []
    for one in theirs:
        found = []
        for number in told_by(report, one, numbers):
            mode, claims = claims_of(report, one, theirs, number)
            stand_in = f", {mode} in its place" if mode not in (None, one["precision"]) else ""
            found += [(report.comparisons[number], images + stand_in, *claim) for claim in claims]
        told = {(group["device"], what) for group, _, what, *_, end in found if not end.startswith(UNTOLD)}
        for group, more, what, said, here, outcome in found:
            if (group["device"], what) not in told or not outcome.startswith(UNTOLD):
                name = f"{one['precision']} on {one['gpu']}, {group['batch']}: {what}"
                row = {"claim": name, "published": said, "runs here": group["title"] + more}
                rows.append(row | {"here": here, "outcome": outcome})
    return rows


def claims_of_study(published, study):
    """Return all claims of an article that runs here tell something of."""
    parts = [(*part, "") for part in published.beside.get(study, {}).items()]
    parts += [(*part, ", other images") for part in published.similar.get(study, {}).items()]
    found = [
        claim
        for numbers, rows, more in parts
        for claim in direct_claims(published.report, numbers, published_entries(rows), more)
    ]
    return found + [claim for row in published.rows if row["study"] == study for claim in claims_in(published, row)]


def judge_published(report):
    """Return the published figures with all claims judged."""
    published = match_published(report)
    published.claims = {
        study: claims_of_study(published, study) for study in dict.fromkeys(row["study"] for row in published.rows)
    }
    return published


def without_counterpart(published):
    """Return the published rows that tell nothing of the runs here."""
    return [row for row in published.rows if not (row["beside"] or row["similar"] or row.get("told"))]
