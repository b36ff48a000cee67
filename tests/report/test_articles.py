"""What articles published beside the same ratio here: what counts as the same, and the table."""

import io
from dataclasses import replace

import made_up_records as made_up
import pandas as pd
import pytest
from drawn_reports import parts_of, read_all, rows_in, write_all

from mixed_precision_study.report.articles import NO_RUN, articles_section
from mixed_precision_study.report.section import File


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def section(tables):
    return articles_section(tables)


def test_a_study_that_does_not_show_articles_has_no_section(tables):
    assert not articles_section(replace(tables, show={})).parts


def test_a_figure_stands_beside_ours_with_what_differs(section):
    (rows,) = rows_in(section)
    found = {(row["Training"], row["Card"]): row for row in reversed(rows)}
    # size and direction in one row; a P100 is not compared, and no other mode stands in
    row = found["WideResNet-28-10, batch 128, fp16", "T4"]
    here = ("1.83×, memory −42%", "2.00× (2.00 to 2.00), memory −34%")
    assert (row["There"], row["Here"], row["n"], row["Our card"]) == (*here, 3, "H200")
    assert "images on the GPU" in row["Differs"]
    diverged = ("not converged", "best accuracy: 90.0% against 90.0%")
    assert diverged in [(row["There"], row["Here"]) for row in rows]
    assert {row["Card"] for row in rows} == {"T4"}


def test_the_csv_has_a_value_or_a_reason_for_each_figure(section):
    (file,) = parts_of(section, File)
    rows = pd.read_csv(io.BytesIO(file.content))
    assert (rows.ours.notna() == rows.differs.notna()).all()
    assert (rows.ours.isna() == rows.reason.notna()).all()
    wide = rows[rows.claim.str.endswith(", wide_resnet28_10, batch 128, amp_fp16, fp32")]
    speed, memory, other = (wide[wide.claim.str.startswith("time")], *[wide] * 2)
    columns = ["theirs", "ours", "low", "high", "n", "hosts"]
    assert speed[speed.card == "T4"][columns].values.tolist() == [[1.834, 2, 2, 2, 3, 1]]
    memory = memory[(memory.card == "T4") & memory.claim.str.startswith("memory")]
    assert memory[["theirs", "ours"]].values.tolist() == [[0.5789, 0.6578]]
    reasons = [*other[other.card == "P100"].reason, *rows[rows.claim.str.contains("gru")].reason]
    assert reasons == ["a P100 has no Tensor Cores"] * 3 + [NO_RUN]


OTHER = [{"dataset_used": "synthetic"}, {"device_type": "cpu", "gpu_name": None}]
OTHER += [
    {"parameters": one}
    for one in (
        *({"batch_size": 64}, {"execution": "cuda_graph"}),
        *({"memory_limit_gib": 11.0}, {"keep_batchnorm_fp32": False}),
    )
]


@pytest.mark.parametrize("fields", [*OTHER, {}])  # the last one is a counterpart
def test_three_hosts_have_a_range_and_others_are_no_counterpart(tmp_path, fields):
    runs = []
    for host, own in enumerate((10.0, 15.0, 20.0)):
        facts = {"host_id": f"{host}", "gpu_uuid": f"GPU-{host}"} | fields
        own_form = {"repeat": host, "keep_batchnorm_fp32": True}
        facts["parameters"] = own_form | fields.get("parameters", {})
        for name, seconds in (("fp32", 30.0), ("o3_fp16", own)):
            runs.append(made_up.make("cifar_resnet", name, seconds=[seconds], **facts))
    tables = read_all(tmp_path, *runs, articles=True)
    beside = [
        row for rows in rows_in(articles_section(tables)) for row in rows if "×" in row["There"]
    ]
    found = [(row["Here"].partition(",")[0], row["n"], row["Machines"]) for row in beside]
    assert found == ([] if fields else [("2.00× [1.50 to 3.00]", 3, 3)])
