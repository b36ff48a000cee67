"""Power, clock, temperature and throttling of a GPU, sampled ten times a second by a process of its own.

    python -m mixed_precision_study.gpu.sampler GPU-<uuid>     prints a line of JSON for each sample

A thread would take the interpreter from a loop that launches kernels, and made it 3% slower. The process ends when its
standard input closes, so also when the one that started it is killed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def sampled(uuid, samples):
    """Sample the card about ten times a second while the block runs; the samples are added to the list `samples`."""
    with tempfile.TemporaryFile("w+") as lines:
        command = [sys.executable, "-m", "mixed_precision_study.gpu.sampler", f"GPU-{uuid}"]
        found_at = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]  # as a folder, or a wheel
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found_at))}
        streams = {"stdin": subprocess.PIPE, "stdout": lines, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(command, env=environment, **streams)
        waited_until = time.perf_counter() + 5
        while os.fstat(lines.fileno()).st_size == 0 and child.poll() is None and time.perf_counter() < waited_until:
            time.sleep(0.01)  # until it has begun: its start would disturb the timing
        try:
            yield
        finally:
            child.kill()
            child.communicate()
            lines.seek(0)
            samples.extend(json.loads(line) for line in lines if line[0] + line[-1] == "{\n")


def sample_for_ever(uuid):
    """Print one sample of the GPU after the other until standard input closes."""
    import pynvml as nvml

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def ask(question, *details):
        try:
            return getattr(nvml, "nvmlDeviceGet" + question)(card, *details)
        except Exception:
            return None

    while True:
        bits, processes = ask("CurrentClocksEventReasons"), ask("ComputeRunningProcesses")
        sample = {"seconds": time.perf_counter(), "milliwatts": ask("PowerUsage"), "mhz": ask("ClockInfo", 1)}
        sample |= {
            "celsius": ask("Temperature", 0),
            "bits": ask("CurrentClocksThrottleReasons") if bits is None else bits,
        }
        sample["pids"] = None if processes is None else [process.pid for process in processes]
        print(json.dumps(sample), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    sample_for_ever(sys.argv[1])
