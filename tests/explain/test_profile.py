"""Where the time of a step goes: kernels by family, FLOPs, bytes, sizes."""

import contextlib
import csv
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import CASES
from explained_training import made_batches, make_record, make_trainer, random
from torch import nn
from torch.nn import functional

from mixed_precision_study.explain import profile as profiling

# most were seen on an H200
with Path(__file__).with_name("kernel_names.csv").open(newline="") as lines:
    KERNELS = list(csv.DictReader(lines))
NAMES = [kernel["name"] for kernel in KERNELS]


@pytest.mark.parametrize("kernel", KERNELS, ids=[name[:60] for name in NAMES])
def test_a_kernel_is_told_by_its_name(kernel):
    name = kernel["name"]
    assert profiling.family_of(name) == kernel["family"]
    assert bool(re.search(profiling.TENSOR_CORE_KERNELS, name)) is (kernel["tensor_cores"] == "1")
    assert bool(re.search(profiling.FP16_KERNELS, name)) is (kernel["fp16"] == "1")


def kernel_like(words):
    """Return the first of the names above that has these words."""
    return next(name for name in NAMES if words in name)


HALF_GEMM, CONV = kernel_like("nvjet_sm90_hsh"), kernel_like("fprop_implicit_gemm_f32f32_tf32f32")
BATCH_NORM, ADD = (
    kernel_like("batch_norm_backward_kernel<c10::BFloat16"),
    kernel_like("CUDAFunctor_add"),
)


@pytest.mark.parametrize("step_ms, busy", [(2.0, 0.5), (0.5, 1.0)])  # it is at most 1
def test_kernels_become_shares_and_busy_time(step_ms, busy):
    record = make_record()
    millisecond = 1_000_000
    kernels = [
        (HALF_GEMM, 0, 1 * millisecond),
        (CONV, 1 * millisecond, 2 * millisecond),
        (ADD, 2 * millisecond, 1 * millisecond),  # on another stream, beside the convolution
        (BATCH_NORM, 5 * millisecond, 1 * millisecond),
    ]
    record.fill(**profiling.kernels_of(kernels, 4, step_ms))
    # 3 + 1 of 6 ms, in 4 steps
    assert (record.kernels_per_step, record.gpu_busy_ms_per_step) == (1, 1)
    assert record.gpu_busy_fraction == busy  # of the step as it was timed
    assert record.tensor_core_fraction == pytest.approx(3 / 5)
    assert record.fp16_kernel_fraction == pytest.approx(1 / 5)
    shares = {"convolution": 2 / 5, "matmul": 1 / 5, "elementwise": 1 / 5, "normalisation": 1 / 5}
    assert dict(record.kernel_family_fractions) == pytest.approx(shares)
    assert record.kernel_family_fractions[0][0] == "convolution"


def test_time_that_overlaps_counts_once():
    assert profiling.busy_time([(20, 21), (0, 10), (2, 3), (9, 12)]) == 13


def pretend_profiler(monkeypatch, events):
    """Let torch.profiler see made-up events: (device, name, start ns, duration ns)."""
    names = ("device_type", "name", "start_ns", "duration_ns")
    seen = [
        SimpleNamespace(
            **{name: lambda value=value: value for name, value in zip(names, event, strict=True)}
        )
        for event in events
    ]
    results = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: seen))
    given = contextlib.nullcontext(SimpleNamespace(profiler=results))
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: given)


@pytest.mark.parametrize("teardown", [None, "0"])
def test_a_profile_takes_five_steps_without_the_host(monkeypatch, teardown):
    monkeypatch.setenv("TEARDOWN_CUPTI", teardown or "")
    if teardown is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    host, device = (
        ("DeviceType.CPU", "aten::add", 0, 99_000_000),
        ("DeviceType.CUDA", ADD, 0, 5_000_000),
    )
    pretend_profiler(monkeypatch, [device, host])
    record, trainer, given = make_record(), make_trainer(), []
    profiling.profile_steps(record, trainer, iter(made_batches(given, 9)))
    assert (trainer.steps, len(given)) == (5, 5)
    assert record.gpu_busy_ms_per_step == 1
    assert record.kernels_per_step == 1 / 5
    assert record.kernel_family_fractions == [["elementwise", 1]]
    assert os.environ["TEARDOWN_CUPTI"] == (teardown or "1")  # unless the user says otherwise
    pretend_profiler(monkeypatch, [host])
    with pytest.raises(RuntimeError, match="no kernel"):
        profiling.profile_steps(record, trainer, iter(made_batches([], 9)))


def counted(work):
    with profiling.WorkCounter() as counter:
        work()
    return counter


@pytest.mark.parametrize("groups", [1, 2, 8], ids=["plain", "grouped", "depthwise"])
@pytest.mark.parametrize("image_grad, factor", [(True, 2), (False, 1)])
def test_flops_of_a_convolution_forward_and_backward(groups, image_grad, factor):
    image, weight = random(2, 8, 10, 10, grad=image_grad), random(8, 8 // groups, 3, 3, grad=True)
    forward = 2 * (2 * 8 * 10 * 10) * (8 // groups * 3 * 3)
    made = []
    assert (
        counted(
            lambda: made.append(functional.conv2d(image, weight, padding=1, groups=groups))
        ).flops
        == forward
    )
    assert counted(lambda: made[0].sum().backward()).flops == factor * forward


def test_flops_of_an_rnn_are_those_of_its_weight_matrices():
    words = torch.empty(35, 20, 200)
    for network in (
        nn.LSTM(200, 256, 2),
        nn.GRU(200, 96),
        nn.RNN(200, 64, 3, bidirectional=True),
    ):
        weights = list(network.parameters())
        matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
        assert profiling.rnn_flops(words, weights, 4, None) == 2 * 35 * 20 * matrices
    lstm = list(nn.LSTM(200, 256, 1).parameters())
    assert profiling.rnn_flops(words, lstm) == 2 * 35 * 20 * 4 * 256 * (200 + 256)
    backward = profiling.FORMULAS[torch.ops.aten._cudnn_rnn_backward]
    assert backward(words, lstm, 4, out_val=None) == 2 * profiling.rnn_flops(words, lstm)


def test_flops_are_two_for_each_multiply_add():
    batched = counted(lambda: torch.bmm(random(3, 4, 16), random(3, 16, 8)))
    product = counted(lambda: random(4, 16) @ random(16, 8))
    assert (batched.flops, product.flops) == (3 * 2 * 4 * 16 * 8, 2 * 4 * 16 * 8)
    assert product.bytes >= 4 * (4 * 16 + 16 * 8 + 4 * 8)


A, B, HALF = random(1000), random(1000), torch.ones(1000, dtype=torch.float16)


@pytest.mark.parametrize(
    "work, count",
    [
        (lambda: A + B, 3 * 4000),
        (lambda: A.add_(B), 3 * 4000),  # read, read and written
        (lambda: HALF * 2, 2 * 2000),
        (lambda: HALF.float(), 2000 + 4000),
        (lambda: A.sum(), 4000 + 4),
        (lambda: torch.cat([A, B]), 2 * 8000),  # tensors in lists count as well
        # what the optimizer writes in place
        (lambda: torch._foreach_add_([A, HALF], [B, HALF]), 3 * 4000 + 3 * 2000),
    ],
)
def test_bytes_are_inputs_and_outputs(work, count):
    found = counted(work)
    assert (found.bytes, found.flops) == (count, 0)


def test_what_moves_no_data_has_no_bytes():
    c = random(10, 100)
    views = counted(
        lambda: (
            c.view(1000),
            c.t(),
            c[2:5],
            c.expand(3, 10, 100),
            c.split(5),
            c.unsqueeze(0),
            c.detach(),
        )
    )
    assert views.bytes == counted(lambda: (torch.empty(10**6), torch.empty_like(c))).bytes == 0


def misaligned_share(work):
    counter = counted(work)
    return counter.misaligned_flops / counter.flops


@pytest.mark.parametrize(
    "a, b, misaligned",
    CASES["shapes of products"],
)
def test_a_matmul_is_misaligned_by_the_length_of_its_rows(a, b, misaligned):
    assert misaligned_share(lambda: random(*a) @ random(*b)) == misaligned
    assert misaligned_share(lambda: torch.bmm(random(3, *a), random(3, *b))) == misaligned
    # now its rows are the columns, which lie in memory one after the other
    turned = random(*b).t().contiguous().t()
    assert misaligned_share(lambda: random(*a) @ turned) == bool(a[1] % 8)


@pytest.mark.parametrize(
    "channels, out, groups, misaligned",
    CASES["channels of convolutions"],
)
def test_a_convolution_is_misaligned_by_its_channels(channels, out, groups, misaligned):
    image, weight = (
        random(2, channels, 10, 10, grad=True),
        random(out, channels // groups, 3, 3, grad=True),
    )
    made = []
    assert (
        misaligned_share(lambda: made.append(functional.conv2d(image, weight, groups=groups)))
        == misaligned
    )
    # by its weight, as the forward pass
    assert misaligned_share(lambda: made[0].sum().backward()) == misaligned


@pytest.mark.parametrize("units, misaligned", [(200, False), (650, True)])
def test_an_rnn_is_misaligned_by_the_sizes_of_its_weights(units, misaligned):
    given = [
        random(35, 20, units),
        *nn.LSTM(units, units, 2).parameters(),
        random(2, 20, units),
    ]
    for operation in (torch.ops.aten._cudnn_rnn, torch.ops.aten._cudnn_rnn_backward):
        assert profiling.misaligned(operation, given) is misaligned


FORWARD = 2 * 4 * (16 * 24 + 24 * 8 + 8 * 8)
STEP = 3 * FORWARD - 2 * 4 * 16 * 24  # the batch itself needs no gradient


def test_the_work_of_a_step_is_counted():
    record, trainer = make_record(), make_trainer()
    before = [weight.detach().clone() for weight in trainer.weights]
    profiling.count_work(record, trainer, iter(made_batches([])))
    assert record.flops_per_step == STEP
    # a step takes 2 ms
    assert record.achieved_tflop_per_second == pytest.approx(STEP / 0.002 / 1e12)
    assert (record.misaligned_flops_fraction, record.limit_reason) == (0, None)
    assert record.bytes_per_step > 2 * sum(weight.nbytes for weight in trainer.weights)
    # the optimizer counts too
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))


def test_a_compiled_step_is_counted_without_its_bytes():
    trainer = make_trainer(
        loss=lambda network, batch, hidden: (sum(one.sum() for one in network.parameters()), hidden)
    )
    trainer.model = trainer.loss_of = unused = object()
    record = make_record()
    profiling.count_work(record, trainer, iter(made_batches([])))  # on the loss as it was written
    assert (record.flops_per_step, record.misaligned_flops_fraction, record.bytes_per_step) == (
        0,
        None,
        None,
    )
    assert "torch.compile" in record.limit_reason and trainer.loss_of is unused
