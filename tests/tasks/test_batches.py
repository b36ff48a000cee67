"""Batches that are made one step ahead, and the nests that they may be."""

import contextlib
import functools
import random
import types
import weakref

import pytest
import torch

from mixed_precision_study.tasks.batches import prefetch_to_device, side_stream


class Queue:
    """A stream: work in order, each piece done some time later."""

    def __init__(self):
        self.device, self.work = "made up", []

    def record_event(self):
        event = types.SimpleNamespace(done=False)
        self.work.append(("record", event))
        return event

    def wait_event(self, event):
        self.work.append(("wait", event))

    def wait_stream(self, other):
        self.wait_event(other.record_event())


class Careless(Queue):
    def wait_event(self, event):
        """Wait for nothing."""


class Batch:
    """A place of the memory, which is free again when nothing refers to the batch any more."""


class Device:
    """Two streams, and memory that is handed out again as soon as the host has let go of it, as
    PyTorch's is.
    """

    def __init__(self, main=Queue, side=Queue):
        self.main, self.side, self.current = main(), side(), None
        self.memory, self.free = {}, []

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def ahead(self, batches):
        return prefetch_to_device(batches, self.side, self.main, self.on)

    def make(self, number):
        """Return a batch into which the current stream will have written the number."""
        batch = Batch()
        batch.place = self.free.pop() if self.free else len(self.memory)
        self.memory[batch.place] = None
        weakref.finalize(batch, self.free.append, batch.place)
        self.current.work.append(
            ("do", functools.partial(self.memory.__setitem__, batch.place, number))
        )
        return batch

    def run(self, seed):
        """Do the work of both streams in one of the orders that they allow."""
        draw, streams = random.Random(seed), (self.main, self.side)
        while any(stream.work for stream in streams):
            ready = [s for s in streams if s.work and (s.work[0][0] != "wait" or s.work[0][1].done)]
            assert ready, "the streams wait for each other"
            kind, what = draw.choice(ready).work.pop(0)
            if kind == "do":
                what()
            elif kind == "record":
                what.done = True


def trained_on(seed, **streams):
    """Return (the numbers that steps saw in their batches, places of memory), with the host
    ahead of everything.
    """
    device, seen = Device(**streams), []
    with device.on(device.main):
        for batch in device.ahead(map(device.make, range(12))):
            step = functools.partial(lambda place: seen.append(device.memory[place]), batch.place)
            device.main.work += [("do", step), ("do", step)]  # a step of two pieces
    device.run(seed)
    return seen[::2] if seen[::2] == seen[1::2] else None, len(device.memory)


def test_every_step_sees_its_own_batch():
    for seed in range(60):
        numbers, places = trained_on(seed)
        assert numbers == list(range(12)), seed
        assert places <= 3  # however far the host is ahead
    for stream in ("main", "side"):  # and without either wait some step does not
        assert any(
            trained_on(seed, **{stream: Careless})[0] != list(range(12)) for seed in range(300)
        )


def counted(made, most=4):
    """Yield batches of a number each, and add each number to `made` before."""
    try:
        for number in range(most):
            made.append(number)
            yield (torch.tensor(number),)
    finally:
        made.append("closed")


@pytest.mark.parametrize("most", [0, 2, 4])
def test_a_batch_is_made_one_step_ahead(
    most,
):
    made = []
    seen = [(batch[0].item(), made[-1]) for batch in Device().ahead(counted(made, most))]
    assert seen == [
        (number, number + 1 if number + 1 < most else "closed") for number in range(most)
    ]
    assert list(prefetch_to_device(range(most), side_stream(torch.device("cpu")))) == list(
        range(most)
    )
    device, made = Device(), []
    batches = device.ahead(counted(made))
    next(batches)
    before = len(device.main.work)
    batches.close()
    assert made == [0, 1, "closed"]
    # the next batch is still being made from tensors that are free from here on
    kind, event = device.main.work[before]
    assert (kind, device.side.work[-1]) == ("wait", ("record", event))
