"""The start of a run, told part by part."""

import re
import time

import pytest
from small_training import make_batch, make_record, make_trainer

from mixed_precision_study.timing import StartUp
from mixed_precision_study.training import timed_epoch, warm_up


def test_the_start_is_told_part_by_part_and_only_by_the_first_run(monkeypatch, capsys):
    now = iter([3.0, 4.0, 9.0, 9.5, 12.0, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    start, first, second = StartUp(1.0), make_record(), make_record()
    for part in ("import", "preflight", "data", "import", "model"):
        start.lap(part)
    start.end(first)
    assert first.startup_seconds == 19
    parts = ("import", "preflight", "data", "model", "warmup")
    assert [getattr(first, f"startup_{part}_seconds") for part in parts] == [2.5, 1, 5, 2.5, 8]
    assert first.startup_reason is None
    line = "Start: 19.0 s to the first timed step (import 2.5, preflight 1.0, data 5.0, model 2.5, warmup 8.0)\n"
    assert capsys.readouterr().out == line
    start.end(first)  # its next epoch
    start.end(second)
    assert (first.startup_seconds, first.startup_reason) == (19, None)
    assert (second.startup_seconds, second.startup_reason) == (None, "not the first run of its kernel")
    assert capsys.readouterr().out == ""


def test_what_compiling_and_the_search_took_is_told_with_the_start(capsys):
    record = make_record()
    record.compile_seconds, record.search_seconds = 2.54, 0.0
    StartUp(time.perf_counter()).end(record)
    assert re.search(r"\(warmup \d+\.\d; in it torch\.compile 2\.5\)$", capsys.readouterr().out.strip())
    record.search_seconds = 1.2
    StartUp(time.perf_counter()).end(record)
    assert "; in it torch.compile 2.5 and cuDNN's search, at most, 1.2)" in capsys.readouterr().out


def test_an_epoch_ends_the_start(monkeypatch):
    start = StartUp(time.perf_counter())
    monkeypatch.setattr("mixed_precision_study.training.startup", start)
    record, trainer = make_record(), make_trainer("fp32")
    warm_up(record, trainer, lambda: iter([make_batch()]))
    assert record.startup_seconds is None
    timed_epoch(record, trainer, [make_batch()])
    assert record.startup_warmup_seconds >= record.warmup_seconds > 0
    parts = [record.startup_model_seconds, record.startup_warmup_seconds]
    assert record.startup_seconds == pytest.approx(sum(parts))
    assert record.startup_import_seconds is None  # nobody told of it here
