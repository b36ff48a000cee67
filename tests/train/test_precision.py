"""The precision modes: switches, types of weights, autocast, and what a device cannot run."""

import contextlib
import functools

import pytest
import torch
from conftest import seeded
from small_training import CPU, MODES, compute_loss, make_record, make_trainer, sgd_trainer
from torch import nn
from torch.backends import cudnn

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train.precision import (
    FP32_SWITCHES,
    PRECISIONS,
    cast_model,
    check_supported,
    read_switch,
    set_fp32_precision,
)
from mixed_precision_study.train.step import describe_trainer


@pytest.mark.parametrize("precision", MODES)
def test_the_switches_are_set_and_read_back(precision):
    wanted = "tf32" if precision == "tf32" else "ieee"
    set_fp32_precision(precision)
    assert {read_switch(line) for line in FP32_SWITCHES.values()} == {wanted}
    assert cudnn.conv.fp32_precision == wanted
    # torch.compile reads the older flag
    assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")
    assert cudnn.allow_tf32 is (precision == "tf32")


TYPES = {"o2_fp16": torch.float16, "o3_fp16": torch.float16, "bf16_true": torch.bfloat16}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("precision", MODES)
def test_parts_have_the_types_of_the_mode(precision, keep):
    trainer = make_trainer(precision, keep_batchnorm_fp32=keep)
    convolution, norm, linear = trainer.network[0], trainer.network[1], trainer.network[5]
    wanted = TYPES.get(precision, torch.float32)
    assert convolution.weight.dtype == linear.weight.dtype == wanted
    of_norm = torch.float32 if keep or precision == "o2_fp16" else wanted
    assert norm.weight.dtype == norm.running_mean.dtype == of_norm
    assert norm.num_batches_tracked is None  # it would cost a kernel per step
    assert {m.dtype for m in trainer.masters} == (
        {torch.float32} if precision == "o2_fp16" else {wanted, of_norm}
    )
    optimized = [w for group in trainer.optimizer.param_groups for w in group["params"]]
    assert all(a is b for a, b in zip(optimized, trainer.masters, strict=True))


@pytest.mark.parametrize("precision", MODES)
def test_a_model_of_another_type_is_cast(precision):
    network = nn.Linear(4, 1, dtype=torch.float64)  # which is cast in every mode
    network.spectrum = nn.Parameter(torch.ones(4, dtype=torch.cfloat))
    network.register_buffer("phase", torch.ones(4, dtype=torch.cfloat))
    trained = sgd_trainer(network, precision, compute_loss, lr=0.1).network
    assert trained.spectrum.dtype == trained.phase.dtype == torch.cfloat
    answer = trained(torch.ones(2, 4, dtype=torch.float64))  # its arguments are cast, too
    assert answer.dtype == trained.weight.dtype == TYPES.get(precision, torch.float32)


class Island(nn.Module):
    """A layer under autocast, and one that is kept in fp32."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return self.second(x.float())


@pytest.mark.slow
def test_a_compiled_backward_pass_does_not_inherit_autocast(monkeypatch):
    """As in PyTorch issues 153044 and 179804: the gradients of the layer in fp32 are to the bit
    those of eager mode.
    """
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    inputs = torch.randn(128, 64, generator=seeded(0))
    square = lambda model, batch, _: (model(batch).square().mean(), None)  # noqa: E731
    gradients, records = [], []
    for execution in ("eager", "compile"):
        torch.manual_seed(0)
        trainer = sgd_trainer(Island(), "amp_bf16", square, execution=execution, lr=0.0)
        trainer.step(inputs)
        gradients.append(trainer.network.second.weight.grad)
        records.append(make_record("amp_bf16"))
        describe_trainer(records[-1], trainer)
    assert torch.equal(*gradients)
    assert [record.compiled_backward_autocast for record in records] == [None, "off"]


GPU = torch.device("cuda")
WRONG = "a convolution in fp16 differs from fp32 by nan of its norm"


@pytest.mark.parametrize(
    "precision, execution, capability, says",
    [
        *(
            (name, "eager", None, f"{name} needs an NVIDIA GPU")
            for name in ("tf32", "amp_fp16", "o2_fp16", "o3_fp16")
        ),
        ("fp32", "cuda_graph", None, '"cuda_graph" needs'),
        ("amp_bf16", "compile_cuda_graph", None, '"compile_cuda_graph" needs'),
        ("tf32", "eager", (7, 5), r"8\.0 \(Ampere\).*7\.5"),
        ("amp_bf16", "eager", (7, 5), "emulate bfloat16"),
        ("fp8", "eager", None, "fp8 needs an NVIDIA GPU"),
        ("fp8", "eager", (8, 6), r"8\.9"),
        *(("fp8", "eager", newer, None) for newer in ((8, 9), (9, 0))),
        *((name, way, None, None) for name, way in (("fp32", "eager"), ("amp_bf16", "compile"))),
        *(("amp_fp16", way, (7, 5), None) for way in ("eager", "cuda_graph")),
        *((name, "eager", (8, 0), None) for name in MODES),
    ],
)
def test_what_a_device_cannot_run_is_unsupported(
    monkeypatch, precision, execution, capability, says
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = GPU if capability else CPU
    for checked in (None, "passed"):
        with pytest.raises(Unsupported, match=says) if says else contextlib.nullcontext():
            check_supported(precision, execution, device, checked)
    if says is None and "fp16" in precision:
        with pytest.raises(Unsupported, match=WRONG):
            check_supported(precision, execution, device, WRONG)
    elif says is None:
        check_supported(precision, execution, device, WRONG)


class Graph:
    """An object that can move itself, with tensors in it and in a part of it."""

    def __init__(self, part=None):
        self.x, self.edges, self.part = torch.ones(3, 4), torch.arange(3), part

    def to(self, device):
        return self


class OfGraphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, graph, *, more):
        return self.layer(graph.x), graph.part.x.dtype, graph.edges.dtype, more["scale"].dtype


@pytest.mark.parametrize("precision", ["bf16_true", "o3_fp16"])
def test_tensors_in_an_argument_have_the_type_of_the_weights(precision):
    model, graph = OfGraphs(), Graph(Graph())
    cast_model(model, precision)
    weights = PRECISIONS[precision]["weights"]
    output, *types = model(graph, more={"scale": graph.x})
    assert (output.dtype, *types) == (weights, weights, torch.int64, weights)
    assert graph.x.dtype == graph.part.x.dtype == torch.float32  # those of the reader's own
