"""Where the runs of a report ran."""

import re

from .section import Section
from .style import PRECISIONS
from .theme import chart_style
from .words import plain

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
    "commit of the suite": "commit",
}


def device_of(record):
    """Return the short name of the device that a record was measured on."""
    brand = r"^(NVIDIA |Tesla |GeForce )+"
    return re.sub(brand, "", record["gpu_name"] or "") or {"cpu": "CPU"}.get(record["device_type"], "unknown device")


def data_of(record):
    """Return the name of the data; made-up data says so."""
    name = str(record["dataset_used"] or record.get("dataset") or "unknown data")
    return f"{name.replace('synthetic', '')} (synthetic)".strip() if record["synthetic"] else name


def switches_of(record):
    """Return the fp32 switches and the autocast type as text, or None where they were not read."""
    switches = [record[f"fp32_precision_{name}"] for name in ("matmul", "conv", "rnn")]
    return f"{' / '.join(map(str, switches))}, autocast {record['autocast_dtype'] or 'off'}" if any(switches) else None


def describe(values):
    """Return the one value, or all of several with a mark, or "not known"."""
    values = {f"{value:.0f}" if isinstance(value, float) else str(value) for value in values if value is not None}
    return f"DIFFERS: {' | '.join(sorted(values))}" if len(values) > 1 else "".join(values) or "not known"


def environment_of(records):
    """Return what describes device and software of `records`: {title: text}."""
    rows = {"runs": str(len(records)), "cards": str(len({record["gpu_uuid"] for record in records} - {None}) or "-")}
    rows |= {title: describe(record[name] for record in records) for title, name in ENVIRONMENT.items()}
    for name in PRECISIONS:
        runs = [record for record in records if record["precision"] == name]
        rows |= {f"switches, {name}": describe(map(switches_of, runs))} if runs else {}
    return rows


@chart_style()
def section(report):
    """Return the table of hardware and software, and what differs between the runs of a device."""
    section = Section()
    environments = {name: environment_of(records) for name, records in report.devices.items()}
    titles = dict.fromkeys(title for rows in environments.values() for title in rows)
    section.table(
        [{"": title, **{name: rows.get(title, "-") for name, rows in environments.items()}} for title in titles]
    )
    for name, rows in environments.items():
        differing = [title for title, text in rows.items() if text.startswith("DIFFERS")]
        mind = f"mind that these differ between its runs: {', '.join(differing)}."
        section.say(f"**{plain(name)}**: {mind if differing else 'all its runs share hardware and software.'}")
    return section
