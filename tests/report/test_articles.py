"""What articles published beside the same ratio here: what counts as the same, and the table."""

import made_up_records as made_up
import pytest
from drawn_reports import read_all, rows_in

from mixed_precision_study.report.articles import articles_section

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
