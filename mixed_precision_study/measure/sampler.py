"""Power, clock, temperature and throttling of a GPU, sampled ten times a second by a process of its
own.

    python -m mixed_precision_study.measure.sampler GPU-<uuid>     prints a line of JSON for each
    sample

A thread in the training process made its loop 3% slower. The sampling process ends when its
standard input closes, so also when the training process is killed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..store.variables import IMPORTS_ENV, with_folder
from .nvml import NvmlGpu

START_SECONDS = 5  # at most, until the first sample


@contextmanager
def sampled(uuid: str | None, samples: list[dict]) -> Iterator[None]:
    """Sample the GPU about ten times a second while the block runs, then add the samples to
    `samples`.
    """
    with tempfile.TemporaryFile("w+") as lines:
        command = [sys.executable, "-m", "mixed_precision_study.measure.sampler", f"GPU-{uuid}"]
        package_in = Path(__file__).parents[2]  # a folder, or a wheel
        environment = {**os.environ, IMPORTS_ENV: with_folder(package_in, IMPORTS_ENV)}
        pipes: dict = {"stdin": subprocess.PIPE, "stdout": lines, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(command, env=environment, **pipes)
        until = time.perf_counter() + START_SECONDS
        while (
            os.fstat(lines.fileno()).st_size == 0
            and child.poll() is None
            and time.perf_counter() < until
        ):
            time.sleep(0.01)  # the child's start would disturb the timing
        try:
            yield
        finally:
            child.kill()
            child.communicate()
            lines.seek(0)
            samples.extend(
                json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")
            )


def print_samples(uuid: str) -> None:
    """Print a sample of the GPU every 0.1 s until standard input closes; return at once if NVML
    cannot be asked.
    """
    threading.Thread(target=exit_with_input, daemon=True).start()
    gpu = NvmlGpu(uuid)
    if gpu.handle is None:
        return
    while True:
        sample = {
            "seconds": time.perf_counter(),
            "mhz": gpu.ask("ClockInfo", 1),  # 1: the streaming multiprocessors
            "celsius": gpu.ask("Temperature", 0),
            "bits": gpu.ask("CurrentClocksThrottleReasons"),  # those of THROTTLES count
            "pids": gpu.process_ids(),
        }
        print(json.dumps(sample), flush=True)
        time.sleep(0.1)


def exit_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    print_samples(sys.argv[1])
