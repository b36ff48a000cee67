"""What fills the memory at the peak of a step, from an allocator that is made up."""

import contextlib

import pytest
import torch
from conftest import CASES
from explained_training import MIB, compute_loss, made_batches, make_record, make_trainer, random

from mixed_precision_study.explain.memory_breakdown import (
    close_memory_breakdown,
    read_memory_breakdown,
    watched_memory,
)
from mixed_precision_study.store.record import LEDGER_AT_PEAK


def pretend_allocator(monkeypatch, trainer, peaks, updated=0, uses=(100, 350), steps_before=0):
    """Let the allocator's peak be peaks[number of gradients], and `updated` after an update; return
    its readings.

    `uses` is what is allocated at each call.
    """
    reads, uses, updates = [], iter(uses), trainer.updates + steps_before

    def peak(*_):
        alive = sum(weight.grad is not None for weight in trainer.weights)
        reads.append(max(peaks[alive], updated if trainer.updates > updates else 0))
        return reads[-1]

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peak)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: next(uses))
    return reads


# bytes of the gradients; the third is made first
FIRST, SECOND, THIRD = 4 * 16 * 24, 4 * 24 * 8, 4 * 8 * 8


@pytest.mark.parametrize(
    "peaks, updated, alive",
    [
        ([9, 1000, 1000, 1000], 0, 0),  # the peak was reached before the first gradient was done
        ([9, 1000, 5000, 5000], 0, THIRD),  # while the second was being made
        ([9, 1000, 5000, 6000], 0, THIRD + SECOND),
        ([9, 1000, 1000, 5000], 9000, THIRD + SECOND + FIRST),  # in the optimizer's step
        ([9, 1000, 1000, 5000], 5000, THIRD + SECOND),
    ],
)
def test_gradients_alive_at_the_peak_are_found(monkeypatch, peaks, updated, alive):
    trainer = make_trainer()
    reads = pretend_allocator(monkeypatch, trainer, peaks, updated)
    with watched_memory(trainer) as seen:
        assert trainer.loss_of is not compute_loss
        trainer.step(random(4, 16))
    assert seen.gradients_at_peak == alive
    assert seen.gradients == THIRD + SECOND + FIRST
    assert seen.saved_activations == 250  # 350 after the forward pass, 100 before
    with contextlib.suppress(ZeroDivisionError), watched_memory(trainer):
        raise ZeroDivisionError
    reads.clear()
    trainer.step(random(4, 16))
    assert (trainer.loss_of, reads) == (compute_loss, [])


def test_gradients_of_masters_are_alive_all_the_time(monkeypatch):
    def half_loss(network, batch, hidden):
        return network(batch.half()).float().square().mean(), hidden

    trainer = make_trainer("o2_fp16", half_loss, loss_scale=8.0)
    trainer.step(random(4, 16))  # the first step makes them
    pretend_allocator(monkeypatch, trainer, [9, 1000, 5000, 5000])
    with watched_memory(trainer) as seen:
        trainer.step(random(4, 16))
    assert seen.gradients_at_peak == THIRD / 2 + (FIRST + SECOND + THIRD)


MEASURED = {f"ledger_{part}_mib": 90.0 for part in ("parameters", "gradients", "optimizer")}
MEASURED |= {"peak_allocated_mib": 1000.0, "ledger_slack_mib": 200.0, "ledger_context_mib": 500.0}
MEASURED |= {"device_used_mib": 2100.0, "device_used_before_mib": 300.0}


@pytest.mark.parametrize(
    "changed, why, rest, error",
    CASES["rest of the peak"],
)
def test_the_rest_of_the_peak_is_activations_or_has_a_reason(changed, why, rest, error):
    record = make_record(**{**MEASURED, **changed})
    close_memory_breakdown(record)
    assert (record.ledger_reason, record.ledger_activations_mib) == (why, rest)
    assert record.ledger_error_fraction == (error if error is None else pytest.approx(error))


def test_a_breakdown_is_read_from_a_step(monkeypatch):
    network = make_trainer().network
    network.append(torch.nn.BatchNorm1d(8))
    trainer, given = make_trainer(network=network), []
    pretend_allocator(
        monkeypatch,
        trainer,
        [9, 10, 20, 30, 40, 50],
        updated=60,
        uses=(MIB, 3 * MIB),
        steps_before=1,
    )
    record = make_record(
        peak_allocated_mib=7.0, device_memory_reason="no NVML", data_on_device_mib=0.5
    )
    read_memory_breakdown(record, trainer, made_batches(given))
    weights = FIRST + SECOND + THIRD + 2 * 4 * 8
    assert record.ledger_parameters_mib == (weights + 2 * 4 * 8) / MIB  # running mean and variance
    assert record.ledger_optimizer_mib == record.ledger_gradients_mib == weights / MIB  # momentum
    assert (record.ledger_masters_mib, record.ledger_data_mib, record.saved_activations_mib) == (
        0,
        0.5,
        2,
    )
    assert sum(getattr(record, f"ledger_{part}_mib") for part in LEDGER_AT_PEAK) == pytest.approx(7)
    assert record.ledger_reason == "no NVML"
    assert (trainer.steps, len(given)) == (0, 1)  # its steps are not counted
