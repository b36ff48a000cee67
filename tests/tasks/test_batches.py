"""Batches that are made one step ahead: what each stream waits for, in which order."""

import contextlib
import itertools

import torch

from mixed_precision_study.tasks.batches import prefetch_to_device, side_stream

ORDER = """
side waits for main
side makes batch 0
side records event 0
side waits for main
side makes batch 1
side records event 1
main waits for event 0
main trains on batch 0
side waits for main
side makes batch 2
side records event 2
main waits for event 1
main trains on batch 1
side waits for main
side records event 3
main waits for event 2
main trains on batch 2
main waits for side
"""


class Stream:
    """A stream that writes down what it is asked for."""

    device = "made up"

    def __init__(self, name, log):
        self.name, self.log, self.events = name, log, itertools.count()

    def note(self, what):
        self.log.append(f"{self.name} {what}")

    def record_event(self):
        event = f"event {next(self.events)}"
        self.note(f"records {event}")
        return event

    def wait_event(self, event):
        self.note(f"waits for {event}")

    def wait_stream(self, other):
        self.wait_event(other.name)


class Device:
    """Two streams with one log."""

    def __init__(self):
        self.log = []
        self.main, self.side = (Stream(name, self.log) for name in ("main", "side"))
        self.current = self.main

    @contextlib.contextmanager
    def on(self, stream):
        self.current = stream
        yield
        self.current = self.main

    def made(self, count):
        for number in range(count):
            self.current.note(f"makes batch {number}")
            yield number

    def ahead(self, count):
        return prefetch_to_device(self.made(count), self.side, self.main, self.on)


def test_a_batch_is_made_one_step_ahead_and_waited_for():
    """The side stream waits for the step before, so memory that is freed is used again safely."""
    device = Device()
    for number in device.ahead(3):
        device.main.note(f"trains on batch {number}")
    assert device.log == ORDER.strip().splitlines()
    assert list(prefetch_to_device(range(3), side_stream(torch.device("cpu")))) == [0, 1, 2]


def test_a_loop_that_is_left_early_waits_for_the_next_batch():
    """It is still being made from tensors that are free from here on."""
    device = Device()
    batches = device.ahead(3)
    next(batches)
    batches.close()
    assert device.log[-2:] == ["main waits for event 0", "main waits for side"]
