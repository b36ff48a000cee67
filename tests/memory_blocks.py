"""Which part of a training step each live block of memory belongs to, and whether that fits the memory breakdown.

The attribution works on plain data, as PyTorch's memory history gives them. blocks_at_peak() watches a step on a GPU.
"""

import math
import time
from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixed_precision_study.measure.memory import reset_peaks, watched_memory
from mixed_precision_study.measure.preflight import clear_workspaces

COUNTED = ("parameters", "masters", "optimizer", "data", "gradients")  # the breakdown counts these tensor by tensor
OWNED = (*COUNTED, "batch", "saved", "temporaries")  # first come first
TOLERANCE = 0.03  # of the peak


class Block(NamedTuple):
    """Memory that was allocated from `begin` to `end` (microseconds; infinite where it is older or still there)."""

    address: int
    size: int  # bytes that were asked for
    begin: float = -math.inf
    end: float = math.inf


def blocks_of(segments, events):
    """Return all blocks of a step from the segments of a snapshot before it and the events of its memory history."""
    alive, ended = {}, []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            place = block.get("address", address)
            if block["state"] == "active_allocated":
                alive[place] = Block(place, block.get("requested_size", block["size"]))
            address += block["size"]
    for event in events:
        place = event["addr"]
        if event["action"] == "alloc":
            alive[place] = Block(place, event["size"], event["time_us"])
        elif event["action"] == "free_requested" and place in alive:
            ended.append(alive.pop(place)._replace(end=event["time_us"]))
    return [*ended, *alive.values()]


def live_at_peak(blocks):
    """Return the blocks that were allocated when their sum was largest."""
    changes = [(block.begin, 1, block.size) for block in blocks] + [(block.end, 0, -block.size) for block in blocks]
    total = most = 0
    peak = -math.inf
    for moment, _, size in sorted(change for change in changes if change[0] < math.inf):  # at one time the freed first
        total += size
        if total > most:
            most, peak = total, moment
    return [block for block in blocks if block.begin <= peak < block.end]


def attribute(blocks, claims, spans):
    """Return {part: bytes} of blocks, with every part. `claims` and `spans` are those of StepBlocks."""
    in_order = sorted(spans)
    sizes = dict.fromkeys((*OWNED, "workspaces", "unattributed"), 0)
    for block in blocks:
        found = {part for part, moment in claims.get(block.address, ()) if block.begin <= moment <= block.end}
        place = bisect_right(in_order, (block.begin, math.inf)) - 1
        inside = place >= 0 and in_order[place][0] <= block.begin <= in_order[place][1]
        otherwise = "workspaces" if inside else "unattributed"
        sizes[next((part for part in OWNED if part in found), otherwise)] += block.size
    return sizes


def problem_of(sizes, counted, peak, under_way=0):
    """Return the first part of a memory breakdown that is wrong, with both its bytes, or None.

    sizes: what attribute() found at the peak. counted: bytes of the parts in COUNTED, tensor by tensor. peak: bytes, by
    the allocator's own counter. Each may differ by TOLERANCE of the peak, and as much may belong to nothing. under_way:
    the largest gradient in bytes. At the peak one may be in the making: it has a block and is not counted yet.
    """
    pairs = {"peak": (sum(sizes.values()), peak), "unattributed": (sizes["unattributed"], 0)}
    pairs |= {part: (sizes[part], counted.get(part, 0)) for part in COUNTED}
    for part, (found, wanted) in pairs.items():
        if abs(found - wanted) > TOLERANCE * peak + (under_way if part == "gradients" else 0):
            return part, found, wanted
    return None


class StepBlocks(TorchDispatchMode):
    """What one step was seen to do with memory, forward and backward.

    claims: {address: [(the part that its memory belonged to, when)]}. spans: (begin, end) of each operation. All times
    are in microseconds.
    """

    def __init__(self):
        super().__init__()
        self.claims, self.spans = {}, []

    def claim(self, part, tensors):
        """Note that the memory of these tensors belongs to a part now. What is no tensor is left out."""
        now = microseconds()
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self.claims.setdefault(tensor.untyped_storage().data_ptr(), []).append((part, now))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begin = microseconds()
        result = func(*args, **(kwargs or {}))
        self.spans.append((begin, microseconds()))
        self.claim("temporaries", tree_leaves(result))
        return result


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


@contextmanager
def watched_blocks(trainer, batch):
    """Watch what the tensors of one eager step belong to."""
    seen, network = StepBlocks(), trainer.network

    def claim_known():
        state = [value for values in trainer.optimizer.state.values() for value in values.values()]
        seen.claim("parameters", [*network.parameters(), *network.buffers()])
        seen.claim("masters", trainer.masters)
        seen.claim("optimizer", [*state, *tensors_in(trainer.scaler)])
        seen.claim("data", tensors_in(trainer.data))
        seen.claim("gradients", [weight.grad for weight in (*trainer.weights, *trainer.masters)])
        seen.claim("batch", tensors_in(batch))

    def keep(tensor):
        seen.claim("saved", [tensor])
        return tensor

    with ExitStack() as stack:
        for weight in trainer.weights:
            hook = weight.register_post_accumulate_grad_hook(lambda one: seen.claim("gradients", [one.grad]))
            stack.callback(hook.remove)
        claim_known()
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
        stack.enter_context(seen)
        yield seen
    claim_known()


def blocks_at_peak(trainer, batch):
    """Take an eager step and return (bytes of its live blocks at the peak by part, the peak, gradients at the peak).

    The peak is the allocator's own count of the bytes that were asked for. Gradients are counted tensor by tensor.
    """
    clear_workspaces()  # so that the step allocates them anew, within its operations
    reset_peaks(trainer.device)
    segments = torch.cuda.memory._snapshot()["segments"]
    began = microseconds()
    torch.cuda.memory._record_memory_history(context=None)
    try:
        with watched_memory(trainer) as counted, watched_blocks(trainer, batch) as seen:
            trainer.eager_step(batch, None)
        events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    peak = torch.cuda.memory_stats(trainer.device)["requested_bytes.all.peak"]
    events = [event for event in events if event["time_us"] >= began - 1]
    sizes = attribute(live_at_peak(blocks_of(segments, events)), seen.claims, seen.spans)
    return sizes, peak, counted.gradients_at_peak
