"""compare() and its notebook on a GPU; skipped where there is none."""

import pytest
import torch
from conftest import run_cells, seeded
from torch import nn

from mixed_precision_study import compare
from mixed_precision_study.report.tables import read_tables

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
EXECUTIONS = ["eager", "cuda_graph", "compile_cuda_graph"]


class Block(nn.Module):
    """A configured Transformer layer that takes a dict, as models of other libraries do."""

    def __init__(self, units=256):
        super().__init__()
        self.words = nn.Embedding(1024, units)
        self.layer = nn.TransformerEncoderLayer(units, 4, 4 * units, dropout=0.1, batch_first=True)
        self.head = nn.Linear(units, 1024)

    def forward(self, tokens, labels):
        logits = self.head(self.layer(self.words(tokens)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())}


def dict_batches(count=40):
    generator = seeded(0)
    tokens = torch.randint(1024, (count, 32, 64), generator=generator)
    return [{"tokens": batch, "labels": batch.roll(-1, 1)} for batch in tokens]


def two_groups(model):
    words, *others = model.parameters()
    return torch.optim.AdamW(
        [{"params": [words]}, {"params": others, "weight_decay": 0.0}], lr=1e-3, fused=True
    )


def test_dict_batches_and_adamw_train_in_every_way(tmp_path):
    given = {
        "make_optimizer": two_groups,
        "schedule": lambda step: 1e-3 / (1 + step / 40),
        "accumulate": 2,
    }
    given |= {
        "precisions": ["fp32", "tf32", "amp_fp16"],
        "epochs": 2,
        "execution": EXECUTIONS,
        "clip": 1.0,
    }
    given["output_dir"] = str(tmp_path)
    records = compare(
        "own", Block, dict_batches(), lambda model, batch: model(**batch)["loss"], **given
    )
    assert [record.status for record in records] == ["ok"] * 9, [
        record.reason for record in records
    ]
    eager, graph = records[:3], records[3:6]
    for first, second in zip(eager, graph, strict=True):
        assert first.steps_per_epoch == 20 and second.train_loss == pytest.approx(
            first.train_loss, rel=1e-2
        )
    for record in records:
        assert record.profile_reason is None and record.gpu_busy_fraction > 0
        assert record.ledger_parameters_mib > 0 and record.peak_allocated_mib > 0
        assert record.train_loss[-1] < record.train_loss[0]
    tables = read_tables(tmp_path)
    assert sorted(tables.comparisons.execution) == sorted(EXECUTIONS), tables.left_out


def test_the_notebook_of_an_own_model_runs_and_explains(tmp_path):
    given = {
        "max_steps": 20,
        "epochs": 2,
        "precisions": ["tf32", "amp_bf16"],
        "output_dir": str(tmp_path),
    }
    records = run_cells("your_model", "run", **given)["records"]
    assert [record.status for record in records] == ["ok"] * 2, [
        record.reason for record in records
    ]
    assert all(record.kernels_per_step > 0 and len(record.metric) == 2 for record in records)
