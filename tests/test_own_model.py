"""A reader's own model and batches, as compare() takes them."""

import collections
import contextlib
import dataclasses
import gc
import inspect
import os
import random
import textwrap
import types
import warnings

import numpy
import pytest
import torch
from conftest import refuses, seeded
from small_training import METRIC, error
from torch import nn
from torch.backends import cudnn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

import mixed_precision_study
from mixed_precision_study.own_model import compare
from mixed_precision_study.parameters import UserError
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.tasks.batches import leaves_of
from mixed_precision_study.tasks.iterable import IterableData
from mixed_precision_study.train.precision import (
    FP32_SWITCHES,
    OLDER_SWITCHES,
    backends_as_found,
    read_switch,
    set_switch,
)
from mixed_precision_study.train.step import training_step

QUICK = {"precisions": ["fp32", "amp_bf16"], "epochs": 2, "lr": 0.01}
INPUTS = torch.randn(70, 16, generator=seeded(0))
LABELS = INPUTS.sum(1, keepdim=True)
SAMPLES = torch.utils.data.TensorDataset(INPUTS, LABELS)


def make_model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))


def compute_loss(model, batch):
    x, y = batch
    return functional.mse_loss(model(x).float(), y.float())


def test_the_example_in_the_docstring_runs(monkeypatch):
    names = {"torch": torch}
    assert mixed_precision_study.compare is compare and not hasattr(
        mixed_precision_study, "compere"
    )
    exec(textwrap.dedent(inspect.getdoc(compare).partition("Example:\n")[2]), names)
    assert {record.precision: record.status for record in names["records"]} == {
        "fp32": "ok",
        "tf32": "unsupported",
        "amp_fp16": "unsupported",
        "amp_bf16": "ok",
    }
    assert len(read_records("outputs/squares")[0]) == 4


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    y: object
    name: str = ""


Pair = collections.namedtuple("Pair", "x y")
FEATURES = [torch.randn(6, 16, generator=seeded(seed)) for seed in range(4)]
ANSWERS = [[seed % 3, *range(5)] for seed in range(4)]  # another list in each batch


class Encoding(collections.UserDict):
    """What Hugging Face's tokenizers return: no dict, but a mapping whose entries are
    attributes, too.
    """

    def __getattr__(self, name):
        return self.data[name]


FORMS = {
    "reversed numpy": lambda x, y: (x, numpy.array(y)[::-1]),
    "list of several lengths": lambda x, y: (x, [y, y[:2]]),
    "words in an array": lambda x, y: (x, numpy.array([f"word {one}" for one in y])),
    "encoding": lambda x, y: Encoding({"x": x, "y": y}),
    "dataclass": lambda x, y: Sample(x, y, f"sample {y[0]}"),
    "namedtuple": lambda x, y: Pair(x, y),
    "frozen mapping": lambda x, y: types.MappingProxyType({"x": x, "y": y}),
    "packed": lambda x, y: (pack_sequence([x[: 3 + y[0]], x[:2]]), y),
}


def flat(batch):
    """Return all numbers in a batch, and its other leaves, one after the other."""
    return [
        one
        for _, leaf in leaves_of(batch)
        for one in (numpy.asarray(leaf).ravel().tolist() if hasattr(leaf, "dtype") else [leaf])
    ]


@pytest.mark.any_python
@pytest.mark.parametrize("form", FORMS)
def test_compute_loss_sees_each_batch_as_it_was_given(form):
    batches = [FORMS[form](x, y) for x, y in zip(FEATURES, ANSWERS, strict=True)]
    given = [flat(batch) for batch in batches]
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return model(
            next(leaf for _, leaf in leaves_of(batch) if isinstance(leaf, torch.Tensor))
        ).mean()

    (record,) = compare(
        "seen", make_model, batches, loss, precisions=["fp32"], epochs=1, max_steps=9
    )
    assert (record.status, record.steps_per_epoch) == ("ok", 4)
    assert [flat(batch) for batch in seen[-4:]] == given == [flat(batch) for batch in batches]
    kind = dict if form == "frozen mapping" else type(batches[0])
    assert all(
        type(batch) is kind and batch is not own
        for batch, own in zip(seen[-4:], batches, strict=True)
    )
    if form == "encoding":
        assert torch.equal(seen[-1].x, FEATURES[-1]) and torch.equal(
            seen[-1].y, torch.tensor(ANSWERS[-1])
        )


def mean_square(model, batch):
    return model(batch).float().square().mean()


@pytest.mark.parametrize("execution", ["eager", pytest.param("compile", marks=pytest.mark.slow)])
def test_batches_of_every_shape_are_trained_on(execution):
    given = [torch.randn(size, 16) for size in (8, 7, 6, 8, 5, 4)]
    sizes = []

    def loss(model, batch):
        if not torch.compiler.is_compiling():
            sizes.append(len(batch))
        return mean_square(model, batch)

    cudnn.benchmark = False
    records = compare("shapes", make_model, given, loss, max_steps=99, execution=execution, **QUICK)
    assert [(record.status, record.reason) for record in records] == [("ok", None)] * 2
    assert {(one.steps_per_epoch, one.samples_per_epoch, one.train_samples) for one in records} == {
        (6, 38, 38)
    }
    assert len(records[0].step_ms_all) == 12 and records[0].batch_size_used == 8
    if execution == "eager":
        assert sizes[-12:] == [8, 7, 6, 8, 5, 4] * 2
        assert set(sizes[:5]) == {8, 7, 6, 5, 4}  # warm-up begins with one batch of every shape


def test_a_graph_leaves_out_a_last_batch_and_refuses_more():
    loader = DataLoader(SAMPLES, 32)
    both = compare(
        "left_out",
        make_model,
        loader,
        compute_loss,
        execution=["eager", "cuda_graph"],
        max_steps=9,
        **QUICK,
    )
    assert {record.status for record in both} == {"ok", "unsupported"}
    assert (both[0].steps_per_epoch, both[0].samples_per_epoch) == (2, 64)
    assert len({record.run_id for record in both}) == 4
    for sizes in ((8, 8, 7, 6), (8, 7, 8), (7, 8, 8)):
        with refuses(f"{sum(size != sizes[0] for size in sizes)} of {len(sizes)}"):
            IterableData([torch.randn(size, 16) for size in sizes], None, one_shape=True)
    assert IterableData([torch.randn(8, 16)] * 3, None, one_shape=True).steps == 3


def process_state():
    """What compare() sets in the process, as far as a CPU shows it."""
    backends = torch.backends
    return {
        "older": (
            *map(read_switch, OLDER_SWITCHES),
            read_switch("backends.cuda.matmul.allow_tf32"),
        ),
        "switches": [read_switch(line) for line in FP32_SWITCHES.values()],
        "mkldnn": (
            backends.mkldnn.enabled,
            backends.mkldnn.fp32_precision,
            backends.mkldnn.matmul.fp32_precision,
        ),
        "search": (backends.cudnn.benchmark, backends.cudnn.benchmark_limit),
        "accumulation": backends.cuda.matmul.allow_fp16_accumulation,
        "cache": torch._functorch.config.enable_autograd_cache,
        "frozen": gc.get_freeze_count() > 0,
        "random": (
            torch.get_rng_state().tolist(),
            random.getstate(),
            numpy.random.get_state()[1].tolist(),
        ),
        "environment": dict(os.environ),
        "filters": list(warnings.filters),
        "autocast": torch.autocast.__enter__,
    }


@pytest.fixture(params=["as PyTorch starts", "TF32", "contradicting", "only the new switches"])
def switches_found(request):
    """Set PyTorch's switches as the code before compare() may have left them."""
    with backends_as_found():
        values = {**OLDER_SWITCHES, **dict.fromkeys(FP32_SWITCHES.values(), "tf32")}
        for line, value in ({**values, FP32_SWITCHES["matmul"]: "none"}).items():
            set_switch(line, value)
        if request.param == "TF32":
            torch.set_float32_matmul_precision("high")
            cudnn.benchmark = True
        elif request.param == "contradicting":
            # PyTorch refuses to read the older flag from now on
            cudnn.conv.fp32_precision = "ieee"
        elif request.param == "only the new switches":
            torch.backends.cuda.matmul.fp32_precision = "tf32"  # here too
        gc.unfreeze()
        yield request.param
        gc.freeze()  # for the speed of all later tests


@pytest.mark.parametrize("failing", [None, ZeroDivisionError, KeyboardInterrupt, UserError])
def test_the_process_is_left_as_it_was_found(failing, switches_found):
    readable = set()

    def loss(model, batch):
        readable.add((torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32))
        os.environ["SET_WITHIN"] = "1"
        warnings.simplefilter("ignore")
        torch.rand(1), random.random(), numpy.random.rand()
        if failing:
            raise failing
        return model(batch)[0].float().square().mean()

    batches = [torch.randn(3, 2, 16)] * 2
    before = process_state()
    with contextlib.suppress(KeyboardInterrupt, UserError):
        records = compare("found", lambda: nn.LSTM(16, 4), batches, loss, **QUICK)
        assert [record.status for record in records] == ["failed" if failing else "ok"] * 2
    assert process_state() == before
    assert readable == {(False, False)}
    if switches_found != "contradicting":
        # the usual two lines
        torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = True
        assert cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"


def test_an_error_in_one_precision_is_a_record(capsys):
    def loss(model, batch):
        return compute_loss(model, batch) if not torch.is_autocast_enabled("cpu") else model.missing

    records = compare("one_fails", make_model, [(INPUTS, LABELS)], loss, **QUICK)
    assert [record.status for record in records] == ["ok", "failed"]
    frames = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  File ")]
    assert frames[0].startswith(f'  File "{__file__}"')


class OwnAutocast(nn.Linear):
    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            return functional.linear(inputs, self.weight, self.bias)


@pytest.mark.parametrize("execution", ["eager", pytest.param("compile", marks=pytest.mark.slow)])
def test_autocast_of_the_model_itself_is_in_the_record(execution, capsys):
    given = {**QUICK, "execution": execution}
    records = compare(
        "autocast", lambda: OwnAutocast(16, 1), [(INPUTS, LABELS)], compute_loss, **given
    )
    assert [record.autocast_dtype for record in records] == ["bfloat16", "bfloat16"]
    assert [
        line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "by itself" in line
    ] == ["fp32"]


class Noisy:
    """Data that draw by themselves."""

    def __iter__(self):
        return ((torch.randn(4, 16) + random.random(), numpy.random.rand()) for _ in range(3))


def test_every_precision_has_the_same_random_numbers():
    """Though the model draws others."""
    drawn = {False: [], True: []}

    def loss(model, batch):
        now = (
            batch[0].sum().item(),
            batch[1].item(),
            torch.rand(1).item(),
            random.random(),
            numpy.random.rand(),
        )
        drawn[torch.is_autocast_enabled("cpu")].append(now)
        torch.rand(1 + torch.is_autocast_enabled("cpu"))
        return mean_square(model, batch[0])

    compare("drawn", make_model, Noisy(), loss, max_steps=3, **QUICK)
    first, second = (drawn[amp][-6:] for amp in (False, True))
    assert first == second and all(len(set(numbers)) == 6 for numbers in zip(*first, strict=True))


RATES = [0.01, 0.02, 0.01, 0.005]


def two_groups(model):
    weights = list(model.parameters())
    groups = [
        {"params": weights[::2], "weight_decay": 0.5},
        {"params": weights[1::2], "weight_decay": 0, "lr": 0.02},
    ]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), fused=True)


def plain_losses(model, steps, loss, epochs):
    """The loop that everybody writes: two groups, clipping, a schedule and accumulated
    gradients.
    """
    optimizer = two_groups(model)
    means = []
    for number, batches in enumerate(steps * epochs):
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = (
            RATES[number],
            2 * RATES[number],
        )
        optimizer.zero_grad()
        losses = [loss(model, batch) / len(batches) for batch in batches]
        sum(losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        means.append(sum(losses).item())
    return [
        sum(means[start : start + len(steps)]) / len(steps)
        for start in range(0, len(means), len(steps))
    ]


@pytest.mark.any_python
@pytest.mark.parametrize("scaler", ["pytorch", "device"])
@pytest.mark.parametrize("accumulate, micro_batches", [(1, 1), (1, 7), (3, 2)])
def test_the_losses_are_those_of_a_loop(accumulate, micro_batches, scaler):
    batches = list(zip(INPUTS.split(14), LABELS.split(14), strict=True))[
        : 2 if accumulate == 1 else 5
    ]
    steps = [batches[start : start + accumulate] for start in range(0, len(batches), accumulate)]
    torch.manual_seed(3)
    wanted = plain_losses(make_model(), steps, compute_loss, epochs=2)
    given = {
        "make_optimizer": two_groups,
        "clip": 0.1,
        "accumulate": accumulate,
        "micro_batches": micro_batches,
        "schedule": lambda step: RATES[step],
        "seed": 3,
        "scaler": scaler,
        "max_steps": 9,
        **QUICK,
    }
    exact, mixed = compare("loop", make_model, batches, compute_loss, **given)
    assert exact.train_loss == pytest.approx(wanted, rel=1e-5)
    assert mixed.train_loss == pytest.approx(wanted, rel=2e-2)
    assert (exact.steps_per_epoch, exact.samples_per_epoch) == (2, 14 * len(batches))


def test_functions_of_ones_own_are_used():
    rates, begun = [], []

    def schedule(step, metrics, steps_per_epoch):
        rates.append((step, steps_per_epoch, len(metrics)))
        return torch.tensor(0.01)

    def loss(model, batch, hidden):
        begun.append(hidden is None)
        loss = compute_loss(model, batch)
        return loss, loss.detach().reshape(1)

    def own_step(model, batch, hidden, loss_of, optimizer, scaler, precision):
        assert len(batch) == 2 and optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
        return training_step(model, batch[0], hidden, loss_of, optimizer, scaler, precision)

    functions = {"training_step": own_step, "schedule": schedule, "evaluate": error}
    held_out = {"eval_batches": [(INPUTS, LABELS)], "metric": METRIC}
    given = {**functions, **held_out, "accumulate": 2, "max_steps": 9, **QUICK}
    records = compare("own_step", make_model, [(INPUTS, LABELS)] * 4, loss, **given)
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(
        record.metric[1] < record.metric[0] and record.samples_per_epoch == 280
        for record in records
    )
    assert rates == [(0, 2, 0), (1, 2, 0), (2, 2, 1), (3, 2, 1)] * 2
    assert begun[-4:] == [True, False] * 2
