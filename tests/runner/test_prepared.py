"""Kernels that are forked from one prepared process, and how they end."""

import contextlib
import gc
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import ENVIRONMENT, ROOT
from tiny_suite import ON_CPU, begun, entry, read_records, survivors, wait_for, write_suite

from mixed_precision_study.runner import cli, prepared
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.plan import Run, plan
from mixed_precision_study.runner.studies import load_studies, parse_overrides

STUDIES = {
    "alone": [entry("wait", seed=seed) for seed in range(3)],
    "forked": [entry("wait", seed=seed) for seed in range(2)],
    "ends": [entry(mode) for mode in ("kill", "kill_papermill", "hang", "ok")],
}
MAIN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from mixed_precision_study.runner import cli, prepared, process
cli.EXPERIMENTS = {**cli.EXPERIMENTS, "tiny": ()}  # as if it were one of the suite's own
cli.FEWEST_FORKED = 1
if sys.argv[1] == "alone":
    del sys.argv[1]
    process.most_at_once = lambda: 2
    cli.forked_runs = lambda study, args: ([], [run for runs in study.comparisons for run in runs])
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("prepared"), STUDIES)


@contextlib.contextmanager
def started(suite, study, output, *words, alone=False):
    """Start a study with forked kernels and yield its process, which ends with the test.

    alone: each kernel comes from a process of its own, of which two load at once.
    """
    words = ["--studies", suite / "studies.yaml", *ON_CPU, "--no-progress-bar", study, "--output-dir", output, *words]
    command = [sys.executable, "-c", MAIN, ROOT, *(["alone"] if alone else []), *words, "--kernels", "forked"]
    with subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as runner:
        try:
            yield runner
        finally:
            runner.kill()


def all_prepared_of(runner):
    """Return the prepared processes of a running study."""
    return [one for one in psutil.Process(runner.pid).children() if run_process.PREPARED_MODULE in one.cmdline()]


def prepared_of(runner):
    """Return the only prepared process of a running study."""
    (found,) = all_prepared_of(runner)
    return found


def test_kernels_are_children_of_one_prepared_process_which_ends_with_the_study(suite, tmp_path):
    with started(suite, "forked", tmp_path / "out", "-p", "data_dir", tmp_path) as runner:
        wait_for(lambda: begun(tmp_path), 200)
        forking = prepared_of(runner)
        (kernel,) = forking.children()
        assert kernel.ppid() == forking.pid
        assert forking.num_threads() <= psutil.cpu_count() + 1  # none of ours: a fork keeps one alone
        (tmp_path / "go").touch()
        assert runner.wait(timeout=200) == 0
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok", "ok"]
    assert not forking.is_running()
    assert not survivors("forked")
    assert not list((tmp_path / "out" / "logs").glob("prepared*"))


def test_kernels_behind_an_interval_come_each_from_a_process_of_its_own_of_which_several_load_at_once(suite, tmp_path):
    parents = []
    with started(suite, "alone", tmp_path / "out", "-p", "data_dir", tmp_path, alone=True) as runner:
        for number in range(3):
            wait_for(lambda: (tmp_path / f"begun-{number}-fp32").exists(), 200)  # noqa: B023
            there = all_prepared_of(runner)
            assert len(there) <= 2  # two load at once; the third and last one alone starts by itself
            kernels = [kernel for forking in there for kernel in forking.children()]
            assert len(kernels) == (1 if number < 2 else 0)
            parents += [kernel.ppid() for kernel in kernels]
            assert all(Path(one.cmdline()[3] + prepared.LOADED_SUFFIX).exists() for one in there)  # before any run
            (tmp_path / f"go-{number}").touch()
        assert runner.wait(timeout=200) == 0
    assert len(set(parents)) == 2
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok"] * 3
    assert not survivors("alone")
    assert not any(map(psutil.pid_exists, parents))
    assert not list((tmp_path / "out" / "logs").glob("prepared*"))


def test_forked_kernels_that_die_or_hang_are_told_apart_and_another_prepared_process_follows(suite, tmp_path):
    """In the mode kill_papermill a kernel kills its parent, which is here the prepared process.

    Forked from one process and each from one of its own: both at a time, because the one that hangs is waited for.
    """
    # on a busy machine a process loads for half a minute, which counts
    ways = {folder: folder.name == "alone" for folder in (tmp_path / "together", tmp_path / "alone")}
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        runners = [enter(started(suite, "ends", folder, "--timeout", 2, alone=way)) for folder, way in ways.items()]
        assert [runner.wait(timeout=600) for runner in runners] == [1, 1]
    for folder in ways:
        records = {record["mode"]: record for record in read_records(folder)}
        assert {mode: record["status"] for mode, record in records.items()} == {
            "kill": "killed",
            "kill_papermill": "killed",
            "hang": "timeout",
            "ok": "ok",
        }
        assert "SIGKILL" in records["kill"]["reason"]
    assert not survivors("ends")  # the children of those that hang have ended, too


def test_forked_kernels_end_when_the_runner_is_killed(suite, tmp_path):
    with started(suite, "forked", tmp_path / "out", "-p", "data_dir", tmp_path) as runner:
        wait_for(lambda: begun(tmp_path), 200)
        left = [*survivors("forked"), *prepared_of(runner).children()]
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        wait_for(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in left))
    assert read_records(tmp_path / "out") == []


def test_prepared_process_that_has_loaded_other_code_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    run = Run("a-run", Path("cifar_resnet.ipynb"), "fp32", {}, tmp_path, 1.0)
    other = Run("b-run", Path("mine.ipynb"), "fp32", {}, tmp_path, 1.0)
    with run_process.forked_kernels("forked", tmp_path, [run]):
        assert run_process.prepared_for(other) is None
        assert not run_process.PREPARED  # it does not load while another run is timed
        first = run_process.prepared_for(run)
        assert first.socket.exists()
        assert run_process.prepared_for(run) is first
        monkeypatch.setattr(run_process, "package_state", lambda: (("a.py", 1),))
        second = run_process.prepared_for(run)
        assert second.socket.exists()
        assert second is not first
        assert first.process.poll() is not None
    assert second.process.poll() is not None
    assert run_process.prepared_for(run) is None


def test_process_that_forks_one_kernel_only_is_never_given_to_two_runs(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(run_process, "most_at_once", lambda: 2)
    runs = [Run(name, Path("cifar_resnet.ipynb"), "fp32", {}, tmp_path, 1.0) for name in ("a", "b", "c", "d")]
    with run_process.forked_kernels("alone", tmp_path, [], runs):
        first, second = map(run_process.prepared_for, runs[:2])
        assert first.socket != second.socket
        assert first.once and second.once
        assert run_process.prepared_for(runs[0]) is None  # its second attempt starts by itself
        third = run_process.prepared_for(runs[2])
        assert third.socket not in (first.socket, second.socket)
        assert first.process.poll() is not None  # its run is over
        monkeypatch.setattr(run_process, "package_state", lambda: (("a.py", 1),))
        assert run_process.prepared_for(runs[3]) is None  # one alone is not worth it
        assert not run_process.PREPARED  # the one that was left has loaded other code
    assert not run_process.PREPARED


def test_on_several_devices_nothing_loads_once_a_run_may_be_timed_and_no_kernel_is_ended(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(run_process, "most_at_once", lambda: 2)
    runs = [Run(name, Path("cifar_resnet.ipynb"), "fp32", {}, tmp_path, 1.0) for name in ("a", "b", "c", "d")]
    with run_process.forked_kernels("alone", tmp_path, [], runs, devices=2):
        first, second = map(run_process.prepared_for, runs[:2])
        assert first is not second and first.once and second.once
        assert run_process.prepared_for(runs[2]) is None  # two more would load beside what is timed
        assert first.process.poll() is None and second.process.poll() is None  # their kernels may still run
        assert len(run_process.PREPARED) == 2
        first.process.kill()
        first.process.wait()
        assert run_process.prepared_for(runs[3]) is None
        assert [second] == run_process.PREPARED
    assert not run_process.PREPARED


@pytest.mark.parametrize("cores, gib, most", [(16, 500, 64), (4, 500, 16), (16, 5, 2), (3, 500, 0)])
def test_no_more_processes_load_at_once_than_cores_and_memory_allow(monkeypatch, cores, gib, most):
    monkeypatch.setattr(run_process.os, "cpu_count", lambda: cores)
    memory = SimpleNamespace(available=gib * 2**30)
    monkeypatch.setattr(run_process.psutil, "virtual_memory", lambda: memory)
    assert run_process.most_at_once() == most


@pytest.mark.parametrize(
    "study, repeats, kernels, shared, alone",
    [
        ("quick", 1, "auto", "all", "none"),
        ("quick", 3, "auto", "explain", "timed"),  # three processes a precision: an interval
        ("reference", 3, "auto", "explain", "timed"),
        ("reference", 3, "forked", "all", "none"),
        ("quick", 1, "fresh", "none", "none"),
    ],
)
def test_kernels_behind_an_interval_share_no_process(tmp_path, study, repeats, kernels, shared, alone):
    file = ROOT / "notebooks" / "studies.yaml"
    repeated = parse_overrides([("repeats", str(repeats))])
    comparisons, _ = plan(load_studies(file)[study], file.parent, tmp_path, repeated, True)
    planned = cli.PlannedStudy(study, comparisons, tmp_path, [])
    runs = [run for comparison in comparisons for run in comparison]
    explaining = [run for run in runs if run.parameters["purpose"] == "explain"]
    assert len(explaining) == (
        0 if repeats == 1 else len({(run.notebook, run.precision, run.parameters["execution"]) for run in runs})
    )
    timed = [run for run in runs if run not in explaining]
    expected = {"all": runs, "explain": explaining, "timed": timed, "none": []}
    found = cli.forked_runs(planned, cli.parse_arguments(["--kernels", kernels]))
    assert found == (expected[shared], expected[alone])


def test_what_the_prepared_process_has_loaded_is_kept_out_of_collections():
    gc.unfreeze()
    try:
        prepared.load()
        assert gc.get_freeze_count() > 100_000
    finally:
        gc.unfreeze()


def test_libraries_of_cuda_are_found_without_importing_torch():
    code = "import sys; from mixed_precision_study.runner import prepared; print(*prepared.libraries(), sep='\\n')"
    code += "; assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    names = {Path(line).name.split(".")[0] for line in done.stdout.split()}
    if not torch.backends.cuda.is_built():
        assert not {"libtorch_cuda", "libcudnn_ops"} & names
    else:
        assert {"libtorch_cuda", "libcudnn_ops", "libcublasLt", "libnvrtc"} <= names


def test_nothing_is_read_ahead_without_a_gpu(monkeypatch):
    monkeypatch.setattr(prepared.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(prepared, "libraries", lambda: pytest.fail("there is nothing to read them for"))
    prepared.read_ahead()


def test_every_library_is_asked_for_where_there_is_a_gpu(monkeypatch, tmp_path):
    (tmp_path / "libcudnn.so").write_bytes(b"kernels")
    asked = []
    monkeypatch.setattr(prepared.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setattr(prepared, "libraries", lambda: [tmp_path / "missing.so", tmp_path / "libcudnn.so"])
    monkeypatch.setattr(prepared.os, "posix_fadvise", lambda file, *words: asked.append(words))
    prepared.read_ahead()
    assert asked == [(0, 0, prepared.os.POSIX_FADV_WILLNEED)]
