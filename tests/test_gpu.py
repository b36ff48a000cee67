"""What only a GPU can show; skipped where there is none.

One command runs it all: python tests/on_gpu.py.
"""

import itertools
import multiprocessing
import sys
import time
import types
from functools import partial

import pytest
import torch
from conftest import EXPERIMENTS, experiment_of, run_cells, seeded
from memory_blocks import COUNTED, blocks_at_peak
from small_training import (
    MODES,
    SCALED,
    Words,
    compute_loss,
    everything,
    flagged,
    flagged_loss,
    grow_soon,
    make_record,
    same_bits,
    sgd_trainer,
    text,
    word_loss,
)
from small_training import small_network as network
from torch import nn

from mixed_precision_study.experiment import NOT_ABOUT_INFERENCE, explain, guarded
from mixed_precision_study.explain.memory_breakdown import read_memory_breakdown
from mixed_precision_study.measure import nvml
from mixed_precision_study.measure.energy import summarise_gpu
from mixed_precision_study.measure.environment import describe_environment
from mixed_precision_study.measure.memory import clear_tracebacks, release_memory
from mixed_precision_study.measure.nvml import MIB
from mixed_precision_study.measure.preflight import clear_workspaces
from mixed_precision_study.measure.timing import summarise_times
from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.store.record import new_record
from mixed_precision_study.store.variables import STUDY_ENV
from mixed_precision_study.tasks.batches import prefetch_to_device, side_stream
from mixed_precision_study.train.batch_size import largest_batch, limit_memory, probe
from mixed_precision_study.train.precision import check_supported, set_fp32_precision
from mixed_precision_study.train.step import allow_search, timed_epoch, warm_up

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


def on_gpu(*batch):
    return tuple(part.to(GPU) if isinstance(part, torch.Tensor) else part for part in batch)


def supported(precision):
    try:
        check_supported(precision, "eager", GPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
    set_fp32_precision(precision)


def events_and_ledger():
    """Run ResNet-18 at batch 512 and return its figures; a process of its own finds CUDA fresh."""
    _, trainer, batches, record = resnet(512, "fp32", steps=90)
    timed_epoch(record, trainer, batches())
    summarise_times(record, 512 * 90)
    summarise_gpu(record, 512 * 90)
    explain(record, trainer, batches)
    return vars(record)


@pytest.mark.slow
@pytest.mark.alone
def test_events_and_ledger_add_up():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        record = types.SimpleNamespace(**pool.apply_async(events_and_ledger).get(timeout=120))
    sums = sum(record.step_ms_all) / 1000 / record.epoch_seconds[0] - 1
    print(
        f"events against wall {sums:+.2%}, ledger against NVML {record.ledger_error_fraction:+.2%}"
    )
    assert record.gpu_busy_fraction > 0.9 and record.profile_reason is record.ledger_reason is None
    assert abs(sums) < 0.02 and abs(record.ledger_error_fraction) < 0.02
    assert 100 < record.power_watts_mean < 1.1 * record.power_watts_limit
    assert record.card_samples >= 5 * record.epoch_seconds[0]
    used = torch.cuda.is_initialized()  # by this process, where an earlier test has used the GPU
    # ceilings are not measured beside another process
    assert record.gpu_shared is (record.limit_reason is not None) is used
    assert used or 0.05 < record.compute_limit_fraction < 1.1


def test_tf32_and_ieee_really_differ():
    supported("tf32")
    a, b = (torch.randn(512, 512, generator=seeded(n)) for n in (0, 1))
    exact = a.double() @ b.double()
    errors = {}
    for precision in ("fp32", "tf32"):
        set_fp32_precision(precision)
        errors[precision] = ((a.to(GPU) @ b.to(GPU)).double().cpu() - exact).norm() / exact.norm()
    assert errors["fp32"] < 1e-5 < 1e-4 < errors["tf32"]


@pytest.mark.alone
def test_a_real_out_of_memory_is_recorded_and_freed():
    clear_workspaces()  # those of the tests before, which guarded() frees as well
    release_memory()
    before = torch.cuda.memory_allocated()
    record = make_record()

    def train():
        kept = [torch.zeros(2**20, device=GPU)]
        while True:
            kept.append(
                torch.zeros(torch.cuda.get_device_properties(GPU).total_memory // 4, device=GPU)
            )

    with guarded(record, "out", GPU):
        train()
    assert record.status == "oom"
    assert "out of memory" in record.reason
    assert torch.cuda.memory_allocated() == before


def resnet(batch_size, precision, steps, execution="eager"):
    """Return (the notebook's experiment, a warmed-up trainer of ResNet-18, its batches, a
    record).
    """
    options = {
        "dataset": "synthetic",
        "batch_size": batch_size,
        "max_steps": steps,
        "execution": execution,
    }
    experiment = experiment_of("cifar_resnet", **options, lr=0.01)
    set_fp32_precision(precision)
    allow_search()
    trainer = experiment.make_trainer(precision)
    parameters = {"dataset": "d", "model": "m", "batch_size": batch_size, "seed": 0}
    record = new_record(
        "n", parameters, precision, {"steps_per_epoch": steps, **experiment.gpu.fields}
    )
    record.data_on_device_mib = torch.cuda.memory_allocated() / 2**20
    describe_environment(record, trainer.device)
    batches = partial(experiment.batches, 0, precision, batch_size, ahead=False)
    warm_up(record, trainer, batches)
    return experiment, trainer, batches, record


@pytest.mark.alone
def test_what_the_meter_does_in_a_step_is_little_beside_a_step():
    """Steps that do nothing show what the meter costs, because the host's scatter would hide it
    in real ones.
    """
    _, trainer, batches, record = resnet(128, "tf32", steps=1000)
    batch, loss = next(batches()), torch.zeros((), device=GPU)

    def without_meter(steps):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for each in itertools.repeat(batch, steps):
            trainer.step(each)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / steps

    def metered(steps):
        timed_epoch(record, trainer, itertools.repeat(batch, steps))
        return record.epoch_seconds[-1] / steps

    real = min(without_meter(30) for _ in range(5))

    def step(batch, hidden=None):
        trainer.updates += 1  # or it would count as skipped
        return loss, hidden

    trainer.step = step
    pairs = [(metered(1000), without_meter(1000)) for _ in range(7)]
    # a busy host slows some of them
    work = min(one for one, _ in pairs) - min(other for _, other in pairs)
    print(
        f"the meter's own work is {work * 1e6:.1f} microseconds a step, "
        f"{work / real:.2%} of {real * 1000:.1f} ms"
    )
    assert 0 < work < 0.01 * real


def image_batches(size):
    images = torch.randn(size, 3, 64, 64, device=GPU)
    yield from [(images, torch.zeros(size, dtype=torch.long, device=GPU))] * 9


def make_wide():
    wide = [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.AdaptiveAvgPool2d(1),
    ]
    model = nn.Sequential(*wide, nn.Flatten(), nn.Linear(64, 5)).to(GPU)
    return sgd_trainer(model, "fp32", compute_loss, device=GPU, lr=0.1)


@pytest.mark.searches
def test_a_size_probed_without_a_search_is_searched_later():
    allow_search()
    record = make_record()
    assert probe(record, make_wide, image_batches, 40, GPU)
    trainer, batch, seconds = make_wide(), next(image_batches(40)), []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        trainer.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    print("steps after a probe, s:", seconds)
    assert seconds[0] > 2 * min(seconds[1:])


def test_the_largest_batch_trains_and_a_larger_one_does_not():
    limit_memory(2.0, GPU)
    record = make_record()
    try:
        found = largest_batch(record, make_wide, image_batches, GPU, limit=10**6)
        assert 64 < found < 10**6
        assert probe(record, make_wide, image_batches, found, GPU)
        assert not probe(record, make_wide, image_batches, found * 3 // 2, GPU)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(found, record.batch_probes)
    # MiB, of two GiB
    assert max(peak for _, status, peak, _ in record.batch_probes if status == "ok") > 1.1 * 1024


def test_batches_ahead_are_the_same_and_memory_is_bounded():
    def batches(count=40, size=2**22):
        generator = torch.Generator(GPU).manual_seed(0)
        for _ in range(count):
            # with intermediates
            yield (torch.rand(size, generator=generator, device=GPU).mul(2).sub(1),)

    def trained(given, steps):
        totals = []
        for (batch,) in given:
            torch.cuda._sleep(steps)  # cycles: the host is ahead
            totals.append(batch.sum())
            totals.append(batch.square().sum())  # late in the step
        return torch.stack(totals)

    plain = trained(batches(), 0)
    side = side_stream(GPU)
    assert side_stream(GPU) is side
    list(prefetch_to_device(batches(3), side))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        other = trained(prefetch_to_device(batches(), side), 20_000_000)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(plain, other)
    # of 40: three batches and what makes one
    assert torch.cuda.max_memory_allocated() - before <= 7 * 4 * 2**22


@pytest.mark.parametrize("execution", ["eager", "cuda_graph", "compile_cuda_graph"])
def test_training_on_batches_ahead_is_training_on_plain_ones(execution):
    set_fp32_precision("fp32")
    stored = [on_gpu(*flagged(number, overflow=False)) for number in range(12)]

    def batches():
        for batch in stored:
            yield tuple(part * 1 for part in batch)

    losses = []
    for wrap in (lambda given: given, lambda given: prefetch_to_device(given, side_stream(GPU))):
        record, trainer = make_record(), graph_trainer("fp32", execution)
        warm_up(record, trainer, lambda wrap=wrap: wrap(batches()))
        for _ in range(2):
            timed_epoch(record, trainer, wrap(batches()))
        assert record.host_syncs_per_step == 0
        losses.append(record.train_loss)
    assert losses[1] == pytest.approx(losses[0], rel=CLOSE["fp32"])


# What differs in the last bits is rounded to TF32 or 16 bits in the next step, and some kernels add
# in any order.
CLOSE = {
    "fp32": 1e-4,
    "tf32": 5e-3,
    "amp_bf16": 0.03,
    **dict.fromkeys(("amp_fp16", "o2_fp16"), 0.01),
}
CLOSE |= dict.fromkeys(("bf16_true", "o3_fp16"), 0.05)
COMPILED = ("fp32", "amp_fp16", "o2_fp16")  # where compiling every precision would take too long


def replayed(precisions):
    """Return (precision, execution) of the graphs: each precision, and of the compiled ones fp32
    and two others.
    """
    compiled = [name for name in precisions if name in COMPILED]
    return [(name, "cuda_graph") for name in precisions] + [
        (name, "compile_cuda_graph") for name in compiled
    ]


GRAPHS = ("cuda_graph", "compile_cuda_graph")


def graph_trainer(precision, execution="cuda_graph", loss=flagged_loss, model=network, **options):
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True, **options}
    options = {"loss_scale": 1024 if precision == "o3_fp16" else "dynamic", **options}
    return sgd_trainer(model().to(GPU), precision, loss, device=GPU, execution=execution, **options)


@pytest.mark.parametrize("execution", ("eager", "compile", *GRAPHS))
@pytest.mark.parametrize(
    "precision, options",
    [*((mode, {}) for mode in MODES), ("o3_fp16", {"keep_batchnorm_fp32": True})],
)
def test_steps_are_those_of_eager_mode(precision, options, execution):
    """The losses, the weights, of two types in the last case, GradScaler's scale and skipped
    steps, and the rate.
    """
    supported(precision)
    close = (
        max(CLOSE[precision], 0.02)
        if "compile" in execution and precision not in COMPILED
        else CLOSE[precision]
    )
    _, other = trainers = [
        graph_trainer(precision, way, clip=0.5, **options) for way in ("eager", execution)
    ]
    if trainers[0].scaler.is_enabled():
        for trainer in trainers:
            grow_soon(trainer.scaler)
    for step in range(20):
        overflow = precision in SCALED and step in (0, 4, 5, 13)
        for trainer in trainers:
            trainer.set_lr(0.05 / (step + 1))
        losses = [trainer.step(on_gpu(*flagged(step, overflow)))[0].item() for trainer in trainers]
        assert losses[1] == pytest.approx(losses[0], rel=close), step
        scales = [(one.scaler.get_scale(), one.skipped_steps) for one in trainers]
        assert scales[1] == scales[0], step
    for a, b in zip(*(trainer.masters for trainer in trainers), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=close, atol=close)
    assert (other.captured is None) is (execution in ("eager", "compile"))
    assert not other.captured or other.captured.graph is not None
    assert not other.captured or other.captured.unseen_bytes > 0
    check_skips_and_rates(other, precision)


def check_skips_and_rates(other, precision):
    """A skipped step changes no bit, and a rate of 0 reaches a replay."""
    other.scaler.update(1024.0)  # so that no step overflows by itself
    before, skipped = everything(other), other.skipped_steps
    if precision in SCALED:  # a skipped step changes no bit
        other.step(on_gpu(*flagged(20, overflow=True)))
        assert other.skipped_steps == skipped + 1
        assert same_bits(before, everything(other))
    other.set_lr(0.0)  # which also reaches a replay
    other.step(on_gpu(*flagged(21, overflow=False)))
    assert same_bits(before[:2], everything(other)[:2])
    other.set_lr(0.05)
    other.step(on_gpu(*flagged(22, overflow=False)))
    assert not same_bits(before[:2], everything(other)[:2])
    assert all(part.isfinite().all() for group in everything(other) for part in group)


@pytest.mark.parametrize("precision, execution", replayed(MODES))
def test_replays_carry_the_hidden_state(precision, execution):
    supported(precision)
    make = partial(
        graph_trainer,
        precision,
        loss=word_loss,
        model=lambda: Words("LSTM"),
        clip=0.25,
        momentum=0.0,
    )
    trainers = make("eager", nesterov=False), make(execution, nesterov=False)
    for _ in range(2):  # epochs: the second begins with a replay
        carries = [None, None]
        for step in range(6):
            losses = []
            for number, trainer in enumerate(trainers):
                loss, carries[number] = trainer.step(on_gpu(*text(step)), carries[number])
                losses.append(loss.item())
            assert losses[1] == pytest.approx(losses[0], rel=CLOSE[precision]), step
        for a, b in zip(*carries, strict=True):
            torch.testing.assert_close(a.float(), b.float(), rtol=0.02, atol=0.02)


def dropping():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 4))


def test_dropout_differs_between_replays_as_in_eager_mode():
    def recurrent():
        model = Words("LSTM")
        model.body.dropout = 0.5
        return model

    for execution in GRAPHS:
        trainer = graph_trainer(
            "fp32", execution, word_loss, recurrent, lr=0.0, momentum=0.0, nesterov=False
        )
        taken = [trainer.step(on_gpu(*text(0)))[0].item() for _ in range(9)]
        assert len(set(taken[4:])) == 5
    losses = []
    for execution in ("eager", *GRAPHS):  # torch.compile draws numbers of its own
        trainer, batch = (
            graph_trainer("fp32", execution, model=dropping, lr=0.0),
            on_gpu(*flagged(0, overflow=False)),
        )
        for _ in range(4):
            trainer.step(batch)
        torch.manual_seed(1)
        losses.append([trainer.step(batch)[0].item() for _ in range(5)])
    assert len(set(losses[1])) == len(set(losses[2])) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("precision, execution", replayed(MODES))
def test_a_replayed_epoch_never_waits(precision, execution):
    supported(precision)
    records = []
    for way in ("eager", execution):
        record, trainer = make_record(precision), graph_trainer(precision, way)
        quiet = [on_gpu(*flagged(0, overflow=False))] * 5
        warm_up(record, trainer, lambda quiet=quiet: iter(quiet))
        # ten or more until stable, three after the memory was handed back
        assert record.warmup_steps >= 13 and trainer.skipped_steps == 0
        assert record.peak_allocated_with_warmup_mib > 0
        for _ in range(2):
            overflows = [precision in SCALED and number in (0, 4) for number in range(8)]
            batches = [
                on_gpu(*flagged(number, overflow)) for number, overflow in enumerate(overflows)
            ]
            timed_epoch(record, trainer, batches)
        records.append(record)
    eager, captured = records
    assert (eager.host_syncs_per_step, captured.host_syncs_per_step) == (
        1 if precision in SCALED else 0,
        0,
    )
    assert captured.train_loss == pytest.approx(eager.train_loss, rel=CLOSE[precision])
    assert (captured.skipped_steps, captured.overflow_steps) == (
        eager.skipped_steps,
        eager.overflow_steps,
    )
    assert [step for step, _ in captured.loss_scale_trace] == [
        step for step, _ in eager.loss_scale_trace
    ]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in quiet:
            trainer.set_lr(0.01)
            trainer.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_cannot_be_captured_is_unsupported():
    def asking(model, batch, hidden):
        loss, hidden = flagged_loss(model, batch, hidden)
        return loss * (1.0 if loss.item() > 0 else 2.0), hidden

    batch = on_gpu(*flagged(0, overflow=False))
    trainer = graph_trainer("fp32", loss=asking, model=dropping)
    for _ in range(3):
        trainer.step(batch)
    with pytest.raises(Unsupported, match="cannot be captured in a CUDA graph"):
        trainer.step(batch)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    del trainer
    for execution in ("eager", "cuda_graph"):  # with dropout, whose generator was in the capture
        following = graph_trainer("fp32", execution, model=dropping)
        assert all(following.step(batch)[0].isfinite().item() for _ in range(6))


def test_the_memory_of_a_capture_that_ran_out_is_free_again():
    def greedy(model, batch, hidden):
        loss, hidden = flagged_loss(model, batch, hidden)
        if torch.cuda.is_current_stream_capturing():
            held = [torch.empty(2**28, device=GPU) for _ in range(3)]  # 1 GiB each, of two
            loss = loss + held[0].numel()
        return loss, hidden

    release_memory()
    before = torch.cuda.memory_reserved()
    limit_memory(2.0, GPU)
    try:
        batch = on_gpu(*flagged(0, overflow=False))
        trainer = graph_trainer("fp32", loss=greedy, model=dropping)
        for _ in range(3):
            trainer.step(batch)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            trainer.step(batch)
        clear_tracebacks(raised.value)
        del trainer, raised
        release_memory()
        assert torch.cuda.memory_reserved() < before + 2**28
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


SMALL_RUNS = {
    "cifar_resnet": {"batch_size": 64, "channels_last": True},
    "efficientnet_regression": {"batch_size": 8, "image_height": 64, "image_width": 64},
    "lstm_language_model": {"generate_words": 5},
    "transformer": {"width": 128, "layers": 2, "context": 128},
}
# timm's own for tests, with few layers
COMPILED_RUNS = {"efficientnet_regression": {"model": "test_efficientnet"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision, execution",
    [
        *((mode, "compile_cuda_graph") for mode in ("fp32", "amp_fp16")),
        *((mode, "cuda_graph") for mode in MODES),
    ],
)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_notebook_runs_every_mode_as_a_graph(name, precision, execution):
    given = {
        "dataset": "synthetic",
        "epochs": 2,
        "max_steps": 20,
        "precisions": [precision],
        "seed": 1,
    }
    given |= SMALL_RUNS[name] | (COMPILED_RUNS.get(name, {}) if "compile" in execution else {})
    # noted by the first notebook that chose its device
    known = nvml.GPUS_BEFORE_USE or not torch.cuda.is_initialized()
    others = None if known else "what others used before the run is not known"
    (record,) = run_cells(name, "run", execution=execution, **given)["records"]
    assert record.status == "ok" or (precision, record.status) == ("o3_fp16", "diverged"), (
        record.reason
    )
    if record.status == "ok":
        assert (record.profile_reason, record.ledger_reason) == (None, others)
        # else fused, and not counted
        assert (record.bytes_per_step is not None) is (execution == "cuda_graph")
        # not measured beside others
        assert (record.ceiling_copy_gb_per_second is None) is bool(record.gpu_shared)
        told = record.host_syncs_per_step, record.inference_reason, record.fp16_check
        assert told == (0, NOT_ABOUT_INFERENCE, "passed") and record.peak_allocated_mib > 0
    if precision == "bf16_true":
        assert (record.parameter_dtypes, record.update_reason) == ("bfloat16", None)


def test_a_graphs_peak_is_near_eager_modes():
    peaks = []
    for execution in ("eager", "cuda_graph", "cuda_graph"):
        release_memory()
        experiment, trainer, batches, record = resnet(512, "fp32", steps=10, execution=execution)
        timed_epoch(record, trainer, batches())
        peaks.append(record.peak_allocated_mib)
        del experiment, trainer, batches
    print(f"peak MiB eager {peaks[0]:.0f}, graph {peaks[1]:.0f}, the next {peaks[2]:.0f}")
    assert peaks[1] == pytest.approx(peaks[0], rel=0.15)
    assert peaks[2] == pytest.approx(peaks[1], abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
def test_an_explanation_afterwards_finds_what_one_at_once_finds(execution, monkeypatch):
    monkeypatch.setenv(STUDY_ENV, '{"show": {"inference": true}}')
    common = {
        "dataset": "synthetic",
        "epochs": 2,
        "max_steps": 30,
        "batch_size": 64,
        "execution": execution,
    }
    found = []
    for precisions in (["tf32"], ["tf32", "amp_bf16"]):  # several are explained when all are timed
        release_memory()
        records = run_cells("cifar_resnet", "run", precisions=precisions, **common)["records"]
        assert [record.status for record in records] == ["ok"] * len(precisions)
        found.append(records[0])
    at_once, afterwards = found
    assert len(afterwards.metric) == len(afterwards.epoch_seconds) == 2
    assert afterwards.profile_reason is None and afterwards.inference_latency_ms > 0
    assert afterwards.kernels_per_step == pytest.approx(at_once.kernels_per_step, rel=0.02)
    for name in ("flops_per_step", "ledger_parameters_mib"):
        assert getattr(afterwards, name) == getattr(at_once, name)
    assert afterwards.peak_allocated_mib == pytest.approx(at_once.peak_allocated_mib, rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "o2_fp16"])
@pytest.mark.parametrize(
    "name, options",
    [
        ("cifar_resnet", {"batch_size": 512}),
        ("efficientnet_regression", {"batch_size": 32, "image_height": 192, "image_width": 256}),
        ("lstm_language_model", {"generate_words": 0}),
        ("transformer", {"width": 256, "layers": 2}),
    ],
)
def test_live_blocks_confirm_the_memory_breakdown(name, options, precision):
    # or its data would count as this one's, and so would workspaces
    for other in (*EXPERIMENTS, "your_model"):
        sys.modules.pop(other, None)
    clear_workspaces()
    release_memory()
    left = torch.cuda.memory_allocated()  # by other tests, which the record counts as data
    experiment = experiment_of(
        name, dataset="synthetic", max_steps=10, precisions=[precision], **options
    )
    record = new_record(name, vars(experiment.parameters), precision, experiment.facts())
    describe_environment(record, GPU)
    trainer, size = experiment.warmed_up(record, precision)
    batches = partial(experiment.batches, 0, precision, size, ahead=False)
    timed_epoch(record, trainer, batches())
    read_memory_breakdown(record, trainer, iter(batches()))
    sizes, peak, gradients = blocks_at_peak(trainer, next(batches()))
    counted = {part: int((getattr(record, f"ledger_{part}_mib") or 0) * MIB) for part in COUNTED}
    counted |= {"gradients": gradients, "data": counted["data"] - left}
    shown = ", ".join(f"{part} {size / MIB:.1f}" for part, size in sizes.items())
    print(f"{name} {precision}, MiB: peak {record.peak_allocated_mib:.0f}, {shown}")
    assert sum(sizes.values()) == pytest.approx(peak, rel=0.03)
    for part in COUNTED:
        # One gradient may be in the making at the peak: it has a block and is not counted yet.
        making = max(weight.nbytes for weight in trainer.weights) if part == "gradients" else 0
        assert abs(sizes[part] - counted[part]) <= 0.03 * peak + making, part


TEXT = {"dataset": "synthetic", "epochs": 1, "max_steps": 60, "lr": 0.0003, "layers": 2}
TEXT |= {"width": 512, "batch_size": 32, "context": 64, "vocabulary": 32768}


def record_of(notebook, **given):
    release_memory()
    (record,) = run_cells(notebook, "run", **given)["records"]
    assert record.status == "ok", record.reason
    return record


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution", [pytest.param("eager", marks=pytest.mark.alone), "compile_cuda_graph"]
)
def test_a_transformer_trains_in_fp8_as_in_bf16(
    execution,
):
    supported("fp8")
    eager = execution == "eager"  # and explained, because repeat is 0
    # eager, never compiled
    bf16 = record_of("transformer", **TEXT, precisions=["amp_bf16"], repeat=1)
    given = TEXT | {"precisions": ["fp8"], "execution": execution, "repeat": int(not eager)}
    fp8 = record_of("transformer", **given)
    assert fp8.train_loss[-1] == pytest.approx(bf16.train_loss[-1], abs=0.05)
    assert fp8.fp8_linear_fraction == 1
    if eager:
        print(fp8.kernel_family_fractions, fp8.ceiling_matmul_tflop_per_second)
        assert fp8.fp8_kernel_fraction > 0.02
        assert fp8.tensor_core_fraction >= fp8.fp8_kernel_fraction
        assert fp8.ceiling_matmul_tflop_per_second > 800 or "H" not in fp8.gpu_name


def test_with_the_devices_scaler_no_step_waits():
    given = {
        "dataset": "synthetic",
        "epochs": 2,
        "max_steps": 60,
        "batch_size": 64,
        "precisions": ["amp_fp16"],
    }
    records = [
        record_of("cifar_resnet", **given, scaler=scaler, repeat=1)
        for scaler in ("pytorch", "device")
    ]
    print(f"amp_fp16 eager, step ms: {[round(record.step_ms_median, 2) for record in records]}")
    assert [record.host_syncs_per_step for record in records] == [1, 0]
    assert records[1].train_loss == pytest.approx(records[0].train_loss, rel=0.02)
