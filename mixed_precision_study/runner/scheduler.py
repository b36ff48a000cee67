"""Which run goes to which device, and what happens when a run ends or a device is lost.

An executor executes the runs: the module process (this machine) or a ray_cluster.Cluster. Both have the functions
launch, poll, stop_all, memory_is_free, gpu_state, device_works and progress_of.
"""

import errno
import functools
import itertools
import json
import re
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..data_files import data_files_hash
from ..divergence import find_diverged
from ..gpu import nvml
from ..record import STATUSES, comparison_key, is_explanation, utc_now, write_flat
from . import estimates, status
from .devices import Device
from .notebook_file import MALFORMED
from .paths import ROOT, shown
from .plan import Comparison, Run
from .process import (
    RETRIED,
    START_ATTEMPTS,
    UNREADABLE,
    NeverStarted,
    RunOutcome,
    check_places,
    hash_now,
    read_record,
    reason_not_to_start,
    signature,
    write_ending,
)
from .status import in_words, ratios_in_words, say

GRACE_SECONDS = 8  # for running runs to end after the first Ctrl-C; with stopping them, 10
MAX_DEVICES_LOST = 2  # under the same run: then the run is at fault
START_WAIT_SECONDS = 1  # doubled with each attempt
OTHERS_FIRST_SECONDS = 2  # before a device takes a run again under which it was lost
NO_ROOM_FOR_PROCESS = (errno.EAGAIN, errno.ENOMEM)
RATE_SECONDS = 30  # of training, before its steps tell how long it still takes: they are noted every 5 s
CLEAR_SECONDS = 30  # for a GPU to free the memory of the last run
DATA_DIR_NON_DATA = ("cache", "published_results.csv")  # other things in a data_dir
ELSEWHERE = ("other_gpu", "are of another GPU than the rest of their repetition")  # a folder, and what it holds


class Job(NamedTuple):
    """A comparison that waits for a device."""

    comparison: Comparison
    to_do: list[Run]
    home: Device | None = None  # where its finished runs ran: the rest must go there


@dataclass
class DeviceSlot:
    """A device, its comparison, and the run on it."""

    device: Device
    comparison: Any = None  # a Comparison
    to_do: list[Run] = field(default_factory=list)
    run: Any = None  # the Run that is executed, or waits for its next attempt
    running: Any = None  # what the executor knows of it
    companions: list[tuple[Run, Any]] = field(default_factory=list)  # that its process trains, too; their old records
    attempt: int = 1
    not_before: float = 0.0  # of the next attempt
    seconds: list[float] = field(default_factory=list)  # of the comparison's runs so far
    lost: bool = False
    lost_in_run: bool = False  # not before one
    ended: Any = None  # the last run; its memory may not be free yet
    ended_at: float = 0.0
    first_progress: tuple[float, float] | None = None  # when the run was first seen to train, and its share done then


@dataclass
class RunQueue:
    """The runs of a study that wait, and what is known of those that ended."""

    study: str
    commit: str | None
    executor: Any
    limit: float  # seconds a run may take
    stall: float  # seconds a run may take without a new cell or step; 0: any
    waiting: list[Job]  # in the order of jobs_of()
    seconds: dict[str, float]  # {run_id: seconds}, recorded now and earlier
    total: int  # number of runs to execute
    runs: list[Run]  # all of the study
    view: Any = None  # a status.View
    done: int = 0
    job_seconds: list[list[float]] = field(default_factory=list)  # of the runs of each comparison on its device
    losses: dict[str, list] = field(default_factory=dict)  # {run_id: [(slot, reason)]} of devices lost under a run
    interrupted: bool = False


def mark_diverged(comparison: Comparison) -> dict[str, str]:
    """Mark the runs of a finished comparison that learned nothing where others did. Return {run_id: reason}."""
    paths = {run.run_id: run.record_path for run in comparison}
    groups: dict[tuple, dict[str, dict]] = {}
    found: dict[str, str] = {}
    for record in filter(None, map(read_record, paths.values())):
        groups.setdefault(comparison_key(record), {})[record["run_id"]] = record
    for group in groups.values():
        found |= find_diverged(group.values())
        for run_id in found.keys() & group.keys():
            write_flat({**group[run_id], "status": "diverged", "reason": found[run_id]}, paths[run_id])
    return found


def is_outdated_synthetic(run: Run, record: dict) -> bool:
    """Return whether the record is of synthetic data that a new data_dir may replace by real data.

    A notebook with a csv_path does not read its data from data_dir.
    """
    wanted = run.parameters
    if not record.get("synthetic") or wanted["dataset"] != "auto" or "csv_path" in wanted:
        return False
    return record.get("data_dir") != wanted["data_dir"] and holds_data(ROOT / wanted["data_dir"])


def holds_data(folder: Path) -> bool:
    """Return whether a data_dir holds anything that may be data. A failed download leaves an empty folder."""
    with suppress(OSError):
        there = [path for path in folder.iterdir() if path.name not in DATA_DIR_NON_DATA]
        return any(path.is_file() or any(path.iterdir()) for path in there)
    return False


def other_code(run: Run, record: dict) -> tuple[str, str] | None:
    """Return (folder name, reason) where other code measured the record, else None.

    A record without a code hash was made by hand or is older than this field. It counts as current.
    """
    known = record.get("code_hash")
    if not known or hash_now(run) in (known, UNREADABLE):
        return None
    name = re.sub(r"[^A-Za-z0-9]", "_", str(known))[:40]  # a record may have come from anywhere
    return f"other_code-{name}", "were measured by other code"


def is_of_other_files(run: Run, record: dict) -> bool:
    """Return whether the files that the run would read are known not to be those of the record."""
    known = record.get("data_files_hash")
    if not known:
        return False
    now = files_now(run.notebook.stem, json.dumps(run.parameters, sort_keys=True))
    return now not in (None, known)


@functools.cache
def files_now(notebook: str, parameters: str) -> str | None:
    """Return the hash of the files that a run reads. `parameters` is JSON; set_aside_records() looks at them anew."""
    return data_files_hash(notebook, json.loads(parameters), ROOT)


def outdated(run: Run, record: dict | None) -> tuple[str, str] | None:
    """Return (folder name, reason) where the run's record no longer counts, else None."""
    if not record:
        return None
    if aside := other_code(run, record):
        return aside
    if is_outdated_synthetic(run, record):
        return "made_up_data", "are of made-up data, and data_dir is another one now"
    if is_of_other_files(run, record):
        name = re.sub(r"[^A-Za-z0-9]", "_", str(record["data_files_hash"]))[:40]
        return f"other_data-{name}", "are of other data than the files hold now"
    return None


def folder_aside(run: Run, name: str) -> Path:
    """Return a folder with this name, or with a number added, that has no record of the run yet."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(run.folder / name for name in names if not (run.folder / name / run.record_path.name).exists())


def not_asked_for(runs: list[Run]) -> list[tuple[Run, dict]]:
    """Return [(run, record)] of the same notebooks in the same folder that are not among `runs`."""
    notebooks = {run.notebook.stem: run for run in runs}
    asked = {run.run_id for run in runs}
    found = []
    for path in sorted(runs[0].folder.glob("*.json")):
        record = read_record(path) if path.stem not in asked else None
        if record and (like := notebooks.get(str(record.get("notebook")))):
            found.append((like._replace(run_id=path.stem), record))
    return found


def set_aside_records(
    comparisons: list[Comparison], devices: Sequence[Device] = (), retry_failed: bool = False
) -> None:
    """Move outdated and stranded records and their notebooks into a folder beside them, and say so. Nothing is deleted.

    Records of other code move even where their runs are not asked for: the report would compare them with the new ones.
    """
    files_now.cache_clear()
    runs = [run for comparison in comparisons for run in comparison]
    found = [(run, outdated(run, read_record(run.record_path)), "and run again") for run in runs]
    for comparison in comparisons:
        found += [(run, ELSEWHERE, "and run again") for run in stranded(comparison, devices, retry_failed)]
    found += [(run, other_code(run, record), "without being run again") for run, record in not_asked_for(runs)]
    moved: dict[tuple, int] = {}
    for run, aside, then in found:
        if aside is None:
            continue
        name, reason = aside
        folder = folder_aside(run, name)
        folder.mkdir(exist_ok=True)
        for path in (run.folder / f"{run.run_id}.ipynb", run.record_path):  # the record last: it is what counts
            with suppress(FileNotFoundError):
                path.replace(folder / path.name)
        moved[folder, reason, then] = moved.get((folder, reason, then), 0) + 1
    for (folder, reason, then), count in moved.items():
        say(f"{count} records {reason}; they are kept in {shown(folder)} {then}")


def unfinished(comparison: Comparison, fresh: bool = False, retry_failed: bool = False) -> list[Run]:
    """Return the runs without a record that counts, or with one that --fresh or --retry-failed makes again."""
    again: tuple = ()
    if fresh:
        again = STATUSES
    elif retry_failed:
        again = RETRIED
    found = [(run, read_record(run.record_path)) for run in comparison]
    return [
        run
        for run, record in found
        if not record or outdated(run, record) or record["status"] in again or is_unexplained(record)
    ]


def stranded(comparison: Comparison, devices: Sequence[Device], retry_failed: bool = False) -> list[Run]:
    """Return the timed runs that ended well on another GPU than the rest of their repetition has or will have.

    A ratio compares runs of one GPU, so they would be in no interval. Single processes stay: they have none, and may
    be long. So do seeds that share a process: their quality counts, not their time.
    """
    if not devices or not all(device.visible for device in devices):
        return []
    home = home_of(comparison, devices)
    waiting = unfinished(comparison, retry_failed=retry_failed)
    going_on = set()  # repetitions with a run at home or still to be made
    elsewhere = []
    for run in comparison:
        if run.parameters.get("purpose") != "time" or run.shares == "seeds":
            continue
        repetition = (run.parameters.get("seed"), run.parameters.get("repeat"))
        if run in waiting:
            going_on.add(repetition)
            continue
        record = read_record(run.record_path) or {}
        uuid = record.get("gpu_uuid")
        if record.get("status") != "ok" or not uuid:
            continue
        if home and home.visible.endswith(uuid):
            going_on.add(repetition)
        else:
            elsewhere.append((repetition, run))
    return [run for repetition, run in elsewhere if repetition in going_on]


def is_unexplained(record: dict) -> bool:
    """Return whether a run that was to explain was ended before it had. A timed run keeps its time without that."""
    return is_explanation(record) and record["status"] == "ok" and record.get("explanation_seconds") is None


def home_of(comparison: Comparison, devices: Sequence[Device]) -> Device | None:
    """Return the GPU on which finished runs of the comparison ran, or None."""
    uuids = [(read_record(run.record_path) or {}).get("gpu_uuid") for run in comparison]
    return next((device for device in devices for uuid in uuids if uuid and device.visible.endswith(uuid)), None)


def jobs_of(comparisons: list[Comparison], devices: list[Device], args: Namespace, seconds: dict) -> list[Job]:
    """Return a job for each comparison, by the recorded {run_id: seconds} if there are any.

    On several devices the longest comes first, so that they end together. On one the shortest does: its ratio is the
    first that people see.
    """
    expected = estimates.estimator([run for runs in comparisons for run in runs], seconds)
    jobs = []
    for runs in comparisons:
        again = unfinished(runs, args.fresh, args.retry_failed) + stranded(runs, devices, args.retry_failed)
        jobs.append(Job(runs, [run for run in runs if run in again], home_of(runs, devices)))
    return sorted(jobs, key=lambda job: sum(map(expected, job.to_do)), reverse=len(devices) > 1)


def take_job(waiting: list[Job], device: Device) -> Job | None:
    """Remove and return the next job for the device, or None. Those that no other device may take go first."""
    for home in (device, None):
        for job in waiting:
            if job.home == home:
                waiting.remove(job)
                return job
    return None


def run_comparisons(
    study: str, comparisons: list[Comparison], devices: list[Device], args: Namespace, commit: str | None, executor: Any
) -> None:
    """Execute the unfinished runs, each comparison on one device. Whatever ends this also ends its runs."""
    folder = comparisons[0][0].folder
    runs = [run for comparison in comparisons for run in comparison]
    seconds = estimates.read_seconds(folder)
    jobs = jobs_of(comparisons, devices, args, seconds)
    for job in jobs:
        if not job.to_do:
            mark_diverged(job.comparison)  # in case Ctrl-C came before it was done
    waiting = [job for job in jobs if job.to_do]
    total = sum(len(job.to_do) for job in waiting)
    view = status.View(study, total, [device.label for device in devices], not args.no_progress_bar)
    queue = RunQueue(
        study, commit, executor, 60 * args.timeout, 60 * args.stall_minutes, waiting, seconds, total, runs, view
    )
    slots = [DeviceSlot(device) for device in devices]
    began = time.monotonic()
    started_at = utc_now()
    try:
        while any(not slot.lost and (queue.waiting or slot.comparison or slot.run) for slot in slots):
            for slot in slots:
                advance(slot, queue)
            if queue.waiting and all(slot.lost for slot in slots):
                restore_devices(slots, queue)
            if view.due():
                draw(queue, slots)
            time.sleep(0.1)
    except KeyboardInterrupt:
        drain(queue, slots)
        raise
    finally:
        if running := [slot.running for slot in slots if slot.running]:
            executor.stop_all(running)
        view.close()
        if total:
            store_times(folder, queue, slots, time.monotonic() - began, started_at)
    if queue.waiting or any(slot.to_do for slot in slots):
        say("no device is left; the same command runs the rest when there is one again")


def advance(slot: DeviceSlot, queue: RunQueue) -> None:
    """Let one device take its next step: end its run, take the next comparison, start the next run."""
    if slot.lost:
        return
    if slot.running:
        finish_if_ended(slot, queue)
    if slot.running or slot.lost or time.monotonic() < slot.not_before or not memory_cleared(slot, queue.executor):
        return
    if slot.comparison and not (slot.run or slot.to_do):
        finish_comparison(slot)
    if slot.comparison is None and (job := take_job(queue.waiting, slot.device)):
        slot.comparison = job.comparison
        slot.to_do = list(job.to_do)
        slot.seconds = []
        queue.job_seconds.append(slot.seconds)
    if slot.comparison:
        slot.run = slot.run or slot.to_do.pop(0)
        begin(slot, queue)


def finish_comparison(slot: DeviceSlot) -> None:
    """Take a finished comparison from its device, mark what diverged, and say so."""
    comparison = slot.comparison
    slot.comparison = None
    for run_id, reason in mark_diverged(comparison).items():
        say(f"{run_id}  diverged  {reason}")


def companions_of(run: Run, to_do: list[Run]) -> list[Run]:
    """Return the runs that wait and may share a process with `run`: they differ in seed or precision alone."""
    if not run.shares or (run.shares == "seeds" and "more_seeds" not in run.parameters):
        return []
    name = "seed" if run.shares == "seeds" else "precisions"
    return [one for one in to_do if {**one.parameters, name: None} == {**run.parameters, name: None}]


def with_companions(run: Run, companions: list[Run]) -> Run:
    """Return a run whose process trains its companions, too."""
    if not companions:
        return run
    more: dict[str, list] = {"more_seeds": [one.parameters["seed"] for one in companions]}
    if run.shares == "precisions":
        more = {"precisions": [one.precision for one in (run, *companions)]}
    return run._replace(parameters={**run.parameters, **more})


def count_companions(slot: DeviceSlot, queue: RunQueue, seconds: float) -> float:
    """Count the runs that the process of a run has trained as well. Return what is left of its seconds for the run."""
    done = [(run, read_record(run.record_path)) for run, old in slot.companions if signature(run.record_path) != old]
    slot.companions = []
    each = seconds / (1 + len(done))
    for run, record in done:
        if record:
            slot.to_do.remove(run)
            count_run(slot, run, record, "", queue, each)
    return each


def unfinished_in(slot: DeviceSlot) -> list[Run]:
    """Return the runs of a device's process that have no new record."""
    before = [(slot.run, getattr(slot.running, "record_before", None)), *slot.companions]
    return [run for run, old in before if signature(run.record_path) == old]


def died(running: Any, record: dict) -> bool:
    """Return whether a process ended before it was through, so that the record of its run says nothing of that run."""
    return record["status"] in RETRIED and running.process.returncode != 0


def separate(slot: DeviceSlot, status: str) -> None:
    """Give each run of a comparison a process of its own: it is not known which of them ended the shared one."""
    say(f"{slot.device.label}  {slot.run.run_id}  {status} in a shared process; each run now gets one of its own")
    slot.to_do = [one._replace(shares="") for one in (slot.run, *slot.to_do)]
    slot.run = None
    slot.attempt = 1


def begin(slot: DeviceSlot, queue: RunQueue) -> None:
    """Start the run of a device. Where that fails, the run waits or goes to another device."""
    try:
        if reason := reason_not_to_start(slot.run, slot.device):
            end_unsupported(slot, reason, queue)
            return
        together = companions_of(slot.run, slot.to_do) if getattr(queue.executor, "SHARES_PROCESSES", False) else []
        slot.companions = [(run, signature(run.record_path)) for run in together]
        run = with_companions(slot.run, together)
        slot.running = queue.executor.launch(run, queue.study, queue.commit, slot.device, slot.attempt)
    except nvml.GpuLost as error:
        slot.lost_in_run = False
        remove_device(slot, queue, str(error))
    except IsADirectoryError as error:
        leave_out(slot, str(error))
    except OSError as error:
        if error.errno not in NO_ROOM_FOR_PROCESS or slot.attempt >= START_ATTEMPTS:
            raise
        try_again(slot, f"no process could be started: {error.strerror}")
    else:
        slot.first_progress = None
        queue.view.begin(f"{slot.device.label}  {slot.run.run_id}  begins")


def end_unsupported(slot: DeviceSlot, reason: str, queue: RunQueue) -> None:
    """Write the record of a run that its device cannot run. No kernel is started for it."""
    run = slot.run
    check_places(run)
    ended = NeverStarted(run, slot.device, queue.commit, hash_now(run))
    record = write_ending(ended, "unsupported", reason)
    slot.run = None
    count_run(slot, run, record, "", queue, seconds=0.0)


def leave_out(slot: DeviceSlot, reason: str) -> None:
    """Give up a run without a record, and say so. The rest goes on."""
    say(f"{slot.device.label}  {slot.run.run_id}  is left out  {reason}; move it away and give the same command again")
    slot.run = None
    slot.attempt = 1


def finish_if_ended(slot: DeviceSlot, queue: RunQueue) -> None:
    """Ask the executor for the run of a device, and finish it if it has ended."""
    try:
        limit = queue.limit * (1 + len(slot.companions))
        outcome = queue.executor.poll(slot.running, limit, queue.stall)
    except IsADirectoryError as error:  # it came while the run was going on
        slot.running = None
        leave_out(slot, str(error))
        return
    if outcome is not None:
        finish(slot, outcome, queue)


def finish(slot: DeviceSlot, outcome: RunOutcome, queue: RunQueue) -> None:
    """Take note of a run that has ended, and say so."""
    run = slot.run
    slot.ended = slot.running
    slot.ended_at = time.monotonic()
    slot.running = None
    shared = bool(slot.companions)
    seconds = count_companions(slot, queue, slot.ended_at - slot.ended.started)
    if shared and outcome.record and not outcome.lost and died(slot.ended, outcome.record):
        separate(slot, outcome.record["status"])
        return
    if outcome.lost:
        losses = queue.losses.setdefault(run.run_id, [])
        if outcome.begun:
            losses.append((slot, outcome.remark))
        slot.lost_in_run = outcome.begun
        if len(losses) < MAX_DEVICES_LOST:
            remove_device(slot, queue, outcome.remark)
            if getattr(queue.executor, "RESTARTS_DEVICES", False):
                restore_devices([slot], queue)
                slot.not_before = time.monotonic() + OTHERS_FIRST_SECONDS
            return
        outcome = fail_run(slot, outcome.remark, queue)
        restore_devices([each for each, _ in losses], queue)
    if outcome.record is None:
        try_again(slot, outcome.remark)
        return
    slot.run = None
    slot.attempt = 1
    count_run(slot, run, outcome.record, outcome.remark, queue, seconds)


def count_run(slot: DeviceSlot, run: Run, record: dict, remark: str, queue: RunQueue, seconds: float) -> None:
    """Count a run that has its record, remove its log where all went well, and say how it ended."""
    slot.seconds.append(seconds)
    queue.done += 1
    if record["status"] in (*RETRIED, "unsupported"):  # how long that took says nothing
        queue.seconds.pop(run.run_id, None)
    else:
        queue.seconds[run.run_id] = seconds
    if record["status"] == "ok" and not remark:
        for path in (run.log_path, run.log_path.with_suffix(".yaml")):
            path.unlink(missing_ok=True)
    counted = f"[{queue.done:>{len(str(queue.total))}}/{queue.total}]"
    ended = f"{record['status']}  {seconds:.1f} s  {in_words(record)}{remark}"
    say(f"{counted} {slot.device.label}  {run.run_id}  {ended}")
    with suppress(*MALFORMED):  # records that someone has edited
        if ratios := ratios_in_words(record, slot.comparison):
            say(f"{slot.device.label}  {ratios}")
    queue.view.bar.update()


def try_again(slot: DeviceSlot, reason: str) -> None:
    """Let a run that could not be started wait before its next attempt."""
    wait = START_WAIT_SECONDS * (2**slot.attempt + slot.device.number / 2)  # devices do not start at the same time
    slot.attempt += 1
    slot.not_before = time.monotonic() + wait
    say(f"{slot.device.label}  {slot.run.run_id}  starts again in {wait:g} s  {reason}")


def remove_device(slot: DeviceSlot, queue: RunQueue, reason: str) -> None:
    """Take a device out of the pool, and say so. Its unfinished runs wait for another one."""
    rest = [slot.run, *slot.to_do] if slot.run else slot.to_do
    follow = f"; {rest[0].run_id} and what follows wait for a device that works" if rest else ""
    say(f"{slot.device.label} IS LOST{follow}  {reason}")
    queue.waiting = [job._replace(home=None) if job.home == slot.device else job for job in queue.waiting]
    if rest:
        queue.waiting.insert(0, Job(slot.comparison, rest))
        slot.comparison = None
    else:
        finish_comparison(slot)
    slot.lost = True
    slot.to_do = []
    slot.run = None
    slot.attempt = 1


def fail_run(slot: DeviceSlot, remark: str, queue: RunQueue) -> RunOutcome:
    """End a run under which too many devices were lost, and return its outcome. It gets no other device."""
    how = "; ".join(f"{each.device.label} ({reason[:100]})" for each, reason in queue.losses[slot.run.run_id])
    reason = f"the device was lost under it {MAX_DEVICES_LOST} times, so it gets no other: {how}"
    record = write_ending(slot.ended, "failed", reason)
    slot.run = None
    remove_device(slot, queue, remark)
    return RunOutcome(record)


def restore_devices(slots: Iterable[DeviceSlot], queue: RunQueue) -> None:
    """Use devices again that were lost under a run and still work: the run may be at fault, or only an actor has died.

    A run gets no more than MAX_DEVICES_LOST of them, and a device that was lost before a run stays out.
    """
    for slot in slots:
        if slot.lost and slot.lost_in_run and not queue.interrupted and queue.executor.device_works(slot.device):
            slot.lost = False
            say(f"{slot.device.label} answers and is used again")


def memory_cleared(slot: DeviceSlot, executor: Any) -> bool:
    """Return whether the device has freed the memory of its last run, or CLEAR_SECONDS are over."""
    if slot.ended and not executor.memory_is_free(slot.ended):
        if time.monotonic() - slot.ended_at < CLEAR_SECONDS:
            return False
        say(f"{slot.device.label}: memory of the last run, or of others, is still held; the next run notes how much")
    slot.ended = None
    return True


def drain(queue: RunQueue, slots: list[DeviceSlot]) -> None:
    """After Ctrl-C: start nothing more, give running runs a few seconds to end, and say which were stopped."""
    names = [slot.run.run_id for slot in slots if slot.running]
    if not names:
        return
    say(f"stopping: {GRACE_SECONDS} s for {', '.join(names)} to end; Ctrl-C again stops at once")
    until = time.monotonic() + GRACE_SECONDS
    queue.interrupted = True
    while time.monotonic() < until and any(slot.running for slot in slots):
        for slot in slots:
            if slot.running:
                finish_if_ended(slot, queue)
        time.sleep(0.1)
    if stopped := [run.run_id for slot in slots if slot.running for run in unfinished_in(slot)]:
        say(f"stopped, and to be run again: {', '.join(stopped)}")


def store_times(folder: Path, queue: RunQueue, slots: list[DeviceSlot], makespan: float, started_at: str) -> None:
    """Print and store how long all runs took together, and a lower bound for these devices."""
    ideal = estimates.ideal_seconds(queue.job_seconds, len(slots))
    with suppress(OSError):  # the records are what counts
        estimates.write_times(
            folder,
            queue.seconds,
            study=queue.study,
            devices=[f"{slot.device.label} ({slot.device.name})" for slot in slots],
            started_at=started_at,
            finished_at=utc_now(),
            runs_executed=queue.done,
            makespan_seconds=makespan,
            ideal_seconds=ideal,
        )
    if queue.done:
        devices = "1 device" if len(slots) == 1 else f"{len(slots)} devices"
        bound = f"no order on {devices} could take less than {ideal:.1f} s ({ideal / makespan:.0%})"
        say(f"{queue.done} runs took {makespan:.1f} s; {bound}")


def seconds_left(slot: DeviceSlot, expected: float, progress: str) -> tuple[float, bool]:
    """Return the seconds that a run still takes, and whether its steps tell so. Else they come from `expected`."""
    now = time.monotonic()
    share = estimates.share_done(progress)
    if share is not None:
        slot.first_progress = slot.first_progress or (now, share)
        first_time, first_share = slot.first_progress
        seconds = now - first_time
        if share > first_share and seconds > RATE_SECONDS:
            return seconds / (share - first_share) * (1 - share), True
    return max(expected - (now - slot.running.started), 0), False


def processes_of(run: Run, comparison: Comparison) -> int:
    """Return how many processes of a comparison are timed with the same parameters as a run."""
    differ = ("repeat", "purpose")
    own = {name: value for name, value in run.parameters.items() if name not in differ}
    timed = [other.parameters for other in comparison if other.parameters.get("purpose") != "explain"]
    return sum({name: value for name, value in one.items() if name not in differ} == own for one in timed)


def draw(queue: RunQueue, slots: list[DeviceSlot]) -> None:
    """Draw the status view."""
    expected = estimates.estimator(queue.runs, queue.seconds)
    executor = queue.executor
    texts = {}
    busy = []  # seconds left of each device
    for slot in slots:
        text = "LOST" if slot.lost else "-"
        left = sum(map(expected, slot.to_do))
        if slot.running:
            progress = executor.progress_of(slot.running)
            elapsed = time.monotonic() - slot.running.started
            of_run, measured = seconds_left(slot, expected(slot.run), progress)
            known = measured or queue.seconds
            processes = processes_of(slot.run, slot.comparison)
            text = status.run_in_words(slot.run, progress, elapsed, of_run if known else None, processes)
            left += of_run
        gpu = status.gpu_in_words(executor.gpu_state(slot.device))
        texts[slot.device.label] = text + gpu if status.fits(slot.device.label, text, gpu) else text
        if not slot.lost:
            busy.append(left)
    waiting = [sum(map(expected, job.to_do)) for job in queue.waiting]
    queue.view.draw(texts, estimates.seconds_left(busy, waiting) if queue.seconds else None)
