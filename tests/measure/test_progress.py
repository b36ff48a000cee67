"""The progress bar, and what it writes for run_all.py."""

import os
import threading

from mixed_precision_study.measure.progress import progress


def test_progress_is_written_by_a_thread_and_never_by_a_step(tmp_path, monkeypatch):
    """What run_all.py shows of a training: written at once, every few seconds and at the end."""
    path, writers, steps = tmp_path / "progress", [], threading.Event()
    replace = os.replace

    def noted(source, target):
        writers.append(threading.current_thread())
        replace(source, target)
        if path.read_text().endswith("step 30/40"):
            steps.set()

    monkeypatch.setattr(os, "replace", noted)
    monkeypatch.setenv("MIXED_PRECISION_PROGRESS", str(path))
    with progress(40, "fp32, epoch 1/2", seconds=0.05) as bar:
        assert path.read_text() == "fp32, epoch 1/2, step 0/40"
        before = len(writers)
        for _ in range(30):
            bar.n += 1
        assert steps.wait(10)
        assert threading.main_thread() not in writers[before:]
        bar.n += 1
    assert path.read_text() == "fp32, epoch 1/2, step 31/40"
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]
    monkeypatch.setenv("MIXED_PRECISION_PROGRESS", str(tmp_path / "gone/progress"))
    with progress(1, "nowhere") as bar:  # ends nothing
        bar.n += 1
