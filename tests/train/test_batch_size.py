"""The search for the largest batch, on a pretended device whose memory holds so many samples."""

import functools
import time

import pytest
import torch
from small_training import CPU, make_record
from torch.backends import cudnn

from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train import batch_size
from mixed_precision_study.train.batch_size import largest_batch, limit_memory, probe

GPU = torch.device("cuda")


@pytest.fixture
def search(monkeypatch):
    """Return a function that searches where `room` samples fit, and `room_when_searching` with
    cuDNN's search.
    """

    def find(room, limit=10**6, room_when_searching=None):
        record, searches = make_record(), []

        def probe(record, make_trainer, batches, size, device, rows=1, search=None):
            fits = size <= (room if search is None else room_when_searching or room)
            record.batch_probes.append(
                [size, "ok" if fits else "oom", None, None if search is not None else 50]
            )
            searches.append(search)
            return fits

        monkeypatch.setattr(batch_size, "probe", probe)
        found = largest_batch(record, None, None, GPU, limit)
        assert searches[-1] == found / 50  # seconds of a step, by the probes' 50 samples a second
        return found, record.batch_probes

    return find


@pytest.mark.parametrize(
    "room, limit, searching",
    [
        *((room, 10**6, None) for room in (1, 7, 8, 15, 17, 129, 4097, 70_001)),
        *((10**9, samples, None) for samples in (50_000, 1003, 5)),  # the data set is a limit
        (4096, 10**6, 3500),  # it fits only without the search
    ],
)
def test_the_largest_is_found_to_a_sixteenth(search, room, limit, searching):
    found, probes = search(room, limit, searching)
    most = min(room, limit, searching or room)
    assert most - max(8, most / 16) <= found <= most
    assert found == most or found % 8 == 0
    assert probes[-1] == [found, "ok", None, None]
    assert len(probes) < 25
    if not searching:  # none twice, but the last with cuDNN's search
        assert len({size for size, *_ in probes[:-1]}) == len(probes) - 1


def test_where_nothing_fits_nothing_is_searched(search):
    with pytest.raises(torch.OutOfMemoryError, match="not even a batch of one sample"):
        search(0)
    with pytest.raises(Unsupported, match="needs a GPU"):
        largest_batch(make_record(), None, None, CPU, 100)
    assert limit_memory(24.0, CPU) is None


class Counting:
    """A trainer that counts its steps, notes cuDNN's switches and runs out of memory above
    `room` samples.
    """

    captured, device, network, is_compiled = None, CPU, torch.nn.Identity(), False

    def __init__(self, room=64):
        self.room, self.steps, self.seen = room, 0, set()

    def step(self, batch, hidden):
        self.seen.add((cudnn.benchmark, cudnn.deterministic))
        time.sleep(0.02)
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.steps += 1
        return None, hidden


def zeros(size):
    return iter([torch.zeros(size)] * 9)


def fail():
    raise ValueError("no such model")


@pytest.mark.parametrize("search", [None, 0.01])
def test_a_probe_trains_a_few_steps_without_a_search(monkeypatch, search):
    """PyTorch caches its choice per shape and `deterministic`: a probe without a search uses
    another key.
    """
    monkeypatch.setattr(cudnn, "benchmark", True)
    monkeypatch.setattr(cudnn, "benchmark_limit", 10)
    record, made = make_record(), [Counting(), Counting()]
    fits = probe(record, lambda: made[0], zeros, 64, CPU, 2, search)
    assert (fits, probe(record, lambda: made[1], zeros, 65, CPU)) == (True, False)
    assert made[0].steps > 5 > made[1].steps == 0
    (size, status, peak, speed), (_, oom, _, no_speed) = record.batch_probes
    assert (size, status, peak, oom, no_speed) == (64, "ok", None, "oom", None)
    assert speed > 0
    assert (made[0].seen, record.search_reason) == (
        {(search is not None, search is None)},
        None if search is None else "no GPU",
    )
    with pytest.raises(ValueError, match="no such model"):
        probe(make_record(), fail, zeros, 8, CPU, 1, search)
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)


def test_a_probe_that_frees_the_cache_does_not_fit(monkeypatch):
    # a counter of the allocator reads these, one after the other; the other stays 0
    def counters(name, *values):
        count = functools.partial(next, iter(values))
        monkeypatch.setattr(batch_size, "count", lambda kind, _: count() if kind == name else 0)

    record = make_record()
    counters("num_alloc_retries", 3, 7)  # 3 once the first two steps have taken their memory
    assert not probe(record, Counting, zeros, 64, CPU)
    counters("num_ooms", 0, 2)
    assert not probe(record, fail, zeros, 8, CPU)  # as cuDNN's callers hide it
    assert [status for _, status, *_ in record.batch_probes] == ["oom", "oom"]
