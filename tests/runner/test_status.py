"""What run_all.py says of runs that have ended, why they failed, and whether a process still
lives.
"""

import re
import types
from pathlib import Path

import psutil
import pytest
from made_up_records import CPU, make, make_failed

from mixed_precision_study.report.section import Table
from mixed_precision_study.runner import execute
from mixed_precision_study.runner.plan import Run
from mixed_precision_study.runner.status import (
    in_words,
    log_in,
    ratios_in_words,
    read_seconds,
    say,
    table,
)
from mixed_precision_study.runner.watch import is_alive
from mixed_precision_study.store.record import read_run, write_record

SECONDS = {"fp32": 6.0, "tf32": 3.0, "amp_bf16": 4.0}


@pytest.fixture
def ended(tmp_path):
    """Return a function that writes a record and returns (it, the comparison with all that were
    written).
    """
    comparison = []

    def end(precision, **fields):
        if "reason" in fields:
            record = make_failed("cifar_resnet", precision, **fields)
        else:
            record = make(
                "cifar_resnet",
                precision,
                **{"seconds": [SECONDS.get(precision, 1.0)] * 3, **fields},
            )
        path = write_record(record, tmp_path)
        parameters = {**record.settings, "precisions": [precision]}
        comparison.append(Run(Path("cifar_resnet.ipynb"), parameters, tmp_path, 1.0))
        return read_run(path), comparison

    return end


def ratios_of(said):
    """Return {precision: (ratio, n)} of a line."""
    return {
        one: (float(ratio), int(n))
        for one, ratio, n in re.findall(r"(\w+) ([\d.]+)x \(n = (\d)\)", said or "")
    }


def test_the_ratio_is_said_as_soon_as_both_sides_have_ended(ended):
    assert ratios_in_words(*ended("tf32")) is None  # nothing to compare it with yet
    assert ratios_of(ratios_in_words(*ended("fp32"))) == {"tf32": (2.0, 1)}
    assert ratios_of(ratios_in_words(*ended("amp_bf16"))) == {"amp_bf16": (1.5, 1)}
    for precision in SECONDS:
        said = ratios_in_words(*ended(precision, parameters={"repeat": 1}))
    assert ratios_of(said) == {"amp_bf16": (1.5, 2)}
    # another step of a ladder has an fp32 of its own
    graph = {"parameters": {"execution": "cuda_graph"}}
    assert ratios_in_words(*ended("tf32", **graph, seconds=[1.0] * 3)) is None
    assert ratios_of(ratios_in_words(*ended("fp32", **graph, seconds=[1.5] * 3))) == {
        "tf32": (1.5, 1)
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"device": CPU},  # times that mean nothing
        {"status": "oom", "reason": "no room"},
        {"metric": [0.1, 0.1, 0.1]},  # it did not learn
    ],
)
def test_nothing_is_said_where_there_is_no_speed_up(ended, fields):
    ended("fp32", **({"device": CPU} if "device" in fields else {}))
    assert ratios_in_words(*ended("tf32", **fields)) is None


@pytest.mark.parametrize(
    "fields, named",
    [
        ({}, False),
        ({"throttled": True, "throttle_fractions": [["thermal, software", 0.94]]}, True),
        # as every card at work
        ({"throttled": True, "throttle_fractions": [["power cap", 0.94]]}, False),
        ({"gpu_shared": True}, True),
        ({"synthetic": True, "parameters": {"dataset": "auto"}}, True),
    ],
)
def test_what_makes_a_run_doubtful_is_said(ended, fields, named):
    record, comparison = ended("fp32", **fields)
    (line,) = table([comparison]).splitlines()
    assert ("Caution" in in_words(record), "Caution" in line) == (named, named)
    assert line.split()[:2] == [record["run_id"], "ok"]
    assert in_words(record | {"status": "oom", "reason": "too large"}) == "too large"
    comparison.append(
        comparison[0]._replace(parameters={**comparison[0].parameters, "precisions": ["tf32"]})
    )
    assert len(table([comparison]).splitlines()) == 2  # one is not run


@pytest.mark.parametrize(
    "given, left",
    [
        ("\x1b]0;title\x07", ""),
        ("\x1b]8;;https://example.org\x1b\\text\x1b]8;;\x1b\\", "text"),  # a link
        # a reset, colours, a bell and text that runs backwards
        ("\x1bc\x1b[31;1m\x9b31m\x07\r\u202e\u2066", ""),
        ("\x1b]0;title", "0;title"),  # without an end
        ("é \n\t", "é \n\t"),
    ],
)
def test_what_a_terminal_would_obey_is_not_printed(tmp_path, capsys, given, left):
    (tmp_path / "logs").mkdir()
    with log_in(tmp_path):
        say(f"a{given}b")
    assert capsys.readouterr().out == f"a{left}b\n"
    assert (tmp_path / "logs/batch.log").read_text(encoding="utf-8").endswith(f"  a{left}b\n")
    assert Table([{"a": f"a{given}b"}]).html().count(f">a{left}b<") == 1


def test_times_that_cannot_be_read_are_not_known(tmp_path):
    (tmp_path / "logs").mkdir()
    for text in ('{"run_seconds": {"x": null}}', "[]", "{"):
        (tmp_path / "logs/batch.json").write_text(text)
        assert read_seconds(tmp_path) == {}


@pytest.mark.parametrize(
    "log, reason",
    [
        (
            "frame\n\nRuntimeError: CUDA error\nCompile with X.\n",
            "RuntimeError: CUDA error Compile with X.",
        ),
        (
            "Traceback:\n  File x\npapermill.exceptions.PapermillError: no\n",
            "papermill.exceptions.PapermillError: no",
        ),
        ("An Error here\n\nStopped: give another model.\n", "give another model."),
        (
            "Error occurred while it started\n  File x\nRuntimeError: Kernel died\n",
            "RuntimeError: Kernel died",
        ),
        ("it says\nnothing else", "nothing else"),
        ("", "it ended without a word"),
        (f"ValueError: {execute.ROOT}/a.csv", "ValueError: a.csv"),
        (f"{'word ' * 2**17}\n\nValueError: {'x' * 400}", f"ValueError: {'x' * 285}..."),
    ],
    ids=range(8),
)
def test_reason_is_the_error_at_the_end_of_the_log(tmp_path, log, reason):
    (tmp_path / "log").write_text(log)
    assert execute.failure_reason(types.SimpleNamespace(log_path=tmp_path / "log")) == reason


def test_clock_that_is_set_makes_no_process_another_one(monkeypatch):
    """A kernel asks every two seconds whether its runner lives; the start time that psutil shows
    follows the clock.
    """
    runner = psutil.Process()
    shown = runner.create_time()
    boot = psutil._psplatform.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 3600)
    # psutil 5 reads the clock once, so its start times stay
    kept = hasattr(psutil._psplatform, "BOOT_TIME")
    assert (psutil.Process().create_time() != shown) is not kept
    assert is_alive(runner)
