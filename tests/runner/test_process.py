"""One run's life: how it is reached, started again, found silent, ended with all it has started, and judged."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from tiny_suite import (
    BASE,
    command,
    records_of,
    survivors,
    write_suite,
)

from mixed_precision_study.gpu import nvml as gpu_nvml
from mixed_precision_study.runner import cli, estimates, output_folder, scheduler, status
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import Run

ONE = {"precisions": ["fp32"]}
STUDIES = {
    "freeze": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "freeze"}}]},
    "one": {"runs": [{"notebook": "tiny", "cpu": ONE}]},
    "wait": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "wait"}}]},
    "stall": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "stall"}}]},
    "train": {"runs": [{"notebook": "tiny", "cpu": {**ONE, "mode": "train"}}]},
    "poison": {
        "runs": [
            {"notebook": "tiny", "minutes": 9, "parameters": {"mode": "poison", "precisions": ["fp32", "amp_bf16"]}},
            {"notebook": "tiny", "parameters": ONE, "sweep": {"seed": [0, 1, 2]}},
        ]
    },
    "lost": {"runs": [{"notebook": "tiny", "parameters": {"mode": "lost"}, "sweep": {"seed": [0, 1]}}]},
}
MANY = [Device(index, f"gpu{index}", f"GPU-{index}", "Made-up") for index in range(3)]
MADE_UP = [Device(index, f"gpu{index}", f"GPU-{index}", "Made-up") for index in range(2)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("life"), STUDIES)


def main(suite, output, *words):
    """Call the command line within this process, so that a test can change what it must not wait for."""
    return cli.main(["--studies", str(suite / "studies.yaml"), "--output-dir", str(output), *map(str, words)])


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def nvml(states):
    """Return a stand-in for pynvml: {uuid: MiB used, or the number of the error}."""

    class NVMLError(Exception):
        def __init__(self, value):
            self.value = value

    def memory(uuid):
        if states[uuid] < 0:
            raise NVMLError(-states[uuid])
        return types.SimpleNamespace(used=states[uuid] * 2**20, total=1024 * 2**20)

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=bytes.decode,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUtilizationRates=lambda uuid: types.SimpleNamespace(gpu=7),
    )


def test_kernel_is_reached_through_a_private_folder_only(suite, tmp_path):
    """ipykernel's own pipe for the output of forks, which takes no commands, is the one port left, on this host."""
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as runner:
        wait_for((tmp_path / "begun-0-fp32").exists)
        processes = survivors("wait")
        private = {Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in processes}
        listening = [one for process in processes for one in process.net_connections() if one.status == "LISTEN"]
        (folder,) = private
        connection = json.loads((folder / "kernel.json").read_text())
        names = {path.name for path in folder.iterdir()}
        noted = (tmp_path / "out" / "logs" / run_process.PRIVATE_FOLDERS_FILE).read_text()
        mode = stat.S_IMODE(folder.stat().st_mode) & 0o777
        command_lines = [process.cmdline() for process in processes]
        (tmp_path / "go").touch()
        assert runner.wait(timeout=60) == 0
    assert len(processes) >= 2  # papermill and its kernel
    assert (connection["transport"], connection["ip"], mode) == ("ipc", str(folder / "kernel"), 0o700)
    assert {"kernel-1", "kernel-2", "kernel-3", "kernel-4", "kernel-5", "cell"} <= names
    assert [one.laddr.ip for one in listening] in ([], ["127.0.0.1"])
    assert not any("sh" in Path(words[0]).name for words in command_lines)
    assert noted == f"{folder}\n"
    assert not folder.exists()


def test_start_that_fails_is_tried_again_and_a_third_time(suite, tmp_path, monkeypatch, capsys):
    """A kernel that cannot import its messaging library twice, and one that never can."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'ipykernel_launcher' in sys.orig_argv:\n"
        f"    with open({str(tmp_path / 'starts')!r}, 'a') as file:\n"
        "        file.write('x')\n"
        f"    if os.path.getsize({str(tmp_path / 'starts')!r}) <= int(os.environ['BROKEN_STARTS']):\n"
        "        sys.modules['zmq'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("BROKEN_STARTS", "2")
    monkeypatch.setattr(scheduler, "START_WAIT_SECONDS", 0.25)
    assert main(suite, tmp_path / "out", "one", *BASE) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "starts").read_text() == "xxx"
    assert "starts again in 0.5 s  the kernel did not start" in said
    assert "starts again in 1 s" in said
    monkeypatch.setenv("BROKEN_STARTS", "9")
    monkeypatch.setattr(run_process, "START_ATTEMPTS", 1)
    assert main(suite, tmp_path / "never", "one", *BASE) == 1
    (record,) = records_of(tmp_path / "never").values()
    assert record["status"] == "failed"
    assert record["reason"].startswith("the kernel did not start in 1 attempts: ")


def test_kernel_without_a_heartbeat_is_ended(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(run_process, "SILENCE_SECONDS", 6)
    assert main(suite, tmp_path / "out", "freeze", *BASE) == 1
    (record,) = records_of(tmp_path / "out").values()
    assert record["status"] == "timeout"
    assert record["reason"].startswith("stopped, for the kernel gave no sign of life for 0.1")
    assert not survivors("freeze")


def test_run_that_takes_longer_than_the_silence_allowed_is_left_alone_while_it_answers(suite, tmp_path, monkeypatch):
    def watch():
        wait_for((tmp_path / "begun-0-fp32").exists)
        monkeypatch.setattr(run_process, "SILENCE_SECONDS", 2)
        time.sleep(3.5)
        (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert main(suite, tmp_path / "out", "wait", *BASE, "-p", "data_dir", tmp_path) == 0
    watcher.join()
    (record,) = records_of(tmp_path / "out").values()
    assert record["status"] == "ok"


def test_what_outlives_a_killed_runner_ends_by_itself_and_leaves_nothing(suite, tmp_path):
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    runner = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    wait_for((tmp_path / "begun-0-fp32").exists)
    (private,) = {Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in survivors("wait")}
    runner.kill()
    runner.wait()
    wait_for(lambda: not survivors("wait"), 10)
    wait_for(lambda: not private.exists(), 10)
    assert not list((tmp_path / "out").glob("*.json"))


def lose_when_begun(monkeypatch):
    """Have NVML call GPU-0 lost as soon as its first run has begun; GPU-1 stays."""
    states, start = {"GPU-0": 10, "GPU-1": 10}, run_process.start_notebook

    def started(*words):
        states["GPU-0"] = -15
        return start(*words)

    monkeypatch.setitem(sys.modules, "pynvml", nvml(states))
    monkeypatch.setattr(run_process, "start_notebook", started)


def test_lost_gpu_leaves_the_pool_and_its_runs_go_to_another(suite, tmp_path, monkeypatch, capsys):
    lose_when_begun(monkeypatch)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: MADE_UP)
    assert main(suite, tmp_path / "out", "lost", "--no-progress-bar", "-p", "precisions", "fp32") == 0
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("tiny-*.json")]
    assert [(record["status"], record["gpu_uuid"]) for record in records] == [("ok", "GPU-1")] * 2
    said = capsys.readouterr().out
    assert "gpu0 IS LOST" in said
    assert said.count("IS LOST") == 1


@pytest.mark.parametrize("devices, probe, again", [(1, "pass", 4), (2, "pass", 4), (3, "raise SystemExit(1)", 0)])
def test_run_that_loses_every_gpu_fails_after_the_second(suite, tmp_path, monkeypatch, capsys, devices, probe, again):
    """Two such runs, of one comparison. With two GPUs the rest needs them back; what does not answer stays out."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml({device.visible: 10 for device in MANY}))
    monkeypatch.setattr(gpu_nvml, "is_lost", lambda uuid, text, answered: "illegal instruction" in text)
    monkeypatch.setattr(run_process, "PROBE", probe)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: MANY[:devices])
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    assert main(suite, tmp_path / "out", "poison", "--no-progress-bar") == 1
    said = capsys.readouterr().out
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("tiny-*.json")]
    failed = [record for record in records if record["reason"]]
    lost = r"gpu\d \(the GPU was lost: RuntimeError: CUDA error: an illegal instruction was encountered\)"
    reason = f"the device was lost under it 2 times, so it gets no other: {lost}; {lost}"
    condemned = [record for record in failed if re.fullmatch(reason, record["reason"])]
    assert all(record["code_hash"] for record in condemned)
    assert said.count("answers and is used again") == again
    if again:  # both runs of the comparison, each on both GPUs; and the rest is done
        assert (len(condemned), said.count("IS LOST"), len(records)) == (2, 4, 5)
        assert sorted(record["status"] for record in records) == ["failed"] * 2 + ["ok"] * 3
        assert "no device is left" not in said
    else:
        assert (len(condemned), said.count("IS LOST")) == (1, 3)
        assert "no device is left" in said


def test_without_any_gpu_left_the_record_says_why(suite, tmp_path, monkeypatch, capsys):
    lose_when_begun(monkeypatch)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: MADE_UP[:1])
    words = ("lost", "--no-progress-bar", "-p", "seed", 0, "-p", "precisions", "fp32")
    assert main(suite, tmp_path / "out", *words) == 1
    (record,) = records_of(tmp_path / "out").values()
    assert record["reason"] == "the GPU was lost: RuntimeError: CUDA error: unspecified launch failure"
    assert "no device is left" in capsys.readouterr().out


def test_gpu_that_is_lost_before_a_run_gets_none(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-0": -15}))
    monkeypatch.setattr(cli, "choose_devices", lambda *words: MADE_UP[:1])
    assert main(suite, tmp_path / "out", "lost", "--no-progress-bar") == 1
    said = capsys.readouterr().out
    assert said.count("gpu0 IS LOST and gets no more runs") == 1
    assert "begins" not in said
    assert "no device is left; the same command runs the rest" in said
    assert "runs failed" not in said  # they have not been run
    assert not list((tmp_path / "out").glob("*.json"))


def test_run_that_saw_no_gpu_is_not_a_result_of_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-0": 10}))
    monkeypatch.setattr(run_process, "read_log", lambda run: "")
    active, record = (
        run_process.RunningProcess(None, None, None, None),
        {"device_type": "cpu", "status": "ok", "reason": None},
    )
    assert run_process.gpu_lost_reason(active, record, MADE_UP[0]) == "the notebook found none and ran on the CPU"
    assert run_process.gpu_lost_reason(active, {**record, "device_type": "cuda"}, MADE_UP[0]) is None
    assert run_process.gpu_lost_reason(active, record, Device(0, "cpu0")) is None


def slot_with_a_run():
    run = types.SimpleNamespace(run_id="a-run")
    return scheduler.DeviceSlot(MADE_UP[1], comparison=[run], run=run)


def test_host_without_room_for_a_process_is_asked_again(capsys):
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    executor, slot = types.SimpleNamespace(launch=Mock(side_effect=error)), slot_with_a_run()
    about = types.SimpleNamespace(study="a", commit=None)
    for attempt, seconds in ((2, "2.5"), (3, "4.5"), (4, "8.5")):
        scheduler.begin(slot, about, executor, None)
        assert (slot.attempt, slot.active) == (attempt, None)
        assert f"gpu1  a-run  starts again in {seconds} s  no process could be started" in capsys.readouterr().out
    with pytest.raises(BlockingIOError):  # then the batch stops, and can be resumed
        scheduler.begin(slot, about, executor, None)
    slot.attempt, executor.launch.side_effect = 1, OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        scheduler.begin(slot, about, executor, None)


def test_record_of_a_failure_names_the_code_that_was_started(tmp_path):
    """The notebook has been edited, or is gone, by the time its run is judged."""
    parameters = {"dataset": "auto", "model": "tiny", "batch_size": 4, "seed": 0, "output_dir": str(tmp_path)}
    run = Run("a-run", tmp_path / "gone.ipynb", "fp32", parameters, tmp_path, 1.0)
    active = run_process.RunningProcess(run, None, None, None, code_hash="0123456789ab")
    record = run_process.write_ending(active, "timeout", "stopped", None, Device(0, "cpu0"))
    assert (record["status"], record["code_hash"]) == ("timeout", "0123456789ab")


def test_run_without_a_parent_ends_all_its_children(tmp_path, monkeypatch):
    """One that ends by itself at that moment does not spare the others."""
    from mixed_precision_study.runner import execute_notebook

    children = [Mock(**{"kill.side_effect": psutil.NoSuchProcess(1)}), Mock()]
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(execute_notebook.psutil.Process, "children", lambda process, recursive: children)
    monkeypatch.setattr(execute_notebook.os, "_exit", Mock())
    execute_notebook.follow(0, tmp_path / "run")
    children[1].kill.assert_called_once()
    execute_notebook.os._exit.assert_called_once_with(1)
    assert not (tmp_path / "run").exists()


CUDA_FAULT = "CUDA error: unspecified launch failure"


@pytest.mark.parametrize(
    "state, text, answered, lost",
    [
        (-15, "anything", True, True),  # NVML_ERROR_GPU_IS_LOST
        (-6, "anything", True, True),  # NVML_ERROR_NOT_FOUND
        (10, CUDA_FAULT, True, False),  # the card answers: the program is at fault
        (-999, CUDA_FAULT, True, True),  # it no longer answers
        (-999, CUDA_FAULT, False, False),  # it never did
        (-999, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", False, True),
        (-999, "ValueError: no such layer", True, False),
    ],
)
def test_lost_gpu_is_told_from_other_failures(monkeypatch, state, text, answered, lost):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-0": state}))
    assert gpu_nvml.is_lost("GPU-0", text, answered) is lost


def test_next_run_waits_until_the_memory_is_free(monkeypatch, capsys):
    states = {"GPU-0": 500}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(states))
    before = gpu_nvml.GpuState(100, 1024, 0)
    slot = scheduler.DeviceSlot(MADE_UP[0], ended=types.SimpleNamespace(gpu_before=before), ended_at=time.monotonic())
    assert not scheduler.cleared(slot, run_process)
    states["GPU-0"] = 120
    assert scheduler.cleared(slot, run_process)
    slot.ended, states["GPU-0"] = types.SimpleNamespace(gpu_before=before), 500
    slot.ended_at = time.monotonic() - scheduler.CLEAR_SECONDS - 1
    assert scheduler.cleared(slot, run_process)
    assert "still held" in capsys.readouterr().out
    assert gpu_nvml.memory_is_free("GPU-0", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_nvml.gpu_state("GPU-0") is None
    assert gpu_nvml.memory_is_free("GPU-0", before)


@pytest.mark.parametrize("text", ["low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\n", "under_oom 0\noom_kill 2\n"])
def test_kills_for_want_of_memory_are_counted(tmp_path, monkeypatch, text):
    (tmp_path / "events").write_text(text)
    assert run_process.oom_kills([str(tmp_path / "absent"), f"{tmp_path}/events{{group}}", "/proc/vmstat"]) == 2
    assert run_process.oom_kills([str(tmp_path / "absent")]) is None


@pytest.mark.parametrize(
    "before, after, words",
    [
        (2, 3, "the kernel died: ended by SIGKILL, for the host's memory was exhausted"),
        (2, 2, "the kernel died: ended by SIGKILL (the system has counted no kill for want of memory)"),
        (None, None, "the kernel died: ended by SIGKILL (is the host's memory exhausted?)"),
    ],
)
def test_host_memory_is_told_from_another_kill(monkeypatch, before, after, words):
    process = types.SimpleNamespace(returncode=run_process.DEAD_KERNEL_EXIT)
    active = run_process.RunningProcess(None, process, None, None, oom_kills=before)
    monkeypatch.setattr(run_process, "oom_kills", lambda: after)
    monkeypatch.setattr(run_process, "read_log", lambda run: "")
    assert run_process.ending_of(active, "3/5", "-9") == ("killed", words)
    assert run_process.ending_of(active, "3/5", "-11") == ("killed", "the kernel died: ended by SIGSEGV")


def test_private_folder_is_short_and_closed(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(run_process.tempfile, "tempdir", str(long))
    folder = run_process.private_folder()
    try:
        assert folder.parent == Path("/tmp")
        assert stat.S_IMODE(folder.stat().st_mode) & 0o777 == 0o700
    finally:
        folder.rmdir()


def test_marked_processes_are_found_whoever_their_parent_is(tmp_path):
    """The grandchild of a dead process leads a session of its own, as a kernel does."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    private = run_process.private_folder()
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path), run_process.RUN_FOLDER_ENV: str(private)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (found,) = run_process.processes_with(run_process.RUN_FOLDER_ENV, str(private))
    assert run_process.kill_processes_with(run_process.OUTPUT_FOLDER_ENV, str(tmp_path)) == 1
    assert not found.is_running() or found.status() == psutil.STATUS_ZOMBIE
    assert not private.exists()
    assert run_process.signal_name(signal.SIGKILL) == "SIGKILL"


@pytest.mark.parametrize("leader", ["execute_notebook.py", "kernel"])
def test_what_a_run_started_with_another_environment_ends_with_it(leader):
    """Nothing marks it but the session of the process, dead by then, that started it."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], env={}, stdout=subprocess.DEVNULL).pid)"
    words = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    process, private = subprocess.Popen([sys.executable, "-c", code], **words), run_process.private_folder()
    left = psutil.Process(int(process.communicate()[0]))
    if leader == "kernel":
        (private / "session").write_text(str(process.pid))
        process = subprocess.Popen(["true"])
    assert left.is_running()
    run_process.kill_run(process, private)
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


def test_living_session_that_only_has_the_number_of_a_dead_one_is_left_alone():
    with subprocess.Popen(["sh", "-c", "sleep 600; true"], start_new_session=True) as process:
        assert run_process.processes_with(run_process.RUN_FOLDER_ENV, "none", {process.pid}) == []
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can start another user's process")
def test_marked_processes_of_other_users_are_left_alone(tmp_path):
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path)}
    with subprocess.Popen(["sleep", "600"], user=65534, env=environment) as process:
        assert run_process.processes_with(run_process.OUTPUT_FOLDER_ENV, str(tmp_path)) == []
        process.kill()


def test_next_batch_removes_what_processes_killed_at_one_blow_have_left(tmp_path):
    """As when a host runs out of memory or stops: none of them can tidy up. Files of the user stay."""
    private, logs, other = run_process.private_folder(), tmp_path / "logs", tmp_path / "run-mine"
    (private / "kernel.json").touch()
    for folder in (logs, other):
        folder.mkdir()
    (logs / run_process.PRIVATE_FOLDERS_FILE).write_text(f"{private}\n{private}-gone\n{other}\n")
    half = [tmp_path / ".a-run.json.4711.tmp", tmp_path / ".a-run.ipynb.4711.tmp", logs / ".batch.json.4711.tmp"]
    for path in (*half, tmp_path / ".my.tmp"):
        path.touch()
    with output_folder.held(tmp_path, False):
        assert not any(path.exists() for path in (private, logs / run_process.PRIVATE_FOLDERS_FILE, *half))
        half[0].touch()  # by a kernel that is killed while this batch goes on
    assert sorted(path.name for path in tmp_path.iterdir()) == [".my.tmp", "logs", "run-mine"]


def test_reason_is_looked_for_in_the_end_of_a_long_log(tmp_path, monkeypatch):
    """A notebook that prints without end must not fill the memory of the runner."""
    monkeypatch.setattr(run_process, "LOG_BYTES", 100)
    monkeypatch.setattr(run_process, "NOTEBOOK_BYTES", 100)
    run = Run("a-run", tmp_path / "a.ipynb", "fp32", {}, tmp_path, 1.0)
    assert run_process.read_log(run) == ""
    (tmp_path / "logs").mkdir()
    run.log_path.write_text("\u00e4" * 1000 + "\nthe end")
    (tmp_path / "a-run.ipynb").write_text(" " * 101)
    assert len(run_process.read_log(run)) <= 100
    monkeypatch.setattr(run_process.json, "loads", Mock(side_effect=AssertionError))
    assert run_process.failure_reason(run) == "the end"


def test_batch_leaves_no_process_behind(tmp_path):
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path)}
    with output_folder.held(tmp_path, False):
        process = subprocess.Popen(["sleep", "600"], env=environment)
        assert process.poll() is None
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_runs_are_stopped_together(tmp_path):
    """The second does not go on while the first is cleared away."""
    actives, alive = [], []
    for _ in range(2):
        process, private = subprocess.Popen(["sleep", "600"]), run_process.private_folder()
        actives.append(run_process.RunningProcess(None, process, private, None))
    wait = actives[0].process.wait
    actives[0].process.wait = lambda: (alive.append(actives[1].process.wait(timeout=5)), wait())
    run_process.stop_all(actives)
    assert alive == [-signal.SIGKILL]
    assert not any(active.private.exists() for active in actives)


def test_lines_say_at_which_step_of_its_training_a_run_is(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(status, "PLAIN_SECONDS", 0.5)
    said = []

    def watch():
        wait_for((tmp_path / "begun-0-fp32").exists)
        wait_for(lambda: said.append(capsys.readouterr().out) or "step 30/40" in "".join(said))
        (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert main(suite, tmp_path / "out", "train", *BASE, "-p", "data_dir", tmp_path) == 0
    watcher.join()
    text = "".join(said)
    assert re.search(r"^cpu0  tiny-\S+  cell 4/6, fp32, epoch 2/2, step 30/40  0:\d\d$", text, re.MULTILINE), text
    assert "\ntrain: end: known after the first run\n" in text
    assert "step 30/40" in (tmp_path / "out/logs/batch.log").read_text()


def test_time_left_comes_from_the_steps_once_there_are_enough(monkeypatch):
    active = types.SimpleNamespace(started=0.0)
    slot, now = scheduler.DeviceSlot(MADE_UP[0], active=active), Mock(return_value=100.0)
    monkeypatch.setattr(scheduler.time, "monotonic", now)
    assert scheduler.seconds_left(slot, 130.0, "cell 9/40") == (30.0, False)
    assert scheduler.seconds_left(slot, 130.0, "cell 9/40, fp32, epoch 1/2, step 0/10") == (30.0, False)
    now.return_value = 120.0  # of a step or two
    assert scheduler.seconds_left(slot, 130.0, "cell 9/40, fp32, epoch 1/2, step 2/10") == (10.0, False)
    now.return_value = 200.0
    assert scheduler.seconds_left(slot, 130.0, "cell 9/40, fp32, epoch 1/2, step 5/10") == (300.0, True)
    assert scheduler.seconds_left(slot, 130.0, "cell 10/40") == (0, False)


@pytest.mark.parametrize(
    "progress, share",
    [("", None), ("cell 9/40, decoding, step 3/9", None), ("cell 9/40, fp32, epoch 3/4, step 1/2", 0.625)],
)
def test_share_of_a_training_is_read_from_what_its_notebook_tells(progress, share):
    assert estimates.share_done(progress) == share


def test_run_that_stands_still_is_ended_and_says_where(suite, tmp_path):
    assert main(suite, tmp_path / "out", "stall", *BASE, "--stall-minutes", 0.25) == 1
    (record,) = records_of(tmp_path / "out").values()
    assert record["status"] == "timeout"
    where = r"at cell 4/6, fp32, epoch 2/2, step 30/40 for 0\.[23]\d* minutes \(--stall-minutes\)"
    assert re.fullmatch(f"stopped, for it stood still {where}", record["reason"])
    assert not survivors("stall")


@pytest.mark.parametrize("stall", [60, 0])
def test_run_whose_steps_go_on_does_not_stand_still(tmp_path, monkeypatch, stall):
    """The cell and the epoch stay the same, and so may the step for a while; 0 lets it stand still for ever."""
    now = Mock(return_value=0.0)
    monkeypatch.setattr(run_process.time, "monotonic", now)
    active = run_process.RunningProcess(None, types.SimpleNamespace(poll=lambda: None), tmp_path, None)
    monkeypatch.setattr(run_process, "SILENCE_SECONDS", 1e9)
    (tmp_path / "cell").write_text("9/40")
    for step in range(1, 10):
        (tmp_path / "progress").write_text(f"fp32, epoch 1/2, step {step}/40")
        for _ in range(2):
            now.return_value += 25
            assert run_process.check(active, None, None, 1e9, stall) is None
    if stall:
        now.return_value += 61
        monkeypatch.setattr(run_process, "stop", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            run_process.check(active, None, None, 1e9, stall)
        assert active.stopped.startswith("stopped, for it stood still at cell 9/40, fp32, epoch 1/2, step 9/40 for 1")
    else:
        now.return_value += 1e6
        assert run_process.check(active, None, None, 1e9, stall) is None


def test_gpu_answers_where_nvml_finds_it_and_a_process_computes_on_it(monkeypatch, tmp_path):
    states = {"GPU-0": 10}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(states))
    monkeypatch.setattr(run_process, "PROBE", "import os, sys; sys.exit(os.environ['CUDA_VISIBLE_DEVICES'] != 'GPU-0')")
    assert run_process.answers(MADE_UP[0])
    monkeypatch.setattr(run_process, "PROBE", "import sys; sys.exit(1)")
    assert not run_process.answers(MADE_UP[0])
    monkeypatch.setattr(run_process, "PROBE", "import time; time.sleep(600)")
    monkeypatch.setattr(run_process, "PROBE_SECONDS", 0.2)
    assert not run_process.answers(MADE_UP[0])
    monkeypatch.setattr(run_process, "PROBE", "pass")
    monkeypatch.setattr(run_process, "PROBE_SECONDS", 60)
    states["GPU-0"] = -15
    assert not run_process.answers(MADE_UP[0])
    assert run_process.answers(Device(0, "cpu0"))


def test_device_that_is_lost_before_a_run_is_not_the_runs_fault(monkeypatch):
    """As where the actor of a node that has died gets the run of another one."""
    slot, about = slot_with_a_run(), scheduler.RunQueue("a", None, 1.0, [], {}, 1, [])
    monkeypatch.setattr(scheduler, "write_ending", Mock(side_effect=AssertionError))
    for _ in range(3):
        again = scheduler.DeviceSlot(MADE_UP[0], comparison=slot.comparison, run=slot.run, active=Mock(started=0.0))
        scheduler.finish(again, run_process.RunOutcome(None, "its node failed", True, False), about, None, None)
        assert about.waiting.pop(0) == (slot.comparison, slot.comparison, None)
    assert about.losses == {"a-run": []}
