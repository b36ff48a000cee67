"""The same runs on a Ray cluster of two nodes, which both are this machine; and a node that is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from unittest.mock import Mock

import pytest
from tiny_suite import BASE, call, command, survivors, write_suite

from mixed_precision_study.errors import UserError
from mixed_precision_study.gpu import nvml
from mixed_precision_study.runner import cli, ray_cluster, status
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import Run

ray = pytest.importorskip("ray", reason="Ray is optional: pip install ray")
pytest.importorskip("ray.cluster_utils")

ONE = {"precisions": ["fp32"]}
MODES = ("ok", "fail")
STUDIES = {
    "ends": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": mode}} for mode in MODES]},
    "poison": {
        "runs": [
            {"notebook": "tiny", "cpu": {**ONE, "mode": "kill_actor"}, "minutes": 9},
            *({"notebook": "tiny", "cpu": {**ONE, "seed": seed}} for seed in range(3)),
        ]
    },
    "train": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "train"}}]},
    "wait": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "wait", "seed": seed}} for seed in range(2)]},
}
NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("cluster"), STUDIES)


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of a head and another node, and that other node."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster, cluster.add_node(**NODE)
    finally:
        cluster.shutdown()


def test_what_a_node_needs_travels_there(tmp_path):
    """A process that finds no other copy of the package imports what an actor and its runs do."""
    ray_cluster.pack(tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
    code += "from mixed_precision_study.runner import execute_notebook, ray_cluster as there; print(there.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/mixed_precision_study/")


def records_of(folder):
    return {record["mode"]: record for record in map(json.loads, (p.read_text() for p in folder.glob("tiny-*.json")))}


WHEN = ("started_at", "finished_at", "output_dir", "data_dir", "reason")


def test_records_are_those_of_the_local_path(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    done = call(suite, "ends", "--output-dir", tmp_path / "ray", "--ray", cluster.address, "--jobs", 2)
    assert done.returncode == 1, done.stdout + done.stderr
    assert call(suite, "ends", "--output-dir", tmp_path / "local", "--jobs", 2).returncode == 1
    there, here = records_of(tmp_path / "ray"), records_of(tmp_path / "local")
    assert set(there) == set(MODES)
    for mode, record in there.items():
        other = here[mode]
        assert list(record) == list(other)
        different = {name for name in record if record[name] != other[name]}
        assert different <= set(WHEN), (mode, different)
        assert record["data_dir"] == other["data_dir"]
        assert record["output_dir"] == str(tmp_path / "ray")
        assert (tmp_path / "ray" / f"{record['run_id']}.ipynb").exists()
    assert there["fail"]["reason"] == here["fail"]["reason"] == "ValueError: no such layer"
    assert (tmp_path / "ray" / "logs" / f"{there['fail']['run_id']}.log").stat().st_size
    assert not survivors("ends")


def test_run_that_ends_every_actor_fails_and_the_actors_are_started_anew(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    done = call(suite, "poison", "--output-dir", tmp_path, "--ray", cluster.address, "--jobs", 2)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("IS LOST") == done.stdout.count("answers and is used again") == 2, done.stdout
    records = [json.loads(path.read_text()) for path in tmp_path.glob("tiny-*.json")]
    assert sorted(record["status"] for record in records) == ["failed", "ok", "ok", "ok"]
    (reason,) = [record["reason"] for record in records if record["reason"]]
    how = r"\S+-cpu\d \(its node failed: .+\)"
    assert re.fullmatch(f"the device was lost under it 2 times, so it gets no other: {how}; {how}", reason)
    assert not survivors("poison")


def test_killed_node_costs_only_its_run_which_is_repeated_elsewhere(suite, tmp_path, two_nodes):
    cluster, other = two_nodes
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "--ray", cluster.address, "--jobs", 2)
    words += ["-p", "data_dir", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as runner:
        try:
            until = time.monotonic() + 60
            while len(list(tmp_path.glob("begun-*"))) < 2:
                assert time.monotonic() < until
                time.sleep(0.1)
            cluster.remove_node(other, allow_graceful=False)
            said = ""
            while "IS LOST" not in said:
                line = runner.stdout.readline()
                assert line, said
                said += line
            (tmp_path / "go").touch()
            rest, errors = runner.communicate(timeout=120)
        finally:
            runner.kill()
    said += rest
    assert runner.returncode == 0, said + errors
    assert said.count("IS LOST") == 1
    assert "its node failed" in said
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("tiny-*.json")]
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert "2 finished already" in call(suite, "wait", "--output-dir", tmp_path / "out").stdout


def test_batch_on_a_cluster_is_interrupted_like_any_other(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "--ray", cluster.address)
    words += ["-p", "data_dir", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as runner:
        try:
            until = time.monotonic() + 60
            while not list(tmp_path.glob("begun-*")):
                assert time.monotonic() < until
                time.sleep(0.1)
            runner.send_signal(signal.SIGTERM)
            said, _ = runner.communicate(timeout=60)
        finally:
            runner.kill()
    assert runner.returncode == 1
    assert "interrupted: 0 of 2 runs of wait are finished and kept" in said
    assert not survivors("wait")


@pytest.mark.parametrize("address, words", [("127.0.0.1:1", "no Ray cluster could be reached"), ("nowhere", "must be")])
def test_cluster_that_is_not_there_is_one_sentence(suite, tmp_path, capsys, address, words):
    argv = ["ends", "--studies", str(suite / "studies.yaml"), "--output-dir", str(tmp_path / "out"), "--ray", address]
    assert cli.main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"--ray {address}" in said
    assert words in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "answer, sentence",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no Ray cluster; its port is 6379 as a rule."),
        (None, "no Ray cluster could be reached (timed out)."),
        (b"\0\0\0\4\0\0\0\0\0", None),
    ],
    ids=["the page of a dashboard", "silent", "a cluster"],
)
def test_what_answers_at_the_address_is_asked_whether_it_may_be_ray(monkeypatch, answer, sentence):
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve():
            there, _ = server.accept()
            with there:
                if answer:
                    there.sendall(answer)
                there.recv(999)
                time.sleep(0 if answer else 1)

        server_thread = threading.Thread(target=serve)
        server_thread.start()
        if sentence:
            with pytest.raises(UserError, match=re.escape(f"--ray {address}: {sentence}")):
                ray_cluster.check_reachable(address)
        else:
            ray_cluster.check_reachable(address)
        server_thread.join()


def test_cluster_of_this_machine_asks_for_a_token(monkeypatch):
    """The ports of Ray are open to other hosts, and what can reach them can run programs."""
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # so that it is put back
    monkeypatch.delenv("RAY_AUTH_MODE")
    modes = []

    def refuse(**options):
        modes.append(os.environ.get("RAY_AUTH_MODE"))
        raise ConnectionError("no.\nmore")

    monkeypatch.setattr(ray, "init", refuse)
    for address in ("auto", "local"):
        with pytest.raises(UserError, match=r"reached \(no\); where it wants a token, set RAY_AUTH_MODE=token\."):
            ray_cluster.connected(address, 1, False).__enter__()
    assert modes == [None, "token"]


def test_device_that_no_node_has_is_one_sentence(monkeypatch, capsys):
    begun = ray.exceptions.RayTaskError("Worker.__init__", "Worker()\n  File\nRuntimeError: no", RuntimeError("no"))
    asked = Mock(exceptions=ray.exceptions, cluster_resources=lambda: {"GPU": 2.0})
    asked.wait = lambda questions, **_: (questions[:1], questions[1:])
    asked.remote.return_value.return_value.remote.side_effect = [Mock(), Mock()]
    asked.get = Mock(side_effect=ray.exceptions.ActorDiedError(begun))
    with pytest.raises(UserError, match=r"became free within 120 s: RuntimeError: no\.$"):
        ray_cluster.start_workers(asked, None, True)
    assert asked.kill.call_count == 1  # the one that others hold
    assert capsys.readouterr().err == "run_all.py: a device of the cluster is not used: RuntimeError: no\n"
    monkeypatch.setattr(ray_cluster, "visible_gpus", lambda: [])
    with pytest.raises(RuntimeError, match="NVML does not find"):
        ray_cluster.Worker(True)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("attempt", [1, 4])
def test_what_a_node_could_not_do_is_told_as_on_one_machine(tmp_path, begun, attempt):
    """A start is tried again, host memory ends the run and not the device, all else is a lost device."""
    errors = ray.exceptions
    full = errors.RayTaskError("launch", "a long\ntraceback", OSError(28, "No space left on device"))
    gone = errors.RayTaskError("launch", "a long\ntraceback", nvml.GpuLost("NVML: the GPU is lost"))
    device, ends = Device(0, "cpu0"), {}
    parameters = {"dataset": "auto", "model": "tiny", "batch_size": 4, "seed": 0, "output_dir": str(tmp_path)}
    run = Run("a-run", tmp_path / "gone.ipynb", "fp32", parameters, tmp_path, 1.0)
    for name, raised in (
        ("full", full),
        ("gone", gone),
        ("died", errors.ActorDiedError()),
        ("memory", errors.OutOfMemoryError("of Ray")),
    ):

        def get(question, timeout=None, raised=raised):
            if question == "launched" and begun:
                return None
            raise raised

        asked = types.SimpleNamespace(exceptions=errors, wait=lambda *_, **__: (["asked"], []), get=get)
        there = ray_cluster.Cluster(asked, {device: Mock()})
        active = ray_cluster.Remote(run, None, "launched", attempt=attempt, question="asked")
        end = ends[name] = there.check(active, None, device, 0)
        if end.lost:
            assert end.begun is begun
            assert end.remark.startswith("its node failed: ")
        assert (device in there.workers) == (name != "memory")
    starting = not begun and attempt == 1
    assert [end.lost for end in ends.values()] == [not starting, True, True, False]
    assert "No space left on device" in ends["full"].remark
    assert "the GPU is lost" in ends["gone"].remark
    assert "The actor died unexpectedly" in ends["died"].remark
    if starting:  # in a moment
        assert {ends[name].record for name in ("full", "memory")} == {None}
        assert all(ends[name].remark.startswith("its node could not start it: ") for name in ("full", "memory"))
    else:
        reason = "Ray ended the actor that ran it, for the host's memory was exhausted"
        record = json.loads(run.record_path.read_text())
        assert (record["status"], record["reason"]) == ("killed", reason)
        assert ends["memory"].record["status"] == "killed"


def test_start_that_fails_leaves_nothing_on_the_node(tmp_path, monkeypatch):
    worker = ray_cluster.Worker(False)
    monkeypatch.setattr(ray_cluster.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_process, "launch", Mock(side_effect=OSError(28, "No space left on device")))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            worker.launch("tiny", b"", ("a-run", "fp32", {"data_dir": "data"}), "a", None, 1)
        assert worker.check(None, 1, 1) == ("", None, None)
        assert len(list(tmp_path.glob("ray-*"))) == 1
    worker.stop()
    assert not list(tmp_path.glob("ray-*"))


def test_actor_that_cannot_be_started_anew_is_a_lost_device():
    device, strategies = Device(0, "a-gpu0", "GPU-0", "Made-up"), Mock()
    asked = Mock(exceptions=ray.exceptions, util=types.SimpleNamespace(scheduling_strategies=strategies))
    there = ray_cluster.Cluster(asked, {}, {device: "number"})
    for answer, words in (
        (ray.exceptions.GetTimeoutError("late"), "late"),
        ([("node", "number", Device(0, "gpu0", "GPU-1", "Made-up"))], "gave another one"),
    ):
        asked.get = Mock(side_effect=answer)
        with pytest.raises(nvml.GpuLost, match=f"its actor could not be started anew: .*{words}"):
            there.launch(Mock(), "a", None, device)
        assert not there.workers
    assert asked.kill.call_count == 2
    assert strategies.NodeAffinitySchedulingStrategy.call_args.args == ("number",)


def test_all_nodes_are_asked_to_stop_before_one_is_waited_for():
    """Eight that do not answer must cost 2 s and not sixteen: Ctrl-C promises 10 s, of which the runs have 7."""
    done = []
    workers = [Mock(**{"stop.remote.side_effect": lambda number=number: done.append(number)}) for number in range(8)]
    asked = types.SimpleNamespace(wait=lambda questions, num_returns, timeout: done.append((num_returns, timeout)))
    ray_cluster.Cluster(asked, {}).stop_all([ray_cluster.Remote(None, worker, None) for worker in workers])
    assert done == [*range(8), (8, 2)]


def test_step_of_a_training_is_seen_over_ray(suite, tmp_path, two_nodes, monkeypatch, capsys):
    cluster, _ = two_nodes
    monkeypatch.setattr(status, "PLAIN_SECONDS", 0.5)
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    say, said = status.say, []

    def noted(text):
        said.append(text)
        if "step 30/40" in text:
            (tmp_path / "go").touch()
        say(text)

    monkeypatch.setattr(status, "say", noted)
    words = ["train", "--studies", str(suite / "studies.yaml"), *BASE, "--ray", cluster.address]
    assert cli.main([*words, "--output-dir", str(tmp_path / "out"), "-p", "data_dir", str(tmp_path)]) == 0
    assert any(re.search(r"tiny-\S+  cell 4/6, fp32, epoch 2/2, step 30/40  0:\d\d", text) for text in said)
