"""One run: how its kernel is reached, started again, found silent, ended with all it has started, and judged."""

import contextlib
import errno
import json
import os
import queue
import re
import shutil
import signal
import stat
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
from jupyter_client import BlockingKernelClient
from tiny_suite import (
    ON_CPU,
    ROOT,
    as_other_user,
    begun,
    command,
    entry,
    main,
    read_records,
    survivors,
    wait_for,
    write_notebook,
    write_suite,
)

from mixed_precision_study.errors import UserError
from mixed_precision_study.gpu import nvml as gpu_nvml
from mixed_precision_study.runner import cli, estimates, execute_notebook, output_folder, scheduler, status
from mixed_precision_study.runner import kernel as run_kernel
from mixed_precision_study.runner import process as run_process
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.plan import Run

FP32 = {"precisions": ["fp32"]}
STUDIES = {
    **{mode: [entry(mode)] for mode in ("freeze", "ok", "wait", "stall", "train", "hang")},
    "poison": [
        {"notebook": "tiny", "minutes": 9, "parameters": {"mode": "poison", "precisions": ["fp32", "amp_bf16"]}},
        {"notebook": "tiny", "parameters": FP32, "sweep": {"seed": [0, 1, 2]}},
    ],
    "lost": [{"notebook": "tiny", "parameters": {**FP32, "mode": "lost"}, "sweep": {"seed": [0, 1]}}],
}
GPUS = [Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(3)]
CPU = Device(0, "cpu0")
PORTS = ("shell", "iopub", "stdin", "control", "hb")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("process"), STUDIES)


@contextlib.contextmanager
def endless(*command, **options):
    """Start a process that ends with the test, whether that passes or not."""
    process = subprocess.Popen(command or ["sleep", "600"], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def running_process(run=None, process=None, private=None, device=CPU, **fields):
    return run_process.RunningProcess(run, device, None, process, private, None, **fields)


def nvml(states):
    """Return a stand-in for pynvml: {uuid: MiB used, or the number of an error with a minus}."""

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


@pytest.fixture
def gpu_memory(monkeypatch):
    """{uuid: MiB used} as the stand-in for NVML reports it; -15 for a lost GPU."""
    states = {device.visible: 10 for device in GPUS}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(states))
    return states


ATTEMPTS = """
for path in sys.argv[1:]:
    for attempt in (lambda: open(path).read(), lambda: socket.socket(socket.AF_UNIX).connect(path)):
        try:
            attempt()
        except PermissionError:
            continue
        except OSError as error:
            print(path, error)
        else:
            print("could use", path)
"""


def test_kernel_is_reached_through_a_private_folder_only(suite, tmp_path):
    """No port is left: not even that of ipykernel for the output of forked processes."""
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    with endless(*words, stdout=subprocess.DEVNULL) as runner:
        wait_for(lambda: begun(tmp_path))
        processes = survivors("wait")
        (folder,) = {Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in processes}
        connections = [one for process in processes for one in process.net_connections("inet")]
        connection = json.loads((folder / "kernel.json").read_text())
        file_mode = stat.S_IMODE((folder / "kernel.json").stat().st_mode)
        files = sorted(folder.iterdir())
        noted = (tmp_path / "out" / "logs" / run_process.PRIVATE_FOLDERS_FILE).read_text()
        mode = stat.S_IMODE(folder.stat().st_mode) & 0o777
        command_lines = [process.cmdline() for process in processes]
        refused = as_other_user(ATTEMPTS, *files) if os.geteuid() == 0 else ""
        (tmp_path / "go").touch()
        assert runner.wait(timeout=200) == 0
    assert len(processes) >= 2  # papermill and its kernel
    assert not connections
    assert (connection["transport"], connection["ip"], mode) == ("ipc", str(folder / "kernel"), 0o700)
    assert (len(connection["key"]) >= 32, file_mode) == (True, 0o600)
    sockets = {"kernel-1", "kernel-2", "kernel-3", "kernel-4", "kernel-5", run_kernel.SOCKET}
    assert sockets | {"cell"} <= {path.name for path in files}
    assert refused == ""
    assert not any("sh" in Path(words[0]).name for words in command_lines)
    assert noted == f"{folder}\n"
    assert not folder.exists()


@contextlib.contextmanager
def executing(tmp_path, folder, *sources, **environment):
    """Start execute_notebook.py with these cells and yield its process, as start_notebook would with this folder."""
    write_notebook(tmp_path / "small.ipynb", *sources)
    (tmp_path / "small.yaml").write_text("{}")
    folder.mkdir(mode=0o700, parents=True)
    paths = [tmp_path / "small.ipynb", tmp_path / "executed.ipynb", tmp_path / "small.yaml", folder]
    words = [sys.executable, "-m", run_process.EXECUTE, *map(str, paths), str(os.getpid())]
    environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
    with endless(*words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
        yield process


def outputs_of(path):
    cells = json.loads(path.read_text())["cells"]
    return "".join("".join(output.get("text", ())) for cell in cells for output in cell["outputs"])


WAIT_FOR_GO = "import time, pathlib\nwhile not pathlib.Path({!r}).exists():\n    time.sleep(0.05)"


def test_where_only_ports_are_possible_the_key_is_in_a_private_file(tmp_path):
    """A path too long for sockets takes the way of Windows. There the key is what keeps others out."""
    folder = tmp_path / ("x" * 100)
    with executing(tmp_path, folder, WAIT_FOR_GO.format(str(tmp_path / "go"))) as process:
        wait_for(lambda: (folder / "cell").exists())
        connection = json.loads((folder / "kernel.json").read_text())
        file_mode = stat.S_IMODE((folder / "kernel.json").stat().st_mode)
        kernel = psutil.Process(int((folder / "session").read_text()))
        ports = {one.laddr for one in kernel.net_connections("inet") if one.status == "LISTEN"}
        stranger = BlockingKernelClient()
        stranger.load_connection_info({**connection, "key": "no"})
        stranger.start_channels()
        stranger.execute(f"open({str(tmp_path / 'harm')!r}, 'w')")
        with pytest.raises(queue.Empty):
            stranger.get_shell_msg(timeout=1)
        stranger.stop_channels()
        (tmp_path / "go").touch()
        assert process.wait(timeout=200) == 0
    assert (connection["transport"], len(connection["key"]) >= 32, file_mode) == ("tcp", True, 0o600)
    assert {port.port for port in ports} == {connection[f"{name}_port"] for name in PORTS}
    assert {port.ip for port in ports} == {"127.0.0.1"}
    assert not (tmp_path / "harm").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_output_of_forked_processes_is_in_the_notebook(tmp_path):
    with tempfile.TemporaryDirectory() as short:
        code = "import os, sys\nif os.fork() == 0:\n    print('from a fork', flush=True)\n    os._exit(0)\nos.wait()"
        with executing(tmp_path, Path(short) / "run", code, "import time; time.sleep(1)") as process:
            assert process.wait(timeout=200) == 0
    assert "from a fork" in outputs_of(tmp_path / "executed.ipynb")


def test_kernel_ends_by_its_exit_functions_and_does_not_take_its_modules_apart(tmp_path):
    ended = f"import atexit; atexit.register(open, {str(tmp_path / 'ended')!r}, 'w')"
    held = (
        "import sys, types\n"
        f"class Held:\n    def __del__(self, touch=open):\n        touch({str(tmp_path / 'apart')!r}, 'w')\n"
        "sys.modules['held'] = types.ModuleType('held'); sys.modules['held'].one = Held(); print('the last words')"
    )
    with executing(tmp_path, tmp_path / "run", ended, held) as process:
        assert process.wait(timeout=200) == 0
    assert "the last words" in outputs_of(tmp_path / "executed.ipynb")
    assert (tmp_path / "ended").exists() and not (tmp_path / "apart").exists()


def test_kernel_is_of_this_python_whatever_kernelspecs_there_are(tmp_path):
    """`ipython kernel install --user` of another Python leaves such a file."""
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/bin/false"], "display_name": "Another", "language": "python"}))
    where = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "JUPYTER_PREFER_ENV_PATH": "0"}
    with executing(tmp_path, tmp_path / "run", "import sys; print(sys.executable)", **where) as process:
        assert process.wait(timeout=200) == 0
    assert outputs_of(tmp_path / "executed.ipynb") == f"{sys.executable}\n"


def test_start_that_fails_is_tried_again_and_a_third_time(suite, tmp_path, monkeypatch, capsys):
    """A kernel that cannot import its messaging library twice, and one that never can."""
    starts = tmp_path / "starts"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if {execute_notebook.KERNEL!r} in sys.orig_argv:\n"
        f"    with open({str(starts)!r}, 'a') as file:\n"
        "        file.write('x')\n"
        f"    if os.path.getsize({str(starts)!r}) <= int(os.environ['BROKEN_STARTS']):\n"
        "        sys.modules['zmq'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("BROKEN_STARTS", "2")
    monkeypatch.setattr(scheduler, "START_WAIT_SECONDS", 0.25)
    assert main(suite, "ok", *ON_CPU, "--output-dir", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert starts.read_text() == "xxx"
    assert "starts again in 0.5 s  the kernel did not start" in said
    assert "starts again in 1 s" in said
    monkeypatch.setenv("BROKEN_STARTS", "9")
    monkeypatch.setattr(run_process, "START_ATTEMPTS", 1)
    assert main(suite, "ok", *ON_CPU, "--output-dir", tmp_path / "never") == 1
    (record,) = read_records(tmp_path / "never")
    assert record["status"] == "failed"
    assert "did not start in 1 attempts" in record["reason"]


def test_kernel_without_a_heartbeat_is_ended(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(run_process, "SILENCE_SECONDS", 6)
    assert main(suite, "freeze", *ON_CPU, "--output-dir", tmp_path / "out") == 1
    (record,) = read_records(tmp_path / "out")
    assert record["status"] == "timeout"
    assert "no sign of life for 0.1" in record["reason"]
    assert not survivors("freeze")


def test_run_whose_private_folder_is_removed_says_so(suite, tmp_path, monkeypatch):
    """As by a cleaner of the temporary folder. The kernel lives, but nobody could tell when it no longer does."""

    def watch():
        wait_for(lambda: begun(tmp_path))
        (private,) = {process.environ()[run_process.RUN_FOLDER_ENV] for process in survivors("wait")}
        shutil.rmtree(private)
        monkeypatch.setattr(run_process, "SILENCE_SECONDS", 3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert main(suite, "wait", *ON_CPU, "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path) == 1
    watcher.join()
    (record,) = read_records(tmp_path / "out")
    assert record["status"] == "timeout"
    assert re.search(r"its private folder run-\w+ has been removed", record["reason"])
    assert not survivors("wait")


def test_run_that_takes_longer_than_the_silence_allowed_is_left_alone_while_it_answers(suite, tmp_path, monkeypatch):
    def watch():
        wait_for(lambda: begun(tmp_path))
        monkeypatch.setattr(run_process, "SILENCE_SECONDS", 8)
        time.sleep(9)
        (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert main(suite, "wait", *ON_CPU, "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path) == 0
    watcher.join()
    assert [record["status"] for record in read_records(tmp_path / "out")] == ["ok"]


def test_what_outlives_a_killed_runner_ends_by_itself_and_leaves_nothing(suite, tmp_path):
    words = command(suite, "wait", "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path)
    with endless(*words, stdout=subprocess.DEVNULL):
        wait_for(lambda: begun(tmp_path))
        (private,) = {Path(process.environ()[run_process.RUN_FOLDER_ENV]) for process in survivors("wait")}
    wait_for(lambda: not survivors("wait"), 60)
    wait_for(lambda: not private.exists(), 60)
    assert not read_records(tmp_path / "out")


def test_run_without_a_parent_ends_all_its_children(suite, tmp_path):
    """The kernel has a child of its own, which would go on for ten minutes."""
    words = command(suite, "hang", "--output-dir", tmp_path / "out")
    with endless(*words, stdout=subprocess.DEVNULL):
        wait_for(lambda: any("time.sleep(600)" in " ".join(process.cmdline()) for process in survivors("hang")))
    wait_for(lambda: not survivors("hang"), 60)


@pytest.fixture
def lost_when_begun(gpu_memory, monkeypatch):
    """NVML calls GPU-0 lost as soon as its first run has begun."""
    start = run_process.start_notebook

    def started(*words):
        gpu_memory["GPU-0"] = -15
        return start(*words)

    monkeypatch.setattr(run_process, "start_notebook", started)


def test_lost_gpu_leaves_the_pool_and_its_runs_go_to_another(suite, tmp_path, monkeypatch, capsys, lost_when_begun):
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS[:2])
    assert main(suite, "lost", "--output-dir", tmp_path / "out") == 0
    ends = [(record["status"], record["gpu_uuid"]) for record in read_records(tmp_path / "out")]
    assert ends == [("ok", "GPU-1")] * 2
    said = capsys.readouterr().out
    assert "gpu0 IS LOST" in said
    assert said.count("IS LOST") == 1


@pytest.mark.parametrize("devices, probe, again", [(1, "pass", 4), (2, "pass", 4), (3, "raise SystemExit(1)", 0)])
def test_run_that_loses_every_gpu_fails_after_the_second(
    suite, tmp_path, monkeypatch, capsys, gpu_memory, devices, probe, again
):
    """Two such runs in one comparison. The rest needs the GPUs back. One that does not answer stays out."""
    monkeypatch.setattr(gpu_nvml, "is_lost", lambda uuid, text, answered: "illegal instruction" in text)
    monkeypatch.setattr(run_process, "PROBE", probe)
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS[:devices])
    monkeypatch.setattr(cli, "summarise", lambda *words: True)
    assert main(suite, "poison", "--output-dir", tmp_path / "out") == 1
    said = capsys.readouterr().out
    records = read_records(tmp_path / "out")
    lost = r"gpu\d \(the GPU was lost: RuntimeError: CUDA error: an illegal instruction was encountered\)"
    at_fault = [one for one in records if re.search(f"lost under it 2 times.*: {lost}; {lost}$", one["reason"] or "")]
    assert all(record["code_hash"] for record in at_fault)
    assert said.count("answers and is used again") == again
    if again:  # both runs of the comparison, each on both GPUs; and the rest is done
        assert (len(at_fault), said.count("IS LOST")) == (2, 4)
        assert sorted(record["status"] for record in records) == ["failed"] * 2 + ["ok"] * 3
        assert "no device is left" not in said
    else:
        assert (len(at_fault), said.count("IS LOST")) == (1, 3)
        assert "no device is left" in said


def test_without_any_gpu_left_the_record_says_why(suite, tmp_path, monkeypatch, capsys, lost_when_begun):
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS[:1])
    assert main(suite, "lost", "--output-dir", tmp_path / "out", "-p", "seed", 0) == 1
    (record,) = read_records(tmp_path / "out")
    assert record["reason"] == "the GPU was lost: RuntimeError: CUDA error: unspecified launch failure"
    assert "no device is left" in capsys.readouterr().out


def test_gpu_that_is_lost_before_a_run_gets_none(suite, tmp_path, monkeypatch, capsys, gpu_memory):
    gpu_memory["GPU-0"] = -15
    monkeypatch.setattr(cli, "choose_devices", lambda *words: GPUS[:1])
    assert main(suite, "lost", "--output-dir", tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert said.count("gpu0 IS LOST") == 1
    assert "begins" not in said
    assert "no device is left" in said
    assert "runs failed" not in said  # they have not run
    assert not read_records(tmp_path / "out")


def test_run_that_saw_no_gpu_is_not_a_result_of_it(monkeypatch, gpu_memory):
    monkeypatch.setattr(run_process, "read_log", lambda run: "")
    record = {"device_type": "cpu", "status": "ok", "reason": None}
    on_gpu = running_process(device=GPUS[0])
    assert "on the CPU" in run_process.gpu_lost_reason(on_gpu, record)
    assert run_process.gpu_lost_reason(on_gpu, {**record, "device_type": "cuda"}) is None
    assert run_process.gpu_lost_reason(running_process(), record) is None


CUDA_FAULT = "CUDA error: unspecified launch failure"


@pytest.mark.parametrize(
    "state, text, answered, lost",
    [
        (-15, "anything", True, True),  # NVML_ERROR_GPU_IS_LOST
        (-6, "anything", True, True),  # NVML_ERROR_NOT_FOUND
        (10, CUDA_FAULT, True, False),  # the GPU answers: the program is at fault
        (-999, CUDA_FAULT, True, True),  # it no longer answers
        (-999, CUDA_FAULT, False, False),  # it never did
        (-999, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", False, True),
        (-999, "ValueError: no such layer", True, False),
    ],
)
def test_lost_gpu_is_told_from_other_failures(gpu_memory, state, text, answered, lost):
    gpu_memory["GPU-0"] = state
    assert gpu_nvml.is_lost("GPU-0", text, answered) is lost


def test_gpu_answers_where_nvml_finds_it_and_a_process_computes_on_it(monkeypatch, gpu_memory):
    monkeypatch.setattr(run_process, "PROBE", "import os, sys; sys.exit(os.environ['CUDA_VISIBLE_DEVICES'] != 'GPU-0')")
    assert run_process.device_works(GPUS[0])
    assert not run_process.device_works(GPUS[1])
    assert run_process.device_works(CPU)
    gpu_memory["GPU-0"] = -15
    assert not run_process.device_works(GPUS[0])
    monkeypatch.setattr(run_process, "PROBE", "import time; time.sleep(600)")
    monkeypatch.setattr(run_process, "PROBE_SECONDS", 0.2)
    assert not run_process.device_works(GPUS[1])


def test_device_that_is_lost_before_a_run_is_not_the_runs_fault(monkeypatch):
    """As where the actor of a node that has died gets the run of another one."""
    run = types.SimpleNamespace(run_id="a-run")
    queue = scheduler.RunQueue("a", None, None, 1.0, 0, [], {}, 1, [])
    monkeypatch.setattr(scheduler, "write_ending", Mock(side_effect=AssertionError))
    for _ in range(3):
        slot = scheduler.DeviceSlot(GPUS[0], comparison=[run], run=run, running=Mock(started=0.0))
        outcome = run_process.RunOutcome(None, "its node failed", lost=True, begun=False)
        scheduler.finish(slot, outcome, queue)
        assert queue.waiting.pop(0) == ([run], [run], None)
    assert queue.losses == {"a-run": []}


def test_host_without_room_for_a_process_is_asked_again(capsys):
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    queue = Mock(**{"executor.launch.side_effect": error})
    slot = scheduler.DeviceSlot(
        GPUS[1], run=types.SimpleNamespace(run_id="a-run", notebook=Path("tiny.ipynb"), shares="")
    )
    for attempt, seconds in ((2, "2.5"), (3, "4.5"), (4, "8.5")):
        scheduler.begin(slot, queue)
        assert (slot.attempt, slot.running) == (attempt, None)
        assert f"gpu1  a-run  starts again in {seconds} s" in capsys.readouterr().out
    with pytest.raises(BlockingIOError):  # then run_all.py stops, and can be resumed
        scheduler.begin(slot, queue)
    slot.attempt = 1
    queue.executor.launch.side_effect = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        scheduler.begin(slot, queue)


def test_record_of_a_failure_names_the_code_that_was_started(tmp_path):
    """The notebook has been edited, or is gone, by the time its run is judged."""
    parameters = {"dataset": "auto", "model": "tiny", "batch_size": 4, "seed": 0, "output_dir": str(tmp_path)}
    run = Run("a-run", tmp_path / "gone.ipynb", "fp32", parameters, tmp_path, 1.0, order=5, study={"name": "mine"})
    record = run_process.write_ending(running_process(run, code_hash="0123456789ab"), "timeout", "stopped")
    assert (record["status"], record["code_hash"], record["order_in_comparison"]) == ("timeout", "0123456789ab", 5)
    assert record["study"] == {"name": "mine"}


def test_next_run_waits_until_the_memory_is_free(monkeypatch, capsys, gpu_memory):
    before = gpu_nvml.GpuState(100, 1024, 0)
    ended = running_process(device=GPUS[0], gpu_before=before)
    slot = scheduler.DeviceSlot(GPUS[0], ended=ended, ended_at=time.monotonic())
    gpu_memory["GPU-0"] = 500
    assert not scheduler.memory_cleared(slot, run_process)
    gpu_memory["GPU-0"] = 120
    assert scheduler.memory_cleared(slot, run_process)
    gpu_memory["GPU-0"] = 500
    slot.ended = ended
    slot.ended_at = time.monotonic() - scheduler.CLEAR_SECONDS - 1
    assert scheduler.memory_cleared(slot, run_process)
    assert "still held" in capsys.readouterr().out
    assert gpu_nvml.memory_is_free("GPU-0", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_nvml.gpu_state("GPU-0") is None
    assert gpu_nvml.memory_is_free("GPU-0", before)


@pytest.mark.parametrize("text", ["low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\n", "under_oom 0\noom_kill 2\n"])
def test_kills_for_want_of_memory_are_counted(tmp_path, text):
    (tmp_path / "events").write_text(text)
    assert run_process.oom_kills([str(tmp_path / "absent"), f"{tmp_path}/events{{group}}", "/proc/vmstat"]) == 2
    assert run_process.oom_kills([str(tmp_path / "absent")]) is None


@pytest.mark.parametrize(
    "before, after, words",
    [
        (2, 3, "ended by SIGKILL because the host's memory was exhausted"),
        (2, 2, "ended by SIGKILL (the system counted no kill for lack of memory)"),
        (None, None, "ended by SIGKILL (is the host's memory exhausted?)"),
    ],
)
def test_host_memory_is_told_from_another_kill(monkeypatch, before, after, words):
    process = types.SimpleNamespace(returncode=run_process.DEAD_KERNEL_EXIT)
    running = running_process(process=process, oom_kills=before)
    monkeypatch.setattr(run_process, "oom_kills", lambda: after)
    monkeypatch.setattr(run_process, "read_log", lambda run: "")
    assert run_process.ending_of(running, "3/5", "-9") == ("killed", f"the kernel died: {words}")
    assert run_process.ending_of(running, "3/5", "-11") == ("killed", "the kernel died: ended by SIGSEGV")


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


def has_ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_marked_processes_are_found_whoever_their_parent_is(tmp_path):
    """The grandchild of a dead process leads a session of its own, as a kernel does."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    private = run_process.private_folder()
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path), run_process.RUN_FOLDER_ENV: str(private)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    # A new program counts as started a moment before Linux shows its environment.
    (found,) = wait_for(lambda: run_process.processes_with(run_process.RUN_FOLDER_ENV, str(private)))
    assert run_process.kill_processes_with(run_process.OUTPUT_FOLDER_ENV, str(tmp_path)) == 1
    assert has_ended(found)
    assert not private.exists()


@pytest.mark.parametrize("leader", ["execute_notebook.py", "kernel"])
def test_what_a_run_started_with_another_environment_ends_with_it(leader):
    """Only the session of the dead process that started it shows that it belongs to the run."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], env={}, stdout=subprocess.DEVNULL).pid)"
    words = [sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = psutil.Process(int(process.communicate()[0]))
    private = run_process.private_folder()
    if leader == "kernel":
        (private / "session").write_text(str(process.pid))
        process = subprocess.Popen(["true"])
    assert left.is_running()
    run_process.kill_run(process, private)
    assert has_ended(left)


def test_living_session_that_only_has_the_number_of_a_dead_one_is_left_alone():
    with endless("sleep", "600", start_new_session=True) as process:
        assert run_process.processes_with(run_process.RUN_FOLDER_ENV, "none", {process.pid}) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can start another user's process")
def test_marked_processes_of_other_users_are_left_alone(tmp_path):
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path)}
    with endless(user=65534, env=environment):
        assert run_process.processes_with(run_process.OUTPUT_FOLDER_ENV, str(tmp_path)) == []


def test_next_batch_removes_what_processes_killed_at_one_blow_have_left(tmp_path):
    """As when a host runs out of memory or stops: none of them can tidy up. Files of the user stay."""
    logs, other = tmp_path / "logs", tmp_path / "run-mine"
    private = [run_process.private_folder() for _ in range(4)]  # the last is of nobody
    dead, living, of_others = private[:3]
    for folder, owner in ((dead, tmp_path), (living, tmp_path), (of_others, other)):
        (folder / run_process.OWNER_FILE).write_text(str(owner))
    for folder in (logs, other):
        folder.mkdir()
    noted = logs / run_process.PRIVATE_FOLDERS_FILE
    noted.write_text("".join(f"{folder}\n" for folder in (*private, f"{dead}-gone", other)))
    half = [tmp_path / ".a-run.json.4711.tmp", tmp_path / ".a-run.ipynb.4711.tmp", logs / ".batch.json.4711.tmp"]
    for path in (*half, tmp_path / ".my.tmp"):
        path.touch()
    try:
        with endless(env={**os.environ, run_process.RUN_FOLDER_ENV: str(living)}):
            with output_folder.held(tmp_path, False):
                assert not any(path.exists() for path in (dead, noted, *half))
                half[0].touch()  # by a kernel that is killed now
            assert all(folder.exists() for folder in private[1:])
    finally:
        for folder in private:
            shutil.rmtree(folder, ignore_errors=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".my.tmp", "logs", "run-mine"]


HOLD = """
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("holds it")
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can start another user's process")
@pytest.mark.parametrize("before", ["new", "old"])
def test_another_user_cannot_hold_the_lock(before):
    """A lock may be older than its mode."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lock = folder / "logs" / ".lock"
        lock.parent.mkdir()
        folder.chmod(0o755)
        if before == "old":
            lock.touch(0o644)
            assert as_other_user(HOLD, lock) == "holds it\n"
        with output_folder.held(folder, False):
            pass
        assert as_other_user(HOLD, lock) == "refused\n"


def test_what_the_runner_writes_into_its_logs_follows_no_link(tmp_path):
    """An output folder may come from anywhere, and the name of a temporary file can be foreseen."""
    precious, logs = tmp_path / "precious", tmp_path / "out" / "logs"
    precious.write_text("mine")
    logs.mkdir(parents=True)
    for name in (".lock_owner", f"..lock_owner.{os.getpid()}.tmp", "batch.log"):
        (logs / name).symlink_to(precious)
    with output_folder.held(tmp_path / "out", False), pytest.raises(UserError, match=f"process {os.getpid()} on"):
        output_folder.held(tmp_path / "out", False).__enter__()
    with status.log_in(tmp_path / "out"):
        status.say("one line")
    assert precious.read_text() == "mine" and "one line" in (logs / "batch.log").read_text()


def test_logs_that_lead_elsewhere_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        output_folder.make(tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_released_output_folder_leaves_no_process_behind(tmp_path):
    environment = {**os.environ, run_process.OUTPUT_FOLDER_ENV: str(tmp_path)}
    with output_folder.held(tmp_path, False):
        process = subprocess.Popen(["sleep", "600"], env=environment)
        assert process.poll() is None
    assert process.wait(timeout=200) == -signal.SIGKILL


def test_runs_are_stopped_together():
    """The second does not go on while the first is tidied up."""
    runs = [running_process(None, subprocess.Popen(["sleep", "600"]), run_process.private_folder()) for _ in range(2)]
    ends = []
    wait = runs[0].process.wait
    runs[0].process.wait = lambda: (ends.append(runs[1].process.wait(timeout=200)), wait())
    run_process.stop_all(runs)
    assert ends == [-signal.SIGKILL]
    assert not any(running.private.exists() for running in runs)


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


def test_lines_say_at_which_step_of_its_training_a_run_is(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(status, "PLAIN_SECONDS", 0.5)
    said = []

    def watch():
        wait_for(lambda: begun(tmp_path))
        wait_for(lambda: said.append(capsys.readouterr().out) or "step 30/40" in "".join(said))
        (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert main(suite, "train", *ON_CPU, "--output-dir", tmp_path / "out", "-p", "data_dir", tmp_path) == 0
    watcher.join()
    text = "".join(said)
    assert re.search(r"^cpu0  tiny fp32 b4  epoch 2/2, step 30/40  0:\d\d$", text, re.MULTILINE), text
    assert "\ntrain: end: known after the first run\n" in text
    assert "step 30/40" in (tmp_path / "out/logs/batch.log").read_text()


def test_time_left_comes_from_the_steps_once_there_are_enough(monkeypatch):
    slot = scheduler.DeviceSlot(GPUS[0], running=types.SimpleNamespace(started=0.0))
    for now, progress, left in (
        (100, "", (30, False)),
        (100, ", fp32, epoch 1/2, step 0/10", (30, False)),
        (120, ", fp32, epoch 1/2, step 2/10", (10, False)),  # not yet enough steps
        (200, ", fp32, epoch 1/2, step 5/10", (300, True)),
        (200, "", (0, False)),
    ):
        monkeypatch.setattr(scheduler.time, "monotonic", Mock(return_value=float(now)))
        assert scheduler.seconds_left(slot, 130.0, f"cell 9/40{progress}") == left


@pytest.mark.parametrize(
    "progress, share",
    [("", None), ("cell 9/40, decoding, step 3/9", None), ("cell 9/40, fp32, epoch 3/4, step 1/2", 0.625)],
)
def test_share_of_a_training_is_read_from_what_its_notebook_tells(progress, share):
    assert estimates.share_done(progress) == share


def test_run_that_stands_still_is_ended_and_says_where(suite, tmp_path):
    assert main(suite, "stall", *ON_CPU, "--output-dir", tmp_path / "out", "--stall-minutes", 0.25) == 1
    (record,) = read_records(tmp_path / "out")
    assert record["status"] == "timeout"
    assert re.search(r"at cell 4/6, fp32, epoch 2/2, step 30/40 for \d\.\d+ minutes", record["reason"])
    assert not survivors("stall")


@pytest.mark.parametrize("stall", [60, 0])
def test_run_whose_steps_go_on_does_not_stand_still(tmp_path, monkeypatch, stall):
    """The cell and the epoch stay the same, and so may the step for a while. With 0 it may stand still for ever."""
    now = Mock(return_value=0.0)
    monkeypatch.setattr(run_process.time, "monotonic", now)
    monkeypatch.setattr(run_process, "SILENCE_SECONDS", 1e9)
    running = running_process(process=types.SimpleNamespace(poll=lambda: None), private=tmp_path)
    (tmp_path / "cell").write_text("9/40")
    for step in range(1, 10):
        (tmp_path / "progress").write_text(f"fp32, epoch 1/2, step {step}/40")
        for _ in range(2):
            now.return_value += 25
            assert run_process.poll(running, 1e9, stall) is None
    if stall:
        now.return_value += 61
        monkeypatch.setattr(run_process, "stop", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            run_process.poll(running, 1e9, stall)
        assert "stood still at cell 9/40, fp32, epoch 1/2, step 9/40 for 1" in running.stopped
    else:
        now.return_value += 1e6
        assert run_process.poll(running, 1e9, stall) is None
