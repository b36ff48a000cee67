"""Power, clock, temperature and throttling while the clock runs, and what the samples add up to."""

import itertools
import statistics
import time
from contextlib import contextmanager

from ..record import DISTURBED
from .nvml import THROTTLES, NvmlGpu, others_of
from .sampler import sampled


@contextmanager
def watched(record, device):
    """Sample the card while the block runs; the record gets one more part: its seconds, joules and samples."""
    card = NvmlGpu(record.gpu_uuid) if device.type == "cuda" else None
    if card is None or card.handle is None:
        record.card_reason = "no GPU" if card is None else card.reason
        yield
        return
    part = {"seconds": None, "joules": None, "samples": []}
    with sampled(record.gpu_uuid, part["samples"]):
        before, began = card.ask("TotalEnergyConsumption"), time.perf_counter()
        yield
        ended, after = time.perf_counter(), card.ask("TotalEnergyConsumption")
    part["seconds"], part["samples"] = ended - began, [s for s in part["samples"] if began <= s["seconds"] <= ended]
    if None not in (before, after) and after > before:
        part["joules"] = (after - before) / 1000  # the counter is in millijoules, from Volta on
    record.card_samples_all.append(part)
    limit = card.ask("EnforcedPowerLimit")
    record.power_watts_limit, record.sm_clock_mhz_max = limit and limit / 1000, card.ask("MaxClockInfo", 1)


def integrate(samples, seconds):
    """Return the joules of power samples by the trapezoidal rule, stretched to `seconds`; None below two samples."""
    points = [(s["seconds"], s["milliwatts"] / 1000) for s in samples if s["milliwatts"] is not None]
    if len(points) < 2:
        return None
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    return joules / (points[-1][0] - points[0][0]) * seconds


def summarise_gpu(record, samples_trained):
    """Fill in energy, power, clock, temperature and throttling from what was sampled in all timed epochs."""
    parts = record.card_samples_all
    samples = [sample for part in parts for sample in part["samples"]]
    seen = lambda name: [sample[name] for sample in samples if sample[name] is not None]  # noqa: E731
    seconds, record.card_samples = sum(part["seconds"] for part in parts), len(samples) if parts else None
    if not parts:
        record.energy_reason = record.card_reason
        return
    energies = [part["joules"] for part in parts]
    record.energy_source = "counter"
    if None in energies:
        energies, record.energy_source = [integrate(part["samples"], part["seconds"]) for part in parts], "power"
    if None in energies:
        record.energy_source, record.energy_reason = None, "no energy counter, or no two samples of the power"
    else:
        record.energy_joules = sum(energies)
        record.joules_per_1000_samples = 1000 * record.energy_joules / samples_trained
        record.power_watts_mean = record.energy_joules / seconds
    if not samples:
        record.card_reason = "the timed epochs were too short for a sample"
        return
    record.sm_clock_mhz_median = statistics.median(seen("mhz")) if seen("mhz") else None
    record.temperature_celsius_max = max(seen("celsius"), default=None)
    held, others = seen("bits"), [others_of(pids, True) for pids in seen("pids")]
    if held:
        shares = {name: sum(bool(bits & bit) for bits in held) / len(held) for bit, name in THROTTLES.items()}
        record.throttle_fractions = [[name, share] for name, share in shares.items() if share]
        record.throttled = any(share >= DISTURBED for share in shares.values())
    known = [count for count in others if count is not None]
    record.gpu_shared = any(known) if known else None
