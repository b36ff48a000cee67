"""A Ray cluster of two machines, as far as one can be two: each has its network, name, processes and folders alone.

The machines are namespaces of Linux with one cable between them. Only root can make them.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from test_ray_cluster import NODE, PATIENCE, below
from tiny_suite import ROOT, command, entry, read_records, wait_for, write_suite

pytest.importorskip("ray", reason="Ray is optional: pip install ray")
SPACES = ("--net", "--uts", "--mount", "--pid")
ADDRESSES = {"alpha": "10.77.0.1", "beta": "10.77.0.2"}
STUDIES = {"wait": [entry("wait", seed=seed) for seed in range(2)]}


def may_make_machines():
    words = ["unshare", *SPACES, "--fork", "--mount-proc", "ip", "link"]
    return bool(shutil.which("unshare") and shutil.which("ip")) and not subprocess.call(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0 or not may_make_machines(), reason="needs root and Linux namespaces"
)


class Machine:
    """A machine with the folder `own` to itself, at the same path as the other's."""

    def __init__(self, name, own):
        self.name = name
        self.own = own
        made = ["unshare", *SPACES, "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
        self.process = subprocess.Popen(made)
        (first,) = wait_for(psutil.Process(self.process.pid).children)
        self.pid = str(first.pid)
        wait_for(lambda: first.name() == "sleep")
        self.call("hostname", name)
        self.call("mount", "-t", "tmpfs", "tmpfs", str(own))
        self.call("mkdir", "-m", "700", str(own / "data"), str(own / "ray"))
        self.call("ip", "link", "set", "lo", "up")
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        self.environment |= {**PATIENCE, "MIXED_PRECISION_DATA": str(own / "data"), "RAY_AUTH_MODE": "token"}
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(own)}
        # A node that is gone is then found after seconds, with Ray's defaults after a minute.
        self.environment |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "10000"}
        self.environment |= {"RAY_health_check_failure_threshold": "2"}

    def words(self, *command_line):
        return ["nsenter", "--target", self.pid, *SPACES, *map(str, command_line)]

    def call(self, *command_line):
        """Run a command on the machine and return what it printed."""
        done = subprocess.run(self.words(*command_line), capture_output=True, text=True, check=True)
        return done.stdout

    def start(self, *command_line, **options):
        """Start a command on the machine."""
        return subprocess.Popen(self.words(*command_line), env=self.environment, **options)

    def files(self):
        return self.call("ls", self.own / "data").split()

    def start_ray(self, *words, token):
        """Start its node of the cluster."""
        self.environment["RAY_AUTH_TOKEN"] = token
        size = f"--object-store-memory={NODE['object_store_memory']}"
        options = ["--block", f"--node-ip-address={ADDRESSES[self.name]}", "--num-cpus=1", "--num-gpus=0", size]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return self.start(sys.executable, "-m", "ray.scripts.scripts", "start", *options, *words, **silent)


@contextlib.contextmanager
def two_machines(folder):
    """Yield two machines with a cable between them. The second knows neither this project nor the suite's folder."""
    own = folder / "own"
    own.mkdir()
    with contextlib.ExitStack() as stack:
        machines = []
        for name in ADDRESSES:
            machines.append(Machine(name, own))
            stack.callback(machines[-1].process.kill)
        alpha, beta = machines
        link = ["ip", "link", "add", "cable", "netns", alpha.pid, "type", "veth", "peer", "name", "cable"]
        subprocess.run([*link, "netns", beta.pid], check=True)
        for machine in machines:
            machine.call("ip", "address", "add", f"{ADDRESSES[machine.name]}/24", "dev", "cable")
            machine.call("ip", "link", "set", "cable", "up")
        for hidden in (ROOT / "mixed_precision_study", ROOT / "notebooks", folder / "suite"):
            beta.call("mount", "-t", "tmpfs", "tmpfs", str(hidden))
        yield machines


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(the two machines, the suite's folder) with Ray on both. The last test pulls the cable."""
    folder = tmp_path_factory.mktemp("machines")
    (folder / "suite").mkdir()
    suite = write_suite(folder / "suite", STUDIES)
    token = secrets.token_hex()
    with below(0o700) as short, two_machines(folder) as (alpha, beta):
        head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={short}"]
        alpha.start_ray(*head, token=token)
        probe = "import socket, sys; socket.create_connection(('10.77.0.1', 6379), 1)"
        wait_for(lambda: beta.start(sys.executable, "-c", probe, stderr=subprocess.DEVNULL).wait() == 0, 240)
        beta.start_ray("--address=10.77.0.1:6379", token=token)
        wait_for_nodes(alpha, 2)
        yield alpha, beta, suite


@contextlib.contextmanager
def study(alpha, beta, suite, out):
    """Start the study on the first machine, over both, and yield its process when a run waits on each."""
    words = ("--output-dir", out, "--ray", "10.77.0.1:6379", "--jobs", 2, "-p", "data_dir", alpha.own / "here")
    for machine, data in ((alpha, alpha.own / "here"), (beta, beta.own / "data")):
        machine.call("rm", "-rf", data)
        machine.call("mkdir", data)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with alpha.start(*command(suite, "wait", *words), **pipes) as runner:
        try:
            yield runner
        finally:
            runner.kill()


def begun_on(machine, folder):
    return [name for name in machine.call("ls", folder).split() if name.startswith("begun")]


def wait_for_both(alpha, beta):
    """Wait until each machine has a run, which has found the data of that machine; return its mark on each."""
    marks = wait_for(lambda: begun_on(alpha, alpha.own / "here") and begun_on(beta, beta.own / "data"), 240)
    assert marks
    return begun_on(alpha, alpha.own / "here"), begun_on(beta, beta.own / "data")


COUNT_UNTIL = """
import sys, time, ray
until = time.monotonic() + 240
while not ray.is_initialized():
    try:
        ray.init(sys.argv[1], log_to_driver=False)
    except ConnectionError:  # on a busy machine the port answers before the head is a node of its cluster
        if time.monotonic() > until:
            raise
        ray.shutdown()
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[2]):
    if time.monotonic() > until:
        sys.exit(str(ray.nodes()))
    time.sleep(0.2)
"""


def wait_for_nodes(alpha, count):
    """Wait until so many nodes of the cluster live."""
    words = [sys.executable, "-c", COUNT_UNTIL, "10.77.0.1:6379", str(count)]
    counting = alpha.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = counting.communicate()[1]
    assert counting.returncode == 0, said


def test_each_machine_uses_its_own_folders_and_the_records_come_back(cluster, tmp_path):
    alpha, beta, suite = cluster
    out = tmp_path / "out"
    with study(alpha, beta, suite, out) as runner:
        first, second = wait_for_both(alpha, beta)
        assert len(first) == len(second) == 1 and first != second
        alpha.call("touch", alpha.own / "here" / "go")
        beta.call("touch", beta.own / "data" / "go")
        said, _ = runner.communicate(timeout=400)
    assert runner.returncode == 0, said
    assert "alpha-cpu" in said and "beta-cpu" in said
    records = read_records(out)
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert {record["data_dir"] for record in records} == {str(alpha.own / "here")}  # as it was asked for
    assert len(list(out.glob("*.ipynb"))) == 2
    devices = json.loads((out / "logs" / "batch.json").read_text())["devices"]
    assert {str(device).partition("-")[0] for device in devices} == {"alpha", "beta"}, devices


def test_a_machine_whose_cable_is_pulled_costs_only_its_run(cluster, tmp_path):
    alpha, beta, suite = cluster
    out = tmp_path / "out"
    with study(alpha, beta, suite, out) as runner:
        wait_for_both(alpha, beta)
        alpha.call("touch", alpha.own / "here" / "go")
        alpha.call("ip", "link", "set", "cable", "down")
        pulled = time.monotonic()
        said = ""
        while "IS LOST" not in said:
            line = runner.stdout.readline()
            assert line, said
            said += line
        print(f"found lost after {time.monotonic() - pulled:.0f} s")
        rest, _ = runner.communicate(timeout=400)
    said += rest
    assert runner.returncode == 0, said
    assert said.count("IS LOST") == 1 and "beta" in said
    assert [record["status"] for record in read_records(out)] == ["ok", "ok"]
