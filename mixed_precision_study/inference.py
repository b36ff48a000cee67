"""The trained model in use: latency, throughput, memory and error of inference, measured after everything else."""

import statistics
import time

import torch

from .errors import error_line
from .gpu.nvml import MIB
from .memory import release_memory, reset_peaks
from .precision import autocast, in_fp32, set_fp32_precision
from .timing import synchronize

INFERENCE_SEARCH = 3  # algorithms that cuDNN may time for each convolution: fewer than for a training, which is longer
COMPARED = 128  # samples at most whose outputs are set against fp32's: three sets of them are held at once


def seconds_of(call, device, at_least=10, seconds=0.5):
    """Return (median, p10, p90) of the times of `call()`, each waited for, after three to warm up."""
    times, until = [], float("inf")
    while len(times) < 3 + at_least or time.perf_counter() < until:
        began = time.perf_counter()
        until = began + seconds if len(times) == 3 else until
        call()
        synchronize(device)
        times.append(time.perf_counter() - began)
    times = sorted(times[3:])
    return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def largest_difference(trainer, infer, batch, count):
    """Return how far the outputs are from those of an IEEE fp32 copy of the model, as a share of its largest output."""
    with autocast(trainer.precision, trainer.device):
        output = infer(trainer.model, batch, count).float()  # compiled where the training was
    set_fp32_precision("fp32")
    cudnn = torch.backends.cudnn  # nothing is timed here, and what a search tries may need more memory than a training;
    before, cudnn.benchmark, cudnn.deterministic = (cudnn.benchmark, cudnn.deterministic), False, True  # as in `fits`
    try:
        exact = infer(*in_fp32(trainer.network, batch), count).float()
    finally:  # what is measured after this must be in the run's own arithmetic
        cudnn.benchmark, cudnn.deterministic = before
        set_fp32_precision(trainer.precision)
    return ((output - exact).abs().max() / exact.abs().max()).item()


def read_inference(record, trainer, batch, infer, before=0):
    """Fill in what a forward pass of the trained model costs: of one sample, and of a batch as large as in training.

    `before` is how many bytes were allocated before the batch was made.
    """
    device, count = trainer.device, record.batch_size_used
    limit, torch.backends.cudnn.benchmark_limit = torch.backends.cudnn.benchmark_limit, INFERENCE_SEARCH
    trainer.network.eval()
    try:
        with torch.inference_mode():
            with autocast(trainer.precision, device):
                for size in (1, count):  # cuDNN searches and torch.compile compiles here, outside of memory and time
                    infer(trainer.model, batch, size)
                release_memory(device)
                reset_peaks(device)
                latency = [1000 * part for part in seconds_of(lambda: infer(trainer.model, batch, 1), device)]
                seconds, *_ = seconds_of(lambda: infer(trainer.model, batch, count), device, at_least=3)
            record.inference_latency_ms, record.inference_latency_ms_p10, record.inference_latency_ms_p90 = latency
            record.inference_samples_per_second = count / seconds
            if device.type == "cuda":
                weights = [*trainer.network.parameters(), *trainer.network.buffers()]
                training = before - sum(weight.nbytes for weight in weights)  # data, gradients, optimizer, graph
                record.inference_memory_mib = (torch.cuda.max_memory_allocated(device) - training) / MIB
            record.inference_difference_fraction = largest_difference(trainer, infer, batch, min(count, COMPARED))
    finally:
        torch.backends.cudnn.benchmark_limit = limit
        trainer.network.train()


def measure_inference(record, trainer, batches, infer):
    """Measure inference on the first of `batches`; on the CPU, and where it fails, a reason takes the figures' place.

    `infer(network, batch, count)` returns the outputs of the first `count` samples of a batch.
    """
    if trainer.device.type != "cuda":
        record.inference_reason = "no GPU"
        return
    release_memory(trainer.device)
    before = torch.cuda.memory_allocated(trainer.device)
    try:
        read_inference(record, trainer, next(batches), infer, before)
    except Exception as error:  # a run that was measured is not lost for want of this
        record.inference_reason = error_line(error)
