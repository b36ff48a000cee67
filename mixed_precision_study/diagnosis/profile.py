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
from types import SimpleNamespace

import torch
from torch.profiler import profile

from ..explain.profile import read_kernels
from .flops import dtype_of, flops_of, is_product
from .mistakes import PACKAGE, SCALER, Diagnosis

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

    A step with five times as much work as the median does not count, because it evaluates or saves
    something.
    """
    seen.timed, seen.step_ms = len(times), median(times)
    usual = [
        pair
        for pair in zip(times, waits, strict=True)
        if pair[0] - 1000 * pair[1] <= 5 * seen.step_ms
    ]
    if any(waits):
        seen.data_wait_fraction = min(
            1.0, sum(1000 * wait for _, wait in usual) / sum(time for time, _ in usual)
        )


@contextlib.contextmanager
def profiled(seen: Diagnosis) -> Iterator[None]:
    """Profile the steps in the block, and fill in what they showed."""
    gpu = seen.device == "cuda"
    # PyTorch would take the place of the user's own profile function
    stacks = gpu and sys.getprofile() is None
    users = os.environ.get("TEARDOWN_CUPTI")
    # or CUPTI slows all later launches (pytorch issue 144455)
    os.environ["TEARDOWN_CUPTI"] = users or "1"
    with profile(record_shapes=True, with_stack=stacks, acc_events=True) as profiler:
        yield
        if gpu:
            torch.cuda.synchronize()
    if users is None:
        os.environ.pop("TEARDOWN_CUPTI", None)
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
    seen.flops, seen.uncounted = {}, set()
    _read_operations(seen, on_host)
    kernels = [(event.name(), event.start_ns(), event.duration_ns()) for event in on_gpu]
    if kernels and ends and seen.step_ms:
        _read_device(seen, kernels, len(ends))
        _read_waits(seen, on_host, ends, results)


def _read_device(seen, kernels, steps):
    """Note the kernels, and the copies from memory that is not pinned."""
    found = SimpleNamespace(step_ms_median=seen.step_ms)
    read_kernels(found, kernels, steps)
    seen.kernels = vars(found)
    # products of a compiler
    seen.uncounted |= {name for name, _, _ in kernels if "triton_tem" in name}
    pageable = [duration for name, _, duration in kernels if "HtoD" in name and "Pageable" in name]
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
    """Return "train.py:31" for a wait in the user's code, and "trainer.py:9 of the package
    transformers ..." else.

    None where no line of Python is known, and for an upload, whose wait is that for memory that is
    not pinned, unless torch.optim makes it. A wait that no call makes, as in `if loss > 3`, has the
    line of the last call before it.
    """
    lines, uploads = _lines_at(calls, moment)
    library = ""
    for word, file, line in reversed(lines):
        if file.endswith("grad_scaler.py") and not library:
            return SCALER
        if file.startswith(OWN) and not word and not library:
            return None  # a look of the watch itself
        found = re.search(r"(?:site|dist)-packages[/\\]([^/\\]+)", file)
        if _is_passed(file, bool(found), bool(library)):
            continue
        if uploads and not library and not file.startswith(INNER[0]):
            return None
        path = Path(file)
        name = f"line {line} of a cell" if path.stem.isdigit() else f"{word}{path.name}:{line}"
        if not found:
            return f"{library}, called at {name}" if library else name
        library = library or f"{name}{PACKAGE}{found[1]}"
    return library or None


def _is_passed(file, is_installed, in_library):
    """Return whether a line belongs to PyTorch, Python or this package, and so is not the place
    that waits."""
    inside = file.startswith(TORCH) and (in_library or not file.startswith(INNER))
    return inside or file.startswith((OWN, "<") if is_installed else (OWN, "<", STANDARD))


def _lines_at(calls, moment):
    """Return [("" or "after ", file, line)] of the calls at a moment, the innermost last, and
    whether one uploads."""
    lines = []
    uploads = False
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
        uploads |= any("cuda" in str(call.extra_fields.inputs[0].device) for call in copies)
        calls = inside[0].children if inside else []
    return lines, uploads


def _read_operations(seen, events):
    """Add up the FLOPs of products by operation and type, and note operations whose size is not
    known.

    Autocast calls an operation again, with other types, and only the inner call computes. What an
    optimizer multiplies itself, as Muon does, is not the model's.
    """
    steps = [event for event in events if event.name().startswith("Optimizer.step#")]
    inner = {}  # {(thread, operation): start of the call that came later}
    for event in reversed(events):
        name, thread, start = event.name(), event.start_thread_id(), event.start_ns()
        seen.compiled |= name.startswith(("Torch-Compiled", "CompiledFunction"))
        if not is_product(event) or "float" not in (dtype := dtype_of(event)):
            continue
        is_outer = inner.get((thread, name), event.end_ns()) < event.end_ns()
        inner[thread, name] = start
        around = [one for one in steps if one.start_ns() <= start < one.end_ns()]
        if not is_outer and thread not in [one.start_thread_id() for one in around]:
            key, flops = (name.removeprefix("aten::"), dtype), flops_of(event)
            seen.flops[key] = seen.flops.get(key, 0.0) + (flops or 0.0)
            seen.uncounted |= {key[0]} if flops is None else set()
