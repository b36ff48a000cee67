"""Inference with the trained model: latency, throughput, memory and error, measured after
everything else.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from ..measure.memory import release_memory, reset_peaks
from ..measure.nvml import MIB
from ..measure.timing import synchronize
from ..store.record import RunRecord
from ..train.precision import Precision, backends_as_found, cudnn_flags, in_fp32, set_fp32_precision
from ..train.step import Trainer, evaluation_mode

# algorithms that cuDNN may time for each convolution; fewer than for training, which is longer
INFERENCE_SEARCH = 3
# for one sample: PyTorch's default, as a search takes long
UNSEARCHED = {"benchmark": False, "deterministic": False}
# samples at most whose outputs are compared with fp32's; memory holds three sets of them
COMPARED = 128


def seconds_of(
    call: Callable, device: torch.device, at_least: int = 10, seconds: float = 0.5
) -> tuple[float, float, float]:
    """Return (median, p10, p90) of the seconds of `call()` and waiting for it, after three calls to
    warm up.

    It is called `at_least` times, and until `seconds` have passed.
    """
    times: list = []
    until = float("inf")
    while len(times) < 3 + at_least or time.perf_counter() < until:
        began = time.perf_counter()
        if len(times) == 3:
            until = began + seconds
        call()
        synchronize(device)
        times.append(time.perf_counter() - began)
    times = sorted(times[3:])
    return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def largest_difference(trainer: Trainer, infer: Callable, batch: tuple, count: int) -> float:
    """Return the largest difference from the outputs of an IEEE fp32 copy, as a fraction of its
    largest output.
    """
    with Precision(trainer.precision, trainer.device).autocast():
        output = infer(trainer.model, batch, count).float()  # compiled if the training was
    # Nothing is timed here, and a search may need more memory than training. See probe() for
    # `deterministic`.
    with backends_as_found(), cudnn_flags(benchmark=False, deterministic=True):
        set_fp32_precision("fp32")
        exact = infer(*in_fp32(trainer.network, batch), count).float()
    return ((output - exact).abs().max() / exact.abs().max()).item()


def measure_inference(
    record: RunRecord, trainer: Trainer, batches: Iterator[tuple], infer: Callable
) -> None:
    """Fill in what a forward pass of the trained model costs, for one sample and for a batch as in
    training.

    The first of `batches` is used. infer(network, batch, count) returns the outputs of its first
    `count` samples.
    """
    device = trainer.device
    before = torch.cuda.memory_allocated()
    batch = next(batches)
    count = record.batch_size_used
    with backends_as_found():
        torch.backends.cudnn.benchmark_limit = INFERENCE_SEARCH
        with evaluation_mode(trainer), torch.inference_mode():
            with Precision(trainer.precision, device).autocast():
                with cudnn_flags(**UNSEARCHED):
                    infer(trainer.model, batch, 1)
                # cuDNN searches; both are compiled before anything is measured
                infer(trainer.model, batch, count)
                release_memory()
                reset_peaks(device)
                with cudnn_flags(**UNSEARCHED):
                    alone = seconds_of(lambda: infer(trainer.model, batch, 1), device)
                seconds, *_ = seconds_of(
                    lambda: infer(trainer.model, batch, count), device, at_least=3
                )
            record.fill(
                inference_latency_ms=1000 * alone[0],
                inference_latency_ms_p10=1000 * alone[1],
                inference_latency_ms_p90=1000 * alone[2],
                inference_samples_per_second=count / seconds,
            )
            if device.type == "cuda":
                weights = [*trainer.network.parameters(), *trainer.network.buffers()]
                # data, gradients, optimizer, graph
                training = before - sum(weight.nbytes for weight in weights)
                record.inference_memory_mib = (
                    torch.cuda.max_memory_allocated(device) - training
                ) / MIB
            record.inference_difference_fraction = largest_difference(
                trainer, infer, batch, min(count, COMPARED)
            )
