"""The search for the largest batch, on a pretended device whose memory holds so many samples."""

import time
import types

import pytest
import torch
from conftest import EXPERIMENTS

from mixed_precision_study.batch_size import largest_batch, limit_memory, probe
from mixed_precision_study.errors import Unsupported, UserError
from mixed_precision_study.parameters import EXPERIMENTS as DECLARED
from mixed_precision_study.parameters import check_values

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def made_up_record():
    return types.SimpleNamespace(batch_probes=[], batch_size_used=None)


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

        monkeypatch.setattr("mixed_precision_study.batch_size.probe", probe)
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


def test_a_size_that_fits_only_without_the_search_gives_way(search):
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
    """A trainer that runs out of memory above so many samples, and counts its steps."""

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
    batches = lambda size: iter([torch.zeros(size)] * 9)  # noqa: E731
    assert probe(record, make, batches, 64, CPU, rows=2)
    assert not probe(record, make, batches, 65, CPU)
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
def test_a_probe_leaves_training_its_search(monkeypatch, search):
    """PyTorch keeps the plan of a shape by its switches: what is probed without a search has another key."""
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


def test_a_probe_that_goes_on_only_by_freeing_and_asking_anew_does_not_fit(monkeypatch):
    retries = iter([3, 3, 7])  # after two steps 3, as that was warm-up; 7 in the end
    monkeypatch.setattr(
        "mixed_precision_study.batch_size.count", lambda kind, device: next(retries) if "retries" in kind else 0
    )
    next(retries)
    record = made_up_record()
    assert not probe(record, lambda: Counting(64), lambda size: iter([torch.zeros(size)] * 9), 64, CPU)
    assert record.batch_probes[0][1] == "oom"


def test_a_lack_of_memory_that_cudnns_callers_swallow_is_one(monkeypatch):
    ran_out = iter([0, 2, 2, 2])
    monkeypatch.setattr("mixed_precision_study.batch_size.count", lambda kind, device: next(ran_out))

    def make():
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    assert not probe(made_up_record(), make, lambda size: iter(()), 8, CPU)
    with pytest.raises(RuntimeError, match="GET was unable"):
        probe(made_up_record(), make, lambda size: iter(()), 8, CPU)


def test_another_failure_of_a_probe_is_no_lack_of_memory():
    def make():
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        probe(made_up_record(), make, lambda size: iter(()), 8, CPU)


def test_the_memory_limit_is_checked_and_does_nothing_on_the_cpu():
    limit_memory(24.0, CPU)
    with pytest.raises(UserError, match="memory_limit_gib is -1"):
        check(memory_limit_gib=-1)
    assert check(memory_limit_gib=24)["memory_limit_gib"] == 24.0


def check(name="cifar_resnet", **changes):
    return check_values(name, {one.name: one.default for one in DECLARED[name]} | changes)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("value", ["largest", 0, -8, 2.5, True])
def test_a_batch_size_is_a_number_or_max(name, value):
    assert check(name, batch_size="max")["batch_size"] == "max"
    assert check(name, batch_size=8)["batch_size"] == 8
    with pytest.raises(UserError, match="batch_size is"):
        check(name, batch_size=value)
