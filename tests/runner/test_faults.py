"""What goes wrong in a long study, each of it really done; docs/reliability.md has the table.

After each: no finished record is lost, none is false, the rest of the study is done, and the same command completes
exactly what is missing.
"""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from mixed_precision_study.runner.notebook_file import hash_of
from mixed_precision_study.runner.scheduler import GRACE_SECONDS
from tiny_suite import (
    ACT,
    AFTER,
    ON_CPU,
    PARAMETERS,
    ROOT,
    START,
    WRITE,
    begun,
    call,
    command,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    wait_for,
    write_notebook,
    write_suite,
)

from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner import scheduler, status
from mixed_precision_study.runner.plan import plan

STUDIES = {
    "wait": [entry("wait", seed=seed) for seed in range(3)],
    "full": [entry(mode) for mode in ("ok", "fill", "late")],
    "nearly": [entry("nearly")],
    "changed": [{**entry(), "notebook": name} for name in ("broken", "edited", "tiny")],
}
ENDS = {  # {mode: (status, pattern of the reason)}
    "hang": ("timeout", r"stopped after 0\.\d+ minutes \(--timeout\)"),
    "memory": ("oom", r"RuntimeError: .*can't allocate memory"),
    "nan": ("diverged", "the training loss is not finite after 1 steps"),
    "kill": ("killed", "the kernel died: ended by SIGKILL"),
    "kill_papermill": ("killed", "papermill was ended by SIGKILL"),
    "download": ("failed", "OSError: train.txt came with a wrong checksum"),
    "fail": ("failed", "ValueError: no such layer"),
    "stop": ("failed", "model is 'x'; possible are tiny and small."),
    "silent": ("failed", "the notebook ended without writing a record"),
    "ok": ("ok", "None"),
}
STUDIES["ends"] = [entry(mode) for mode in ENDS]
STUDIES["late"] = [entry("hang")]


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("faults"), STUDIES)


def whole(folder):
    """Return {seed: record}, having made sure that every file there can be read and no temporary one is left."""
    for path in folder.glob("*.ipynb"):
        nbformat.read(path, 4)
    assert not [*folder.rglob("*.tmp"), *folder.rglob(run_process.PRIVATE_FOLDERS_FILE)]
    return {record["seed"]: record for record in read_records(folder)}


def write_times(folder):
    """Return {name of a record: when it was last written}."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("tiny-*.json")}


@contextlib.contextmanager
def started(suite, tmp_path, *words, **options):
    """Start the study `wait` and yield (process, output folder) when two of its runs have begun."""
    output = tmp_path / "out"
    words = command(suite, "wait", "--output-dir", output, "--jobs", 2, "-p", "data_dir", tmp_path, *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **{**pipes, **options}) as runner:
        try:
            wait_for(lambda: len(begun(tmp_path)) == 2)
            yield runner, output
        finally:
            runner.kill()


def completed(suite, tmp_path, output, missing):
    """Let the runs end, give the same command again, and check that exactly the `missing` ones were done."""
    data = tmp_path / "second"  # where leftovers of the first start do not look
    data.mkdir()
    (data / "go").touch()
    before = write_times(output)
    assert len(before) == 3 - missing
    done = call(suite, "wait", "--output-dir", output, "--jobs", 2, "-p", "data_dir", data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{3 - missing} finished already and skipped" in done.stdout
    assert f"[{missing}/{missing}]" in done.stdout
    assert before.items() <= write_times(output).items()
    assert [record["status"] for record in whole(output).values()] == ["ok"] * 3
    return done


@pytest.fixture(scope="module")
def ends(suite, tmp_path_factory):
    """A study whose runs die, run out of memory and fail side by side; one run before them took too long."""
    data = tmp_path_factory.mktemp("data")
    (data / "train.txt").write_text("a file that was cut off on the w")
    output = suite / "ends"
    words = ("--output-dir", output, "-p", "data_dir", data)
    assert call(suite, "late", *words, "--timeout", 0.05).returncode == 1  # the others have all the time they need
    return call(suite, "ends", *words, "--jobs", 3), output, data


@pytest.mark.parametrize("mode", ENDS)
def test_each_end_is_told_from_the_others(ends, mode):
    done, output, data = ends
    record = records_of(output)[mode]
    status, reason = ENDS[mode]
    assert record["status"] == status
    assert re.match(reason, str(record["reason"])), record["reason"]
    assert len(record["code_hash"]) == 12
    assert (output / "logs" / f"{record['run_id']}.log").exists() == (mode != "ok")
    assert done.returncode == 1
    assert not survivors("ends")
    assert not list((data / "wikitext-2").iterdir())  # nothing of the corrupt download is kept
    if mode == "nan":
        assert record["train_loss"] == [None]
    if mode in ("fail", "kill"):  # records that the runner wrote
        assert record["device_type"] == "cpu"
        assert record["started_at"] <= record["finished_at"]


def test_after_all_that_the_same_command_does_only_what_was_spoilt(suite, ends):
    _, output, data = ends
    before = write_times(output)
    paths = {record["mode"]: output / f"{record['run_id']}.json" for record in records_of(output).values()}
    paths["ok"].write_text(paths["ok"].read_text()[:700])  # truncated by hand
    paths["nan"].unlink()
    done = call(suite, "ends", "--output-dir", output, "--jobs", 2, "-p", "data_dir", data)
    assert "8 finished already and skipped" in done.stdout
    after = write_times(output)
    assert {name for name in after if after[name] != before[name]} == {paths["ok"].name, paths["nan"].name}
    statuses = {mode: record["status"] for mode, record in records_of(output).items()}
    assert statuses == {mode: status for mode, (status, _) in ENDS.items()}
    times = json.loads((output / "logs" / "batch.json").read_text())
    assert times["runs_executed"] == 2
    assert 0 < times["ideal_seconds"] <= times["makespan_seconds"]
    assert {paths["ok"].stem, paths["memory"].stem} <= set(times["run_seconds"])
    assert paths["fail"].stem not in times["run_seconds"]  # how long a failure took says nothing
    log = (output / "logs" / "batch.log").read_text()
    assert f"{paths['hang'].stem}  timeout" in log
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+  .*8 finished already", log, re.MULTILINE)


def test_killed_runner_is_resumed_at_once_and_its_leftovers_end(suite, tmp_path):
    with started(suite, tmp_path) as (runner, output):
        (tmp_path / "go-0").touch()
        wait_for(lambda: len(write_times(output)) == 1)
        wait_for(lambda: len(begun(tmp_path)) == 3)
        left = {process.pid for process in survivors("wait")}
        private = {Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in survivors("wait")}
        for process in survivors("wait"):
            process.suspend()  # so that none notices the runner's end and ends by itself
        runner.kill()
        runner.wait()
        done = completed(suite, tmp_path, output, missing=2)
    assert re.search(r"ended \d processes that an interrupted", done.stdout)
    assert not left & {process.pid for process in survivors("wait")}
    assert private
    assert not any(folder.exists() for folder in private)


def test_interrupted_once_lets_end_what_can_and_says_what_was_stopped(suite, tmp_path):
    """Ctrl-C as a terminal sends it: to the whole group of the process."""
    with started(suite, tmp_path, start_new_session=True) as (runner, output):
        began = time.monotonic()
        os.killpg(runner.pid, signal.SIGINT)
        (tmp_path / "go-0").touch()
        said, errors = runner.communicate(timeout=200)
        assert time.monotonic() - began < 60
    assert (runner.returncode, errors) == (1, "")
    assert "Ctrl-C again stops at once" in said
    assert re.search(r"stopped, and to be run again: tiny-\S+-s1-\w+$", said, re.MULTILINE)
    assert "1 of 3 runs of wait are finished and kept; the same command runs the rest" in said
    assert list(whole(output)) == [0]
    assert not survivors("wait")
    completed(suite, tmp_path, output, missing=2)


def test_interrupted_twice_stops_at_once(suite, tmp_path):
    with started(suite, tmp_path) as (runner, output):
        runner.send_signal(signal.SIGINT)
        time.sleep(1)
        began = time.monotonic()
        runner.send_signal(signal.SIGINT)
        said, errors = runner.communicate(timeout=200)
        assert time.monotonic() - began < GRACE_SECONDS - 1
    assert (runner.returncode, errors) == (1, "")
    assert "the same command runs the rest" in said
    assert whole(output) == {}
    assert not survivors("wait")


@pytest.fixture
def not_under_nohup():
    """What is started in the test gets SIGHUP even where the tests themselves run under nohup, which has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_closed_terminal_is_like_an_interrupt_and_the_log_goes_on(suite, tmp_path, not_under_nohup):
    """The terminal is the batch's own, so the system itself tells the batch that it has gone."""
    terminal, other = pty.openpty()

    def take_terminal():
        os.setsid()
        fcntl.ioctl(other, termios.TIOCSCTTY, 0)

    streams = {"stdin": other, "stdout": other, "stderr": other}
    with started(suite, tmp_path, **streams, preexec_fn=take_terminal) as (runner, output):
        os.close(other)
        os.close(terminal)
        for seed in range(2):
            (tmp_path / f"go-{seed}").touch()
        assert runner.wait(timeout=200) == 1
    assert sorted(whole(output)) == [0, 1]
    log = (output / "logs" / "batch.log").read_text()
    assert f"stopping: {scheduler.GRACE_SECONDS} s for" in log
    assert "interrupted: 2 of 3 runs of wait are finished and kept" in log


def test_stream_that_cannot_show_a_line_ends_nothing():
    kept = io.BytesIO()
    stream = status.TolerantStream(io.TextIOWrapper(kept, encoding="ascii"))
    stream.write("not \u2192 there")
    stream.flush()
    assert kept.getvalue() == rb"not \u2192 there"
    gone = Mock(**{"write.side_effect": BrokenPipeError, "flush.side_effect": OSError(5, "Input/output error")})
    status.TolerantStream(gone).write("text")
    status.TolerantStream(gone).flush()
    assert (gone.write.called, gone.flush.called) == (True, True)
    assert stream.encoding == "ascii"


def test_second_batch_on_a_folder_is_refused_naming_the_first(suite, tmp_path):
    with started(suite, tmp_path) as (runner, output):
        second = call(suite, "wait", "--output-dir", output)
        fresh = call(suite, "wait", "--output-dir", output, "--fresh")
        (tmp_path / "go").touch()
        said, _ = runner.communicate(timeout=200)
    for refused in (second, fresh):
        assert refused.returncode == 2
        assert re.fullmatch(rf"run_all.py: .* in use .*\(process {runner.pid} on \S+ since 20.*\n", refused.stderr)
    assert runner.returncode == 0, said
    assert [record["status"] for record in whole(output).values()] == ["ok"] * 3
    assert not list(tmp_path.glob("out.archived*"))


def test_batch_on_a_copy_of_a_running_output_folder_leaves_the_original_alone(suite, tmp_path):
    """The copy names the private folders of the runs that are still going on."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "go").touch()
    with started(suite, tmp_path) as (runner, output):
        private = [Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in survivors("wait")]
        copy = tmp_path / "copy"
        shutil.copytree(output, copy)
        assert (copy / "logs" / run_process.PRIVATE_FOLDERS_FILE).read_text()
        second = call(suite, "wait", "--output-dir", copy, "-p", "data_dir", data)
        assert all(folder.exists() for folder in private)
        (tmp_path / "go").touch()
        said, _ = runner.communicate(timeout=200)
    assert second.returncode == 0, second.stdout + second.stderr
    assert runner.returncode == 0, said
    for folder in (output, copy):
        assert [record["status"] for record in whole(folder).values()] == ["ok"] * 3


def test_removed_output_folder_stops_the_batch_and_is_the_reason(suite, tmp_path):
    with started(suite, tmp_path) as (runner, output):
        shutil.rmtree(output)
        (tmp_path / "go-0").touch()
        _, errors = runner.communicate(timeout=200)
    assert runner.returncode == 1
    assert re.fullmatch(rf"run_all.py: stopped: .*{output}.*\n", errors)
    assert "without a word" not in errors
    assert not survivors("wait")
    assert all(record["status"] == "ok" for record in read_records(output))  # the notebook makes its folder anew
    (tmp_path / "go").touch()
    again = call(suite, "wait", "--output-dir", output, "--jobs", 2, "-p", "data_dir", tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [record["status"] for record in whole(output).values()] == ["ok"] * 3


@pytest.mark.parametrize("blocked", ["json", "ipynb", "log", "yaml"])
def test_folder_in_the_place_of_a_file_costs_only_its_run(suite, tmp_path, blocked):
    output = tmp_path / "out"
    (tmp_path / "go").touch()
    words = ("wait", "--output-dir", output, "--jobs", 2, "-p", "data_dir", tmp_path)
    first = call(suite, *words, "--dry-run").stdout.split()
    run_id = next(word for word in first if word.startswith("tiny-"))
    folder = output / "logs" if blocked in ("log", "yaml") else output
    in_the_way = folder / f"{run_id}.{blocked}"
    in_the_way.mkdir(parents=True)
    done = call(suite, *words)
    assert done.returncode == 1
    assert re.search(rf"{run_id}  is left out .*{in_the_way}", done.stdout)
    assert [
        record["status"]
        for record in map(json.loads, (path.read_text() for path in output.glob("*.json") if path.is_file()))
    ] == ["ok"] * 2
    in_the_way.rmdir()
    again = call(suite, *words)
    assert "2 finished already" in again.stdout
    assert again.returncode == 0
    assert [record["status"] for record in whole(output).values()] == ["ok"] * 3


def test_pipe_or_link_in_the_place_of_a_file_is_neither_waited_for_nor_followed(suite, tmp_path):
    output, precious = tmp_path / "out", tmp_path / "precious"
    (tmp_path / "go").touch()
    precious.write_text("mine")
    words = ("wait", "--output-dir", output, "--jobs", 2, "-p", "data_dir", tmp_path)
    first, second, third = dict.fromkeys(re.findall(r"tiny-\S+", call(suite, *words, "--dry-run").stdout))
    (output / "logs").mkdir(parents=True)
    for path in (f"{first}.json", f"{first}.ipynb", f"logs/{first}.log"):
        os.mkfifo(output / path)
    for path in (f"{second}.json", f"{second}.ipynb", f"logs/{second}.log", f"logs/{second}.yaml"):
        (output / path).symlink_to(precious)
    (output / f"{third}.json").symlink_to("/dev/zero")
    done = call(suite, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in whole(output).values()] == ["ok"] * 3
    assert precious.read_text() == "mine"


def test_report_is_where_it_is_said_to_be(suite, tmp_path):
    """Below a folder that looks like an option, and whatever Jupyter's own settings are."""
    for name in ("studies.yaml", "tiny.ipynb"):
        shutil.copy(suite / name, tmp_path / name)
    write_notebook(tmp_path / "summary.ipynb", 'records_dir = "."', "print('a report of', records_dir)")
    settings = tmp_path / "jupyter"
    settings.mkdir()
    elsewhere = f"c.FilesWriter.build_directory = {str(tmp_path / 'elsewhere')!r}"
    (settings / "jupyter_nbconvert_config.py").write_text(elsewhere)
    output = ROOT / f"-test-{os.getpid()}"
    words = command(tmp_path, "nearly", "--output-dir", f"./{output.name}", "-p", "mode", "ok")
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(settings)}
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"report, to open in a browser: {output.name}/summary.html" in done.stdout
        assert "a report of" in (output / "summary.html").read_text()
    finally:
        shutil.rmtree(output, ignore_errors=True)


@contextlib.contextmanager
def small_disk(folder, *options):
    """Mount a small file system of its own at `folder`, where that is allowed."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(("size=160k", *options)), "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_stops_the_batch_and_loses_nothing(suite, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with small_disk(tmp_path / "disk") as disk:
        words = ("full", "--output-dir", disk / "out", "-p", "data_dir", data)
        done = call(suite, *words)
        assert done.returncode == 1
        assert re.fullmatch(r"run_all.py: stopped: .*No space left on device.*\n", done.stderr)
        assert list(records_of(disk / "out")) == ["ok"]
        kept = write_times(disk / "out")
        whole(disk / "out")
        (disk / "out" / "filler").unlink()
        (data / "mended").touch()
        again = call(suite, *words)
        assert "1 finished already and skipped" in again.stdout
        assert [record["status"] for record in records_of(disk / "out").values()] == ["ok"] * 3
        assert kept.items() <= write_times(disk / "out").items()


def test_record_that_has_room_where_the_notebook_has_none_is_not_written(suite, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        done = call(suite, "nearly", "--output-dir", disk / "out")
        assert done.returncode == 1
        assert re.fullmatch(r"run_all.py: stopped: .*No space left on device.*\n", done.stderr)
        assert not list((disk / "out").glob("*.json"))
        assert shutil.disk_usage(disk).free > 8192


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root can mount: the test above is the better one")
def test_file_that_cannot_grow_stops_the_batch_likewise(suite, tmp_path):
    """A limit on the size of files, where no file system can be mounted: the run fails, and so does its record."""
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); "
    run = "os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", limit + run, *command(suite, "full", "--output-dir", tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert re.fullmatch(r"run_all.py: stopped: .*File too large.*\n", done.stderr)
    assert whole(tmp_path / "out") == {}


def test_read_only_output_folder_is_one_sentence(suite, tmp_path):
    with small_disk(tmp_path / "disk", "ro") as disk:
        done = call(suite, "full", "--output-dir", disk)
    assert done.returncode == 2
    assert re.fullmatch(r"run_all.py: the output folder .*Read-only file system.*\n", done.stderr)


JUMP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    FILE *file = id == CLOCK_REALTIME ? fopen(getenv("CLOCK_JUMP"), "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(file);
    }
    return result;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler to set the clock for one program")
def test_clock_that_jumps_ends_no_run(suite, tmp_path):
    (tmp_path / "jump.c").write_text(JUMP)
    library, clock = tmp_path / "jump.so", tmp_path / "clock"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "jump.c", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_JUMP": str(clock)}
    with started(suite, tmp_path, "--timeout", 5, env=environment) as (runner, output):
        clock.write_text("86400")  # a day ahead
        time.sleep(1)
        (tmp_path / "go-0").touch()
        wait_for(lambda: len(write_times(output)) == 1)
        clock.write_text("-86400")  # and two days back
        time.sleep(1)
        (tmp_path / "go").touch()
        said, _ = runner.communicate(timeout=200)
    assert runner.returncode == 0, said
    records = whole(output)
    assert [record["status"] for record in records.values()] == ["ok"] * 3
    assert all(0 < float(seconds) < 600 for seconds in re.findall(r"ok  ([\d.]+) s", said))
    assert json.loads((output / "logs" / "batch.json").read_text())["makespan_seconds"] < 1200


def test_live_view_on_a_terminal_and_plain_lines_elsewhere(suite, tmp_path):
    terminal, other = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):
            while text := os.read(terminal, 4096):
                shown.append(text.decode(errors="replace"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "--jobs", 2, "-p", "data_dir", tmp_path)
    words.remove("--no-progress-bar")
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=other, text=True) as runner:
        try:
            wait_for(lambda: len(begun(tmp_path)) == 2)
            (tmp_path / "go-0").touch()
            wait_for(lambda: "end about" in "".join(shown))
            (tmp_path / "go").touch()
            said, _ = runner.communicate(timeout=200)
        finally:
            runner.kill()
    os.close(other)
    text = "".join(shown)
    assert re.search(r"cpu0  tiny fp32 b4  starting  0:\d\d", text)
    assert re.search(r"cpu1  tiny fp32 b4  cell 4/6  0:\d\d, 0:\d\d left", text)
    assert "end: known after the first run" in text
    assert re.search(r"0:\d\d left, end about \d\d:\d\d", text)
    assert "\r" not in said
    assert "begins" not in said  # the lines of the devices show it
    assert (tmp_path / "out/logs/batch.log").read_text().count("  begins\n") == 3
    assert said.count("  ok  ") == 6  # three lines as the runs end, and the table


def test_notebook_that_is_changed_while_the_batch_runs_costs_at_most_its_own_runs(suite, tmp_path, monkeypatch, capsys):
    """One is spoilt, one edited, each after the first look at it and before papermill reads it."""
    shutil.copy(suite / "studies.yaml", tmp_path)
    books = {name: tmp_path / f"{name}.ipynb" for name in ("broken", "edited", "tiny")}
    for name, path in books.items():
        write_notebook(path, PARAMETERS, START, ACT, WRITE.replace('"tiny"', f'"{name}"'))
    comparisons, _ = plan({"runs": STUDIES["changed"]}, tmp_path, tmp_path / "out", {}, on_gpu=False)
    start, edited = run_process.start_notebook, books["edited"].read_text().replace("1234.0", "5678.0")

    def changed(notebook, *words):
        text = {"broken": '{"cells": [', "edited": edited}.get(notebook.stem)
        if text and notebook.read_text() != text:
            notebook.write_text(text)
        return start(notebook, *words)

    monkeypatch.setattr(run_process, "start_notebook", changed)
    monkeypatch.setattr(run_process, "START_ATTEMPTS", 2)
    monkeypatch.setattr(scheduler, "START_WAIT_SECONDS", 0)
    assert main(tmp_path, "changed", *ON_CPU, "--output-dir", tmp_path / "out", "--jobs", 3) == 1
    said = capsys.readouterr().out
    records = read_records(tmp_path / "out")
    ends = {record["notebook"]: (record["status"], record["code_hash"]) for record in records}
    codes = {name: hash_of(books[name].read_text()) for name in ("edited", "tiny")}
    assert ends == {"broken": ("failed", run_process.UNREADABLE)} | {name: ("ok", code) for name, code in codes.items()}
    assert "the kernel did not start: OSError: the notebook was edited while its run was starting" in said
    books["edited"].write_text('{"cells": [')  # just as the next study with it begins
    scheduler.set_aside_records(comparisons)
    assert all(run.record_path.exists() for (run,) in comparisons)


def test_changed_notebook_is_run_again_and_its_old_records_are_kept_apart(suite, tmp_path):
    for name in ("studies.yaml", "tiny.ipynb"):
        shutil.copy(suite / name, tmp_path / name)
    output = tmp_path / "out"
    words = ("full", "--output-dir", output, "-p", "mode", "ok")
    assert call(tmp_path, *words).returncode == 0
    (old,) = whole(output).values()
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS + "\n# a comment here changes nothing", START, ACT, WRITE, AFTER)
    assert "1 finished already" in call(tmp_path, *words).stdout
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS, START, ACT, WRITE, AFTER + "\nextra = 1")
    assert "(finished)" not in call(tmp_path, *words, "--dry-run").stdout
    done = call(tmp_path, *words)
    aside = output / f"other_code-{old['code_hash']}"
    assert f"they are kept in {aside.relative_to(Path.cwd())}" in done.stdout  # which opens from here
    (new,) = whole(output).values()
    assert new["run_id"] == old["run_id"]
    assert new["code_hash"] != old["code_hash"]
    assert json.loads((aside / f"{old['run_id']}.json").read_text()) == old
    assert (aside / f"{old['run_id']}.ipynb").exists()
    path = output / f"{new['run_id']}.json"
    path.write_text(json.dumps({**new, "code_hash": None}))  # as in records that are older than this field
    assert "1 finished already" in call(tmp_path, *words).stdout
