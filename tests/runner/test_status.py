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


@pytest.fixture
def said(ended):
    """Return a function that writes a record and returns (base, {arm: (ratio, n)}) of what is said."""

    def say_of(precision, **fields):
        if line := ratios_in_words(*ended(precision, **fields)):
            found = re.findall(r"(\w+) ([\d.]+)x \(n = (\d)\)", line)
            way = re.search("batch 128(.*), over ([^:]+):", line)
            return *way.groups(), {arm: (float(ratio), int(n)) for arm, ratio, n in found}
        return None

    return say_of


def test_the_ratio_is_said_as_soon_as_both_sides_have_ended(said):
    assert said("tf32") is None  # nothing to compare it with yet
    assert said("amp_bf16") == (", eager", "TF32", {"bf16": (0.75, 1)})
    assert said("fp32") == (", eager", "TF32", {"fp32": (0.5, 1)})
    said("amp_bf16", parameters={"repeat": 1})
    both = {"bf16": (0.75, 2), "fp32": (0.5, 1)}
    assert said("tf32", parameters={"repeat": 1}) == (", eager", "TF32", both)


def test_a_ratio_waits_for_its_fair_base(ended, said):
    _, comparison = ended("fp32")
    parameters = {**comparison[0].parameters, "precisions": ["tf32"]}
    comparison.append(comparison[0]._replace(parameters=parameters))
    assert said("amp_bf16") is None  # TF32 is to come
    # of another way, it is waited for by no one here
    comparison[1] = comparison[1]._replace(parameters={**parameters, "execution": "cuda_graph"})
    assert said("amp_fp16", seconds=[3.0] * 3) == (", eager", "fp32", {"fp16": (2.0, 1)})


def test_an_unsupported_base_is_no_base(said):
    said("fp32")
    said("tf32", status="unsupported", reason="TF32 needs compute capability 8.0")
    assert said("amp_bf16") == (", eager", "fp32", {"bf16": (1.5, 1)})


@pytest.mark.parametrize(
    "fields",
    [
        {"device": CPU},  # times that mean nothing
        {"status": "oom", "reason": "no room"},
        {"metric": [0.1, 0.1, 0.1]},  # it did not learn
    ],
)
def test_nothing_is_said_where_there_is_no_speed_up(said, fields):
    said("tf32", **({"device": CPU} if "device" in fields else {}))
    assert said("amp_bf16", **fields) is None


@pytest.mark.parametrize("fields, count", [({}, 0), ({"gpu_shared": True}, 1)])
def test_what_makes_runs_doubtful_is_said_once(ended, tmp_path, fields, count):
    for precision in ("fp32", "tf32"):
        ended(precision, **fields)
    assert table(tmp_path).count("Caution") == count


def cells(text):
    """Return {name of a row: its cells} of a table."""
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines() if line[0] != " "]
    return {name: found for name, *found in rows}


def test_the_last_table_has_a_row_for_each_way_of_each_model(ended, tmp_path):
    graph = {"execution": "cuda_graph", "channels_last": True}
    for way, joules in ((graph, 2.0), ({}, None)):
        for precision, seconds in {"tf32": 3.0, "amp_fp16": 4.0, "amp_bf16": 2.0}.items():
            fields = {"peak": 2198.0 if precision == "amp_fp16" else 4246.0}
            fields["joules_per_1000_samples"] = joules and joules * seconds
            ended(precision, parameters=way, seconds=[seconds] * 3, **fields)
    said = table(tmp_path)
    assert cells(said) == {
        "ResNet-18, eager": ["0.75x", "-50%", "1.50x", "+0%"],
        "ResNet-18, CUDA graph, channels_last": ["0.75x", "-50%", "+33%", "1.50x", "+0%", "-33%"],
    }
    assert max(map(len, said.splitlines())) <= 100


NOTHING = {"joules_per_1000_samples": None, "peak_allocated_mib": None}
FAILED = {"status": "failed", "reason": "no such layer"}


@pytest.mark.parametrize(
    "runs, row",
    [
        ({"tf32": NOTHING, "amp_bf16": NOTHING}, "0.75x"),
        ({"tf32": FAILED, "amp_fp16": FAILED}, "failed"),
        (
            {"fp32": {"device": CPU}, "amp_fp16": {"device": CPU, **FAILED}},
            "worked|failed",
        ),
        # a card without TF32; titles do not speak of the last
        (
            {
                "fp32": {},
                "amp_fp16": {},
                "amp_bf16": {"status": "oom", "reason": "no room"},
                "o2_fp16": {},
            },
            "6.00x|+0%|-87%|oom",
        ),
    ],
)
def test_a_table_has_what_is_known_of_each_way(ended, tmp_path, runs, row):
    for precision, fields in runs.items():
        ended(precision, **fields)
    said = table(tmp_path)
    assert cells(said) == {"ResNet-18, eager": row.split("|")}
    assert ("/TF32" in said) == (row[0] == "0")


@pytest.mark.parametrize(
    "given, left",
    {
        "\x1b]0;title\x07": "",
        "\x1b]8;;https://example.org\x1b\\text\x1b]8;;\x1b\\": "text",  # a link
        # a reset, colours, a bell and text that runs backwards
        "\x1bc\x1b[31;1m\x9b31m\x07\r\u202e\u2066": "",
        "\x1b]0;title": "0;title",  # without an end
        "é \n\t": "é \n\t",
    }.items(),
)
def test_what_a_terminal_would_obey_is_not_printed(tmp_path, capsys, given, left):
    (tmp_path / "logs").mkdir()
    with log_in(tmp_path):
        say(f"a{given}b")
    assert capsys.readouterr().out == f"a{left}b\n"
    assert (tmp_path / "logs/batch.log").read_text().endswith(f"  a{left}b\n")
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
