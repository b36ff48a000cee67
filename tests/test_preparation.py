"""What is prepared before the clock runs and beside it: kept data, decoding, batches ahead, the start of a run."""

import contextlib
import functools
import itertools
import math
import random
import re
import shutil
import types

import harness
import numpy as np
import preparation
import pytest
import torch
from conftest import run_cells
from test_harness import CPU, make_batch, make_record, make_trainer

# Kept data


def make_arrays():
    return {"images": np.arange(3000, dtype=np.uint8).reshape(10, 300), "numbers": np.arange(5)}


def never():
    raise AssertionError("what is kept must not be made again")


def same(first, second):
    return set(first) == set(second) and all(np.array_equal(first[name], second[name]) for name in first)


def test_arrays_are_made_once_and_kept_for_the_next_kernel(tmp_path):
    first = preparation.kept_arrays(tmp_path, "things", ("a", 1), make_arrays)
    assert same(first, make_arrays())
    again = preparation.kept_arrays(tmp_path, "things", ("a", 1), never)
    assert same(again, first)
    assert {name: array.dtype for name, array in again.items()} == {name: array.dtype for name, array in first.items()}
    (path,) = (tmp_path / "cache").iterdir()  # and no temporary file is left
    assert path.name.startswith("things-")
    assert path.suffix == ".npz"


def test_another_key_is_another_file(tmp_path):
    for number in range(3):
        made = preparation.kept_arrays(tmp_path, "n", ("key", number), lambda number=number: {"n": np.array([number])})
        assert made["n"].tolist() == [number]
    for number in range(3):
        assert preparation.kept_arrays(tmp_path, "n", ("key", number), never)["n"].tolist() == [number]


def test_of_one_name_the_files_that_were_used_last_are_kept(tmp_path):
    def kept(name, number, make=make_arrays):
        return same(preparation.kept_arrays(tmp_path, name, number, make), make_arrays())

    assert kept("n", 0) and kept("n-0123456789abcdef", 0) and kept("[n]", 0)
    assert all(kept("n", number) for number in (1, 2)) and kept("n", 0, never)
    assert kept("n", 3)  # one too many: 1 was used longest ago
    assert all(kept("n", number, never) for number in (0, 2, 3))
    assert kept("n-0123456789abcdef", 0, never) and kept("[n]", 0, never)
    with pytest.raises(AssertionError):
        kept("n", 1, never)


def broken(content, how):
    middle = len(content) // 2
    return {
        "empty": b"",
        "no archive": b"nothing of the kind",
        "cut off": content[:middle],
        "end missing": content[:-10],
        "one bit": content[:1000] + bytes([content[1000] ^ 4]) + content[1001:],
    }[how]


@pytest.mark.parametrize("how", ["empty", "no archive", "cut off", "end missing", "one bit"])
def test_a_damaged_file_is_made_anew(tmp_path, how):
    preparation.kept_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    path.write_bytes(broken(whole, how))
    assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    assert same(preparation.kept_arrays(tmp_path, "n", 1, never), make_arrays())
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_any_flipped_byte_gives_the_right_arrays(tmp_path):
    preparation.kept_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(200):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :])
        assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays()), place


def test_what_was_pickled_is_never_loaded(tmp_path):
    preparation.kept_arrays(tmp_path, "n", 1, make_arrays)
    (path,) = (tmp_path / "cache").iterdir()
    with path.open("wb") as opened:
        np.savez(opened, images=np.array([print], dtype=object), numbers=np.arange(5))
    assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way")
    for _ in range(2):
        assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    (tmp_path / "cache").unlink()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(preparation.np, "savez", full)
    assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(preparation.Path, "unlink", read_only)
    assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())


def test_half_of_the_disk_stays_free(tmp_path, monkeypatch):
    size = sum(array.nbytes for array in make_arrays().values())
    for free, kept in ((2 * size, 0), (2 * size + 2, 1)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        assert same(preparation.kept_arrays(tmp_path, "n", 1, make_arrays), make_arrays())
        assert len(list((tmp_path / "cache").iterdir())) == kept


def test_stamps_change_with_a_file_and_name_one_that_is_missing(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    before = preparation.stamps_of([path])
    assert before == preparation.stamps_of([path])
    path.write_bytes(b"abcd")
    assert preparation.stamps_of([path]) != before
    with pytest.raises(preparation.Stop, match=r"b\.png cannot be read \(No such file"):
        preparation.stamps_of([tmp_path / "b.png"])


# Decoding


def number_image(index):
    return torch.full((1, 2, 3), index % 256, dtype=torch.uint8)


@pytest.mark.parametrize(("processes", "count"), [(0, 40), (2, 300), (None, 40), (None, 600)])
def test_images_come_in_order_whoever_reads_them(processes, count):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    images = preparation.decode_all(number_image, count, "reading", processes)
    assert images.shape == (count, 1, 2, 3)
    assert images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [index % 256 for index in range(count)]
    assert torch.equal(torch.get_rng_state(), state)  # what is drawn next does not depend on it


@pytest.mark.parametrize("processes", [0, 2])
def test_an_image_that_cannot_be_read_is_named_by_every_reader(processes):
    def read(index):
        if index in (17, 30):
            raise preparation.Stop(f"the image {index} cannot be read")
        return number_image(index)

    with pytest.raises(preparation.Stop, match=r"^the image 17 cannot be read$"):
        preparation.decode_all(read, 40, "reading", processes)


def test_decoding_shows_how_far_it_is(capsys):
    preparation.decode_all(number_image, 30, "reading images", 0)
    assert "reading images" in capsys.readouterr().out


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
        for batch in preparation.one_ahead(map(device.make, range(count)), device.side, device.main, device.on):
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
    return preparation.one_ahead(batches, device.side, device.main, device.on)


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
                raise preparation.Stop(f"batch {number} cannot be read")
            yield (torch.tensor(number),)

    seen = []
    with pytest.raises(preparation.Stop, match=f"^batch {at} cannot be read$"):
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
    assert preparation.side_stream(CPU) is None
    made = []
    for number, batch in enumerate(preparation.one_ahead(map(made.append, range(3)), None)):
        assert batch is None
        assert made == list(range(number + 1))


def test_the_random_numbers_of_the_batches_are_those_without():
    def batches():
        generator = torch.Generator().manual_seed(3)
        for _ in range(5):
            yield (torch.randn(4, generator=generator), torch.rand(4))  # of its own, and of everybody's

    torch.manual_seed(0)
    plain = list(batches())
    torch.manual_seed(0)
    assert all(
        torch.equal(a, b) for x, y in zip(plain, ahead(batches()), strict=True) for a, b in zip(x, y, strict=True)
    )


def test_an_epoch_of_batches_ahead_is_that_of_plain_ones_and_its_waits_are_still_counted():
    records = []
    for wrap in (lambda batches: batches, ahead):
        record, trainer = make_record(), make_trainer("fp32")
        slow = (make_batch(n) for n in range(6) if not preparation.time.sleep(0.01))
        harness.timed_epoch(record, trainer, wrap(slow))
        records.append(record)
    plain, other = records
    assert other.train_loss == plain.train_loss
    assert len(other.step_ms_all) == 6
    for record in records:
        assert 0.06 <= record.data_wait_seconds_all[0] < record.epoch_seconds[0]


# Where the images lie


def pretend_card(monkeypatch, free, total=1000, allocated=0, fraction=1.0):
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: fraction)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=total))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


@pytest.mark.parametrize(
    ("card", "size", "where"),
    [
        ({"free": 800}, 200, "on the GPU"),
        ({"free": 800}, 201, "pinned"),
        ({"free": 100}, 26, "pinned"),
        ({"free": 1000, "fraction": 0.5}, 125, "on the GPU"),
        ({"free": 1000, "fraction": 0.5}, 126, "pinned"),  # memory_limit_gib
        ({"free": 1000, "fraction": 0.5, "allocated": 100}, 101, "pinned"),
    ],
)
def test_images_lie_on_the_gpu_if_they_take_a_quarter_of_what_is_free(monkeypatch, capsys, card, size, where):
    pretend_card(monkeypatch, **card)
    images = types.SimpleNamespace(nbytes=size, to=lambda device: "on the GPU", pin_memory=lambda: "pinned")
    assert preparation.placed(images, torch.device("cuda")) == where
    assert ("stay in pinned memory" in capsys.readouterr().out) is (where == "pinned")


def test_on_the_cpu_images_stay_where_they_are():
    images = torch.zeros(2, 3, dtype=torch.uint8)
    assert preparation.placed(images, CPU) is images


def test_batches_from_the_host_are_those_from_the_device():
    images = torch.arange(10 * 2, dtype=torch.uint8).view(10, 1, 1, 2)
    labels, places = torch.arange(10.0), torch.randperm(10, generator=torch.Generator().manual_seed(0))
    batches = [list(make(images, labels, places, 4)) for make in (preparation.device_batches, preparation.host_batches)]
    assert [len(there) for _, there in batches[1]] == [4, 4, 2]
    for (images_a, labels_a), (images_b, labels_b) in zip(*batches, strict=True):
        assert torch.equal(images_a, images_b)
        assert torch.equal(labels_a, labels_b)
        assert images_a.dtype == images_b.dtype == torch.uint8


# The start of a run


def test_the_start_is_told_part_by_part_and_only_by_the_first_run(monkeypatch, capsys):
    now = iter([3.0, 4.0, 9.0, 9.5, 12.0, 20.0])
    monkeypatch.setattr(preparation.time, "perf_counter", lambda: next(now))
    start, first, second = preparation.StartUp(1.0), make_record(), make_record()
    for part in ("import", "preflight", "data", "import", "model"):
        start.lap(part)
    start.end(first)
    assert first.startup_seconds == 19
    parts = ("import", "preflight", "data", "model", "warmup")
    assert [getattr(first, f"startup_{part}_seconds") for part in parts] == [2.5, 1, 5, 2.5, 8]
    assert first.startup_reason is None
    line = "Start: 19.0 s to the first timed step (import 2.5, preflight 1.0, data 5.0, model 2.5, warmup 8.0)\n"
    assert capsys.readouterr().out == line
    start.end(first)  # its next epoch
    start.end(second)
    assert (first.startup_seconds, first.startup_reason) == (19, None)
    assert (second.startup_seconds, second.startup_reason) == (None, "not the first run of its kernel")
    assert capsys.readouterr().out == ""


def test_what_compiling_and_the_search_took_is_told_with_the_start(capsys):
    record = make_record()
    record.compile_seconds, record.search_seconds = 2.54, 0.0
    preparation.StartUp(preparation.time.perf_counter()).end(record)
    assert re.search(r"\(warmup \d+\.\d; in it torch\.compile 2\.5\)$", capsys.readouterr().out.strip())
    record.search_seconds = 1.2
    preparation.StartUp(preparation.time.perf_counter()).end(record)
    assert "; in it torch.compile 2.5 and cuDNN's search, at most, 1.2)" in capsys.readouterr().out


def test_an_epoch_ends_the_start(monkeypatch):
    start = preparation.StartUp(preparation.time.perf_counter())
    monkeypatch.setattr(harness, "startup", start)
    record, trainer = make_record(), make_trainer("fp32")
    harness.warm_up(record, trainer, lambda: iter([make_batch()]))
    assert record.startup_seconds is None
    harness.timed_epoch(record, trainer, [make_batch()])
    assert record.startup_warmup_seconds >= record.warmup_seconds > 0
    parts = [record.startup_model_seconds, record.startup_warmup_seconds]
    assert record.startup_seconds == pytest.approx(sum(parts))
    assert record.startup_import_seconds is None  # nobody told of it here


def pretend_trainer(kind="cuda", layer=torch.nn.Conv2d(1, 1, 1)):  # noqa: B008
    return types.SimpleNamespace(device=torch.device(kind), network=torch.nn.Sequential(layer))


def test_the_search_is_bounded_and_reported(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    record = make_record()
    preparation.read_search(record, pretend_trainer(), 3.0, 0.5)
    assert (record.search_seconds, record.search_reason) == (None, "cuDNN's search is off")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 0)
    preparation.allow_search()
    assert torch.backends.cudnn.benchmark is True
    assert torch.backends.cudnn.benchmark_limit == preparation.SEARCH_LIMIT == 10
    record = make_record()
    preparation.read_search(record, pretend_trainer(), 3.0, 0.5)
    assert (record.search_seconds, record.search_limit_algorithms, record.search_reason) == (2.5, 10, None)
    preparation.read_search(record, pretend_trainer(), 0.6, 0.5)
    assert record.search_seconds == 2.5  # a later repeat finds everything searched
    none = make_record()
    preparation.read_search(none, pretend_trainer(), 0.4, 0.5)
    assert none.search_seconds == 0


@pytest.mark.parametrize(
    ("most", "step_seconds", "limit"),
    [(10, 0.4, 10), (10, 2.8, 3), (10, 60.0, 1), (0, 2.8, 3), (0, 0.0, 0), (2, 2.8, 2)],
)
def test_where_a_step_takes_long_fewer_algorithms_are_searched(monkeypatch, most, step_seconds, limit):
    monkeypatch.setattr(preparation, "SEARCH_LIMIT", most)
    for switch in ("benchmark", "benchmark_limit"):
        monkeypatch.setattr(torch.backends.cudnn, switch, getattr(torch.backends.cudnn, switch))
    preparation.allow_search(step_seconds)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit) == (True, limit)


def test_where_nothing_is_searched_a_reason_says_why(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for trainer, reason in (
        (pretend_trainer("cpu"), "no GPU"),
        (pretend_trainer(layer=torch.nn.Linear(2, 2)), "the model has no convolution"),
    ):
        record = make_record()
        preparation.read_search(record, trainer, 3.0, 0.5)
        assert (record.search_seconds, record.search_limit_algorithms, record.search_reason) == (None, None, reason)
    record = make_record()
    harness.warm_up(record, make_trainer("fp32"), lambda: iter([make_batch()]))
    assert record.search_reason == "no GPU"


def test_compiling_is_no_part_of_the_search(monkeypatch):
    given, spent = [], iter([10.0, 12.5, *[12.5] * 9])
    monkeypatch.setattr(harness, "read_compiler", lambda trainer: {"graphs": 0, "seconds": next(spent)})
    monkeypatch.setattr(harness, "read_search", lambda record, trainer, first, steady: given.append((first, steady)))
    trainer, record = make_trainer("fp32"), make_record()
    harness.warm_up(record, trainer, lambda: iter([make_batch()]))
    ((first, steady),) = given
    assert first == pytest.approx(steady - 2.5)  # one step on the CPU, of which compiling "took" 2.5 s
    assert math.isfinite(steady)


# In the notebooks


def folder_of_images(folder, count=3):
    from test_notebooks import make_tree

    make_tree(folder / "cifar10", count)


def test_a_decoded_tree_is_kept_in_the_cache_of_its_data_folder(tmp_path, monkeypatch):
    folder_of_images(tmp_path)
    names = run_cells("cifar_resnet", "data-choice", dataset="cifar10", data_dir=str(tmp_path))
    (path,) = (tmp_path / "cache").glob("cifar10-*.npz")
    monkeypatch.setitem(names, "decode_all", lambda *_: never())
    again = names["load_data"]("cifar10", str(tmp_path))
    for part in ("train", "test"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(again, part), getattr(names["data"], part), strict=True))
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-100])
    assert torch.equal(names["load_data"]("cifar10", str(tmp_path)).train[0], again.train[0])


SMALL = {"image_height": 32, "image_width": 48, "batch_size": 4}


def test_resized_images_are_kept_by_size_and_files(tmp_path, monkeypatch):
    from test_notebooks import save_image, write_csv

    for number in range(30):
        save_image(tmp_path / "images" / f"{number}.png", 8 * number, (60, 40))
    csv_path = write_csv(tmp_path / "mine.csv", [("images", f"{n}.png", n / 30) for n in range(30)])
    names = run_cells("efficientnet_regression", "batches", csv_path=csv_path, data_dir=str(tmp_path / "data"), **SMALL)
    assert names["pictures"].shape == (30, 3, 32, 48)
    for number in (0, 7):
        assert torch.equal(names["pictures"][number], names["data"].read(number))
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 1
    decode = names["decode_all"]
    monkeypatch.setitem(names, "decode_all", lambda *_: never())
    assert torch.equal(names["read_all"](), names["pictures"])
    monkeypatch.setitem(names, "decode_all", decode)
    save_image(tmp_path / "images" / "7.png", 3, (50, 50))
    changed = names["read_all"]()
    assert not torch.equal(changed[7], names["pictures"][7])
    assert torch.equal(changed[8], names["pictures"][8])
    monkeypatch.setitem(names, "image_width", 64)
    assert names["read_all"]().shape == (30, 3, 32, 64)
    assert len(list((tmp_path / "data" / "cache").glob("csv-*.npz"))) == 3


def test_batches_are_the_same_wherever_the_images_lie(tmp_path, monkeypatch):
    names = run_cells("efficientnet_regression", "batches", dataset="synthetic", **SMALL)
    assert names["stored_batches"].func is names["device_batches"]
    plain = list(names["train_batches"](1, torch.float32, 4))
    assert len(plain) == names["steps_in_epoch"](4)
    assert {tuple(images.shape) for images, _ in plain} == {(4, 3, 32, 48)}  # a smaller one would be searched anew
    held_out = list(names["test_batches"](torch.float32, 5))
    host = functools.partial(names["host_batches"], names["pictures"], names["labels"])
    monkeypatch.setitem(names, "stored_batches", host)
    for before, after in (
        (plain, names["prepared_batches"](1, torch.float32, 4)),
        (held_out, names["test_batches"](torch.float32, 5)),
    ):
        for (images_a, labels_a), (images_b, labels_b) in zip(before, after, strict=True):
            assert torch.equal(images_a, images_b)
            assert torch.equal(labels_a, labels_b)
    images, there = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    for number, place in enumerate(names["held_out"][:3].tolist()):
        assert there[number] == names["data"].labels[place]
        exact = names["normalise"](names["data"].read(place)[None], torch.float32)[0]
        assert torch.equal(images[number], exact)


def test_elpvs_images_and_labels_are_those_of_its_own_loader():
    utils = pytest.importorskip("elpv_dataset.utils")
    pictures, probabilities, _ = utils.load_dataset()
    names = run_cells("efficientnet_regression", "data-choice", dataset="elpv", image_height=300, image_width=300)
    assert torch.equal(names["data"].labels, torch.tensor(probabilities.tolist(), dtype=torch.float32))
    for place in (0, 1, 1300, 2623):
        assert np.array_equal(names["data"].read(place)[0].numpy(), pictures[place])


def write_texts(folder, train="a b <unk> a\nc d\n", **others):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"train": train, "valid": "b strange\n", **others}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def test_numbered_words_are_kept_under_the_checksum_of_the_text(tmp_path, monkeypatch):
    names = run_cells("lstm_language_model", "data-choice", dataset="synthetic")
    folder = tmp_path / "wikitext-2"
    write_texts(folder)
    first = names["load_data"]("wikitext-2", str(tmp_path))
    vocabulary, (train, valid) = names["number_words"](
        *(names["read_words"](folder / f"{n}.txt") for n in ("train", "valid"))
    )
    assert first.vocabulary == list(vocabulary) == ["a", "b", "<unk>", "<eos>", "c", "d"]
    assert (first.train.tolist(), first.valid.tolist(), len(first.test)) == (train.tolist(), valid.tolist(), 0)
    assert first.train.dtype == first.test.dtype == torch.int64
    number_words = names["number_words"]
    monkeypatch.setitem(names, "number_words", lambda *_: never())
    again = names["load_data"]("wikitext-2", str(tmp_path))
    assert again.vocabulary == first.vocabulary
    assert torch.equal(again.train, first.train)
    stat = (folder / "train.txt").stat()
    write_texts(folder, train="a b <unk> a\nc e\n")  # as long as before
    names["os"].utime(folder / "train.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # and as old
    monkeypatch.setitem(names, "number_words", number_words)
    assert names["load_data"]("wikitext-2", str(tmp_path)).vocabulary[-1] == "e"
    write_texts(folder, test="d d\n")
    assert names["load_data"]("wikitext-2", str(tmp_path)).test.tolist() == [5, 5, 3]


def test_a_damaged_cache_of_words_is_made_anew(tmp_path):
    names = run_cells("lstm_language_model", "data-choice", dataset="synthetic")
    write_texts(tmp_path / "wikitext-2")
    first = names["load_data"]("wikitext-2", str(tmp_path))
    (path,) = (tmp_path / "cache").glob("wikitext-2-*.npz")
    path.write_bytes(b"PK" + path.read_bytes()[2:200])
    again = names["load_data"]("wikitext-2", str(tmp_path))
    assert (again.vocabulary, again.train.tolist()) == (first.vocabulary, first.train.tolist())


def test_an_epoch_of_text_has_pieces_of_one_shape():
    names = run_cells("lstm_language_model", "batches", dataset="synthetic", batch_size=7, bptt=6)
    shapes = {tuple(part.shape) for batch in names["train_batches"](names["train_rows"]) for part in batch}
    assert shapes == {(6, 7)}


def test_batches_that_are_left_early_are_waited_for():
    """The next one is still being made from tensors that are free from here on."""
    calls = []
    side = types.SimpleNamespace(wait_stream=lambda other: None, record_event=lambda: None)
    main = types.SimpleNamespace(wait_event=lambda event: None, wait_stream=lambda other: calls.append(other))
    batches = preparation.one_ahead(iter(range(1, 9)), side, main, lambda stream: contextlib.nullcontext())
    assert next(batches) == 1
    batches.close()
    assert calls == [side]


def test_a_search_in_a_probe_is_the_runs():
    network = torch.nn.Conv2d(1, 1, 1)
    trainer = types.SimpleNamespace(network=network, device=torch.device("cuda"))
    record = types.SimpleNamespace(search_reason=None, search_seconds=None)
    searched, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    preparation.read_search(record, trainer, 5.0, 1.0)  # in the last probe
    preparation.read_search(record, trainer, 1.1, 1.0)  # in the warm-up, which finds everything searched
    torch.backends.cudnn.benchmark = searched
    assert (record.search_seconds, record.search_reason) == (4.0, None)
