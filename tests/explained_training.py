"""What the tests of explanations share: a network of linear layers, its batches, and a record
with a step time.
"""

import itertools

import torch
from small_training import make_record as make_small_record
from small_training import sgd_trainer
from torch import nn

MIB = 2**20


def make_record(precision="fp32", **facts):
    return make_small_record(precision, **{"step_ms_median": 2.0, **facts})


def random(*size, grad=False):
    return torch.randn(*size, requires_grad=grad)


def compute_loss(network, batch, hidden):
    return network(batch).float().square().mean(), hidden


class Weights(nn.Module):
    def __init__(self, size, value=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))


def linear_loss(network, batch, hidden):
    """A loss whose gradient is the batch."""
    return (network.weight.float() * batch.float()).sum(), hidden


def make_trainer(precision="fp32", loss=compute_loss, network=None, **options):
    torch.manual_seed(0)
    layers = [nn.Linear(*pair, bias=False) for pair in itertools.pairwise((16, 24, 8, 8))]
    options = {"lr": 0.1, "momentum": 0.9, **options}
    return sgd_trainer(network or nn.Sequential(*layers), precision, loss, **options)


def made_batches(given, count=1, rows=4):
    """Yield batches and add each to `given`."""
    for number in range(count):
        given.append(random(rows, 16))
        yield given[number]
