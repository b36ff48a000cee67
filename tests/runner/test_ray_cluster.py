"""The same runs on a Ray cluster of two nodes, which are both this machine; and a node that is killed."""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from mixed_precision_study.runner.process import read_small_file
from tiny_suite import (
    ON_CPU,
    as_other_user,
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

from mixed_precision_study.errors import UserError
from mixed_precision_study.gpu import nvml
from mixed_precision_study.runner import cli, ray_cluster, status
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import Run

ray = pytest.importorskip("ray", reason="Ray is optional: pip install ray")
pytest.importorskip("ray.cluster_utils")

STUDIES = {
    "ends": [entry("ok"), entry("fail")],
    "poison": [{**entry("kill_actor"), "minutes": 9}, *(entry(seed=seed) for seed in range(3))],
    "train": [entry("train")],
    "wait": [entry("wait", seed=seed) for seed in range(2)],
}
NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20}


PATIENCE = {"RAY_raylet_start_wait_time_s": "180", "RAY_agent_register_timeout_ms": "180000"}  # on a busy machine


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("cluster"), STUDIES)


@contextlib.contextmanager
def below(mode):
    """Yield a short new folder for a cluster's files, below one with this mode."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as parent:
        Path(parent).chmod(mode)
        yield Path(parent) / "t"


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of a head and another node, as the README starts one, and that other node."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, below(0o700) as folder:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex())
        patch.setenv("RAY_TMPDIR", str(folder.parent))  # `Cluster` writes its address below, in a folder it needs
        (folder.parent / "ray").mkdir()
        for name, text in PATIENCE.items():
            patch.setenv(name, text)
        ray._raylet.Config.initialize("")  # this process has read them before
        head = {**NODE, "include_dashboard": False, "temp_dir": str(folder)}
        cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
        try:
            yield cluster, started(lambda: cluster.add_node(**NODE))
        finally:
            cluster.shutdown()
    ray._raylet.Config.initialize("")


def started(start):
    """Return what `start()` returns. Ray waits 30 s for a node, which is too short on a busy machine: try thrice."""
    for _ in range(2):
        before = set(psutil.Process().children())
        with contextlib.suppress(Exception):
            return start()
        for process in set(psutil.Process().children()) - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    return start()


@contextlib.contextmanager
def open_node():
    """Start a node that asks nobody for a token, in a folder that all can reach; yield its address and that folder."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    environment |= {**PATIENCE, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with below(0o755) as folder:
        words = ["--head", "--block", "--port=0", "--num-cpus=1", "--num-gpus=0", "--include-dashboard=false"]
        words += ["--object-store-memory=80000000", f"--temp-dir={folder}"]
        command_line = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command_line, env=environment, start_new_session=True, **silent) as node:

            def address():
                assert node.poll() is None, "the node ended"
                return read_small_file(folder / "ray_current_cluster")

            try:
                yield wait_for(address, 60), folder  # a start takes 14 to 23 s, and now and then hangs
            finally:
                for process in [*psutil.Process(node.pid).children(recursive=True), node]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()


@pytest.fixture(scope="module")
def open_cluster():
    """The address and the folder of a cluster that asks nobody for a token."""
    with contextlib.ExitStack() as stack:
        yield started(lambda: stack.enter_context(open_node()))


def test_what_a_node_needs_travels_there(tmp_path):
    """A process that finds no other copy of the package imports what an actor and its runs do."""
    ray_cluster.pack(tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
    code += "from mixed_precision_study.runner import execute_notebook, ray_cluster as there; print(there.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/mixed_precision_study/")


PLACES = [("a", "node 1"), ("b", "node 1"), ("c", "node 2")]
WHEN_AND_WHERE = {"started_at", "finished_at", "output_dir"}


def test_records_are_those_of_the_local_path(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    done = call(suite, "ends", "--output-dir", tmp_path / "ray", "--ray", cluster.address, "--jobs", 2)
    assert done.returncode == 1, done.stdout + done.stderr
    assert call(suite, "ends", "--output-dir", tmp_path / "local", "--jobs", 2).returncode == 1
    there, here = records_of(tmp_path / "ray"), records_of(tmp_path / "local")
    assert set(there) == {"ok", "fail"}
    for mode, record in there.items():
        other = here[mode]
        assert list(record) == list(other)
        assert {name for name in record if record[name] != other[name]} <= WHEN_AND_WHERE, mode
        assert record["output_dir"] == str(tmp_path / "ray")
        assert (tmp_path / "ray" / f"{record['run_id']}.ipynb").exists()
    assert there["fail"]["reason"] == "ValueError: no such layer"
    assert (tmp_path / "ray" / "logs" / f"{there['fail']['run_id']}.log").stat().st_size
    assert not survivors("ends")


def test_run_that_ends_every_actor_fails_and_the_actors_are_started_anew(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    done = call(suite, "poison", "--output-dir", tmp_path, "--ray", cluster.address, "--jobs", 2)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("IS LOST") == done.stdout.count("answers and is used again") == 2, done.stdout
    records = read_records(tmp_path)
    assert sorted(record["status"] for record in records) == ["failed", "ok", "ok", "ok"]
    (reason,) = [record["reason"] for record in records if record["reason"]]
    how = r"\S+-cpu\d \(its node failed: .+\)"
    assert re.search(f"lost under it 2 times.*: {how}; {how}$", reason)
    assert not survivors("poison")


@contextlib.contextmanager
def waiting(suite, tmp_path, cluster, runs, *words):
    """Start the study `wait` on the cluster and yield its process when so many of its runs have begun."""
    words = ("--output-dir", tmp_path / "out", "--ray", cluster.address, "-p", "data_dir", tmp_path, *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(suite, "wait", *words), **pipes) as runner:
        try:
            wait_for(lambda: len(begun(tmp_path)) == runs)
            yield runner
        finally:
            runner.kill()


def is_actor(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return "ray::Worker" in " ".join(process.cmdline())
    return False


def test_killed_actor_costs_only_its_run_and_its_device_goes_on_while_the_other_is_busy(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    with waiting(suite, tmp_path, cluster, 2, "--jobs", 2) as runner:
        first, _ = (process for process in psutil.Process().children(recursive=True) if is_actor(process))
        first.kill()
        log = tmp_path / "out" / "logs" / "batch.log"
        wait_for(lambda: log.read_text().count("  begins") == 3)  # two have begun, and neither may end yet
        (tmp_path / "go").touch()
        said, errors = runner.communicate(timeout=200)
    assert runner.returncode == 0, said + errors
    (lost,) = re.findall(r"^(\S+) IS LOST", said, re.MULTILINE)
    (again,) = re.findall(r"^(\S+) answers and is used again", said, re.MULTILINE)
    assert lost == again == re.findall(r"^(\S+)  \S+  begins", said, re.MULTILINE)[2]
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok", "ok"]
    assert not survivors("wait")


def test_killed_node_costs_only_its_run_which_is_repeated_elsewhere(suite, tmp_path, two_nodes):
    cluster, other = two_nodes
    with waiting(suite, tmp_path, cluster, 2, "--jobs", 2) as runner:
        cluster.remove_node(other, allow_graceful=False)
        said = ""
        while "IS LOST" not in said:
            line = runner.stdout.readline()
            assert line, said
            said += line
        (tmp_path / "go").touch()
        rest, errors = runner.communicate(timeout=200)
    said += rest
    assert runner.returncode == 0, said + errors
    assert said.count("IS LOST") == 1
    assert "its node failed" in said
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok", "ok"]
    assert "2 finished already" in call(suite, "wait", "--output-dir", tmp_path / "out").stdout


def test_study_on_a_cluster_is_interrupted_like_any_other(suite, tmp_path, two_nodes):
    cluster, _ = two_nodes
    with waiting(suite, tmp_path, cluster, 1) as runner:
        runner.send_signal(signal.SIGTERM)
        said, _ = runner.communicate(timeout=200)
    assert runner.returncode == 1
    assert "interrupted: 0 of 2 runs of wait are finished and kept" in said
    assert not survivors("wait")


@pytest.mark.parametrize("address, words", [("127.0.0.1:1", "no Ray cluster could be reached"), ("nowhere", "must be")])
def test_cluster_that_is_not_there_is_one_sentence(suite, tmp_path, capsys, address, words):
    assert main(suite, "ends", "--output-dir", tmp_path / "out", "--ray", address) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"--ray {address}" in said
    assert words in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "answer, sentence",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no Ray cluster"),
        (None, "no Ray cluster could be reached (timed out)"),
        (b"\0\0\0\4\0\0\0\0\0", None),
    ],
    ids=["the page of a dashboard", "silent", "a cluster"],
)
def test_what_answers_at_the_address_is_asked_whether_it_may_be_ray(monkeypatch, answer, sentence):
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve():
            there, _ = server.accept()
            with there:
                if answer:
                    there.sendall(answer)
                there.recv(999)
                if not answer:
                    time.sleep(1)

        server_thread = threading.Thread(target=serve)
        server_thread.start()
        refused = pytest.raises(UserError, match=re.escape(f"--ray {address}: {sentence}"))
        with refused if sentence else contextlib.nullcontext():
            ray_cluster.check_reachable(address)
        server_thread.join()


EXCHANGE = """
for path in sys.argv[1:]:
    for attempt in (os.rename, shutil.copytree):
        try:
            attempt(path, path + "-old")
        except PermissionError:
            print("refused")
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can start another user's process")
def test_another_user_cannot_exchange_the_code_of_a_running_batch(suite, tmp_path, two_nodes):
    """Ray lets everybody write to the folders in which it keeps our code. The folder above them is closed."""
    cluster, _ = two_nodes
    with waiting(suite, tmp_path, cluster, 1) as runner:
        resources = Path(cluster.head_node.get_session_dir_path()) / "runtime_resources"
        packages = list(resources.glob("working_dir_files*/**/_ray_pkg_*/"))
        said = as_other_user(EXCHANGE, *packages)
        (tmp_path / "go").touch()
        rest, errors = runner.communicate(timeout=200)
    assert packages
    assert said == "refused\n" * 2 * len(packages)
    assert runner.returncode == 0, rest + errors


@pytest.mark.parametrize("given", ["none", "wrong"])
def test_without_its_token_a_cluster_runs_nothing(suite, tmp_path, two_nodes, monkeypatch, given):
    cluster, _ = two_nodes
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    if given == "none":
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    done = call(suite, "ends", "--output-dir", tmp_path / "out", "--ray", cluster.address)
    assert done.returncode == 2
    assert f"run_all.py: --ray {cluster.address}: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_open_cluster_is_refused(suite, tmp_path, open_cluster, monkeypatch):
    address, _ = open_cluster
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    done = call(suite, "ends", "--output-dir", tmp_path / "out", "--ray", address)
    assert done.returncode == 2
    (sentence,) = re.findall(f"^run_all.py: --ray {address}: .*$", done.stderr, re.MULTILINE)
    assert "RAY_AUTH_MODE=token" in sentence
    assert not (tmp_path / "out").exists()


def test_cluster_whose_files_others_may_write_is_refused(open_cluster, monkeypatch):
    _, folder = open_cluster
    resources = next(folder.glob("session_2*/runtime_resources"))
    assert ray_cluster.writable_by_others(resources) == folder
    monkeypatch.setattr(ray_cluster, "asks_for_credentials", lambda: True)
    monkeypatch.setattr(ray_cluster, "PACKAGE", resources)
    danger = ray_cluster.Worker(False).danger()
    assert str(folder) in danger
    assert "--temp-dir" in danger
    folder.parent.chmod(0o700)
    assert ray_cluster.Worker(False).danger() == ""


@pytest.mark.parametrize(
    "outer, inner, refused",
    [
        (0o755, 0o755, None),
        (0o755, 0o775, "inner"),
        (0o755, 0o777, "inner"),
        (0o755, 0o1777, None),  # sticky: others may add files and not exchange any
        (0o777, 0o700, "outer"),
        (0o700, 0o777, None),
        (0o710, 0o770, "inner"),  # for the group
    ],
)
def test_folder_that_others_may_write_is_told_from_others(outer, inner, refused):
    with tempfile.TemporaryDirectory() as name:
        folders = {"outer": Path(name) / "outer", "inner": Path(name) / "outer" / "inner", None: None}
        Path(name).chmod(0o755)
        for folder, mode in ((folders["outer"], outer), (folders["inner"], inner)):
            folder.mkdir()
            folder.chmod(mode)
        assert ray_cluster.writable_by_others(folders["inner"]) == folders[refused]


def test_gpus_of_this_machine_need_no_cluster(suite, capsys):
    assert main(suite, "ends", "--ray", "local") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "without it" in said


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
    raised = {
        "full": errors.RayTaskError("launch", "a long\ntraceback", OSError(28, "No space left on device")),
        "gone": errors.RayTaskError("launch", "a long\ntraceback", nvml.GpuLost("NVML: the GPU is lost")),
        "died": errors.ActorDiedError(),
        "memory": errors.OutOfMemoryError("of Ray"),
    }
    device = Device(0, "cpu0")
    parameters = {"dataset": "auto", "model": "tiny", "batch_size": 4, "seed": 0, "output_dir": str(tmp_path)}
    run = Run("a-run", tmp_path / "gone.ipynb", "fp32", parameters, tmp_path, 1.0)
    outcomes = {}
    for name, error in raised.items():

        def get(question, timeout=None, error=error):
            if question == "launched" and begun:
                return None
            raise error

        stand_in = types.SimpleNamespace(exceptions=errors, wait=lambda *_, **__: (["asked"], []), get=get)
        cluster = ray_cluster.Cluster(stand_in, {device: Mock()})
        remote = ray_cluster.RemoteRun(run, device, None, None, "launched", attempt=attempt, question="asked")
        outcome = outcomes[name] = cluster.poll(remote, 0)
        if outcome.lost:
            assert outcome.begun is begun
            assert outcome.remark.startswith("its node failed: ")
        assert (device in cluster.workers) == (name != "memory")
    starting = not begun and attempt == 1
    assert [outcome.lost for outcome in outcomes.values()] == [not starting, True, True, False]
    assert "No space left on device" in outcomes["full"].remark
    assert "the GPU is lost" in outcomes["gone"].remark
    assert "The actor died unexpectedly" in outcomes["died"].remark
    if starting:  # it is tried again
        for name in ("full", "memory"):
            assert outcomes[name].record is None
            assert outcomes[name].remark.startswith("its node could not start it: ")
    else:
        record = json.loads(run.record_path.read_text())
        assert outcomes["memory"].record == record
        assert record["status"] == "killed"
        assert "memory was exhausted" in record["reason"]


def test_start_that_fails_leaves_nothing_on_the_node(tmp_path, monkeypatch):
    worker = ray_cluster.Worker(False)
    monkeypatch.setattr(ray_cluster.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_process, "launch", Mock(side_effect=OSError(28, "No space left on device")))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            worker.launch("tiny", b"", ("a-run", "fp32", {"data_dir": "data"}, 3, None), "a", None, 1)
        assert run_process.launch.call_args[0][0].order == 3
        assert worker.poll(1, 1) == ("", None, None)
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
        with pytest.raises(nvml.GpuLost, match=words):
            there.launch(Mock(), "a", None, device)
        assert not there.workers
    assert asked.kill.call_count == 2
    assert strategies.NodeAffinitySchedulingStrategy.call_args.args == ("number",)


def test_runs_at_a_time_on_a_node_share_its_cores(monkeypatch):
    """As without Ray. An actor that is started anew is told so, too."""
    devices = [(name, node, (number, "gpu0", f"GPU-{name}", "Made-up")) for number, (name, node) in enumerate(PLACES)]
    actors = [Mock(**{"describe.remote.return_value": number}) for number in range(3)]
    monkeypatch.setattr(ray_cluster, "start_worker", Mock(side_effect=[*actors, again := Mock()]))
    asked = Mock(exceptions=ray.exceptions, get=lambda number, **_: devices[number])
    asked.cluster_resources.return_value = {"GPU": 3}
    asked.wait.return_value = ([0, 1, 2], [])
    workers, nodes = ray_cluster.start_workers(asked, None, True)
    assert [actor.share_cores.remote.call_args.args for actor in actors] == [(2,), (2,), (1,)]
    cluster = ray_cluster.Cluster(asked, workers, nodes)
    asked.get = lambda *_, **__: devices[1]
    cluster.restart(list(workers)[1])
    again.share_cores.remote.assert_called_once_with(2)


def test_an_actor_passes_its_share_of_the_cores_on(tmp_path, monkeypatch):
    monkeypatch.setattr(run_process, "SHARED", {})
    monkeypatch.setattr(run_process.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    worker = ray_cluster.Worker(False)  # Ray sets OMP_NUM_THREADS to 1: it is taken away
    worker.share_cores(4)
    assert run_process.child_environment("a", tmp_path)["OMP_NUM_THREADS"] == "2"


def test_all_nodes_are_asked_to_stop_before_one_is_waited_for():
    """Eight that do not answer must cost 2 s and not sixteen: Ctrl-C promises 10 s, of which the runs have 7."""
    done = []
    workers = [Mock(**{"stop.remote.side_effect": lambda number=number: done.append(number)}) for number in range(8)]
    asked = types.SimpleNamespace(wait=lambda questions, num_returns, timeout: done.append((num_returns, timeout)))
    ray_cluster.Cluster(asked, {}).stop_all(
        [ray_cluster.RemoteRun(None, None, None, worker, None) for worker in workers]
    )
    assert done == [*range(8), (8, 2)]


def test_step_of_a_training_is_seen_over_ray(suite, tmp_path, two_nodes, monkeypatch):
    cluster, _ = two_nodes
    monkeypatch.setattr(status, "PLAIN_SECONDS", 0.5)
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    say, said = status.say, []

    def noted(text, to_terminal=True):
        said.append(text)
        if "step 30/40" in text:
            (tmp_path / "go").touch()
        say(text, to_terminal)

    monkeypatch.setattr(status, "say", noted)
    words = ("train", *ON_CPU, "--ray", cluster.address, "-p", "data_dir", tmp_path)
    assert main(suite, *words, "--output-dir", tmp_path / "out") == 0
    assert any(re.search(r"tiny fp32 b4  epoch 2/2, step 30/40  0:\d\d", text) for text in said)
