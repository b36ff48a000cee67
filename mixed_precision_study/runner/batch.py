"""The runs of a study on the devices of this machine: a thread for each device, which makes one
run after the other.
"""

import errno
import math
import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from ..measure import nvml
from ..store.commit import MALFORMED
from ..store.record import write_json
from . import status
from .devices import Device
from .execute import Circumstances, execute, new_records, signatures
from .finished import unfinished
from .folder import LOCK
from .plan import Comparison, Run, trainings_in
from .status import say

GRACE_SECONDS = 8  # for running runs to end after the first Ctrl-C
TELL_SECONDS = 60  # between two lines that say how far the runs are
CLEAR_SECONDS = 30  # for a GPU to free the memory of the last run


class Job(NamedTuple):
    """A comparison that waits for a device, and what of it is to be made."""

    comparison: Comparison
    to_do: list[Run]


def share_of_cores(devices: int) -> int | None:
    """Return the cores of each of several runs at a time, which would slow each other down with
    all cores each.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // devices) if devices > 1 else None


def jobs_of(
    comparisons: list[Comparison], devices: list[Device], again: str | None = None
) -> list[Job]:
    """Return a job for each comparison that is not finished. On one device the shortest comes
    first, for a first ratio.

    On several the longest does, so that they end together.
    """
    jobs = [Job(runs, unfinished(runs, devices, again)) for runs in comparisons]
    jobs.sort(key=lambda job: sum(run.minutes for run in job.to_do), reverse=len(devices) > 1)
    return [job for job in jobs if job.to_do]


class Batch:
    """The unfinished runs of one study, and what is known of those that have ended."""

    def __init__(self, jobs: list[Job], devices: list[Device], shared: Circumstances):
        self.folder = jobs[0].comparison[0].folder
        self.waiting = list(jobs)
        self.devices = list(devices)
        self.shared = shared
        self.total = sum(trainings_in(job.to_do) for job in jobs)
        self.seconds = status.read_seconds(self.folder)
        # {label of a device that is at work: its run, and how far that is}
        self.now: dict = {}
        self.done: list = []  # trainings that have ended
        self.threads: dict = {}
        self.stopping = threading.Event()  # no run is begun any more
        self.halt = threading.Event()  # runs are ended
        self.failure: BaseException | None = None

    def make_all(self) -> None:
        """Make all runs. Whatever ends this also ends them:

        Ctrl-C, a full disk, or that the folder was removed.
        """
        began = time.monotonic()
        try:
            self.begin_and_watch(began)
        except KeyboardInterrupt:
            self.stopping.set()
            say(f"stopping: running runs have {GRACE_SECONDS} s to end; Ctrl-C again stops at once")
            until = time.monotonic() + GRACE_SECONDS
            with suppress(KeyboardInterrupt):
                while time.monotonic() < until and self.at_work():
                    time.sleep(0.1)
            raise
        finally:
            self.stopping.set()
            self.halt.set()
            while self.at_work():
                with suppress(KeyboardInterrupt):  # what runs is being ended already
                    time.sleep(0.1)
            if self.done:
                self.write_times(time.monotonic() - began)
        if self.failure:
            raise self.failure
        if self.waiting:
            say("no device is left; the same command runs the rest when there is one again")

    def at_work(self, device: Device | None = None) -> bool:
        """Return whether a device, or any of them, makes a job."""
        threads = [self.threads.get(device)] if device else self.threads.values()
        return any(thread and thread.is_alive() for thread in threads)

    def begin_and_watch(self, began: float) -> None:
        """Give each free device a job until all are made, and say from time to time how far they
        are.
        """
        told = began
        lock = self.folder / LOCK
        held = lock.stat()
        while not self.failure and (self.at_work() or (self.waiting and self.devices)):
            for device in list(self.devices):
                if self.waiting and not self.at_work(device):
                    words = (device, self.waiting.pop(0))
                    thread = threading.Thread(target=self.make_job, args=words, daemon=True)
                    self.threads[device] = thread
                    thread.start()
            time.sleep(0.1)
            if not os.path.samestat(lock.stat(), held):
                reason = "the output folder has been removed"
                raise FileNotFoundError(errno.ENOENT, reason, str(self.folder))
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                self.tell(told - began)

    def tell(self, seconds: float) -> None:
        """Say how far the runs are, and how long the rest takes if each training took the mean of
        those that have ended.
        """
        for label, progress in list(self.now.items()):
            say(f"{label}  {progress}")
        if self.done:
            say(f"about {math.ceil(seconds * (self.total / len(self.done) - 1) / 60)} min left")

    def write_times(self, seconds: float) -> None:
        """Write how long all runs took, and each of them, and say so."""
        times = {"trainings": len(self.done), "makespan_seconds": seconds}
        with suppress(OSError):  # the records are what counts
            write_json({**times, "run_seconds": self.seconds}, self.folder / status.TIMES_FILE)
        say(f"{len(self.done)} trainings took {seconds:.0f} s")

    def make_job(self, device: Device, job: Job) -> None:
        """Make the runs of a job, and put back what is left of it where its GPU is lost."""
        try:
            while job.to_do and not self.stopping.is_set():
                self.make(device, job)
        except nvml.GpuLost as error:
            say(
                f"{device.label} stopped responding ({error}); "
                "the rest of its queue waits for another GPU"
            )
            self.devices.remove(device)
            self.waiting[:0] = [job] if job.to_do else []
        except BaseException as error:  # for example a full disk, which the main thread says
            self.failure = self.failure or error
        finally:
            self.now.pop(device.label, None)

    def make(self, device: Device, job: Job) -> None:
        """Make the next run of a job, and say what each of its trainings measured as soon as its
        record is there.
        """
        run = job.to_do[0]
        unsaid = signatures(run)
        began = time.monotonic()
        say(f"{device.label}  {run.title}  begins", f"{device.label}  {run.name}  begins")

        def note(progress: str) -> None:
            self.now[device.label] = f"{run.title}  {progress or 'starting'}"
            for run_id, record in new_records(run, unsaid).items():
                del unsaid[run_id]
                self.done.append(run_id)
                status.say_ended(f"[{len(self.done)}/{self.total}] {device.label}", record)
                with suppress(*MALFORMED):  # records that someone has edited
                    if ratios := status.ratios_in_words(record, job.comparison):
                        say(f"{device.label}  {ratios}")

        used = nvml.used_mib(device.visible) if device.visible else None
        job.to_do.pop(0)  # even where its GPU is lost under it, because it might be the run's fault
        try:
            if not execute(run, device, self.shared, self.halt, note):
                return
        finally:
            note("")
        if not run.log_path.exists():  # it went well
            self.seconds[run.name] = time.monotonic() - began
        for _ in range(5 * CLEAR_SECONDS if device.visible else 0):
            if nvml.memory_is_free(device.visible, used) or self.halt.wait(0.2):
                break
