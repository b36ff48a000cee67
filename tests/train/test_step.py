"""The training step, warm-up and the timed epoch; eager, as in a CUDA graph (run without one here),
and compiled.

And cuDNN's search: bounded, timed, and told apart from compiling.
"""

import contextlib
import math
import shutil
import time
import types
from types import SimpleNamespace

import pytest
import torch
from small_training import (
    CPU,
    EXECUTIONS,
    MODES,
    SCALED,
    everything,
    flagged,
    flagged_loss,
    grow_soon,
    make_batch,
    make_record,
    make_trainer,
    norm_of_update,
    same_bits,
    sgd_trainer,
    small_network,
)
from torch import nn
from torch.backends import cudnn
from torch.nn import functional

from mixed_precision_study.parameters import COMPILE_MODES, Diverged
from mixed_precision_study.train.precision import set_fp32_precision
from mixed_precision_study.train.step import (
    SEARCH_LIMIT,
    LossMeter,
    TrainingLog,
    allow_search,
    evaluating,
    read_search,
    timed_epoch,
    warm_up,
)

STEP = "mixed_precision_study.train.step"
both_executions = pytest.mark.parametrize("execution", EXECUTIONS)


# the usual one, or one that stays through growth and overflow
@pytest.mark.parametrize("scale", [None, 128])
@pytest.mark.parametrize("precision", SCALED)
@both_executions
def test_a_skipped_step_changes_no_bit(execution, precision, scale):
    trainer = make_trainer(
        precision, flagged_loss, execution=execution, **({"loss_scale": scale} if scale else {})
    )
    grow_soon(trainer.scaler, 2)
    for number in range(6):
        before = everything(trainer)
        trainer.step(flagged(number, overflow=number in (0, 4)))
        assert same_bits(before, everything(trainer)) is (number in (0, 4))
        assert all(tensor.isfinite().all() for group in everything(trainer) for tensor in group)
        assert trainer.skipped_steps == 1 + (number >= 4)
        assert scale is None or trainer.scaler.get_scale() == scale


@pytest.mark.parametrize("precision", MODES)
@both_executions
def test_clipping_comes_after_unscaling(execution, precision):
    trainer = make_trainer(precision, lr=1.0, momentum=0.0, clip=0.01, execution=execution)
    # 16 bits round; the wrong order is off by the scale
    near = {"o3_fp16": 0.5, "bf16_true": 0.1}.get(precision, 1e-3)
    assert norm_of_update(trainer) == pytest.approx(0.01, rel=near)


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True),
    # fp16 has no 1e-8
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, eps=1e-4, foreach=True),
}
of_both_optimizers = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


@pytest.mark.parametrize("precision", ["o2_fp16", "o3_fp16"])
@of_both_optimizers
def test_a_plain_loop_with_a_fixed_scale_has_the_same_losses(make_optimizer, precision):
    network, trainer = (
        small_network(),
        make_trainer(precision, make_optimizer=make_optimizer, loss_scale=1024.0),
    )
    copies = [weight.detach().clone().requires_grad_() for weight in network.parameters()]
    network.half()
    if precision == "o2_fp16":
        network[1].float()  # batch normalisation stays in fp32
    masters = copies if precision == "o2_fp16" else list(network.parameters())
    optimizer = make_optimizer(masters)
    for number in range(12):
        images, labels = make_batch(number)
        network.zero_grad()
        loss = functional.cross_entropy(network(images.half()).float(), labels)
        (loss * 1024).backward()
        for master, weight in zip(masters, network.parameters(), strict=True):
            master.grad = weight.grad.to(master.dtype) / 1024
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, network.parameters(), strict=True):
                weight.copy_(master)
        # the scaler rounds otherwise when it unscales fp16
        near = 0 if precision == "o2_fp16" else 2e-3
        assert trainer.step((images, labels))[0].item() == pytest.approx(
            loss.item(), rel=near, abs=0
        ), number


@pytest.mark.parametrize("precision", MODES)
@both_executions
def test_warm_up_puts_everything_back_but_the_scale(execution, precision):
    trainer, record = make_trainer(precision, execution=execution), make_record(precision)
    buffers = [one.clone() for one in trainer.network.buffers()]
    before, places = everything(trainer), places_of(trainer)
    warm_up(record, trainer, lambda: iter([make_batch(0), make_batch(1)]))
    assert same_bits(before, everything(trainer)) and places_of(trainer) == places
    assert same_bits([buffers], [list(trainer.network.buffers())])
    assert trainer.steps == trainer.skipped_steps == 0
    assert record.warmup_steps == 1 and record.warmup_seconds > 0  # on the CPU nothing settles


def places_of(trainer):
    """Return where the weights, masters and momenta lie, because a graph reads them there."""
    momenta = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    return [one.data_ptr() for one in (*trainer.weights, *trainer.masters, *momenta)]


@both_executions
def test_each_epoch_adds_to_the_record_and_is_watched(monkeypatch, execution):
    sampled = []

    @contextlib.contextmanager
    def watched(record, device):
        sampled.append("on")
        yield
        sampled.append("off")

    def slowly():
        for number in range(20):
            assert sampled[-1] == "on"  # while the clock runs
            time.sleep(0.005)
            yield make_batch(number)

    monkeypatch.setattr(f"{STEP}.watched", watched)
    trainer, record = make_trainer("fp32", execution=execution), make_record()
    for _ in range(2):
        timed_epoch(record, trainer, slowly())
    assert sampled == ["on", "off"] * 2
    times = record.epoch_seconds, record.step_ms_all, record.block_seconds
    assert [len(one) for one in times] == [2, 40, 20]
    for epoch in (0, 1):
        steps = sum(record.step_ms_all[20 * epoch : 20 * epoch + 20]) / 1000
        # they lie within it
        assert 0.8 * record.epoch_seconds[epoch] < steps <= record.epoch_seconds[epoch] + 1e-9
        assert sum(record.block_seconds[10 * epoch : 10 * epoch + 10]) == pytest.approx(steps)
        assert 0.1 <= record.data_wait_seconds_all[epoch] < record.epoch_seconds[epoch]


@both_executions
def test_each_epoch_leaves_its_losses_at_the_given_rates(execution):
    trainer, expected = (make_trainer("fp32", execution=execution) for _ in range(2))
    record, log, rates = make_record(), TrainingLog(3, CPU), []
    batches = [make_batch(number) for number in range(6)]
    for _ in range(2):
        log.begin(16)
        timed_epoch(record, trainer, batches, lambda step: rates.append(step) or 0.1, log=log)
    losses = [expected.step(batches[number % 6])[0].item() for number in range(12)]
    assert record.train_loss == [pytest.approx(sum(part) / 6) for part in (losses[:6], losses[6:])]
    assert rates == list(range(12))
    assert [entry[:3] for entry in record.training_log] == [
        [1 + number // 6, number % 6 + 1, losses[number]] for number in (2, 5, 8, 11)
    ]
    assert record.peak_allocated_mib is None  # no GPU: not zero
    assert record.loss_scale_trace == record.overflow_steps == []


@pytest.mark.parametrize(
    "options", [{}, {"execution": "cuda_graph"}, {"scaler": "device"}], ids=str
)
def test_skipped_steps_are_counted_and_their_loss_is_left_out(options):
    trainer, other = (make_trainer("amp_fp16", flagged_loss, **options) for _ in range(2))
    record = make_record("amp_fp16")
    for skipped in (1, 3):
        batches = [flagged(number, number == skipped) for number in range(4)]
        timed_epoch(record, trainer, batches)
        losses = [other.step(batch)[0].item() for batch in batches]
        assert record.train_loss[-1] == pytest.approx(
            (sum(losses[:skipped]) + sum(losses[skipped + 1 :])) / 3
        )
    assert record.skipped_steps == 2
    assert record.overflow_steps == [1, 7]  # counted on through the epochs of a repeat
    assert record.loss_scale_trace == [[0, 65536.0], [2, 32768.0], [8, 16384.0]]


@pytest.mark.parametrize(
    "precision, scale, why",
    [("amp_fp16", 64, "at loss scale 64$"), ("fp32", 1, "loss is not finite")],
)
@both_executions
def test_an_epoch_without_an_update_has_diverged(execution, precision, scale, why):
    trainer, record = (
        make_trainer(precision, flagged_loss, execution=execution, loss_scale=scale),
        make_record(),
    )
    with pytest.raises(Diverged, match=why):
        timed_epoch(record, trainer, [flagged(0, overflow=True)] * 2)
    trace = ([[0, 64.0]], [0, 1]) if precision == "amp_fp16" else ([], [])
    assert (record.loss_scale_trace, record.overflow_steps, record.skipped_steps) == (
        *trace,
        len(trace[1]),
    )
    assert len(record.epoch_seconds) == 1  # what was measured stays
    if execution == "eager":  # a graph does not know whether its step called the scaler
        idle = make_trainer("fp32", step_function=lambda *_: (torch.ones(()), None))
        with pytest.raises(Diverged, match="must call scaler"):
            timed_epoch(make_record(), idle, [make_batch()])


@pytest.mark.parametrize("search", [True, False])
def test_evaluating_goes_back_to_training(search, monkeypatch):
    monkeypatch.setattr(cudnn, "benchmark", search)
    trainer = make_trainer("amp_bf16")
    for error in (None, ZeroDivisionError):
        with contextlib.suppress(ZeroDivisionError), evaluating(trainer) as network:
            found = network.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
            assert (*found, cudnn.benchmark) == (False, False, True, False)
            if error:
                raise error
        assert cudnn.benchmark is search
        assert trainer.network.training or error


def test_a_batch_normalisation_keeps_its_count():
    network = small_network()
    network[1].momentum = None
    sgd_trainer(network, "o2_fp16", flagged_loss, lr=0.1)
    assert network[1].num_batches_tracked == 0


NEEDS_COMPILER = pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("clang") or shutil.which("cl")),
    reason="no C++ compiler",
)


@NEEDS_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize(
    "execution, mode", [("compile", "coordinate-descent"), ("compile_cuda_graph", "default")]
)
def test_compiled_steps_equal_eager_ones(execution, mode):
    set_fp32_precision("fp32")
    eager, compiled = (
        make_trainer("fp32"),
        make_trainer("fp32", execution=execution, compile_mode=mode),
    )
    compiled.network.to(memory_format=torch.channels_last)  # its momenta follow
    records = [make_record(), make_record()]
    for record, trainer in zip(records, (eager, compiled), strict=True):
        warm_up(record, trainer, lambda: iter([make_batch()]))
        timed_epoch(record, trainer, [make_batch(1), make_batch(2)])
    assert type(compiled.model).__name__ == "OptimizedModule"
    assert records[1].train_loss == pytest.approx(records[0].train_loss, rel=1e-5)
    assert records[0].compile_seconds == 0 < records[1].compile_seconds < records[1].warmup_seconds
    for one, state in compiled.network.state_dict().items():
        torch.testing.assert_close(state, eager.network.state_dict()[one], rtol=1e-3, atol=1e-5)
    if execution == "compile":
        images, labels = make_batch()
        with pytest.raises(RuntimeError, match="compiled again within a timed epoch"):
            timed_epoch(records[1], compiled, [(images[:8], labels[:8])])


@pytest.mark.parametrize("compile_mode", list(COMPILE_MODES))
def test_the_compile_mode_is_for_training_alone(monkeypatch, compile_mode):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda part, **how: given.setdefault(part, how) and part)
    trainer = make_trainer("fp32", execution="compile", compile_mode=compile_mode)
    assert given == {
        trainer.network: {"dynamic": False},
        trainer.compute_loss: {"dynamic": False, **COMPILE_MODES[compile_mode]},
    }


@NEEDS_COMPILER
@pytest.mark.slow
def test_compiled_code_of_another_type_is_not_used():
    # on the disk of one machine
    for precision, dtype in (("amp_fp16", torch.float16), ("amp_bf16", torch.bfloat16)):
        trainer = make_trainer(precision, execution="compile")
        with torch.no_grad(), trainer.mode.autocast():
            assert trainer.model(make_batch()[0]).dtype == dtype


def pretend_trainer(kind="cuda", layer=nn.Conv2d(1, 1, 1)):  # noqa: B008
    return types.SimpleNamespace(device=torch.device(kind), network=nn.Sequential(layer))


def test_the_search_is_bounded_and_reported(monkeypatch):
    monkeypatch.setattr(cudnn, "benchmark", False)
    monkeypatch.setattr(cudnn, "benchmark_limit", 0)
    off, record, quick, cpu, plain = (make_record() for _ in range(5))
    read_search(off, pretend_trainer(), 3.0, 0.5)
    allow_search()
    assert (cudnn.benchmark, cudnn.benchmark_limit) == (
        True,
        SEARCH_LIMIT,
    )
    allow_search(wanted=False)
    assert not torch.backends.cudnn.benchmark
    allow_search()
    # the second time it has searched already, in the last probe or an earlier repeat
    for first in (3.0, 0.6):
        read_search(record, pretend_trainer(), first, 0.5)
        assert (record.search_seconds, record.search_limit_algorithms, record.search_reason) == (
            2.5,
            10,
            None,
        )
    read_search(cpu, pretend_trainer("cpu"), 3.0, 0.5)
    read_search(plain, pretend_trainer(layer=nn.Linear(2, 2)), 3.0, 0.5)
    read_search(quick, pretend_trainer(), 0.4, 0.5)
    assert quick.search_seconds == 0
    assert {one.search_seconds or one.search_limit_algorithms for one in (off, cpu, plain)} == {
        None
    }
    assert len({one.search_reason for one in (off, cpu, plain)}) == 3


@pytest.mark.parametrize(
    "most, step_seconds, limit",
    [(10, 0.0, 10), (10, 0.4, 10), (10, 2.8, 3), (10, 60.0, 1), (2, 2.8, 2)],
)
def test_where_a_step_takes_long_fewer_algorithms_are_searched(
    monkeypatch, most, step_seconds, limit
):
    monkeypatch.setattr(f"{STEP}.SEARCH_LIMIT", most)
    for switch in ("benchmark", "benchmark_limit"):
        monkeypatch.setattr(cudnn, switch, getattr(cudnn, switch))
    allow_search(step_seconds)
    assert (cudnn.benchmark, cudnn.benchmark_limit) == (True, limit)


def test_compiling_is_no_part_of_the_search(monkeypatch):
    given, spent = [], iter([10.0, 12.5, *[12.5] * 9])
    monkeypatch.setattr(
        f"{STEP}.read_compiler", lambda compiled: {"graphs": 0, "seconds": next(spent)}
    )
    monkeypatch.setattr(
        f"{STEP}.read_search", lambda record, trainer, *seconds: given.append(seconds)
    )
    trainer, record = make_trainer("fp32"), make_record()
    warm_up(record, trainer, lambda: iter([make_batch()]))
    ((first, steady),) = given
    # one step on the CPU, of which compiling "took" 2.5 s
    assert first == pytest.approx(steady - 2.5)
    assert math.isfinite(steady)


@pytest.mark.parametrize("count, mean", [(0, None), (3, 1.0), (6, 2.25), (7, 3.0)])
def test_a_loss_meter_longer_than_its_room_is_read_in_between(count, mean):
    outcome = torch.zeros(2)
    captured = SimpleNamespace(outcome=outcome)
    trainer = SimpleNamespace(captured=captured, updates=0, device=outcome.device)
    meter = LossMeter(trainer, room=3)
    for number in range(count):
        outcome.copy_(torch.tensor([float(number), float(number in (1, 5))]))
        meter.step(None)
    assert meter.end() == (mean, [number in (1, 5) for number in range(count)])


@pytest.mark.parametrize("precision", ["amp_fp16", "o2_fp16"])
@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize(
    "skipped, scale", [((1, 0, 1), 32768), ((1, 1, 0), 16384), ((1, 1, 1), 8192)]
)
def test_a_scale_that_still_falls_is_not_kept(precision, execution, skipped, scale):
    """A hidden state that is no longer finite makes every step overflow, and the scale then
    means nothing.
    """
    trainer = make_trainer(precision, flagged_loss, execution=execution)
    record = make_record(precision)
    # on the CPU a warm-up has three steps if something is compiled, else one
    trainer.model = nn.Identity()
    warm_up(record, trainer, lambda: iter([flagged(0, overflow=bool(flag)) for flag in skipped]))
    assert (record.warmup_steps, record.warmup_skipped_steps) == (3, sum(skipped))
    assert trainer.scaler.get_scale() == scale
    assert trainer.steps == trainer.skipped_steps == 0
