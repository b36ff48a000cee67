"""Power, clock, temperature and throttling of the GPU during the timed epochs, and their summary
in the record.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..store.record import DISTURBED, RunRecord, too_short_for_energy
from .nvml import CLOCKS_SET, THROTTLES, NvmlGpu, others_of
from .sampler import sampled


@contextmanager
def watched(record: RunRecord, device: torch.device) -> Iterator[None]:
    """Sample the GPU while the block runs and add {"seconds", "joules", "samples"} to
    `record.card_samples_all`.
    """
    gpu = NvmlGpu(record.gpu_uuid) if device.type == "cuda" else None
    if gpu is None or gpu.handle is None:
        record.card_reason = gpu.reason if gpu else "no GPU"
        yield
        return
    samples: list = []
    with sampled(record.gpu_uuid, samples):
        before = gpu.ask("TotalEnergyConsumption")  # millijoules, from Volta on
        began = time.perf_counter()
        yield
        ended = time.perf_counter()
        after = gpu.ask("TotalEnergyConsumption")
    within = [sample for sample in samples if began <= sample["seconds"] <= ended]
    record.card_samples_all.append(
        {"seconds": ended - began, "joules": joules_between(before, after), "samples": within}
    )
    limit = gpu.ask("EnforcedPowerLimit")  # milliwatts
    record.power_watts_limit = limit and limit / 1000
    record.sm_clock_mhz_max = gpu.ask("MaxClockInfo", 1)


def joules_between(before: int | None, after: int | None) -> float | None:
    """Return the joules between two readings of a counter, or None where it did not count."""
    if before is None or after is None or after <= before:
        return None
    return (after - before) / 1000


def summarise_gpu(record: RunRecord, samples_trained: int) -> None:
    """Fill in energy, power, clock, temperature and throttling from all timed epochs."""
    parts = record.card_samples_all
    if not parts:
        record.energy_reason = record.card_reason
        return
    summarise_energy(record, samples_trained)
    samples = [sample for part in parts for sample in part["samples"]]
    record.card_samples = len(samples)
    if not samples:
        record.card_reason = "the timed epochs were too short for a sample"
        return

    def known(name):
        return [sample[name] for sample in samples if sample[name] is not None]

    clocks = known("mhz")
    record.sm_clock_mhz_median = statistics.median(clocks) if clocks else None
    record.temperature_celsius_max = max(known("celsius"), default=None)
    summarise_throttling(record, samples)
    others = {others_of(pids, own_is_there=True) for pids in known("pids")} - {None}
    record.gpu_shared = any(others) if others else None


def summarise_throttling(record: RunRecord, samples: list[dict]) -> None:
    """Fill in the share of samples in which the clock was held back for each reason."""
    slow = 0.98 * (record.sm_clock_mhz_max or 0)
    reasons = [reasons_in(sample, slow) for sample in samples if sample["bits"] is not None]
    if not reasons:
        return
    shares = {}
    for bit, name in THROTTLES.items():
        if share := sum(bool(bits & bit) for bits in reasons) / len(reasons):
            shares[name] = share
    record.throttle_fractions = [list(share) for share in shares.items()]
    record.throttled = any(share >= DISTURBED for share in shares.values())


def reasons_in(sample: dict, slow: float) -> int:
    """Return the reasons that NVML gave, less that of a clock that was set and is not `slow`."""
    clock = sample["mhz"]
    if clock is not None and clock < slow:
        return sample["bits"]
    return sample["bits"] & ~CLOCKS_SET


def summarise_energy(record: RunRecord, samples_trained: int) -> None:
    """Fill in energy and mean power from the GPU's counter, which GPUs have from Volta on."""
    parts = record.card_samples_all
    if any(part["joules"] is None for part in parts):
        record.energy_reason = "this GPU has no energy counter"
        return
    seconds = sum(part["seconds"] for part in parts)
    if short := too_short_for_energy(seconds):
        record.energy_reason = short
        return
    joules = sum(part["joules"] for part in parts)
    record.fill(
        energy_source="counter",
        energy_joules=joules,
        joules_per_1000_samples=1000 * joules / samples_trained,
        power_watts_mean=joules / seconds,
    )
