"""200 tiny runs on 8 slots: all complete, little time between two runs, memory of the runner flat. Takes minutes.

RUN_LOAD_TEST=1 python -m pytest tests/runner/test_load.py -s
"""

import contextlib
import json
import os
import statistics
import threading
import time

import psutil
import pytest
from tiny_suite import ON_CPU, entry, main, read_records, write_suite

from mixed_precision_study.runner import process as run_process

pytestmark = pytest.mark.skipif(not os.environ.get("RUN_LOAD_TEST"), reason="takes minutes; RUN_LOAD_TEST=1 runs it")
RUNS, SLOTS = int(os.environ.get("RUN_LOAD_TEST_RUNS", 200)), 8


def test_many_runs_on_many_slots(tmp_path, monkeypatch):
    write_suite(tmp_path, {"load": [entry(seed=seed) for seed in range(RUNS)]})
    launched, ended, memory = {}, {}, []
    launch = run_process.launch

    def note_end(device, pid):
        with contextlib.suppress(ChildProcessError):  # raised where the runner has seen it first
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended.setdefault(device, []).append(time.monotonic())

    def noted(run, study, commit, device, attempt):
        running = launch(run, study, commit, device, attempt)
        launched.setdefault(device, []).append(time.monotonic())
        threading.Thread(target=note_end, args=(device, running.process.pid), daemon=True).start()
        memory.append(psutil.Process().memory_info().rss / 2**20)
        return running

    monkeypatch.setattr(run_process, "launch", noted)
    before = psutil.Process().cpu_times()
    assert main(tmp_path, "load", *ON_CPU, "--output-dir", tmp_path / "out", "--jobs", SLOTS) == 0
    after = psutil.Process().cpu_times()
    records = read_records(tmp_path / "out")
    assert sorted(record["seed"] for record in records) == list(range(RUNS))
    assert {record["status"] for record in records} == {"ok"}
    gaps = [start - end for device in launched for end, start in zip(ended[device], launched[device][1:], strict=False)]
    cpu = (after.user + after.system - before.user - before.system) / RUNS
    print(
        f"\nn = {len(gaps)}: from the end of a run to the start of the next {statistics.median(gaps):.3f} s (median), "
        f"{max(gaps):.3f} s (most); CPU of the runner {cpu:.3f} s a run; memory {memory[0]:.1f} MiB at the first, "
        f"{memory[RUNS // 4]:.1f} after a quarter, {memory[-1]:.1f} at the last; "
        f"{json.loads((tmp_path / 'out/logs/batch.json').read_text())['makespan_seconds']:.0f} s in all"
    )
    assert statistics.median(gaps) < 0.5
    assert memory[-1] - memory[RUNS // 4] < 5
