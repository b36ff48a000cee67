"""Runs on a Ray cluster of two nodes, which are both this machine. Its two GPUs are made up."""

import contextlib
import secrets
import subprocess
import tempfile
import types
from pathlib import Path

import psutil
import pytest
from tiny_suite import call, command, entry, main, read_records, survivors, wait_for, write_suite

ray = pytest.importorskip("ray", reason="Ray is optional: pip install ray")
pytest.importorskip("ray.cluster_utils")

STUDIES = {
    "ends": [entry(precisions=["fp32", "tf32"]), entry("fail")],
    "wait": [entry("wait", seed=seed) for seed in range(3)],
}
NODE = {"object_store_memory": 80 * 2**20}
# A node of Ray aborts where its agent takes more than 15 s to import Ray. Most of that is a
# grammar, which jsonschema builds where rfc3987_syntax is installed (with jupyter), and nobody here
# needs. Two other processes are left out, too.
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
    """(a cluster whose head has both GPUs, its other node, the folder of what they write beside
    their data).
    """
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="r") as name:
        folder = Path(name)  # its path is short, because those of sockets must be
        for module, text in MADE_UP.items():
            (folder / f"{module}.py").write_text(text)
        settings = {
            "AUTH_MODE": "token",
            "AUTH_TOKEN": secrets.token_hex(),
            "TMPDIR": name,
            "USAGE_STATS_ENABLED": "0",
            "health_check_period_ms": "1000",
            "health_check_failure_threshold": "2",
        }
        for setting, text in settings.items():
            patch.setenv(f"RAY_{setting}", text)
        for setting, text in {
            "PYTHONPATH": name,
            "TMPDIR": name,
            "MIXED_PRECISION_DATA": f"{name}/data",
        }.items():
            patch.setenv(setting, text)
        (folder / "data").mkdir()
        (folder / "ray").mkdir()
        ray._raylet.Config.initialize("")  # this process has read the settings before
        head = {**NODE, **LEAN, "num_cpus": 2, "num_gpus": 2, "temp_dir": f"{name}/t"}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield (
                cluster,
                cluster.add_node(**NODE, include_log_monitor=False, num_cpus=1, num_gpus=0),
                folder,
            )
        finally:
            cluster.shutdown()
    ray._raylet.Config.initialize("")


@contextlib.contextmanager
def waiting(suite, study, cluster, runs, output, *words):
    """Start a study whose runs wait, and yield its process when so many of them have begun.

    None of them is left.
    """
    there, _, folder = cluster
    for path in (folder / "data").iterdir():
        path.unlink()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = (
        "--ray",
        there.address,
        "-p",
        "data_dir",
        folder / "none",
        "--output-dir",
        output,
        *words,
    )
    with subprocess.Popen(command(suite, study, *words), **pipes) as runner:
        try:
            wait_for(
                lambda: (
                    len([*(folder / "data").glob("begun-*")]) == runs or runner.poll() is not None
                )
            )
            yield runner
            assert not survivors(folder)
            assert not list(folder.glob("ray-*"))
        finally:
            runner.kill()


def test_records_are_those_of_the_local_path(suite, tmp_path, cluster):
    there, here = tmp_path / "ray", tmp_path / "local"
    done = [call(suite, "ends", "--output-dir", there, "--ray", cluster[0].address)]
    done.append(call(suite, "ends", "--output-dir", here))
    assert [one.returncode for one in done] == [1, 1]
    records = read_records(there)
    assert sorted(record["status"] for record in records) == ["failed", "ok", "ok"]
    for record, other in zip(records, read_records(here), strict=True):
        sides = [{**one, **one["settings"], "settings": None} for one in (record, other)]
        assert (list(record), record["settings"]["output_dir"]) == (list(other), str(there))
        different = {name for name in sides[0] if sides[0][name] != sides[1][name]}
        assert different <= {"started_at", "finished_at", "output_dir"}
    for kind in ("*.ipynb", "logs/tiny*.log"):
        names = [{path.name for path in folder.glob(kind)} for folder in (here, there)]
        assert names[0] == names[1] != set()
    assert not list(cluster[2].glob("ray-*"))


def test_open_cluster_is_refused(suite, tmp_path, monkeypatch, capsys):
    """Ray is replaced, so that its task looks at this process, in which no token is asked for."""
    monkeypatch.setattr(ray, "init", lambda *words, **options: None)
    monkeypatch.setattr(
        ray, "remote", lambda **options: lambda task: types.SimpleNamespace(remote=task)
    )
    monkeypatch.setattr(ray, "get", lambda answer: answer)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray._raylet.Config.initialize("")
    assert main(suite, "ends", "--output-dir", tmp_path / "out", "--ray", "auto") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_dead_worker_and_dead_node_cost_only_their_repetitions(suite, tmp_path, cluster):
    """The last test of the cluster, because a node is gone after it."""
    there, other, folder = cluster
    with waiting(suite, "wait", cluster, 3, tmp_path) as runner:
        raylet = there.head_node.all_processes["raylet"][0].process.pid
        for worker in psutil.Process(raylet).children():
            if any(
                "ipykernel_launcher" in below.cmdline() for below in worker.children(recursive=True)
            ):
                worker.kill()
                break
        there.remove_node(other, allow_graceful=False)
        wait_for(
            lambda: len([one for one in read_records(tmp_path) if one["status"] == "killed"]) == 2,
            120,
        )
        (folder / "data/go").touch()
        said, _ = runner.communicate(timeout=120)
        wait_for(lambda: not survivors(folder), 10)
        for path in folder.glob("ray-*"):  # what a killed worker leaves
            subprocess.run(["rm", "-r", path], check=True)
    assert runner.returncode == 1, said
    assert sorted(record["status"] for record in read_records(tmp_path)) == [
        "killed",
        "killed",
        "ok",
    ]
    words = (
        "--ray",
        there.address,
        "--output-dir",
        tmp_path,
        "-p",
        "data_dir",
        folder / "none",
        "--retry-failed",
    )
    done = call(suite, "wait", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in read_records(tmp_path)] == ["ok"] * 3
