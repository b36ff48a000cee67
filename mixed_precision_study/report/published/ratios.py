"""Claims of an article that compare two figures, such as the largest batch in two precisions, and whether they hold."""

import math
import statistics
from typing import NamedTuple

from ...analysis.bottleneck import find_bottleneck
from ...analysis.verdict import CANNOT_BE_TOLD, FASTER, LITTLE_FASTER, LITTLE_SLOWER, OUTCOMES, SAME, SLOWER
from ..batch_sizes import failing_above, size_of
from ..comparisons import family_title, gap_text, ok_runs
from ..environment import describe
from ..layout import rate_unit
from ..quality import last_metrics, metric_of
from ..report import Report
from ..style import PRECISIONS
from ..verdicts import conditions_text, judgement, ratio_text, speedup_between
from ..words import short, span
from .matching import Published, bare, differences, of_same_model, setting

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told"
ALIKE = 0.03  # the share up to which two figures without an interval count as alike
TIME_ALIKE = 0.05  # a smaller change of time against fp32 counts as none
STEP_ALIKE = 0.1  # figures of a single step of training, or of one sample, vary more
FAR = 1.5  # above this factor between both, a ratio that holds is called larger or smaller here
DIRECTIONS = {FASTER: 1, LITTLE_FASTER: 1, SAME: 0, LITTLE_SLOWER: -1, SLOWER: -1}
NO_RATIO = "one of the two has no time"
HALF_MODES = ("o2_fp16", "amp_fp16")  # what stands for an article's mixed precision: O2 before autocast
LOG_COLUMNS = {"train_loss": 2, "train_accuracy": 3}
GPU_GIB: dict[str | None, int] = {"Titan RTX": 24, "RTX 2080 Ti": 11, "2080 Ti and 1080 Ti": 11}  # memory, as sold
PIXELS = {"fastai-cifar100": 64}  # a side of the images, where a study enlarges them, as in studies.yaml


class Finding(NamedTuple):
    """What one comparison here shows about a claim: a ratio and the range it may lie in, or why there is none."""

    title: str
    text: str
    ratio: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    unknown: str = ""
    speedup: dict | None = None  # where the claim is about the time of training
    judged: str = ""  # what may be said of it


class RatioClaim(NamedTuple):
    """A claim of a published row that is no figure of one run."""

    what: str
    published: str
    ratio: float | None  # None where no figure was published
    alike: float  # the share up to which a ratio counts as 1
    findings: list[Finding]


def unknown(why: str) -> str:
    """Return the outcome of a claim that cannot be judged."""
    return f"{UNKNOWN}, because {why}"


def with_size(outcome: str, claimed: float, here: float) -> str:
    """Return the outcome of a claim about time; where it holds, also whether the factor is far from the published."""
    if outcome != HOLDS or max(here / claimed, claimed / here) <= FAR:
        return outcome
    return f"{outcome}, {'larger' if here > claimed else 'smaller'} here"


def direction(ratio: float, alike: float) -> float:
    """Return -1, 0 or 1: whether a ratio is below, like or above 1."""
    return 0 if abs(ratio - 1) <= alike else math.copysign(1, ratio - 1)


def time_outcome(claimed: float, speedup: dict, judged: str) -> str:
    """Return whether a speed-up agrees with a published one, as far as it was judged.

    Only "the same within 5%" confirms that there is none. A published speed-up is refuted by that or by the opposite.
    """
    if judged == CANNOT_BE_TOLD:
        return UNKNOWN
    if judged not in OUTCOMES:
        return unknown(f"it is: {judged}")
    found = DIRECTIONS[judged]
    wanted = direction(claimed, TIME_ALIKE)
    if found == wanted:
        return with_size(HOLDS, claimed, speedup["ratio"])
    little = judged in (LITTLE_FASTER, LITTLE_SLOWER)
    if wanted == 0 and (little or speedup["low"] <= claimed <= speedup["high"]):
        return unknown("the difference here is about as small as what counts as none there")
    return FAILS


def outcome_of(claim: RatioClaim, finding: Finding) -> str:
    """Return whether a finding agrees with a claim."""
    if claim.ratio is None:
        return unknown("no figure was published")
    if finding.unknown:
        return unknown(finding.unknown)
    if finding.speedup:
        return time_outcome(claim.ratio, finding.speedup, finding.judged)
    if finding.low <= claim.ratio <= finding.high:
        return HOLDS
    agrees = direction(claim.ratio, claim.alike) == direction(finding.ratio, claim.alike)
    outcome = HOLDS if agrees else FAILS
    return with_size(outcome, claim.ratio, finding.ratio) if claim.what.startswith(("time", "one image")) else outcome


def memory_limit(group: dict) -> float:
    """Return the GiB that the runs of a comparison were limited to, or 0 for the whole GPU."""
    return setting(group, "memory_limit_gib") or 0


def fp32_row(published: Published, row: dict) -> dict | None:
    """Return the published row of fp32 that a row is compared with, or None."""
    names = ("study", "gpu", "model", "batch_size", "metric_name", "time_of")
    fp32_rows = (one for one in published.rows if one["precision"] == "fp32")
    return next((one for one in fp32_rows if all(one[name] == row[name] for name in names)), None)


def first_scale(published: Published, row: dict) -> dict:
    """Return the first published row with a time that differs from a row in the loss scale alone."""
    names = ("study", "gpu", "model", "batch_size", "precision", "time_of")
    return next(one for one in published.rows if one["seconds"] and all(one[name] == row[name] for name in names))


def on_same_data(report: Report, row: dict) -> list[int]:
    """Return the numbers of the comparisons with a published row's experiment, model and data."""
    numbers = of_same_model(report, row)
    return [number for number in numbers if bare(report.comparisons[number]["data"]) == bare(row["dataset"])]


def half_mode(report: Report, number: int) -> str:
    """Return the 16-bit mode of a comparison that stands for the article's mixed precision."""
    return next((name for name in HALF_MODES if ok_runs(report.comparisons[number], name)), "amp_fp16")


def find_speedup(report: Report, number: int, precision: str) -> Finding:
    """Return the speed-up over fp32 in a comparison, or how the precision that has no time ended."""
    group = report.comparisons[number]
    if speedup := report.speedups.get((number, precision, "fp32")):
        judged = judgement(report, speedup)
        text = f"{precision} {ratio_text(speedup)}, {judged}{conditions_text(speedup)}"
        return Finding(group["title"], text, speedup["ratio"], speedup=speedup, judged=judged)
    gaps = [f"{name}: {gap}" for name in (precision, "fp32") if (gap := gap_text(group["runs"][name]))]
    return Finding(group["title"], ", ".join(gaps), unknown=NO_RATIO)


def other_images(row: dict, group: dict) -> str:
    """Return why the images of a comparison are not those of a published row; empty if they are."""
    if row["dataset"] and bare(group["data"]) != bare(row["dataset"]):
        return f"the data here are {group['data']}, not {row['dataset']}"
    here = setting(group, "image_size")
    pixels = PIXELS.get(row["study"])
    if pixels in (None, here):
        return ""
    return f"the images here have {here or 'unknown'} pixels a side, not {pixels}"


def find_speedups(report: Report, row: dict) -> list[Finding]:
    """Return the speed-ups in mixed precision of a published row's model on its data."""
    findings = []
    for number in on_same_data(report, row):
        finding = find_speedup(report, number, half_mode(report, number))
        why = other_images(row, report.comparisons[number])
        findings.append(finding._replace(unknown=why or finding.unknown))
    return findings


def why_not_data_loading(runs: list[dict]) -> str:
    """Return why runs say nothing about a slow loader; empty if data loading limits every one of them."""
    limited = {run["precision"] for run in runs if find_bottleneck(run)[0] == "data loading"}
    others = dict.fromkeys(run["precision"] for run in runs if find_bottleneck(run)[0] != "data loading")
    if not others:
        return ""
    waits = [100 * run["data_wait_fraction"] for run in runs if run["data_wait_fraction"] is not None]
    waited = f"{span(waits, '{:.0f}%')} of the time" if waits else "not known"
    cores = describe(run["host_cores"] for run in runs)
    named = f"{' or '.join(others)} here" if limited else "these runs"
    return f"data loading does not limit {named} (host cores: {cores}; waiting for data: {waited})"


def find_speedups_with_workers(report: Report, row: dict) -> list[Finding]:
    """Return the speed-ups of any model with loader workers: what the loader costs does not depend on the model."""
    findings = []
    for number in report.charted:
        group = report.comparisons[number]
        mode = row["precision"] if ok_runs(group, row["precision"]) else half_mode(report, number)
        same = group["batch"] == f"b{row['batch_size']:g}" and bare(group["data"]) == bare(row["dataset"])
        if same and setting(group, "loader") == "workers":
            finding = find_speedup(report, number, mode)
            why = why_not_data_loading(ok_runs(group, "fp32") + ok_runs(group, mode))
            findings.append(finding._replace(unknown=why or finding.unknown))
    return findings


def find_largest_batches(report: Report, row: dict) -> list[Finding]:
    """Return the ratios of the largest batches, from searches on its images within the memory of the article's GPU.

    Where there is no such search, those on other images or within other limits are returned.
    """
    searches = [group for group in report.largest if rate_unit(group).startswith("images")]
    searches = [group for group in searches if not other_images(row, group)] or searches
    searches = [group for group in searches if memory_limit(group) == GPU_GIB.get(row["gpu"])] or searches
    findings = []
    for group in searches:
        sizes = {name: max(map(size_of, runs)) for name in PRECISIONS if (runs := ok_runs(group, name))}
        mode = next((name for name in HALF_MODES if name in sizes), None)
        if mode and "fp32" in sizes:
            half, fp32 = sizes[mode], sizes["fp32"]
            low = half / (failing_above(fp32, group["runs"]["fp32"]) or fp32)
            high = (failing_above(half, group["runs"][mode]) or half) / fp32
            resolution = f": {low:.2f} to {high:.2f} times" if low < high else ""
            text = f"{half:,} in {mode} against {fp32:,}{resolution}"
            findings.append(Finding(family_title(group), text, half / fp32, low, high, other_images(row, group)))
    return findings


def find_logged(report: Report, row: dict) -> list[Finding]:
    """Return the ratios of a figure of the training log at the step of a published row: its mode over fp32."""
    name, step = row["metric_name"].split("_at_step_")
    column = LOG_COLUMNS[name]
    findings = []
    for group in (report.comparisons[number] for number in row["comparable"]):
        values = []
        for name in (row["precision"], "fp32"):
            entries = [entry for run in ok_runs(group, name) for entry in run["training_log"]]
            values.append(next((entry[column] for entry in entries if entry[:2] == [1, int(step)]), None))
        half, fp32 = values
        if half and fp32:
            findings.append(Finding(group["title"], f"{half:.4g} against {fp32:.4g}", half / fp32))
    return findings


def find_by_scale(published: Published, row: dict) -> list[Finding]:
    """Return the speeds at a row's loss scale over that at the first scale published."""
    first = first_scale(published, row)["loss_scale"]
    groups = published.report.comparisons

    def other_settings(group):
        return {name: value for name, value in group["settings"].items() if name != "loss_scale"}

    findings = []
    for group in groups:
        same_model = bare(group["model"]) == bare(row["model"])
        if setting(group, "loss_scale") != row["loss_scale"] or not same_model or differences(row, group):
            continue
        bases = [one for one in groups if other_settings(one) == other_settings(group)]
        base = next((one for one in bases if setting(one, "loss_scale") == first), None)
        speedup = base and speedup_between(ok_runs(group, row["precision"]), ok_runs(base, row["precision"]))
        if speedup:
            judged = judgement(published.report, speedup)
            text = f"{ratio_text(speedup)} of the speed at {first:g}, {judged}{conditions_text(speedup)}"
            findings.append(Finding(group["title"], text, speedup["ratio"], speedup=speedup, judged=judged))
    return findings


def find_inference(report: Report, row: dict) -> list[Finding]:
    """Return the latencies of one image in fp32 over those in 16 bits, once for every model on images."""
    findings: dict[str, Finding] = {}
    for number in report.charted:
        group = report.comparisons[number]
        own_mode = (number, row["precision"]) in report.latency
        mode = row["precision"] if own_mode else half_mode(report, number)
        known = (number, "fp32") in report.latency and (number, mode) in report.latency
        if known and rate_unit(group).startswith("images"):
            fp32, half = report.latency[number, "fp32"][0], report.latency[number, mode][0]
            text = f"{short(fp32)} ms in fp32, {short(half)} ms in {mode}"
            found = findings.pop(group["model"], None) or Finding(group["title"], text, fp32 / half)
            findings[group["model"]] = found  # in the order of the models' last comparisons
    return list(findings.values())


def find_without_figures(report: Report, row: dict) -> list[Finding]:
    """Return the speed-ups and last metrics of a row's models, for an article that gives no figures."""
    findings = []
    for number in on_same_data(report, row):
        group = report.comparisons[number]
        mode = half_mode(report, number)
        finding = find_speedup(report, number, mode)
        half, fp32 = (list(last_metrics(group, name).values()) for name in (mode, "fp32"))
        if half and fp32:
            ends = f"{statistics.median(half):.4g} against {statistics.median(fp32):.4g} in fp32"
            finding = finding._replace(text=f"{finding.text}; {metric_of(group)[0]} {ends}")
        findings.append(finding)
    return findings


def ratio_claim(published: Published, row: dict) -> RatioClaim | None:
    """Return the claim of a published row that is no figure of one run, with what runs here show, or None."""
    report = published.report
    base = fp32_row(published, row)
    name = row["metric_name"] or ""
    metric = row["metric"]
    if row["precision"] == "fp32":
        return None
    if name == "fp32_time_over_mixed":
        said = f"fp32 takes {metric:g}x as long"
        if "cores" in (row["note"] or ""):
            findings = find_speedups_with_workers(report, row)
            return RatioClaim("time with loader workers", said, metric, TIME_ALIKE, findings)
        return RatioClaim("time", said, metric, TIME_ALIKE, find_speedups(report, row))
    if name == "largest_batch_over_fp32":
        said = f"about {metric:g}x that of fp32"
        return RatioClaim("largest batch", said, metric, ALIKE, find_largest_batches(report, row))
    if name == "largest_batch" and base:
        said = f"{metric:g} against {base['metric']:g}"
        return RatioClaim("largest batch", said, metric / base["metric"], ALIKE, find_largest_batches(report, row))
    if name.startswith("train_") and base:
        said = f"{metric:.4g} against {base['metric']:.4g}"
        ratio = metric / base["metric"]
        return RatioClaim(name.replace("_", " "), said, ratio, STEP_ALIKE, find_logged(report, row))
    if row["time_of"] == "frame" and base:
        said = f"{1000 * base['time_seconds']:g} ms in fp32, {1000 * row['time_seconds']:g} ms"
        ratio = base["time_seconds"] / row["time_seconds"]
        return RatioClaim("one image, no training", said, ratio, STEP_ALIKE, find_inference(report, row))
    if row["loss_scale"] and row["seconds"] and (first := first_scale(published, row)) is not row:
        what = f"time at loss scale {row['loss_scale']:g}"
        said = f"{short(row['seconds'])} s against {short(first['seconds'])} s at {first['loss_scale']:g}"
        return RatioClaim(what, said, first["seconds"] / row["seconds"], ALIKE, find_by_scale(published, row))
    if row["status"] == "ok" and not any((metric, row["time_seconds"], row["memory_mib"])):
        return RatioClaim("time", "drawn, without figures", None, ALIKE, find_without_figures(report, row))
    return None


def rows_of_ratio_claim(published: Published, row: dict) -> list[dict]:
    """Return the claim of a published row as rows of the table, one for every finding."""
    claim = ratio_claim(published, row)
    if claim is None:
        return []
    name = f"{row['precision']} on {row['gpu']}" if row["gpu"] else row["precision"]
    return [
        {"claim": f"{name}: {claim.what}", "published": claim.published, "runs here": finding.title}
        | {"here": finding.text, "outcome": outcome_of(claim, finding)}
        for finding in claim.findings
    ]
