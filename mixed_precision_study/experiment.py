"""One run: whatever ends it becomes its record, and what explains it is measured after its timed epochs."""

import statistics
import traceback
from contextlib import contextmanager, suppress
from dataclasses import replace

from .environment import describe_environment
from .errors import Diverged, Stop, Unsupported, error_line
from .gpu.preflight import clear_workspaces
from .loss_scaling import read_gradients
from .memory import is_out_of_memory, let_go, read_ledger, read_peaks, release_memory, reset_peaks
from .profiling import count_work, profile_steps
from .record import find_diverged, utc_now, write_record
from .roofline import measure_limits
from .training import endless


def keep_training(record, folder):
    """Write what the training has measured before it is explained: a run that is ended meanwhile keeps that."""
    names = ("inference", "profile", "limit", "ledger", *["gradient"] * ("fp16" in record.precision))
    ended = {f"{name}_reason": "the run was ended before it was explained" for name in names}
    write_record(replace(record, status="ok", reason=None, finished_at=utc_now(), **ended), folder)


def explain(record, trainer, batches, folder, carry=None):
    """Measure what explains the run, after its last epoch; what fails leaves its reason and takes nothing else down.

    `batches()` gives an epoch's batches. The model takes more steps here and is of no more use for training.
    """
    if trainer.device.type != "cuda":
        record.profile_reason = record.limit_reason = record.ledger_reason = "no GPU"
        return
    given = endless(batches)
    stages = [
        ("ledger_reason", read_ledger),  # first: the others leave workspaces behind
        ("profile_reason", profile_steps),
        ("limit_reason", count_work),
        ("limit_reason", lambda record, trainer, *_: measure_limits(record, trainer, folder)),
        ("gradient_reason", read_gradients),
    ]
    if trainer.captured:  # the profile is of replays, and a step outside the graph drops it
        stages[:2] = stages[1::-1]
    for reason, measure in stages:
        try:
            release_memory(trainer.device)
            measure(record, trainer, given, carry)
        except Exception as error:  # a run that was measured is not lost for want of its explanation
            setattr(record, reason, error_line(error))


@contextmanager
def guarded(record, output_dir, device):
    """Run the block as one run: whatever ends it becomes the record's status and reason, the device is freed, the
    record is written, and the notebook goes on. A user's mistake (Stop) and an interrupt do end the notebook."""
    record.started_at = utc_now()
    if device.type == "cuda":
        clear_workspaces()
    reset_peaks(device)  # or this run would inherit the peak of the one before it in this kernel
    described = None
    try:
        describe_environment(record, device)
        yield record
        record.status, record.reason = "ok", None
    except Stop:
        raise
    except (Unsupported, Diverged) as error:
        record.status, record.reason = type(error).__name__.lower(), str(error)
    except Exception as error:
        record.status = "oom" if is_out_of_memory(error) else "failed"
        read_peaks(record, device, "_with_warmup")  # how far it came
        record.reason = error_line(error)
        described = traceback.format_exc() if record.status == "failed" else None
        let_go(error)
    with suppress(RuntimeError):  # a device that answers nothing any more must not cost the record
        release_memory(device)
    record.finished_at = utc_now()
    write_record(record, output_dir)
    if described:
        print(described)
    print(one_line(record))


def settled(records, output_dir):
    """Return the records as a list; those that learned nothing where another precision did are marked `diverged`."""
    records = list(records)
    for run_id, reason in find_diverged([vars(record) for record in records]).items():
        record = next(record for record in records if record.run_id == run_id)
        record.status, record.reason = "diverged", reason
        write_record(record, output_dir)
        print(one_line(record))
    return records


def one_line(record):
    """Return the result of a run as a sentence."""
    if record.status != "ok":
        return f"{record.precision}: {record.status} - {record.reason}"
    peak = f", peak {record.peak_allocated_mib:,.0f} MiB" if record.peak_allocated_mib else ""
    seconds = statistics.median(record.epoch_seconds)
    speed = f"{seconds:.2f} s/epoch, {record.samples_per_second:,.0f} {record.sample_unit}/s"
    return f"{record.precision}: {speed}{peak}, {record.metric_name} {record.metric[-1]:.4g}"
