"""Runs on a Ray cluster: an executor like the module process, with an actor on every device that calls process there.

Each actor holds one GPU (or one CPU) of one node. The notebook travels there as bytes. The executed notebook and the
record come back as bytes and are written here, by the driver.
"""

import logging
import os
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, printable
from ..files import written_whole
from ..gpu import nvml
from ..record import utc_now, write_flat
from . import process
from .devices import Device, visible_gpus
from .paths import PACKAGE, ROOT
from .plan import Run
from .process import RunOutcome

CONNECT_SECONDS = 10
READY_SECONDS = 120  # for the actors of GPUs that others do not hold
RESTART_SECONDS = 30  # for an actor that has died
STOP_SECONDS = 2  # for all actors together to end their runs
POLL_SECONDS = 0.3  # between two questions to an actor
CLEAR_SECONDS = 30  # for a GPU to free the memory of a run
GRPC_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # answered by a frame of type 4
DATA_ENV = "MIXED_PRECISION_DATA"  # environment variable of a node: the folder of its data
NOBODY = 65534  # owner of what belongs to users that a container does not know
DATA_FOLDER = "~/.cache/mixed-precision-study"


@dataclass
class RemoteRun:
    """A run that is being executed on another node."""

    run: Run
    device: Device
    commit: str | None
    worker: Any
    launched: Any  # Ray's reference to the answer of launch
    code_hash: str | None = None
    attempt: int = 1
    started_at: str = field(default_factory=utc_now)
    question: Any = None  # Ray's reference to the answer of the last poll
    asked: float = 0.0
    progress: str = ""
    started: float = field(default_factory=time.monotonic)


class Worker:
    """The actor: lives on one node and executes one run at a time there. Its methods return at once."""

    def __init__(self, on_gpu: bool):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1: a run must have the cores it has without Ray
        there = visible_gpus() if on_gpu else [Device(0, "cpu0")]
        if not there:
            raise RuntimeError("Ray was told of a GPU that NVML does not find here")
        self.device = there[0]
        self.running: process.RunningProcess | None = None
        self.folder: Path | None = None

    def describe(self) -> tuple[str, str, tuple]:
        """Return (name of the node, its id in Ray, the device as a tuple)."""
        import ray

        return socket.gethostname(), ray.get_runtime_context().get_node_id(), tuple(self.device)

    def danger(self) -> str:
        """Return how others could run programs in this cluster, and what to do, or ""."""
        if not asks_for_credentials():
            advice = "start its nodes and run_all.py with RAY_AUTH_MODE=token (Ray 2.52 or newer)"
            return f"whoever reaches this cluster can run programs in it; {advice}"
        if folder := writable_by_others(PACKAGE):
            advice = "start it after umask 077 with --temp-dir below a folder that only you can enter (mode 700)"
            return f"others on {socket.gethostname()} may change programs of this cluster in {folder}; {advice}"
        return ""

    def device_works(self) -> bool:
        return process.device_works(self.device)

    def share_cores(self, devices: int) -> None:
        """Let its runs use their share of the node's cores, as without Ray. `devices` of the node run at a time."""
        process.share_cores(devices)

    def launch(
        self,
        name: str,
        content: bytes,
        run: tuple[str, str, dict, int | None, dict | None],
        study: str,
        commit: str | None,
        attempt: int,
    ) -> None:
        """Start a run whose notebook comes as bytes. `run` is (run_id, precision, parameters, order, study)."""
        self.running = None
        self.remove_folder()  # of an attempt that failed
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        (self.folder / "logs").mkdir()
        notebook = self.folder / "source" / f"{name}.ipynb"
        notebook.parent.mkdir()
        notebook.write_bytes(content)
        run_id, precision, parameters, order, about = run
        parameters = {**parameters, "output_dir": str(self.folder), "data_dir": data_folder(parameters["data_dir"])}
        here = Run(run_id, notebook, precision, parameters, self.folder, 0.0, order, study=about)
        self.running = process.launch(here, study, commit, self.device, attempt)

    def poll(self, limit: float, stall: float) -> tuple[str, nvml.GpuState | None, tuple | None]:
        """Return (progress, state of the GPU, None), at the end (progress, state, (outcome, {file name: bytes}))."""
        if self.running is None:  # it could not be started; the answer to launch says so
            return "", None, None
        state = process.gpu_state(self.device)
        progress = process.progress_of(self.running)
        outcome = process.poll(self.running, limit, stall)
        if outcome is None:
            return progress, state, None
        run = self.running.run
        files = {}
        for path in (run.folder / f"{run.run_id}.ipynb", run.log_path, run.log_path.with_suffix(".yaml")):
            with suppress(OSError):
                files[path.name] = path.read_bytes()
        until = time.monotonic() + CLEAR_SECONDS
        while not process.memory_is_free(self.running) and time.monotonic() < until:
            time.sleep(0.2)
        self.remove_folder()
        return progress, state, (tuple(outcome), files)

    def stop(self) -> None:
        """End the run, if there is one."""
        if self.running:
            process.stop(self.running)
        self.remove_folder()

    def remove_folder(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def data_folder(wanted: str) -> str:
    """Return where a node finds or puts the data: the driver's folder where it is shared, else its own."""
    if Path(wanted).is_dir():
        return wanted
    return str(Path(os.environ.get(DATA_ENV, DATA_FOLDER)).expanduser())


def asks_for_credentials() -> bool:
    """Return whether the cluster of this process wants a token, or certificates (TLS)."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True
    try:
        from ray._raylet import AuthenticationMode, get_authentication_mode  # type: ignore[attr-defined]
    except ImportError:  # Ray before 2.52
        return False
    return get_authentication_mode() != AuthenticationMode.DISABLED


def writable_by_others(path: Path) -> Path | None:
    """Return a folder on the way to `path` in which another user could put other files, or None."""
    if os.name != "posix":
        return None
    for folder in (*reversed(path.parents), path):
        state = folder.stat()
        foreign = state.st_uid not in (0, os.getuid(), NOBODY)
        loose = state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX
        if foreign or loose:
            return folder
        if not state.st_mode & 0o011:  # nobody else gets any further
            return None
    return None


class Cluster:
    """The executor: the functions of the module process, for devices that are actors."""

    RESTARTS_DEVICES = True  # a new actor takes the place of one that has died

    def __init__(self, ray: Any, workers: dict[Device, Any], nodes: dict[Device, str] | None = None):
        self.ray = ray
        self.workers = workers
        self.nodes = nodes or {}  # {device: id of its node in Ray}
        self.states: dict[Device, nvml.GpuState | None] = {}
        self.devices = list(workers)

    def launch(self, run: Run, study: str, commit: str | None, device: Device, attempt: int = 1) -> RemoteRun:
        """Send a run to the actor of a device. Raise nvml.GpuLost where it has died and cannot be restarted."""
        if device not in self.workers:
            self.restart(device)
        process.check_places(run)
        worker = self.workers[device]
        folder = str((ROOT / run.parameters["data_dir"]).resolve())  # where this machine keeps the data
        there = (run.run_id, run.precision, {**run.parameters, "data_dir": folder}, run.order, run.study)
        content = run.notebook.read_bytes()
        code_hash = process.hash_now(run)
        launched = worker.launch.remote(run.notebook.stem, content, there, study, commit, attempt)
        return RemoteRun(run, device, commit, worker, launched, code_hash, attempt)

    def poll(self, running: RemoteRun, limit: float, stall: float = 0) -> RunOutcome | None:
        """Return None while a run goes on, else its outcome, with its files written. A dead node is a lost device."""
        if time.monotonic() - running.asked < POLL_SECONDS:
            return None
        try:
            if running.question is None:
                running.question = running.worker.poll.remote(limit, stall)
            if not self.ray.wait([running.question], timeout=0)[0]:
                return None
            self.ray.get(running.launched)
            running.progress, self.states[running.device], ended = self.ray.get(running.question)
        except self.ray.exceptions.RayError as error:
            return self.outcome_of_error(running, error)
        running.question = None
        running.asked = time.monotonic()
        if ended is None:
            return None
        outcome, files = RunOutcome(*ended[0]), ended[1]
        if outcome.record:
            folders = {name: running.run.parameters[name] for name in ("data_dir", "output_dir")}
            outcome = outcome._replace(record={**outcome.record, **folders})
        save(running.run, outcome.record, files)
        return outcome

    def outcome_of_error(self, running: RemoteRun, error: Exception) -> RunOutcome:
        """Return the outcome of a run whose actor could not answer.

        As on this machine, a failed start is tried again, and a run that exhausts the host's memory was killed. Any
        other error means that the device is lost.
        """
        exceptions = self.ray.exceptions
        out_of_memory = isinstance(error, exceptions.OutOfMemoryError)
        begun = True
        try:
            self.ray.get(running.launched, timeout=0)
        except exceptions.RayError:
            begun = False
        if out_of_memory:
            self.workers.pop(running.device, None)  # Ray has ended the actor; the next launch restarts it
        refused = out_of_memory or isinstance(getattr(error, "cause", None), OSError)
        if refused and not begun and running.attempt < process.START_ATTEMPTS:
            return RunOutcome(None, f"its node could not start it: {reason_of(error)}")
        if out_of_memory:
            reason = "Ray ended the actor that ran it because the host's memory was exhausted"
            return RunOutcome(process.write_ending(running, "killed", reason))
        return RunOutcome(None, f"its node failed: {reason_of(error)}", lost=True, begun=begun)

    def stop_all(self, runs: Collection[RemoteRun]) -> None:
        """End runs on their nodes, all at once. Where a node does not answer, Ray ends them with their actors."""
        asked = [running.worker.stop.remote() for running in runs]
        self.ray.wait(asked, num_returns=len(asked), timeout=STOP_SECONDS)

    def device_works(self, device: Device) -> bool:
        """Return whether a device that was lost can be used, if need be by a new actor."""
        with suppress(self.ray.exceptions.RayError, KeyError):
            return self.ask_whether_it_works(device)
        with suppress(self.ray.exceptions.RayError, nvml.GpuLost):
            self.restart(device)
            return self.ask_whether_it_works(device)
        return False

    def ask_whether_it_works(self, device: Device) -> bool:
        return self.ray.get(self.workers[device].device_works.remote(), timeout=process.PROBE_SECONDS)

    def restart(self, device: Device) -> None:
        """Start a new actor for a device on its node. Raise nvml.GpuLost where that is not possible."""
        if device in self.workers:
            self.ray.kill(self.workers.pop(device))
        where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.nodes[device], soft=False)
        worker = start_worker(self.ray, bool(device.visible), where)
        try:
            there = Device(*self.ray.get(worker.describe.remote(), timeout=RESTART_SECONDS)[2])
            if there.visible != device.visible:
                raise nvml.GpuLost("its node gave another one in its place")
        except (self.ray.exceptions.RayError, nvml.GpuLost) as error:
            self.ray.kill(worker)
            raise nvml.GpuLost(f"its actor could not be restarted: {reason_of(error)}") from None
        share_cores(worker, device, self.nodes)
        self.workers[device] = worker

    def memory_is_free(self, running: RemoteRun) -> bool:
        """Return True: the actor has waited for it."""
        return True

    def progress_of(self, running: RemoteRun) -> str:
        return running.progress

    def gpu_state(self, device: Device) -> nvml.GpuState | None:
        return self.states.get(device)


def save(run: Run, record: dict | None, files: dict[str, bytes]) -> None:
    """Write what has come back. The record is last because it is what counts."""
    for name, content in files.items():
        folder = run.folder if name.endswith(".ipynb") else run.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(IsADirectoryError), written_whole(folder / name) as temporary:
            temporary.write_bytes(content)
    if record:
        write_flat(record, run.record_path)


def reason_of(error: Exception) -> str:
    """Return in one line why Ray failed. Where an actor could not begin, its own error comes last."""
    lines = str(getattr(error, "cause", None) or error).strip().split("\n")
    line = lines[-1] if "creation task" in lines[0] else lines[0]
    return " ".join(line.split())[:200]


def pack(folder: str | Path) -> None:
    """Copy the package, which every node needs, into `folder`."""
    shutil.copytree(PACKAGE, Path(folder) / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))


def check_reachable(address: str) -> None:
    """Raise UserError where nothing that may be Ray listens at `host:port`. Ray itself would try for minutes."""
    if address == "auto":
        return
    found = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address)
    if not found:
        raise UserError(f"--ray {address} must be auto, HOST:PORT or ray://HOST:PORT.")
    try:
        with socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS) as there:
            there.sendall(GRPC_HELLO)
            speaks_grpc = os.environ.get("RAY_USE_TLS") == "1" or there.recv(9)[3:4] == b"\4"
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address}: no Ray cluster could be reached ({error}).") from None
    if not speaks_grpc:  # such as Ray's dashboard
        raise UserError(f"--ray {address}: what answers there is no Ray cluster; its port is usually 6379.")


@contextmanager
def connected(address: str, jobs: int | None, gpus_wanted: bool) -> Iterator[Cluster]:
    """Yield a Cluster on the Ray cluster at `address` ("auto": one that runs here)."""
    if address == "local":
        raise UserError("--ray is for a cluster; the GPUs of this machine are used without it. Leave --ray local out.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("--ray needs Ray: pip install ray") from None
    check_reachable(address)
    with tempfile.TemporaryDirectory() as folder:
        pack(folder)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, runtime_env={"working_dir": folder}, **quiet)
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler would end this process silently
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            advice = "where it wants a token, set RAY_AUTH_MODE=token"
            raise UserError(f"--ray {address}: no Ray cluster could be reached ({reason}); {advice}.") from None
        try:
            workers, nodes = start_workers(ray, jobs, gpus_wanted)
            for danger in ray.get([worker.danger.remote() for worker in workers.values()]):
                if danger:
                    raise UserError(f"--ray {address}: {danger}.")
            yield Cluster(ray, workers, nodes)
        finally:
            ray.shutdown()


def start_worker(ray: Any, on_gpu: bool, where: Any) -> Any:
    """Return an actor that holds one GPU or one CPU. `where` is a scheduling strategy of Ray."""
    return ray.remote(num_gpus=1 if on_gpu else 0, num_cpus=1, scheduling_strategy=where)(Worker).remote(on_gpu)


def start_workers(ray: Any, jobs: int | None, gpus_wanted: bool) -> tuple[dict[Device, Any], dict[Device, str]]:
    """Return ({device: actor}, {device: id of its node}): every GPU of the cluster, else `jobs` CPUs.

    Raise UserError where no device can be used.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_wanted else 0
    if gpus and jobs:
        raise UserError("--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that times compare.")
    actors = [start_worker(ray, bool(gpus), "SPREAD") for _ in range(gpus or jobs or 1)]
    asked = {actor.describe.remote(): actor for actor in actors}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=READY_SECONDS)
    for question in late:  # others hold these devices: do not queue for them
        ray.kill(asked[question])
    workers: dict[Device, Any] = {}
    nodes: dict[Device, str] = {}
    refusal = ""
    for question in ready:
        try:
            host, node, fields = ray.get(question)
        except ray.exceptions.RayError as error:  # a node without a GPU, or without what the runs need
            refusal = f": {reason_of(error)}"
            print(printable(f"run_all.py: a device of the cluster is not used{refusal}"), file=sys.stderr)
            continue
        there = Device(*fields)
        number = len(workers)
        device = Device(number, f"{host}-{there.label if gpus else f'cpu{number}'}", there.visible, there.name)
        workers[device] = asked[question]
        nodes[device] = node
    if not workers:
        raise UserError(f"--ray: no device of the cluster became free within {READY_SECONDS} s{refusal}.")
    for device, worker in workers.items():
        share_cores(worker, device, nodes)
    return workers, nodes


def share_cores(worker: Any, device: Device, nodes: dict[Device, str]) -> None:
    """Tell an actor how many devices of its node run at a time. It does so before the next thing it is asked for."""
    worker.share_cores.remote(list(nodes.values()).count(nodes[device]))
