"""Run named batches of experiment notebooks, each run in a process of its own, on every GPU; then the summary.

A run is one notebook, one set of parameters, one precision, one repetition. Runs that differ only in precision and
repetition form a comparison and go one after the other to one device; comparisons spread over the devices. Exit status:
0 when every run ended well or for a reason worth recording (out of memory, diverged, unsupported), 1 when something
failed, 2 for a wrong request.
"""

import argparse
import glob
import importlib.util
import io
import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import UserError
from . import estimates, process, ray_cluster
from .devices import choose_devices
from .notebook_file import MALFORMED, keep_code
from .output_folder import check_fresh, held
from .paths import ROOT, expanded, relative_to_root
from .plan import check_csv, check_values, plan
from .process import RETRIED, RUN_FOLDER_ENV, child_environment, kill_run, read_record, start, start_notebook
from .scheduler import jobs_of, run_batch, set_aside_records, take, unfinished
from .status import TolerantStream, log_in, say, table
from .studies import load_studies, parse_overrides

STUDIES_FILE = ROOT / "notebooks" / "studies.yaml"
SUMMARY_SECONDS = 3600  # a summary of hundreds of runs takes minutes


def parse_arguments(argv):
    """Return the command line as a namespace; argparse itself ends with status 2 on an unknown option."""
    parser = argparse.ArgumentParser(prog="run_all.py", description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="names from studies.yaml (default: quick)")
    parser.add_argument("--list", action="store_true", help="show the studies, their runs and rough minutes")
    parser.add_argument("--dry-run", action="store_true", help="show the runs in order, per device, and start nothing")
    parser.add_argument("--output-dir", metavar="DIR", help="default: outputs/STUDY; with several studies DIR/STUDY")
    parser.add_argument("--gpus", default="all", metavar="all|none|0,1", help="none: the reduced form on the CPU")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once on the CPU (default: 1)")
    parser.add_argument("--timeout", type=float, default=1440, metavar="MINUTES", help="of one run; default: a day")
    stall = "ends a run without a new cell or training step for so long; default: 60, 0: never"
    parser.add_argument("--stall-minutes", type=float, default=60, metavar="MINUTES", help=stall)
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--fresh", action="store_true", help="set the old output folder aside and run everything")
    again.add_argument("--retry-failed", action="store_true", help="run again what failed, timed out or was killed")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="overrides")
    parser.add_argument("--ray", metavar="ADDRESS", help="use a Ray cluster: its address, auto or local")
    parser.add_argument("--no-progress-bar", action="store_true")
    parser.add_argument("--studies", type=Path, default=STUDIES_FILE, metavar="FILE", dest="file")
    args = parser.parse_intermixed_args(argv)
    if args.ray and args.gpus not in ("all", "none"):
        raise UserError(f"--gpus {args.gpus} is for this machine; with --ray it is all or none.")
    for name, value in (("--output-dir", args.output_dir), ("--ray", args.ray)):
        if value == "":
            raise UserError(f"{name} is empty (an unset variable?); give a value, or leave it out.")
    if args.jobs is not None and not 1 <= args.jobs <= 1000:
        raise UserError(f"--jobs {args.jobs} must be a whole number from 1 to 1000.")
    if not 0 < args.timeout < math.inf:
        raise UserError(f"--timeout {args.timeout:g} must be a number of minutes above 0.")
    if not 0 <= args.stall_minutes < math.inf:
        raise UserError(f"--stall-minutes {args.stall_minutes:g} must be a number of minutes, or 0 for no such limit.")
    return args


def suite_commit():
    """Return the commit as the environment has it, else of this clone, "-dirty" added where tracked files differ."""
    if commit := os.environ.get("MIXED_PRECISION_COMMIT"):  # whoever copied the suite without its history can still say
        return commit
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (ROOT / ".git").exists():  # else git would answer for a repository around this folder
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def dry_run(study, comparisons, folder, devices, args):
    """Print the runs in order per device, as they would go if each took its expected time."""
    seconds = estimates.read_seconds(folder)
    expected = estimates.estimator([run for runs in comparisons for run in runs], seconds)
    waiting = jobs_of(comparisons, devices, args, seconds)
    order, ends = {device: [] for device in devices}, dict.fromkeys(devices, 0.0)
    while waiting:
        for device in sorted(devices, key=ends.get):
            job = take(waiting, device)
            if job:
                order[device] += [(run, run in job[1]) for run in job[0]]
                ends[device] += sum(map(expected, job[1]))
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
    environment = child_environment(study, folder)
    process, private = start_notebook(
        notebook, executed, {"records_dir": relative_to_root(folder)}, log_path, environment
    )
    try:
        if process.wait(SUMMARY_SECONDS) == 0:
            export = ["-m", "nbconvert", "--to", "html", "--no-input", glob.escape(relative_to_root(executed))]
            process = start(export, log_path, {**environment, RUN_FOLDER_ENV: str(private)})
            process.wait(SUMMARY_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"the summary has not ended within {SUMMARY_SECONDS / 60:g} minutes and is stopped")
    finally:
        kill_run(process, private)
    if process.returncode:
        say(f"the summary failed, the records are whole; see {relative_to_root(log_path)}")
        return False
    for path in (log_path, log_path.with_suffix(".yaml")):
        path.unlink()
    say(f"summary: {relative_to_root(executed.with_suffix('.html'))}")
    return True


def run_study(study, comparisons, folder, devices, args, executor):
    """Run one study and its summary, and return whether nothing failed."""
    set_aside_records(comparisons)
    runs, to_do = sum(map(len, comparisons)), sum(len(unfinished(comparison, args)) for comparison in comparisons)
    names = ", ".join(f"{device.label} ({device.name})" for device in devices)
    say(f"{study}: {runs} runs into {relative_to_root(folder)} on {names}; {runs - to_do} finished already and skipped")
    with suppress(OSError, *MALFORMED):  # the records are what counts
        keep_code(folder, {run.notebook for comparison in comparisons for run in comparison})
    try:
        run_batch(study, comparisons, devices, args, suite_commit(), executor)
        say(table(comparisons))
        well = summarise(study, folder, args.file.parent / "summary.ipynb")
    except KeyboardInterrupt:
        kept = runs - sum(len(unfinished(comparison, args, fresh=False)) for comparison in comparisons)
        again = "the same command without --fresh" if args.fresh else "the same command"
        rest = "runs the rest" if kept < runs else "makes the summary"
        say(f"interrupted: {kept} of {runs} runs of {study} are finished and kept; {again} {rest}")
        raise
    records = [read_record(run.record_path) for comparison in comparisons for run in comparison]
    if failed := sum(record["status"] in RETRIED for record in records if record):
        logs = relative_to_root(folder / "logs")
        say(f"{failed} of {runs} runs failed; logs in {logs}; --retry-failed runs them again")
    return well and not failed and all(records)


def run_all(args):
    """Check the whole request, then run it; return the exit status."""
    studies = load_studies(args.file)
    overrides = parse_overrides(args.overrides)
    if args.list:
        return list_studies(studies, overrides, args)
    names = list(dict.fromkeys(args.studies or ["quick"]))
    unknown = [name for name in names if name not in studies]
    if unknown:
        raise UserError(f"unknown study {', '.join(unknown)}; possible are {', '.join(studies)}.")
    missing = [name for name in ("papermill", "ipykernel", "nbconvert") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed; run: pip install -r requirements.txt")
    with devices_for(args) as (executor, devices):
        return run_studies({name: studies[name] for name in names}, overrides, devices, args, executor)


def list_studies(studies, overrides, args):
    """Print the studies, their runs and rough minutes; return the exit status."""
    for name, study in studies.items():
        comparisons, _ = plan(study, args.file.parent, ROOT, overrides, on_gpu=True)
        runs, minutes = sum(map(len, comparisons)), sum(run.minutes for runs in comparisons for run in runs)
        about = f"about {round(minutes, 1):g} minutes on one GPU"
        say(f"{name:<24} {runs:>5} runs  {about}\n    {study.get('description', '')}")
    return 0


@contextmanager
def devices_for(args):
    """Yield (what executes the runs, the devices): this machine's, or those of a Ray cluster."""
    if args.ray:
        with ray_cluster.connected(args.ray, args.jobs, args.gpus != "none") as nodes:
            yield nodes, nodes.devices
    else:
        yield process, choose_devices(args.gpus, args.jobs)


def output_folder(wanted, study, several):
    """Return the output folder of a study; raise UserError where parameters and records cannot name it."""
    folder = (expanded(wanted, "--output-dir") if wanted else ROOT / "outputs" / study).resolve()
    return folder / study if wanted and several else folder


def run_studies(studies, overrides, devices, args, executor):
    """Plan all studies, then run them; return the exit status."""
    on_gpu, planned = bool(devices[0].visible), []
    for name, study in studies.items():
        folder = output_folder(args.output_dir, name, len(studies) > 1)
        comparisons, left_out = plan(study, args.file.parent, folder, overrides, on_gpu)
        if not comparisons:
            raise UserError(
                f"study {name} needs a GPU; without one run a study with a CPU form: python run_all.py quick"
            )
        check_values(comparisons)
        if not args.ray:  # else it lies on the nodes
            check_csv(comparisons)
        planned.append((name, comparisons, folder, left_out))
    if not on_gpu:
        say("NO GPU: the reduced CPU form runs; it proves that everything works and measures nothing.")
    for name, _, _, left_out in planned:
        if left_out:
            say(f"{name}: left out, for they need a GPU: {', '.join(left_out)}")
    if args.dry_run:
        for name, comparisons, folder, _ in planned:
            dry_run(name, comparisons, folder, devices, args)
        return 0
    well = []
    with ExitStack() as stack:
        for _, _, folder, _ in planned if args.fresh else ():  # none is set aside where another one refuses
            check_fresh(folder)
        for _, _, folder, _ in planned:
            stack.enter_context(held(folder, args.fresh))
        for name, comparisons, folder, _ in planned:  # every one, whatever became of the one before
            with log_in(folder):
                well.append(run_study(name, comparisons, folder, devices, args, executor))
    return 0 if all(well) else 1


def main(argv=None):
    """Run the command line and return the exit status."""
    try:
        return run_all(parse_arguments(argv))
    except UserError as mistake:
        print(f"run_all.py: {mistake}", file=sys.stderr)
        return 2
    except OSError as error:  # for example a full disk: the records are written whole or not at all
        advice = "finished runs are kept; the same command, without --fresh, runs the rest"
        print(f"run_all.py: stopped: {error}; {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def interrupt(number, frame):
    """Treat a signal that ends a batch like Ctrl-C, so that no kernel outlives it."""
    raise KeyboardInterrupt


def run_as_program():
    """Run the command line as the process's whole purpose: with streams that may close and signals like Ctrl-C."""
    for name in ("stdout", "stderr"):
        setattr(
            sys, name, TolerantStream(getattr(sys, name) or io.TextIOWrapper(io.BytesIO()))
        )  # None: closed from the start
    for signal_name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, signal_name, None)
        if number and signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, interrupt)
    sys.exit(main())
