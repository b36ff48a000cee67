"""What only a GPU can show; skipped where there is none."""

import math

import harness
import instruments
import pytest
import torch
from test_harness import MODES, SCALED, compute_loss, everything, make_batch, make_record, overflowing, same_bits
from test_harness import small_network as network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
GPU = torch.device("cuda")


def make_trainer(precision, loss=compute_loss, **options):
    options = {"lr": 0.1, "momentum": 0.9, "loss_scale": 1024 if precision == "o3_fp16" else "dynamic", **options}
    return harness.Trainer(network().to(GPU), precision, loss, device=GPU, **options)


def on_gpu(*batch):
    return tuple(part.to(GPU) if isinstance(part, torch.Tensor) else part for part in batch)


def supported(precision):
    try:
        harness.check_supported(precision, "eager", GPU)
    except instruments.Unsupported as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("precision", SCALED)
def test_a_skipped_step_changes_no_bit(precision, at):
    trainer = make_trainer(precision, overflowing)
    for step in range(at):
        trainer.step(on_gpu(*make_batch(step), False))
    before = everything(trainer)
    trainer.step(on_gpu(*make_batch(), True))
    assert trainer.skipped_steps == 1
    assert same_bits(before, everything(trainer))


@pytest.mark.parametrize("precision", MODES)
def test_a_step_waits_no_more_than_gradscaler_does(precision):
    supported(precision)
    record, batches = make_record(precision), [on_gpu(*make_batch())] * 5
    harness.warm_up(record, make_trainer(precision), lambda: iter(batches))
    assert record.host_syncs_per_step == (1 if precision in SCALED else 0)  # o3_fp16 has a fixed scale here
    assert record.peak_allocated_with_warmup_mib > 0
    assert record.warmup_steps >= 13  # ten or more until stable, three after the memory was handed back


@pytest.mark.parametrize("precision", MODES)
def test_compiled_steps_follow_eager_ones(precision):
    supported(precision)
    harness.set_fp32_precision(precision)
    losses = []
    for execution in ("eager", "compile"):
        trainer = make_trainer(precision, execution=execution)
        losses.append([trainer.step(on_gpu(*make_batch(n)))[0].item() for n in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_tf32_and_ieee_really_differ():
    supported("tf32")
    a, b = (torch.randn(512, 512, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    exact = a.double() @ b.double()
    errors = {}
    for precision in ("fp32", "tf32"):
        harness.set_fp32_precision(precision)
        errors[precision] = ((a.to(GPU) @ b.to(GPU)).double().cpu() - exact).norm() / exact.norm()
    assert errors["fp32"] < 1e-5 < 1e-4 < errors["tf32"]


def test_a_real_out_of_memory_is_recorded_and_the_memory_is_free_again():
    instruments.release_memory(GPU)
    before, record = torch.cuda.memory_allocated(), make_record()

    def train():
        kept = [torch.zeros(2**20, device=GPU)]
        while True:
            kept.append(torch.zeros(torch.cuda.get_device_properties(GPU).total_memory // 4, device=GPU))

    with instruments.guarded(record, "out", GPU):
        train()
    assert record.status == "oom"
    assert "out of memory" in record.reason
    assert torch.cuda.memory_allocated() == before


def test_device_memory_is_read_by_uuid():
    record = make_record()
    instruments.describe_environment(record, GPU)
    held = torch.zeros(2**28, dtype=torch.uint8, device=GPU)
    instruments.read_device_memory(record, GPU)
    if record.device_memory_reason is None:
        assert held.numel() / instruments.MIB < record.device_used_mib < record.device_total_mib * 1.05
    assert record.gpu_uuid


def test_the_clock_agrees_with_itself():
    record, trainer = make_record(), make_trainer("fp32")
    batches = [on_gpu(*make_batch())] * 50
    harness.warm_up(record, trainer, lambda: iter(batches))
    harness.timed_epoch(record, trainer, batches)
    assert math.fsum(record.step_ms_all) == pytest.approx(1000 * record.epoch_seconds[0], rel=0.1)
    assert record.peak_reserved_mib >= record.peak_allocated_mib > 0


def test_the_peak_of_one_run_is_not_the_next_ones():
    large, small = make_record(), make_record()
    for record, size in ((large, 2**30), (small, 2**20)):
        with instruments.guarded(record, "out", GPU):
            torch.zeros(size, dtype=torch.uint8, device=GPU)
            instruments.read_peaks(record, GPU, "_with_warmup")
            raise instruments.Diverged("only the memory matters here")
    assert large.peak_allocated_with_warmup_mib > small.peak_allocated_with_warmup_mib + 1000
