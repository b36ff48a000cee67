"""Where in the reader's code the CPU waits for the GPU, and what a profile says of types, copies and kernels."""

import math
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from ..profiling import read_kernels
from .observations import Observations

END_OF_STEP = "## end of a step ##"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
SAMPLED_MS = 0.2  # how often the sampler looks, and the shortest wait that it can place
TORCH = str(Path(torch.__file__).parent)
OWN = (str(Path(__file__).parent), threading.__file__)
PARTS = ("optim", "amp", "nn", "cuda", "utils", "autograd", "_dynamo", "_inductor")  # their waits are PyTorch's own
INNER = tuple(str(Path(TORCH, part)) for part in PARTS)
TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}
FLOATS = set(TYPES) | {"c10::complex<float>", "c10::complex<double>"}
MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}  # first factor


class Sampler:
    """Notes, from a thread of its own, which line of Python the loop's thread is at, while that waits or works."""

    def __init__(self, thread: int):
        self.of = thread
        self.seen: list[tuple[int, str]] = []  # (nanoseconds, place)
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look, name="diagnose", daemon=True)
        self.thread.start()

    def look(self) -> None:
        while not self.done.wait(SAMPLED_MS / 1000):
            frame = sys._current_frames().get(self.of)
            if frame is not None:
                self.seen.append((time.time_ns(), place_of(frame)))

    def stop(self) -> None:
        self.done.set()
        self.thread.join()


def place_of(frame: FrameType | None) -> str:
    """Return the line that a thread is at as "train.py:31", "GradScaler", or "" inside other parts of PyTorch."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith("grad_scaler.py"):
            return "GradScaler"
        if name.startswith(INNER) or name.startswith(OWN):
            return ""
        if not name.startswith((TORCH, "<")):
            break
        frame = frame.f_back
    if frame is None:
        return ""
    path = Path(name)
    if path.stem.isdigit():
        return f"line {frame.f_lineno} of a cell"
    package = path.parts[path.parts.index("site-packages") + 1] if "site-packages" in path.parts[:-1] else ""
    return f"{path.name}:{frame.f_lineno}" + (f" of the package {package}" if package else "")


def read_profile(seen: Observations, profiler: Any, samples: list[tuple[int, str]], in_use: int) -> int:
    """Fill in what the profiled steps showed and return the bytes of their peak. in_use: the bytes as they began."""
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    on_host = [event for event in events if "CUDA" not in str(event.device_type())]
    names = {event.name() for event in on_host}  # a range that the host names is drawn on the GPU, too
    kernels = [
        (event.name(), event.start_ns(), event.duration_ns())
        for event in events
        if "CUDA" in str(event.device_type()) and event.name() not in names and event.name() != "[memory]"
    ]
    ends = [event.start_ns() for event in on_host if event.name() == END_OF_STEP]
    seen.watched = len(ends)
    read_operations(seen, on_host)
    if not kernels or not ends:
        return in_use
    if seen.step_ms:
        found = SimpleNamespace(step_ms_median=seen.step_ms)
        read_kernels(found, kernels, len(ends))
        seen.kernels = vars(found)
    pageable = [duration for name, _, duration in kernels if "HtoD" in name and "Pageable" in name]
    seen.pageable_ms = sum(pageable) / 1e6 / len(ends)
    waits = [(event.start_ns(), event.end_ns()) for event in on_host if event.name() in WAITS]
    read_waits(seen, waits, samples, ends)
    sizes = [event.nbytes() for event in events if event.name() == "[memory]" and "CUDA" in str(event.device_type())]
    running = peak = in_use
    for size in sizes:
        running += size
        peak = max(peak, running)
    return peak


def read_waits(
    seen: Observations, waits: list[tuple[int, int]], samples: list[tuple[int, str]], ends: list[int]
) -> None:
    """Count the steps in which the CPU waited at a place. A wait that no sample fell into is left out."""
    times = [moment for moment, _ in samples]
    found: set[tuple[int, str]] = set()
    for begin, end in waits:
        places = Counter(place for _, place in samples[bisect_left(times, begin) : bisect_right(times, end)])
        places.pop("", None)
        if places:
            found.add((bisect_left(ends, begin), places.most_common(1)[0][0]))
    counts = Counter(place for _, place in found)
    seen.scaler_reads = counts.pop("GradScaler", 0)
    seen.reads = counts


def read_operations(seen: Observations, events: list) -> None:
    """Add up the FLOPs of products by kind and type, and note sizes that matter. The events are in order of time.

    Autocast calls an operation again, with other types. Only the inner call computes, so the outer one is left out.
    """
    outer: dict[tuple[int, str], tuple[int, tuple[str, str], float, float]] = {}
    for event in events:
        name, shapes, dtypes = event.name(), event.shapes(), event.dtypes()
        if name == "aten::convolution":
            seen.shapes.add((tuple(shapes[0]), tuple(shapes[1])))
        found = product(name, shapes, dtypes)
        if found is None:
            continue
        kind, dtype, flops, misaligned = found
        if name == "aten::_scaled_mm":
            seen.fp8_sizes.add((*shapes[0], shapes[1][-1]))
        place = event.start_thread_id(), name
        ends, key, counted, counted_misaligned = outer.get(place, (0, ("", ""), 0.0, 0.0))
        if event.start_ns() < ends:
            seen.flops[key] -= counted
            seen.misaligned_flops -= counted_misaligned
        outer[place] = event.end_ns(), (kind, dtype), flops, misaligned
        seen.flops[kind, dtype] = seen.flops.get((kind, dtype), 0.0) + flops
        seen.misaligned_flops += misaligned
    seen.flops = {key: flops for key, flops in seen.flops.items() if flops > 0}


def product(name: str, shapes: list, dtypes: list[str]) -> tuple[str, str, float, float] | None:
    """Return (kind, type, FLOPs, those of them in 16 bits with sizes that are not multiples of 8) of an operation."""
    first = MATMULS.get(name, 0)
    if len(shapes) <= first or dtypes[first] not in FLOATS:
        return None
    dtype = TYPES.get(dtypes[first], dtypes[first])
    sizes: list[int] = []
    if name in MATMULS:
        one, other = shapes[first : first + 2]
        kind, flops, sizes = "matmul", 2.0 * math.prod(one) * other[-1], [one[-1], other[-1]]
    elif name == "aten::convolution_backward":  # it alone knows the size of the output; forward takes half as much
        kind, flops = "convolution", 6.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
        sizes = [size for size in shapes[2][:2] if size > 1]
    elif name.startswith("aten::_scaled_dot_product") and not name.endswith(("backward", "math")):
        kind, flops = "attention", 14.0 * math.prod(shapes[0]) * shapes[1][-2]
    elif name in ("aten::_cudnn_rnn", "aten::mkldnn_rnn_layer", "aten::_thnn_fused_lstm_cell"):
        kind, flops = "recurrent network", 1.0  # the profiler does not say how large its weights are
    else:
        return None
    odd = dtype in ("float16", "bfloat16") and any(size % 8 for size in sizes)
    return kind, dtype, flops, flops if odd else 0.0
