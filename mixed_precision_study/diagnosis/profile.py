"""What PyTorch's profiler and clock saw of a few steps: waits for the GPU, types, copies, kernels, and times."""

import itertools
import math
import os
import statistics
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..profiling import read_kernels
from .mistakes import Observations

TEARDOWN = "TEARDOWN_CUPTI"  # without it CUPTI slows all later launches (pytorch issue 144455)
END_OF_STEP = "## end of a step ##"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TORCH, OWN = str(Path(torch.__file__).parent), str(Path(__file__).parent)
PARTS = ("optim", "amp", "nn", "utils", "autograd", "_dynamo", "_inductor", "distributed")  # they wait on their own
INNER = tuple(str(Path(TORCH, part)) for part in PARTS)
TYPES = {"float": "float32", "double": "float64", "half": "float16"}  # as the profiler names them
MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}  # first factor


def read_times(seen: Observations, marks: list, waits: list[float]) -> None:
    """Note the times between the marks. waits: seconds for the DataLoader before each mark.

    A step that has twice as much work as the median counts apart, because it evaluates or saves something.
    """
    if len(marks) < 2:
        return
    if seen.device == "cuda":
        torch.cuda.synchronize()
    gpu = seen.device == "cuda"
    times = [a.elapsed_time(b) if gpu else 1000 * (b - a) for a, b in itertools.pairwise(marks)]  # milliseconds
    works = [time - 1000 * wait for time, wait in zip(times, waits[1:], strict=True)]
    usual = statistics.median(works)
    longer = [time for time, work in zip(times, works, strict=True) if work > max(2 * usual, usual + 1)]
    seen.timed, seen.step_ms, seen.apart = len(times), statistics.median(times), longer
    if any(waits[1:]):
        seen.data_wait_fraction = min(1.0, 1000 * sum(waits[1:]) / (sum(times) - sum(longer) + len(longer) * usual))


def begin_profile(device: str) -> Any:
    gpu = device == "cuda"
    stacks = gpu and sys.getprofile() is None  # PyTorch would take the place of the user's own profile function
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    profiler: Any = profile(activities=activities, record_shapes=True, with_stack=stacks, acc_events=True)
    profiler.teardown = os.environ.get(TEARDOWN)
    os.environ[TEARDOWN] = profiler.teardown or "1"
    profiler.start()
    return profiler


def end_profile(seen: Observations, profiler: Any) -> None:
    if seen.device == "cuda":
        torch.cuda.synchronize()
    profiler.stop()
    if profiler.teardown is None:
        os.environ.pop(TEARDOWN, None)
    read_profile(seen, profiler)


def read_profile(seen: Observations, profiler: Any) -> None:
    """Fill in what the profiled steps showed."""
    results = profiler.profiler.kineto_results
    events = sorted(results.events(), key=lambda event: event.start_ns())
    on_host = [event for event in events if "CUDA" not in str(event.device_type())]
    names = {event.name() for event in on_host}  # a range that the host names is drawn on the GPU, too
    on_gpu = [event for event in events if "CUDA" in str(event.device_type()) and event.name() not in names]
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in on_gpu]
    ends = [event for event in on_host if event.name() == END_OF_STEP]
    seen.watched = len(ends)
    read_operations(seen, on_host)
    if not kernels or not ends:
        return
    if seen.step_ms:
        found = SimpleNamespace(step_ms_median=seen.step_ms)
        read_kernels(found, kernels, len(ends))
        seen.kernels = vars(found)
    pageable = [duration for name, _, duration in kernels if "HtoD" in name and "Pageable" in name]
    seen.pageable_ms = sum(pageable) / 1e6 / len(ends)
    thread = ends[0].start_thread_id()
    waits = [event.start_ns() for event in on_host if event.name() in WAITS and event.start_thread_id() == thread]
    calls = [event for event in results.experimental_event_tree() if event.start_tid == thread]
    read_waits(seen, waits, calls, [event.start_ns() for event in ends])


def read_waits(seen: Observations, waits: list[int], calls: list, ends: list[int]) -> None:
    """Count the steps in which the CPU waited at a place, by the moments (ns) of the waits and the tree of calls."""
    places = {(sum(end < moment for end in ends), place_of(calls, moment)) for moment in waits}
    counts = Counter(place for _, place in places if place)
    seen.scaler_reads = counts.pop(("GradScaler", False), 0)
    seen.reads = Counter({place: count for (place, foreign), count in counts.items() if not foreign})
    seen.library_reads = Counter({place: count for (place, foreign), count in counts.items() if foreign})


def place_of(calls: list, moment: int) -> tuple[str, bool] | None:
    """Return ("train.py:31", False) for a wait in the user's code, and ("trainer.py:9 of transformers ...", True) else.

    None for an upload, whose wait is that for memory that is not pinned, and where no line of Python is known. A wait
    that no call makes, as in `if loss > 3`, has the line of the last call before it in the same function.
    """
    lines: list[tuple[str, int, str]] = []  # (file, line, "" or "after "), the innermost last
    while True:
        before = [call for call in calls if call.start_time_ns <= moment and "Py" in str(call.tag)]
        inside = [call for call in calls if call.start_time_ns <= moment <= call.end_time_ns]
        if before and before[-1] not in inside[-1:] and lines:
            lines.append(
                (before[-1].extra_fields.caller.file_name, before[-1].extra_fields.caller.line_number, "after ")
            )
        if not inside:
            break
        fields = inside[-1].extra_fields
        if inside[-1].name == "aten::copy_" and goes_to_gpu(fields.inputs):
            return None
        if "Py" in str(inside[-1].tag):
            lines.append((fields.caller.file_name, fields.caller.line_number, ""))
        calls = inside[-1].children
    library = ""
    for file, line, word in reversed(lines):
        if file.endswith("grad_scaler.py") and not library:
            return "GradScaler", False
        if file.startswith((OWN, "<")) or (file.startswith(TORCH) and (library or not file.startswith(INNER))):
            continue
        path = Path(file)
        name = f"line {line} of a cell" if path.stem.isdigit() else f"{word}{path.name}:{line}"
        package = path.parts[path.parts.index("site-packages") + 1] if "site-packages" in path.parts[:-1] else ""
        if not package:
            return (f"{library}, called at {name}", True) if library else (name, False)
        library = library or f"{name} of the package {package}"
    return (library, True) if library else None


def goes_to_gpu(inputs: list) -> bool:
    return bool(inputs) and "cuda" in str(getattr(inputs[0], "device", ""))


def read_operations(seen: Observations, events: list) -> None:
    """Add up the FLOPs of products by kind and type. The events are in order of time.

    Autocast calls an operation again, with other types. Only the inner call computes, so the outer one is left out.
    """
    outer: dict[tuple[int, str], tuple[int, tuple[str, str], float]] = {}
    backward_until: dict[int, int] = {}  # of each thread
    for event in events:
        name, thread, began = event.name(), event.start_thread_id(), event.start_ns()
        if name.startswith("autograd::engine::evaluate_function"):
            backward_until[thread] = max(event.end_ns(), backward_until.get(thread, 0))
        found = product(name, event.shapes(), event.dtypes())
        if found is None:
            continue
        kind, dtype, flops = found
        if began < backward_until.get(thread, 0):
            seen.backward_types.add(dtype)
        ends, key, counted = outer.get((thread, name), (0, ("", ""), 0.0))
        if began < ends:
            seen.flops[key] -= counted
        outer[thread, name] = event.end_ns(), (kind, dtype), flops
        seen.flops[kind, dtype] = seen.flops.get((kind, dtype), 0.0) + flops
    seen.flops = {key: flops for key, flops in seen.flops.items() if flops > 0}


def product(name: str, shapes: list, dtypes: list[str]) -> tuple[str, str, float] | None:
    """Return (kind, type, FLOPs) of an operation. Where its sizes do not say how much it computes, 1 counts its type."""
    first = MATMULS.get(name, 0)
    dtype = dtypes[first].removeprefix("c10::").lower() if len(shapes) > first else ""
    dtype = TYPES.get(dtype, dtype)
    if "float" not in dtype:
        return None
    if name in MATMULS:
        return "matmul", dtype, 2.0 * math.prod(shapes[first]) * shapes[first + 1][-1]
    if name == "aten::convolution_backward":  # it alone knows the size of the output; forward takes half as much
        return "convolution", dtype, 6.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    if name == "aten::convolution":
        return "convolution", dtype, 1.0
    if name.startswith("aten::_scaled_dot_product") and not name.endswith(("backward", "math")):
        return "attention", dtype, 14.0 * math.prod(shapes[0]) * shapes[1][-2]
    if name in ("aten::_cudnn_rnn", "aten::mkldnn_rnn_layer", "aten::_thnn_fused_lstm_cell"):
        return "recurrent network", dtype, 1.0
    return None
