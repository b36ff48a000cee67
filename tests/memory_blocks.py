"""How much of the memory at the peak of a training step belongs to which part, by the blocks of
PyTorch's history.
"""

import math
import time
from contextlib import ExitStack

import torch

from mixed_precision_study.explain.memory_breakdown import watched_memory
from mixed_precision_study.measure.memory import reset_peaks
from mixed_precision_study.measure.preflight import clear_workspaces

# the breakdown counts these tensor by tensor
COUNTED = ("parameters", "masters", "optimizer", "data", "gradients")


def live_at_peak(segments, events):
    """Return [address, bytes, begin, end] of the blocks that were allocated when their sum was
    largest.

    segments: of a snapshot before the step. events: of its memory history. begin, end:
        microseconds.
    """
    alive = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            place = block.get("address", address)
            if block["state"] == "active_allocated":
                alive[place] = [
                    place,
                    block.get("requested_size", block["size"]),
                    -math.inf,
                    math.inf,
                ]
            address += block["size"]
    at_peak = [*alive.values()]
    total = most = sum(block[1] for block in at_peak)
    for event in events:
        place = event["addr"]
        if event["action"] == "alloc":
            alive[place] = [place, event["size"], event["time_us"], math.inf]
            total += event["size"]
            if total > most:
                most, at_peak = total, [*alive.values()]
        elif event["action"] == "free_requested" and place in alive:
            alive[place][3] = event["time_us"]
            total -= alive.pop(place)[1]
    return at_peak


def microseconds():
    """Return the time as PyTorch's memory history does: microseconds since 1970."""
    return time.time_ns() / 1000


def tensors_in(value, depth=4):
    """Yield the tensors that an object holds: in its attributes, in lists, tuples and dicts."""
    inner = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inner = vars(value).values()
    for one in inner if depth else ():
        yield from tensors_in(one, depth - 1)


def blocks_at_peak(trainer, batch):
    """Take an eager step and return (bytes of its live blocks at the peak by part, the peak,
    gradients at the peak).

    The peak is the allocator's own count of the bytes that were asked for. Gradients are counted
    tensor by tensor.
    """
    claims = {}  # {address: [(the part that its memory belonged to, when)]}

    def claim(part, tensors):
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                claims.setdefault(tensor.untyped_storage().data_ptr(), []).append(
                    (part, microseconds())
                )

    def claim_known():
        state = [value for values in trainer.optimizer.state.values() for value in values.values()]
        claim("parameters", [*trainer.network.parameters(), *trainer.network.buffers()])
        claim("masters", trainer.masters)
        claim("optimizer", [*state, *tensors_in(trainer.scaler)])
        claim("data", tensors_in(trainer.data))
        claim("gradients", [weight.grad for weight in (*trainer.weights, *trainer.masters)])

    clear_workspaces()  # so that the step allocates them anew
    reset_peaks(trainer.device)
    segments = torch.cuda.memory._snapshot()["segments"]
    began = microseconds()
    torch.cuda.memory._record_memory_history(context=None)
    try:
        with ExitStack() as stack:
            counted = stack.enter_context(watched_memory(trainer))
            for weight in trainer.weights:
                hook = weight.register_post_accumulate_grad_hook(
                    lambda one: claim("gradients", [one.grad])
                )
                stack.callback(hook.remove)
            claim_known()
            trainer.eager_step(batch, None)
        claim_known()
        events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    peak = torch.cuda.memory_stats(trainer.device)["requested_bytes.all.peak"]
    sizes = dict.fromkeys((*COUNTED, "others"), 0)
    for address, size, begin, end in live_at_peak(
        segments, [one for one in events if one["time_us"] >= began - 1]
    ):
        found = {part for part, moment in claims.get(address, ()) if begin <= moment <= end}
        sizes[next((part for part in COUNTED if part in found), "others")] += size
    return sizes, peak, counted.gradients_at_peak
