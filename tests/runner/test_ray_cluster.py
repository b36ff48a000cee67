"""Runs on a Ray cluster of two nodes, which are both this machine. Its two GPUs are made up."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import types
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from tiny_suite import (
    begun,
    call,
    command,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    wait_for,
    write_suite,
)

from mixed_precision_study.measure.commit import packed_package

ray = pytest.importorskip("ray", reason="Ray is optional: pip install ray")
pytest.importorskip("ray.cluster_utils")

WAITING = [
    {**entry("wait", seed=seed), "parameters": {"precisions": ["fp32"], "mode": "wait", "seed": seed}}
    for seed in range(3)
]
STUDIES = {"ends": [entry(precisions=["fp32", "tf32"]), entry("fail")], "wait": WAITING, "two": WAITING[:2]}
NODE = {"object_store_memory": 80 * 2**20}
# A node of Ray aborts where its agent takes more than 15 s to import Ray. Most of that is a grammar, which jsonschema
# builds where rfc3987_syntax is installed (with jupyter), and nobody here needs. Two other processes are left out, too.
LEAN = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
MADE_UP = {
    "rfc3987_syntax": "raise ImportError",
    "pynvml": """
import types
NVMLError, nvmlMemory_v2 = OSError, 2
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = int
nvmlDeviceGetHandleByUUID = lambda uuid: int(uuid[-1:])
nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
nvmlDeviceGetName = lambda handle: "Made-up"
nvmlDeviceGetMemoryInfo = lambda handle, version=None: types.SimpleNamespace(used=0, total=2**33)
""",
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("cluster"), STUDIES)


@pytest.fixture(scope="module")
def cluster():
    """(a cluster whose head has both GPUs, its other node, the folder of what they write beside their data)."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="r") as name:
        folder = Path(name)  # its path is short, because those of sockets must be
        for module, text in MADE_UP.items():
            (folder / f"{module}.py").write_text(text)
        settings = {"AUTH_MODE": "token", "AUTH_TOKEN": secrets.token_hex(), "TMPDIR": name, "USAGE_STATS_ENABLED": "0"}
        settings |= {"health_check_period_ms": "1000", "health_check_failure_threshold": "2"}
        for setting, text in settings.items():
            patch.setenv(f"RAY_{setting}", text)
        for setting, text in {"PYTHONPATH": name, "TMPDIR": name, "MIXED_PRECISION_DATA": f"{name}/data"}.items():
            patch.setenv(setting, text)
        (folder / "data").mkdir()
        (folder / "ray").mkdir()
        ray._raylet.Config.initialize("")  # this process has read the settings before
        head = {**NODE, **LEAN, "num_cpus": 2, "num_gpus": 2, "temp_dir": f"{name}/t"}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster, cluster.add_node(**NODE, include_log_monitor=False, num_cpus=1, num_gpus=0), folder
        finally:
            cluster.shutdown()
    ray._raylet.Config.initialize("")


@contextlib.contextmanager
def waiting(suite, study, cluster, runs, *words):
    """Start a study whose runs wait, and yield its process when so many of them have begun. None of them is left."""
    there, _, folder = cluster
    for path in (folder / "data").iterdir():
        path.unlink()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = command(suite, study, "--ray", there.address, "-p", "data_dir", folder / "none", *words)
    with subprocess.Popen(words, **pipes) as runner:
        try:
            wait_for(lambda: len(begun(folder / "data")) == runs or runner.poll() is not None, 120)
            yield runner
            assert not survivors(study)
            assert not list(folder.glob("ray-*"))
        finally:
            runner.kill()


def test_code_that_travels_is_complete(tmp_path):
    """A process that finds no other copy of the package imports what a node does, and finds the kernel's files."""
    (tmp_path / "code.zip").write_bytes(packed_package())
    subprocess.run([sys.executable, "-m", "zipfile", "-e", "code.zip", "code"], cwd=tmp_path, check=True)
    code = f"import sys; sys.path[:0] = [{str(tmp_path / 'code')!r}]\n"
    code += "from mixed_precision_study.runner import execute, ray_tasks; print(*execute.KERNELSPECS.rglob('*.json'))"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/code/mixed_precision_study/runner/")


def test_records_are_those_of_the_local_path(suite, tmp_path, cluster):
    there, here = tmp_path / "ray", tmp_path / "local"
    assert call(suite, "ends", "--output-dir", there, "--ray", cluster[0].address).returncode == 1
    assert call(suite, "ends", "--output-dir", here).returncode == 1
    assert [record["status"] for record in read_records(there)] == ["failed", "ok", "ok"]
    for record, other in zip(read_records(there), read_records(here), strict=True):
        assert list(record) == list(other)
        different = {name for name in record if record[name] != other[name]}
        assert different <= {"started_at", "finished_at", "output_dir"}
        assert record["output_dir"] == str(there)
    failed = records_of(there)["fail"]["run_id"]
    assert {path.name for path in here.glob("*.ipynb")} == {path.name for path in there.glob("*.ipynb")}
    assert (there / "logs" / f"{failed}.log").stat().st_size
    assert not list(cluster[2].glob("ray-*"))


def test_each_repetition_has_a_gpu_of_its_own_and_the_data_of_its_node(suite, tmp_path, cluster):
    with waiting(suite, "two", cluster, 2, "--gpus", "all", "--output-dir", tmp_path) as runner:  # both at once
        (cluster[2] / "data" / "go").touch()
        said, _ = runner.communicate(timeout=120)
    assert runner.returncode == 0, said
    records = read_records(tmp_path)
    assert {record["gpu_uuid"] for record in records} == {"GPU-0", "GPU-1"}
    assert {record["data_dir"] for record in records} == {str(cluster[2] / "none")}  # as it was asked for


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_study_leaves_no_process_on_the_nodes(suite, tmp_path, cluster, number):
    with waiting(suite, "wait", cluster, 3, "--output-dir", tmp_path) as runner:
        runner.send_signal(number)
        said, _ = runner.communicate(timeout=60)
    assert runner.returncode == 1, said
    assert not read_records(tmp_path)


@pytest.fixture
def dashboard():
    """The address of a page."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_cluster_that_cannot_be_used_is_one_sentence(suite, tmp_path, cluster, dashboard, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # without a token
    address, token = cluster[0].address, os.environ.pop("RAY_AUTH_TOKEN")
    cases = [("127.0.0.1:1", token), ("nowhere", token), (dashboard, token), (address, "0" * 64), (address, None)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = []
    try:
        for number, (place, given) in enumerate(cases):
            environment = os.environ | ({"RAY_AUTH_TOKEN": given} if given else {})
            words = command(suite, "ends", "--output-dir", tmp_path / str(number), "--ray", place)
            started.append(subprocess.Popen(words, env=environment, **pipes))
    finally:
        os.environ["RAY_AUTH_TOKEN"] = token
    for number, ((place, _), process) in enumerate(zip(cases, started, strict=True)):
        _, said = process.communicate(timeout=120)  # 15 s where nobody else wants the cores
        assert process.returncode == 2, said
        assert said.count("\n") == 1 and f"--ray {place} " in said
        assert not (tmp_path / str(number)).exists()


def test_open_cluster_is_refused(suite, tmp_path, monkeypatch, capsys):
    """Ray is replaced, so that its task looks at this process, in which no token is asked for."""
    monkeypatch.setattr(ray, "init", lambda *words, **options: None)
    monkeypatch.setattr(ray, "remote", lambda **options: lambda task: types.SimpleNamespace(remote=task))
    monkeypatch.setattr(ray, "get", lambda answer: answer)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray._raylet.Config.initialize("")
    assert main(suite, "ends", "--output-dir", tmp_path / "out", "--ray", "auto") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_dead_worker_and_dead_node_cost_only_their_repetitions(suite, tmp_path, cluster):
    """The last test of the cluster, because a node is gone after it."""
    there, other, folder = cluster
    words = ("--output-dir", tmp_path, "-p", "data_dir", folder / "none")
    with waiting(suite, "wait", cluster, 3, *words) as runner:
        raylet = there.head_node.all_processes["raylet"][0].process.pid
        worker = next(process for process in psutil.Process(raylet).children() if kernels_of(process))
        worker.kill()
        there.remove_node(other, allow_graceful=False)
        wait_for(lambda: len([one for one in read_records(tmp_path) if one["status"] == "killed"]) == 2, 120)
        (folder / "data" / "go").touch()
        said, _ = runner.communicate(timeout=120)
        wait_for(lambda: not survivors("wait"), 10)
        for path in folder.glob("ray-*"):  # what a killed worker leaves
            subprocess.run(["rm", "-r", path], check=True)
    assert runner.returncode == 1, said
    assert sorted(record["status"] for record in read_records(tmp_path)) == ["killed", "killed", "ok"]
    done = call(suite, "wait", "--ray", there.address, "--retry-failed", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in read_records(tmp_path)] == ["ok"] * 3


def kernels_of(process):
    """Return the notebooks' kernels below a process."""
    return [one for one in process.children(recursive=True) if "ipykernel_launcher" in " ".join(one.cmdline())]
