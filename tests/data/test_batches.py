"""Where images are stored, batches made one step ahead, and the example in TrainingData's docstring."""

import contextlib
import functools
import itertools
import random
import textwrap
import time
import types

import pytest
import torch
from small_training import CPU, make_batch, make_record, make_trainer

from mixed_precision_study.data.batches import (
    TrainingData,
    device_batches,
    host_batches,
    place_images,
    prefetch_to_device,
    side_stream,
)
from mixed_precision_study.errors import UserError
from mixed_precision_study.training import timed_epoch

# Batches ahead: streams whose work is done in any order that they allow


class Queue:
    """A stream: work in order, each piece done some time later."""

    def __init__(self, name="stream"):
        self.name, self.device, self.work = name, "made up", []

    def record_event(self):
        event = types.SimpleNamespace(done=False)
        self.work.append(("record", event))
        return event

    def wait_event(self, event):
        self.work.append(("wait", event))

    def wait_stream(self, other):
        self.wait_event(other.record_event())


class Held:
    """A batch: a place of the memory, which is free again when nothing refers to the batch any more."""

    def __init__(self, place, free):
        self.place, self.free = place, free

    def __del__(self):
        self.free.append(self.place)


class Device:
    """Two streams, and memory that is handed out again as soon as the host has let go of it, as PyTorch's is."""

    def __init__(self, main=Queue, side=Queue):
        self.main, self.side, self.current = main("main"), side("side"), None
        self.memory, self.free = [], []

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def make(self, number):
        """Return a batch into which the current stream will have written the number."""
        if not self.free:
            self.free.append(len(self.memory))
            self.memory.append(None)
        batch = Held(self.free.pop(), self.free)
        self.do(functools.partial(self.memory.__setitem__, batch.place, number))
        return batch

    def do(self, call):
        self.current.work.append(("do", call))

    def run(self, seed):
        draw, streams = random.Random(seed), (self.main, self.side)
        while any(stream.work for stream in streams):
            ready = [s for s in streams if s.work and (s.work[0][0] != "wait" or s.work[0][1].done)]
            assert ready, "the streams wait for each other"
            kind, what = draw.choice(ready).work.pop(0)
            if kind == "do":
                what()
            elif kind == "record":
                what.done = True


def trained_on(seed, count=12, **streams):
    """Return (the numbers that steps saw in their batches, places of memory), with the host ahead of everything."""
    device, seen = Device(**streams), []

    with device.on(device.main):
        for batch in prefetch_to_device(map(device.make, range(count)), device.side, device.main, device.on):
            device.do(lambda place=batch.place: seen.append(device.memory[place]))  # a step: of two pieces
            device.do(lambda place=batch.place: seen.append(device.memory[place]))
    device.run(seed)
    return seen[::2] if seen[::2] == seen[1::2] else None, len(device.memory)


def test_every_step_sees_its_own_batch_in_whatever_order_the_streams_run():
    for seed in range(300):
        numbers, places = trained_on(seed)
        assert numbers == list(range(12)), seed
        assert places <= 3  # however far the host is ahead


class Careless(Queue):
    def wait_event(self, event):
        """Wait for nothing."""


@pytest.mark.parametrize("stream", ["main", "side"])
def test_without_either_wait_some_step_sees_another_batch(stream):
    assert any(trained_on(seed, **{stream: Careless})[0] != list(range(12)) for seed in range(300))


def ahead(batches):
    device = Device()
    return prefetch_to_device(batches, device.side, device.main, device.on)


def test_a_batch_is_made_one_step_ahead_and_none_beyond_the_last():
    made = []

    def batches():
        for number in range(4):
            made.append(number)
            yield (torch.tensor(number),)

    seen = [(batch[0].item(), len(made)) for batch in ahead(batches())]
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert list(ahead(iter([]))) == []
    assert [batch[0].item() for batch in ahead(itertools.islice(batches(), 2))] == [0, 1]
    assert made[4:] == [0, 1]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_error_comes_when_its_batch_would_have(at):
    def batches():
        for number in range(5):
            if number == at:
                raise UserError(f"batch {number} cannot be read")
            yield (torch.tensor(number),)

    seen = []
    with pytest.raises(UserError, match=f"^batch {at} cannot be read$"):
        for batch in ahead(batches()):
            seen.append(batch[0].item())
    assert seen == list(range(at))


def test_batches_that_are_left_early_are_closed():
    closed = []

    def batches():
        try:
            while True:
                yield (torch.zeros(1),)
        finally:
            closed.append(True)

    for _ in ahead(batches()):
        break
    assert closed == [True]


def test_on_the_cpu_batches_pass_as_they_come():
    assert side_stream(CPU) is None
    made = []
    for number, batch in enumerate(prefetch_to_device(map(made.append, range(3)), None)):
        assert batch is None
        assert made == list(range(number + 1))


def test_the_random_numbers_of_the_batches_are_those_without():
    def drawn(wrap):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(3)
        made = (
            (torch.randn(4, generator=generator), torch.rand(4)) for _ in range(5)
        )  # of its own, and the global one
        return [part for batch in wrap(made) for part in batch]

    assert all(torch.equal(a, b) for a, b in zip(drawn(iter), drawn(ahead), strict=True))


def test_an_epoch_of_batches_ahead_is_that_of_plain_ones_and_its_waits_are_still_counted():
    losses = []
    for wrap in (iter, ahead):
        record, trainer = make_record(), make_trainer("fp32")
        timed_epoch(record, trainer, wrap(make_batch(n) for n in range(6) if not time.sleep(0.01)))
        losses.append(record.train_loss)
        assert len(record.step_ms_all) == 6
        assert 0.06 <= record.data_wait_seconds_all[0] < record.epoch_seconds[0]
    assert losses[0] == losses[1]


def test_batches_that_are_left_early_are_waited_for():
    """The next one is still being made from tensors that are free from here on."""
    calls = []
    side = types.SimpleNamespace(wait_stream=lambda other: None, record_event=lambda: None)
    main = types.SimpleNamespace(wait_event=lambda event: None, wait_stream=calls.append)
    batches = prefetch_to_device(iter(range(1, 9)), side, main, lambda stream: contextlib.nullcontext())
    assert next(batches) == 1
    batches.close()
    assert calls == [side]


# Where the images lie


def pretend_gpu(monkeypatch, free, total=1000, allocated=0, fraction=1.0):
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: fraction)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=total))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


@pytest.mark.parametrize(
    ("gpu", "size", "where"),
    [
        ({"free": 800}, 200, "on the GPU"),
        ({"free": 800}, 201, "pinned"),
        ({"free": 1000, "fraction": 0.5}, 125, "on the GPU"),
        ({"free": 1000, "fraction": 0.5}, 126, "pinned"),  # memory_limit_gib
        ({"free": 1000, "fraction": 0.5, "allocated": 100}, 101, "pinned"),
    ],
)
def test_images_lie_on_the_gpu_if_they_take_a_quarter_of_what_is_free(monkeypatch, capsys, gpu, size, where):
    pretend_gpu(monkeypatch, **gpu)
    images = types.SimpleNamespace(nbytes=size, to=lambda device: "on the GPU", pin_memory=lambda: "pinned")
    assert place_images(images, torch.device("cuda")) == where
    assert ("stay in pinned memory" in capsys.readouterr().out) is (where == "pinned")


def test_on_the_cpu_images_stay_where_they_are():
    images = torch.zeros(2, 3, dtype=torch.uint8)
    assert place_images(images, CPU) is images


def test_batches_from_the_host_are_those_from_the_device():
    images = torch.arange(10 * 2, dtype=torch.uint8).view(10, 1, 1, 2)
    labels, order = torch.arange(10.0), torch.randperm(10, generator=torch.Generator().manual_seed(0))
    near, far = (list(make(images, labels, order, 4)) for make in (device_batches, host_batches))
    assert [len(labels) for _, labels in far] == [4, 4, 2]
    for (images_a, labels_a), (images_b, labels_b) in zip(near, far, strict=True):
        assert torch.equal(images_a, images_b)
        assert torch.equal(labels_a, labels_b)
        assert images_a.dtype == images_b.dtype == torch.uint8


def test_the_example_in_the_docstring_of_training_data_works():
    example = textwrap.dedent(TrainingData.__doc__[TrainingData.__doc__.index("        class MyData") :])
    names = {"TrainingData": TrainingData, "torch": torch}
    exec(example, names)
    inputs, labels = torch.arange(10.0).view(10, 1), torch.arange(10)
    data = names["MyData"](inputs, labels, inputs[:3], labels[:3])
    batches = list(data.train_batches(0, torch.float16, 4))
    assert len(batches) == data.steps_per_epoch(4) == 2
    assert all(x.dtype == torch.float16 and torch.equal(x[:, 0].long(), y) for x, y in batches)
    assert [len(y) for _, y in data.eval_batches(torch.float32, 2)] == [2, 1]
    assert data.test_batches(torch.float32, 2) is None
    assert len(data.example(3)[0]) == 3


@pytest.mark.parametrize(
    ("used", "source", "title"), [("synthetic", "synthetic", "synthetic"), ("elpv", "package", "elpv (package)")]
)
def test_the_title_of_data_says_nothing_twice(used, source, title):
    data = TrainingData()
    data.used, data.source = used, source
    assert data.title == title
