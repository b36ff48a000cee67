"""What reads time: the clock of an epoch, percentiles, waits, blocks."""

import itertools
import time
import types

import pytest
import torch
from small_training import CPU, make_record

from mixed_precision_study.timing import StepClock, count_syncs, in_blocks, summarise_times, waited_for

GPU = torch.device("cuda")


def test_the_clock_gives_seconds_and_milliseconds(monkeypatch):
    now = iter([10.0, 10.0, 10.5, 11.5, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = StepClock(CPU)
    clock.start()
    clock.tick()
    clock.tick()
    assert clock.stop() == (2.0, [500.0, 1000.0])


def test_percentiles_and_throughput():
    record = make_record()
    record.step_ms_all, record.epoch_seconds = [float(n) for n in range(1, 12)], [2.0, 1.0, 4.0]
    record.data_wait_seconds_all = [0.5, 0.25, 1.0]
    summarise_times(record, samples_per_epoch=100)
    assert (record.step_ms_p10, record.step_ms_median, record.step_ms_p90) == (2, 6, 10)
    assert record.samples_per_second == 50  # of the median epoch
    assert record.data_wait_fraction == 0.25  # 1.75 s of 7 s


def test_waiting_for_batches_is_added_up_and_all_are_given(monkeypatch):
    now = iter([0.0, 0.25, 10.0, 10.5, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    waits = []
    assert list(waited_for(["a", "b"], waits)) == ["a", "b"]
    assert waits == [0.25, 0.5, 1.0]  # the last is what it took to learn that there are no more


def test_a_slow_loader_is_told_from_a_slow_step():
    def slowly():
        for number in range(4):
            time.sleep(0.05)
            yield number

    waits, began = [], time.perf_counter()
    for _ in waited_for(slowly(), waits):
        time.sleep(0.02)
    took = time.perf_counter() - began
    assert 0.2 <= sum(waits) <= took - 0.08
    waits.clear()
    assert list(waited_for(iter([]), waits)) == []
    assert len(waits) == 1


def test_tensors_are_no_end_of_the_batches():
    batches = [torch.zeros(2), torch.tensor(0), (torch.zeros(1), None)]  # false, as numbers go
    assert len(list(waited_for(batches, []))) == 3


@pytest.mark.parametrize(
    ("steps", "blocks", "sizes"),
    [
        (10, 10, [1] * 10),
        (20, 10, [2] * 10),
        (3, 10, [1] * 3),  # fewer steps than blocks
        (1, 10, [1]),
        (25, 10, [2, 3, 2, 3, 2, 3, 2, 3, 2, 3]),  # as even as can be
        (11, 4, [2, 3, 3, 3]),
    ],
)
def test_blocks_are_nearly_equal_parts_that_sum_to_the_epoch(steps, blocks, sizes):
    assert in_blocks([1000.0] * steps, blocks) == sizes
    step_ms = [1.5 * number for number in range(steps)]
    parts = in_blocks(step_ms, blocks)
    assert sum(parts) == pytest.approx(sum(step_ms) / 1000)
    edges = [0, *itertools.accumulate(sizes)]
    assert parts == [pytest.approx(sum(step_ms[a:b]) / 1000) for a, b in itertools.pairwise(edges)]


def test_what_a_batch_waits_for_is_not_counted_as_the_steps(monkeypatch):
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    seen = []

    def batches():
        for number in range(3):
            seen.append(("batch", modes[-1]))
            yield number

    def step(batch, hidden):
        seen.append(("step", modes[-1]))
        return None, hidden

    trainer = types.SimpleNamespace(device=GPU, step=step)
    assert count_syncs(trainer, batches, None, steps=2) == 0
    assert seen[0] == ("batch", "default")  # an epoch's order may be waited for
    assert [mode for kind, mode in seen if kind == "step"] == ["warn"] * 2
    assert modes[-1] != "warn"
