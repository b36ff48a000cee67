"""Which part of a training step each live block of memory belongs to, and whether that fits the memory breakdown.

It works on plain data, as PyTorch's memory history gives them. memory.py watches the step.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OWNED = ("parameters", "masters", "optimizer", "data", "gradients", "batch", "saved", "temporaries")  # first come first
PARTS = (*OWNED, "workspaces", "unattributed")
COUNTED = ("parameters", "masters", "optimizer", "data", "gradients")  # the breakdown counts these tensor by tensor
TOLERANCE = 0.03  # of the peak
MIB = 2**20


@dataclass(frozen=True)
class Block:
    """Memory that was allocated from `begin` to `end` (microseconds; infinite where it is older or still there)."""

    address: int
    size: int  # bytes that were asked for
    begin: float = -math.inf
    end: float = math.inf


@dataclass(frozen=True)
class Claim:
    """At this time (microseconds) the memory at this address belonged to a part."""

    part: str
    address: int
    time: float


Span = tuple[float, float]  # begin and end of an operation, in microseconds


def blocks_of(segments: Iterable[dict], events: Iterable[dict]) -> list[Block]:
    """Return all blocks of a step from the segments of a snapshot before it and the events of its memory history."""
    alive: dict[int, Block] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            place = block.get("address", address)
            if block["state"] == "active_allocated":
                alive[place] = Block(place, block.get("requested_size", block["size"]))
            address += block["size"]
    ended = []
    for event in events:
        place = event["addr"]
        if event["action"] == "alloc":
            alive[place] = Block(place, event["size"], event["time_us"])
        elif event["action"] == "free_requested" and place in alive:
            block = alive.pop(place)
            ended.append(Block(place, block.size, block.begin, event["time_us"]))
    return [*ended, *alive.values()]


def live_at_peak(blocks: list[Block]) -> list[Block]:
    """Return the blocks that were allocated when their sum was largest."""
    changes = [(block.begin, 1, block.size) for block in blocks] + [(block.end, 0, -block.size) for block in blocks]
    total = most = 0
    peak = -math.inf
    for time, _, size in sorted(change for change in changes if change[0] < math.inf):  # at one time the freed first
        total += size
        if total > most:
            most, peak = total, time
    return [block for block in blocks if block.begin <= peak < block.end]


def part_of(block: Block, claims: Iterable[Claim], spans: list[Span]) -> str:
    """Return the part that a block belongs to. `claims` are those of its address, `spans` are in order."""
    found = {claim.part for claim in claims if block.begin <= claim.time <= block.end}
    for part in OWNED:
        if part in found:
            return part
    place = bisect_right(spans, (block.begin, math.inf)) - 1
    inside = place >= 0 and spans[place][0] <= block.begin <= spans[place][1]
    return "workspaces" if inside else "unattributed"


def attribute(blocks: list[Block], claims: Iterable[Claim], spans: Iterable[Span]) -> dict[str, int]:
    """Return {part: bytes} of blocks, with every one of PARTS."""
    by_address: dict[int, list[Claim]] = {}
    for claim in claims:
        by_address.setdefault(claim.address, []).append(claim)
    in_order = sorted(spans)
    sizes = dict.fromkeys(PARTS, 0)
    for block in blocks:
        sizes[part_of(block, by_address.get(block.address, ()), in_order)] += block.size
    return sizes


def problem_of(sizes: Mapping[str, int], counted: Mapping[str, int], peak: int, under_way: int = 0) -> str | None:
    """Return what is wrong with a memory breakdown, or None.

    sizes: what attribute() found at the peak. counted: bytes of the parts in COUNTED, tensor by tensor. peak: bytes, by
    the allocator's own counter. Each may differ by TOLERANCE of the peak, and as much may belong to nothing. under_way:
    the largest gradient in bytes. At the peak one may be in the making: it has a block and is not counted yet.
    """
    if peak <= 0:
        return "the allocator counted no peak"
    if min(*sizes.values(), *counted.values()) < 0:
        return "a part of the memory is negative"
    room = TOLERANCE * peak
    total = sum(sizes.values())
    if abs(total - peak) > room:
        return f"the live blocks sum to {total / MIB:,.0f} MiB where the allocator's peak is {peak / MIB:,.0f} MiB"
    for part in COUNTED:
        allowed = room + under_way if part == "gradients" else room
        if abs(counted.get(part, 0) - sizes[part]) > allowed:
            blocks = f"{sizes[part] / MIB:,.0f} MiB by blocks"
            return f"{part}: {counted.get(part, 0) / MIB:,.0f} MiB by tensors, {blocks}"
    if sizes["unattributed"] > room:
        return f"{sizes['unattributed'] / peak:.1%} of the peak belong to nothing known"
    return None
