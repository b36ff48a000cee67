"""Runs whose limit is known beforehand: as an H200 measured them, and run again where there is a
GPU.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, read_json, run_cells, settings_of
from made_up_runs import flat as made_up

from mixed_precision_study import experiment
from mixed_precision_study.judge.bottleneck import find_bottleneck
from mixed_precision_study.judge.conditions import flags_of
from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.store.record import flat_record, write_json

FOLDER = ROOT / "tests/built_cases"
CASES = yaml.safe_load((FOLDER / "cases.yaml").read_text(encoding="utf-8"))
BUSY = (
    "import torch, time; a = torch.randn(4096, 4096, device='cuda'); print('on', "
    "flush=True)\nwhile True: a @ a"
)


def answer(record):
    """Return what the rules say of a run: its status, "shared", or what limits it."""
    if record["status"] != "ok":
        return record["status"]
    if any(flag.code == "shared" for flag in flags_of(record)):
        return "shared"
    return find_bottleneck(record)[0].code


@pytest.mark.parametrize("name", CASES)
def test_the_rules_are_right_on_what_an_h200_measured(
    name,
):
    record = made_up() | read_json(FOLDER / f"{name}.json")
    case = CASES[name]
    settings_of(case["notebook"], case["parameters"] | {"precisions": [case["precision"]]})
    assert record["gpu_name"] == "NVIDIA H200"
    assert record["precision"] == case["precision"]
    assert case["parameters"].items() <= record["settings"].items()
    assert answer(record) == case["expected"], find_bottleneck(record)
    if record["status"] == "ok":
        base = {**record, "precision": "fp32"}
        assert paired_ratio([(record, base)])["ratio"] == 1


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", CASES)
def test_the_rules_are_right_on_this_gpu(name, monkeypatch):
    case, folder = CASES[name], os.environ.get("BUILT_CASES_OUT")
    given = {"dataset": "synthetic", "precisions": [case["precision"]], **case["parameters"]}
    # no answer needs a second epoch or inference, which torch.compile would compile once more
    if not folder:
        given["epochs"] = 1
        monkeypatch.setattr(experiment, "measure_inference", lambda *_: None)
    busy_process = None
    if case["expected"] == "shared":
        busy_process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        busy_process.stdout.readline()
    try:
        start = time.perf_counter()
        (record,) = run_cells(case["notebook"], "run", **given)["records"]
    finally:
        if busy_process:
            busy_process.kill()
            busy_process.wait()
    flat = flat_record(record)
    if folder:  # writes the records that lie beside cases.yaml
        breakdown = {field: None for field in flat if field.startswith("ledger_")}
        breakdown["ledger_reason"] = "several cases ran in one process, one after the other"
        write_json({**flat, **breakdown}, Path(folder) / f"{name}.json")
    print(
        name,
        answer(flat),
        find_bottleneck(flat),
        f"{time.perf_counter() - start:.0f} s",
        record.reason,
    )
    assert answer(flat) == case["expected"]
