"""What articles published beside the same ratio here: what counts as the same, and the table."""

import io

import made_up_records as made_up
import pandas as pd
import pytest
from drawn_reports import parts_of, read_all, write_all

from mixed_precision_study.report.articles import HOLDS, articles_section, held
from mixed_precision_study.report.section import File, Table


def test_a_ratio_stands_beside_that_of_the_article_and_o2_and_fp16_amp_stand_in_for_each_other(
    tmp_path,
):
    for model, precision, seconds, peak, best in (
        ("wide_resnet28_10", "fp32", 60.0, 8000.0, 0.9),
        ("wide_resnet28_10", "amp_fp16", 30.0, 4800.0, 0.9),
        ("wide_resnet28_10", "o2_fp16", 60.0, 8000.0, 0.7),
        ("wide_resnet28_10", "o3_fp16", 20.0, 4000.0, 0.9),  # where the article did not converge
        ("resnet18", "fp32", 30.0, 4000.0, 0.9),
        ("resnet18", "amp_fp16", 20.0, 4000.0, 0.9),
        ("dpn92", "fp32", 30.0, 4000.0, 0.9),  # whose article has a loss that was not logged here
        ("dpn92", "o2_fp16", 20.0, 4000.0, 0.9),
    ):
        facts = {
            "peak": peak,
            "metric": [0.5] * 9 + [best],
            "parameters": {"model": model, "max_steps": 100},
        }
        made_up.write_processes(
            made_up.make("cifar_resnet", precision, seconds=[seconds] * 10, **facts), tmp_path
        )
        # no interval
        facts |= {"parameters": {"model": model, "epochs": 10}, "device": made_up.TURING}
        write_all(tmp_path, made_up.make("cifar_resnet", precision, seconds=[9.0] * 10, **facts))
    tables = read_all(tmp_path)
    assert not articles_section(tables).parts  # the study does not show articles
    tables.show["articles"] = True
    assert articles_section(tables).finding.startswith(
        "2 of 3 "
    )  # not a T4 in O2; a P100 is not compared
    (table,), (file,) = (parts_of(articles_section(tables), kind) for kind in (Table, File))
    stand_in = table.rows[0]
    assert (stand_in["n"], stand_in["Our card"], stand_in["Article"][:8]) == (3, "H200", "CIFAR-10")
    assert stand_in["Here"] == "1.50× (1.50 to 1.50), memory the same, in fp16"
    rows = {
        (row["Training"], row["Card"]): (row["There"], row["Here"]) for row in reversed(table.rows)
    }
    # size and direction in one row
    here = ("1.83×, memory −42%", "2.00× (2.00 to 2.00), memory −41%")
    assert rows["WideResNet-28-10, batch 128, fp16", "T4"] == here
    diverged = ("not converged", "best accuracy: 90.0% against 90.0%")
    assert diverged in [(row["There"], row["Here"]) for row in table.rows]
    assert not [row for row in table.rows if row["Card"] == "P100" or "DPN" in row["Training"]]
    claims = {
        (row.card, row.claim): row for row in pd.read_csv(io.BytesIO(file.content)).itertuples()
    }
    training = "wide_resnet28_10, batch 128, amp_fp16, fp32"
    speed, memory, accuracy = (
        claims["T4", f"{what}, {training}"] for what in ("time", "memory", "best accuracy")
    )
    assert (speed.theirs, speed.ours, speed.low, speed.high, speed.n, speed.hosts) == (
        1.834,
        2,
        2,
        2,
        3,
        1,
    )
    assert (memory.theirs, memory.ours, accuracy.theirs, accuracy.ours) == (
        0.5789,
        0.5924,
        -0.015,
        0,
    )
    other = claims["P100", f"time, {training}"]
    assert (other.testable, other.reason) == (False, "a P100 has no Tensor Cores") and pd.isna(
        other.ours
    )


def test_a_direction_is_that_of_the_article_or_another_or_inconclusive():
    cases = [(1.3, 1.1, 1.01, 1.2), (1.3, 1.1, 0.9, 1.3), (0.8, 1.1, None, None)]
    found = [
        held(theirs, {"ratio": ratio, "low": low, "high": high})
        for theirs, ratio, low, high in cases
    ]
    assert found == [HOLDS, "is undecided", "does not hold"]


OTHER = [{"dataset_used": "synthetic"}, {"device_type": "cpu", "gpu_name": None}]
OTHER += [
    {"parameters": one}
    for one in ({"batch_size": 64}, {"execution": "cuda_graph"}, {"memory_limit_gib": 11.0})
]


@pytest.mark.parametrize("fields", [*OTHER, {}])  # the last one is a counterpart
def test_eager_runs_of_three_hosts_stand_with_their_range_and_other_runs_are_no_counterpart(
    tmp_path, fields
):
    runs = []
    for host, own in enumerate((10.0, 15.0, 20.0)):
        facts = {
            "host_id": f"{host}",
            "gpu_uuid": f"GPU-{host}",
            "parameters": {"repeat": host},
        } | fields
        sides = (("fp32", 30.0), ("o2_fp16", own))
        runs += [
            made_up.make("cifar_resnet", name, seconds=[seconds], **facts)
            for name, seconds in sides
        ]
    tables = read_all(tmp_path, *runs, articles=True)
    beside = [
        row
        for table in parts_of(articles_section(tables), Table)
        for row in table.rows
        if "×" in row["There"]
    ]
    found = [(row["Here"].partition(",")[0], row["n"], row["Machines"]) for row in beside]
    assert found == ([] if fields else [("2.00× [1.50 to 3.00]", 3, 3)])
