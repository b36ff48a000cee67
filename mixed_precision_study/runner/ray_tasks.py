"""Runs on a Ray cluster: Ray schedules a task for each repetition of a comparison, so that its precisions share a GPU.

The notebooks and their parameters travel to the node, and what their runs have written comes back as bytes.
"""

import json
import logging
import os
import signal
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from ..commit import ROOT, packed_package
from ..errors import UserError
from ..files import written_whole
from ..gpu import nvml
from ..record import read_run
from .batch import Job, share_of_cores
from .devices import Device, visible_gpus
from .execute import Circumstances, execute, write_ending
from .plan import Run
from .status import in_words, say

DATA_ENV = "MIXED_PRECISION_DATA"  # environment variable of a node: the folder of its data
DATA_FOLDER = "~/.cache/mixed-precision-study"
STOP_SECONDS = 5  # for the nodes to end their runs


def make_repetition(packed: list[tuple], shared: Circumstances, on_gpu: bool) -> list[dict[str, bytes]]:
    """Make the runs of a repetition on a node of the cluster, and return {file name: bytes} of each.

    A run is (notebook's name, its text, parameters, order, study). It sees the GPU that Ray gave to this task.
    """
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1, which is right on the CPU only
    device = visible_gpus()[0] if on_gpu else Device(0, "cpu0")
    shared = shared._replace(threads=share_of_cores(len(nvml.installed_gpus())) if on_gpu else 1)
    found = []
    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        for stem, text, parameters, order, study in packed:
            notebook = folder / "logs" / f"{stem}.ipynb"
            notebook.write_bytes(text)
            data = parameters["data_dir"]
            if not Path(data).is_dir():  # this node does not share the folder of the one that sent the run
                data = str(Path(os.environ.get(DATA_ENV, DATA_FOLDER)).expanduser())
            run = Run(notebook, {**parameters, "output_dir": name, "data_dir": data}, folder, 0.0, order, study)
            with suppress(nvml.GpuLost):  # the records say it
                execute(run, device, shared, threading.Event(), lambda progress, processes: None)
            paths = [run.log_path, run.executed, *run.record_paths.values()]  # the records last: they are what counts
            found.append({str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()})
    return found


class Cluster:
    """A Ray cluster, as far as a study needs it."""

    def __init__(self, ray: Any, on_gpu: bool):
        self.ray = ray
        self.gpus = int(ray.cluster_resources().get("GPU", 0)) if on_gpu else 0

    def devices(self) -> list[Device]:
        """Return a stand-in for each GPU of the cluster, or for its CPUs. Which of them a run gets is Ray's choice."""
        if self.gpus:
            return [Device(number, f"ray{number}", "ray", "GPU of the cluster") for number in range(self.gpus)]
        return [Device(0, "ray", "", "CPUs of the cluster")]

    def make_all(self, jobs: list[Job], shared: Circumstances) -> None:
        """Let Ray make all unfinished runs, and write what comes back. A repetition whose node fails is `killed`."""
        ray, device = self.ray, self.devices()[0]
        options = {"num_gpus": 1 if self.gpus else 0, "num_cpus": 1, "max_retries": 0}
        task = ray.remote(**options)(make_repetition)
        groups = [list(runs) for job in jobs for _, runs in groupby(job.to_do, repetition_of)]
        going = {task.remote([packed(run) for run in runs], shared, bool(self.gpus)): runs for runs in groups}
        total, done = sum(len(run.run_ids) for runs in groups for run in runs), 0
        try:
            while going:
                for ended in ray.wait(list(going), timeout=1)[0]:
                    runs = going.pop(ended)
                    try:
                        for run, files in zip(runs, ray.get(ended), strict=True):
                            save(run, files)
                    except ray.exceptions.RayError as error:
                        reason = f"its node failed: {str(getattr(error, 'cause', None) or error).strip()[-200:]}"
                        for failed in runs:
                            for precision in failed.run_ids:
                                write_ending(failed, precision, device, "killed", reason, commit=shared.commit)
                    for path in [path for run in runs for path in run.record_paths.values()]:
                        done += 1
                        if record := read_run(path):
                            where = record.get("host_id") or device.label
                            say(f"[{done}/{total}] {where}  {path.stem}  {record['status']}  {in_words(record)}")
        finally:
            for task_going in going:
                ray.cancel(task_going, force=False)  # as Ctrl-C in the task, which then ends its run
            if going:
                ray.wait(list(going), num_returns=len(going), timeout=STOP_SECONDS)


def repetition_of(run: Run) -> int:
    return run.parameters.get("repeat", 0)


def packed(run: Run) -> tuple:
    """Return a run as make_repetition() takes it, with the whole path of its data."""
    parameters = {**run.parameters, "data_dir": str((ROOT / run.parameters["data_dir"]).resolve())}
    return run.notebook.stem, run.notebook.read_bytes(), parameters, run.order, run.study


def save(run: Run, files: dict[str, bytes]) -> None:
    """Write what a run has written on its node. Its records name the folders of this machine."""
    for name, content in files.items():
        path = run.folder / name
        with suppress(IsADirectoryError), written_whole(path) as temporary:
            if path in run.record_paths.values():
                folders = {key: run.parameters[key] for key in ("data_dir", "output_dir")}
                content = json.dumps(json.loads(content) | folders, indent=1).encode()
            temporary.write_bytes(content)


def asks_for_credentials() -> bool:
    """Return whether the cluster of this process wants a token, or certificates (TLS)."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True
    try:
        from ray._raylet import AuthenticationMode, get_authentication_mode  # type: ignore[attr-defined]
    except ImportError:  # Ray before 2.52
        return False
    return get_authentication_mode() != AuthenticationMode.DISABLED


@contextmanager
def connected(address: str, on_gpu: bool) -> Iterator[Cluster]:
    """Yield the Ray cluster at `address` ("auto": one that runs here). Raise UserError where there is none to use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("--ray needs Ray: pip install ray") from None
    if address == "local":
        raise UserError("--ray is for a cluster; the GPUs of this machine are used without it. Leave --ray local out.")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(BytesIO(packed_package())).extractall(folder)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, runtime_env={"working_dir": folder}, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # no cluster, no token, another version: each raises a class of its own
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            advice = "give HOST:PORT of a cluster that runs and, where it wants a token, set RAY_AUTH_MODE=token"
            raise UserError(f"--ray {address}: no Ray cluster could be reached ({reason}); {advice}.") from None
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler would end this process silently
        try:
            if not asks_for_credentials():
                advice = "start its nodes and run_all.py with RAY_AUTH_MODE=token (Ray 2.52 or newer)"
                raise UserError(f"--ray {address}: whoever reaches this cluster can run programs in it; {advice}.")
            yield Cluster(ray, on_gpu)
        finally:
            ray.shutdown()
