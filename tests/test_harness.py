"""The method: precision modes, loss scaling, the training step, warm-up, the timed epoch."""

import contextlib
import copy
import math
import shutil
import time

import harness
import instruments
import pytest
import record as records
import torch

CPU = torch.device("cpu")
MODES = tuple(harness.PRECISIONS)
SCALED = ("amp_fp16", "o2_fp16", "o3_fp16")


def small_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )


def compute_loss(network, batch, carry):
    images, labels = batch
    images = images.to(next(network.parameters()).dtype)
    return torch.nn.functional.cross_entropy(network(images).float(), labels), carry


def make_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 3, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)


def make_trainer(precision, loss=compute_loss, **options):
    options = {"lr": 0.1, "momentum": 0.9, **options}
    scale = options.pop("loss_scale", 1024.0 if precision == "o3_fp16" else "dynamic")
    return harness.Trainer(small_network(), precision, loss, device=CPU, loss_scale=scale, **options)


def make_record(precision="fp32"):
    parameters = {"dataset": "d", "model": "m", "batch_size": 16, "seed": 0, "output_dir": "out", "data_dir": "data"}
    return records.new_record("n", parameters, precision, {"sample_unit": "images", "metric_name": "accuracy"})


def everything(trainer):
    """Return copies of all that a skipped step must leave as it was."""
    momenta = [value for state in trainer.optimizer.state.values() for value in state.values() if value is not None]
    return copy.deepcopy([[w.detach() for w in trainer.weights], [m.detach() for m in trainer.masters], momenta])


def same_bits(first, second):
    return len(first) == len(second) and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("precision", MODES)
def test_the_switches_are_set_and_read_back(precision):
    wanted = "tf32" if precision == "tf32" else "ieee"
    assert harness.set_fp32_precision(precision) == {"matmul": wanted, "conv": wanted, "rnn": wanted}
    assert torch.backends.cudnn.conv.fp32_precision == wanted
    assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")  # torch.compile reads the older flag


@pytest.mark.parametrize("precision", MODES)
def test_weights_masters_and_batch_norm_have_the_types_of_the_mode(precision):
    trainer = make_trainer(precision)
    convolution, norm, linear = trainer.network[0], trainer.network[1], trainer.network[5]
    half = precision in ("o2_fp16", "o3_fp16")
    assert convolution.weight.dtype == linear.weight.dtype == (torch.float16 if half else torch.float32)
    assert norm.weight.dtype == norm.running_mean.dtype == (torch.float16 if precision == "o3_fp16" else torch.float32)
    assert {m.dtype for m in trainer.masters} == {torch.float16 if precision == "o3_fp16" else torch.float32}
    optimized = [w for group in trainer.optimizer.param_groups for w in group["params"]]
    assert all(a is b for a, b in zip(optimized, trainer.masters, strict=True))


def test_half_weights_cast_by_hand_keep_batch_norm_in_fp32_and_have_no_master_copy():
    trainer = make_trainer("o3_fp16", keep_batchnorm_fp32=True)
    convolution, norm = trainer.network[0], trainer.network[1]
    assert (convolution.weight.dtype, norm.weight.dtype, norm.running_var.dtype) == (
        torch.float16,
        torch.float32,
        torch.float32,
    )
    assert all(a is b for a, b in zip(trainer.weights, trainer.masters, strict=True))
    assert all(weight.dtype == torch.float32 for weight in make_trainer("fp32", keep_batchnorm_fp32=True).weights)


@pytest.mark.parametrize("precision", MODES)
def test_autocast_has_the_type_of_the_mode_in_the_forward_pass_and_is_left_after_it(precision):
    seen = []

    def loss(network, batch, carry):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return compute_loss(network, batch, carry)

    make_trainer(precision, loss).step(make_batch())
    wanted = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    assert seen[0][0] is (wanted is not None)
    assert wanted is None or seen[0][1] == wanted
    assert not torch.is_autocast_enabled("cpu")


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


def overflowing(network, batch, carry):
    """A loss whose gradients are infinite where batch[2] says so."""
    loss, carry = compute_loss(network, batch[:2], carry)
    return loss * (math.inf if batch[2] else 1.0), carry


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


def test_unsupported_modes_say_why(monkeypatch):
    for precision in ("tf32", "amp_fp16", "o2_fp16", "o3_fp16"):
        with pytest.raises(instruments.Unsupported, match=f"{precision} needs an NVIDIA GPU"):
            harness.check_supported(precision, "eager", CPU)
    harness.check_supported("fp32", "eager", CPU)
    harness.check_supported("amp_bf16", "compile", CPU)
    with pytest.raises(instruments.Unsupported, match='execution="cuda_graph" needs an NVIDIA GPU'):
        harness.check_supported("fp32", "cuda_graph", CPU)
    with pytest.raises(instruments.Unsupported, match='execution="compile_cuda_graph" needs an NVIDIA GPU'):
        harness.check_supported("amp_bf16", "compile_cuda_graph", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    turing = torch.device("cuda")
    harness.check_supported("amp_fp16", "eager", turing)
    harness.check_supported("amp_fp16", "cuda_graph", turing)
    with pytest.raises(instruments.Unsupported, match=r"8\.0 \(Ampere\).*7\.5"):
        harness.check_supported("tf32", "eager", turing)
    with pytest.raises(instruments.Unsupported, match="emulate bfloat16"):
        harness.check_supported("amp_bf16", "eager", turing)


def test_where_fp16_arithmetic_is_wrong_its_modes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    ampere, wrong = torch.device("cuda"), "a convolution in fp16 differs from fp32 by nan of its norm"
    for precision in MODES:
        harness.check_supported(precision, "eager", ampere, "passed")
        harness.check_supported(precision, "eager", ampere, None)  # not checked
        if "fp16" in precision:
            with pytest.raises(instruments.Unsupported, match=f"fp16 arithmetic is wrong on this GPU: {wrong}"):
                harness.check_supported(precision, "eager", ampere, wrong)
        else:
            harness.check_supported(precision, "eager", ampere, wrong)


PARAMETERS = {
    "dataset": "auto",
    "precisions": ["fp32"],
    "batch_size": 8,
    "epochs": 1,
    "max_steps": 0,
    "lr": 1,
    "loss_scale": "dynamic",
    "execution": "eager",
    "compile_mode": "default",
    "channels_last": False,
    "repeats": 1,
    "seed": 0,
}


def test_right_parameters_pass_and_a_whole_rate_becomes_a_float():
    checked = harness.check_parameters(PARAMETERS, {"dataset": ("auto", "other")})
    assert checked == {**PARAMETERS, "lr": 1.0}
    assert type(checked["lr"]) is float


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batch_size": -1}, "batch_size is -1; it must be a whole number of 1 or more"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"epochs": True}, "epochs is True"),
        ({"max_steps": -1}, "0 or more"),
        ({"lr": 0}, "lr is 0.0; it must be a number above 0"),
        ({"lr": math.inf}, "lr is inf"),
        ({"dataset": "mnist"}, "dataset is 'mnist'; possible are auto, other"),
        ({"precisions": ["fp99"]}, "some of fp32, tf32, amp_fp16, amp_bf16, o2_fp16, o3_fp16"),
        ({"precisions": []}, "precisions is"),
        ({"precisions": "fp32"}, "it must be a list"),
        ({"precisions": ["fp32", "fp32"]}, "each once"),
        ({"precisions": [["fp32"]]}, "it must be a list"),
        ({"data_dir": None}, "data_dir is None; it must be text in quotes"),
        ({"model": 18}, "model is 18; it must be text"),
        ({"loss_scale": "static"}, 'it must be "dynamic" or a number above 0'),
        ({"loss_scale": 0}, "loss_scale is 0"),
        ({"execution": "graph"}, "possible are eager, compile, cuda_graph, compile_cuda_graph."),
        ({"compile_mode": "fast"}, "possible are default, coordinate-descent, max-autotune-no-cudagraphs."),
        ({"channels_last": 1}, "True or False"),
    ],
)
def test_wrong_parameters_stop_with_one_sentence(wrong, sentence):
    with pytest.raises(instruments.Stop) as stopped:
        harness.check_parameters({**PARAMETERS, **wrong}, {"dataset": ("auto", "other")})
    assert sentence in str(stopped.value)
    assert len(stopped.value._render_traceback_()) == 1


def test_an_output_folder_that_cannot_be_written_stops_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(instruments.Stop, match=r"cannot be written .*choose another folder"):
        harness.check_output_dir(str(tmp_path / "file"))
    harness.check_output_dir(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize("precision", MODES)
def test_warm_up_puts_everything_back_but_the_scale(precision):
    trainer, record = make_trainer(precision), make_record(precision)
    start = copy.deepcopy([list(trainer.network.state_dict().values()), [m.detach() for m in trainer.masters]])
    harness.warm_up(record, trainer, lambda: iter([make_batch(0), make_batch(1)]))
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
    harness.timed_epoch(record, trainer, (make_batch(n) for n in range(3)), lambda step: rates.append(step) or 0.1)
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

    monkeypatch.setattr(harness, "watched", watched)
    trainer, record = make_trainer("fp32"), make_record()
    for _ in range(2):
        harness.timed_epoch(record, trainer, slowly())
    assert sampled == ["on", "off"] * 2
    assert len(record.block_seconds) == 2 * 10
    assert [sum(record.block_seconds[:10]), sum(record.block_seconds[10:])] == [
        pytest.approx(sum(record.step_ms_all[:20]) / 1000),
        pytest.approx(sum(record.step_ms_all[20:]) / 1000),
    ]
    assert len(record.data_wait_seconds_all) == 2
    instruments.summarise_times(record, 320)
    assert 0.1 / record.epoch_seconds[0] <= record.data_wait_seconds_all[0] / record.epoch_seconds[0] < 1
    assert record.data_wait_fraction == pytest.approx(sum(record.data_wait_seconds_all) / sum(record.epoch_seconds))


def test_skipped_steps_are_counted_and_their_loss_is_left_out():
    trainer, record = make_trainer("amp_fp16", overflowing), make_record("amp_fp16")
    harness.timed_epoch(record, trainer, [(*make_batch(n), n == 1) for n in range(4)])
    assert record.skipped_steps == 1
    assert math.isfinite(record.train_loss[0])
    assert record.loss_scale_trace == [[0, 65536.0], [2, 32768.0]]
    assert record.overflow_steps == [1]
    harness.timed_epoch(record, trainer, [(*make_batch(n), n == 3) for n in range(4)])
    assert record.skipped_steps == 2
    assert record.overflow_steps == [1, 7]  # counted on through the epochs of a repeat
    assert record.loss_scale_trace == [[0, 65536.0], [2, 32768.0], [8, 16384.0]]


@pytest.mark.parametrize(
    ("scale", "why"), [(64, "gradients overflow fp16 at loss scale 64"), (0.25, "not finite, even at loss scale 0.25")]
)
def test_an_epoch_without_a_single_update_has_diverged(scale, why):
    trainer, record = make_trainer("amp_fp16", overflowing, loss_scale=scale), make_record("amp_fp16")
    with pytest.raises(instruments.Diverged, match=f"every step was skipped: .*{why}"):
        harness.timed_epoch(record, trainer, [(*make_batch(), True)] * 2)
    assert record.skipped_steps == 2
    assert len(record.epoch_seconds) == 1  # what was measured stays


def test_a_loss_that_is_not_finite_has_diverged():
    with pytest.raises(instruments.Diverged, match="not finite after 2 steps"):
        harness.timed_epoch(make_record(), make_trainer("fp32", overflowing), [(*make_batch(), True)] * 2)


def test_evaluating_takes_no_gradients_and_goes_back_to_training():
    trainer = make_trainer("amp_bf16")
    with harness.evaluating(trainer) as network:
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
        trainer = harness.Trainer(model, precision, in_its_own_type, **options)
        counter = model[1].num_batches_tracked
        if count:
            model[1].num_batches_tracked = torch.zeros((), dtype=torch.long)
        for number in range(3):
            trainer.step(make_batch(number))
        return counter, [value for name, value in model.state_dict().items() if "tracked" not in name]

    def in_its_own_type(network, batch, carry):
        images, labels = batch
        return torch.nn.functional.cross_entropy(network(images.to(network[0].weight.dtype)).float(), labels), carry

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
    harness.set_fp32_precision("fp32")
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


@pytest.mark.parametrize("compile_mode", list(harness.COMPILE_MODES))
def test_a_longer_search_of_the_compiler_is_for_the_training_alone(monkeypatch, compile_mode):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda part, **how: given.setdefault(part, how) and part)
    trainer = make_trainer("fp32", execution="compile", compile_mode=compile_mode)
    assert given[trainer.network] == {"dynamic": False}
    assert given[trainer.compute_loss] == {"dynamic": False, **harness.COMPILE_MODES[compile_mode]}


def test_pytorch_knows_what_a_compile_mode_gives_it():
    wanted = harness.COMPILE_MODES
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
        with torch.no_grad(), harness.autocast(precision, CPU):
            types.append(trainer.model(make_batch()[0]).dtype)
    assert types == [torch.float16, torch.bfloat16]


@NEEDS_COMPILER
def test_compiling_is_timed_apart_and_must_not_happen_in_a_timed_epoch():
    trainer, record = make_trainer("fp32", execution="compile"), make_record()
    harness.warm_up(record, trainer, lambda: iter([make_batch()]))
    assert 0 < record.compile_seconds < record.warmup_seconds
    harness.timed_epoch(record, trainer, [make_batch(1), make_batch(2)])
    images, labels = make_batch()
    with pytest.raises(RuntimeError, match="compiled again within a timed epoch"):
        harness.timed_epoch(record, trainer, [(images[:8], labels[:8])])
    eager = make_record()
    harness.warm_up(eager, make_trainer("fp32"), lambda: iter([make_batch()]))
    assert eager.compile_seconds == 0
