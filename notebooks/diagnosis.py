"""The explanation, shared by every experiment notebook: where the time goes, how far the limits are, what fills memory.

All of it is measured after the timed epochs, on steps of its own, so that it costs them nothing. What cannot be
measured stays None with a reason. sync.py copies the sections, each from its '# %%' line to the next.
"""

import time
from contextlib import contextmanager
from pathlib import Path

import torch
from card import MIB
from harness import PRECISIONS, endless
from instruments import error_line, release_memory, reset_peaks, synchronize
from record import utc_now, write_flat, write_record

# isort: split

# %% Profile -- the same in every notebook; edit notebooks/diagnosis.py, then run sync.py
# @title Where the time of a step goes
import os
import re

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


def profile_steps(record, trainer, batches, carry, steps=5):
    """Profile a few steps (torch.profiler, kernels only) and fill in where their time goes."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # or CUPTI slows all later launches: PyTorch's issue 144455
    given = [batch for _, batch in zip(range(steps), batches, strict=False)]
    synchronize(trainer.device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for batch in given:
            _, carry = trainer.step(batch, carry)
        synchronize(trainer.device)
    events = [event for event in profiler.profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in events]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel; the driver may forbid it to ordinary users")
    read_kernels(record, kernels, len(given))


# %% Work of a step -- the same in every notebook; edit notebooks/diagnosis.py, then run sync.py
# @title FLOPs, bytes and sizes of one step
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import conv_flop_count, flop_registry

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


def count_work(record, trainer, batches, carry):
    """Fill in FLOPs and bytes of a step, optimizer and all; counted on the model as it is before torch.compile."""
    compiled, trainer.loss_of = trainer.loss_of, trainer.compute_loss
    try:
        with WorkCounter() as counter:
            trainer.eager_step(next(batches), carry)
    finally:
        trainer.loss_of = compiled
    record.flops_per_step = float(counter.flops)
    record.misaligned_flops_fraction = counter.misaligned_flops / counter.flops if counter.flops else None
    record.achieved_tflop_per_second = counter.flops / record.step_ms_median / 1e9
    if trainer.model is trainer.network:
        record.bytes_per_step = float(counter.bytes)
    else:
        record.limit_reason = "bytes are not counted under torch.compile, which fuses operations"


# %% Limits of the card -- the same in every notebook; edit notebooks/diagnosis.py, then run sync.py
# @title What this card was measured to do at most
import json
from contextlib import suppress

SESSION_SECONDS = 12 * 3600  # for which what was measured on a card is believed


def rate_of(work, device, seconds=0.2):
    """Return how often a second `work()` runs on the device, after three runs to warm up."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates, until = [], time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < until:
        start.record()
        work()
        end.record()
        synchronize(device)
        rates.append(1000 / start.elapsed_time(end))
    return max(rates)


def measure_ceiling(dtype, device):
    """Return {"matmul", "conv"}: TFLOP/s of a large matmul and convolution in the arithmetic that is set."""
    search, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    size = 8192 if torch.cuda.mem_get_info(device)[0] > 4 * 1024 * MIB else 4096
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * size**3 * rate_of(lambda: a @ b, device) / 1e12
    layer = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False, device=device, dtype=dtype)
    layer = layer.to(memory_format=torch.channels_last)
    images = torch.randn(128, 256, 28, 28, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        conv = 2 * 9 * 256 * images.numel() * rate_of(lambda: layer(images), device) / 1e12
    torch.backends.cudnn.benchmark = search
    return {"matmul": matmul, "conv": conv}


def measure_copy(device):
    """Return the GB/s, read plus written, of copying 1 GiB within the card."""
    size = min(1024 * MIB, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size * rate_of(lambda: target.copy_(source), device) / 1e9


def kept(path, name, measure, shared):
    """Return what `measure()` gives for the card, from `path` where that was written within this session."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict) or not 0 <= time.time() - known.get("time", 0) < SESSION_SECONDS:
        known = {"time": time.time()}
    if name not in known and shared:
        raise RuntimeError("another process uses the GPU, so that its ceilings cannot be measured")
    if name not in known:
        known[name] = measure()
        with suppress(OSError):  # then it is measured anew next time
            write_flat(known, path)
    return known[name]


def measure_limits(record, trainer, folder):
    """Fill in the card's measured ceilings in the run's arithmetic, and the fractions of them that the run reaches."""
    device, mode = trainer.device, PRECISIONS[trainer.precision]
    dtype = mode["autocast"] or mode["weights"]
    arithmetic = "tf32" if mode["tf32"] else str(dtype).removeprefix("torch.")
    path = Path(folder) / f".ceilings-{record.gpu_uuid}-torch{record.torch_version}.json"
    ceiling = kept(path, arithmetic, lambda: measure_ceiling(dtype, device), record.gpu_shared)
    record.ceiling_matmul_tflop_per_second, record.ceiling_conv_tflop_per_second = ceiling["matmul"], ceiling["conv"]
    record.ceiling_copy_gb_per_second = kept(path, "copy", lambda: measure_copy(device), record.gpu_shared)
    if record.achieved_tflop_per_second is not None:
        record.compute_limit_fraction = record.achieved_tflop_per_second / max(ceiling.values())
    if record.bytes_per_step and record.gpu_busy_ms_per_step:
        moved = record.bytes_per_step / record.gpu_busy_ms_per_step / 1e6  # GB/s while the GPU works
        record.bandwidth_limit_fraction = moved / record.ceiling_copy_gb_per_second


# %% Memory ledger -- the same in every notebook; edit notebooks/diagnosis.py, then run sync.py
# @title What fills the memory when it stands highest
def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@contextmanager
def watched_memory(trainer, seen):
    """Note in `seen`, during one step, the gradients alive at the peak and what the forward pass left allocated.

    The allocator's figures are the host's: reading them does not wait for the GPU.
    """
    read, allocated = torch.cuda.max_memory_allocated, torch.cuda.memory_allocated
    loss_of, pairs = trainer.loss_of, zip(trainer.weights, trainer.masters, strict=True)
    of_masters = bytes_of(master.grad for weight, master in pairs if master is not weight)  # these are kept
    seen |= {"peak": 0, "gradients": 0, "at_peak": 0, "saved": 0}

    def after(weight):
        if read() > seen["peak"]:
            seen["peak"], seen["at_peak"] = read(), seen["gradients"]
        seen["gradients"] += weight.grad.nbytes

    def forward(*given):
        before = allocated()
        loss = loss_of(*given)
        seen["saved"] = allocated() - before
        return loss

    hooks = [weight.register_post_accumulate_grad_hook(after) for weight in trainer.weights]
    trainer.loss_of = forward
    try:
        yield
        seen["at_peak"] = seen["gradients"] if read() > seen["peak"] else seen["at_peak"]
        seen["at_peak"] += of_masters
    finally:
        trainer.loss_of = loss_of
        for hook in hooks:
            hook.remove()


def read_ledger(record, trainer, batches, carry):
    """Fill in the ledger: what was allocated at the peak by kind, then the allocator's slack and the context."""
    seen, batch = {}, next(batches)
    trainer.eager_step(batch, carry)  # gradients and state are as in the midst of training
    reset_peaks(trainer.device)
    with watched_memory(trainer, seen):
        trainer.eager_step(batch, carry)
    halves = [master for weight, master in zip(trainer.weights, trainer.masters, strict=True) if master is not weight]
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    record.ledger_parameters_mib = bytes_of([*trainer.network.parameters(), *trainer.network.buffers()]) / MIB
    record.ledger_masters_mib = bytes_of(halves) / MIB
    record.ledger_optimizer_mib = bytes_of(value for value in state if isinstance(value, torch.Tensor)) / MIB
    record.ledger_gradients_mib, record.saved_activations_mib = seen["at_peak"] / MIB, seen["saved"] / MIB
    record.ledger_data_mib = record.data_on_device_mib
    close_ledger(record)


LEDGER_AT_PEAK = ("parameters", "gradients", "optimizer", "masters", "data", "activations")


def close_ledger(record):
    """Fill in what is left of the peak, and how far the whole sum is from what NVML says this run used."""
    known = sum(getattr(record, f"ledger_{part}_mib") or 0 for part in LEDGER_AT_PEAK[:-1])
    record.ledger_activations_mib = record.peak_allocated_mib - known
    if record.ledger_context_mib is None or record.device_used_mib is None:
        record.ledger_reason = record.device_memory_reason or "what others used before the run is not known"
        return
    total = record.peak_allocated_mib + record.ledger_slack_mib + record.ledger_context_mib
    used = record.device_used_mib - record.device_used_before_mib
    record.ledger_error_fraction = total / used - 1


# %% Explanation -- the same in every notebook; edit notebooks/diagnosis.py, then run sync.py
# @title Everything that explains a run, after its timed epochs
import copy
from dataclasses import replace


def flush_fraction(gradients, scale):
    """Return which fraction of the non-zero elements of `gradients` (at scale 1) is 0 in fp16 at a loss scale."""
    lost = sum(((g != 0) & ((g * scale).half() == 0)).sum() for g in gradients)
    return (lost / sum((g != 0).sum() for g in gradients).clamp(min=1)).item()


def in_fp32(network, batch):
    """Return copies of both in fp32; the network's own weights stay as they are."""
    batch = tree_map(lambda part: part.float() if part.is_floating_point() else part, batch)
    return copy.deepcopy(network).float(), batch


def read_gradients(record, trainer, batches, carry):
    """Fill in, for fp16, which fraction of the weights' gradients is too small for fp16 without and with the scale.

    The gradients are those of a copy of the model in fp32: what fp16 has lost could no longer be counted in fp16.
    """
    if "fp16" not in trainer.precision:
        return
    scale, (exact, batch) = trainer.scaler.get_scale(), in_fp32(trainer.network, next(batches))
    exact.zero_grad()
    loss, _ = trainer.compute_loss(exact, batch, None)
    loss.backward()
    gradients = [weight.grad for weight in exact.parameters() if weight.grad is not None]
    if not all(gradient.isfinite().all() for gradient in gradients):
        record.gradient_reason = "the gradients are not finite even in fp32"
        return
    record.gradient_flush_fraction_scale_1 = flush_fraction(gradients, 1.0)
    record.gradient_flush_fraction_scaled = flush_fraction(gradients, scale)


def keep_training(record, folder):
    """Write what the training has measured before it is explained: a run that is ended meanwhile keeps that."""
    names = ("inference", "profile", "limit", "ledger", *["gradient"] * ("fp16" in record.precision))
    ended = {f"{name}_reason": "the run was ended before it was explained" for name in names}
    write_record(replace(record, status="ok", reason=None, finished_at=utc_now(), **ended), folder)


def explain(record, trainer, batches, folder, carry=None):
    """Measure what explains the run, after its last epoch; what fails leaves its reason and takes nothing else down.

    `batches()` gives an epoch's batches. The model takes more steps here and is of no more use for training.
    """
    if trainer.device.type != "cuda":
        record.profile_reason = record.limit_reason = record.ledger_reason = "no GPU"
        return
    given = endless(batches)
    stages = [
        ("ledger_reason", read_ledger),  # first: the others leave workspaces behind
        ("profile_reason", profile_steps),
        ("limit_reason", count_work),
        ("limit_reason", lambda record, trainer, *_: measure_limits(record, trainer, folder)),
        ("gradient_reason", read_gradients),
    ]
    if trainer.captured:  # the profile is of replays, and a step outside the graph drops it
        stages[:2] = stages[1::-1]
    for reason, measure in stages:
        try:
            release_memory(trainer.device)
            measure(record, trainer, given, carry)
        except Exception as error:  # a run that was measured is not lost for want of its explanation
            setattr(record, reason, error_line(error))
