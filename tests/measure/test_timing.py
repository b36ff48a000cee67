"""Times: the clock of an epoch, percentiles, waits for batches, and blocks."""

import itertools
import time
import warnings

import pytest
import torch
from conftest import CASES
from small_training import make_record

from mixed_precision_study.measure.timing import (
    count_syncs,
    in_blocks,
    summarise_times,
    waited_for,
)


def pretend_clock(monkeypatch, *seconds):
    """Let time.perf_counter() return these values, one after the other."""
    values = iter(seconds)
    monkeypatch.setattr(time, "perf_counter", lambda: next(values))


def test_percentiles_and_throughput():
    record = make_record(epoch_seconds=[2.0, 1.0, 3.0], data_wait_seconds_all=[0.5, 0.25, 0.75])
    record.step_ms_all = [float(number) for number in range(1, 12)]
    summarise_times(record, samples_per_epoch=100)
    assert (record.step_ms_p10, record.step_ms_median, record.step_ms_p90) == (2, 6, 10)
    assert record.samples_per_second == 50  # of the mean epoch
    assert record.data_wait_fraction == 0.25  # 1.5 s of 6 s


def test_waits_for_batches_are_noted_and_all_batches_are_given(monkeypatch):
    # the second is false, and not the end
    batches = [torch.zeros(2), torch.tensor(0), (torch.zeros(1), None)]
    pretend_clock(monkeypatch, 0.0, 0.25, 10.0, 10.5, 20.0, 21.0, 30.0, 30.5)
    waits = []
    given = list(waited_for(batches, waits))
    assert all(one is other for one, other in zip(given, batches, strict=True))
    assert waits == [0.25, 0.5, 1.0, 0.5]  # the last is the time to learn that there are no more


@pytest.mark.parametrize("steps, blocks, sizes", CASES["blocks of an epoch"])
def test_blocks_are_nearly_equal_parts_that_sum_to_the_epoch(steps, blocks, sizes):
    step_ms = [1.5 * number for number in range(steps)]
    edges = [0, *itertools.accumulate(sizes)]
    parts = [pytest.approx(sum(step_ms[a:b]) / 1000) for a, b in itertools.pairwise(edges)]
    assert in_blocks(step_ms, blocks) == parts


def test_waits_while_a_batch_is_made_are_not_counted(monkeypatch):
    modes, seen = ["default"], []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def batches():
        for _ in range(3):
            seen.append(modes[-1])
            yield None

    def take_step(batch):
        seen.append(modes[-1])
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    def fail():
        raise AssertionError("a batch is asked for")

    assert count_syncs(take_step, batches, 2, torch.device("cuda")) == 1
    assert seen == ["default", *["warn"] * 3]  # only an epoch's order may be waited for
    assert modes[-1] == "default"
    assert count_syncs(take_step, fail, 2, torch.device("cpu")) is None
