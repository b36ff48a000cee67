"""A reader's batches: what of them is moved, known again and counted."""

import pytest
import torch
from conftest import seeded
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from mixed_precision_study.tasks.iterable import IterableData

INPUTS = torch.randn(70, 16, generator=seeded(0))


LABELS = INPUTS.sum(1, keepdim=True)


SAMPLES = torch.utils.data.TensorDataset(INPUTS, LABELS)


def test_odd_objects_are_moved_and_have_fingerprints():
    class Graph:
        def __init__(self, nodes, device="cpu"):
            self.nodes, self.device = nodes, device

        def to(self, device):
            return Graph(self.nodes.to(device), device)

    data = IterableData([Graph(torch.ones(5, 3)), Graph(torch.ones(7, 3))], None)
    data.device = torch.device("meta")
    first, second = data.train_batches(0, torch.float32, 1)
    assert first.device.type == second.nodes.device.type == "meta" and data.sizes == [5, 7]
    kinds = (torch.Tensor.bfloat16, torch.Tensor.to_sparse)  # which NumPy lacks
    made = [
        IterableData([kind(torch.full((2, 3), value))], None).fingerprint
        for kind in kinds
        for value in (1.0, 2.0)
    ]
    assert len(set(made)) == 4


def boxes(*counts):
    return [{"boxes": torch.rand(count, 4), "labels": torch.ones(count)} for count in counts]


ENDING = DataLoader(SAMPLES, 32)


LISTS = DataLoader([torch.ones(3, 4)] * 6, 4, collate_fn=list)


@pytest.mark.parametrize(
    "batches, wanted, sizes",
    [
        ([(pack_sequence([torch.ones(5, 3), torch.ones(3, 3)]), torch.zeros(2))], None, [2]),
        ([(torch.zeros(35, 20).long(), torch.zeros(35, 20).long())], None, [35]),
        ([torch.zeros(35, 20), torch.zeros(12, 20), torch.zeros(12, 7)], 20, [20, 20, 7]),
        ([{"beta": torch.tensor(0.1), "x": torch.zeros(16, 3)}], None, [16]),
        (
            [{"anchors": torch.zeros(9, 4), "x": torch.zeros(16, 3), "y": torch.zeros(16)}],
            None,
            [16],
        ),
        ([{"anchors": torch.zeros(9, 4), "x": torch.zeros(16, 3)}], 16, [16]),
        (
            [(torch.ones(2, 3, 8, 8), boxes(3, 3)), (torch.ones(2, 3, 8, 8), boxes(1, 4))],
            None,
            [2, 2],
        ),
        ([([torch.ones(3, 8, 8)] * 4, torch.zeros(4))], None, [4]),
        ([([torch.ones(6, 3), torch.ones(6, 2)], torch.zeros(6))], None, [6]),
        ([[torch.ones(6, 3), torch.ones(6)]], None, [6]),
        ([torch.tensor(1.0), torch.tensor(2.0)], None, [1, 1]),
        ([torch.ones(4, 3)] * 2, 1, [1, 1]),
        ([(torch.ones(8, 16), torch.zeros(0))], None, [8]),
        ([([{"ids": torch.ones(8, 16)}] * 2, None)], None, [8]),
        (ENDING, None, [32, 32, 6]),
        (LISTS, None, [4, 2]),
    ],
)
def test_the_samples_of_a_batch_are_counted(batches, wanted, sizes):
    before, data = torch.get_rng_state(), IterableData(batches, None, batch_size=wanted)
    assert len(list(data.train_batches(0, torch.bfloat16, data.size))) == len(sizes)
    assert torch.equal(torch.get_rng_state(), before)
    assert (data.size, data.sizes, data.train_samples) == (sizes[0], sizes, sum(sizes))
