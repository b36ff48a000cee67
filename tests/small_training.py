"""What the tests of training share: a small network, batches, trainers on the CPU, and records
to be filled.
"""

import copy
import math
from functools import partial

import torch
from conftest import seeded
from torch import nn
from torch.nn import functional

from mixed_precision_study.experiment import Metric
from mixed_precision_study.store import record as records
from mixed_precision_study.train.precision import PRECISIONS
from mixed_precision_study.train.step import Trainer, training_step

CPU = torch.device("cpu")
# which the small networks have no layers for
MODES = tuple(name for name in PRECISIONS if name != "fp8")
SCALED = ("amp_fp16", "o2_fp16", "o3_fp16")
EXECUTIONS = ("eager", "cuda_graph")
OF_SGD = ("lr", "momentum", "weight_decay", "nesterov")


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def compute_loss(network, batch, hidden):
    images, labels = batch
    images = images.to(next(network.parameters()).dtype)
    return functional.cross_entropy(network(images).float(), labels), hidden


METRIC = Metric("absolute error", better="lower")


def error(model, batches):
    """Return the mean absolute error, as an evaluation of one's own may."""
    return torch.stack([(model(x).float() - y).abs().mean() for x, y in batches]).mean()


def make_batch(seed=0):
    generator = seeded(seed)
    return torch.randn(16, 3, 8, 8, generator=generator), torch.randint(
        4, (16,), generator=generator
    )


def sgd_trainer(network, precision, loss, *, clip=None, **options):
    """Return a Trainer that clips to a norm of `clip` and updates by SGD, unless `options` name a
    step or an optimizer.

    options: those of SGD, and of the Trainer.
    """
    sgd = {name: options.pop(name) for name in OF_SGD if name in options}
    usual = {
        "make_optimizer": partial(torch.optim.SGD, **sgd),
        "step_function": partial(training_step, clip=clip),
    }
    return Trainer(network, precision, loss, **{"device": CPU, **usual, **options})


def make_trainer(precision, loss=compute_loss, **options):
    options = {"lr": 0.1, "momentum": 0.9, **options}
    scale = options.pop("loss_scale", 1024.0 if precision == "o3_fp16" else "dynamic")
    return sgd_trainer(small_network(), precision, loss, loss_scale=scale, **options)


def losses_of_a_loop(model, optimizer, loss, epochs):
    """Train by the loop that everybody writes; return the mean loss of each epoch's batches."""
    means = []
    for batches in epochs:
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            losses.append(loss(model, batch))
            losses[-1].backward()
            optimizer.step()
        means.append(torch.stack(losses).mean().item())
    return means


def plain_step(model, batch, hidden, compute_loss, optimizer, scaler, precision):
    """A training step that leaves it to the scaler to unscale, as those of the two image
    notebooks.
    """
    optimizer.zero_grad(set_to_none=True)
    with precision.autocast():
        loss, hidden = compute_loss(model, batch, hidden)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), hidden


def make_record(precision="fp32", **facts):
    parameters = {
        "dataset": "d",
        "model": "m",
        "batch_size": 16,
        "seed": 0,
        "output_dir": "out",
        "data_dir": "data",
    }
    facts = {"sample_unit": "images", "metric_name": "accuracy", **facts}
    return records.new_record("n", parameters, precision, facts)


def norm_of_update(trainer):
    """Take a step and return the norm of the change: with plain SGD at rate 1 that of the
    clipped gradient.
    """
    before = [master.detach().clone() for master in trainer.masters]
    trainer.step(make_batch())
    changes = [(a.float() - b.float()).norm() for a, b in zip(before, trainer.masters, strict=True)]
    return torch.stack(changes).norm().item()


def everything(trainer):
    """Return copies of all that a skipped step must leave as it was."""
    momenta = [
        value
        for state in trainer.optimizer.state.values()
        for value in state.values()
        if value is not None
    ]
    return copy.deepcopy(
        [[w.detach() for w in trainer.weights], [m.detach() for m in trainer.masters], momenta]
    )


def same_bits(first, second):
    return len(first) == len(second) and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(first, second, strict=True)
    )


def flagged_loss(network, batch, hidden):
    """A loss whose gradients are infinite where batch[2], a tensor, is: a graph takes tensors
    alone.
    """
    loss, hidden = compute_loss(network, batch[:2], hidden)
    return loss * batch[2], hidden


def flagged(seed, overflow):
    return (*make_batch(seed), torch.tensor(math.inf if overflow else 1.0))


def grow_soon(scaler, interval=3):
    """Let a scaler double its scale after so many steps without an overflow."""
    if hasattr(scaler, "set_growth_interval"):
        scaler.set_growth_interval(interval)
    else:
        scaler.growth_interval = interval


class Words(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.body = nn.Embedding(16, 8), getattr(nn, kind)(8, 8, 2)
        self.decoder = nn.Linear(8, 16)

    def forward(self, words, hidden):
        output, hidden = self.body(self.encoder(words), hidden)
        return self.decoder(output), hidden


def word_loss(network, batch, hidden):
    words, following = batch
    logits, hidden = network(words, hidden)
    hidden = (
        tuple(part.detach() for part in hidden) if isinstance(hidden, tuple) else hidden.detach()
    )
    return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten()), hidden


def text(seed):
    generator = seeded(seed)
    return tuple(torch.randint(16, (5, 3), generator=generator) for _ in range(2))
