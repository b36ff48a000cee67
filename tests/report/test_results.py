"""The picture, table and sentences at the end of an experiment notebook."""

import math
from types import SimpleNamespace

import IPython.display
import made_up_records as made_up
import matplotlib.pyplot as plt
import pytest

from mixed_precision_study.judge.verdict import FEW_HOSTS
from mixed_precision_study.report import results

FACTS = {"peak_allocated_mib": 2048.0, "data_on_device_mib": 1024.0, "metric": [0.5, 0.9]}


def run(precision, seconds=3.0, **facts):
    return made_up.make("cifar_resnet", precision, seconds=[seconds] * 2, **(FACTS | facts))


def failed(precision, status, **facts):
    return made_up.make_failed("cifar_resnet", precision, status, "because of a reason", **facts)


def said_of(records):
    """Return the sentences below the table."""
    return " ".join(results.remarks_of(results.tables_of(records)))


@pytest.fixture(scope="module")
def of_three():
    """Three precisions of one process, of which fp16 AMP has half the memory and time of TF32."""
    half = {"peak_allocated_mib": 1536.0, "gpu_busy_fraction": 0.5, "data_wait_fraction": 0.0}
    records = [run("amp_fp16", 1.5, **half), run("fp32", 6.0), run("tf32", 3.0)]
    for record, place in zip(records, (2, 1, 0), strict=True):
        record.runs_before_in_process = place
    return records


@pytest.mark.parametrize(
    "hosts, lowest, mark, share",
    [(3, 1.1, "~", "25%"), (4, 1.1, "~", "12.5%"), (6, 1.1, "", "3.12%"), (6, 0.9, "~", "3.12%")],
)
def test_a_range_tells_its_side_of_1_from_six_machines_on(hosts, lowest, mark, share):
    row = SimpleNamespace(outcome=FEW_HOSTS, ratio=1.2, lowest=lowest, highest=1.3, hosts=hosts)
    assert results.range_of_hosts(row) == f"{mark}1.20 [{lowest:.2f}–1.30]"
    assert f" {share} of equal pairs" in results.said_of_side(hosts)


def test_the_table_has_the_numbers_of_the_pictures(of_three):
    table = results.results_table(of_three)
    assert list(table.index) == ["fp32", "TF32", "fp16 AMP"]
    assert table["seconds per epoch"].tolist() == ["6.00", "3.00", "1.50"]
    assert table["times as fast as TF32"].tolist() == ["", "", "2.00"]
    assert table["memory, GiB"].tolist() == ["1.00", "1.00", "0.50"]
    assert table["accuracy"].tolist() == ["0.9"] * 3
    assert "kernel launches" in said_of(of_three)


def test_what_did_not_train_has_no_ratio():
    records = [run("fp32", 4.0), run("tf32", 2.0), run("amp_fp16", 1.0, metric=[0.3, 0.3])]
    table = results.results_table(records)
    assert not [name for name in table if name.startswith("times")]
    assert "fp16 AMP did not train" in said_of(records)


def test_what_failed_has_no_ratio():
    failure = failed("fp32", "oom")
    assert said_of([failure]) == "fp32 (out of memory): because of a reason."
    assert results.conclusion(results.tables_of([failure])) == ""
    oom = [run("fp32"), failed("amp_fp16", "oom")]
    assert set(results.results_table(oom).loc["fp16 AMP"].tolist()) == {""}
    assert "because of a reason" in said_of(oom)


def test_a_notebook_shows_conclusion_picture_and_table(monkeypatch):
    shown, open_before = [], plt.get_fignums()
    monkeypatch.setattr(results, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    results.show([run("fp32"), run("amp_fp16", 2.0), run("amp_bf16", 1.5)])
    answer, picture, note, table, *sentences = shown
    assert "fp16 AMP 1.50 times and bf16 AMP 2.00 times as fast as fp32" in answer.text
    assert picture.data.startswith(b"\x89PNG") and "memory" in note.text.lower()
    assert table.index.tolist() == ["fp32", "fp16 AMP", "bf16 AMP"] and len(sentences) == 3
    assert plt.get_fignums() == open_before  # else it is shown twice
    shown.clear()
    results.show([run("fp32")])  # one run is no picture and no conclusion
    assert [type(one).__name__ for one in shown] == ["DataFrame", "Sentence"]


def test_the_cpu_is_never_judged_and_nothing_reads_nan(capsys):
    cpu = {"device_type": "cpu", "gpu_name": None, "peak_allocated_mib": None}
    records = [
        run("fp32", 4.0, **cpu),
        run("amp_bf16", 2.0, **{**cpu, "metric": [math.nan, math.nan]}),
    ]
    assert said_of(records) == results.CPU_WARNING
    assert not [
        name for name in results.results_table(records) if name.startswith(("times", "memory"))
    ]
    results.show(records)
    assert not {"nan", "NaN", "None", "<NA>"} & set(capsys.readouterr().out.split())
