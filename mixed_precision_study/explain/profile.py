"""What a step is made of: the time of its kernels by family, its FLOPs, its bytes, and sizes
that slow it down.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count, flop_registry

from ..measure.timing import synchronize
from ..store.record import RunRecord
from ..store.variables import CUPTI_ENV
from .attention import backends_in

if TYPE_CHECKING:
    from ..train.step import Trainer

# by the names that CUDA, cuDNN, cuBLAS and PyTorch give their kernels; the first match counts
KERNEL_FAMILIES = {
    "copy": r"^Mem(cpy|set)|CatArrayBatched|float(16|8)_copy|direct_copy",
    "layout change": r"nchwToNhwc|nhwc(ToNchw|AddPadding)|convertTensor"
    r"|scalePackedTensor|tensorTransform",
    "optimizer": r"multi_tensor_apply|lpnorm_cleanup|amp_(update_scale|non_finite)",
    "depthwise convolution": r"depthwise|grouped_direct|_c1_k1_|shmem_tiling",
    "normalisation": r"batch_?norm|\bbn_|layer_?norm|group_?norm|GammaBeta|RowwiseMoments",
    "attention": r"fmha|flash|sdpa|attention|compute_dot_do_o|convert_dq",
    "fp8 matmul": r"float_e[45]m[23]|gemm_e[45]m[23]|nvjet_(sm\d+_)?[qr]{2}|triton_tem\w*scaled_mm",
    "convolution": r"conv(?!ert)|fprop|[dw]grad|winograd|fft\dd|gemm_cf32"
    r"|precompute_indices|[s\d]cudnn_",
    "matmul": r"gemm|gemv|nvjet|cutlass|splitKreduce|cublasLt|triton_tem",
    "recurrent cell": r"RNN|LSTM|GRU",
    "softmax and loss": r"soft_?max|nll_loss|cross_entropy",
    "pooling": r"pool",
    "indexing": r"embedding|index|gather|scatter|compute_grad_weight|segment",
    "reduction": r"reduce_kernel|triton_(red|per)|scan|(?<!ten)sort",
    "elementwise": r"elementwise|triton_poi|dropout|pointwise|fill|distribution",
}
# instruction shapes and types in the names of cuBLAS, cuDNN, CUTLASS and attention kernels
TENSOR_CORE_KERNELS = (
    r"tensorop|tensor\d+x\d+x\d+|_tf32f32_|gemm_(f16f16|bf16bf16)|s?16816|[hs]1688|[hs]884"
    r"|hmma|wgmma|warpgroupsize|nvjet|float_e[45]m[23]_t|gemm_e[45]m[23]"
    r"|flash_[fb]|sdpa_sm\d+|fmha_cutlass\w+_b?f16|triton_tem|MmaTensorOp"
)
FP16_KERNELS = (
    r"__half|c10::Half|(?<!b)f16f16|_h[sh][sh]_|gemm_fp?16_|(?<!b)fp?16_s\d|_h(884|1688|16816)"
)


PROFILED = 5  # steps


def family_of(kernel: str) -> str:
    for family, pattern in KERNEL_FAMILIES.items():
        flags = 0 if family in ("copy", "recurrent cell") else re.IGNORECASE
        if re.search(pattern, kernel, flags):
            return family
    return "other"


def busy_time(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the intervals (start, end) lasted; kernels of several
    streams overlap.
    """
    busy = 0.0
    until = float("-inf")
    for start, end in sorted(intervals):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def kernels_of(kernels: list[tuple[str, int, int]], steps: int, step_ms: float) -> dict:
    """Return the fields of a record on kernels, such as the shares of their time, from the (name,
    start ns, duration ns) of `steps` profiled steps.

    The profiler slows the host but not the kernels. So the busy time is compared with `step_ms`,
    the median of the timed steps.
    """
    total = sum(duration for _, _, duration in kernels)

    def share_of(pattern):
        return sum(duration for name, _, duration in kernels if re.search(pattern, name)) / total

    shares: dict = {}
    for name, _, duration in kernels:
        family = family_of(name)
        shares[family] = shares.get(family, 0) + duration / total
    busy_ms = busy_time((start, start + duration) for _, start, duration in kernels) / 1e6 / steps
    names = {name for name, _, _ in kernels}
    by_share = sorted(shares.items(), key=lambda item: -item[1])
    return {
        "gpu_busy_ms_per_step": busy_ms,
        "gpu_busy_fraction": min(1.0, busy_ms / step_ms),
        "kernels_per_step": len(kernels) / steps,
        "tensor_core_fraction": share_of(TENSOR_CORE_KERNELS),
        "fp16_kernel_fraction": share_of(FP16_KERNELS),
        "fp8_kernel_fraction": shares.get("fp8 matmul", 0.0),
        "attention_forward": backends_in(names, backward=False),
        "attention_backward": backends_in(names, backward=True),
        "kernel_family_fractions": [*map(list, by_share)],
    }


def profile_steps(record: RunRecord, trainer: "Trainer", batches: Iterable) -> None:
    """Profile the kernels of a few steps with torch.profiler and fill in where their time goes.

    Raises RuntimeError if the profiler saw no kernel.
    """
    from torch.profiler import ProfilerActivity, profile

    # or CUPTI slows all later launches: pytorch/pytorch issue 144455
    os.environ.setdefault(CUPTI_ENV, "1")
    given = list(itertools.islice(batches, PROFILED))
    hidden = None
    synchronize(trainer.device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for batch in given:
            _, hidden = trainer.step(batch, hidden)
        synchronize(trainer.device)
    events = [
        event
        for event in profiler.profiler.kineto_results.events()
        if "CUDA" in str(event.device_type())
    ]
    if not events:
        raise RuntimeError(
            "the profiler saw no kernel; the driver may forbid profiling to ordinary users"
        )
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in events]
    record.fill(**kernels_of(kernels, len(given), record.step_ms_median))


aten = torch.ops.aten
MATMULS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)


def conv_backward_flops(*args: Any, **_: Any) -> int:
    """Return the FLOPs of a convolution's backward pass: those of the forward pass for each
    gradient asked for.

    PyTorch's own formula (2.9 to 2.15) counts the weight's gradient of a grouped convolution many
    times over.
    """
    grad, image, weight, _, _, _, _, transposed = args[:8]
    wanted = sum(args[-1][:2])
    return wanted * conv_flop_count(
        list(image.shape), list(weight.shape), list(grad.shape), transposed=transposed
    )


def rnn_flops(words: Tensor, weights: list[Tensor], *_: Any, **__: Any) -> int:
    """Return the FLOPs of a cuDNN RNN's forward pass: 2 per weight of a matrix, time step and
    column of the batch.
    """
    return (
        2
        * words.shape[0]
        * words.shape[1]
        * sum(weight.numel() for weight in weights if weight.dim() == 2)
    )


FORMULAS = {
    aten.convolution_backward: conv_backward_flops,
    aten._cudnn_rnn: rnn_flops,
    aten._cudnn_rnn_backward: lambda *args, **_: 2 * rnn_flops(*args),
}


def misaligned(operation: Any, tensors: list[Tensor]) -> bool:
    """Return whether a matmul, convolution or RNN has sizes that are not multiples of 8, which slow
    Tensor Cores down.

    Checked are the row lengths of matrices, the channels of convolutions and the weight shapes of
    RNNs.
    """
    if operation in MATMULS:
        matrices = [tensor for tensor in tensors if tensor.dim() in (2, 3)]
        return any(max(matrix.stride()[-2:]) % 8 for matrix in matrices)
    weights = weights_of(operation, tensors)
    return any(size % 8 for weight in weights for size in weight.shape[:2] if size > 1)


def weights_of(operation: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Return the kernel of a convolution, or else the matrices."""
    if "convolution" in str(operation):
        kernels = [tensor for tensor in tensors if tensor.dim() == 4]
        if kernels:
            return kernels[-1:]
    return [tensor for tensor in tensors if tensor.dim() == 2]


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def returns_view(operation: Any) -> bool:
    aliases = (value.alias_info for value in operation._schema.returns)
    return any(alias and not alias.is_write for alias in aliases)


class WorkCounter(TorchDispatchMode):
    """Counts the FLOPs and bytes of every operation inside its block, by the operation's shapes."""

    flops = 0
    bytes = 0
    misaligned_flops = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        packet = operation._overloadpacket
        inputs = tensors_in((args, kwargs))
        # None: written in place, as by the optimizer
        outputs = tensors_in(args[:1] if result is None else result)
        formula = FORMULAS.get(packet) or flop_registry.get(packet)
        if formula:
            flops = formula(*args, **kwargs, out_val=result)
            self.flops += flops
            if flops and misaligned(packet, inputs):
                self.misaligned_flops += flops
        if not returns_view(operation) and "empty" not in str(packet):
            self.bytes += sum(tensor.nbytes for tensor in inputs + outputs)
        return result


def count_work(record: Any, trainer: "Trainer", batches: Iterator) -> None:
    """Fill in the FLOPs and bytes of a whole step.

    They are counted on the model without torch.compile.
    """
    with patch.object(trainer, "loss_of", trainer.compute_loss), WorkCounter() as counter:
        trainer.eager_step(next(batches))
    record.flops_per_step = float(counter.flops)
    record.misaligned_flops_fraction = (
        counter.misaligned_flops / counter.flops if counter.flops else None
    )
    record.achieved_tflop_per_second = counter.flops / record.step_ms_median / 1e9
    if trainer.is_compiled:
        record.limit_reason = "bytes are not counted under torch.compile, which fuses operations"
    else:
        record.bytes_per_step = float(counter.bytes)
