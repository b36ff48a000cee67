"""Run studies: every run is an experiment notebook in a process of its own, spread over all GPUs. Then the summary.

A run is one notebook with one set of parameters, one precision and one repetition. Runs that differ only in precision
and repetition form a comparison and run one after the other on the same device. Exit status: 0 when every run ended
well or for a reason worth recording (out of memory, diverged, unsupported), 1 when something failed, 2 for a wrong
request.
"""

import glob
import importlib.util
import io
import math
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..analysis.conditions import said_of_made_up
from ..commit import suite_commit
from ..errors import UserError, printable
from ..parameters import EXPERIMENTS, did_you_mean
from ..record import read_records
from . import estimates, process, ray_cluster
from .devices import Device, choose_devices
from .notebook_file import MALFORMED, keep_code
from .output_folder import check_fresh, held, make
from .paths import ROOT, check_given, check_writable, expanded, relative_to_root, shown
from .plan import SEVERAL, Comparison, Run, check_overrides, check_paths, check_values, plan
from .process import RETRIED, RUN_FOLDER_ENV, child_environment, kill_run, read_record, start, start_notebook
from .scheduler import jobs_of, processes_of, run_comparisons, set_aside_records, take_job, unfinished
from .status import TolerantStream, log_in, say, table
from .studies import PATHS, chosen_studies, load_studies, notebooks_of, parse_overrides

STUDIES_FILE = ROOT / "notebooks" / "studies.yaml"
DESCRIPTION = "Run studies: every run is an experiment notebook in a process of its own, spread over all GPUs."
TEMPLATES = Path(__file__).resolve().parents[1] / "report" / "template"  # of the page
FEWEST_FORKED = 3  # runs for which a process that forks their kernels is worth its start
SUMMARY_SECONDS = 3600  # a summary of hundreds of runs takes minutes


class PlannedStudy(NamedTuple):
    """A study, its runs, and where they go."""

    name: str
    comparisons: list[Comparison]
    folder: Path
    left_out: list[str]  # notebooks that need a GPU


class Parser(ArgumentParser):
    """A parser whose errors are one sentence, like all others of run_all.py."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with argparse's message, made clearer."""
        unknown = re.fullmatch(r"unrecognized arguments: (.*)", message)
        if unknown:
            option = next((word for word in unknown[1].split() if word.startswith("-")), unknown[1])
            name = option.strip("-").partition("=")[0].replace("-", "_")
            if any(name == parameter.name for declared in EXPERIMENTS.values() for parameter in declared):
                raise UserError(f"unknown option {option}; a parameter is set with -p, for example -p {name} VALUE.")
            options = re.findall(r"--[a-z-]+", self.format_usage())
            raise UserError(
                f"unknown option {option}; {did_you_mean(option.partition('=')[0], options, 'possible are')}"
            )
        message = message.removeprefix("argument ").replace("expected 2 arguments", "expected a name and a value")
        raise UserError(f"{message}; --help explains every option.")


def minutes(text: str) -> float:
    """Return a number of minutes for argparse."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number of minutes") from None


def whole_number(text: str) -> int:
    """Return a whole number for argparse."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no whole number") from None


def parse_arguments(argv: Sequence[str] | None) -> Namespace:
    """Return the command line as a namespace. Raise UserError at a wrong value; --help ends the program."""
    parser = Parser(prog="run_all.py", description=DESCRIPTION)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="names from studies.yaml (default: quick)")
    only = "run these notebooks of a study alone, for example --only cifar_resnet"
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="NOTEBOOK", help=only)
    parameter = (
        "set a parameter in every notebook that has it, for example -p epochs 10; NOTEBOOK.NAME: in that one alone"
    )
    pair = ("NAME", "VALUE")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=pair, dest="overrides", help=parameter)
    parser.add_argument("--list", action="store_true", help="show the studies, their runs and rough minutes")
    report = "draw one report from folders or zips of records, into --output-dir or the folder itself, and run nothing"
    parser.add_argument("--report", nargs="+", metavar="FOLDER", help=report)
    parser.add_argument("--dry-run", action="store_true", help="show the runs in order, per device, and start nothing")
    parser.add_argument("--output-dir", metavar="DIR", help="default: outputs/STUDY; with several studies DIR/STUDY")
    parser.add_argument(
        "--gpus", default="all", metavar="all|none|0,1", help="which GPUs (default: all); none: a smoke test on the CPU"
    )
    parser.add_argument("--jobs", type=whole_number, metavar="N", help="runs at once on the CPU (default: 1)")
    parser.add_argument(
        "--timeout", type=minutes, default=1440, metavar="MINUTES", help="end a run that takes longer; default: a day"
    )
    stall = "end a run after so long without a new cell or training step; default: 60, 0: never"
    parser.add_argument("--stall-minutes", type=minutes, default=60, metavar="MINUTES", help=stall)
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--fresh", action="store_true", help="set the old output folder aside and run everything")
    again.add_argument("--retry-failed", action="store_true", help="run again what failed, timed out or was killed")
    parser.add_argument("--ray", metavar="ADDRESS", help="use a Ray cluster: its address, or auto: one that runs here")
    kernels = (
        "forked: from one process that has loaded everything; fresh: each starts by itself;"
        " auto (default): forked, but from a process of its own where times get an interval"
    )
    parser.add_argument("--kernels", choices=("auto", "fresh", "forked"), default="auto", help=kernels)
    parser.add_argument("--no-progress-bar", action="store_true", help="plain lines only")
    file = "another file in the form of notebooks/studies.yaml, beside its notebooks"
    parser.add_argument("--studies", type=Path, default=STUDIES_FILE, metavar="FILE", dest="file", help=file)
    args = parser.parse_intermixed_args(argv)
    args.only = [Path(word).name.removesuffix(".ipynb") for word in args.only]
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


def run_all(args: Namespace) -> int:
    """Check the whole request, then run it. Return the exit status."""
    if args.report:
        return draw_report(args.report, args.output_dir, args.file.parent / "summary.ipynb")
    studies = load_studies(args.file)
    overrides = parse_overrides(args.overrides)
    names = list(dict.fromkeys(args.studies or ["quick"]))
    if args.list:
        names = [name for name, study in studies.items() if not args.only or {*args.only} & {*notebooks_of([study])}]
    studies = chosen_studies(studies, names or list(studies), args.only)
    notices = check_overrides(studies.values(), args.file.parent, overrides)
    if args.list:
        list_studies(studies, overrides, args)
        return 0
    check_packages()
    check_folders(list(studies), overrides, args)
    with devices_for(args) as (executor, devices):
        on_gpu = bool(devices[0].visible)
        planned = plan_studies(studies, overrides, on_gpu, args)
        for notice in notices:
            say(notice)
        if not args.dry_run:
            return run_studies(planned, devices, args, executor)
        for study in planned:
            dry_run(study, devices, args)
        return 0


def draw_report(given: list[str], wanted: str | None, notebook: Path) -> int:
    """Draw one report from folders and zips of records, which are read where they lie, and return the exit status."""
    check_packages()
    places = [expanded(word, "--report") for word in given]
    for place, word in zip(places, given, strict=True):
        if not place.exists():
            raise UserError(f"--report {word}: there is no such folder.")
        if not read_records(place)[0]:
            raise UserError(f"--report {word} holds no records; give a folder that run_all.py has written.")
    if not wanted and (len(places) > 1 or not places[0].is_dir()):
        raise UserError("--report of several folders, or of a zip, needs --output-dir DIR, where the report goes.")
    output = expanded(wanted, "--output-dir") if wanted else places[0]
    make(output)
    apart = [place for place in dict.fromkeys(places) if not any(above in places for above in place.parents)]
    drawn = summarise("report", output, notebook, apart)
    with suppress(OSError):  # other files may be in it
        (output / "logs").rmdir()
    return 0 if drawn else 1


def check_packages() -> None:
    """Raise UserError where a package that executes notebooks is missing."""
    missing = [name for name in ("papermill", "ipykernel", "nbconvert") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed; run: pip install -r requirements.txt")


def check_folders(studies: list[str], overrides: dict, args: Namespace) -> None:
    """Raise UserError at a folder or file that cannot be used, before anything slow such as loading PyTorch."""
    if not args.dry_run:
        for study in studies:
            check_writable(output_folder(args.output_dir, study, len(studies) > 1))
    for name, (path, _) in overrides.items():
        parameter = name.rpartition(".")[2]
        if path and parameter in PATHS and not args.ray:  # with Ray it lies on the nodes
            check_given(parameter, path)


def list_studies(studies: dict[str, dict], overrides: dict, args: Namespace) -> None:
    """Print the studies, their runs and rough minutes."""
    for name, study in studies.items():
        comparisons, _ = plan(study, args.file.parent, ROOT, overrides, on_gpu=True)
        runs = [run for comparison in comparisons for run in comparison]
        about = f"about {round(sum(run.minutes for run in runs), 1):g} minutes on one GPU"
        say(f"{name:<24} {len(runs):>5} runs  {about}\n    {study.get('description', '')}")


@contextmanager
def devices_for(args: Namespace) -> Iterator[tuple[Any, list[Device]]]:
    """Yield (the executor of the runs, the devices): of this machine, or of a Ray cluster."""
    if args.ray:
        with ray_cluster.connected(args.ray, args.jobs, args.gpus != "none") as cluster:
            yield cluster, cluster.devices
    else:
        devices = choose_devices(args.gpus, args.jobs)
        process.share_cores(len(devices))
        yield process, devices


def plan_studies(studies: dict[str, dict], overrides: dict, on_gpu: bool, args: Namespace) -> list[PlannedStudy]:
    """Return the runs of all studies. Raise UserError at the first that cannot run."""
    planned = []
    for name, study in studies.items():
        folder = output_folder(args.output_dir, name, len(studies) > 1)
        comparisons, left_out = plan(study, args.file.parent, folder, overrides, on_gpu)
        if not comparisons:
            advice = "without one, run the smoke test: python run_all.py quick"
            raise UserError(f"study {name} needs a GPU; {advice}")
        if not args.ray:
            check_paths(comparisons)
        check_values(comparisons, overrides)
        planned.append(PlannedStudy(name, comparisons, folder, left_out))
    if not on_gpu:
        say("NO GPU: a smoke test runs on the CPU; its timings mean nothing.")
    for name, _, _, left_out in planned:
        if left_out:
            say(f"{name}: left out because they need a GPU: {', '.join(left_out)}")
    return planned


def output_folder(wanted: str | None, study: str, several: bool) -> Path:
    """Return the output folder of a study. Raise UserError where it cannot be a parameter or in a record."""
    if not wanted:
        return (ROOT / "outputs" / study).resolve()
    folder = expanded(wanted, "--output-dir").resolve()
    return folder / study if several else folder


def dry_run(study: PlannedStudy, devices: list[Device], args: Namespace) -> None:
    """Print the runs in order per device, as if each took its expected time."""
    seconds = estimates.read_seconds(study.folder)
    expected = estimates.estimator([run for runs in study.comparisons for run in runs], seconds)
    waiting = jobs_of(study.comparisons, devices, args, seconds)
    lines: dict[Device, list[str]] = {device: [] for device in devices}
    ends = dict.fromkeys(devices, 0.0)
    while waiting:
        for device in sorted(devices, key=lambda device: ends[device]):
            if job := take_job(waiting, device):
                finished = [run for run in job.comparison if run not in job.to_do]
                lines[device] += [f"{run.run_id}{'  (finished)' if run in finished else ''}" for run in job.comparison]
                ends[device] += sum(map(expected, job.to_do))
                break
    for device in devices:
        say(f"{study.name} on {device.label} ({device.name}):")
        for line in lines[device]:
            say(f"  {line}")


def run_studies(planned: list[PlannedStudy], devices: list[Device], args: Namespace, executor: Any) -> int:
    """Run the studies one after the other, whatever happens to one of them. Return the exit status."""
    succeeded = []
    with ExitStack() as stack:
        if args.fresh:  # no folder is set aside where another one must not be
            for study in planned:
                check_fresh(study.folder)
        for study in planned:
            stack.enter_context(held(study.folder, args.fresh))
        for study in planned:
            with log_in(study.folder):
                succeeded.append(run_study(study, devices, args, executor))
    return 0 if all(succeeded) else 1


def forked_runs(study: PlannedStudy, args: Namespace) -> tuple[list[Run], list[Run]]:
    """Return the runs whose kernels come from one process that has loaded everything, and those with one each.

    By default the runs whose times get no interval share a process. The processes behind an interval have nothing in
    common but the host: each is forked from a process of its own.
    """
    if args.ray or args.kernels == "fresh" or sys.platform != "linux":
        return [], []
    shared = []
    alone = []
    for comparison in study.comparisons:
        for run in unfinished(comparison, args.fresh, args.retry_failed):
            no_interval = run.parameters.get("purpose") == "explain" or processes_of(run, comparison) < SEVERAL
            if run.notebook.stem not in EXPERIMENTS:
                continue
            if args.kernels == "forked" or no_interval:
                shared.append(run)
            else:
                alone.append(run)
    return shared if len(shared) >= FEWEST_FORKED else [], alone


def run_study(study: PlannedStudy, devices: list[Device], args: Namespace, executor: Any) -> bool:
    """Run one study and its summary. Return whether nothing failed."""
    name, comparisons, folder, _ = study
    runs = [run for comparison in comparisons for run in comparison]
    set_aside_records(comparisons, devices, args.retry_failed)
    finished = len(runs) - len(unfinished(runs, args.fresh, args.retry_failed))
    on_devices = ", ".join(f"{device.label} ({device.name})" for device in devices)
    where = f"{len(runs)} runs into {shown(folder)} on {on_devices}"
    say(f"{name}: {where}; {finished} finished already and skipped")
    with suppress(OSError, *MALFORMED):  # the records are what counts
        keep_code(folder, {run.notebook for run in runs})
    try:
        with process.forked_kernels(name, folder, *forked_runs(study, args), len(devices)):
            run_comparisons(name, comparisons, devices, args, suite_commit(), executor)
        say(table(comparisons))
        summary_made = summarise(name, folder, args.file.parent / "summary.ipynb")
    except KeyboardInterrupt:
        kept = len(runs) - len(unfinished(runs, retry_failed=args.retry_failed))
        again = "the same command without --fresh" if args.fresh else "the same command"
        rest = "runs the rest" if kept < len(runs) else "makes the summary"
        say(f"interrupted: {kept} of {len(runs)} runs of {name} are finished and kept; {again} {rest}")
        raise
    records = [read_record(run.record_path) for run in runs]
    if made_up := said_of_made_up([record for record in records if record]):
        say(f"CAUTION: {made_up}")
    if failed := sum(record["status"] in RETRIED for record in records if record):
        logs = shown(folder / "logs")
        say(f"{failed} of {len(runs)} runs failed; logs in {logs}; --retry-failed runs them again")
    return summary_made and not failed and all(records)


def summarise(study: str, folder: Path, notebook: Path, places: Sequence[Path] = ()) -> bool:
    """Execute the summary notebook into the folder and export it as HTML. Return whether that went well.

    Its records lie in `places`, by default in the folder itself.
    """
    if not notebook.exists():
        say(f"there is no {notebook.name} beside the studies file, so no summary was made")
        return True
    executed = folder / "summary.ipynb"
    page = folder / "summary.html"
    log_path = folder / "logs" / "summary.log"
    environment = child_environment(study, folder)
    parameters: dict = {"records_dir": relative_to_root(folder)}
    if places and places != [folder]:
        parameters = {"records_dir": [*map(relative_to_root, places)], "output_dir": relative_to_root(folder)}
    try:
        process, private = start_notebook(notebook, executed, parameters, log_path, environment)
    except (IsADirectoryError, PermissionError) as error:  # a folder in its place
        say(f"the summary failed, the records are whole: {error}")
        return False
    try:
        if process.wait(SUMMARY_SECONDS) == 0:
            with suppress(OSError):
                page.unlink(missing_ok=True)
            export = [
                "-m",
                "nbconvert",
                "--to",
                "html",
                "--template",
                "study",
                f"--TemplateExporter.extra_template_basedirs={TEMPLATES}",
            ]
            export += ["--output-dir", str(folder)]
            export.append(glob.escape(str(executed)))  # the whole path: a relative one may begin with a dash
            process = start(export, log_path, {**environment, RUN_FOLDER_ENV: str(private)})
            process.wait(SUMMARY_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"the summary has not ended within {SUMMARY_SECONDS / 60:g} minutes and is stopped")
    finally:
        kill_run(process, private)
    if process.returncode or not page.is_file():
        say(f"the summary failed, the records are whole; see {shown(log_path)}")
        return False
    for path in (log_path, log_path.with_suffix(".yaml")):
        path.unlink()
    say(f"report, to open in a browser: {shown(page)}")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    try:
        return run_all(parse_arguments(argv))
    except UserError as error:
        print(printable(f"run_all.py: {error}"), file=sys.stderr)
        return 2
    except OSError as error:  # for example a full disk
        advice = "records that are there still count; the same command, without --fresh, runs the rest"
        print(printable(f"run_all.py: stopped: {error}; {advice}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def interrupt(number: int, frame: Any) -> None:
    """Treat a signal that ends this process like Ctrl-C, so that no kernel outlives it."""
    raise KeyboardInterrupt


def run_as_program() -> None:
    """Run the command line and exit. Output streams may close, and SIGTERM and SIGHUP act like Ctrl-C."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or io.TextIOWrapper(io.BytesIO())  # None: closed from the start
        setattr(sys, name, TolerantStream(stream))
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, interrupt)
    sys.exit(main())
