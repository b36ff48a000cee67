"""How an experiment notebook shows its own results; sync.py copies the section into the notebooks."""

import statistics

# isort: split

# %% Table and chart -- the same in every notebook; edit notebooks/results.py, then run sync.py
import matplotlib.pyplot as plt
import pandas as pd

COLOURS = {  # of Okabe and Ito: told apart by the colour-blind; the same in every chart of the suite
    "fp32": "#000000",
    "tf32": "#0072B2",
    "amp_fp16": "#E69F00",
    "amp_bf16": "#009E73",
    "o2_fp16": "#CC79A7",
    "o3_fp16": "#D55E00",
}


def results_table(records):
    """Return one row per precision: times in seconds, memory in MiB; what did not end well has its reason."""
    rows = {}
    for record in records:
        last = {record.metric_name: record.metric[-1]} if record.metric else {}
        numbers = {
            "s/epoch": (statistics.median(record.epoch_seconds) if record.epoch_seconds else None, 3),
            "ms/step": (record.step_ms_median, 2),
            "samples/s": (record.samples_per_second, 0),
            "peak MiB": (record.peak_allocated_mib, 0),
            "device MiB": (record.device_used_mib, 0),
        }
        numbers = {name: None if value is None else round(value, digits) for name, (value, digits) in numbers.items()}
        rest = {"skipped steps": record.skipped_steps, **last, "reason": record.reason or ""}
        rows[record.precision] = {"status": record.status, **numbers, **rest}
    return pd.DataFrame.from_dict(rows, orient="index")


def draw_results(records):
    """Draw seconds per epoch (bar: median; line: smallest to largest), peak memory in MiB, and the metric by epoch."""
    figure, (*axes, curves) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for place, record in enumerate(records):
        seconds, colour = record.epoch_seconds, COLOURS[record.precision]
        curves.plot(range(1, len(record.metric) + 1), record.metric, color=colour, marker="o", label=record.precision)
        heights = (statistics.median(seconds) if seconds else None, record.peak_allocated_mib)
        for axis, height in zip(axes, heights, strict=True):
            if record.status == "ok" and height is not None:
                axis.bar(place, height, color=colour)
            else:
                text = record.status if record.status != "ok" else "not measured on the CPU"
                axis.text(
                    place, 0.02, text, rotation=90, ha="center", va="bottom", transform=axis.get_xaxis_transform()
                )
        if record.status == "ok":
            axes[0].vlines(place, min(seconds), max(seconds), color="grey", linewidth=3)
    for axis, label in zip(axes, ("seconds per epoch", "peak memory allocated (MiB)"), strict=True):
        axis.set(ylabel=label, xlim=(-0.6, len(records) - 0.4), ylim=(0, None))
        axis.set_xticks(range(len(records)), [record.precision for record in records], rotation=20)
    curves.set(xlabel="epoch", ylabel=records[0].metric_name.replace("_", " "))
    curves.xaxis.get_major_locator().set_params(integer=True)
    if any(record.device_type == "cpu" for record in records):
        figure.suptitle("CPU plumbing check: not a measurement", color="firebrick")
    return figure


def read_results(records):
    """Return one sentence per precision: its time against fp32 and tf32, paired epoch by epoch."""
    if any(record.device_type == "cpu" for record in records):
        return (
            "These runs were on the CPU: they show that the notebook works and say nothing about what a precision buys."
        )
    timed = {record.precision: record for record in records if record.status == "ok"}
    sentences = []
    for base in (name for name in ("fp32", "tf32") if name in timed):
        for name, record in [item for item in timed.items() if item[0] not in ("fp32", base)]:
            ratios = [b / a for a, b in zip(record.epoch_seconds, timed[base].epoch_seconds, strict=True)]
            low, high = min(ratios), max(ratios)
            verdict = "no measurable difference" if low <= 1 <= high else "faster" if low > 1 else "slower"
            verdict = verdict if len(ratios) > 1 else "one epoch only: no spread, so no verdict"
            middle = statistics.median(timed[base].epoch_seconds) / statistics.median(record.epoch_seconds)
            sentences.append(
                f"{name} against {base}: {middle:.2f}x ({low:.2f} to {high:.2f}, n = {len(ratios)}): {verdict}."
            )
    return "\n".join(sentences) or "Fewer than two precisions ended well, so there is nothing to compare."
