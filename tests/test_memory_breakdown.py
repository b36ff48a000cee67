"""What fills the memory at its peak."""

import pytest
import torch
from explained_training import MIB, compute_loss, made_batches, make_network, make_record, make_trainer, random

from mixed_precision_study.memory import close_memory_breakdown, read_memory_breakdown, watched_memory
from mixed_precision_study.record import LEDGER_AT_PEAK


class Allocator:
    """A made-up allocator: the peak by how many weights have a gradient, then by an update; the use by the calls."""

    def __init__(self, monkeypatch, trainer, peaks, updated=0, uses=(100, 350), steps_before=0):
        self.trainer, self.peaks, self.updated, self.uses, self.reads = trainer, peaks, updated, list(uses), 0
        self.updates = trainer.updates + steps_before
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", self.peak)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: self.uses.pop(0))

    def peak(self, *_):
        self.reads += 1
        alive = sum(weight.grad is not None for weight in self.trainer.weights)
        return max(self.peaks[alive], self.updated if self.trainer.updates > self.updates else 0)


FIRST, SECOND, THIRD = 4 * 16 * 24, 4 * 24 * 8, 4 * 8 * 8  # bytes of the gradients; the third is made first


@pytest.mark.parametrize(
    ("peaks", "updated", "alive"),
    [
        ([9, 1000, 1000, 1000], 0, 0),  # the peak was reached before the first gradient was done
        ([9, 1000, 5000, 5000], 0, THIRD),  # while the second was being made
        ([9, 1000, 1000, 5000], 0, THIRD + SECOND),
        ([9, 1000, 5000, 6000], 0, THIRD + SECOND),
        ([9, 1000, 1000, 5000], 9000, THIRD + SECOND + FIRST),  # in the optimizer's step
        ([9, 1000, 1000, 5000], 5000, THIRD + SECOND),
    ],
)
def test_the_gradients_alive_at_the_peak_are_found(monkeypatch, peaks, updated, alive):
    trainer, seen = make_trainer(), {}
    Allocator(monkeypatch, trainer, peaks, updated)
    with watched_memory(trainer, seen):
        trainer.step(random(4, 16))
    assert seen["at_peak"] == alive
    assert seen["gradients"] == THIRD + SECOND + FIRST
    assert seen["saved"] == 250  # 350 after the forward pass, 100 before


def test_gradients_of_masters_are_alive_all_the_time(monkeypatch):
    loss = lambda network, batch, hidden: (network(batch.half()).float().square().mean(), hidden)  # noqa: E731
    trainer, seen = make_trainer("o2_fp16", loss, loss_scale=8.0), {}
    trainer.step(random(4, 16))  # the first step makes them
    Allocator(monkeypatch, trainer, [9, 1000, 5000, 5000])
    with watched_memory(trainer, seen):
        trainer.step(random(4, 16))
    assert seen["at_peak"] == THIRD / 2 + (FIRST + SECOND + THIRD)


def test_afterwards_nothing_is_watched_even_after_a_failure(monkeypatch):
    def failing(network, batch, hidden):
        raise RuntimeError("out of memory")

    for loss in (compute_loss, failing):
        trainer, seen = make_trainer(loss=loss), {}
        allocator = Allocator(monkeypatch, trainer, [9, 1000, 5000, 5000], uses=[0] * 9)
        try:
            with watched_memory(trainer, seen):
                assert trainer.loss_of is not loss
                trainer.step(random(4, 16))
        except RuntimeError as error:
            assert str(error) == "out of memory"
            assert loss is failing
        assert trainer.loss_of is loss
        trainer.loss_of, reads = compute_loss, allocator.reads
        trainer.step(random(4, 16))
        assert allocator.reads == reads


MEASURED = {
    "peak_allocated_mib": 1000.0,
    "ledger_parameters_mib": 100.0,
    "ledger_gradients_mib": 90.0,
    "ledger_optimizer_mib": 80.0,
    "ledger_masters_mib": 0.0,
    "ledger_data_mib": None,
    "ledger_slack_mib": 200.0,
    "ledger_context_mib": 500.0,
    "device_used_mib": 2100.0,
    "device_used_before_mib": 300.0,
}


def at_peak(record):
    return [getattr(record, f"ledger_{part}_mib") or 0 for part in LEDGER_AT_PEAK]


def test_the_ledgers_parts_sum_to_the_peak():
    record = make_record(**MEASURED)
    close_memory_breakdown(record)
    assert record.ledger_activations_mib == 1000 - 270
    assert sum(at_peak(record)) == record.peak_allocated_mib
    assert record.ledger_error_fraction == pytest.approx(1700 / 1800 - 1)  # peak, slack and context of what was used
    assert record.ledger_reason is None


@pytest.mark.parametrize(
    ("missing", "why", "reason"),
    [
        ("ledger_context_mib", None, "what others used before the run is not known"),
        ("device_used_mib", "nvidia-ml-py is not installed", "nvidia-ml-py is not installed"),
    ],
)
def test_a_ledger_without_the_context_has_the_rest_and_a_reason(missing, why, reason):
    record = make_record(**{**MEASURED, missing: None, "device_memory_reason": why})
    close_memory_breakdown(record)
    assert record.ledger_reason == reason
    assert record.ledger_error_fraction is None
    assert sum(at_peak(record)) == record.peak_allocated_mib


def test_a_ledger_is_read_from_a_step(monkeypatch):
    network = make_network()
    network.append(torch.nn.BatchNorm1d(8))
    trainer, given = make_trainer(network=network), []
    Allocator(monkeypatch, trainer, [9, 10, 20, 30, 40, 50], updated=60, uses=(MIB, 3 * MIB), steps_before=1)
    facts = {"device_used_mib": None, "device_memory_reason": "no NVML", "data_on_device_mib": 0.5}
    record = make_record(peak_allocated_mib=7.0, **facts)
    read_memory_breakdown(record, trainer, made_batches(given), None)
    weights = FIRST + SECOND + THIRD + 2 * 4 * 8
    assert record.ledger_parameters_mib == (weights + 2 * 4 * 8) / MIB  # running mean and variance
    assert record.ledger_optimizer_mib == record.ledger_gradients_mib == weights / MIB  # momentum
    assert (record.ledger_masters_mib, record.ledger_data_mib, record.saved_activations_mib) == (0, 0.5, 2)
    assert sum(at_peak(record)) == pytest.approx(7)
    assert record.ledger_reason == "no NVML"
    assert (trainer.steps, len(given)) == (0, 1)  # its steps are not counted
