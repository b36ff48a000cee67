"""What PyTorch's profiler and clock saw of a few steps: waits for the GPU, types, copies, kernels,
and times."""

import contextlib
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch.profiler import profile

from ..explain.profile import kernels_of
from ..measure.timing import synchronize
from ..store.variables import CUPTI_ENV
from .attention import read_attention
from .flops import dtype_of, flops_of, is_product
from .mistakes import Diagnosis

END_OF_STEP = "## end of a step ##"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TORCH, OWN, STANDARD = (
    str(Path(module).parent) for module in (torch.__file__, __file__, os.__file__)
)
# they wait on their own
PARTS = ("optim", "amp", "nn", "utils", "autograd", "_dynamo", "_inductor", "distributed")
INNER = tuple(str(Path(TORCH, part)) for part in PARTS)


def read_times(seen: Diagnosis, times: list[float], waits: list[float]) -> None:
    """Note the milliseconds of steps. waits: the seconds in which each waited for its DataLoader.

    Both are medians, because a step may evaluate or save something.
    """
    seen.timed = len(times)
    seen.step_ms = median(times)
    shares = [1000 * wait / time for time, wait in zip(times, waits, strict=True)]
    seen.data_wait_fraction = min(1.0, median(shares))


@contextlib.contextmanager
def profiled(seen: Diagnosis) -> Iterator[None]:
    """Profile the steps in the block, and fill in what they showed."""
    # PyTorch would take the place of the user's own profile function
    stacks = seen.device == "cuda" and sys.getprofile() is None
    is_set = CUPTI_ENV in os.environ
    # or CUPTI slows all later launches (pytorch issue 144455)
    os.environ.setdefault(CUPTI_ENV, "1")
    synchronize(torch.device(seen.device))
    with profile(record_shapes=True, with_stack=stacks, acc_events=True) as profiler:
        yield
        synchronize(torch.device(seen.device))
    if not is_set:
        os.environ.pop(CUPTI_ENV, None)
    results = profiler.profiler.kineto_results
    events = sorted(results.events(), key=lambda event: event.start_ns())
    on_host = [event for event in events if "CUDA" not in str(event.device_type())]
    # a range that the host names is drawn on the GPU, too
    names = {event.name() for event in on_host}
    on_gpu = [
        event
        for event in events
        if "CUDA" in str(event.device_type()) and event.name() not in names
    ]
    ends = [event for event in on_host if event.name() == END_OF_STEP]
    seen.watched = len(ends)
    _read_operations(seen, on_host)
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in on_gpu]
    if kernels and ends and seen.step_ms:
        _read_device(seen, kernels, len(ends))
        read_attention(seen, on_host)
        _read_waits(seen, on_host, ends, results)


def _read_device(seen, kernels, steps):
    """Note the kernels, and the copies from memory that is not pinned."""
    seen.kernels = kernels_of(kernels, steps, seen.step_ms)
    # products of a compiler
    seen.uncounted |= {name for name, _, _ in kernels if "triton_tem" in name}
    pageable = [duration for name, _, duration in kernels if "Pageable -> Device" in name]
    seen.pageable_ms = sum(pageable) / 1e6 / steps


def _read_waits(seen, on_host, ends, results):
    """Note the places in which the thread that trains waits for the GPU in every step."""
    thread = ends[0].start_thread_id()
    waits = [
        event for event in on_host if event.name() in WAITS and event.start_thread_id() == thread
    ]
    calls = [event for event in results.experimental_event_tree() if event.start_tid == thread]
    places = set()
    for wait in waits:
        moment = wait.start_ns() + wait.duration_ns() // 2
        places.add((sum(end.start_ns() < moment for end in ends), place_of(calls, moment)))
    counts = Counter(place for _, place in places if place)
    seen.reads = sorted(place for place, steps in counts.items() if steps >= len(ends))


@functools.cache
def _whole_path(file):
    """Return a path with the folder of sys.path that PyTorch's profiler leaves out, where the file
    is still there."""
    return str(next((path for folder in sys.path if (path := Path(folder, file)).is_file()), file))


def place_of(calls: list, moment: int) -> str | None:
    """Return "train.py:31" for a wait that a line of the user's makes, None for any other.

    Packages, as PyTorch's GradScaler, and the watch itself wait for reasons of their own. An upload
    waits for memory that is not pinned. A wait that no call makes, as in `if loss > 3`, has the
    line of the last call before it.
    """
    for word, file, line in reversed(_lines_at(calls, moment)):
        if file.startswith(INNER) or (file.startswith(OWN) and not word):
            return None
        if file.startswith((TORCH, OWN, "<")):
            continue
        if re.search("(site|dist)-packages", file):
            return None
        if not file.startswith(STANDARD):
            path = Path(file)
            return f"line {line} of a cell" if path.stem.isdigit() else f"{word}{path.name}:{line}"
    return None


def _lines_at(calls, moment):
    """Return [("" or "after ", file, line)] of the calls at a moment, the innermost last, and none
    of an upload."""
    lines = []
    while calls:
        begun = [call for call in calls if call.start_time_ns <= moment]
        inside = [call for call in begun if moment <= call.end_time_ns][-1:]
        for call in [call for call in begun if "Py" in str(call.tag)][-1:]:
            caller = call.extra_fields.caller
            lines.append(
                (
                    "" if call in inside else "after ",
                    _whole_path(caller.file_name),
                    caller.line_number,
                )
            )
        copies = [call for call in inside if call.name == "aten::copy_"]
        if any("cuda" in str(call.extra_fields.inputs[0].device) for call in copies):
            return []
        calls = inside[0].children if inside else []
    return lines


def _read_operations(seen, events):
    """Add up the FLOPs of products by operation and type, and note operations whose size is not
    known.

    Autocast calls an operation again, with other types, and only the inner call computes. What an
    optimizer multiplies itself, as Muon does, is not the model's.
    """
    steps = [event for event in events if event.name().startswith("Optimizer.step#")]
    inner = {}  # {(thread, operation): start of the call that came later}
    for event in reversed(events):
        name = event.name()
        thread = event.start_thread_id()
        start = event.start_ns()
        seen.compiled |= name.startswith(("Torch-Compiled", "CompiledFunction"))
        if not is_product(event) or "float" not in (dtype := dtype_of(event)):
            continue
        is_outer = inner.get((thread, name), event.end_ns()) < event.end_ns()
        inner[thread, name] = start
        in_optimizer = any(
            one.start_thread_id() == thread and one.start_ns() <= start < one.end_ns()
            for one in steps
        )
        if not (is_outer or in_optimizer):
            flops = flops_of(event)
            seen.flops[name.removeprefix("aten::"), dtype] += flops or 0.0
            if flops is None:
                seen.uncounted.add(name)
