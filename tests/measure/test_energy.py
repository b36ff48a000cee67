"""What the samples of a GPU add up to: energy, power, clock, temperature, throttling."""

import contextlib
import time
from unittest.mock import Mock

import pytest
import torch
from made_up_nvml import THIS, absent, fails, fake_nvml
from small_training import CPU, make_record

from mixed_precision_study.measure.energy import summarise_gpu, watched
from mixed_precision_study.measure.nvml import THROTTLES

GPU = torch.device("cuda")
ENERGY = ("energy_joules", "energy_source", "joules_per_1000_samples", "power_watts_mean")
FIELDS = (
    *ENERGY,
    "power_watts_limit",
    "sm_clock_mhz_median",
    "sm_clock_mhz_max",
    "temperature_celsius_max",
)
FIELDS += ("throttled", "gpu_shared", "card_samples")


@pytest.mark.parametrize(
    "device, reason", [(CPU, "no GPU"), (GPU, "nvidia-ml-py is not installed")], ids=str
)
def test_what_cannot_be_sampled_is_null_with_a_reason(monkeypatch, device, reason):
    absent(monkeypatch)
    record, ran = make_record(gpu_uuid="ab"), []
    with watched(record, device):
        ran.append(1)
    summarise_gpu(record, 100)
    assert (ran, record.card_samples_all) == ([1], [])
    assert record.card_reason == record.energy_reason == reason
    assert {getattr(record, name) for name in FIELDS} == {None}  # never zero


@pytest.mark.parametrize(
    "values, joules",
    {(5_000, 12_500): 7.5, (5_000, 5_000): None, (5_000, 4_000): None, (0, 0): None}.items(),
)
def test_watched_adds_samples_and_counted_joules(monkeypatch, values, joules):
    within = []

    @contextlib.contextmanager
    def sampled(uuid, samples):
        before = time.perf_counter()
        yield
        samples += [{"seconds": at} for at in (before, *within, time.perf_counter())]

    monkeypatch.setattr("mixed_precision_study.measure.energy.sampled", sampled)
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=Mock(side_effect=values),  # in millijoules
        nvmlDeviceGetEnforcedPowerLimit=(lambda handle: 300_000) if joules else fails,
        nvmlDeviceGetMaxClockInfo=lambda handle: 1980,
    )
    record = make_record(gpu_uuid="ab")
    with watched(record, GPU):
        within.append(time.perf_counter())
    (part,) = record.card_samples_all
    assert (part["joules"], part["samples"]) == (joules, [{"seconds": within[0]}])
    assert 0 < part["seconds"] < 60
    assert (record.power_watts_limit, record.sm_clock_mhz_max) == (300 if joules else None, 1980)
    assert (record.card_reason, module.asked) == (None, ["GPU-ab"])


def sample(mhz=1500, celsius=50, bits=0, pids=(THIS,)):
    return {
        "mhz": mhz,
        "celsius": celsius,
        "bits": bits,
        "pids": None if pids is None else list(pids),
    }


def part(seconds, joules, *samples):
    return {"seconds": seconds, "joules": joules, "samples": list(samples)}


def summarised(*parts):
    record = make_record(sm_clock_mhz_max=1980)
    record.card_samples_all = list(parts)
    summarise_gpu(record, 500)
    return record


def test_energy_is_the_counters_and_extremes_are_of_all_parts():
    first = [sample(mhz=1000, celsius=40), sample(mhz=1200, celsius=70)]
    record = summarised(part(2.0, 300.0, *first), part(3.0, 200.0, sample(mhz=1980, celsius=None)))
    assert (record.energy_joules, record.energy_source, record.energy_reason) == (
        500,
        "counter",
        None,
    )
    assert record.joules_per_1000_samples == 1000  # 500 J for 500 samples
    assert record.power_watts_mean == 100  # 500 J in 5 s
    assert (record.sm_clock_mhz_median, record.temperature_celsius_max, record.card_samples) == (
        1200,
        70,
        3,
    )


def test_what_the_gpu_did_not_say_is_null():
    nothing = [sample(mhz=None, celsius=None, bits=None, pids=None) for _ in range(3)]
    record = summarised(part(2.0, 300.0), part(4.0, None, *nothing))
    assert (record.card_samples, record.throttle_fractions) == (3, [])
    # nor zero
    assert {getattr(record, name) for name in {*FIELDS} - {"sm_clock_mhz_max", "card_samples"}} == {
        None
    }
    assert record.energy_reason  # a part lacks the counter
    record = summarised(part(5.0, 2.0))
    assert (record.energy_joules, record.energy_source, record.card_samples) == (2, "counter", 0)
    assert (
        record.card_reason
        and record.throttled is record.gpu_shared is record.sm_clock_mhz_median is None
    )


@pytest.mark.parametrize("seconds, known", [((2.4, 2.5), False), ((2.5, 2.5), True)])
def test_below_five_seconds_of_training_there_is_no_energy(seconds, known):
    record = summarised(*(part(time, 300.0, sample(), sample()) for time in seconds))
    assert [getattr(record, name) is not None for name in ENERGY] == [known] * 4
    assert bool(record.energy_reason) is not known


@pytest.mark.parametrize(
    "bits, mhz, fractions, throttled",
    [
        # Idle and display are no reasons, and what is not known does not count.
        (
            [0x24, 0x4, 0x1, 0, 0x100, None],
            1500,
            [["power cap", 2 / 5], ["thermal, software", 1 / 5]],
            True,
        ),
        *(([bit, *[0] * 19], 1500, [[name, 1 / 20]], True) for bit, name in THROTTLES.items()),
        # not added up
        (
            [0x4, 0x8, *[0] * 19],
            1500,
            [["power cap", 1 / 21], ["hardware slowdown", 1 / 21]],
            False,
        ),
        # A clock that was set slows only below the highest.
        *(([bit], mhz, [], False) for bit in (0x2, 0x10) for mhz in (1980, 1950)),
        *(([bit], 1900, [[THROTTLES[bit], 1]], True) for bit in (0x2, 0x10)),
    ],
)
def test_a_reason_in_a_twentieth_of_the_samples_is_throttling(bits, mhz, fractions, throttled):
    record = summarised(part(1.0, 1.0, *(sample(mhz=mhz, bits=each) for each in bits)))
    assert (record.throttle_fractions, record.throttled) == (fractions, throttled)


@pytest.mark.parametrize(
    "lists, shared",
    [
        ([[THIS], [THIS, -5], [THIS]], True),  # for a moment
        ([[-5], [-5]], False),  # this process, by the host's number
        ([[], [], None], None),
    ],
)
def test_the_gpu_is_shared_when_another_process_was_seen_on_it(lists, shared):
    assert summarised(part(1.0, 1.0, *(sample(pids=pids) for pids in lists))).gpu_shared is shared
