"""Run studies: every run is an experiment notebook in a process of its own, spread over all GPUs.
Then the report.

Runs that differ only in precision, way and repetition form a comparison and run one after the other
on the same device. Exit status: 0 when every training ended well or for a reason worth recording
(out of memory, diverged, unsupported), 1 when something failed, 2 for a wrong request.
"""

import io
import itertools
import os
import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from ..parameters import UserError, did_you_mean, parameters_cell, printable
from ..report.files import OWN_RUNS, check_place, own_runs, sort_out
from ..report.words import NOT_TRIED
from ..store.commit import MALFORMED, ROOT, code_cells, keep_code, suite_commit
from ..store.reading import read_records
from ..store.record import read_run
from ..store.variables import OF_A_REPORT
from . import ray_tasks
from .batch import Batch, Job, jobs_of, share_of_cores
from .budget import within_limit
from .devices import Device, cards_of, choose_devices
from .execute import Circumstances, papermill, start_process
from .finished import RETRIED, set_aside_records
from .folder import REPORT_LOCK, check_fresh, held, locked, make
from .plan import Comparison, check_overrides, parameters_of, plan, trainings_in
from .status import log_in, say, shown, table
from .studies import (
    chosen_studies,
    expanded,
    load_studies,
    notebooks_for,
    parse_overrides,
    relative_to_root,
)
from .watch import end

STUDIES_FILE = ROOT / "notebooks" / "studies.yaml"
# what draws --report, because a stranger's is never run
SUMMARY = ROOT / "notebooks" / "summary.ipynb"
REPORT_SECONDS = 3600  # a report on hundreds of runs takes minutes
EXAMPLES = """examples:
  python run_all.py                        eager mode and a CUDA graph, four models, 8 minutes
  python run_all.py quick-compiled         a compiled CUDA graph besides, about a quarter of an hour
  python run_all.py quick/cifar_resnet -p model resnet50 -p batch_size 256
"""


class Parser(ArgumentParser):
    """A parser whose errors are one sentence, like all others of run_all.py."""

    def error(self, message: str) -> NoReturn:
        raise UserError(
            f"{message}; --help explains every option, and -p NAME VALUE sets a parameter."
        )


def parse_arguments(argv: Sequence[str] | None) -> Namespace:
    """Return the command line as a namespace.

    Raise UserError at a wrong value; --help ends the program.
    """
    parser = Parser(
        prog="run_all.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "studies",
        nargs="*",
        metavar="STUDY[/NOTEBOOK]",
        help="default: quick, or all of a file without it",
    )
    add(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="given",
        help="set a parameter, or NOTEBOOK.NAME of one notebook; repeats N makes N repetitions, "
        "repeat K that numbered K",
    )
    add(
        "--gpus",
        default="all",
        metavar="all|none|0,1",
        help="default: all; none: a smoke test on the CPU",
    )
    add("--jobs", type=int, metavar="N", help="runs at once on the CPU (default: at most 3)")
    add(
        "--ray",
        metavar="ADDRESS",
        help="use a Ray cluster: its address, or auto: one that runs here",
    )
    add(
        "--output-dir", metavar="DIR", help="default: outputs/STUDY; with several studies DIR/STUDY"
    )
    add(
        "--timeout",
        type=float,
        default=1440,
        metavar="MINUTES",
        help="end a run that takes longer; default: a day. "
        "A run without progress for an hour is ended, too",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--retry-failed",
        action="store_const",
        dest="again",
        const="failed",
        help="run again what failed, timed out or was killed",
    )
    again.add_argument(
        "--fresh",
        action="store_const",
        dest="again",
        const="all",
        help="set the old output folder aside and run everything",
    )
    add("--list", action="store_true", help="show the studies, their trainings and rough minutes")
    add("--dry-run", action="store_true", help="show the runs in their order, and start nothing")
    add(
        "--parameters",
        metavar="NOTEBOOK",
        help="show the parameters of a notebook and their defaults",
    )
    add(
        "--report",
        nargs="+",
        metavar="FOLDER",
        help="draw one report from folders or zips of records, "
        "into --output-dir or the folder itself, and run nothing",
    )
    add(
        "--studies",
        type=Path,
        default=STUDIES_FILE,
        metavar="FILE",
        dest="file",
        help="another file of studies, such as notebooks/articles.yaml, "
        "or the study.yaml of an output folder",
    )
    args = parser.parse_intermixed_args(argv)
    if args.ray and (args.gpus not in ("all", "none") or args.jobs):
        raise UserError(
            "--ray lets Ray choose the devices; leave --jobs out, "
            "and of --gpus only none is possible."
        )
    if args.jobs is not None and not 1 <= args.jobs <= 1000:
        raise UserError(f"--jobs {args.jobs} must be a whole number from 1 to 1000.")
    if not args.timeout > 0:
        raise UserError(f"--timeout {args.timeout:g} must be a number of minutes above 0.")
    return args


def run_all(args: Namespace) -> int:
    """Check the whole request, then run it. Return the exit status."""
    if args.parameters:
        say(parameters_in_words(args.parameters.removesuffix(".ipynb"), args.file.parent))
        return 0
    if args.report:
        return draw_report(args.report, args.output_dir, SUMMARY)
    known = load_studies(args.file)
    args.notebooks = notebooks_for(args.file, known)
    overrides = parse_overrides(args.given)
    studies = known if args.list and not args.studies else chosen_studies(known, args.studies)
    check_overrides(studies.values(), args.notebooks, overrides)
    if args.list:
        for name, study in studies.items():
            folder = folder_of(name, studies, args)
            runs = plan(study, args.notebooks, folder, overrides, True)[0]
            say_study(name, study, within_limit(runs, study, folder, overrides))
        return 0
    return plan_and_run(studies, overrides, args)


def plan_and_run(studies: dict, overrides: dict, args: Namespace) -> int:
    """Plan the studies for the devices here and run them, or say what would run. Return the exit
    status.
    """
    with ExitStack() as stack:
        cluster = None
        if args.ray:
            cluster = stack.enter_context(ray_tasks.connected(args.ray, args.gpus != "none"))
        devices = cluster.devices if cluster else choose_devices(args.gpus, args.jobs)
        planned = plan_studies(studies, overrides, devices, args)
        if args.dry_run:
            for name, comparisons in planned.items():
                say_to_do(name, jobs_of(comparisons, devices, args.again), comparisons)
            return 0
        hold(planned, args, stack)
        if not devices[0].visible:
            say("There is no GPU, so a smoke test runs on the CPU; its times mean nothing.")
        # Each study runs, whatever happens to another one.
        succeeded = [
            run_study(name, comparisons, devices, args, cluster)
            for name, comparisons in planned.items()
        ]
        return int(not all(succeeded))


def hold(planned: dict[str, list[Comparison]], args: Namespace, stack: ExitStack) -> None:
    """Hold the folders of all studies until the stack is left, after a look at each, because no
    folder is set aside where another one must not be.
    """
    folders = [comparisons[0][0].folder for comparisons in planned.values()]
    for folder in folders:
        check_place(folder)
        if args.again == "all":
            check_fresh(folder, args.notebooks.resolve(), args.file.resolve())
    for folder in folders:
        stack.enter_context(held(folder, fresh=args.again == "all"))


def parameters_in_words(name: str, beside: Path) -> str:
    """Return the parameters cell of a notebook, and below it the common parameters that it does
    not assign.
    """
    paths = {
        path.stem: path
        for folder in (ROOT / "notebooks", beside)
        for path in sorted(folder.glob("*.ipynb"))
    }
    if name not in paths:
        raise UserError(f"--parameters {name}: {did_you_mean(name, paths, 'the notebooks are')}")
    declared, cell = parameters_of(paths[name])
    source = next(one.source for one in code_cells(paths[name]) if one.sets_parameters)
    return f"{source}\n# And what every experiment has:\n{parameters_cell(declared, without=cell)}"


def say_study(name: str, study: dict, comparisons: list[Comparison]) -> None:
    """Say how many trainings a study has, how long they take and what they are about."""
    trainings = sum(map(trainings_in, comparisons))
    minutes = max(1, sum(run.minutes for runs in comparisons for run in runs))
    say(
        f"{name:<24} {trainings:>5} trainings  about {minutes:,.0f} minutes on one GPU\n    "
        f"{study.get('description', '')}"
    )


def say_to_do(name: str, jobs: list[Job], comparisons: list[Comparison]) -> None:
    """Say how many trainings of a study are finished, and name the other runs in their order."""
    total = sum(map(trainings_in, comparisons))
    to_do = [run for job in jobs for run in job.to_do]
    say(f"{name}: {total - trainings_in(to_do)} of {total} trainings are finished")
    for run in to_do:
        say(f"  {run.title}")


def draw_report(given: list[str], wanted: str | None, notebook: Path) -> int:
    """Draw one report from folders and zips of records, which are read where they lie, and
    return the exit status.
    """
    places = [place_of_records(word) for word in given]
    if not wanted and (len(places) > 1 or not places[0].is_dir()):
        raise UserError(
            "--report of several folders, or of a zip, needs --output-dir DIR, "
            "where the report goes."
        )
    output = expanded(wanted, "--output-dir") if wanted else places[0]
    check_place(output)
    make(output)
    return 0 if summarise(output, notebook, places) else 1


def place_of_records(word: str) -> Path:
    """Return the folder or zip that --report names.

    Raise UserError where a report could use no record of it.
    """
    place = expanded(word, "--report")
    if place == (ROOT / OWN_RUNS).resolve() and not own_runs(place):
        advice = "give one of the published results, such as outputs/main/quick-h200"
        raise UserError(f"--report {word} holds no runs of your own; {advice}.")
    records, others = read_records(place)
    used, left_out = sort_out(records)
    if not used:
        reason = next(
            map(" ".join, [*left_out, *others]), "give a folder that run_all.py has written"
        )
        raise UserError(f"--report {word} holds no records that can be used; {reason}.")
    return place


def plan_studies(
    studies: dict, overrides: dict, devices: list[Device], args: Namespace
) -> dict[str, list[Comparison]]:
    """Return the runs of all studies. Raise UserError at the first study that cannot run."""
    planned = {}
    on_gpu = bool(devices[0].visible)
    cards = cards_of(devices)
    if cards.lacking:
        say(NOT_TRIED)
    for name, study in studies.items():
        folder = folder_of(name, studies, args)
        runs, left_out = plan(study, args.notebooks, folder, overrides, on_gpu, cards)
        if not runs:
            raise UserError(
                f"study {name} needs a GPU; without one, run the smoke test: "
                "python run_all.py quick"
            )
        if left_out:
            say(f"{name}: left out because they need a GPU: {', '.join(left_out)}")
        planned[name] = within_limit(runs, study, folder, overrides)
        if not args.ray:  # with Ray the files lie on the nodes
            check_csv(planned[name])
    return planned


def folder_of(name: str, studies: dict, args: Namespace) -> Path:
    """Return where the results of one of several studies go."""
    base = expanded(args.output_dir or str(ROOT / OWN_RUNS), "--output-dir")
    return base if args.output_dir and len(studies) == 1 else base / name


def check_csv(comparisons: list[Comparison]) -> None:
    """Raise UserError where the CSV of a run is no file on this machine."""
    for run, *_ in comparisons:
        csv = run.parameters.get("csv_path")
        if csv and not os.path.isfile(ROOT / csv):
            raise UserError(f"csv_path {csv} is no file here; give the CSV that names your images.")


def run_study(
    name: str,
    comparisons: list[Comparison],
    devices: list[Device],
    args: Namespace,
    cluster: ray_tasks.Cluster | None,
) -> bool:
    """Run one study and draw its report. Return whether nothing failed."""
    folder = comparisons[0][0].folder
    total = sum(map(trainings_in, comparisons))
    shared = Circumstances(suite_commit(), 60 * args.timeout, share_of_cores(len(devices)))
    with log_in(folder):
        set_aside_records(comparisons)
        jobs = jobs_of(comparisons, devices, args.again)
        kept = total - sum(trainings_in(job.to_do) for job in jobs)
        where = f"{shown(folder)} on {', '.join(device.label for device in devices)}"
        say(f"{name}: {total} trainings into {where}; {kept} are finished already and are skipped")
        with suppress(OSError, *MALFORMED):  # the records are what counts
            keep_code(folder, {run.notebook for runs in comparisons for run in runs})
        if cluster:
            cluster.make_all(jobs, shared)
        elif jobs:
            Batch(jobs, devices, shared).make_all()
        with suppress(UserError, *MALFORMED):  # where no record can be used
            say(table(folder))
        beside = args.notebooks / SUMMARY.name  # else the clone's draws the report
        report_drawn = summarise(folder, beside if beside.exists() else SUMMARY)
        return all_went_well(comparisons) and report_drawn


def all_went_well(comparisons: list[Comparison]) -> bool:
    """Return whether each training has a record of a result, and say how many have none."""
    records = [
        read_run(path)
        for run in itertools.chain(*comparisons)
        for path in run.record_paths.values()
    ]
    if missing := records.count(None):
        say(f"{missing} of {len(records)} trainings have not run; the same command runs them")
    if failed := sum(record["status"] in RETRIED for record in records if record):
        logs = shown(comparisons[0][0].folder / "logs")
        say(
            f"{failed} of {len(records)} trainings failed, as {logs} tells; "
            "--retry-failed runs them again"
        )
    return not missing and not failed


def summarise(folder: Path, notebook: Path, places: Sequence[Path] = ()) -> bool:
    """Execute the summary notebook into the folder and write its page. Return whether that went
    well.

    Its records lie in `places`, by default in the folder itself.
    """
    output = relative_to_root(folder)
    records = [*map(relative_to_root, places)] or output
    try:
        with locked(folder, REPORT_LOCK, REPORT_SECONDS):
            return draw(folder, notebook, {"records_dir": records, "output_dir": output})
    except UserError as error:  # after the runs it must not end the next study
        say(f"No report was drawn: {error}")
        return False


def draw(folder: Path, notebook: Path, parameters: dict) -> bool:
    """Replace the report of a folder by a new one. Return whether that went well."""
    executed = folder / "summary.ipynb"
    page = folder / "summary.html"
    log = folder / "logs" / "summary.log"
    check_place(folder)
    for path in (executed, page, log):
        path.unlink(missing_ok=True)
    process = start_process(
        [*papermill(notebook, executed, parameters), "--page", str(executed)],
        folder,
        log,
        OF_A_REPORT,
    )
    exit_status = None
    try:
        with suppress(psutil.TimeoutExpired):
            exit_status = process.wait(REPORT_SECONDS)
    finally:
        end([process])
    if exit_status != 0 or not page.is_file():
        say(
            f"Could not draw the report; your records are safe, and {shown(log)} says what happened"
        )
        return False
    log.unlink()
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
        advice = (
            "records that are there still count; the same command, without --fresh, runs the rest"
        )
        print(printable(f"run_all.py: stopped: {error}; {advice}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say(
            "interrupted: what is finished is kept; the same command, without --fresh, "
            "runs the rest"
        )
        return 1


def run_as_program() -> None:
    """Run the command line and exit. SIGTERM and SIGHUP act like Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may lack a letter
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    sys.exit(main())
