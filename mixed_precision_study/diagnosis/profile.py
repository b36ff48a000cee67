"""What PyTorch's profiler and clock saw of a few steps: waits for the GPU, types, copies, kernels, and times."""

import functools
import itertools
import os
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..explain.profile import read_kernels
from .mistakes import Observations

TEARDOWN = "TEARDOWN_CUPTI"  # without it CUPTI slows all later launches (pytorch issue 144455)
END_OF_STEP = "## end of a step ##"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TORCH, OWN, STANDARD = (str(Path(module).parent) for module in (torch.__file__, __file__, os.__file__))
PACKAGE = r"(?:site|dist)-packages[/\\]([^/\\]+)"
PARTS = ("optim", "amp", "nn", "utils", "autograd", "_dynamo", "_inductor", "distributed")  # they wait on their own
INNER = tuple(str(Path(TORCH, part)) for part in PARTS)
TYPES = {"float": "float32", "double": "float64", "half": "float16"}  # as the profiler names them
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_")
PRODUCTS = (*MATMULS, "aten::conv", "aten::_cudnn_rnn", "aten::mkldnn_rnn", "aten::_thnn_fused_lstm")  # names begin so


def read_times(seen: Observations, marks: list[tuple[Any, float]]) -> None:
    """Note the times between the marks. Each has the seconds before it in which the loop waited for its DataLoader.

    A step with five times as much work as the median does not count, because it evaluates or saves something.
    """
    if len(marks) < 2:
        return
    gpu = seen.device == "cuda"
    if gpu:
        torch.cuda.synchronize()
    waits = [1000 * wait for _, wait in marks[1:]]  # milliseconds
    times = [a.elapsed_time(b) if gpu else 1000 * (b - a) for (a, _), (b, _) in itertools.pairwise(marks)]
    works = [time - wait for time, wait in zip(times, waits, strict=True)]
    usual = [(time, wait) for time, wait, work in zip(times, waits, works, strict=True) if work <= 5 * median(works)]
    seen.timed, seen.step_ms, seen.slowest_ms = len(times), median(times), max(times)
    if any(waits):
        seen.data_wait_fraction = min(1.0, sum(wait for _, wait in usual) / sum(time for time, _ in usual))


def begin_profile(device: str) -> Any:
    gpu = device == "cuda"
    stacks = gpu and sys.getprofile() is None  # PyTorch would take the place of the user's own profile function
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    profiler: Any = profile(
        activities=activities, record_shapes=True, with_stack=stacks, with_flops=True, acc_events=True
    )
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
    if not kernels or not ends or not seen.step_ms:
        return
    found = SimpleNamespace(step_ms_median=seen.step_ms)
    read_kernels(found, kernels, len(ends))
    seen.kernels = vars(found)
    pageable = [duration for name, _, duration in kernels if "HtoD" in name and "Pageable" in name]
    seen.pageable_ms = sum(pageable) / 1e6 / len(ends)
    thread = ends[0].start_thread_id()
    waits = [event for event in on_host if event.name() in WAITS and event.start_thread_id() == thread]
    calls = [event for event in results.experimental_event_tree() if event.start_tid == thread]
    moments = [event.start_ns() + event.duration_ns() // 2 for event in waits]
    places = {(sum(end.start_ns() < moment for end in ends), place_of(calls, moment)) for moment in moments}
    counts = Counter(place for _, place in places if place)
    seen.scaler_reads = counts.pop(("GradScaler", False), 0)
    seen.reads = Counter({place: count for (place, foreign), count in counts.items() if not foreign})
    seen.library_reads = Counter({place: count for (place, foreign), count in counts.items() if foreign})


@functools.cache
def whole_path(file: str) -> str:
    """Return a path with the folder of sys.path that PyTorch's profiler leaves out, where the file is still there."""
    return str(next((path for folder in sys.path if (path := Path(folder, file)).is_file()), file))


def place_of(calls: list, moment: int) -> tuple[str, bool] | None:
    """Return ("train.py:31", False) for a wait in the user's code, and ("trainer.py:9 of transformers ...", True) else.

    None for an upload, whose wait is that for memory that is not pinned, and where no line of Python is known. A wait
    that no call makes, as in `if loss > 3`, has the line of the last call before it in the same function.
    """
    lines: list[tuple[str, str, int]] = []  # ("" or "after ", file, line), the innermost last
    while calls:
        begun = [call for call in calls if call.start_time_ns <= moment]
        inside = [call for call in begun if moment <= call.end_time_ns][-1:]
        for call in [call for call in begun if "Py" in str(call.tag)][-1:]:
            caller = call.extra_fields.caller
            lines.append(("" if call in inside else "after ", whole_path(caller.file_name), caller.line_number))
        if any(call.name == "aten::copy_" and "cuda" in str(call.extra_fields.inputs[0].device) for call in inside):
            return None
        calls = inside[0].children if inside else []
    library = ""
    for word, file, line in reversed(lines):
        if file.endswith("grad_scaler.py") and not library:
            return "GradScaler", False
        found = re.search(PACKAGE, file)
        passes = file.startswith(TORCH) and (library or not file.startswith(INNER))
        if passes or file.startswith((OWN, "<") if found else (OWN, "<", STANDARD)):
            continue
        path = Path(file)
        name = f"line {line} of a cell" if path.stem.isdigit() else f"{word}{path.name}:{line}"
        if not found:
            return (f"{library}, called at {name}", True) if library else (name, False)
        library = library or f"{name} of the package {found[1]}"
    return (library, True) if library else None


def read_operations(seen: Observations, events: list) -> None:
    """Add up the FLOPs of products by operation and type. The events are in order of time.

    Autocast calls an operation again, with other types. Only the inner call computes, so the outer one is left out.
    Of operations that the profiler has no FLOPs for, 1 counts the type.
    """
    outer: dict[tuple[int, str], tuple[int, tuple[str, str], float]] = {}
    backward_until: dict[int, int] = {}  # of each thread
    for event in events:
        name, thread, dtypes = event.name(), event.start_thread_id(), event.dtypes()
        seen.compiled |= name.startswith(("Torch-Compiled", "CompiledFunction"))
        if name.startswith("autograd::engine::evaluate_function"):
            backward_until[thread] = max(event.end_ns(), backward_until.get(thread, 0))
        first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0  # factor
        dtype = dtypes[first].removeprefix("c10::").lower() if len(dtypes) > first else ""
        if "float" not in (dtype := TYPES.get(dtype, dtype)) or not name.startswith(PRODUCTS):
            continue
        if event.start_ns() < backward_until.get(thread, 0):
            seen.backward_types.add(dtype)
        key, flops = (name.removeprefix("aten::"), dtype), max(1.0, float(event.flops()))
        ends, outer_key, counted = outer.get((thread, name), (0, key, 0.0))
        if event.start_ns() < ends:
            seen.flops[outer_key] -= counted
        outer[thread, name] = event.end_ns(), key, flops
        seen.flops[key] = seen.flops.get(key, 0.0) + flops
    seen.flops = {key: flops for key, flops in seen.flops.items() if flops > 0}
