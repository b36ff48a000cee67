"""Runs on a Ray cluster: a task is a repetition of a comparison, because its precisions must
share a GPU.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..measure import nvml
from ..parameters import UserError
from ..store.commit import ROOT, packed_package
from ..store.files import written_whole
from ..store.record import load, read_run, save_record
from ..store.variables import DATA_ENV, OF_RAY, THREADS_ENV
from .batch import Job, share_of_cores
from .devices import Device, visible_gpus
from .execute import Circumstances, execute, write_endings
from .plan import Run
from .status import say_ended

# of a run; the records come last, because they are what counts
FILES = ("logs/*.log", "*.ipynb", "*.json")


def data_of_node(shared: Path) -> Path:
    """Return where this node has its data: in the shared folder, or else in one of its own."""
    if shared.is_dir():
        return shared
    return Path(os.environ.get(DATA_ENV, "~/.cache/mixed-precision-study")).expanduser()


def make_repetition(
    runs: list[Run], notebook: bytes, root: Path, shared: Circumstances, on_gpu: bool
) -> dict:
    """Make the runs of a repetition on a node of the cluster, and return {file name: bytes} of
    what they wrote.
    """
    os.environ.pop(THREADS_ENV, None)  # Ray sets it to 1, which is right on the CPU only
    devices = visible_gpus() if on_gpu else [Device(0, "cpu0")]
    if not devices:
        raise nvml.GpuLost("NVML does not list the GPU that Ray gave to this task")
    shared = shared._replace(threads=share_of_cores(len(nvml.installed_gpus())) if on_gpu else 1)
    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        there = folder / "logs" / runs[0].notebook.name
        there.write_bytes(notebook)
        for asked in runs:
            data = data_of_node(root / asked.parameters["data_dir"])
            places = {"data_dir": str(data), "output_dir": name}
            run = asked._replace(
                notebook=there, folder=folder, parameters=asked.parameters | places
            )
            with suppress(nvml.GpuLost):  # the records say it
                execute(run, devices[0], shared, threading.Event(), lambda progress: None)
            for path in run.record_paths.values():
                if record := load(path):
                    record.settings |= {setting: asked.parameters[setting] for setting in places}
                    save_record(record, path)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for kind in FILES
            for path in folder.glob(kind)
        }


class Cluster(NamedTuple):
    """A Ray cluster, and a stand-in for each of its GPUs, or for its CPUs.

    Which of them a run gets is Ray's choice.
    """

    ray: Any
    devices: list[Device]

    def make_all(self, jobs: list[Job], shared: Circumstances) -> None:
        """Let Ray make all unfinished runs, and write what comes back.

        A repetition whose node fails is `killed`.
        """
        ray = self.ray
        on_gpu = bool(self.devices[0].visible)
        task = ray.remote(num_gpus=int(on_gpu), num_cpus=1, max_retries=0)(make_repetition)
        groups = [
            [*runs]
            for job in jobs
            for _, runs in groupby(job.to_do, lambda run: run.parameters.get("repeat"))
        ]
        going = {
            task.remote(runs, runs[0].notebook.read_bytes(), ROOT, shared, on_gpu): runs
            for runs in groups
        }
        try:
            while going:
                for ended in ray.wait(list(going), timeout=1)[0]:
                    runs = going.pop(ended)
                    self.receive(ended, runs)
                    count = f"[{len(groups) - len(going)}/{len(groups)}]"
                    paths = [path for run in runs for path in run.record_paths.values()]
                    for record in filter(None, map(read_run, paths)):
                        say_ended(f"{count} {record['host_id'] or 'ray'}", record)
        finally:
            for unfinished in going:
                ray.cancel(unfinished)  # as Ctrl-C in the task, which then ends its run
            if going:
                # seconds for the nodes to end their runs
                ray.wait(list(going), num_returns=len(going), timeout=5)

    def receive(self, ended: Any, runs: list[Run]) -> None:
        """Write what a task has brought back, or that its node failed."""
        for run in runs:
            run.log_path.unlink(missing_ok=True)  # of an earlier start
        try:
            files = self.ray.get(ended)
        except self.ray.exceptions.RayError as error:
            cause = " ".join(str(getattr(error, "cause", None) or error).split())[:200]
            reason = f"its node failed: {cause}"
            for run in runs:
                write_endings(run, run.trainings, self.devices[0], "killed", reason)
            return
        for name, content in files.items():
            with written_whole(runs[0].folder / name) as temporary:
                temporary.write_bytes(content)


@contextmanager
def connected(address: str, on_gpu: bool) -> Iterator[Cluster]:
    """Yield the Ray cluster at `address` ("auto": one that runs here).

    Raise UserError where there is none to use.
    """
    os.environ.update(OF_RAY)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    stderr = os.dup(2)
    try:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)  # Ray's own lines cannot be turned off otherwise
            import ray
            from ray._raylet import (  # type: ignore[attr-defined]
                AuthenticationMode,
                get_authentication_mode,
            )

            Path(folder, "code.zip").write_bytes(packed_package())
            ray.init(
                address, runtime_env={"working_dir": f"{folder}/code.zip"}, log_to_driver=False
            )
            # Ray's own handler would end this process silently
            signal.signal(signal.SIGTERM, on_sigterm)
            is_open = ray.remote(num_cpus=0)(
                lambda: get_authentication_mode() == AuthenticationMode.DISABLED
            )
            if ray.get(is_open.remote()):
                raise PermissionError("whoever reaches this cluster can run programs in it")
    except Exception as error:
        # no Ray, no cluster, no token, another version: each raises a class of its own
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
        advice = (
            "it takes `pip install ray`, HOST:PORT of a cluster, "
            "and RAY_AUTH_MODE=token here and on its nodes"
        )
        raise UserError(f"--ray {address} cannot be used ({reason}); {advice}.") from None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    try:
        numbers = range(int(ray.cluster_resources().get("GPU", 0)) if on_gpu else 0)
        gpus = [Device(number, f"ray{number}", "GPU-", "GPU of the cluster") for number in numbers]
        yield Cluster(ray, gpus or [Device(0, "ray", "", "CPUs of the cluster")])
    finally:
        ray.shutdown()
