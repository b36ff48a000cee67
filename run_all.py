"""Run named batches of experiment notebooks, each run in a process of its own, on every GPU; then the summary.

A run is one notebook, one set of parameters, one precision, one repetition. Runs that differ only in precision and
repetition form a comparison and go one after the other to one device; comparisons spread over the devices. Exit status:
0 when every run ended well or for a reason worth recording (out of memory, diverged, unsupported), 1 when something
failed, 2 for a wrong request.
"""

import argparse
import importlib.util
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

try:
    import psutil
    import yaml
    from tqdm import tqdm
except ModuleNotFoundError as error:
    print(f"run_all.py: {error.name} is not installed; run: pip install -r requirements.txt", file=sys.stderr)
    sys.exit(2)
from planning import ROOT, Mistake, Run, check_values, choose_devices, load_studies, parse_overrides, place, plan

# isort: split
# planning has added the folder in which record lies
from record import STATUSES, RunRecord, comparison_key, find_diverged, utc_now, write_flat, write_record

RETRIED = ("failed", "timeout", "killed")  # what --retry-failed runs again; the other statuses are results
DEAD_KERNEL_EXIT = 138  # papermill's exit status for nbclient's DeadKernelError
STUDIES_FILE = ROOT / "notebooks" / "studies.yaml"


@dataclass
class Active:
    """A run that is being executed."""

    run: Run
    process: subprocess.Popen
    record_before: tuple | None
    started_at: str
    started: float = field(default_factory=time.monotonic)  # seconds
    looked: float = 0.0  # when `family` was last filled
    family: set = field(default_factory=set)  # papermill's descendants: the kernel leads a session of its own


def parse_arguments(argv):
    """Return the command line as a namespace; argparse itself ends with status 2 on an unknown option."""
    parser = argparse.ArgumentParser(prog="run_all.py", description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="names from studies.yaml (default: quick)")
    parser.add_argument("--list", action="store_true", help="show the studies, their runs and rough minutes")
    parser.add_argument("--dry-run", action="store_true", help="show the runs in order, per device, and start nothing")
    parser.add_argument("--output-dir", metavar="DIR", help="default: outputs/STUDY; with several studies DIR/STUDY")
    parser.add_argument("--gpus", default="all", metavar="all|none|0,1", help="none: the reduced form on the CPU")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once on the CPU (default: 1)")
    parser.add_argument("--timeout", type=float, metavar="MINUTES", help="stop a run that takes longer")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--fresh", action="store_true", help="set the old output folder aside and run everything")
    again.add_argument("--retry-failed", action="store_true", help="run again what failed, timed out or was killed")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="overrides")
    parser.add_argument("--ray", metavar="ADDRESS", help="submit to a Ray cluster (not available yet)")
    parser.add_argument("--no-progress-bar", action="store_true")
    parser.add_argument("--studies", type=Path, default=STUDIES_FILE, metavar="FILE", dest="file")
    args = parser.parse_intermixed_args(argv)
    if args.ray:
        raise Mistake("--ray is not available yet; leave it out to run on this machine.")
    if args.jobs is not None and args.jobs < 1:
        raise Mistake(f"--jobs {args.jobs} must be 1 or more.")
    if args.timeout is not None and not 0 < args.timeout < math.inf:
        raise Mistake(f"--timeout {args.timeout:g} must be a number of minutes above 0.")
    return args


def prepare_folder(folder, fresh):
    """Make the output folder, an old one set aside where `fresh` asks for it, and check that it is writable."""
    if fresh and any(path.is_relative_to(folder) for path in (ROOT, Path.cwd())):
        raise Mistake(f"--fresh would move {folder} away from under you; choose another --output-dir.")
    try:
        if fresh and folder.exists():
            archive = folder.with_name(f"{folder.name}.archived-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
            say(f"the old results are kept in {place(folder.rename(archive))}")
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder / "logs"):
            return
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); choose another with --output-dir DIR"
        raise Mistake(f"the output folder {folder} {reason}.") from None


def suite_commit():
    """Return the commit as the environment has it, else of this clone, "-dirty" added where tracked files differ."""
    if commit := os.environ.get("MIXED_PRECISION_COMMIT"):  # whoever copied the suite without its history can still say
        return commit
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (ROOT / ".git").exists():  # else git would answer for a repository around this folder
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def child_environment(study, commit, device=None):
    """Return the environment of a run, in which it sees one GPU or none."""
    changes = {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1", "MPLBACKEND": None, "MIXED_PRECISION_STUDY": study}
    changes |= {
        "CUDA_VISIBLE_DEVICES": device.visible if device else "",
        "MIXED_PRECISION_COMMIT": commit,
    }
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


# One run's life: start, watch, end, judge.


def start(command, log_path, environment):
    """Start a Python module in a session of its own with its output going to `log_path`."""
    group = {"start_new_session": True, "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    command = [sys.executable, "-m", *command]
    with log_path.open("wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environment, **streams, **group)


def papermill_command(notebook, executed, parameter_file, parameters):
    """Return papermill's command line, with `parameters` in a file: no shell, and no length limit."""
    parameter_file.write_text(yaml.safe_dump(parameters), encoding="utf-8")
    options = ("-f", place(parameter_file), "-k", "python3", "--no-progress-bar", "--log-output")
    return ["papermill", place(notebook), place(executed), *options]


def launch(run, environment):
    """Start papermill on a run; how a kernel is started is decided here and nowhere else."""
    executed = run.folder / f"{run.run_id}.ipynb"
    executed.unlink(missing_ok=True)  # what is read after the run must come from it
    command = papermill_command(run.notebook, executed, run.log_path.with_suffix(".yaml"), run.parameters)
    before, now = signature(run.record_path), utc_now()
    return Active(run, start(command, run.log_path, environment), before, now)


def watch(active):
    """Note the descendants of a run now and then: those of a dead parent can no longer be found."""
    if time.monotonic() - active.looked > 2:
        active.looked = time.monotonic()
        with suppress(psutil.Error):
            active.family.update(psutil.Process(active.process.pid).children(recursive=True))


def kill_family(process, family=()):
    """Kill a process, the `family` noted earlier and everything they have started, and wait until they are gone."""
    family = set(family)
    with suppress(psutil.Error):
        if process.poll() is None:  # else its number may be another process's by now
            family.add(psutil.Process(process.pid))
    for member in list(family):
        with suppress(psutil.Error):
            family.update(member.children(recursive=True))
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    process.wait()
    psutil.wait_procs([member for member in family if member.pid != process.pid], timeout=10)


def outcome(active, device, commit, timed_out):
    """Return (record, remark) of an ended run; a record the notebook has not written itself is written here."""
    run, exit_code = active.run, active.process.returncode
    late = f"stopped after {(time.monotonic() - active.started) / 60:.3g} minutes (--timeout)"
    record = read_record(run.record_path) if signature(run.record_path) != active.record_before else None
    if record:
        after = late if timed_out else failure_reason(run) if exit_code else None
        return record, f"; after the record: {after}" if after else ""
    # Not the executed notebook's metadata: papermill marks every cell completed when the kernel is killed.
    log = run.log_path.read_text(encoding="utf-8", errors="replace")
    if timed_out:
        status, reason = "timeout", late
    elif exit_code < 0:
        status, reason = "killed", f"papermill was ended by signal {-exit_code}"
    elif exit_code == DEAD_KERNEL_EXIT or re.search(r"^(\S+\.)?DeadKernelError\b", log, re.MULTILINE):
        status, reason = "killed", "the kernel died: it was killed (is the host's memory exhausted?) or it crashed"
    elif exit_code:
        status, reason = "failed", failure_reason(run)
    else:
        status, reason = "failed", f"the notebook ended without writing a record ({run.record_path.name})"
    record = RunRecord(run.run_id, run.notebook.stem, run.precision, run.parameters, status=status, reason=reason)
    record.started_at, record.finished_at, record.commit = active.started_at, utc_now(), commit
    record.device_type = "cuda" if device.visible else "cpu"
    if device.visible:
        record.gpu_name, record.gpu_uuid = device.name, device.visible.removeprefix("GPU-")
    write_record(record, run.folder)
    return vars(record), ""


def failure_reason(run):
    """Return why papermill failed, in one line: the notebook's own sentence, its last error, or the log's last line."""
    lines = run.log_path.read_text(encoding="utf-8", errors="replace").split("\n")
    text = next((line for line in reversed(lines) if line.strip()), "papermill failed without a word")
    with suppress(OSError, ValueError, KeyError, TypeError):
        cells = json.loads((run.folder / f"{run.run_id}.ipynb").read_text(encoding="utf-8"))["cells"]
        for output in [output for cell in cells for output in cell.get("outputs", ())]:
            if output["output_type"] == "error":  # Stop: a mistake that the notebook itself explains
                text = output["evalue"] if output["ename"] == "Stop" else f"{output['ename']}: {output['evalue']}"
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split())
    for folder in (str(ROOT), sys.prefix, str(Path.home())):  # where this machine keeps things is no part of a reason
        text = text.replace(folder + os.sep, "") if len(folder) > 1 else text
    return text if len(text) <= 300 else text[:297] + "..."


def signature(path):
    """Return what changes when a file is replaced, or None where there is no file."""
    with suppress(OSError):
        return (path.stat().st_ino, path.stat().st_mtime_ns)
    return None


def read_record(path):
    """Return a record as a flat dict, or None where there is none that can be read and has a valid status."""
    with suppress(OSError, ValueError):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("run_id") == path.stem and record.get("status") in STATUSES:
            return record
    return None


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


# The batch: which run goes where, and what is said about it.


def unfinished(comparison, args):
    """Return the runs that have no record, or one that --fresh or --retry-failed asks to make again."""
    again = STATUSES if args.fresh else RETRIED if args.retry_failed else ()
    records = [read_record(run.record_path) for run in comparison]
    return [r for r, record in zip(comparison, records, strict=True) if not record or record["status"] in again]


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


def finish(active, device, commit, timed_out):
    """Clear up after a run, and return its line of progress."""
    seconds = time.monotonic() - active.started
    kill_family(active.process, active.family)
    record, remark = outcome(active, device, commit, timed_out)
    if record["status"] == "ok" and not remark:
        for path in (active.run.log_path, active.run.log_path.with_suffix(".yaml")):
            path.unlink(missing_ok=True)
    return f"{record['run_id']}  {record['status']}  {seconds:.1f} s  {in_words(record)}{remark}"


def run_batch(study, comparisons, devices, args, commit):
    """Execute the unfinished runs, each comparison on one device; whatever ends this also ends what it started."""
    jobs = [(comparison, unfinished(comparison, args), home(comparison, devices)) for comparison in comparisons]
    waiting, current, active, done = [job for job in jobs if job[1]], {}, {}, 0
    for comparison in (job[0] for job in jobs if not job[1]):
        judge(comparison)  # an interrupted batch may have left this undone
    total, limit = sum(len(job[1]) for job in jobs), 60 * (args.timeout or math.inf)
    quiet = args.no_progress_bar or not sys.stderr.isatty()
    with tqdm(total=total, desc=study, unit="run", disable=quiet or not total) as bar:
        try:
            while waiting or current:
                for device in devices:
                    if device in active:
                        one = active[device]
                        watch(one)
                        timed_out = time.monotonic() - one.started > limit
                        if one.process.poll() is None and not timed_out:
                            continue
                        text = finish(one, device, commit, timed_out and one.process.returncode is None)
                        del active[device]
                        done += 1
                        say(f"[{done:>{len(str(total))}}/{total}] {device.label}  {text}")
                        bar.update()
                    if device not in current:
                        current[device] = take(waiting, device)
                    if current[device] is None:
                        del current[device]
                    elif current[device][1]:
                        environment = child_environment(study, commit, device)
                        active[device] = launch(current[device][1].pop(0), environment)
                    else:
                        for run_id, reason in judge(current.pop(device)[0]).items():
                            say(f"{run_id}  diverged  {reason}")
                bar.refresh()
                time.sleep(0.2)
        finally:
            for one in active.values():
                kill_family(one.process, one.family)


def say(text):
    """Print one line above the progress bar, at once also where the output is a file."""
    tqdm.write(text)
    sys.stdout.flush()


def in_words(record):
    """Return what was measured, with units, or why it was not."""
    _, epoch, speed, peak, metric, reason = row(record)
    unit = record.get("sample_unit") or "samples"
    words = ((epoch, f"{epoch} s/epoch"), (speed, f"{speed} {unit}/s"), (peak, f"{peak} MiB peak"), (metric, metric))
    return ", ".join(word for value, word in words if value) if record["status"] == "ok" else reason


def row(record):
    """Return the cells of one record in the final table: status, median epoch, speed, peak, last metric, reason."""
    seconds = [value for value in record.get("epoch_seconds") or () if value is not None]
    metric = [value for value in record.get("metric") or () if value is not None][-1:]
    speed, peak = record.get("samples_per_second"), record.get("peak_allocated_mib")
    return (
        record["status"],
        f"{statistics.median(seconds):.3g}" if seconds else "",
        "" if speed is None else f"{speed:,.0f}",
        "" if peak is None else f"{peak:,.0f}",
        f"{record.get('metric_name')} {metric[0]:.4g}" if metric else "",
        record.get("reason") or "",
    )


def table(comparisons):
    """Return all runs as aligned lines of text."""
    rows = [("run", "status", "epoch (s)", "samples/s", "peak (MiB)", "metric", "reason")]
    for run in itertools.chain.from_iterable(comparisons):
        record = read_record(run.record_path)
        rows.append((run.run_id, *(row(record) if record else ("not run", "", "", "", "", ""))))
    widths = [max(len(line[column]) for line in rows) for column in range(6)]
    padded = [[word.ljust(width) for word, width in zip(line, widths, strict=False)] + [line[6]] for line in rows]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def dry_run(study, comparisons, devices, args):
    """Print the runs in order per device, as they would go if each took its rough time."""
    waiting = [(comparison, unfinished(comparison, args), home(comparison, devices)) for comparison in comparisons]
    order, minutes = {device: [] for device in devices}, dict.fromkeys(devices, 0.0)
    while waiting:
        for device in sorted(devices, key=minutes.get):
            job = take(waiting, device)
            if job:
                order[device] += [(run, run in job[1]) for run in job[0]]
                minutes[device] += sum(run.minutes for run in job[1])
                break
    for device in devices:
        say(f"{study} on {device.label} ({device.name}):")
        for run, to_do in order[device]:
            say(f"  {run.run_id}{'' if to_do else '  (finished)'}")


def summarise(study, folder, notebook):
    """Execute the summary notebook into the folder and export it as HTML; return whether that went well."""
    if not notebook.exists():
        say(f"there is no {notebook.name} beside the studies file, so no summary was made")
        return True
    executed, log_path = folder / "summary.ipynb", folder / "logs" / "summary.log"
    parameters = {"records_dir": place(folder)}
    execute = papermill_command(notebook, executed, log_path.with_suffix(".yaml"), parameters)
    for command in (execute, ["nbconvert", "--to", "html", "--no-input", place(executed)]):
        process = start(command, log_path, child_environment(study, None))
        try:
            process.wait()
        finally:
            kill_family(process)
        if process.returncode:
            say(f"the summary failed, the records are whole; see {place(log_path)}")
            return False
    for path in (log_path, log_path.with_suffix(".yaml")):
        path.unlink()
    say(f"summary: {place(executed.with_suffix('.html'))}")
    return True


def run_study(study, comparisons, folder, devices, args):
    """Run one study and its summary, and return whether nothing failed."""
    runs, to_do = sum(map(len, comparisons)), sum(len(unfinished(comparison, args)) for comparison in comparisons)
    names = ", ".join(f"{device.label} ({device.name})" for device in devices)
    say(f"{study}: {runs} runs into {place(folder)} on {names}; {runs - to_do} finished already and skipped")
    try:
        run_batch(study, comparisons, devices, args, suite_commit())
        say(table(comparisons))
        well = summarise(study, folder, args.file.parent / "summary.ipynb")
    except KeyboardInterrupt:
        kept = sum(read_record(run.record_path) is not None for comparison in comparisons for run in comparison)
        again = "the same command without --fresh" if args.fresh else "the same command"
        say(f"interrupted: {kept} of {runs} runs of {study} are finished and kept; {again} runs the rest")
        raise
    statuses = [
        (read_record(run.record_path) or {"status": "failed"})["status"] for runs in comparisons for run in runs
    ]
    if failed := sum(status in RETRIED for status in statuses):
        say(f"{failed} of {runs} runs failed; logs in {place(folder / 'logs')}; --retry-failed runs them again")
    return well and not failed


def run_all(args):
    """Check the whole request, then run it; return the exit status."""
    studies = load_studies(args.file)
    overrides = parse_overrides(args.overrides)
    if args.list:
        for name, study in studies.items():
            comparisons, _ = plan(study, args.file.parent, ROOT, overrides, on_gpu=True)
            runs, minutes = sum(map(len, comparisons)), sum(run.minutes for runs in comparisons for run in runs)
            about = f"about {round(minutes, 1):g} minutes on one GPU"
            say(f"{name:<24} {runs:>5} runs  {about}\n    {study.get('description', '')}")
        return 0
    names = list(dict.fromkeys(args.studies or ["quick"]))
    unknown = [name for name in names if name not in studies]
    if unknown:
        raise Mistake(f"unknown study {', '.join(unknown)}; possible are {', '.join(studies)}.")
    missing = [name for name in ("papermill", "ipykernel", "nbconvert") if importlib.util.find_spec(name) is None]
    if missing:
        raise Mistake(f"{', '.join(missing)} not installed; run: pip install -r requirements.txt")
    devices = choose_devices(args.gpus, args.jobs)
    on_gpu = bool(devices[0].visible)
    planned = []
    for name in names:
        folder = Path(args.output_dir or ROOT / "outputs" / name).expanduser().resolve()
        folder = folder / name if args.output_dir and len(names) > 1 else folder
        comparisons, left_out = plan(studies[name], args.file.parent, folder, overrides, on_gpu)
        if not comparisons:
            raise Mistake(f"study {name} needs a GPU; without one run a study with a CPU form: python run_all.py quick")
        check_values(comparisons)
        planned.append((name, comparisons, folder, left_out))
    if not on_gpu:
        say("NO GPU: the reduced CPU form runs; it proves that everything works and measures nothing.")
    for name, _, _, left_out in planned:
        if left_out:
            say(f"{name}: left out, for they need a GPU: {', '.join(left_out)}")
    for name, comparisons, folder, _ in planned:
        if args.dry_run:
            dry_run(name, comparisons, devices, args)
        else:
            prepare_folder(folder, args.fresh)
    if args.dry_run:
        return 0
    # Every study runs, whatever became of the one before.
    return 0 if all([run_study(name, runs, folder, devices, args) for name, runs, folder, _ in planned]) else 1


def main(argv=None):
    """Run the command line and return the exit status."""
    try:
        return run_all(parse_arguments(argv))
    except Mistake as mistake:
        print(f"run_all.py: {mistake}", file=sys.stderr)
        return 2
    except OSError as error:  # for example a full disk: the records are written whole or not at all
        print(f"run_all.py: stopped, finished runs are kept: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def interrupt(number, frame):
    """Treat a signal that ends a batch like Ctrl-C, so that no kernel outlives it."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    for signal_name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, signal_name, None)
        if number and signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, interrupt)
    sys.exit(main())
