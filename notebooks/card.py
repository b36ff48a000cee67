"""The card, shared by every experiment notebook: what NVML says about the GPU, before the timing and beside it.

Every question has the answer None where driver or binding give none, and a reason; never 0. sync.py copies the
sections, each from its '# %%' line to the next, into the notebooks.
"""

from verdict import DISTURBED

# isort: split

# %% Environment check -- the same in every notebook; edit notebooks/card.py, then run sync.py
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

STARTED = time.perf_counter()  # of the notebook
warnings.filterwarnings("ignore", message="IProgress not found")  # the bars here are plain text


class Stop(Exception):
    """Ends the notebook with one sentence for the reader in place of a traceback."""

    def _render_traceback_(self):  # IPython asks for this before it prints a traceback
        return [f"Stopped: {self}"]


class Unsupported(Exception):
    """The device or this suite cannot run the mode: status `unsupported`, with the reason."""


class Diverged(Exception):
    """Training broke down: status `diverged`, with the reason."""


def missing_packages(packages):
    """Return the pip names of those `packages` ({module: pip name}) that are not installed here."""
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def require_packages(packages):
    """Install what is missing on Colab and Kaggle; elsewhere stop and say which command installs it."""
    missing = missing_packages(packages)
    hosted = "COLAB_RELEASE_TAG" in os.environ or "KAGGLE_KERNEL_RUN_TYPE" in os.environ
    if missing and not hosted:
        raise Stop(f"these packages are missing; install them with: pip install {' '.join(missing)}")
    if missing:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *missing], check=True)
        importlib.invalidate_caches()  # or a package installed just now is not found


require_packages({"torch": "torch", "timm": "timm", "torchvision": "torchvision", "pandas": "pandas", "tqdm": "tqdm"})
import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
    raise Stop(f"PyTorch {torch.__version__} is too old: the fp32_precision switches need 2.9; pip install -U torch")
device = torch.device("cuda" if torch.cuda.is_available() and torch.version.cuda else "cpu")  # AMD calls itself cuda
if device.type == "cuda":
    print(f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPU(s); the first is used.")
else:
    print(
        "No GPU: everything runs on the CPU, which shows that it works and measures nothing. For a GPU, on Colab choose"
        " Runtime > Change runtime type > T4 GPU; on Kaggle choose Settings > Accelerator; elsewhere install a driver"
        " and a CUDA build of PyTorch."
    )

# %% Card -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title What the driver says about the GPU
import os

MIB = 2**20
THROTTLES = {  # bits of NVML's clock event reasons that mean: slower than the card could be
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}


class Card:
    """The GPU as NVML sees it; `reason` says why a card that cannot be asked gives no answers.

    `uuid` as PyTorch prints it, or NVML's own `number` of it. Works with nvidia-ml-py and with the old nvidia-ml-py3
    7.352.0, which returns bytes and knows no second version of the memory call.
    """

    def __init__(self, uuid=None, number=0):
        self.nvml = self.handle = self.reason = None
        try:
            import pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            find = pynvml.nvmlDeviceGetHandleByUUID if uuid else pynvml.nvmlDeviceGetHandleByIndex
            self.nvml, self.handle = pynvml, find(f"GPU-{uuid}".encode() if uuid else number)
        except Exception as error:  # no driver, no such card: each binding raises its own class
            self.reason = f"NVML gave no figure ({error})"

    def ask(self, question, *details, **more):
        """Return NVML's answer to nvmlDeviceGet<question> about this card, or None."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{question}")(self.handle, *details, **more)
        except Exception:  # an old binding, an old driver, a right that is lacking: each raises its own class
            return None

    def memory(self):
        """Return {"used_mib", "total_mib", "reason"} of the whole card; the driver's own reserve is not counted."""
        second = getattr(self.nvml, "nvmlMemory_v2", None)
        memory = (self.ask("MemoryInfo", version=second) if second else None) or self.ask("MemoryInfo")
        if memory is None:
            return {"used_mib": None, "total_mib": None, "reason": self.reason or "NVML gave no figure for the memory"}
        return {"used_mib": memory.used / MIB, "total_mib": memory.total / MIB, "reason": None}

    def driver(self):
        """Return the driver's version as text, or None."""
        try:
            text = self.nvml.nvmlSystemGetDriverVersion()
        except Exception:  # as in ask()
            return None
        return text.decode() if isinstance(text, bytes) else text


def others_of(pids, own_is_there):
    """Return how many of the processes that NVML lists are not this one; None where the list must be incomplete.

    In a container the numbers may be the host's: then one of them is taken for this process, if it uses the card.
    """
    if pids is None or (not pids and own_is_there):
        return None
    return len(set(pids)) - (own_is_there or os.getpid() in pids)


# %% Before the run -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title What others had on each card before this kernel used one
def read_cards():
    """Return {UUID as PyTorch prints it: {"used_mib", "pids"}} of every card, None where NVML does not tell.

    Of every card, because CUDA may number them otherwise than NVML does, and cannot be asked before it is in use.
    """
    nvml, cards = Card().nvml, {}
    for card in [Card(number=number) for number in range(nvml.nvmlDeviceGetCount() if nvml else 0)]:
        uuid, processes = card.ask("UUID") or "", card.ask("ComputeRunningProcesses")
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        pids = None if processes is None else [process.pid for process in processes]
        cards[uuid.removeprefix("GPU-")] = {"used_mib": card.memory()["used_mib"], "pids": pids}
    return cards


def card_before(uuid):
    """Return {"used_mib", "pids"} of a card before this process used it, None for what is not known."""
    return CARDS_BEFORE.get(str(uuid), {"used_mib": None, "pids": None})


FRESH = not torch.cuda.is_initialized()  # else a kernel that goes on: what others used can no longer be told
CARDS_BEFORE = read_cards() if FRESH else {}


# %% Card sampler -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title Power, clock, temperature and throttling while the clock runs
import json
import tempfile

# In a process of its own: a thread that asks ten times a second takes the interpreter from a loop that launches
# kernels, and made it 3% slower. It ends when its standard input closes, so also when this process is killed.
SAMPLER = """
import json, os, sys, threading, time
import pynvml as nvml

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode())

def ask(question, *details):
    try:
        return getattr(nvml, "nvmlDeviceGet" + question)(card, *details)
    except Exception:
        return None

while True:
    bits, processes = ask("CurrentClocksEventReasons"), ask("ComputeRunningProcesses")
    sample = {"seconds": time.perf_counter(), "milliwatts": ask("PowerUsage"), "mhz": ask("ClockInfo", 1)}
    sample |= {"celsius": ask("Temperature", 0), "bits": ask("CurrentClocksThrottleReasons") if bits is None else bits}
    sample["pids"] = None if processes is None else [process.pid for process in processes]
    print(json.dumps(sample), flush=True)
    time.sleep(0.1)
"""


@contextmanager
def sampled(uuid, samples):
    """Sample the card about ten times a second while the block runs; the samples are added to the list `samples`."""
    with tempfile.TemporaryFile("w+") as lines:
        command = [sys.executable, "-c", SAMPLER, f"GPU-{uuid}"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=lines, stderr=subprocess.DEVNULL)
        waited_until = time.perf_counter() + 5
        while os.fstat(lines.fileno()).st_size == 0 and child.poll() is None and time.perf_counter() < waited_until:
            time.sleep(0.01)  # until it has begun: its start would disturb the timing
        try:
            yield
        finally:
            child.kill()
            child.communicate()
            lines.seek(0)
            samples.extend(json.loads(line) for line in lines if line[0] + line[-1] == "{\n")


@contextmanager
def watched(record, device):
    """Sample the card while the block runs; the record gets one more part: its seconds, joules and samples."""
    card = Card(record.gpu_uuid) if device.type == "cuda" else None
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


# %% Energy -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title What the samples add up to
def integrate(samples, seconds):
    """Return the joules of power samples by the trapezoidal rule, stretched to `seconds`; None below two samples."""
    points = [(s["seconds"], s["milliwatts"] / 1000) for s in samples if s["milliwatts"] is not None]
    if len(points) < 2:
        return None
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    return joules / (points[-1][0] - points[0][0]) * seconds


def summarise_card(record, samples_trained):
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


# %% Preflight checks -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title Does this PyTorch fit the card, is fp16 right, is the clock?
def missing_kernels(capability, architectures):
    """Return why this PyTorch cannot run on a GPU of `capability` (major, minor), with the wheel that can, or None."""
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built = divmod(int(number), 10)
        if (kind == "sm" and built[0] == capability[0] and built <= capability) or (
            kind == "compute" and built <= capability
        ):
            return None
    has = f"this PyTorch has no kernels for compute capability {capability[0]}.{capability[1]}; "
    if capability >= (7, 5):
        return has + "install the newest: pip install -U torch torchvision"
    if capability >= (5, 0):  # the CUDA 12.6 wheels are the last with Maxwell, Pascal and Volta; 2.14 is their last
        wheel = 'pip install "torch>=2.9,<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'
        return has + f"install the last that has: {wheel}"
    return has + "no PyTorch that this suite supports (2.9 or newer) has; use a GPU of compute capability 5.0 or newer"


def check_fp16(device):
    """Return "passed", or what is wrong with fp16 here: the GeForce GTX 16 series gives NaN in convolutions."""
    generator = torch.Generator(device).manual_seed(0)
    image, weight = (
        torch.randn(size, generator=generator, device=device) for size in ((7, 64, 32, 32), (64, 64, 3, 3))
    )
    matrix = torch.randn(512, 512, generator=generator, device=device)
    for name, work in (
        ("convolution", lambda dtype: torch.nn.functional.conv2d(image.to(dtype), weight.to(dtype), padding=1)),
        ("matmul", lambda dtype: matrix.to(dtype) @ matrix.to(dtype)),
    ):
        exact, half = work(torch.float32), work(torch.float16).float()
        error = ((half - exact).norm() / exact.norm()).item()
        if not error < 0.01:  # also true of NaN
            return f"a {name} in fp16 differs from fp32 by {error:.2g} of its norm"
    return "passed"


def check_clock(device, repeats=20):
    """Return {"events_per_wall", "launch_per_wall"}: CUDA events against the wall, and when unfinished calls return."""
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.float16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for measured in (False, True):  # once to load the library
        torch.cuda.synchronize()
        began = time.perf_counter()
        start.record()
        for _ in range(repeats if measured else 1):
            matrix @ matrix
        end.record()
        launched = time.perf_counter() - began
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
    return {"events_per_wall": start.elapsed_time(end) / 1000 / wall, "launch_per_wall": launched / wall}


# %% Preflight -- the same in every notebook; edit notebooks/card.py, then run sync.py
# @title What is said about the card before anything is measured
import html

from IPython.display import HTML, display


def look_at_card(device):
    """Return ({what: text}, [warnings], {record field: value}) of the card; the CPU has nothing to be measured."""
    if device.type != "cuda":
        return {"device": "CPU"}, [], {}
    properties = torch.cuda.get_device_properties(device)
    capability, card, before = (properties.major, properties.minor), Card(properties.uuid), card_before(properties.uuid)
    if reason := missing_kernels(capability, torch.cuda.get_arch_list()):
        raise Stop(f"{properties.name}: {reason}.")
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    half, clock = check_fp16(device), check_clock(device)
    power, most = card.ask("EnforcedPowerLimit"), card.ask("PowerManagementDefaultLimit")
    used, others, bits = before["used_mib"], others_of(before["pids"], False), card.ask("CurrentClocksEventReasons")
    bits = card.ask("CurrentClocksThrottleReasons") if bits is None else bits  # its name in older bindings
    free = torch.cuda.mem_get_info(device)[0] / MIB
    clocks = [card.ask(ask, 1) for ask in ("ClockInfo", "MaxClockInfo")]  # 1: the streaming multiprocessors
    facts = {
        "GPU": f"{properties.name}, compute capability {properties.major}.{properties.minor}",
        "driver": card.driver() or "unknown",
        "CUDA and cuDNN": f"{torch.version.cuda}, {torch.backends.cudnn.version()}",
        "bf16": "native" if native else "emulated",
        "free memory": f"{free:,.0f} of {properties.total_memory / MIB:,.0f} MiB",
        "others on the GPU": "unknown" if others is None else f"{others} processes, {used or 0:,.0f} MiB",
        "SM clock": "unknown" if None in clocks else f"{clocks[0]:,} MHz now, {clocks[1]:,} MHz at most",
        "power cap": "unknown" if power is None else f"{power / 1000:.0f} W",
        "throttled now": "unknown"
        if bits is None
        else ", ".join(name for bit, name in THROTTLES.items() if bits & bit) or "no",
        "fp16 against fp32": half,
        "CUDA events": f"show {clock['events_per_wall']:.1%} of the wall time",
        "launching": f"takes {clock['launch_per_wall']:.0%} of the time of the work that is launched",
    }
    warnings_ = {
        "another process is on this GPU: times and memory will be disturbed": bool(others),
        "the power cap is below the card's default": None not in (power, most) and power < most,
        f"fp16 arithmetic is wrong on this GPU: {half}": half != "passed",
        "every launch waits for the GPU (is CUDA_LAUNCH_BLOCKING set?)": clock["launch_per_wall"] > 0.5,
        "CUDA events and the wall clock disagree by more than 5%": abs(clock["events_per_wall"] - 1) > 0.05,
    }
    return facts, [text for text, holds in warnings_.items() if holds], {"native_bf16": native, "fp16_check": half}


def clear_workspaces():
    """Free cuBLAS's workspaces on every stream, which would count as memory of the next run. Ends the use of graphs."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()


def show_preflight(device, execution, precisions, check_supported):
    """Show what was found within a few seconds, and every mode, greyed out with its reason where it cannot run here.

    Returns what of it goes into the records. Raises Stop where this PyTorch has no kernels for the GPU.
    """
    began = time.perf_counter()
    facts, found, fields = look_at_card(device)
    clear_workspaces()
    for what, text in facts.items():
        print(f"{what:<18} {text}")
    for text in found:
        print(f"WARNING: {text}.")
    rows = []
    for name in precisions:
        reason = None
        try:
            check_supported(name, execution, device, fields.get("fp16_check"))
        except Unsupported as refusal:
            reason = str(refusal)
        style = ' style="color: #999999"' if reason else ""
        rows.append(f"<tr{style}><td>{name}</td><td>{html.escape(reason or 'can run here')}</td></tr>")
    display(HTML(f"<table><tr><th>precision</th><th></th></tr>{''.join(rows)}</table>"))
    print(f"The checks took {time.perf_counter() - began:.1f} s.")
    return fields
