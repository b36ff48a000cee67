"""Where the runs of a report ran."""

import re
from collections.abc import Iterable

from ..record import data_asked_for
from .report import Report
from .section import Section
from .style import PRECISIONS
from .words import plain

TITLE = "Hardware and software"

ENVIRONMENT = {
    "GPU": "gpu_name",
    "compute capability": "compute_capability",
    "device memory (MiB)": "device_total_mib",
    "driver": "driver_version",
    "CUDA": "cuda_version",
    "cuDNN": "cudnn_version",
    "PyTorch": "torch_version",
    "timm": "timm_version",
    "Python": "python_version",
    "host": "host_platform",
    "host cores": "host_cores",
    "host CPU": "host_cpu",
    "host (hash)": "host_id",
    "power limit (W)": "power_watts_limit",
    "set graphics clock (MHz)": "application_clock_mhz",
    "package": "package_version",
    "commit of the suite": "commit",
}


def device_of(record: dict) -> str:
    """Return the short name of the device that a record was measured on."""
    name = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", record["gpu_name"] or "")
    if name:
        return name
    return "CPU" if record["device_type"] == "cpu" else "unknown device"


def data_of(record: dict) -> str:
    """Return the name of the data; synthetic data says so."""
    name = str(record["dataset_used"] or data_asked_for(record) or "unknown data")
    if not record["synthetic"]:
        return name
    return "(synthetic)" if name == "synthetic" else f"{name} (synthetic)"


def switches_of(record: dict) -> str | None:
    """Return the fp32 switches and the autocast type as text, or None where they were not read."""
    switches = [record[f"fp32_precision_{name}"] for name in ("matmul", "conv", "rnn")]
    if not any(switches):
        return None
    return f"{' / '.join(map(str, switches))}, autocast {record['autocast_dtype'] or 'off'}"


def describe(values: Iterable) -> str:
    """Return the one value, or "DIFFERS" and all of several, or "not known"."""
    texts = {f"{value:.0f}" if isinstance(value, float) else str(value) for value in values if value is not None}
    return f"DIFFERS: {' | '.join(sorted(texts))}" if len(texts) > 1 else "".join(texts) or "not known"


def environment_of(records: list[dict]) -> dict[str, str]:
    """Return {title: text} that describes device and software of `records`."""
    gpus = {record["gpu_uuid"] for record in records} - {None}
    days = sorted({(record["finished_at"] or "")[:10] for record in records} - {""})
    rows = {"runs": str(len(records)), "cards": str(len(gpus) or "-")}
    rows["measured on"] = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not known"
    for title, name in ENVIRONMENT.items():
        rows[title] = describe(record[name] for record in records)
    for precision in PRECISIONS:
        runs = [record for record in records if record["precision"] == precision]
        if runs:
            rows[f"switches, {precision}"] = describe(map(switches_of, runs))
    return rows


def section(report: Report) -> Section:
    """Return the table of hardware and software, and what differs between the runs of a device."""
    section = Section(TITLE)
    environments = {name: environment_of(records) for name, records in report.devices.items()}
    titles = dict.fromkeys(title for rows in environments.values() for title in rows)
    section.table(
        [{"": title, **{name: rows.get(title, "-") for name, rows in environments.items()}} for title in titles]
    )
    for name, rows in environments.items():
        differing = ", ".join(title for title, text in rows.items() if text.startswith("DIFFERS"))
        text = (
            f"mind that its runs differ in: {differing}." if differing else "all its runs share hardware and software."
        )
        section.say(f"**{plain(name)}**: {text}")
    return section
