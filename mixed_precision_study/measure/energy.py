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
    samples: list[dict] = []
    with sampled(record.gpu_uuid, samples):
        before = gpu.ask("TotalEnergyConsumption")  # millijoules, from Volta on
        began = time.perf_counter()
        yield
        ended = time.perf_counter()
        after = gpu.ask("TotalEnergyConsumption")
    counted = before is not None and after is not None and after > before
    within = [sample for sample in samples if began <= sample["seconds"] <= ended]
    joules = (after - before) / 1000 if counted else None
    record.card_samples_all.append({"seconds": ended - began, "joules": joules, "samples": within})
    limit = gpu.ask("EnforcedPowerLimit")  # milliwatts
    record.power_watts_limit = limit and limit / 1000
    record.sm_clock_mhz_max = gpu.ask("MaxClockInfo", 1)


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
    slow = 0.98 * (record.sm_clock_mhz_max or 0)  # below it, a clock that was set is a reason, too
    reasons = [
        sample["bits"] & (-1 if sample["mhz"] is not None and sample["mhz"] < slow else ~CLOCKS_SET)
        for sample in samples
        if sample["bits"] is not None
    ]
    if reasons:
        shares = {
            name: sum(bool(bits & bit) for bits in reasons) / len(reasons)
            for bit, name in THROTTLES.items()
        }
        record.throttle_fractions = [[name, share] for name, share in shares.items() if share]
        record.throttled = any(share >= DISTURBED for share in shares.values())
    others = [others_of(pids, own_is_there=True) for pids in known("pids")]
    counts = [count for count in others if count is not None]
    record.gpu_shared = any(counts) if counts else None


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
    record.energy_source = "counter"
    record.energy_joules = sum(part["joules"] for part in parts)
    record.joules_per_1000_samples = 1000 * record.energy_joules / samples_trained
    record.power_watts_mean = record.energy_joules / seconds
