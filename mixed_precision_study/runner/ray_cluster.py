"""Runs on a Ray cluster: an executor like process, with an actor on every device that asks process there.

Each actor holds one GPU (or one CPU) of one node, so that a comparison stays on one card. The notebook travels there
as bytes; the executed notebook and the record come back as bytes and are written here, by the driver.
"""

import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..files import written_whole
from ..gpu import nvml
from ..record import utc_now, write_flat
from . import process
from .devices import Device, visible_gpus
from .paths import PACKAGE, ROOT
from .plan import Run

ANSWER_SECONDS = 10  # for what listens at an address
READY_SECONDS = 120  # for the actors of GPUs that others do not hold
ANEW_SECONDS = 30  # for an actor that has died
STOP_SECONDS = 2  # for all actors together to end their runs when the batch ends
ASK_SECONDS = 0.3  # between two questions to an actor
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # gRPC answers with a frame of type 4
DATA = "MIXED_PRECISION_DATA"  # environment of a node: where its data lie or go
CACHE = "~/.cache/mixed-precision-study"


@dataclass
class Remote:
    """A run that is being executed on another node."""

    run: Run
    worker: object
    launched: object  # answer to come
    code_hash: str | None = None
    attempt: int = 1
    started_at: str = field(default_factory=utc_now)
    question: object = None  # the answer to come to the last check
    asked: float = 0.0
    progress: str = ""
    started: float = field(default_factory=time.monotonic)


class Worker:
    """Lives on one node and executes one run at a time there; the methods answer at once."""

    def __init__(self, on_gpu):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1: a run must have the cores it has without Ray
        there = visible_gpus() if on_gpu else [Device(0, "cpu0")]
        if not there:
            raise RuntimeError("Ray was told of a GPU that NVML does not find here")
        self.device = there[0]
        self.active = self.folder = None

    def describe(self):
        """Return (name of the node, Ray's number of it, device)."""
        import ray

        return socket.gethostname(), ray.get_runtime_context().get_node_id(), tuple(self.device)

    def answers(self):
        """Return whether the device can be used."""
        return process.answers(self.device)

    def launch(self, name, content, run, study, commit, attempt):
        """Start a run whose notebook comes as bytes; `run` is (run_id, precision, parameters)."""
        if self.folder:  # of an attempt that failed; a run's end has removed its own
            shutil.rmtree(self.folder, ignore_errors=True)
        self.active, self.folder = None, Path(tempfile.mkdtemp(prefix="ray-"))
        (self.folder / "logs").mkdir()
        notebook = self.folder / "source" / f"{name}.ipynb"
        notebook.parent.mkdir()
        notebook.write_bytes(content)
        run_id, precision, parameters = run
        parameters = {**parameters, "output_dir": str(self.folder), "data_dir": data_folder(parameters["data_dir"])}
        run = Run(run_id, notebook, precision, parameters, self.folder, 0.0)
        self.active = process.launch(run, study, commit, self.device, attempt)

    def check(self, commit, limit, stall):
        """Return (progress, State of the GPU, None), or at the end (progress, state, (End, {file name: bytes}))."""
        if self.active is None:  # it could not be started; that is the answer to launch
            return "", None, None
        state, progress = process.gpu_state(self.device), process.progress_of(self.active)
        end = process.check(self.active, commit, self.device, limit, stall)
        if end is None:
            return progress, state, None
        run, files = self.active.run, {}
        for path in (run.folder / f"{run.run_id}.ipynb", run.log_path, run.log_path.with_suffix(".yaml")):
            with suppress(OSError):
                files[path.name] = path.read_bytes()
        until = time.monotonic() + 30
        while not process.memory_is_free(self.active, self.device) and time.monotonic() < until:
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)
        return progress, state, (tuple(end), files)

    def stop(self):
        """End the run, if there is one."""
        if self.active:
            process.stop(self.active)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def data_folder(wanted):
    """Return where a node finds or puts the data: the driver's folder where it is shared, else one of the node."""
    if Path(wanted).is_dir():
        return wanted
    return str(Path(os.environ.get(DATA, CACHE)).expanduser())


class Cluster:
    """The executor: the same functions as process, for devices that are actors."""

    def __init__(self, ray, workers, nodes=None):
        self.ray, self.workers, self.nodes, self.states = ray, workers, nodes or {}, {}
        self.devices = list(workers)

    def launch(self, run, study, commit, device, attempt=1):
        """Send a run to the actor of a device; raise nvml.Lost where that has died and cannot be started anew."""
        if device not in self.workers:
            self.start_anew(device)
        folder = str((ROOT / run.parameters["data_dir"]).resolve())  # where this machine keeps the data
        words = (run.run_id, run.precision, {**run.parameters, "data_dir": folder})
        worker = self.workers[device]
        content, code_hash = run.notebook.read_bytes(), process.hash_now(run)
        launched = worker.launch.remote(run.notebook.stem, content, words, study, commit, attempt)
        return Remote(run, worker, launched, code_hash, attempt)

    def check(self, active, commit, device, limit, stall=0):
        """Return None while a run goes on, else its End, its files written; a node that is gone is a lost device."""
        if time.monotonic() - active.asked < ASK_SECONDS:
            return None
        try:
            if active.question is None:
                active.question = active.worker.check.remote(commit, limit, stall)
            if not self.ray.wait([active.question], timeout=0)[0]:
                return None
            self.ray.get(active.launched)
            active.progress, self.states[device], ended = self.ray.get(active.question)
        except self.ray.exceptions.RayError as error:
            return self.failed(active, error, commit, device)
        active.question, active.asked = None, time.monotonic()
        if ended is None:
            return None
        (record, *about), files = ended
        if record:
            places = {name: active.run.parameters[name] for name in ("data_dir", "output_dir")}
            record = {**record, **places}
        save(active.run, record, files)
        return process.RunOutcome(record, *about)

    def failed(self, active, error, commit, device):
        """Return the End of a run whose actor could not answer.

        As on this machine, what did not start is tried again, and the end of the host's memory is the end of the run;
        else the device is lost.
        """
        exceptions = self.ray.exceptions
        out_of_memory, begun = isinstance(error, exceptions.OutOfMemoryError), True
        try:
            self.ray.get(active.launched, timeout=0)
        except exceptions.RayError:
            begun = False
        if out_of_memory:
            self.workers.pop(device, None)  # Ray has ended the actor; the next launch starts one anew
        refused = out_of_memory or isinstance(getattr(error, "cause", None), OSError)
        if refused and not begun and active.attempt < process.START_ATTEMPTS:
            return process.RunOutcome(None, f"its node could not start it: {reason_of(error)}")
        if out_of_memory:
            reason = "Ray ended the actor that ran it, for the host's memory was exhausted"
            return process.RunOutcome(process.write_ending(active, "killed", reason, commit, device))
        return process.RunOutcome(None, f"its node failed: {reason_of(error)}", True, begun)

    def stop_all(self, actives):
        """End runs on their nodes, all at once, as far as these still answer; else Ray ends them with their actors."""
        asked = [active.worker.stop.remote() for active in actives]
        self.ray.wait(asked, num_returns=len(asked), timeout=STOP_SECONDS)

    def answers(self, device):
        """Return whether a device that was lost can be used, if need be by an actor that is started anew."""
        with suppress(self.ray.exceptions.RayError, KeyError):
            return self.ray.get(self.workers[device].answers.remote(), timeout=process.PROBE_SECONDS)
        with suppress(self.ray.exceptions.RayError, nvml.GpuLost):
            self.start_anew(device)
            return self.ray.get(self.workers[device].answers.remote(), timeout=process.PROBE_SECONDS)
        return False

    def start_anew(self, device):
        """Start the actor of a device anew on its node; raise nvml.Lost where that is not possible."""
        if device in self.workers:
            self.ray.kill(self.workers.pop(device))
        where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.nodes[device], soft=False)
        worker = start_worker(self.ray, bool(device.visible), where)
        try:
            there = Device(*self.ray.get(worker.describe.remote(), timeout=ANEW_SECONDS)[2])
            if there.visible != device.visible:
                raise nvml.GpuLost("its node gave another one in its place")
        except (self.ray.exceptions.RayError, nvml.GpuLost) as error:
            self.ray.kill(worker)
            raise nvml.GpuLost(f"its actor could not be started anew: {reason_of(error)}") from None
        self.workers[device] = worker

    def memory_is_free(self, active, device):
        """Return True: the actor has waited for it."""
        return True

    def progress_of(self, active):
        return active.progress

    def gpu_state(self, device):
        return self.states.get(device)


def save(run, record, files):
    """Write what has come back: the record last, for it is what counts."""
    for name, content in files.items():
        folder = run.folder if name.endswith(".ipynb") else run.folder / "logs"
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(content)
    if record:
        write_flat(record, run.record_path)


def reason_of(error):
    """Return in one line why Ray could not do something; where an actor could not begin, its own error comes last."""
    lines = str(getattr(error, "cause", None) or error).strip().split("\n")
    return " ".join(lines[-1 if "creation task" in lines[0] else 0].split())[:200]


def pack(folder):
    """Copy the package, which every node needs, into `folder`."""
    shutil.copytree(PACKAGE, Path(folder) / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))


def check_reachable(address):
    """Raise UserError where nothing that may be Ray listens at `host:port`; Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address)
    if not found and address not in ("auto", "local"):
        raise UserError(f"--ray {address} must be auto, local, HOST:PORT or ray://HOST:PORT.")
    if found:
        try:
            with socket.create_connection((found[1], int(found[2])), timeout=ANSWER_SECONDS) as there:
                there.sendall(HELLO)
                speaks = os.environ.get("RAY_USE_TLS") == "1" or there.recv(9)[3:4] == b"\4"
        except (OSError, OverflowError) as error:
            raise UserError(f"--ray {address}: no Ray cluster could be reached ({error}).") from None
        if not speaks:  # such as the page of Ray's dashboard
            raise UserError(f"--ray {address}: what answers there is no Ray cluster; its port is 6379 as a rule.")


@contextmanager
def connected(address, jobs, gpus_wanted):
    """Yield a Cluster on the Ray cluster at `address` ("auto": one that runs here; "local": one started for this)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":  # its ports are open to other hosts: let them be asked for a token (Ray 2.52 and newer)
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("--ray needs Ray: pip install ray") from None
    check_reachable(address)
    with tempfile.TemporaryDirectory() as folder:
        pack(folder)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"working_dir": folder}}
        where = {"include_dashboard": False} if address == "local" else {"address": address}
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**where, **quiet)
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the batch without a word
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            advice = "where it wants a token, set RAY_AUTH_MODE=token"
            raise UserError(f"--ray {address}: no Ray cluster could be reached ({reason}); {advice}.") from None
        try:
            yield Cluster(ray, *start_workers(ray, jobs, gpus_wanted))
        finally:
            ray.shutdown()


def start_worker(ray, on_gpu, where):
    """Return an actor that holds one GPU or one CPU."""
    return ray.remote(num_gpus=1 if on_gpu else 0, num_cpus=1, scheduling_strategy=where)(Worker).remote(on_gpu)


def start_workers(ray, jobs, gpus_wanted):
    """Return ({device: actor}, {device: Ray's number of its node}).

    There is an actor on every GPU of the cluster, or `jobs` on its CPUs where there is none.
    """
    there = int(ray.cluster_resources().get("GPU", 0)) if gpus_wanted else 0
    if there and jobs:
        raise UserError("--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that times compare.")
    actors = [start_worker(ray, bool(there), "SPREAD") for _ in range(there or jobs or 1)]
    asked = {actor.describe.remote(): actor for actor in actors}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=READY_SECONDS)
    for question in late:  # others hold these devices: do not queue for them
        ray.kill(asked[question])
    workers, nodes, refusal = {}, {}, ""
    for question in ready:
        try:
            node, number, device = ray.get(question)
        except ray.exceptions.RayError as error:  # a node without a GPU, or without what the runs need
            refusal = f": {reason_of(error)}"
            print(f"run_all.py: a device of the cluster is not used{refusal}", file=sys.stderr)
            continue
        device = Device(*device)
        label = f"{node}-{device.label}" if there else f"{node}-cpu{len(workers)}"
        device = Device(len(workers), label, device.visible, device.name)
        workers[device], nodes[device] = asked[question], number
    if not workers:
        raise UserError(f"--ray: no device of the cluster became free within {READY_SECONDS} s{refusal}.")
    return workers, nodes
