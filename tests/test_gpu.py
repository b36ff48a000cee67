"""What only a GPU can show; skipped where there is none."""

import math
import multiprocessing
import statistics
import time
import types

import harness
import instruments
import largest
import pytest
import torch
from conftest import run_cells
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


def resnet(batch_size, precision, steps):
    """Return (the notebook's names, a warmed-up trainer of ResNet-18, its batches, a record)."""
    names = run_cells("cifar_resnet", "train", dataset="synthetic", batch_size=batch_size, max_steps=steps)
    names["set_fp32_precision"](precision)
    torch.backends.cudnn.benchmark = True
    trainer = names["Trainer"](
        names["make_network"]("resnet18", 10).to(GPU), precision, names["compute_loss"], device=GPU, lr=0.01
    )
    parameters = {"dataset": "d", "model": "m", "batch_size": batch_size, "seed": 0}
    record = names["new_record"]("n", parameters, precision, {"steps_per_epoch": steps, **names["card_facts"]})
    record.data_on_device_mib = torch.cuda.memory_allocated() / 2**20
    names["describe_environment"](record, GPU)
    batches = lambda: names["train_batches"](0, torch.float32, batch_size)  # noqa: E731
    names["warm_up"](record, trainer, batches)
    return names, trainer, batches, record


@pytest.mark.parametrize("precision", ["tf32", "amp_fp16"])  # busy all the time, and bound by launches: the worst case
def test_the_meter_costs_less_than_one_percent(precision):
    supported(precision)
    names, trainer, batches, record = resnet(128, precision, steps=390)  # a whole epoch of CIFAR-10
    bare = []
    for _ in range(5):
        names["timed_epoch"](record, trainer, batches())
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for batch in batches():
            trainer.step(batch)
        torch.cuda.synchronize()
        bare.append(time.perf_counter() - begun)
    pairs = zip(record.epoch_seconds, bare, strict=True)
    cost = statistics.median(metered / without for metered, without in pairs) - 1
    print(f"the meter costs {cost:+.2%} in {precision}, n = 5 pairs of {statistics.median(bare):.2f} s")
    assert abs(cost) < 0.01


def events_and_ledger(answer):
    """Run ResNet-18 at batch 512 and put its figures into the queue; a process of its own finds CUDA fresh."""
    names, trainer, batches, record = resnet(512, "fp32", steps=90)
    names["timed_epoch"](record, trainer, batches())
    names["summarise_times"](record, 512 * 90)
    names["summarise_card"](record, 512 * 90)
    names["explain"](record, trainer, batches, ".")
    answer.put(vars(record))


def test_events_add_up_to_the_wall_time_and_the_ledger_to_the_device():
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=events_and_ledger, args=(answer,))
    process.start()
    record = types.SimpleNamespace(**answer.get(timeout=120))
    process.join()
    sums = sum(record.step_ms_all) / 1000 / record.epoch_seconds[0] - 1
    print(f"events against wall {sums:+.2%}, ledger against NVML {record.ledger_error_fraction:+.2%}")
    assert record.gpu_busy_fraction > 0.9
    assert abs(sums) < 0.02
    assert abs(record.ledger_error_fraction) < 0.02
    assert (record.profile_reason, record.limit_reason, record.ledger_reason) == (None, None, None)
    assert 0.05 < record.compute_limit_fraction < 1.1
    assert 100 < record.power_watts_mean < 1.1 * record.power_watts_limit
    assert record.card_samples >= 5 * record.epoch_seconds[0]
    assert record.gpu_shared is False


def test_the_preflight_is_quick_and_finds_this_card_fit():
    begun = time.perf_counter()
    names = run_cells("lstm_language_model", "preflight-run")
    assert time.perf_counter() - begun < 10
    assert names["card_facts"]["fp16_check"] == "passed"


def test_the_largest_batch_trains_and_half_as_much_again_does_not():
    largest.limit_memory(2.0, GPU)
    record = types.SimpleNamespace(batch_probes=[], batch_size_used=None)

    def batches(size):
        images = torch.randn(size, 3, 64, 64, device=GPU)
        yield from [(images, torch.zeros(size, dtype=torch.long, device=GPU))] * 9

    def make():
        wide = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.AdaptiveAvgPool2d(1)]
        model = torch.nn.Sequential(*wide, torch.nn.Flatten(), torch.nn.Linear(64, 5)).to(GPU)
        loss = lambda model, batch, carry: (torch.nn.functional.cross_entropy(model(batch[0]), batch[1]), carry)  # noqa: E731
        return harness.Trainer(model, "fp32", loss, device=GPU, lr=0.1)

    try:
        found = largest.largest_batch(record, make, batches, GPU, limit=10**6)
        assert 64 < found < 10**6
        assert largest.fits(record, make, batches, found, GPU)
        assert not largest.fits(record, make, batches, found * 3 // 2, GPU)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    fitting = sorted((size, peak) for size, status, peak, _ in record.batch_probes if status == "ok")
    assert fitting[-1][1] > 1.5 * 1024  # MiB, of the two GiB
    assert fitting == sorted(fitting, key=lambda pair: pair[1])  # a larger batch has a higher peak
