"""The search for the largest batch, on a pretended device whose memory holds so many samples."""

import time
import types

import pytest
import torch
from conftest import EXPERIMENTS

from mixed_precision_study.parameters import Unsupported, UserError, checked
from mixed_precision_study.train.batch_size import largest_batch, limit_memory, probe

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def made_up_record():
    return types.SimpleNamespace(precision="fp32", batch_probes=[], batch_size_used=None)


@pytest.fixture
def search(monkeypatch):
    """Return a function that searches where `room` samples fit, and `room_when_searching` with cuDNN's search."""

    def find(room, limit=10**6, room_when_searching=None, **options):
        record = made_up_record()

        def probe(record, make_trainer, batches, size, device, rows=1, search=None):
            most = room if search is None or room_when_searching is None else room_when_searching
            record.batch_probes.append(
                [size, "ok" if size <= most else "oom", None, None if search is not None else 50]
            )
            record.searched = search
            return size <= most

        monkeypatch.setattr("mixed_precision_study.train.batch_size.probe", probe)
        found = largest_batch(record, None, None, GPU, limit, **options)
        assert record.searched == found / 50  # seconds of a step, by the probes' 50 samples a second
        return found, record.batch_probes

    return find


@pytest.mark.parametrize("room", [1, 3, 7, 8, 15, 16, 17, 100, 129, 1000, 4097, 70_001])
def test_the_largest_is_found_to_a_sixteenth_and_never_above_what_fits(search, room):
    found, probes = search(room)
    assert found <= room
    assert room - found <= max(8, room / 16)
    assert found == room or found % 8 == 0 or found < 8
    assert probes[-1] == [found, "ok", None, None]
    assert len(probes) < 25
    assert len({size for size, *_ in probes[:-1]}) == len(probes) - 1  # none twice, but the last with cuDNN's search


def test_the_data_set_is_a_limit(search):
    found, probes = search(10**9, limit=50_000)
    assert found == 50_000
    assert all(status == "ok" for _, status, *_ in probes)
    assert search(10**9, limit=1003)[0] == 1000
    assert search(10**9, limit=5)[0] == 5


def test_a_size_that_fits_only_without_the_search_is_reduced(search):
    found, probes = search(4096, room_when_searching=3500)
    assert 3500 * 15 / 16 <= found <= 3500
    assert [4096, "oom", None, None] in probes


def test_nothing_fits(search):
    with pytest.raises(torch.OutOfMemoryError, match="not even a batch of one sample"):
        search(0)


def test_on_the_cpu_there_is_nothing_to_search():
    with pytest.raises(Unsupported, match="needs a GPU"):
        largest_batch(made_up_record(), None, None, CPU, 100)


class Counting:
    """A trainer that counts its steps and runs out of memory above `room` samples."""

    captured, device, network = None, CPU, torch.nn.Identity()
    model = network

    def __init__(self, room):
        self.room, self.steps = room, 0

    def step(self, batch, hidden):
        held = torch.zeros(8)  # what a real step would hold when it fails
        time.sleep(0.02)
        if len(batch) > self.room:
            raise torch.OutOfMemoryError(f"CUDA out of memory, with {held.numel()}")
        self.steps += 1
        return None, hidden


def test_a_probe_trains_a_few_steps_and_says_what_it_saw():
    record, made = made_up_record(), []

    def make():
        made.append(Counting(64))
        return made[-1]

    torch.backends.cudnn.benchmark = True
    assert probe(record, make, lambda size: iter([torch.zeros(size)] * 9), 64, CPU, rows=2)
    assert not probe(record, make, lambda size: iter([torch.zeros(size)] * 9), 65, CPU)
    assert torch.backends.cudnn.benchmark is True
    assert made[0].steps > 5
    assert made[1].steps == 0
    (size, status, peak, speed), (_, oom, _, no_speed) = record.batch_probes
    assert (size, status, peak) == (64, "ok", None)
    assert speed > 0
    assert (oom, no_speed) == ("oom", None)


class Flagged(Counting):
    """A trainer that notes cuDNN's switches at each step."""

    def __init__(self, seen):
        super().__init__(10**6)
        self.seen = seen

    def step(self, batch, hidden):
        self.seen.add((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
        return super().step(batch, hidden)


@pytest.mark.parametrize("search", [None, 0.01])
def test_a_probe_does_not_spoil_the_search_of_training(monkeypatch, search):
    """PyTorch caches its choice per shape and `deterministic`: a probe without a search uses another key."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 10)
    seen, record = set(), made_up_record()
    assert probe(record, lambda: Flagged(seen), lambda size: iter([torch.zeros(size)]), 8, CPU, 1, search)
    assert seen == {(search is not None, search is None)}
    assert getattr(record, "search_reason", "not asked") == ("not asked" if search is None else "no GPU")
    with pytest.raises(ValueError, match="no such model"):
        probe(made_up_record(), fail, lambda size: iter(()), 8, CPU, 1, search)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (True, False)


def fail():
    raise ValueError("no such model")


def counters(monkeypatch, name, values):
    """Have a counter of the allocator read `values`, one after the other; the other stays 0."""
    values = iter(values)
    monkeypatch.setattr(
        "mixed_precision_study.train.batch_size.count", lambda kind, _: next(values) if kind == name else 0
    )


def test_a_probe_that_frees_the_cache_at_every_step_does_not_fit(monkeypatch):
    counters(monkeypatch, "num_alloc_retries", [3, 7])  # 3 once the first two steps have taken their memory
    record = made_up_record()
    assert not probe(record, lambda: Counting(64), lambda size: iter([torch.zeros(size)] * 9), 64, CPU)
    assert record.batch_probes[0][1] == "oom"


def test_another_error_counts_as_out_of_memory_only_if_the_allocator_ran_out(monkeypatch):
    counters(monkeypatch, "num_ooms", [0, 2, 2, 2])
    assert not probe(made_up_record(), fail, lambda size: iter(()), 8, CPU)  # as cuDNN's callers hide it
    with pytest.raises(ValueError, match="no such model"):
        probe(made_up_record(), fail, lambda size: iter(()), 8, CPU)


def test_the_memory_limit_is_checked_and_does_nothing_on_the_cpu():
    limit_memory(24.0, CPU)
    with pytest.raises(UserError, match="memory_limit_gib is -1"):
        check(memory_limit_gib=-1)
    assert check(memory_limit_gib=24)["memory_limit_gib"] == 24.0


def check(name="cifar_resnet", **changes):
    return checked(name, changes).model_dump()


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("value", ["largest", 0, -8, 2.5, True])
def test_a_batch_size_is_a_number_or_max(name, value):
    assert check(name, batch_size="max")["batch_size"] == "max"
    assert check(name, batch_size=8)["batch_size"] == 8
    with pytest.raises(UserError, match="batch_size is"):
        check(name, batch_size=value)
