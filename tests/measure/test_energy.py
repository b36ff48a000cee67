"""What the samples of a GPU add up to: energy, power, clock, temperature, throttling."""

import contextlib
import time

import pytest
import torch
from made_up_nvml import THIS, absent, child_of, fake_nvml, is_running
from small_training import CPU, make_record

from mixed_precision_study.measure.energy import summarise_gpu, watched
from mixed_precision_study.measure.nvml import THROTTLES

GPU = torch.device("cuda")
FIELDS = ("energy_joules", "energy_source", "joules_per_1000_samples", "power_watts_mean", "power_watts_limit")
FIELDS += (
    "sm_clock_mhz_median",
    "sm_clock_mhz_max",
    "temperature_celsius_max",
    "throttled",
    "gpu_shared",
    "card_samples",
)


@pytest.mark.parametrize(
    ("device", "reason"), [(CPU, "no GPU"), (GPU, "nvidia-ml-py is not installed")], ids=["on the CPU", "without NVML"]
)
def test_what_cannot_be_sampled_is_null_with_a_reason(monkeypatch, device, reason):
    absent(monkeypatch)
    record, ran = make_record(gpu_uuid="ab"), []
    with watched(record, device):
        ran.append(1)
    summarise_gpu(record, 100)
    assert ran == [1]
    assert record.card_reason == record.energy_reason == reason
    assert record.card_samples_all == []
    assert {getattr(record, name) for name in FIELDS} == {None}  # never zero


def counters(*values):
    """Return a made-up energy counter that gives one value after the other."""
    left = iter(values)
    return lambda handle: next(left)


@pytest.mark.slow
def test_watched_adds_a_part_with_counter_samples_and_limits(monkeypatch, sampler):
    sampler()
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=counters(5_000, 12_500, 20_000, 21_000),
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 300_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
    )
    record = make_record(gpu_uuid="ab")
    for _ in range(2):
        with watched(record, GPU):
            time.sleep(0.35)
    first, second = record.card_samples_all
    assert (first["joules"], second["joules"]) == (7.5, 1.0)  # the counter is in millijoules
    for part in (first, second):
        assert 0.35 <= part["seconds"] < 60
        assert 1 <= len(part["samples"]) <= 10 * part["seconds"] + 3
        times = [sample["seconds"] for sample in part["samples"]]
        assert times[-1] - times[0] <= part["seconds"]  # none from before or after the block
    assert first["samples"][0]["milliwatts"] > 1000  # the first of all was taken before the block began
    assert (record.power_watts_limit, record.sm_clock_mhz_max) == (300, 1980)
    assert record.card_reason is None


@pytest.mark.parametrize("values", [(5_000, 5_000), (5_000, 4_000), (0, 0)])
def test_a_counter_that_does_not_count_gives_no_joules(monkeypatch, values):
    monkeypatch.setattr("mixed_precision_study.measure.energy.sampled", lambda *_: contextlib.nullcontext())
    fake_nvml(monkeypatch, nvmlDeviceGetTotalEnergyConsumption=counters(*values))
    record = make_record(gpu_uuid="ab")
    with watched(record, GPU):
        pass
    assert record.card_samples_all[0]["joules"] is None
    assert (record.power_watts_limit, record.sm_clock_mhz_max) == (None, None)


@pytest.mark.slow
def test_a_run_that_fails_leaves_no_part_and_no_process(monkeypatch, sampler, tmp_path):
    sampler()
    fake_nvml(monkeypatch)
    record = make_record(gpu_uuid="ab")
    with pytest.raises(RuntimeError, match="out of memory"), watched(record, GPU):
        raise RuntimeError("CUDA out of memory")
    assert record.card_samples_all == []
    assert not is_running(child_of(tmp_path))


def sample(mhz=1500, celsius=50, bits=0, pids=(THIS,)):
    return {"mhz": mhz, "celsius": celsius, "bits": bits, "pids": None if pids is None else list(pids)}


def part(seconds, joules, *samples):
    return {"seconds": seconds, "joules": joules, "samples": list(samples)}


def summarised(*parts):
    record = make_record(sm_clock_mhz_max=1980)
    record.card_samples_all = list(parts)
    summarise_gpu(record, 500)
    return record


def test_energy_is_the_counters_where_there_is_one_and_clock_and_temperature_are_over_all_parts():
    first = [sample(mhz=1000, celsius=40), sample(mhz=1200, celsius=70)]
    record = summarised(part(2.0, 300.0, *first), part(3.0, 200.0, sample(mhz=1980, celsius=None)))
    assert (record.energy_joules, record.energy_source, record.energy_reason) == (500, "counter", None)
    assert record.joules_per_1000_samples == 1000  # 500 J for 500 samples
    assert record.power_watts_mean == 100  # 500 J in 5 s
    assert (record.sm_clock_mhz_median, record.temperature_celsius_max, record.card_samples) == (1200, 70, 3)


def test_what_the_gpu_did_not_say_is_null():
    nothing = [sample(mhz=None, celsius=None, bits=None, pids=None) for _ in range(3)]
    record = summarised(part(2.0, 300.0), part(4.0, None, *nothing))
    assert record.sm_clock_mhz_median is record.temperature_celsius_max is None  # not NaN, not zero
    assert record.throttled is record.gpu_shared is None
    assert record.throttle_fractions == []
    assert record.card_samples == 3
    assert {getattr(record, name) for name in FIELDS[:4]} == {None}  # a part lacks the counter
    assert record.energy_reason


def test_no_samples_have_a_reason_and_keep_the_counter():
    record = summarised(part(5.0, 2.0))
    assert (record.energy_joules, record.energy_source, record.card_samples) == (2, "counter", 0)
    assert record.card_reason
    assert record.throttled is record.gpu_shared is record.sm_clock_mhz_median is None


@pytest.mark.parametrize(("seconds", "known"), [((2.4, 2.5), False), ((2.5, 2.5), True)])
def test_below_five_seconds_of_training_there_is_no_energy(seconds, known):
    record = summarised(*(part(time, 300.0, sample(), sample()) for time in seconds))
    assert [getattr(record, name) is not None for name in FIELDS[:4]] == [known] * 4
    assert bool(record.energy_reason) is not known


@pytest.mark.parametrize("bit", [0x2, 0x10])
@pytest.mark.parametrize(("mhz", "throttled"), [(1980, False), (1950, False), (1900, True)])
def test_a_clock_that_was_set_slows_only_below_the_highest(bit, mhz, throttled):
    record = summarised(part(1.0, 1.0, *(sample(mhz=mhz, bits=bit | 0x4) for _ in range(3))))
    assert (THROTTLES[bit] in dict(record.throttle_fractions)) is throttled
    assert dict(record.throttle_fractions)["power cap"] == 1


def test_each_throttle_reason_has_its_share_of_the_samples_and_shares_are_not_added_up():
    bits = [0x4 | 0x20, 0x4, 0x4, 0x1, 0, 0, 0x100, 0, None, None]  # idle, display: no reasons
    record = summarised(part(1.0, 1.0, *(sample(bits=bit) for bit in bits)))
    assert record.throttle_fractions == [["power cap", 3 / 8], ["thermal, software", 1 / 8]]
    assert record.throttled is True
    each_in_a_thirtieth = [0x4, 0x20, *[0] * 28]
    assert summarised(part(1.0, 1.0, *(sample(bits=bit) for bit in each_in_a_thirtieth))).throttled is False


@pytest.mark.parametrize(("bit", "name"), THROTTLES.items())
@pytest.mark.parametrize(("held", "of", "throttled"), [(1, 20, True), (1, 21, False), (0, 20, False)])
def test_a_reason_in_a_twentieth_of_the_samples_is_throttling(bit, name, held, of, throttled):
    record = summarised(part(1.0, 1.0, *(sample(bits=bit if number < held else 0) for number in range(of))))
    assert record.throttled is throttled
    assert record.throttle_fractions == ([[name, held / of]] if held else [])


@pytest.mark.parametrize(
    ("lists", "shared"),
    [
        ([[THIS], [THIS]], False),
        ([[THIS], [THIS, -5], [THIS]], True),  # for a moment
        ([[-5], [-5]], False),  # this process, by the host's number
        ([[], [], None], None),
        ([[], [THIS]], False),
    ],
)
def test_the_gpu_is_shared_when_another_process_was_seen_on_it(lists, shared):
    record = summarised(part(1.0, 1.0, *(sample(pids=pids) for pids in lists)))
    assert record.gpu_shared is shared
