"""Section: energy."""

import statistics

from ..record import SHORTEST_FOR_ENERGY
from .bars import bar_chart, pool, values_in_words, values_of, with_shares
from .comparisons import timed_runs
from .layout import MANY, rate_unit
from .report import Bar, Key, Report
from .section import Section
from .style import PRECISIONS
from .verdicts import row_of_run, said_once, say_missing
from .words import plain, short, short_span

TITLE = "Energy"
ABOUT = f"""What the whole GPU used in the timed epochs, for a thousand samples. The host and the cooling are not in it.
Below {SHORTEST_FOR_ENERGY:g} s of timed training there is no figure."""

COLUMNS = {
    "J per 1,000 samples": "joules_per_1000_samples",
    "energy, J": "energy_joules",
    "mean power, W": "power_watts_mean",
    "power limit, W": "power_watts_limit",
    "median clock, MHz": "sm_clock_mhz_median",
    "highest clock, MHz": "sm_clock_mhz_max",
    "hottest, °C": "temperature_celsius_max",
}


def energy_unit(group: dict) -> str:
    """Return the unit of energy_used()."""
    return f"joules per 1,000 {rate_unit(group).partition(' ')[0]}"


def energy_row(report: Report, number: int, record: dict) -> dict:
    """Return energy, power, clock and temperature of a run as a row of the table."""
    row = dict.fromkeys(COLUMNS, "unavailable")
    for name, field in COLUMNS.items():
        value = record[field]
        if value is not None:
            row[name] = f"{value:,}" if isinstance(value, int) else short(value)
    row["measured by"] = record["energy_source"] or record["energy_reason"] or "the record does not say why"
    return row_of_run(report, report.comparisons[number], record, **row)


def energy_used(report: Report) -> dict[Key, Bar]:
    """Return the bars of the joules per 1,000 samples."""
    return pool(report, values_of("joules_per_1000_samples"))


def spread_rows(report: Report) -> list[dict]:
    """Return mean and range of the joules per 1,000 samples over the runs of each precision, as rows."""
    rows = []
    for group in report.comparisons:
        for precision in PRECISIONS:
            values = [record["joules_per_1000_samples"] for record in timed_runs(group, precision)]
            known = [value for value in values if value is not None]
            if not known:
                continue
            mean = statistics.mean(known)
            row: dict = {"comparison": f"{group['notebook']}: {group['title']}", "precision": precision}
            row |= {"runs": len(known), "J per 1,000 samples, mean": short(mean)}
            row |= {"lowest to highest": short_span(known) if len(known) > 1 else "one run"}
            spread = statistics.stdev(known) / mean if len(known) > 1 and mean else None
            rows.append(row | {"standard deviation": "-" if spread is None else f"{spread:.1%}"})
    return rows


def section(report: Report) -> Section:
    """Return the chart and the table of energy."""
    section = Section(TITLE, ABOUT)
    energy = energy_used(report)
    if energy:
        title = with_shares("Energy of training", report, energy)
        if len(report.charted) <= 2 * MANY:
            figure, _ = bar_chart(report, title, energy_unit, energy, "runs", "unavailable")
            section.chart(figure, "energy", values_in_words(report, energy, energy_unit))
        else:
            section.say(f"{plain(title)}.")
    if energy or any(record["power_watts_mean"] is not None for _, record in report.timed):
        section.table(said_once(spread_rows(report)), "Energy over the runs of each precision")
        section.table(said_once([energy_row(report, *run) for run in report.timed]), "Energy of every run")
    say_missing(section, report, "Energy", "joules_per_1000_samples", "energy_reason")
    return section
