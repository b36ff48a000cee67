"""Kernels that are forked from one prepared process, and how they end."""

import contextlib
import gc
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import ENVIRONMENT, ROOT
from tiny_suite import ON_CPU, begun, entry, read_records, survivors, wait_for, write_suite

from mixed_precision_study.runner import cli, prepared
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.plan import Run, plan
from mixed_precision_study.runner.studies import load_studies, parse_overrides

STUDIES = {
    "forked": [entry("wait", seed=seed) for seed in range(2)],
    "ends": [entry(mode) for mode in ("kill", "kill_papermill", "hang", "ok")],
}
MAIN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from mixed_precision_study.runner import cli, prepared, process
cli.EXPERIMENTS = {**cli.EXPERIMENTS, "tiny": ()}  # as if it were one of the suite's own
cli.FEWEST_FORKED = 1
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("prepared"), STUDIES)


@contextlib.contextmanager
def started(suite, study, output, *words):
    """Start a study with forked kernels and yield its process, which ends with the test."""
    words = ["--studies", suite / "studies.yaml", *ON_CPU, "--no-progress-bar", study, "--output-dir", output, *words]
    command = [sys.executable, "-c", MAIN, ROOT, *words, "--kernels", "forked"]
    with subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as runner:
        try:
            yield runner
        finally:
            runner.kill()


def prepared_of(runner):
    """Return the prepared process of a running study."""
    (found,) = [one for one in psutil.Process(runner.pid).children() if run_process.PREPARED_MODULE in one.cmdline()]
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
    assert not (tmp_path / "out" / "logs" / run_process.PREPARED_LOG).exists()


def test_forked_kernels_that_die_or_hang_are_told_apart_and_another_prepared_process_follows(suite, tmp_path):
    """In the mode kill_papermill a kernel kills its parent, which is here the prepared process."""
    with started(suite, "ends", tmp_path / "out", "--timeout", 0.5) as runner:
        assert runner.wait(timeout=400) == 1
    records = {record["mode"]: record for record in read_records(tmp_path / "out")}
    assert {mode: record["status"] for mode, record in records.items()} == {
        "kill": "killed",
        "kill_papermill": "killed",
        "hang": "timeout",
        "ok": "ok",
    }
    assert "SIGKILL" in records["kill"]["reason"]
    assert not survivors("ends")  # the child of the one that hangs has ended, too


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
        assert run_process.socket_for(other) is None
        assert not run_process.PREPARED  # it does not load while another run is timed
        assert run_process.socket_for(run).exists()
        first = run_process.PREPARED[0].process
        assert run_process.socket_for(run).exists()
        assert run_process.PREPARED[0].process is first
        monkeypatch.setattr(run_process, "package_state", lambda: (("a.py", 1),))
        assert run_process.socket_for(run).exists()
        second = run_process.PREPARED[0].process
        assert second is not first
        assert first.poll() is not None
    assert second.poll() is not None
    assert run_process.socket_for(run) is None


@pytest.mark.parametrize(
    "study, repeats, kernels, forked",
    [
        ("quick", 1, "auto", "all"),
        ("quick", 3, "auto", "explain"),  # three processes a precision: an interval
        ("reference", 3, "auto", "explain"),
        ("reference", 3, "forked", "all"),
        ("quick", 1, "fresh", "none"),
    ],
)
def test_kernels_behind_an_interval_start_by_themselves(tmp_path, study, repeats, kernels, forked):
    file = ROOT / "notebooks" / "studies.yaml"
    repeated = parse_overrides([("repeats", str(repeats))])
    comparisons, _ = plan(load_studies(file)[study], file.parent, tmp_path, repeated, True)
    planned = cli.PlannedStudy(study, comparisons, tmp_path, [])
    runs = [run for comparison in comparisons for run in comparison]
    explaining = [run for run in runs if run.parameters["purpose"] == "explain"]
    assert len(explaining) == (0 if repeats == 1 else 4 * len(comparisons))
    found = cli.forked_runs(planned, cli.parse_arguments(["--kernels", kernels]))
    assert found == {"all": runs, "explain": explaining, "none": []}[forked]


def test_what_the_prepared_process_has_loaded_is_kept_out_of_collections():
    gc.unfreeze()
    try:
        prepared.load()
        assert gc.get_freeze_count() > 100_000
    finally:
        gc.unfreeze()
