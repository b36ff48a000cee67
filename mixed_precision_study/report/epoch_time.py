"""Section: time of an epoch, scaled time, speed-up."""

from collections import Counter
from functools import partial

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..record import samples_in_epoch
from .bars import bar_chart, pool, read_extremes
from .comparisons import gap_text, ok_runs
from .layout import name_of, panels, rate_unit, shown_in
from .section import Section
from .style import BOX, LOUD, PRECISIONS
from .theme import chart_style
from .verdicts import baselines_of, judgement, mark_of, speedup_of
from .words import count, span


def uneven_experiments(report):
    """Return the experiments whose epochs are unequal work; an incomplete last batch makes less than 1%."""
    samples = {}
    for record in (
        run for number in report.charted for name in PRECISIONS for run in ok_runs(report.comparisons[number], name)
    ):
        samples.setdefault(record["notebook"], []).append(samples_in_epoch(record))
    return {notebook for notebook, found in samples.items() if 0 < 1.01 * min(found) < max(found)}


def times_of(report, record):
    """Return the seconds of the timed epochs, or microseconds per sample where epochs are unequal work."""
    work = samples_in_epoch(record) / 1e6 if record["notebook"] in report.uneven else 1
    return [seconds / work for seconds in record["epoch_seconds"]]


def time_unit(report, group):
    return f"µs per {rate_unit(group).split('s ')[0]}" if group["notebook"] in report.uneven else "seconds per epoch"


def scaled_times(report):
    """Return ({(number, precision): bar of the time relative to fp32}, {number: notes where there is no fp32})."""
    scaled, notes = {}, {}
    for number, group in ((number, report.comparisons[number]) for number in report.charted):
        baseline = next((name for name in ("fp32", "tf32") if ok_runs(group, name)), None)
        notes[number] = {"fp32": [], "tf32": ["(no fp32: tf32 = 1)"], None: ["(no fp32, no tf32)"]}[baseline]
        for precision in PRECISIONS:
            if speedup := baseline and (
                report.speedups.get((number, precision, baseline)) or speedup_of(group, precision, baseline)
            ):
                low, high = speedup["low"] or speedup["ratio"], speedup["high"] or speedup["ratio"]
                scaled[number, precision] = (1 / speedup["ratio"], 1 / high, 1 / low, speedup["pairs"])
    return scaled, notes


def draw_forest(report, axes, number, right, lines):
    """Draw the speed-ups of a comparison: a line for each precision, over fp32 filled, over tf32 below it, hollow."""
    names = [name for name in shown_in(report, number) if name != "fp32"]
    for row, precision in enumerate(names):
        colour, _, _, marker = PRECISIONS[precision]
        found = {
            base: speedup
            for base in baselines_of(precision)
            if (speedup := report.speedups.get((number, precision, base)))
        }
        if not found:
            lacking = "fp32" if ok_runs(report.comparisons[number], precision) else precision
            text = f"{lacking}: " * (lacking != precision) + gap_text(report.comparisons[number]["runs"][lacking])
            axes.text(0.03 * right, row, text, size=8, color="#555555", va="center", bbox=BOX)
        for baseline, speedup in found.items():
            y = row + {"fp32": -0.2, "tf32": 0.2}[baseline] * (len(found) > 1)
            low, high = speedup["low"] or speedup["ratio"], speedup["high"] or speedup["ratio"]
            ends = {"marker": "|", "markersize": 9, "markeredgewidth": 1.4} if speedup["low"] else {}
            axes.plot([low, high], [y, y], color=colour, linewidth=2, **ends)
            face = colour if baseline == "fp32" else "white"
            axes.plot(speedup["ratio"], y, marker=marker, color=colour, markerfacecolor=face, markersize=5.5)
            text = f"{speedup['ratio']:.2f}x" + mark_of(report, number, precision, baseline)
            text += "" if speedup["low"] else " (no interval)"
            axes.annotate(text, (high, y), (7, 0), textcoords="offset points", size=7.5, va="center", bbox=BOX)
    axes.axvline(1, color="#444444", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, right), ylim=(lines - 0.5, -0.5), xlabel="times as fast")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


@chart_style()
def section(report):
    """Return the charts of time and speed-up, and what they say."""
    section = Section()
    draw_epoch_times(section, report)
    draw_scaled_times(section, report)
    draw_speed_ups(section, report)
    return section


def draw_epoch_times(section, report):
    """Draw the seconds of an epoch."""
    title = (
        "Time of training (per sample, where epochs are unequal work)" if report.uneven else "Time of a training epoch"
    )
    shown_times = pool(report, partial(times_of, report))
    figure, _ = bar_chart(report, title, partial(time_unit, report), shown_times, "epochs")
    section.chart(figure, "epoch_time")
    read_extremes(section, report, shown_times, partial(time_unit, report))
    wobble = {key: (high - low) / middle for key, (middle, low, high, n) in report.epoch_times.items() if n > 1}
    if wobble:
        worst = max(wobble, key=wobble.get)
        section.say(
            f"Epochs of one bar differ by {wobble[worst]:.1%} of their median at most ({name_of(report, *worst)})."
        )


def draw_scaled_times(section, report):
    """Draw the time relative to fp32."""
    scaled, notes = scaled_times(report)
    title, unit = "Scaled time (fp32 = 1) with 95% interval", lambda group: "time / time in fp32"
    figure, places = bar_chart(report, title, unit, scaled, "paired blocks", "not scaled", notes)
    tallest = max([bar[2] for bar in scaled.values()], default=1)
    for axes in {place[0] for place in places.values()}:
        axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
        axes.set_ylim(0, 1.35 * tallest)
    section.chart(figure, "scaled_time")
    for precision in list(PRECISIONS)[1:]:
        found = [
            speedup
            for (_, name, baseline), speedup in report.speedups.items()
            if (name, baseline) == (precision, "fp32")
        ]
        if found and not report.on_cpu:
            words = Counter(map(partial(judgement, report), found))
            words = ", ".join(f"{word} in {number}" for word, number in words.items())
            times = span([1 / speedup["ratio"] for speedup in found], "{:.2f}")
            section.say(f"{precision} takes **{times}** of fp32's time in {count(len(found), 'comparison')}: {words}.")


def draw_speed_ups(section, report):
    """Draw the speed-ups over fp32 and over tf32."""
    forests = [number for number in range(len(report.comparisons)) if any(key[0] == number for key in report.speedups)]
    if forests:
        style = {"color": "#444444", "linewidth": 2}
        handles = [Line2D([], [], **style, marker="o", label="over fp32")]
        handles += [Line2D([], [], **style, marker="o", markerfacecolor="white", label="over tf32")]
        handles += [Line2D([], [], **style, marker="|", markersize=9, label="95% interval")]
        handles += [Line2D([], [], color="#444444", linestyle="--", linewidth=1, label="no gain")]
        lines = {number: max(1, len(set(shown_in(report, number)) - {"fp32"})) for number in forests}
        inches = lambda band: 1.05 + 0.34 * max(lines[number] for number in band)  # noqa: E731
        title = "Speed-up over fp32 and over tf32 with 95% interval"
        figure, place_images = panels(report, title, inches, handles, forests)
        right = 1.6 * max(1, *(speedup["high"] or speedup["ratio"] for speedup in report.speedups.values()))
        for number, (axes,) in place_images:
            place = forests.index(number) // 3 * 3
            draw_forest(report, axes, number, right, max(lines[other] for other in forests[place : place + 3]))
        section.chart(figure, "speed_up")
    if report.on_cpu:
        section.say(f"**{LOUD}.** Nothing follows from these ratios.")
    for baseline in () if report.on_cpu else ("fp32", "tf32"):
        found = {key: speedup for key, speedup in report.speedups.items() if key[2] == baseline}
        words = Counter(map(partial(judgement, report), found.values()))
        if found:
            text = ", ".join(f"{word} {number}" for word, number in words.items())
            low, high = (pick(found, key=lambda key: found[key]["ratio"]) for pick in (min, max))
            text += f"; from **{found[low]['ratio']:.2f}x** ({name_of(report, *low[:2])})"
            section.say(f"Over {baseline}: {text} to **{found[high]['ratio']:.2f}x** ({name_of(report, *high[:2])}).")
        else:
            section.say(
                f"Over {baseline} there is no speed-up: no comparison has it and another precision that ended well."
            )
