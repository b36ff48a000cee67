"""The training step: loss scaling, warm-up, the timed epoch, compiled steps."""

import contextlib
import copy
import math
import shutil
import time

import pytest
import torch
from small_training import (
    CPU,
    MODES,
    SCALED,
    everything,
    make_batch,
    make_record,
    make_trainer,
    overflowing,
    plain_step,
    same_bits,
    small_network,
)

from mixed_precision_study.errors import Diverged
from mixed_precision_study.parameters import COMPILE_MODES
from mixed_precision_study.precision import autocast, set_fp32_precision
from mixed_precision_study.timing import summarise_times
from mixed_precision_study.training import Trainer, evaluating, timed_epoch, training_step, warm_up


def test_masters_start_from_the_fp32_weights_and_the_model_follows_them():
    start = [weight.detach().clone() for weight in small_network().parameters()]
    trainer = make_trainer("o2_fp16")
    assert all(torch.equal(a, b) for a, b in zip(start, trainer.masters, strict=True))
    trainer.step(make_batch())
    assert not torch.equal(start[0], trainer.masters[0])
    assert all(torch.equal(w, m.to(w.dtype)) for w, m in zip(trainer.weights, trainer.masters, strict=True))


@pytest.mark.parametrize("precision", MODES)
def test_every_mode_learns_and_follows_fp32(precision):
    reference, trainer, batch = make_trainer("fp32"), make_trainer(precision), make_batch()
    losses = [[t.step(batch)[0].item() for _ in range(20)] for t in (reference, trainer)]
    assert losses[1][-1] < losses[1][0] - 0.1
    tolerance = 0.0 if precision == "tf32" else 0.05
    assert losses[1][-1] == pytest.approx(losses[0][-1], abs=tolerance)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("precision", SCALED)
def test_a_skipped_step_leaves_weights_momentum_and_masters_bitwise_as_they_were(precision, at):
    trainer = make_trainer(precision, overflowing)
    for step in range(at):
        trainer.step((*make_batch(step), False))
    before = everything(trainer)
    trainer.step((*make_batch(), True))
    assert trainer.skipped_steps == 1
    assert same_bits(before, everything(trainer))
    trainer.step((*make_batch(), False))
    assert trainer.skipped_steps == 1
    assert not same_bits(before, everything(trainer))


@pytest.mark.parametrize("precision", ["amp_fp16", "o2_fp16"])
def test_a_dynamic_scale_backs_off_and_grows(precision):
    trainer = make_trainer(precision, overflowing)
    trainer.scaler.set_growth_interval(3)
    trainer.step((*make_batch(), True))
    assert trainer.scaler.get_scale() == 32768
    for _ in range(3):
        trainer.step((*make_batch(), False))
    assert trainer.scaler.get_scale() == 65536


@pytest.mark.parametrize("precision", SCALED)
def test_a_fixed_scale_stays_through_an_overflow(precision):
    trainer = make_trainer(precision, overflowing, loss_scale=128)
    for overflow in (False, True, False):
        trainer.step((*make_batch(), overflow))
    assert trainer.scaler.get_scale() == 128
    assert trainer.skipped_steps == 1


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_modes_without_scaling_have_none(precision):
    assert not make_trainer(precision).scaler.is_enabled()
    assert not make_trainer("o3_fp16", loss_scale="dynamic").scaler.is_enabled()


@pytest.mark.parametrize("precision", MODES)
def test_clipping_comes_after_unscaling(precision):
    """With plain SGD at rate 1 the update's norm is the clipped gradient's, whatever the loss was scaled with."""
    trainer = make_trainer(precision, lr=1.0, momentum=0.0, clip=0.01)
    before = [master.detach().clone() for master in trainer.masters]
    trainer.step(make_batch())
    moved = [(a.float() - b.float()) for a, b in zip(before, trainer.masters, strict=True)]
    norm = torch.stack([part.norm() for part in moved]).norm().item()
    assert norm == pytest.approx(0.01, rel=0.05 if precision == "o3_fp16" else 1e-3)


@pytest.mark.parametrize("precision", MODES)
def test_a_step_without_unscale_is_one_with_it_bit_for_bit(precision):
    """As in the two image notebooks, which clip nothing and so leave it to the scaler's step()."""
    both = [make_trainer(precision, overflowing, step_function=step) for step in (plain_step, training_step)]
    for number in range(5):
        losses = [one.step((*make_batch(number), precision in SCALED and number == 2))[0] for one in both]
        assert torch.equal(*losses) or not losses[0].isfinite()
    assert same_bits(*(everything(trainer) for trainer in both))
    assert both[0].skipped_steps == both[1].skipped_steps == (precision in SCALED)


@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "amp_bf16"])
def test_a_plain_loop_of_pytorch_has_the_same_losses_step_by_step(precision):
    dtype = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    network, trainer = small_network(), make_trainer(precision, step_function=plain_step)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "amp_fp16")
    for number in range(12):
        images, labels = make_batch(number)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(network(images).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert trainer.step((images, labels))[0].item() == loss.item(), number
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), trainer.weights, strict=True))


@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize("precision", MODES)
def test_the_step_that_is_given_is_the_one_that_is_taken(precision, execution):
    taken = []

    def step(*given):
        taken.append(given)
        return plain_step(*given)

    trainer = make_trainer(precision, step_function=step, execution=execution)
    for number in range(3):
        trainer.step(make_batch(number))
    assert trainer.step_function is step
    assert len(taken) == trainer.steps == 3
    network, _, hidden, loss_of, optimizer, scaler, mode = taken[-1]
    assert (network, hidden, loss_of) == (trainer.network, None, trainer.loss_of)
    assert (optimizer, scaler, mode.name) == (trainer.optimizer, trainer.scaler, precision)
    assert mode.cache is (execution == "eager")  # within a graph autocast's copies would be those of its capture


def test_an_optimizer_that_is_given_gets_the_master_copies():
    made = []

    def make_optimizer(weights):
        made.append(torch.optim.SGD(weights, lr=0.1))
        return made[-1]

    trainer = make_trainer("o2_fp16", make_optimizer=make_optimizer)
    assert trainer.optimizer is made[0]
    assert all(a is b for a, b in zip(made[0].param_groups[0]["params"], trainer.masters, strict=True))
    before = [weight.detach().clone() for weight in trainer.weights]
    trainer.step(make_batch())
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))


@pytest.mark.parametrize("precision", MODES)
def test_warm_up_puts_everything_back_but_the_scale(precision):
    trainer, record = make_trainer(precision), make_record(precision)
    start = copy.deepcopy([list(trainer.network.state_dict().values()), [m.detach() for m in trainer.masters]])
    warm_up(record, trainer, lambda: iter([make_batch(0), make_batch(1)]))
    assert all(torch.equal(a, b) for a, b in zip(start[0], trainer.network.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(start[1], trainer.masters, strict=True))
    assert not trainer.optimizer.state
    assert trainer.steps == trainer.skipped_steps == 0
    assert record.warmup_steps == 1  # on the CPU nothing settles
    assert record.warmup_seconds > 0
    first = trainer.step(make_batch())[0]
    assert torch.equal(first, make_trainer(precision).step(make_batch())[0])


def test_a_timed_epoch_fills_the_record():
    trainer, record = make_trainer("fp32"), make_record()
    expected = make_trainer("fp32")
    losses = [expected.step(make_batch(number))[0].item() for number in range(3)]
    rates = []
    timed_epoch(record, trainer, (make_batch(n) for n in range(3)), lambda step: rates.append(step) or 0.1)
    assert rates == [0, 1, 2]
    assert record.train_loss == [pytest.approx(sum(losses) / 3)]
    assert len(record.epoch_seconds) == 1
    assert len(record.step_ms_all) == 3
    assert 0 < sum(record.step_ms_all) <= record.epoch_seconds[0] * 1000 + 1e-6  # the steps lie within the epoch
    assert record.loss_scale_trace == []
    assert record.peak_allocated_mib is None  # no GPU: not zero
    assert record.block_seconds == [pytest.approx(step_ms / 1000) for step_ms in record.step_ms_all]
    assert 0 <= record.data_wait_seconds_all[0] < record.epoch_seconds[0]
    assert record.card_samples_all == record.overflow_steps == []
    assert record.card_reason == "no GPU"


def test_what_explains_an_epoch_is_added_to_that_of_the_ones_before(monkeypatch):
    sampled = []

    @contextlib.contextmanager
    def watched(record, device):
        sampled.append("on")
        yield
        sampled.append("off")

    def slowly():
        for number in range(20):
            assert sampled[-1] == "on"  # the card is watched while the clock runs
            time.sleep(0.005)
            yield make_batch(number)

    monkeypatch.setattr("mixed_precision_study.training.watched", watched)
    trainer, record = make_trainer("fp32"), make_record()
    for _ in range(2):
        timed_epoch(record, trainer, slowly())
    assert sampled == ["on", "off"] * 2
    assert len(record.block_seconds) == 2 * 10
    assert [sum(record.block_seconds[:10]), sum(record.block_seconds[10:])] == [
        pytest.approx(sum(record.step_ms_all[:20]) / 1000),
        pytest.approx(sum(record.step_ms_all[20:]) / 1000),
    ]
    assert len(record.data_wait_seconds_all) == 2
    summarise_times(record, 320)
    assert 0.1 / record.epoch_seconds[0] <= record.data_wait_seconds_all[0] / record.epoch_seconds[0] < 1
    assert record.data_wait_fraction == pytest.approx(sum(record.data_wait_seconds_all) / sum(record.epoch_seconds))


def test_skipped_steps_are_counted_and_their_loss_is_left_out():
    trainer, record = make_trainer("amp_fp16", overflowing), make_record("amp_fp16")
    timed_epoch(record, trainer, [(*make_batch(n), n == 1) for n in range(4)])
    assert record.skipped_steps == 1
    assert math.isfinite(record.train_loss[0])
    assert record.loss_scale_trace == [[0, 65536.0], [2, 32768.0]]
    assert record.overflow_steps == [1]
    timed_epoch(record, trainer, [(*make_batch(n), n == 3) for n in range(4)])
    assert record.skipped_steps == 2
    assert record.overflow_steps == [1, 7]  # counted on through the epochs of a repeat
    assert record.loss_scale_trace == [[0, 65536.0], [2, 32768.0], [8, 16384.0]]


@pytest.mark.parametrize(
    ("scale", "why"), [(64, "gradients overflow fp16 at loss scale 64"), (0.25, "not finite, even at loss scale 0.25")]
)
def test_an_epoch_without_a_single_update_has_diverged(scale, why):
    trainer, record = make_trainer("amp_fp16", overflowing, loss_scale=scale), make_record("amp_fp16")
    with pytest.raises(Diverged, match=f"every step was skipped: .*{why}"):
        timed_epoch(record, trainer, [(*make_batch(), True)] * 2)
    assert record.skipped_steps == 2
    assert len(record.epoch_seconds) == 1  # what was measured stays


def test_a_loss_that_is_not_finite_has_diverged():
    with pytest.raises(Diverged, match="not finite after 2 steps"):
        timed_epoch(make_record(), make_trainer("fp32", overflowing), [(*make_batch(), True)] * 2)


def test_evaluating_takes_no_gradients_and_goes_back_to_training():
    trainer = make_trainer("amp_bf16")
    with evaluating(trainer) as network:
        assert not network.training
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.backends.cudnn.benchmark is False
    assert trainer.network.training
    assert torch.backends.cudnn.benchmark is True


@pytest.mark.parametrize("precision", ["fp32", "o2_fp16"])
def test_batch_normalisation_without_its_count_trains_the_same(precision):
    def trained(count):
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.LazyLinear(5)]
        layers[1].momentum = momentum
        model = torch.nn.Sequential(*layers)
        model(make_batch()[0])
        options = {"device": CPU, "lr": 0.1, "loss_scale": 8}
        trainer = Trainer(model, precision, in_its_own_type, **options)
        counter = model[1].num_batches_tracked
        if count:
            model[1].num_batches_tracked = torch.zeros((), dtype=torch.long)
        for number in range(3):
            trainer.step(make_batch(number))
        return counter, [value for name, value in model.state_dict().items() if "tracked" not in name]

    def in_its_own_type(network, batch, hidden):
        images, labels = batch
        return torch.nn.functional.cross_entropy(network(images.to(network[0].weight.dtype)).float(), labels), hidden

    momentum = 0.1
    (gone, without), (_, counted) = trained(False), trained(True)
    assert gone is None
    assert len(without) == len(counted) == 8
    assert all(torch.equal(a, b) for a, b in zip(without, counted, strict=True))
    momentum = None  # averages over all steps, and so needs to know how many
    assert trained(False)[0] is not None


NEEDS_COMPILER = pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("clang") or shutil.which("cl")), reason="no C++ compiler"
)


@NEEDS_COMPILER
@pytest.mark.parametrize("execution", ["compile", "compile_cuda_graph"])
def test_compiled_steps_equal_eager_ones(execution):
    eager, compiled = make_trainer("fp32"), make_trainer("fp32", execution=execution)
    set_fp32_precision("fp32")
    losses = [[t.step(make_batch(n))[0].item() for n in range(3)] for t in (eager, compiled)]
    assert type(compiled.model).__name__ == "OptimizedModule"
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@NEEDS_COMPILER
def test_the_loss_is_compiled_with_its_network():
    softmaxes = []
    for execution in ("eager", "compile"):
        trainer = make_trainer("fp32", execution=execution)
        trainer.step(make_batch())
        with torch.profiler.profile() as profile:
            trainer.step(make_batch(1))
        softmaxes.append(sum("softmax" in event.name for event in profile.events()))
    assert softmaxes[0] > 0 == softmaxes[1]


@pytest.mark.parametrize("compile_mode", list(COMPILE_MODES))
def test_a_longer_search_of_the_compiler_is_for_the_training_alone(monkeypatch, compile_mode):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda part, **how: given.setdefault(part, how) and part)
    trainer = make_trainer("fp32", execution="compile", compile_mode=compile_mode)
    assert given[trainer.network] == {"dynamic": False}
    assert given[trainer.compute_loss] == {"dynamic": False, **COMPILE_MODES[compile_mode]}


def test_pytorch_knows_what_a_compile_mode_gives_it():
    wanted = COMPILE_MODES
    assert set(wanted["coordinate-descent"]["options"]) <= set(torch._inductor.list_options())
    assert wanted["max-autotune-no-cudagraphs"]["mode"] in torch._inductor.list_mode_options()


@NEEDS_COMPILER
def test_a_tuned_step_is_the_eager_step():
    losses = []
    for how in ({}, {"execution": "compile", "compile_mode": "coordinate-descent"}):
        trainer = make_trainer("fp32", **how)
        losses.append([trainer.step(make_batch(seed))[0].item() for seed in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@NEEDS_COMPILER
def test_what_was_compiled_for_one_type_of_autocast_is_not_taken_for_another():
    types = []
    for precision in ("amp_fp16", "amp_bf16"):  # in one process, and on the disk of one machine
        trainer = make_trainer(precision, execution="compile")
        with torch.no_grad(), autocast(precision, CPU):
            types.append(trainer.model(make_batch()[0]).dtype)
    assert types == [torch.float16, torch.bfloat16]


@NEEDS_COMPILER
def test_compiling_is_timed_apart_and_must_not_happen_in_a_timed_epoch():
    trainer, record = make_trainer("fp32", execution="compile"), make_record()
    warm_up(record, trainer, lambda: iter([make_batch()]))
    assert 0 < record.compile_seconds < record.warmup_seconds
    timed_epoch(record, trainer, [make_batch(1), make_batch(2)])
    images, labels = make_batch()
    with pytest.raises(RuntimeError, match="compiled again within a timed epoch"):
        timed_epoch(record, trainer, [(images[:8], labels[:8])])
    eager = make_record()
    warm_up(eager, make_trainer("fp32"), lambda: iter([make_batch()]))
    assert eager.compile_seconds == 0
