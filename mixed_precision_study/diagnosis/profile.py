"""What PyTorch's profiler and clock saw of a few steps: waits for the GPU, types, copies, kernels, and times."""

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
from .mistakes import PACKAGE, SCALER, Diagnosis, name_of

END_OF_STEP = "## end of a step ##"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TORCH, OWN, STANDARD = (
    str(Path(module).parent) for module in (torch.__file__, __file__, os.__file__)
)
# they wait on their own
PARTS = ("optim", "amp", "nn", "utils", "autograd", "_dynamo", "_inductor", "distributed")
INNER = tuple(str(Path(TORCH, part)) for part in PARTS)
# names begin so
PRODUCTS = r"aten::(mm|addmm|bmm|baddbmm|_scaled_|conv|_cudnn_rnn|mkldnn_rnn|_thnn_fused_lstm)"


def read_times(seen: Diagnosis, times: list[float], waits: list[float]) -> None:
    """Note the milliseconds of steps. waits: the seconds in which each waited for its DataLoader.

    A step with five times as much work as the median does not count, because it evaluates or saves something.
    """
    seen.timed, seen.step_ms, seen.slowest_ms = len(times), median(times), max(times)
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
    with profile(
        record_shapes=True, with_stack=stacks, with_flops=True, acc_events=True
    ) as profiler:
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
    waits = [
        event for event in on_host if event.name() in WAITS and event.start_thread_id() == thread
    ]
    calls = [event for event in results.experimental_event_tree() if event.start_tid == thread]
    moments = [event.start_ns() + event.duration_ns() // 2 for event in waits]
    places = {
        (sum(end.start_ns() < moment for end in ends), place_of(calls, moment))
        for moment in moments
    }
    counts = Counter(place for _, place in places if place)
    seen.reads = sorted(place for place, steps in counts.items() if steps >= len(ends))


@functools.cache
def whole_path(file: str) -> str:
    """Return a path with the folder of sys.path that PyTorch's profiler leaves out, where the file is still there."""
    return str(next((path for folder in sys.path if (path := Path(folder, file)).is_file()), file))


def place_of(calls: list, moment: int) -> str | None:
    """Return "train.py:31" for a wait in the user's code, and "trainer.py:9 of the package transformers ..." else.

    None where no line of Python is known, and for an upload, whose wait is that for memory that is not pinned, unless
    torch.optim makes it. A wait that no call makes, as in `if loss > 3`, has the line of the last call before it.
    """
    lines: list[tuple[str, str, int]] = []  # ("" or "after ", file, line), the innermost last
    library, uploads = "", False
    while calls:
        begun = [call for call in calls if call.start_time_ns <= moment]
        inside = [call for call in begun if moment <= call.end_time_ns][-1:]
        for call in [call for call in begun if "Py" in str(call.tag)][-1:]:
            caller = call.extra_fields.caller
            lines.append(
                (
                    "" if call in inside else "after ",
                    whole_path(caller.file_name),
                    caller.line_number,
                )
            )
        copies = [call for call in inside if call.name == "aten::copy_"]
        uploads |= any("cuda" in str(call.extra_fields.inputs[0].device) for call in copies)
        calls = inside[0].children if inside else []
    for word, file, line in reversed(lines):
        if file.endswith("grad_scaler.py") and not library:
            return SCALER
        found = re.search(r"(?:site|dist)-packages[/\\]([^/\\]+)", file)
        passes = file.startswith(TORCH) and (library or not file.startswith(INNER))
        if passes or file.startswith((OWN, "<") if found else (OWN, "<", STANDARD)):
            continue
        if uploads and not library and not file.startswith(INNER[0]):
            return None
        path = Path(file)
        name = f"line {line} of a cell" if path.stem.isdigit() else f"{word}{path.name}:{line}"
        if not found:
            return f"{library}, called at {name}" if library else name
        library = library or f"{name}{PACKAGE}{found[1]}"
    return library or None


def read_operations(seen: Diagnosis, events: list) -> None:
    """Add up the FLOPs of products by operation and type, or 1 where the profiler has none. Events are in order.

    Autocast calls an operation again, with other types. Only the inner call computes, so it replaces the outer one.
    """
    # by thread, name, and the outer's end
    computed: dict[tuple[int, str, int], tuple[tuple[str, str], float]] = {}
    outer_until: dict[tuple[int, str], int] = {}
    backward_until: dict[int, int] = {}  # of each thread
    for event in events:
        name, thread, dtypes = event.name(), event.start_thread_id(), event.dtypes()
        seen.compiled |= name.startswith(("Torch-Compiled", "CompiledFunction"))
        if name.startswith("autograd::engine::evaluate_function"):
            backward_until[thread] = max(event.end_ns(), backward_until.get(thread, 0))
        first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0  # factor
        kind = (
            dtypes[first].removeprefix("c10::").lower()
            if re.match(PRODUCTS, name) and len(dtypes) > first
            else ""
        )
        # the profiler says "float" and "half"
        if "float" not in (dtype := name_of(getattr(torch, kind, ""))):
            continue
        if event.start_ns() < backward_until.get(thread, 0):
            seen.backward_types.add(dtype)
        if event.start_ns() >= outer_until.get((thread, name), 0):
            outer_until[thread, name] = event.end_ns()
        key = (name.removeprefix("aten::"), dtype)
        computed[thread, name, outer_until[thread, name]] = key, max(1.0, float(event.flops()))
    for key, flops in computed.values():
        seen.flops[key] = seen.flops.get(key, 0.0) + flops
