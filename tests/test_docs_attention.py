"""Table and picture of the answer on attention, from made-up records of known milliseconds."""

import itertools

import attention
import made_up_records as made_up
import pytest
from drawn_reports import cells_of, write_all

ARMS = (attention.BASE, attention.ATTENTION, attention.PRODUCTS, attention.BOTH)
STEPS_MS = {128: (24.0, 24.0, 12.0, 12.0), 8192: (90.0, 30.0, 75.0, 15.0)}
ATTENTION_MS = {128: (2.0, 0.5, 2.0, 0.5), 8192: (70.0, 6.0, 65.0, 5.0)}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    alone = {"attention_dtype": "fp32", "attention": "auto", "execution": "compile_cuda_graph"}
    alone |= {"context": 128, "width": attention.WIDTH}
    others = [{"width": 256}, {"execution": "eager"}, {"context": 4096}]
    records = [
        made_up.make("lstm_language_model", "tf32", parameters=alone | one) for one in others
    ]
    for context, repeat in itertools.product(STEPS_MS, range(3)):
        times = zip(ARMS, STEPS_MS[context], ATTENTION_MS[context], strict=True)
        for arm, step, spent in times:
            precision, dtype, kernel = arm.split(", ")
            settings = {"attention_dtype": dtype, "attention": kernel, "context": context}
            settings["width"] = attention.WIDTH
            settings |= {"repeat": repeat, "execution": "compile_cuda_graph"}
            record = made_up.make(
                "lstm_language_model", precision, parameters=settings, seconds=[step]
            )
            record.fill(step_ms_median=step, model_title=f"GPT, 6 × 768, context {context:,}")
            if not repeat:  # it is explained
                parts = [["attention", spent / 80], ["matmul", 0.05]]
                record.fill(gpu_busy_ms_per_step=80.0, kernel_family_fractions=parts)
            record.study = {"name": "attention", "description": "", "show": {}}
            record.study |= {"axis": ["precision", "attention_dtype", "attention"]}
            record.study |= {"base": ["tf32", "fp32", "auto"]}
            records.append(record)
    folder = tmp_path_factory.mktemp("outputs")
    (folder / attention.FOLDER).mkdir(parents=True)
    write_all(folder / attention.FOLDER, *records)
    return folder


def test_the_table_has_both_orders_and_the_interaction(outputs):
    cells = cells_of(attention.table_of(outputs))
    assert cells["times as fast"] == ["128", "8,192"]
    assert [cell.split(" (")[0] for cell in cells["**bf16 AMP**"]] == ["2.00", "6.00"]
    assert [cell.split(" (")[0] for cell in cells["attention, first"]] == ["~1.00", "3.00"]
    assert [cell.split(" (")[0] for cell in cells["attention, second"]] == ["~1.00", "5.00"]
    assert cells["interaction"] == ["1.00 (1.00–1.00)", "1.67 (1.67–1.67)"]
    assert cells["bf16 AMP, efficient kernel"] == ["-", "-"]


def test_the_picture_stacks_attention_and_all_else(outputs):
    rows = attention.bar_rows(outputs)
    assert list(rows.name.unique()) == ["Context 128", "Context 8,192"]
    assert list(rows.attention) == pytest.approx([*ATTENTION_MS[128], *ATTENTION_MS[8192]])
    assert list(rows.attention + rows["all else"]) == [*STEPS_MS[128], *STEPS_MS[8192]]
    bars = [len(figure.axes[0].patches) for figure in attention.figures(outputs)]
    assert bars == [2 * len(ARMS)] * 2
    assert attention.figures(outputs / "none") == []
