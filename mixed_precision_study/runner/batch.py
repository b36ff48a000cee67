"""The runs of a study on the devices of this machine: a thread for each device, which makes one run after the other."""

import errno
import math
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..measure import nvml
from ..measure.commit import MALFORMED
from ..record import read_run
from . import status
from .devices import Device
from .execute import Circumstances, execute, signature
from .finished import home_of, unfinished
from .folder import lock_signature
from .plan import Comparison, Run
from .status import say

GRACE_SECONDS = 8  # for running runs to end after the first Ctrl-C
TELL_SECONDS = 60  # between two lines that say how far the runs are
CLEAR_SECONDS = 30  # for a GPU to free the memory of the last run
MOST_LOST = 2  # GPUs under the same run: then the run is at fault


class Job(NamedTuple):
    """A comparison that waits for a device."""

    comparison: Comparison
    to_do: list[Run]
    home: Device | None  # where its finished runs ran, so that the rest must go there


@dataclass
class Slot:
    """A device, and what it does now."""

    device: Device
    job: Job | None = None
    run: Run | None = None
    progress: str = ""
    lost: bool = False


def share_of_cores(devices: int) -> int | None:
    """Return the cores of each of several runs at a time, which would slow each other down with all cores each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // devices) if devices > 1 else None


def jobs_of(
    comparisons: list[Comparison], devices: list[Device], seconds: dict, fresh: bool = False, retry_failed: bool = False
) -> list[Job]:
    """Return a job for each comparison that is not finished, by the recorded {name of a run: seconds} if there are any.

    On several devices the longest comes first, so that they end together. On one the shortest does, because its ratio
    is the first that people see.
    """
    jobs = [Job(one, unfinished(one, devices, fresh, retry_failed), home_of(one, devices)) for one in comparisons]

    def expected(job: Job) -> float:
        return sum(seconds.get(run.name, 60 * run.minutes) for run in job.to_do)

    return sorted((job for job in jobs if job.to_do), key=expected, reverse=len(devices) > 1)


def take_job(waiting: list[Job], device: Device) -> Job | None:
    """Remove and return the next job for a device, or None. Those that no other device may take go first."""
    for home in (device, None):
        for job in waiting:
            if job.home == home:
                waiting.remove(job)
                return job
    return None


class Batch:
    """The unfinished runs of one study, and what is known of those that have ended."""

    def __init__(self, comparisons: list[Comparison], jobs: list[Job], devices: list[Device], shared: Circumstances):
        self.folder = comparisons[0][0].folder
        self.waiting = list(jobs)
        self.slots = [Slot(device) for device in devices]
        self.shared = shared
        self.total = sum(len(run.run_ids) for job in jobs for run in job.to_do)
        self.seconds = status.read_seconds(self.folder)
        self.done: set[str] = set()  # the trainings that have ended
        self.losses: Counter[str] = Counter()  # GPUs that were lost under a run
        self.lock = threading.Lock()  # of all of the above
        self.stopping = threading.Event()  # no run is begun any more
        self.halt = threading.Event()  # runs are ended
        self.failure: BaseException | None = None

    def make_all(self) -> None:
        """Make all runs. Whatever ends this also ends them: Ctrl-C, a full disk, or that the folder was removed."""
        threads = [threading.Thread(target=self.serve, args=(slot,), daemon=True) for slot in self.slots]
        began = told = time.monotonic()
        lock = lock_signature(self.folder)
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self.failure:
                time.sleep(0.1)
                if lock_signature(self.folder) != lock:
                    raise FileNotFoundError(errno.ENOENT, "the output folder has been removed", str(self.folder))
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    for slot in (one for one in self.slots if one.run):
                        say(f"{slot.device.label}  {slot.run and slot.run.name}  {slot.progress}")
                    if minutes := self.minutes_left(told - began):
                        say(f"about {minutes} min left")
        except KeyboardInterrupt:
            self.stopping.set()
            say(f"stopping: running runs have {GRACE_SECONDS} s to end; Ctrl-C again stops at once")
            until = time.monotonic() + GRACE_SECONDS
            with suppress(KeyboardInterrupt):
                while time.monotonic() < until and any(thread.is_alive() for thread in threads):
                    time.sleep(0.1)
            raise
        finally:
            self.stopping.set()
            self.halt.set()
            while any(thread.is_alive() for thread in threads):
                with suppress(KeyboardInterrupt):  # what runs is being ended already
                    time.sleep(0.1)
            if self.done and lock_signature(self.folder) == lock:
                seconds = time.monotonic() - began
                with suppress(OSError):  # the records are what counts
                    status.write_times(self.folder, self.seconds, trainings=len(self.done), makespan_seconds=seconds)
                say(f"{len(self.done)} trainings took {seconds:.0f} s")
        if self.failure:
            raise self.failure
        if self.waiting:
            say("no device is left; the same command runs the rest when there is one again")

    def minutes_left(self, elapsed: float) -> int:
        """Return the minutes until all ends, as if each training took the mean of those that have; 0: not known."""
        rest = max(0, self.total - len(self.done))
        return math.ceil(elapsed * rest / len(self.done) / 60) if self.done else 0

    def serve(self, slot: Slot) -> None:
        """Let a device take one comparison after the other, until none can come any more or the device is lost."""
        try:
            while not self.stopping.is_set() and not slot.lost:
                with self.lock:
                    slot.job = slot.job if slot.job and slot.job.to_do else take_job(self.waiting, slot.device)
                    if not any(one.job for one in self.slots):
                        return
                if slot.job:
                    self.make(slot, slot.job)
                else:
                    self.stopping.wait(0.2)  # another device may be lost and leave its rest
        except BaseException as error:  # for example a full disk, which the main thread says
            self.failure = self.failure or error
        finally:
            slot.job = None

    def make(self, slot: Slot, job: Job) -> None:
        """Make the next run of a job, and say what each of its trainings measured as soon as its record is there."""
        run, device = job.to_do[0], slot.device
        new = {path: signature(path) for path in run.record_paths.values()}  # and not yet said
        began = said = time.monotonic()
        slot.run, slot.progress = run, ""
        say(f"{device.label}  {run.name}  begins")

        def note(progress: str) -> None:
            nonlocal said
            slot.progress = progress or "starting"
            changed = [path for path, before in new.items() if signature(path) not in (None, before)]
            written = [(record, path) for path in changed if (record := read_run(path))]
            for record, path in sorted(written, key=lambda one: str(one[0].get("finished_at"))):
                del new[path]
                self.count(job.comparison, device, record, time.monotonic() - said)
                said = time.monotonic()

        try:
            gpu = nvml.gpu_state(device.visible) if device.visible else None
            remark = execute(run, device, self.shared, self.halt, note)
        except nvml.GpuLost as error:
            remark = ""
            if not self.lose(slot, job, str(error)):
                return
        finally:
            slot.run = None
        if remark is None:
            return
        note("")
        job.to_do.pop(0)
        if remark:
            say(f"{device.label}  {run.name}{remark}")
        elif all((read_run(path) or {}).get("status") == "ok" for path in run.record_paths.values()):
            self.seconds[run.name] = time.monotonic() - began
            run.log_path.unlink(missing_ok=True)
        for _ in range(5 * CLEAR_SECONDS):
            if not device.visible or nvml.memory_is_free(device.visible, gpu) or self.halt.wait(0.2):
                break

    def count(self, comparison: Comparison, device: Device, record: dict, seconds: float) -> None:
        """Count a training that has its record, and say how it ended."""
        with self.lock:
            self.done.add(record["run_id"])
            counted = f"[{len(self.done):>{len(str(self.total))}}/{self.total}] {device.label}  {record['run_id']}"
        say(f"{counted}  {record['status']}  {seconds:.1f} s  {status.in_words(record)}")
        with suppress(*MALFORMED):  # records that someone has edited
            if ratios := status.ratios_in_words(record, comparison):
                say(f"{device.label}  {ratios}")

    def lose(self, slot: Slot, job: Job, reason: str) -> bool:
        """Take a lost GPU out of use, so that its rest waits for another one. Return whether its run is given up.

        That is so where MOST_LOST were lost under the run, which then keeps the records that say so.
        """
        name = job.to_do[0].name
        with self.lock:
            slot.lost = True
            self.losses[name] += bool(slot.progress)  # else it was lost before the run
            given_up = self.losses[name] >= MOST_LOST
            if rest := job.to_do[given_up:]:
                self.waiting.insert(0, Job(job.comparison, rest, None))
            self.waiting[:] = [one._replace(home=None) if one.home == slot.device else one for one in self.waiting]
        say(f"{slot.device.label} stopped responding ({reason}); the rest of its queue waits for another GPU")
        return given_up
