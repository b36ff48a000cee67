"""The step that a CUDA graph holds, taken on the CPU without one: the same arithmetic as eager
mode's.
"""

import contextlib
import functools
import itertools
import math
import types

import pytest
import small_training
import torch
from conftest import experiment_of
from small_training import (
    MODES,
    SCALED,
    Words,
    compute_loss,
    everything,
    flagged,
    flagged_loss,
    grow_soon,
    make_batch,
    make_record,
    plain_step,
    same_bits,
    sgd_trainer,
    small_network,
    text,
    word_loss,
)
from torch.nn.utils.rnn import pack_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.tasks.batches import leaves_of
from mixed_precision_study.train.cuda_graph import EAGER_STEPS, CapturedStep
from mixed_precision_study.train.device_optimizer import DeviceAdamW, DeviceSGD, on_device
from mixed_precision_study.train.step import LossMeter, timed_epoch, warm_up

ROUNDING = {
    "fp32": 1e-6,
    "tf32": 1e-6,
    "amp_bf16": 1e-2,
    "amp_fp16": 2e-3,
    "o2_fp16": 2e-3,
    "o3_fp16": 5e-3,
}
ROUNDING["bf16_true"] = 4e-2  # the eager optimizer rounds after every operation, the fused one once


def make_trainer(precision, execution="cuda_graph", loss=flagged_loss, **options):
    options = {"weight_decay": 1e-2, "nesterov": True, "execution": execution, **options}
    return small_training.make_trainer(precision, loss, **options)


def pair(precision, **options):
    return [make_trainer(precision, execution, **options) for execution in ("eager", "cuda_graph")]


def assert_close(first, second, tolerance):
    for a, b in zip(first.masters, second.masters, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance)


def adamw(weights):
    """With an eps above the rounding of gradients that are 0, as of a bias before batch
    normalisation.
    """
    return torch.optim.AdamW(weights, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"step_function": plain_step},
        {"clip": 0.05},
        {"make_optimizer": adamw},
        {"keep_batchnorm_fp32": True},
    ],
)
@pytest.mark.parametrize("precision", MODES)
def test_losses_scales_and_weights_are_those_of_eager_mode_with_skipped_steps(precision, options):
    eager, captured = pair(precision, **options)
    device = make_trainer(precision, "eager", scaler="device", **options)
    for trainer in (eager, captured, device):
        grow_soon(trainer.scaler)
    make_optimizer, near = options.get("make_optimizer"), ROUNDING[precision]
    if make_optimizer:  # whose averages are in fp16 in o3_fp16, rounded differently
        near = max(1e-4, {**ROUNDING, "o3_fp16": 5e-2}[precision])
    rate = captured.optimizer.param_groups[0]["lr"]
    for step in range(12):
        losses = []
        for trainer in (eager, captured, device):
            trainer.set_lr((0.01 if make_optimizer else 0.1) / (step + 1))
            losses.append(
                trainer.step(flagged(step, overflow=precision in SCALED and step in (2, 5)))[
                    0
                ].item()
            )
        tolerance = near if step else 0  # the first forward pass is the same to the bit
        assert losses[1] == losses[2] == pytest.approx(losses[0], rel=tolerance, abs=0), step
        assert (
            captured.scaler.get_scale() == device.scaler.get_scale() == eager.scaler.get_scale()
        ), step
    assert_close(eager, captured, near)
    assert same_bits(everything(device), everything(captured))
    assert captured.steps == 12
    if precision in ("amp_fp16", "o2_fp16"):
        assert captured.scaler.state_dict() == eager.scaler.state_dict()
    assert (
        captured.skipped_steps
        == device.skipped_steps
        == eager.skipped_steps
        == (2 if precision in SCALED else 0)
    )
    # a replay reads its address
    assert captured.optimizer.param_groups[0]["lr"] is rate
    assert device.captured is None and type(device.optimizer) is (
        DeviceAdamW if make_optimizer else DeviceSGD
    )
    if make_optimizer:
        assert device.optimizer.steps.item() == 12 - device.skipped_steps
    device.start_again()
    kept = [
        *device.optimizer.state.values(),
        {"steps": getattr(device.optimizer, "steps", torch.zeros(1))},
    ]
    assert not any(tensor.any() for state in kept for tensor in state.values())


@pytest.mark.parametrize(("count", "mean"), [(0, None), (3, 1.0), (6, 2.25), (7, 3.0)])
def test_a_loss_meter_longer_than_its_room_is_read_in_between(count, mean):
    outcome = torch.zeros(2)
    captured = types.SimpleNamespace(outcome=outcome)
    trainer = types.SimpleNamespace(captured=captured, updates=0, device=outcome.device)
    meter = LossMeter(trainer, room=3)
    for number in range(count):
        outcome.copy_(torch.tensor([float(number), float(number in (1, 5))]))
        meter.step(None)
    assert meter.end() == (mean, [number in (1, 5) for number in range(count)])


@pytest.mark.parametrize("precision", ["amp_fp16", "o2_fp16"])
@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize(
    ("skipped", "scale"), [((1, 0, 1), 32768), ((1, 1, 0), 16384), ((1, 1, 1), 8192)]
)
def test_a_scale_that_still_falls_at_the_end_of_the_warm_up_is_not_kept(
    precision, execution, skipped, scale
):
    """A hidden state that is no longer finite makes every step overflow, and the scale then
    means nothing.
    """
    trainer, record = make_trainer(precision, execution), make_record(precision)
    # on the CPU a warm-up has three steps if something is compiled, else one
    trainer.model = torch.nn.Identity()
    warm_up(record, trainer, lambda: iter([flagged(0, overflow=bool(flag)) for flag in skipped]))
    assert (record.warmup_steps, record.warmup_skipped_steps) == (3, sum(skipped))
    assert trainer.scaler.get_scale() == scale
    assert trainer.steps == trainer.skipped_steps == 0


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_hidden_state_goes_from_step_to_step_starts_anew_and_may_come_from_elsewhere(kind):
    options = {"lr": 0.5, "clip": 0.25}
    eager, captured = (
        sgd_trainer(Words(kind), "fp32", word_loss, execution=way, **options)
        for way in ("eager", "cuda_graph")
    )
    other = [
        torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(number)) for number in (5, 6)
    ]
    other = tuple(other) if kind == "LSTM" else other[0]
    places = set()
    for first in (other, None, other):  # epochs; at the very first step, too
        states = [first, first]
        for step in range(4):
            losses = []
            for number, trainer in enumerate((eager, captured)):
                loss, states[number] = trainer.step(text(step), states[number])
                losses.append(loss.item())
            assert losses[1] == pytest.approx(losses[0], rel=1e-6)
            given, kept = ([part for _, part in leaves_of(state)] for state in states)
            places.add(tuple(part.data_ptr() for part in kept))
            for a, b in zip(given, kept, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert len(places) == 1 and places.isdisjoint(
        {tuple(part.data_ptr() for _, part in leaves_of(other))}
    )
    assert_close(eager, captured, 1e-6)


PACKED = [
    pack_sequence([torch.ones(first, 2), torch.ones(second, 2)])
    for first, second in ((4, 2), (3, 3))
]


def nested_loss(network, batch, hidden):
    images, labels = batch["images"], batch["more"][0]
    loss, _ = compute_loss(network, (images, labels), None)
    total = (
        {"mean": images.mean().reshape(1)}
        if hidden is None
        else {"mean": hidden["mean"] + images.mean()}
    )
    return loss + 0.01 * total["mean"].sum(), total


def nested(seed=1, name="same", **more):
    images, labels = make_batch(seed)
    return {"images": images, "more": [labels, name, None], "packed": PACKED[0], **more}


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (nested(name="other"), r"batch\['more'\]\[1\].*'same'.*'other'"),
        (nested(name=3), r"batch\['more'\]\[1\]"),
        (nested(extra=None), "batch"),
        (nested(images=make_batch()[0][:8]), r"batch\['images'\].*\(8, 3"),
        (nested(images=make_batch()[0].double()), r"batch\['images'\].*float64"),
        (nested(images=None), r"batch\['images'\]"),
        (nested(packed=PACKED[1]), r"batch\['packed'\]\.batch_sizes"),
    ],
)
def test_a_nest_is_trained_on_as_in_eager_mode_and_what_a_graph_cannot_take_is_refused_by_name(
    second, named
):
    eager, captured = pair("fp32", loss=nested_loss)
    states, places = (None, None), set()
    for seed in range(3):
        results = [
            trainer.step(nested(seed), state)
            for trainer, state in zip((eager, captured), states, strict=True)
        ]
        losses, states = zip(*results, strict=True)
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
        assert states[1]["mean"].item() == pytest.approx(states[0]["mean"].item())
        places.add(captured.captured.batch["images"].data_ptr())
    assert len(places) == 1
    with pytest.raises(Unsupported, match=named):
        captured.step(second)


class WaitCounter(TorchDispatchMode):
    """Counts the operations whose result the host must wait for, none of which a CUDA graph can
    hold.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")
    times = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.times += operation._overloadpacket.__name__ in self.WAITING
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", MODES)
def test_a_step_does_not_wait_for_the_device(precision):
    asked = []
    for trainer in pair(precision, clip=0.5):
        with WaitCounter() as counter:
            trainer.eager_step(flagged(0, overflow=False))
        asked.append(counter.times)
    assert asked == [1 if precision in SCALED else 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar_resnet", {"model": "test_resnet", "batch_size": 2, "log_every": 1}),
        (
            "efficientnet_regression",
            {"model": "test_efficientnet", "image_height": 32, "image_width": 32},
        ),
        ("lstm_language_model", {"units": 16}),
        ("transformer", {"width": 64, "layers": 1, "context": 16}),
    ],
)
def test_a_notebooks_step_does_not_wait_for_the_device(name, options):
    experiment = experiment_of(
        name, dataset="synthetic", max_steps=2, execution="cuda_graph", **options
    )
    trainer = experiment.make_trainer("fp32")
    _, hidden = trainer.step(next(experiment.batches(0, "fp32", experiment.parameters.batch_size)))
    again = trainer.captured.batch  # making another one is not part of the step
    with WaitCounter() as counter:
        for _ in range(2):
            loss, hidden = trainer.step(again, hidden)
    assert counter.times == 0
    assert loss.isfinite()


OF_SGD = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.01},
    {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
]
OF_ADAMW = [{}, {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.3}]


def make_weights(dtype):
    """Weights in both layouts, with sizes of 1, whose strides are ambiguous."""
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(*shape, generator=generator)
        for shape in ((4, 3, 3, 3), (4, 1, 3, 3), (4, 3, 1, 1), (5,), (2,))
    ]
    weights = [
        w.to(memory_format=torch.channels_last) if w.dim() == 4 and n != 2 else w
        for n, w in enumerate(weights)
    ]
    return [torch.nn.Parameter(weight.to(dtype)) for weight in weights]


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [
        *itertools.product(
            [torch.optim.SGD], OF_SGD, [torch.float32, torch.float16, torch.bfloat16]
        ),
        *itertools.product([torch.optim.AdamW], OF_ADAMW, [torch.float32, torch.bfloat16]),
    ],
)
def test_the_update_is_that_of_torch_with_its_settings(kind, options, dtype):
    ours, theirs = make_weights(dtype), make_weights(dtype)
    optimizers = on_device(kind(ours, 0.1, **options)), kind(theirs, 0.1, foreach=True, **options)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        # the last has no gradient, so it stays
        for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
            # always contiguous: another layout
            other.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            mine.grad = other.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    # torch rounds to 16 bits in between
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
    assert type(optimizers[0]) is {torch.optim.SGD: DeviceSGD, torch.optim.AdamW: DeviceAdamW}[kind]
    assert all(a is b for a, b in zip(optimizers[0].weights, ours, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "o2_fp16"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_several_groups_train_as_with_torch_and_frozen_weights_keep_nothing(kind, precision):
    def make_optimizer(model):
        _, *weights = model.parameters()
        groups = [
            {"params": weights[::2]},
            {"params": weights[1::2], "weight_decay": 0.0, "lr": 0.1},
        ]
        return kind(groups, lr=0.05, weight_decay=0.3)

    losses = []
    for scaler in ("pytorch", "device"):
        network, given = (
            small_network(),
            {"make_optimizer": make_optimizer, "scaler": scaler, "clip": 0.1},
        )
        network[0].weight.requires_grad_(False)
        trainer = sgd_trainer(network, precision, compute_loss, **given)
        for step in range(4):
            trainer.set_lr(0.05 / (1 + step))
            losses.append(trainer.step(make_batch(step))[0].item())
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        assert rates == pytest.approx([0.0125, 0.025])
        assert trainer.masters[0] is trainer.weights[0]
    assert losses[4:] == pytest.approx(losses[:4], rel=1e-5 if precision == "fp32" else 1e-2)
    trainer.start_again()
    assert not any(momentum.any() for momentum in everything(trainer)[2])
    frozen = on_device(kind([torch.nn.Parameter(torch.ones(3), requires_grad=False)], lr=0.1))
    assert frozen.state == {}


def test_a_fused_optimizer_that_skips_by_itself_is_counted():
    """GradScaler calls it in every step, so the number of calls says nothing."""
    fused = functools.partial(torch.optim.AdamW, lr=0.01, fused=True)
    made = make_trainer("amp_fp16", "eager", make_optimizer=fused, clip=0.01)
    record = make_record(precision="amp_fp16")
    timed_epoch(record, made, [flagged(number, number in (1, 2)) for number in range(4)])
    assert (made.steps, made.skipped_steps, record.overflow_steps) == (4, 2, [1, 2])
    assert record.skipped_steps == 2 and math.isfinite(record.train_loss[0])
    made.start_again()
    assert made.skipped_steps == 0


class OwnSGD(torch.optim.SGD):
    """A user's own update rule, which the fused kernel does not know."""


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (torch.optim.Adam, {}, "Adam"),
        (OwnSGD, {}, "OwnSGD"),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, "dampening"),
        *((kind, {"maximize": True}, "maximize") for kind in (torch.optim.SGD, torch.optim.AdamW)),
        (torch.optim.AdamW, {"amsgrad": True}, "amsgrad"),
    ],
)
def test_another_optimizer_is_unsupported_on_the_device(kind, options, says):
    with pytest.raises(Unsupported, match=says):
        on_device(kind([torch.nn.Parameter(torch.ones(3))], lr=0.1, **options))


@pytest.fixture
def device(monkeypatch):
    """Stand for torch.cuda where only the order of calls matters, and capture the steps of
    `device.steps`.
    """
    calls, stream = [], types.SimpleNamespace(wait_stream=lambda other: None)

    @contextlib.contextmanager
    def graph(graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        calls.append("capture")
        try:
            yield
        except Exception:
            raise RuntimeError("capture invalidated")  # noqa: B904 - as PyTorch does it

    def take(batch, hidden):
        calls.append("step")
        return batch.sum(), None

    fake = types.SimpleNamespace(
        replay=lambda: calls.append("replay"), reset=lambda: calls.append("reset")
    )
    state = types.SimpleNamespace(
        clone_state=lambda: "new", graphsafe_set_state=lambda new: calls.append(f"generator {new}")
    )
    given = {
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda: stream,
        "graph": graph,
    }
    given |= {"CUDAGraph": lambda: fake, "default_generators": [state]}
    given |= {"max_memory_allocated": lambda device: 700, "memory_allocated": lambda device: 200}
    for name, value in given.items():
        monkeypatch.setattr(torch.cuda, name, value)
    steps = CapturedStep(take, torch.zeros(()), torch.device("cpu", 0))
    steps.stream, steps.before_capture = stream, lambda: calls.append("before")
    return types.SimpleNamespace(calls=calls, steps=steps)


def test_a_few_steps_are_taken_then_one_is_captured_and_replayed(device, monkeypatch):
    for _ in range(6):
        device.steps.step(torch.ones(2), None)
    assert device.calls == ["step"] * 3 + ["before", "capture", "step"] + ["replay"] * 3
    assert (device.steps.unseen_bytes, device.steps.taken) == (500, 6)
    # as three epochs begin; what evaluations left is not counted as training's
    allocated = iter([1000, 1300, 900])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    assert [device.steps.unseen() for _ in range(3)] == [500, 200, 500]
    trainer = make_trainer("fp32")
    trainer.captured.graph = object()
    trainer.eager_step(flagged(0, overflow=False))
    # because cuDNN may free its dropout state in a step outside the graph
    assert trainer.captured.graph is None


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nmore"), Unsupported),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    ],
)
def test_a_capture_that_fails_tells_its_first_cause(device, cause, kind):
    def take(batch, hidden):
        if device.steps.taken == EAGER_STEPS:
            raise cause
        return batch.sum(), None

    device.steps.take = take
    for _ in range(3):
        device.steps.step(torch.ones(2), None)
    with pytest.raises(kind, match=str(cause).partition("\n")[0]) as raised:
        device.steps.step(torch.ones(2), None)
    assert "\n" not in str(raised.value)
    assert ("test_cuda_graph.py: raise cause" in str(raised.value)) is (kind is Unsupported)
    # its memory is free; dropout goes on in the next run
    assert device.calls[-2:] == ["reset", "generator new"]
