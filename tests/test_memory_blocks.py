"""Live blocks of memory: found from a history, attributed to the parts of a step, and held against the breakdown."""

import functools
import types

import pytest
from explained_training import make_trainer, random
from memory_blocks import (
    MIB,
    Block,
    Claim,
    attribute,
    blocks_of,
    live_at_peak,
    problem_of,
    tensors_in,
    watched_blocks,
)


def event(action, address, size, time):
    return {"action": action, "addr": address, "size": size * MIB, "time_us": float(time)}


# Before the step: 100 MiB of parameters, 100 of momenta, 50 of data and a block that is free.
BEFORE = [
    {
        "address": 1000,
        "blocks": [
            {"address": 1000, "size": 101 * MIB, "requested_size": 100 * MIB, "state": "active_allocated"},
            {"address": 2000, "size": 100 * MIB, "requested_size": 100 * MIB, "state": "active_allocated"},
            {"address": 3000, "size": 50 * MIB, "requested_size": 50 * MIB, "state": "active_allocated"},
            {"address": 4000, "size": 70 * MIB, "requested_size": 0, "state": "inactive"},
        ],
    }
]
EVENTS = [
    event("alloc", 5000, 300, 10),  # saved
    event("alloc", 6000, 40, 20),  # a workspace, freed before the peak
    event("free_requested", 6000, 40, 21),
    event("free_completed", 6000, 40, 21),
    event("alloc", 6000, 60, 30),  # a gradient at the same address
    event("alloc", 7000, 40, 40),  # a workspace at the peak
    event("free_requested", 7000, 40, 42),
    event("free_requested", 5000, 300, 50),
    event("alloc", 5000, 40, 60),  # the other gradient, after the peak
    event("segment_alloc", 9000, 500, 61),
]
SPANS = [(9, 12), (19, 22), (29, 32), (39, 45), (59, 62)]
CLAIMS = [
    *(Claim("temporaries", address, time) for address, time in ((5000, 12), (6000, 32), (5000, 62))),
    *(Claim("saved", address, 13) for address in (5000, 1000)),
    *(Claim("gradients", address, time) for address, time in ((6000, 33), (5000, 63))),
    *(Claim(part, 1000 * place, 1) for place, part in enumerate(("parameters", "optimizer", "data"), 1)),
]
PEAK = 650 * MIB
COUNTED = {"parameters": 100 * MIB, "masters": 0, "optimizer": 100 * MIB, "data": 50 * MIB, "gradients": 60 * MIB}


def sizes(segments=BEFORE, events=EVENTS, claims=CLAIMS, spans=SPANS):
    return attribute(live_at_peak(blocks_of(segments, events)), claims, spans)


def test_the_blocks_at_the_peak_are_attributed():
    found = {part: size // MIB for part, size in sizes().items() if size}
    wanted = {"parameters": 100, "optimizer": 100, "data": 50, "saved": 300, "gradients": 60, "workspaces": 40}
    assert found == wanted
    assert sum(sizes().values()) == PEAK
    assert problem_of(sizes(), COUNTED, PEAK) is None


def test_a_claim_counts_only_while_its_block_lives():
    old, new = Block(1, 10, 0, 5), Block(1, 10, 6, 9)
    claims = [Claim("saved", 1, 3), Claim("gradients", 1, 8)]
    assert attribute([old], claims, [])["saved"] == attribute([new], claims, [])["gradients"] == 10
    assert attribute([Block(1, 10, 10)], claims, [])["unattributed"] == 10


@pytest.mark.parametrize(
    ("counted", "peak"),
    [
        ({"gradients": 100 * 60 * MIB}, PEAK),
        ({"parameters": 0}, PEAK),
        ({"parameters": 0, "optimizer": 0, "data": 0}, PEAK),
        ({}, PEAK // 2),
        ({}, 2 * PEAK),
        ({}, 0),
        ({"data": -50 * MIB}, PEAK),
    ],
    ids=["gradients x 100", "no parameters", "three parts 0", "half the peak", "twice the peak", "no peak", "negative"],
)
def test_a_wrong_breakdown_is_caught(counted, peak):
    assert problem_of(sizes(), COUNTED | counted, peak, under_way=40 * MIB)


@pytest.mark.parametrize(("owned", "wrong"), [(True, False), (False, True)])
def test_memory_of_unknown_owners_is_caught_from_three_percent_of_the_peak_on(owned, wrong):
    claims = [claim for claim in CLAIMS if owned or claim.part != "data"]
    counted = COUNTED if owned else COUNTED | {"data": 0}
    assert bool(problem_of(sizes(claims=claims), counted, PEAK)) is wrong


def test_without_the_operations_their_workspaces_belong_to_nothing():
    found = sizes(spans=[])
    assert found["unattributed"] == 40 * MIB
    assert "nothing known" in problem_of(found, COUNTED, PEAK)


def test_a_gradient_in_the_making_may_be_missing_from_the_count():
    less = COUNTED | {"gradients": 20 * MIB}
    assert problem_of(sizes(), less, PEAK)
    assert problem_of(sizes(), less, PEAK, under_way=40 * MIB) is None


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_what_the_tensors_of_a_step_belong_to_is_seen():
    trainer = make_trainer(data=types.SimpleNamespace(images=[random(4, 16)]))
    batch = random(4, 16)
    trainer.step(batch)  # makes the momenta
    with watched_blocks(trainer, batch) as seen:
        trainer.eager_step(batch, None)
    claimed = {}
    for claim in seen.claims:
        claimed.setdefault(claim.part, set()).add(claim.address)
    (images,) = trainer.data.images
    momenta = {address(state["momentum_buffer"]) for state in trainer.optimizer.state.values()}
    assert {address(weight) for weight in trainer.weights} <= claimed["parameters"]
    assert {address(weight.grad) for weight in trainer.weights} <= claimed["gradients"]
    assert momenta <= claimed["optimizer"]
    assert (address(images) in claimed["data"], address(batch) in claimed["batch"]) == (True, True)
    assert address(batch) in claimed["saved"]  # by the first layer
    assert len(seen.spans) > 10  # forward, backward and update
    assert all(begin <= end for begin, end in seen.spans)
    count = len(seen.claims)
    trainer.step(batch)
    assert len(seen.claims) == count  # afterwards nothing is watched


def test_tensors_are_found_wherever_an_object_holds_them():
    one, two, three, four = (random(1) for _ in range(4))
    part = functools.partial(print, three, key={"a": four})
    held = types.SimpleNamespace(a=one, b={"c": (two, "text")}, d=[part], e=int)
    assert {id(tensor) for tensor in tensors_in(held)} == {id(one), id(two), id(three), id(four)}
