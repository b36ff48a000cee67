"""The card: NVML's answers through any binding, the sampler, what samples add up to, the checks before a run."""

import itertools
import json
import math
import os
import subprocess
import sys
import time
import types

import card
import harness
import pytest
import record as records
import torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")
THIS = os.getpid()


def make_record(**facts):
    parameters = {"dataset": "d", "model": "m", "batch_size": 16, "seed": 0, "output_dir": "out", "data_dir": "data"}
    return records.new_record("n", parameters, "fp32", facts)


# NVML's answers


class NvmlError(Exception):
    pass


def fails(*_, **__):
    raise NvmlError("Not Supported")


def fake_nvml(monkeypatch, **functions):
    """Put a made-up pynvml in place; `functions` replace its parts, None takes one away."""
    memory = types.SimpleNamespace(used=3 * 2**20, total=8 * 2**20)
    module = types.ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.nvmlInit = lambda: None
    module.nvmlMemory_v2 = 2
    module.asked = []
    module.nvmlDeviceGetHandleByUUID = lambda uuid: module.asked.append(uuid) or "handle"
    module.nvmlDeviceGetHandleByIndex = lambda index: module.asked.append(index) or "handle"
    module.nvmlDeviceGetMemoryInfo = lambda handle, version=None: memory
    module.nvmlSystemGetDriverVersion = lambda: "580.1"
    for name, function in functions.items():
        if function is None:
            delattr(module, name)
        else:
            setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_memory_by_uuid_in_mib(monkeypatch):
    module = fake_nvml(monkeypatch)
    found = card.Card("ab-cd")
    assert found.memory() == {"used_mib": 3, "total_mib": 8, "reason": None}
    assert found.driver() == "580.1"
    assert found.reason is None
    assert module.asked == [b"GPU-ab-cd"]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_a_card_held_before_is_found_by_its_uuid_as_cuda_may_number_cards_otherwise(monkeypatch, as_bytes):
    uuids = [uuid.encode() if as_bytes else uuid for uuid in ("GPU-small", "GPU-large")]
    memory = [types.SimpleNamespace(used=mib * 2**20, total=2**34) for mib in (700, 5)]
    running = [[types.SimpleNamespace(pid=8)], []]
    module = fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=lambda number: number)
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetUUID = uuids.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda handle, version=None: memory[handle]
    module.nvmlDeviceGetComputeRunningProcesses = running.__getitem__
    monkeypatch.setattr(card, "CARDS_BEFORE", card.read_cards())
    assert card.card_before("large") == {"used_mib": 5, "pids": []}
    assert card.card_before("small") == {"used_mib": 700, "pids": [8]}
    assert card.card_before("a part of one") == {"used_mib": None, "pids": None}
    module.nvmlDeviceGetComputeRunningProcesses = fails
    assert card.read_cards()["small"] == {"used_mib": 700, "pids": None}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert card.read_cards() == {}


def test_the_second_version_of_the_memory_call_is_preferred_and_the_first_is_the_way_out(monkeypatch):
    first, second = (types.SimpleNamespace(used=used * 2**20, total=2**23) for used in (5, 3))
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=lambda handle, version=None: second if version == 2 else first)
    assert card.Card().memory()["used_mib"] == 3  # the first version counts the driver's own reserve as used

    def old_driver(handle, version=None):
        return fails() if version else first

    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=old_driver)
    assert card.Card().memory()["used_mib"] == 5


def test_the_old_binding_without_versions_and_with_bytes(monkeypatch):
    memory = types.SimpleNamespace(used=2**20, total=2**21)
    fake_nvml(
        monkeypatch,
        nvmlMemory_v2=None,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlSystemGetDriverVersion=lambda: b"430.5",
    )
    found = card.Card("x")
    assert found.memory() == {"used_mib": 1, "total_mib": 2, "reason": None}
    assert found.driver() == "430.5"


def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


def without_driver(monkeypatch):
    def not_loaded():
        raise NvmlError("Driver Not Loaded")

    fake_nvml(monkeypatch, nvmlInit=not_loaded)


def without_library(monkeypatch):
    def no_library():
        raise OSError("libnvidia-ml.so.1 not found")  # no error of the binding's own

    fake_nvml(monkeypatch, nvmlInit=no_library, NVMLError=None)


def without_such_a_card(monkeypatch):
    fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=fails, nvmlDeviceGetHandleByUUID=fails)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (absent, "nvidia-ml-py is not installed"),
        (without_driver, "NVML gave no figure (Driver Not Loaded)"),
        (without_library, "libnvidia-ml.so.1 not found"),
        (without_such_a_card, "Not Supported"),
    ],
)
def test_a_card_that_cannot_be_asked_gives_a_reason_and_no_zero(monkeypatch, state, reason):
    state(monkeypatch)
    found = card.Card()
    assert found.handle is None
    assert reason in found.reason
    memory = found.memory()
    assert (memory["used_mib"], memory["total_mib"]) == (None, None)
    assert reason in memory["reason"]
    assert found.driver() is None
    assert found.ask("PowerUsage") is None


def test_no_question_raises_whatever_the_binding_does(monkeypatch):
    def leaves(*_):
        raise OSError("no right to ask")

    functions = {"nvmlDeviceGetPowerUsage": fails, "nvmlDeviceGetTemperature": leaves, "nvmlDeviceGetMemoryInfo": fails}
    functions["nvmlDeviceGetClockInfo"] = lambda handle, kind: (handle, kind)
    fake_nvml(monkeypatch, nvmlSystemGetDriverVersion=fails, **functions)
    found = card.Card()
    assert found.ask("ClockInfo", 1) == ("handle", 1)
    for question in (("PowerUsage",), ("Temperature", 0), ("NoSuchThing",), ("ClockInfo",), ("ClockInfo", 1, 2)):
        assert found.ask(*question) is None
    assert found.driver() is None
    reason = "NVML gave no figure for the memory"
    assert found.memory() == {"used_mib": None, "total_mib": None, "reason": reason}


@pytest.mark.parametrize(
    ("pids", "own_is_there", "others"),
    [
        (None, False, None),  # NVML would not say
        (None, True, None),
        ([], False, 0),
        ([], True, None),  # this process uses the card and is not listed: the list is incomplete
        ([THIS], True, 0),
        ([THIS], False, 0),
        ([THIS, -5], True, 1),
        ([THIS, -5], False, 1),
        ([-5], True, 0),  # in a container: the host's number of this process
        ([-5], False, 1),
        ([-5, -6], True, 1),
        ([-5, -6], False, 2),
        ([-5, -5, THIS], True, 1),  # listed twice
    ],
)
def test_others_are_all_but_this_process(pids, own_is_there, others):
    assert card.others_of(pids, own_is_there) == others


# The sampler

PYNVML = """
import os, pathlib, types
pathlib.Path({folder!r}, "child").write_text(str(os.getpid()))
calls = 0

def nvmlInit():
    {init}

def nvmlDeviceGetHandleByUUID(uuid):
    assert uuid == b"GPU-ab", uuid
    return "handle"

def nvmlDeviceGetPowerUsage(handle):
    global calls
    calls += 1
    return 1000 * calls

def nvmlDeviceGetClockInfo(handle, kind):
    return 1500 + kind

def nvmlDeviceGetTemperature(handle, kind):
    raise RuntimeError("Not Supported")

def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 4

def nvmlDeviceGetComputeRunningProcesses(handle):
    return [types.SimpleNamespace(pid=7)]
"""


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    """Return a function that makes the sampler's process find a made-up pynvml; `init` is the body of nvmlInit."""

    def place(init="pass", text=PYNVML):
        (tmp_path / "made_up").mkdir(exist_ok=True)
        (tmp_path / "made_up" / "pynvml.py").write_text(text.format(folder=str(tmp_path), init=init))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "made_up"))

    return place


def is_running(process_id):
    if os.name == "nt":
        return str(process_id) in subprocess.run(["tasklist"], capture_output=True, text=True, check=True).stdout
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def child_of(folder):
    return int((folder / "child").read_text())


def test_the_sampler_takes_about_ten_samples_a_second_and_ends_with_the_block(sampler, tmp_path):
    sampler()
    samples = []
    began = time.perf_counter()
    with card.sampled("ab", samples):
        assert is_running(child_of(tmp_path))
        time.sleep(1)
        ended = time.perf_counter()
    assert not is_running(child_of(tmp_path))
    assert 5 <= len(samples) <= 13
    assert [sample["milliwatts"] for sample in samples] == [1000 * (n + 1) for n in range(len(samples))]
    times = [sample["seconds"] for sample in samples]
    assert times == sorted(times)
    assert began < times[0] < times[-1] < ended + 0.5  # the same clock in both processes
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.09
    # The clock of the multiprocessors, the old name of the throttle reasons, None for what the card would not say.
    assert {(s["mhz"], s["bits"], s["celsius"], tuple(s["pids"])) for s in samples} == {(1501, 4, None, (7,))}


def test_the_sampler_ends_with_a_block_that_raises(sampler, tmp_path):
    sampler()
    samples = []
    with pytest.raises(KeyError), card.sampled("ab", samples):
        raise KeyError("training broke")
    assert not is_running(child_of(tmp_path))
    assert samples  # what was sampled is kept


def test_the_sampler_ends_when_its_standard_input_closes(sampler):
    """So it also ends when the kernel that started it is killed."""
    sampler()
    command = [sys.executable, "-c", card.SAMPLER, "GPU-ab"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert json.loads(child.stdout.readline())["milliwatts"] == 1000
        child.stdin.close()
        assert child.wait(timeout=5) == 0


@pytest.mark.parametrize("init", ["raise RuntimeError('Driver Not Loaded')", "print('hello')", "import no_such_module"])
def test_a_sampler_that_fails_gives_no_samples_no_exception_and_no_delay(sampler, init):
    text = PYNVML.replace('return "handle"', 'raise RuntimeError("no such card")')
    sampler(init, text)
    samples, began = [], time.perf_counter()
    with card.sampled("ab", samples):
        waited = time.perf_counter() - began
    assert waited < 4
    assert samples == []


def test_a_line_that_is_no_sample_is_left_out(sampler):
    sampler("print('a word of the library')")
    samples = []
    with card.sampled("ab", samples):
        time.sleep(0.5)
    assert samples
    assert all(sample["mhz"] == 1501 for sample in samples)


def test_watched_on_the_cpu_says_why_there_is_nothing():
    record = make_record()
    with card.watched(record, CPU):
        pass
    card.summarise_card(record, 100)
    assert record.card_reason == record.energy_reason == "no GPU"
    assert record.card_samples_all == []
    fields = (
        "energy_joules energy_source joules_per_1000_samples power_watts_mean power_watts_limit sm_clock_mhz_median"
    )
    fields += " sm_clock_mhz_max temperature_celsius_max throttled gpu_shared card_samples"
    assert {getattr(record, name) for name in fields.split()} == {None}  # never zero


def test_watched_without_nvml_says_why_and_runs_the_block(monkeypatch):
    absent(monkeypatch)
    record, ran = make_record(gpu_uuid="ab"), []
    with card.watched(record, GPU):
        ran.append(1)
    card.summarise_card(record, 100)
    assert ran == [1]
    assert record.card_reason == record.energy_reason == "nvidia-ml-py is not installed"
    assert record.energy_joules is None


def counters(*values):
    """Return a made-up energy counter that gives one value after the other."""
    left = iter(values)
    return lambda handle: next(left)


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
        with card.watched(record, GPU):
            time.sleep(0.35)
    first, second = record.card_samples_all
    assert (first["joules"], second["joules"]) == (7.5, 1.0)  # the counter is in millijoules
    for part in (first, second):
        assert 0.35 <= part["seconds"] < 2
        assert 1 <= len(part["samples"]) <= 6
        times = [sample["seconds"] for sample in part["samples"]]
        assert times[-1] - times[0] <= part["seconds"]  # none from before or after the block
    assert first["samples"][0]["milliwatts"] > 1000  # the first of all was taken before the block began
    assert (record.power_watts_limit, record.sm_clock_mhz_max) == (300, 1980)
    assert record.card_reason is None


@pytest.mark.parametrize("values", [(5_000, 5_000), (5_000, 4_000), (0, 0)])
def test_a_counter_that_does_not_count_gives_no_joules(monkeypatch, sampler, values):
    sampler()
    fake_nvml(monkeypatch, nvmlDeviceGetTotalEnergyConsumption=counters(*values))
    record = make_record(gpu_uuid="ab")
    with card.watched(record, GPU):
        pass
    assert record.card_samples_all[0]["joules"] is None
    assert (record.power_watts_limit, record.sm_clock_mhz_max) == (None, None)


def test_a_run_that_fails_leaves_no_part_and_no_process(monkeypatch, sampler, tmp_path):
    sampler()
    fake_nvml(monkeypatch)
    record = make_record(gpu_uuid="ab")
    with pytest.raises(RuntimeError, match="out of memory"), card.watched(record, GPU):
        raise RuntimeError("CUDA out of memory")
    assert record.card_samples_all == []
    assert not is_running(child_of(tmp_path))


# What samples add up to


def sample(seconds=0.0, milliwatts=100_000, mhz=1500, celsius=50, bits=0, pids=(THIS,)):
    pids = None if pids is None else list(pids)
    return {
        "seconds": seconds,
        "milliwatts": milliwatts,
        "mhz": mhz,
        "celsius": celsius,
        "bits": bits,
        "pids": pids,
    }


def part(seconds, joules, *samples):
    return {"seconds": seconds, "joules": joules, "samples": list(samples)}


def summarised(*parts, samples_trained=500):
    record = make_record()
    record.card_samples_all = list(parts)
    card.summarise_card(record, samples_trained)
    return record


def powers(*points):
    """Return samples of (seconds, watts)."""
    return [sample(seconds, watts and watts * 1000) for seconds, watts in points]


@pytest.mark.parametrize(
    ("points", "seconds", "joules"),
    [
        ([(0, 100), (1, 100)], 1, 100),
        ([(0, 100), (1, 200)], 1, 150),
        ([(10, 0), (11, 100), (14, 200)], 4, 50 + 450),  # unevenly spaced
        ([(10, 0), (11, 100), (14, 200)], 8, 2 * (50 + 450)),  # stretched to the whole time
        ([(0, 100), (1, None), (2, 300)], 2, 400),  # a sample without power is passed over
        ([(0, 0), (2, 0)], 2, 0),
        ([(0, 100)], 1, None),
        ([(0, 100), (1, None)], 1, None),
        ([], 1, None),
    ],
)
def test_power_is_integrated_by_trapezoids(points, seconds, joules):
    assert card.integrate(powers(*points), seconds) == joules


def test_energy_is_the_counters_where_there_is_one():
    record = summarised(part(2.0, 300.0, *powers((0, 1), (1, 1))), part(3.0, 200.0, *powers((9, 1), (10, 1))))
    assert (record.energy_joules, record.energy_source, record.energy_reason) == (500, "counter", None)
    assert record.joules_per_1000_samples == 1000  # 500 J for 500 samples
    assert record.power_watts_mean == 100  # 500 J in 5 s
    assert record.card_samples == 4


def test_where_one_part_lacks_the_counter_all_are_integrated():
    record = summarised(part(2.0, 300.0, *powers((0, 50), (2, 50))), part(4.0, None, *powers((9, 100), (11, 300))))
    assert (record.energy_joules, record.energy_source) == (2 * 50 + 4 * 200, "power")  # one method for a run
    assert record.power_watts_mean == 150
    assert record.joules_per_1000_samples == 1800


@pytest.mark.parametrize(
    "parts",
    [
        [part(1.0, None, *powers((0, None), (1, None)))],
        [part(1.0, None, *powers((0, 100)))],
        [part(1.0, None)],
        [part(1.0, None, *powers((0, 100), (1, 100))), part(1.0, None)],
    ],
    ids=["no power", "one sample", "no samples", "a part without"],
)
def test_without_counter_and_power_energy_is_null_with_a_reason(parts):
    record = summarised(*parts)
    energy = (record.energy_joules, record.energy_source, record.joules_per_1000_samples, record.power_watts_mean)
    assert energy == (None,) * 4
    assert record.energy_reason == "no energy counter, or no two samples of the power"


def test_clock_temperature_and_samples_are_over_all_parts():
    first = [sample(mhz=1000, celsius=40), sample(mhz=1200, celsius=70)]
    record = summarised(part(1.0, 1.0, *first), part(1.0, 1.0, sample(mhz=1980, celsius=None)))
    assert (record.sm_clock_mhz_median, record.temperature_celsius_max, record.card_samples) == (1200, 70, 3)


def test_what_the_card_did_not_say_is_null():
    nothing = [sample(milliwatts=None, mhz=None, celsius=None, bits=None, pids=None) for _ in range(3)]
    record = summarised(part(1.0, None, *nothing))
    assert record.sm_clock_mhz_median is record.temperature_celsius_max is None  # not NaN, not zero
    assert record.throttled is record.gpu_shared is None
    assert record.throttle_fractions == []
    assert record.card_samples == 3


def test_no_samples_have_a_reason_and_keep_the_counter():
    record = summarised(part(0.01, 2.0))
    assert (record.energy_joules, record.energy_source, record.card_samples) == (2, "counter", 0)
    assert record.card_reason == "the timed epochs were too short for a sample"
    assert record.throttled is record.gpu_shared is record.sm_clock_mhz_median is None


def test_each_throttle_reason_has_its_share_of_the_samples():
    bits = [0x4 | 0x20, 0x4, 0x4, 0x1, 0x2, 0x10, 0x100, 0, None, None]  # idle, set clocks, sync, display: no reasons
    record = summarised(part(1.0, 1.0, *(sample(bits=bit) for bit in bits)))
    assert record.throttle_fractions == [["power cap", 3 / 8], ["thermal, software", 1 / 8]]
    assert record.throttled is True


@pytest.mark.parametrize(
    ("bit", "name"),
    [
        (0x4, "power cap"),
        (0x8, "hardware slowdown"),
        (0x20, "thermal, software"),
        (0x40, "thermal, hardware"),
        (0x80, "power brake"),
    ],
)
@pytest.mark.parametrize(("held", "of", "throttled"), [(1, 20, True), (1, 21, False), (0, 20, False), (20, 20, True)])
def test_a_reason_in_a_twentieth_of_the_samples_is_throttling(bit, name, held, of, throttled):
    record = summarised(part(1.0, 1.0, *(sample(bits=bit if n < held else 0) for n in range(of))))
    assert record.throttled is throttled
    assert record.throttle_fractions == ([[name, held / of]] if held else [])


def test_reasons_are_not_added_up():
    bits = [0x4] + [0x20] + [0] * 28  # each in a thirtieth
    assert summarised(part(1.0, 1.0, *(sample(bits=bit) for bit in bits))).throttled is False


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
def test_the_card_is_shared_when_another_process_was_seen_on_it(lists, shared):
    record = summarised(part(1.0, 1.0, *(sample(pids=pids) for pids in lists)))
    assert record.gpu_shared is shared


# Checks before a run

NEW = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU126 = "https://download.pytorch.org/whl/cu126"


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((6, 0), OLD),  # P100
        ((6, 1), OLD),
        ((7, 0), OLD),  # V100
        ((7, 5), NEW),  # T4
        ((7, 5), OLD),
        ((8, 0), NEW),  # A100
        ((8, 6), ["sm_80"]),  # kernels serve later cards of the same generation
        ((8, 9), NEW),
        ((9, 0), NEW),
        ((9, 0), ["sm_90a"]),
        ((10, 0), NEW),
        ((12, 0), NEW),
        ((12, 0), ["sm_80", "compute_120"]),
        ((12, 0), ["sm_90", "compute_90"]),  # compiled by the driver when it is first used
        ((12, 1), ["sm_120f"]),
    ],
)
def test_a_pytorch_with_kernels_for_the_card_passes(capability, architectures):
    assert card.missing_kernels(capability, architectures) is None


@pytest.mark.parametrize(
    ("capability", "architectures", "advice"),
    [
        ((6, 0), NEW, CU126),
        ((7, 0), NEW, CU126),
        ((5, 2), NEW, CU126),
        ((3, 7), OLD, "use a GPU of compute capability 5.0 or newer"),  # K80
        ((3, 7), NEW, "use a GPU of compute capability 5.0 or newer"),
        ((8, 0), ["sm_86", "sm_90"], "install the newest"),  # kernels do not serve earlier cards
        ((12, 0), OLD, "install the newest: pip install -U torch torchvision"),
        ((9, 0), ["sm_80", "compute_100"], "install the newest"),
        ((7, 5), ["sm_80"], "install the newest"),
        ((8, 0), [], "install the newest"),
    ],
)
def test_a_pytorch_without_kernels_for_the_card_says_which_wheel_has_them(capability, architectures, advice):
    reason = card.missing_kernels(capability, architectures)
    assert reason.startswith(f"this PyTorch has no kernels for compute capability {capability[0]}.{capability[1]}; ")
    assert advice in reason
    assert (CU126 in reason) is (advice == CU126)


def test_fp16_on_the_cpu_is_right():
    assert card.check_fp16(CPU) == "passed"


def test_a_convolution_that_gives_nan_in_fp16_is_named(monkeypatch):
    exact = torch.nn.functional.conv2d

    def broken(image, *rest, **options):
        return exact(image, *rest, **options) * (math.nan if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(torch.nn.functional, "conv2d", broken)
    assert card.check_fp16(CPU) == "a convolution in fp16 differs from fp32 by nan of its norm"


def test_a_convolution_that_is_wrong_in_fp16_is_named_with_its_error(monkeypatch):
    exact = torch.nn.functional.conv2d

    def doubled(image, *rest, **options):
        return exact(image, *rest, **options) * (2 if image.dtype == torch.float16 else 1)

    monkeypatch.setattr(torch.nn.functional, "conv2d", doubled)
    assert card.check_fp16(CPU) == "a convolution in fp16 differs from fp32 by 1 of its norm"


def shown_by(monkeypatch, device, **options):
    """Return (what show_preflight returns, the HTML it displays)."""
    shown = []
    monkeypatch.setattr(card, "display", shown.append)
    check = options.pop("check_supported", harness.check_supported)
    fields = card.show_preflight(device, options.pop("execution", "eager"), list(harness.PRECISIONS), check)
    assert len(shown) == 1
    return fields, shown[0].data


def test_the_preflight_on_the_cpu_greys_out_what_needs_a_gpu(monkeypatch, capsys):
    fields, table = shown_by(monkeypatch, CPU)
    assert fields == {}
    rows = [row for row in table.split("<tr")[1:] if "<td>" in row]
    assert len(rows) == len(harness.PRECISIONS)
    for name, row in zip(harness.PRECISIONS, rows, strict=True):
        can_run = name in ("fp32", "amp_bf16")
        assert f"<td>{name}</td>" in row
        assert ("#999999" not in row) is can_run
        assert ("can run here" if can_run else f"{name} needs an NVIDIA GPU; this run is on the CPU") in row
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["device", "CPU"]
    assert lines[-1].startswith("The checks took 0.")
    assert not any("WARNING" in line for line in lines)


def test_reasons_are_escaped_in_the_table(monkeypatch):
    def refuse(name, execution, device, fp16_check):
        raise card.Unsupported(f'execution="{execution}" < none')

    _, table = shown_by(monkeypatch, CPU, check_supported=refuse)
    assert table.count("execution=&quot;eager&quot; &lt; none") == len(harness.PRECISIONS)
    assert "can run here" not in table


def pretend_gpu(monkeypatch, fp16="passed", events=1.0, launch=0.01, native=True, pids=(), architectures=NEW, **nvml):
    """Let show_preflight see a made-up RTX 3090; `nvml` has the answers of its driver."""
    properties = types.SimpleNamespace(name="Made-up RTX", major=8, minor=6, total_memory=24 * 2**30, uuid="ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    monkeypatch.setattr(card, "check_fp16", lambda device: fp16)
    monkeypatch.setattr(card, "check_clock", lambda device: {"events_per_wall": events, "launch_per_wall": launch})
    answers = {"EnforcedPowerLimit": 350_000, "PowerManagementDefaultLimit": 350_000, "ClockInfo": 1395}
    answers |= {"MaxClockInfo": 2100, "CurrentClocksEventReasons": 0, **nvml}
    asked = types.SimpleNamespace(ask=lambda question, *_: answers.get(question), driver=lambda: "580.1")
    monkeypatch.setattr(card, "Card", {"ab": asked}.__getitem__)
    monkeypatch.setattr(card, "CARDS_BEFORE", {"ab": {"used_mib": 1234.5, "pids": pids and list(pids)}})
    return asked


def test_the_preflight_shows_the_card_and_returns_what_goes_into_the_records(monkeypatch, capsys):
    pretend_gpu(monkeypatch)
    fields, table = shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    assert fields == {"native_bf16": True, "fp16_check": "passed"}
    assert set(fields) <= set(records.RunRecord.__dataclass_fields__)
    assert table.count("can run here") == len(harness.PRECISIONS)
    for words in (
        "Made-up RTX, compute capability 8.6",
        "580.1",
        "native",
        "20,480 of 24,576 MiB",
        "0 processes, 1,23",
        "1,395 MHz now, 2,100 MHz at most",
        "350 W",
        "CUDA events        show 100.0% of the wall time",
        "launching          takes 1% of the time",
    ):
        assert words in text
    assert "throttled now      no\n" in text
    assert "WARNING" not in text


def test_the_preflight_without_nvml_says_unknown_and_never_zero(monkeypatch, capsys):
    asked = pretend_gpu(monkeypatch, pids=None)
    asked.ask, asked.driver = lambda question, *_: None, lambda: None
    monkeypatch.setattr(card, "CARDS_BEFORE", {})
    shown_by(monkeypatch, GPU)
    text = capsys.readouterr().out
    for what in ("driver", "others on the GPU", "SM clock", "power cap", "throttled now"):
        assert f"{what:<18} unknown\n" in text
    assert "WARNING" not in text


def test_processes_that_nvml_does_not_list_are_unknown_at_the_start():
    """Here there is no GPU: no list is no list, not an empty one."""
    asked = card.Card().ask("ComputeRunningProcesses") if card.FRESH else None
    assert {before["pids"] is None for before in card.CARDS_BEFORE.values()} <= {asked is None}


@pytest.mark.parametrize(
    ("state", "warning"),
    [
        ({"pids": (-5,)}, "another process is on this GPU"),
        ({"EnforcedPowerLimit": 250_000}, "the power cap is below the card's default"),
        ({"fp16": "a convolution is wrong"}, "fp16 arithmetic is wrong on this GPU: a convolution is wrong"),
        ({"launch": 0.6}, "every launch waits for the GPU (is CUDA_LAUNCH_BLOCKING set?)"),
        ({"events": 0.94}, "CUDA events and the wall clock disagree"),
        ({"events": 1.06}, "CUDA events and the wall clock disagree"),
    ],
)
def test_each_warning_is_given_alone(monkeypatch, capsys, state, warning):
    pretend_gpu(monkeypatch, **state)
    shown_by(monkeypatch, GPU)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert warning in warnings[0]


def test_a_throttled_card_is_told_why_before_the_run(monkeypatch, capsys):
    pretend_gpu(monkeypatch, CurrentClocksEventReasons=0x4 | 0x40 | 0x1)
    shown_by(monkeypatch, GPU)
    assert "throttled now      power cap, thermal, hardware\n" in capsys.readouterr().out


def test_modes_that_the_card_cannot_run_are_greyed_out_with_the_reason(monkeypatch):
    pretend_gpu(monkeypatch, fp16="a convolution is wrong", native=False)
    fields, table = shown_by(monkeypatch, GPU)
    assert fields == {"native_bf16": False, "fp16_check": "a convolution is wrong"}
    assert table.count("#999999") == 4  # three modes with fp16, and bf16
    assert table.count("fp16 arithmetic is wrong on this GPU: a convolution is wrong") == 3
    assert "would only emulate bfloat16" in table


def test_a_pytorch_without_kernels_stops_the_notebook_with_one_sentence(monkeypatch):
    pretend_gpu(monkeypatch, architectures=["sm_90"])
    with pytest.raises(card.Stop, match=r"Made-up RTX: this PyTorch has no kernels for compute capability 8\.6"):
        card.show_preflight(GPU, "eager", ["fp32"], harness.check_supported)


# Packages


def test_packages_missing_elsewhere_than_on_colab_stop_with_the_command(monkeypatch):
    with pytest.raises(card.Stop, match="pip install no-such-package"):
        card.require_packages({"no_such_module": "no-such-package", "torch": "torch"})
    called = []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(card.subprocess, "run", lambda command, check: called.append(command))
    card.require_packages({"no_such_module": "no-such-package"})
    assert called[0][-1] == "no-such-package"
