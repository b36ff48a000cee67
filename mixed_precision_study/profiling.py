"""Where the time of a step goes: kernels by family, and its FLOPs, bytes and sizes."""

import os
import re

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count, flop_registry

from .timing import synchronize

KERNEL_FAMILIES = {  # in this order, by the names that CUDA, cuDNN, cuBLAS and PyTorch give their kernels
    "copy": r"^Mem(cpy|set)|CatArrayBatched|float16_copy|direct_copy",
    "layout change": r"nchwToNhwc|nhwcToNchw|nhwcAddPadding|convertTensor|scalePackedTensor|tensorTransform",
    "optimizer": r"multi_tensor_apply|lpnorm_cleanup|amp_(update_scale|non_finite)",
    "depthwise convolution": r"depthwise|grouped_direct|_c1_k1_|shmem_tiling",
    "normalisation": r"batch_?norm|\bbn_|layer_?norm|group_?norm|GammaBeta|RowwiseMoments",
    "attention": r"fmha|flash|sdpa|attention|compute_dot_do_o|convert_dq",
    "convolution": r"conv(?!ert)|fprop|dgrad|wgrad|winograd|fft\dd|gemm_cf32|precompute_indices|[s\d]cudnn_",
    "matmul": r"gemm|gemv|nvjet|cutlass|splitKreduce|cublasLt|triton_tem",
    "recurrent cell": r"RNN|LSTM|GRU",
    "softmax and loss": r"soft_?max|nll_loss|cross_entropy",
    "pooling": r"pool",
    "indexing": r"embedding|index|gather|scatter|compute_grad_weight|segment",
    "reduction": r"reduce_kernel|triton_(red|per)|scan|(?<!ten)sort",
    "elementwise": r"elementwise|triton_poi|dropout|pointwise|fill|distribution",
}
TENSOR_CORE_KERNELS = (  # instruction shapes and types in the names of cuBLAS, cuDNN, CUTLASS and attention kernels
    r"tensorop|tensor\d+x\d+x\d+|_tf32f32_|gemm_(f16f16|bf16bf16)|s?16816|[hs]1688|[hs]884|hmma|wgmma|warpgroupsize|nvjet"
    r"|flash_[fb]|sdpa_sm\d+|fmha_cutlass\w+_b?f16|triton_tem|MmaTensorOp"
)
FP16_KERNELS = r"__half|c10::Half|(?<!b)f16f16|_h[sh][sh]_|gemm_fp?16_|(?<!b)fp?16_s\d|_h(884|1688|16816)"


def family_of(kernel):
    """Return the family of a kernel by its name, "other" where none fits."""
    for family, pattern in KERNEL_FAMILIES.items():
        if re.search(pattern, kernel, 0 if family in ("copy", "recurrent cell") else re.IGNORECASE):
            return family
    return "other"


def busy_time(intervals):
    """Return how long at least one of [(start, end)] lasted: kernels of several streams overlap."""
    busy, until = 0, float("-inf")
    for start, end in sorted(intervals):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def read_kernels(record, kernels, steps):
    """Fill in the shares from [(name, start ns, duration ns)] of `steps` profiled steps and the timed median step.

    The profiler slows the host but not the kernels, so busy time is set against the step as it was timed without it.
    """
    shares, total = {}, sum(duration for _, _, duration in kernels)
    for name, _, duration in kernels:
        shares[family_of(name)] = shares.get(family_of(name), 0) + duration / total
    named = lambda pattern: sum(time for name, _, time in kernels if re.search(pattern, name)) / total  # noqa: E731
    busy = busy_time([(start, start + duration) for _, start, duration in kernels])
    record.gpu_busy_ms_per_step, record.kernels_per_step = busy / 1e6 / steps, len(kernels) / steps
    record.gpu_busy_fraction = min(1.0, record.gpu_busy_ms_per_step / record.step_ms_median)
    record.tensor_core_fraction, record.fp16_kernel_fraction = named(TENSOR_CORE_KERNELS), named(FP16_KERNELS)
    record.kernel_family_fractions = sorted(
        ([name, share] for name, share in shares.items()), key=lambda item: -item[1]
    )


def profile_steps(record, trainer, batches, hidden, steps=5):
    """Profile a few steps (torch.profiler, kernels only) and fill in where their time goes."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # or CUPTI slows all later launches: PyTorch's issue 144455
    given = [batch for _, batch in zip(range(steps), batches, strict=False)]
    synchronize(trainer.device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for batch in given:
            _, hidden = trainer.step(batch, hidden)
        synchronize(trainer.device)
    events = [event for event in profiler.profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in events]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel; the driver may forbid it to ordinary users")
    read_kernels(record, kernels, len(given))


aten = torch.ops.aten
MATMULS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)


def conv_backward_flops(grad, image, weight, bias, stride, padding, dilation, transposed, *rest, **_):
    """Return the FLOPs of a convolution's backward pass: those of the forward pass for each gradient that is asked for.

    PyTorch's own formula (2.9 to 2.15) counts the weight's gradient of a grouped convolution many times over.
    """
    wanted = sum(rest[-1][:2])
    return wanted * conv_flop_count(list(image.shape), list(weight.shape), list(grad.shape), transposed=transposed)


def rnn_flops(words, weights, *_, **__):
    """Return the FLOPs of a cuDNN RNN's forward pass: two per element of each weight matrix, time step and column."""
    return 2 * words.shape[0] * words.shape[1] * sum(weight.numel() for weight in weights if weight.dim() == 2)


FORMULAS = {
    aten.convolution_backward: conv_backward_flops,
    aten._cudnn_rnn: rnn_flops,
    aten._cudnn_rnn_backward: lambda *args, **named: 2 * rnn_flops(*args, **named),
}


def misaligned(operation, tensors):
    """Say whether a matmul, convolution or RNN has sizes that are not multiples of 8, which slow Tensor Cores down.

    Of a matrix the length of its rows in memory counts, of a convolution the channels, of an RNN its weights' sizes.
    """
    if operation in MATMULS:
        matrices = [tensor for tensor in tensors if tensor.dim() in (2, 3)]
        return any(max(matrix.stride()[-2:]) % 8 for matrix in matrices)
    weights = [tensor for tensor in tensors if tensor.dim() == 4][-1:] if "convolution" in str(operation) else []
    weights = weights or [tensor for tensor in tensors if tensor.dim() == 2]
    return any(size % 8 for weight in weights for size in weight.shape[:2] if size > 1)


class WorkCounter(TorchDispatchMode):
    """Counts FLOPs and bytes of every operation that runs inside it, by their shapes."""

    flops = bytes = misaligned_flops = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        packet = operation._overloadpacket
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = result if result is not None else args[:1]  # None: written in place, as by the optimizer
        made = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        formula = FORMULAS.get(packet) or flop_registry.get(packet)
        flops = formula(*args, **(kwargs or {}), out_val=result) if formula else 0
        self.flops += flops
        self.misaligned_flops += flops if flops and misaligned(packet, given) else 0
        is_view = any(one.alias_info and not one.alias_info.is_write for one in operation._schema.returns)
        if not is_view and "empty" not in str(packet):
            self.bytes += sum(tensor.nbytes for tensor in given + made)
        return result


def count_work(record, trainer, batches, hidden):
    """Fill in FLOPs and bytes of a step, optimizer and all; counted on the model as it is before torch.compile."""
    compiled, trainer.loss_of = trainer.loss_of, trainer.compute_loss
    try:
        with WorkCounter() as counter:
            trainer.eager_step(next(batches), hidden)
    finally:
        trainer.loss_of = compiled
    record.flops_per_step = float(counter.flops)
    record.misaligned_flops_fraction = counter.misaligned_flops / counter.flops if counter.flops else None
    record.achieved_tflop_per_second = counter.flops / record.step_ms_median / 1e9
    if trainer.model is trainer.network:
        record.bytes_per_step = float(counter.bytes)
    else:
        record.limit_reason = "bytes are not counted under torch.compile, which fuses operations"
