"""What articles published beside the same ratio here: what counts as the same, and the table."""

import io
from dataclasses import replace

import made_up_records as made_up
import pandas as pd
from drawn_reports import parts_of, read_all, rows_in, write_all
from pytest import fixture, mark

from mixed_precision_study.report.articles import HOLDS, articles_section, held
from mixed_precision_study.report.section import File


@fixture(scope="module")
def tables(tmp_path_factory):
    """Trainings on an H200 in three processes, and on a GPU without an interval."""
    folder = tmp_path_factory.mktemp("articles")
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
            made_up.make("cifar_resnet", precision, seconds=[seconds] * 10, **facts), folder
        )
        facts |= {"parameters": {"model": model, "epochs": 10}, "device": made_up.TURING}
        write_all(folder, made_up.make("cifar_resnet", precision, seconds=[9.0] * 10, **facts))
    return read_all(folder, articles=True)


@fixture(scope="module")
def section(tables):
    return articles_section(tables)


def test_a_study_that_does_not_show_articles_has_no_section(tables):
    assert not articles_section(replace(tables, show={})).parts


def test_a_ratio_stands_beside_that_of_its_article(section):
    # not a T4 in O2; a P100 is not compared
    assert section.finding.startswith("2 of 3 ")
    (rows,) = rows_in(section)
    found = {(row["Training"], row["Card"]): (row["There"], row["Here"]) for row in reversed(rows)}
    # size and direction in one row
    here = ("1.83×, memory −42%", "2.00× (2.00 to 2.00), memory −41%")
    assert found["WideResNet-28-10, batch 128, fp16", "T4"] == here
    diverged = ("not converged", "best accuracy: 90.0% against 90.0%")
    assert diverged in [(row["There"], row["Here"]) for row in rows]
    assert not [row for row in rows if row["Card"] == "P100" or "DPN" in row["Training"]]


def test_o2_and_fp16_amp_stand_in_for_each_other(section):
    row = rows_in(section)[0][0]
    assert (row["n"], row["Our card"], row["Article"][:8]) == (3, "H200", "CIFAR-10")
    assert row["Here"] == "1.50× (1.50 to 1.50), memory the same, in fp16"


def test_the_csv_has_each_claim_and_what_is_known_of_it_here(section):
    (file,) = parts_of(section, File)
    rows = pd.read_csv(io.BytesIO(file.content)).itertuples()
    training = ", wide_resnet28_10, batch 128, amp_fp16, fp32"
    claims = {
        (row.card, row.claim.partition(",")[0]): row for row in rows if row.claim.endswith(training)
    }
    speed, memory = claims["T4", "time"], claims["T4", "memory"]
    assert (speed.theirs, speed.ours, speed.low, speed.high) == (1.834, 2, 2, 2)
    assert (speed.n, speed.hosts) == (3, 1)
    assert (memory.theirs, memory.ours) == (0.5789, 0.5924)
    accuracy, other = claims["T4", "best accuracy"], claims["P100", "time"]
    assert (accuracy.theirs, accuracy.ours) == (-0.015, 0)
    assert (other.testable, other.reason) == (False, "a P100 has no Tensor Cores")
    assert pd.isna(other.ours)


def test_a_direction_holds_or_does_not_or_is_undecided():
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


@mark.parametrize("fields", [*OTHER, {}])  # the last one is a counterpart
def test_three_hosts_have_a_range_and_others_are_no_counterpart(tmp_path, fields):
    runs = []
    for host, own in enumerate((10.0, 15.0, 20.0)):
        facts = {
            "host_id": f"{host}",
            "gpu_uuid": f"GPU-{host}",
            "parameters": {"repeat": host},
        } | fields
        for name, seconds in (("fp32", 30.0), ("o2_fp16", own)):
            runs.append(made_up.make("cifar_resnet", name, seconds=[seconds], **facts))
    tables = read_all(tmp_path, *runs, articles=True)
    beside = [
        row for rows in rows_in(articles_section(tables)) for row in rows if "×" in row["There"]
    ]
    found = [(row["Here"].partition(",")[0], row["n"], row["Machines"]) for row in beside]
    assert found == ([] if fields else [("2.00× [1.50 to 3.00]", 3, 3)])
