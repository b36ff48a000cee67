"""Run every test that needs a GPU: first, at the same time, those that can share it, then those
that need it alone.

    python tests/on_gpu.py     # with any options of pytest, such as -k "fp8 or adamw"
    python tests/on_gpu.py --write docs/contributors/gpu_tests.md    # also write the table

The tests that share the GPU compile and train in several processes, because most of their time
passes on the host. The others measure time, fill the GPU's memory or look at the whole GPU, so they
come afterwards in one process.
"""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from mixed_precision_study.measure.nvml import NvmlGpu  # noqa: E402

FILES = sorted(
    str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()
)
NOTHING_CHOSEN = 5  # pytest's exit status where -k leaves no test


def run(marks, processes, options, report):
    """Run the tests with these marks in so many processes, and return (exit status of pytest,
    seconds).
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        *FILES,
        "-m",
        marks,
        "-n",
        str(processes),
        "--dist",
        "load",
    ]
    # the longest come first, and each goes to who is free
    command += ["--maxschedchunk", "1"] if processes else []
    command += ["-q", "--durations", "20", "--tb", "short", "--junitxml", str(report)]
    environment = dict(os.environ)
    if processes:  # else each of them starts threads and compiling processes for all cores
        each = str(max(2, (os.cpu_count() or 1) // processes))
        environment |= {"OMP_NUM_THREADS": each, "TORCHINDUCTOR_COMPILE_THREADS": each}
    began = time.perf_counter()
    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, check=False)
    return (
        0 if done.returncode == NOTHING_CHOSEN else done.returncode
    ), time.perf_counter() - began


def versions():
    """Return what ran the tests, in one line."""
    packages = ("torch", "triton", "timm", "pytest", "pytest-xdist")
    driver = NvmlGpu().answer("SystemGetDriverVersion")
    texts = [torch.cuda.get_device_name(), f"driver {driver}", f"{os.cpu_count()} cores"]
    texts += [f"Python {platform.python_version()}", f"CUDA {torch.version.cuda}"]
    return ", ".join([*texts, *(f"{name} {importlib.metadata.version(name)}" for name in packages)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--processes",
        type=int,
        default=min(8, (os.cpu_count() or 1) // 2),
        help="that share the GPU",
    )
    parser.add_argument("--write", type=Path, help="the file of the table")
    args, options = parser.parse_known_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here, and each of these tests needs one.")
    status = 0
    page = (
        "# The tests that need a GPU\n\n"
        "`python tests/on_gpu.py --write docs/contributors/gpu_tests.md` wrote this page. "
    )
    page += f"{versions()}.\n\n"
    for way, marks, processes in (
        (f"{args.processes} at a time", "not alone", args.processes),
        ("alone", "alone", 0),
    ):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            failed, spent = run(f"gpu and {marks}", processes, options, report)
            counts = ElementTree.parse(report).find("testsuite").attrib if report.exists() else {}  # noqa: S314, pytest wrote it
        status = status or failed
        names = ("tests", "skipped", "failures", "errors")
        found = [f"{counts.get(name, 'unknown')} {name}" for name in names]
        page += f"- {way}: {', '.join(found)}, {spent:.0f} s\n"
    print(page)
    if args.write:
        args.write.write_text(page)
    return status


if __name__ == "__main__":
    sys.exit(main())
