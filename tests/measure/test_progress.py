"""The progress bar, and what it writes for run_all.py."""

import os
import threading
import time
import types

import psutil

from mixed_precision_study.measure.progress import progress, progress_wanted


def test_progress_is_silent_when_asked(monkeypatch, capsys):
    with progress(3, "loud") as bar:
        bar.advance()
    assert "loud" in capsys.readouterr().out
    monkeypatch.setenv("TQDM_DISABLE", "1")
    threads = threading.active_count()
    with progress(3, "quiet") as bar:
        bar.advance()
        assert threading.active_count() == threads  # without run_all.py nothing has to be written
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("TQDM_DISABLE")
    parent = types.SimpleNamespace(cmdline=lambda: ["python", "-m", "papermill", "--no-progress-bar"])
    monkeypatch.setattr(psutil, "Process", lambda pid: parent)
    assert not progress_wanted()


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
            bar.advance()
        assert steps.wait(10)
        assert threading.main_thread() not in writers[before:]
        bar.advance()
    assert path.read_text() == "fp32, epoch 1/2, step 31/40"
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]
    monkeypatch.setenv("MIXED_PRECISION_PROGRESS", str(tmp_path / "gone" / "progress"))
    with progress(1, "nowhere") as bar:  # ends nothing
        bar.advance()


def test_the_line_moves_every_second_without_a_step(capsys):
    """As in a first step that compiles for minutes."""
    seen = []

    def text():
        seen.append(capsys.readouterr().out)
        return "".join(seen)

    with progress(None, "fp32, first step: compiling", seconds=0.05) as shown:
        wait_for(lambda: text().count("compiling") >= 3)
        shown.say("fp32, warm-up, step 1")
        wait_for(lambda: "warm-up, step 1" in text())
    with progress(40, "fp32, epoch 1/2", seconds=0.05) as bar:
        bar.advance()
        wait_for(lambda: "1/40" in text())  # and not only after many steps


def wait_for(condition):
    """Wait until the condition holds, a minute at most."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
