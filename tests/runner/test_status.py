"""What run_all.py says of a run that has ended."""

from pathlib import Path

import pytest
from made_up_records import CPU, make, make_failed

from mixed_precision_study.record import record_in, write_record
from mixed_precision_study.report.section import Table
from mixed_precision_study.runner.plan import Run
from mixed_precision_study.runner.status import cut, in_words, log_in, ratios_in_words, say, table

SECONDS = {"fp32": 6.0, "tf32": 3.0, "amp_bf16": 4.0}


@pytest.fixture
def ended(tmp_path):
    """Return a function that writes a record and returns (it, the comparison with all that were written)."""
    comparison = []

    def end(precision, **fields):
        fields.setdefault("seconds", [SECONDS.get(precision, 1.0)] * 3)
        make_one = make_failed if "reason" in fields else make
        if make_one is make_failed:
            fields.pop("seconds")
        record = make_one("cifar_resnet", precision, **fields)
        path = write_record(record, tmp_path)
        comparison.append(Run(record.run_id, Path("cifar_resnet.ipynb"), precision, record.parameters, tmp_path, 1.0))
        return record_in(path), comparison

    return end


def test_the_ratio_is_said_as_soon_as_both_sides_have_ended(ended):
    assert ratios_in_words(*ended("tf32")) is None  # nothing to compare it with yet
    assert ratios_in_words(*ended("fp32")) == "resnet18 b128, times as fast as fp32: tf32 2.00x (one process)"
    assert ratios_in_words(*ended("amp_bf16")) == "resnet18 b128, times as fast as fp32: amp_bf16 1.50x (one process)"


def test_processes_are_counted_and_what_explains_is_none(ended):
    for repeat in range(2):
        for precision in SECONDS:
            said = ratios_in_words(*ended(precision, parameters={"repeat": repeat}))
    assert said.endswith("amp_bf16 1.50x (2 processes)")
    assert ratios_in_words(*ended("amp_bf16", parameters={"purpose": "explain"}, purpose="explain")) is None


def test_steps_of_a_ladder_are_compared_with_fp32_in_their_own_way_of_execution(ended):
    ended("fp32")
    assert ratios_in_words(*ended("tf32", parameters={"execution": "cuda_graph"}, seconds=[1.0] * 3)) is None
    said = ratios_in_words(*ended("fp32", parameters={"execution": "cuda_graph"}, seconds=[1.5] * 3))
    assert said == "resnet18 b128 cuda_graph, times as fast as fp32: tf32 1.50x (one process)"


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


def test_a_run_that_heat_slowed_is_named_when_it_ends_and_in_the_last_table(ended):
    for reason, named in (("thermal, software", True), ("power cap", False)):
        record, comparison = ended("fp32", throttled=True, throttle_fractions=[[reason, 0.94]])
        text = "throttled (thermal, software 94% of the time)"
        assert in_words(record).endswith(f", Caution: {text}") is named
        assert table([comparison]).endswith(text) is named
    for asked, reason in (("auto", "could be downloaded"), ("synthetic", "asked for")):
        record, comparison = ended("tf32", synthetic=True, parameters={"dataset": asked})
        assert reason in in_words(record).partition("Caution: made-up data")[2]
        assert reason in table([comparison]).splitlines()[-1]
    record, _ = ended("fp32", gpu_shared=True)
    assert in_words(record).endswith("Caution: GPU shared with another process")


OBEYED = {  # what a terminal would obey, each with what is left of it in "a...b"
    "title": ("\x1b]0;title\x07", ""),
    "clipboard": ("\x1b]52;c;aGk=\x1b\\", ""),
    "link": ("\x1b]8;;https://example.org\x1b\\text\x1b]8;;\x1b\\", "text"),
    "reset": ("\x1bc", ""),
    "colour": ("\x1b[31;1m", ""),
    "colour of one letter": ("\x9b31m", ""),
    "sequence without an end": ("\x1b]0;title", "0;title"),
    "bell, carriage return": ("\x07\r", ""),
    "reversed text": ("\u202e\u2066", ""),
    "harmless": ("é \n\t", "é \n\t"),
}


@pytest.mark.parametrize("name", OBEYED)
def test_what_a_terminal_would_obey_reaches_neither_it_nor_the_log(tmp_path, capsys, name):
    (tmp_path / "logs").mkdir()
    given, left = OBEYED[name]
    with log_in(tmp_path):
        say(f"a{given}b")
    assert capsys.readouterr().out == f"a{left}b\n"
    assert (tmp_path / "logs" / "batch.log").read_text(encoding="utf-8").endswith(f"  a{left}b\n")
    assert cut(f"a{given}b") == f"a{left}b"
    assert Table([{"a": f"a{given}b"}]).html().count(f">a{left}b<") == 1
