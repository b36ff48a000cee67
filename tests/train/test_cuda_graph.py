"""The step that a CUDA graph holds, taken on the CPU without one: the same arithmetic as eager
mode's.
"""

import contextlib
import functools
import math
from types import SimpleNamespace

import pytest
import small_training
import torch
from conftest import seeded
from small_training import (
    CPU,
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
    text,
    word_loss,
)
from torch.nn.utils.rnn import pack_sequence
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.tasks.batches import leaves_of
from mixed_precision_study.train.cuda_graph import EAGER_STEPS, CapturedStep, DeviceScaler
from mixed_precision_study.train.step import timed_epoch

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
    return AdamW(weights, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-3)


@pytest.mark.any_python
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
def test_a_graph_trains_as_eager_mode_with_skipped_steps(precision, options):
    eager, captured = pair(precision, **options)
    device = make_trainer(precision, "eager", scaler="device", **options)
    for trainer in (eager, captured, device):
        grow_soon(trainer.scaler)
    make_optimizer, near = options.get("make_optimizer"), ROUNDING[precision]
    if make_optimizer:  # whose averages are in fp16 in o3_fp16, rounded differently
        near = max(1e-4, {**ROUNDING, "o3_fp16": 5e-2}[precision])
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
        scales = {trainer.scaler.get_scale() for trainer in (eager, captured, device)}
        assert len(scales) == 1, step
    assert_close(eager, captured, near)
    assert same_bits(everything(device), everything(captured))
    if precision in ("amp_fp16", "o2_fp16"):
        assert captured.scaler.state_dict() == eager.scaler.state_dict()
    assert [(trainer.steps, trainer.skipped_steps) for trainer in (eager, captured, device)] == [
        (12, 2 if precision in SCALED else 0)
    ] * 3


@pytest.fixture
def empty_is_nan():
    """Uninitialised memory holds NaN, which PyTorch writes where it must be deterministic."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("options", [{}, {"step_function": plain_step}])
def test_a_fused_sgd_trains_where_its_first_step_is_skipped(options, empty_is_nan):
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    fused = functools.partial(sgd, fused=True)
    usual, other = [
        make_trainer("amp_fp16", "eager", make_optimizer=made, **options) for made in (sgd, fused)
    ]
    for trainer in (usual, other):
        for step in range(4):
            trainer.step(flagged(step, overflow=step == 0))
    assert_close(usual, other, 2e-3)
    assert (usual.steps, usual.skipped_steps) == (other.steps, other.skipped_steps) == (4, 1)


def test_a_replay_reads_the_rate_at_its_address():
    captured = make_trainer("fp32")
    rate = captured.optimizer.param_groups[0]["lr"]
    captured.set_lr(0.1)
    captured.step(flagged(0, overflow=False))
    assert captured.optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_hidden_state_goes_from_step_to_step(kind):
    options = {"lr": 0.5, "clip": 0.25}
    eager, captured = (
        sgd_trainer(Words(kind), "fp32", word_loss, execution=way, **options)
        for way in ("eager", "cuda_graph")
    )
    other = [torch.randn(2, 3, 8, generator=seeded(number)) for number in (5, 6)]
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
    "second, named",
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
def test_a_nest_is_trained_on_and_another_is_refused(second, named):
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


def test_the_scaler_of_the_device_has_the_constants_of_pytorchs():
    """What it says of itself, and what its scale does after as many good steps as growth takes."""
    ours, theirs = DeviceScaler(2.0**16, True, CPU), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    assert ours.state_dict() == theirs.state_dict() | {"scale": 2.0**16}
    scales = []
    for overflow in [0.0] * theirs.get_growth_interval() + [1.0]:
        ours.found_inf.fill_(overflow)
        ours.update()
        scales.append(ours.get_scale())
    assert scales[-3:] == [2.0**16, 2.0**17, 2.0**16]
    assert (ours.skipped.item(), ours.good_steps.item()) == (1, 0)


def test_a_fused_optimizer_that_skips_by_itself_is_counted():
    """GradScaler calls it in every step, so the number of calls says nothing."""
    fused = functools.partial(AdamW, lr=0.01, fused=True)
    made = make_trainer("amp_fp16", "eager", make_optimizer=fused, clip=0.01)
    record = make_record(precision="amp_fp16")
    timed_epoch(record, made, [flagged(number, number in (1, 2)) for number in range(4)])
    assert (made.steps, made.skipped_steps, record.overflow_steps) == (4, 2, [1, 2])
    assert record.skipped_steps == 2 and math.isfinite(record.train_loss[0])
    made.start_again()
    assert made.skipped_steps == 0


@pytest.fixture
def device(monkeypatch):
    """Stand for torch.cuda where only the order of calls matters, and capture the steps of
    `device.steps`.
    """
    calls, stream = [], SimpleNamespace(wait_stream=lambda other: None)

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

    fake = SimpleNamespace(
        replay=lambda: calls.append("replay"), reset=lambda: calls.append("reset")
    )
    state = SimpleNamespace(
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
    return SimpleNamespace(calls=calls, steps=steps)


def test_a_step_is_captured_and_replayed(device, monkeypatch):
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
    "cause, kind",
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
