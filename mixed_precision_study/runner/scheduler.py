"""A batch: which run goes to which device, what happens when one ends, and what is said about it.

How a run is executed is left to an executor, with launch, check, stop_all, is_free, look, answers and progress_of: the
module process (this machine) or a ray_cluster.Cluster (Ray).
"""

import errno
import itertools
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ..gpu import nvml
from ..record import STATUSES, comparison_key, find_diverged, utc_now, write_flat
from . import estimates, status
from .devices import Device
from .paths import ROOT, relative_to_root
from .process import RETRIED, START_ATTEMPTS, UNREADABLE, RunOutcome, hash_now, read_record, write_ending
from .status import in_words, say

GRACE_SECONDS = 7  # after the first Ctrl-C, for runs that are about to end
MAX_DEVICES_LOST = 2  # times that a device is lost under one run: then the run is at fault
START_WAIT_SECONDS = 1  # doubled with each attempt
NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)  # the host has no room for another process just now
RATE_SECONDS = 30  # of training, before its steps tell how long it still takes: they are told every 5 s
CLEAR_SECONDS = 30  # for a GPU to give back the last run's memory
DATA_DIR_NON_DATA = ("cache", "published_results.csv")  # what else lies in a data_dir


@dataclass
class DeviceSlot:
    """A device, the comparison that it has taken, and the run on it."""

    device: Device
    comparison: list | None = None
    to_do: list = field(default_factory=list)
    run: object = None  # that is being executed, or is to be started again
    active: object = None
    attempt: int = 1
    not_before: float = 0.0
    seconds: list = field(default_factory=list)  # of the comparison's runs so far
    gone: bool = False
    in_run: bool = False  # that is where it was lost, and not before one
    ended: object = None  # the last run, whose memory may still have to be given back
    ended_at: float = 0.0
    first: tuple | None = None  # when the run was first seen to train, and which share of it was done then


@dataclass
class RunQueue:
    """What is known of a batch while it runs."""

    study: str
    commit: str | None
    limit: float  # seconds a run may take
    waiting: list  # [(comparison, its unfinished runs, home)], the longest first
    seconds: dict  # {run_id: seconds} recorded, here and earlier
    total: int
    runs: list
    stall: float = 0  # seconds a run may take without a new cell or step; 0: any
    done: int = 0
    jobs: list = field(default_factory=list)  # [[seconds]] of each comparison on its device
    losses: dict = field(default_factory=dict)  # {run_id: [(slot, reason)]} of the devices lost while it ran
    ending: bool = False  # after Ctrl-C


def judge(comparison):
    """Mark the runs of a finished comparison that learned nothing where others did, and return {run_id: reason}."""
    paths, groups, diverged = {run.run_id: run.record_path for run in comparison}, {}, {}
    for record in filter(None, map(read_record, paths.values())):
        groups.setdefault(comparison_key(record), {})[record["run_id"]] = record
    for group in groups.values():
        diverged |= find_diverged(group.values())
        for run_id in diverged.keys() & group.keys():
            write_flat({**group[run_id], "status": "diverged", "reason": diverged[run_id]}, paths[run_id])
    return diverged


def of_other_code(run, record):
    """Return the hash of the code that made the run's record, or None where there is none or it is today's code."""
    known = record.get("code_hash")  # null: made by hand, or before it was noted
    return known if hash_now(run) not in (known, UNREADABLE) else None


def of_made_up_data(run, record):
    """Return whether the run's record is of made-up data for want of real ones, and another data_dir may have them.

    It has none where it is as good as empty; and a notebook with a csv_path does not take its data from there.
    """
    wanted = run.parameters
    if not record.get("synthetic") or wanted["dataset"] != "auto" or "csv_path" in wanted:
        return False
    return record.get("data_dir") != wanted["data_dir"] and holds_data(ROOT / wanted["data_dir"])


def holds_data(folder):
    """Return whether a data_dir holds anything that may be data; a download that failed leaves an empty folder."""
    with suppress(OSError):
        there = [path for path in folder.iterdir() if path.name not in DATA_DIR_NON_DATA]
        return any(path.is_file() or any(path.iterdir()) for path in there)
    return False


def aside_as_other_code(run, record):
    """Return (name of a folder for it, why) where the run's record was measured by other code; else None."""
    if code := of_other_code(run, record):  # a record may have come from anywhere
        return f"other_code-{re.sub(r'[^A-Za-z0-9]', '_', str(code))[:40]}", "were measured by other code"
    return None


def outdated(run, record):
    """Return (name of a folder for it, why) where the run's record, if there is one, counts no more; else None."""
    if not record:
        return None
    if aside := aside_as_other_code(run, record):
        return aside
    if of_made_up_data(run, record):
        return "made_up_data", "are of made-up data, and data_dir is another one now"
    return None


def folder_aside(run, name):
    """Return a folder of this name, or a number added, in which the run has no record yet: nothing is overwritten."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(run.folder / name for name in names if not (run.folder / name / run.record_path.name).exists())


def not_asked_for(runs):
    """Return [(run, record)] of the same notebooks in the same folder that are not among `runs`."""
    notebooks, asked, found = {run.notebook.stem: run for run in runs}, {run.run_id for run in runs}, []
    for path in sorted(runs[0].folder.glob("*.json")):
        record = read_record(path) if path.stem not in asked else None
        if record and (like := notebooks.get(str(record.get("notebook")))):
            found.append((like._replace(run_id=path.stem), record))
    return found


def set_aside_records(comparisons):
    """Move outdated records and their notebooks into a folder beside them, and say so; nothing is deleted.

    What other code has measured goes even where it is not asked for now: the report would set it beside the new runs.
    """
    moved, runs = {}, [run for comparison in comparisons for run in comparison]
    found = [(run, outdated(run, read_record(run.record_path)), "and run again") for run in runs]
    found += [(run, aside_as_other_code(run, one), "without being run again") for run, one in not_asked_for(runs)]
    for run, (name, ending_of), then in (item for item in found if item[1]):
        folder = folder_aside(run, name)
        folder.mkdir(exist_ok=True)
        for path in (run.folder / f"{run.run_id}.ipynb", run.record_path):  # the record last: it is what counts
            with suppress(FileNotFoundError):
                path.replace(folder / path.name)
        moved[folder, ending_of, then] = moved.get((folder, ending_of, then), 0) + 1
    for (folder, ending_of, then), count in moved.items():
        say(f"{count} records {ending_of}; they are kept in {relative_to_root(folder)} {then}")


def unfinished(comparison, args, fresh=None):
    """Return the runs without a record that counts, or with one that --fresh or --retry-failed makes again.

    `fresh` stands in for --fresh, as where the same command is to be given without it.
    """
    again = STATUSES if (args.fresh if fresh is None else fresh) else RETRIED if args.retry_failed else ()
    found = [(run, read_record(run.record_path)) for run in comparison]
    return [run for run, record in found if not record or outdated(run, record) or record["status"] in again]


def home(comparison, devices):
    """Return the GPU on which finished runs of the comparison ran, so that the rest go there, or None."""
    uuids = [(read_record(run.record_path) or {}).get("gpu_uuid") for run in comparison]
    return next((device for device in devices for uuid in uuids if uuid and device.visible.endswith(uuid)), None)


def take(waiting, device):
    """Remove and return the next (comparison, its unfinished runs, home) that may go to the device, or None."""
    for job in waiting:
        if job[2] in (None, device):
            waiting.remove(job)
            return job
    return None


def jobs_of(comparisons, devices, args, seconds):
    """Return [(comparison, its unfinished runs, home)], the longest first; `seconds` are those recorded."""
    expected = estimates.estimator([run for runs in comparisons for run in runs], seconds)
    jobs = [(comparison, unfinished(comparison, args), home(comparison, devices)) for comparison in comparisons]
    return estimates.longest_first(jobs, expected)


def run_batch(study, comparisons, devices, args, commit, executor):
    """Execute the unfinished runs, each comparison on one device; whatever ends this also ends what it started."""
    folder, runs = comparisons[0][0].folder, [run for comparison in comparisons for run in comparison]
    seconds = estimates.read_seconds(folder)
    jobs = jobs_of(comparisons, devices, args, seconds)
    for comparison in (job[0] for job in jobs if not job[1]):
        judge(comparison)  # an interrupted batch may have left this undone
    waiting, total = [job for job in jobs if job[1]], sum(len(job[1]) for job in jobs)
    batch = RunQueue(study, commit, 60 * args.timeout, waiting, seconds, total, runs, 60 * args.stall_minutes)
    slots, began, started_at = [DeviceSlot(device) for device in devices], time.monotonic(), utc_now()
    view = status.View(study, total, [device.label for device in devices], not args.no_progress_bar)
    try:
        while any(not slot.gone and (batch.waiting or slot.comparison or slot.run) for slot in slots):
            for slot in slots:
                step(slot, batch, executor, view)
            if batch.waiting and all(slot.gone for slot in slots):
                restore_devices(slots, batch, executor)
            if view.due():
                draw(view, batch, slots, executor)
            time.sleep(0.1)
    except KeyboardInterrupt:
        drain(batch, slots, executor, view)
        raise
    finally:
        if running := [slot.active for slot in slots if slot.active]:
            executor.stop_all(running)
        view.close()
        if total:
            close_batch(folder, batch, slots, time.monotonic() - began, started_at)
    if batch.waiting or any(slot.to_do for slot in slots):
        say("no device is left; the same command runs the rest when there is one again")


def step(slot, batch, executor, view):
    """Bring one device a step further: end its run, take the next comparison, start the next run."""
    if slot.gone:
        return
    if slot.active:
        end = executor.check(slot.active, batch.commit, slot.device, batch.limit, batch.stall)
        if end is None:
            return
        finish(slot, end, batch, executor, view)
    if slot.gone or time.monotonic() < slot.not_before or not cleared(slot, executor):
        return
    if slot.comparison and not (slot.run or slot.to_do):
        comparison, slot.comparison = slot.comparison, None
        finish_comparison(comparison)
    if slot.comparison is None and (job := take(batch.waiting, slot.device)):
        slot.comparison, slot.to_do, slot.seconds = job[0], list(job[1]), []
        batch.jobs.append(slot.seconds)
    if slot.comparison:
        slot.run = slot.run or slot.to_do.pop(0)
        begin(slot, batch, executor, view)


def finish_comparison(comparison):
    """Judge a finished comparison and say what came out."""
    for run_id, reason in judge(comparison).items():
        say(f"{run_id}  diverged  {reason}")


def begin(slot, batch, executor, view):
    """Start the run of a device; where that cannot be, the run goes to another one or waits."""
    try:
        slot.active = executor.launch(slot.run, batch.study, batch.commit, slot.device, slot.attempt)
    except nvml.GpuLost as error:
        slot.in_run = False
        remove_device(slot, batch, error)
    except OSError as error:
        if error.errno not in NO_PROCESS or slot.attempt >= START_ATTEMPTS:
            raise
        try_again(slot, f"no process could be started: {error.strerror}")
    else:
        slot.first = None
        view.begin(f"{slot.device.label}  {slot.run.run_id}  begins")


def finish(slot, end, batch, executor, view):
    """Take note of a run that has ended, and say so."""
    seconds, run, label = time.monotonic() - slot.active.started, slot.run, slot.device.label
    slot.ended, slot.ended_at, slot.active = slot.active, time.monotonic(), None
    if end.lost:
        lost = batch.losses.setdefault(run.run_id, [])
        lost += [(slot, end.remark)] * end.begun
        slot.in_run = end.begun
        if len(lost) < MAX_DEVICES_LOST:
            remove_device(slot, batch, end.remark)
            return
        end = fail_run(slot, end.remark, batch)
        restore_devices([each for each, _ in lost], batch, executor)
    if end.record is None:
        try_again(slot, end.remark)
        return
    slot.run, slot.attempt = None, 1
    slot.seconds.append(seconds)
    batch.done += 1
    if end.record["status"] in RETRIED:
        batch.seconds.pop(run.run_id, None)
    else:
        batch.seconds[run.run_id] = seconds
    if end.record["status"] == "ok" and not end.remark:
        for path in (run.log_path, run.log_path.with_suffix(".yaml")):
            path.unlink(missing_ok=True)
    counted = f"[{batch.done:>{len(str(batch.total))}}/{batch.total}]"
    ended = f"{end.record['status']}  {seconds:.1f} s  {in_words(end.record)}{end.remark}"
    say(f"{counted} {label}  {run.run_id}  {ended}")
    view.bar.update()


def try_again(slot, reason):
    """Have a run that could not be started wait before its next attempt."""
    wait = START_WAIT_SECONDS * (2**slot.attempt + slot.device.index / 2)  # staggered, so as not to meet again
    slot.attempt, slot.not_before = slot.attempt + 1, time.monotonic() + wait
    say(f"{slot.device.label}  {slot.run.run_id}  starts again in {wait:g} s  {reason}")


def remove_device(slot, batch, reason):
    """Take a device out of the pool, and say so; what it had not finished waits for another one."""
    rest = [slot.run] * bool(slot.run) + slot.to_do
    follow = f"; {rest[0].run_id} and what follows go to others" if rest else ""
    say(f"{slot.device.label} IS LOST and gets no more runs{follow}  {reason}")
    batch.waiting = [(runs, to_do, None if where == slot.device else where) for runs, to_do, where in batch.waiting]
    if rest:
        batch.waiting.insert(0, (slot.comparison, rest, None))
    else:
        finish_comparison(slot.comparison)
    slot.gone, slot.comparison, slot.to_do, slot.run, slot.attempt = True, None, [], None, 1


def fail_run(slot, remark, batch):
    """Have a run end that loses one device after the other, and return its End: it gets no further one to lose."""
    how = "; ".join(f"{each.device.label} ({reason[:100]})" for each, reason in batch.losses[slot.run.run_id])
    reason = f"the device was lost under it {MAX_DEVICES_LOST} times, so it gets no other: {how}"
    record = write_ending(slot.ended, "failed", reason, batch.commit, slot.device)
    slot.run = None
    remove_device(slot, batch, remark)
    return RunOutcome(record)


def restore_devices(slots, batch, executor):
    """Return devices that were lost under a run to the pool where they answer after all: the run may be at fault.

    That ends: a run gets no more than MOST_LOST of them, and one that is lost before a run stays out.
    """
    for slot in slots:
        if slot.gone and slot.in_run and not batch.ending and executor.answers(slot.device):
            slot.gone = False
            say(f"{slot.device.label} answers and is used again")


def cleared(slot, executor):
    """Return whether the memory of the last run on this device has been given back, or is not waited for any longer."""
    if slot.ended and not executor.memory_is_free(slot.ended, slot.device):
        if time.monotonic() - slot.ended_at < CLEAR_SECONDS:
            return False
        say(f"{slot.device.label}: memory of the last run, or of others, is still held; the next one notes how much")
    slot.ended = None
    return True


def drain(batch, slots, executor, view):
    """After Ctrl-C: start nothing more, give the running runs a few seconds to end, and say which were stopped."""
    names = [slot.run.run_id for slot in slots if slot.active]
    if not names:
        return
    say(f"stopping: {GRACE_SECONDS} s for {', '.join(names)} to end; Ctrl-C again stops at once")
    until, batch.ending = time.monotonic() + GRACE_SECONDS, True
    while time.monotonic() < until and any(slot.active for slot in slots):
        for slot in (slot for slot in slots if slot.active):
            if end := executor.check(slot.active, batch.commit, slot.device, batch.limit, batch.stall):
                finish(slot, end, batch, executor, view)
        time.sleep(0.1)
    if stopped := [slot.run.run_id for slot in slots if slot.active]:
        say(f"stopped, and to be run again: {', '.join(stopped)}")


def close_batch(folder, batch, slots, makespan, started_at):
    """Print and store how long the batch took, and how short it could have been on its devices."""
    ideal = estimates.ideal_seconds(batch.jobs, len(slots))
    facts = {"study": batch.study, "devices": [f"{slot.device.label} ({slot.device.name})" for slot in slots]}
    facts |= {"started_at": started_at, "finished_at": utc_now(), "runs_executed": batch.done}
    with suppress(OSError):  # the records are what counts
        estimates.write_batch(folder, batch.seconds, **facts, makespan_seconds=makespan, ideal_seconds=ideal)
    if batch.done:
        words = f"no order on {len(slots)} device{'s' * (len(slots) > 1)} could take less than {ideal:.1f} s"
        say(f"{batch.done} runs took {makespan:.1f} s; {words} ({ideal / makespan:.0%})")


def seconds_left(slot, expected, progress):
    """Return (seconds that a run still takes, whether the steps of its training say so; else what was expected)."""
    now, share = time.monotonic(), estimates.share_done(progress)
    if share is not None:
        slot.first = slot.first or (now, share)
        seconds, done = now - slot.first[0], share - slot.first[1]
        if done > 0 and seconds > RATE_SECONDS:
            return seconds / done * (1 - share), True
    return max(expected - (now - slot.active.started), 0), False


def draw(view, batch, slots, executor):
    """Draw the live view."""
    expected = estimates.estimator(batch.runs, batch.seconds)
    texts, busy = {}, []
    for slot in slots:
        text, left = "LOST" if slot.gone else "-", sum(map(expected, slot.to_do))
        if slot.active:
            progress, elapsed = executor.progress_of(slot.active), time.monotonic() - slot.active.started
            of_run, seen = seconds_left(slot, expected(slot.run), progress)
            text = status.run_in_words(slot.run.run_id, progress, elapsed, of_run if seen or batch.seconds else None)
            left += of_run
        texts[slot.device.label] = text + status.gpu_in_words(executor.gpu_state(slot.device))
        if not slot.gone:
            busy.append(left)
    left = estimates.seconds_left(busy, [sum(map(expected, job[1])) for job in batch.waiting], len(busy))
    view.draw(texts, left if batch.seconds else None)
