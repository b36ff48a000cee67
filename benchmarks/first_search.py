"""Measure the first step of a training, in which cuDNN searches, with and without the kernels that the driver has kept.

    python benchmarks/first_search.py                                              # ResNet-18 in tf32: a minute
    python benchmarks/first_search.py --model tf_efficientnet_b0 --precision amp_fp16
    python benchmarks/first_search.py --device cpu                                 # tiny: shows that it works

It needs fork, so Linux. Each row is a process of its own, forked from one that has imported everything.
first step    Wall time of the first forward and backward pass, on one made-up batch.
processor     The part of it in which the process computes on the host: user time.
cache         What the driver's cache of compiled kernels holds afterwards: ~/.nv/ComputeCache or CUDA_CACHE_PATH.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import timm
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mixed_precision_study.parameters import Unsupported, error_line  # noqa: E402
from mixed_precision_study.train.precision import autocast, check_supported, set_fp32_precision  # noqa: E402
from mixed_precision_study.train.step import allow_search  # noqa: E402

BATCHES = {"resnet18": (128, 3, 32, 32), "tf_efficientnet_b0": (32, 3, 384, 512)}
MODES = ("fp32", "tf32", "amp_fp16", "amp_bf16")
HEAD = "| process | first step (s) | processor (s) | second step (s) | cache (MiB) |\n|---|---|---|---|---|"


def processes(empty: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the environment variables of each process. `empty` is an empty folder."""
    yield "as the host is", {}
    yield "once more", {}
    yield "the driver's cache off", {"CUDA_CACHE_DISABLE": "1"}
    yield "its cache in an empty folder", {"CUDA_CACHE_PATH": empty}
    yield "there once more", {"CUDA_CACHE_PATH": empty}


def cache_mib() -> float:
    """Return the MiB in the driver's cache of this process."""
    folder = Path(os.environ.get("CUDA_CACHE_PATH") or Path.home() / ".nv" / "ComputeCache")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def network_of(model: str) -> torch.nn.Module:
    """Return the model as the notebooks build it."""
    network = timm.create_model(model, num_classes=10 if model == "resnet18" else 1)
    if model == "resnet18":
        network.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        network.maxpool = torch.nn.Identity()
    return network


def measure(model: str, precision: str, kind: str, name: str, changes: dict[str, str], answers) -> None:
    """Take two steps in this process and put its row of the table, or one sentence, into the queue `answers`."""
    os.environ.update(changes)  # before CUDA starts
    device = torch.device(kind)
    try:
        check_supported(precision, "eager", device)
        set_fp32_precision(precision)
        allow_search()
        network = network_of(model).to(device)
        shape = BATCHES[model] if kind == "cuda" else (2, 3, 32, 32)
        images = torch.randn(shape, device=device)

        def step() -> tuple[float, float]:
            wall, user = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
            with autocast(precision, device):
                loss = network(images).float().square().mean()
            loss.backward()
            loss.item()  # waits for the GPU
            return time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF).ru_utime - user

        (first, user), (second, _) = step(), step()
        answers.put(f"| {name} | {first:.2f} | {user:.2f} | {second:.3f} | {cache_mib():.1f} |")
    except (Unsupported, RuntimeError) as error:
        answers.put(f"{precision} cannot run here: {error_line(error)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=BATCHES, default="resnet18")
    parser.add_argument("--precision", choices=MODES, default="tf32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    forked = multiprocessing.get_context("fork")
    if args.device == "cpu":
        args.precision = "fp32" if args.precision == "tf32" else args.precision
        print("NOT A MEASUREMENT: a CPU has neither TF32 nor cuDNN's search.")
    print(f"{args.model} in {args.precision}, PyTorch {torch.__version__}\n\n{HEAD}", flush=True)
    with tempfile.TemporaryDirectory() as empty:
        for name, changes in processes(empty):
            answers = forked.SimpleQueue()
            process = forked.Process(
                target=measure, args=(args.model, args.precision, args.device, name, changes, answers)
            )
            process.start()
            process.join()
            if process.exitcode or answers.empty():
                sys.exit(f"The process `{name}` ended without a result (exit code {process.exitcode}).")
            row = answers.get()
            print(row, flush=True)
            if not row.startswith("|"):
                sys.exit(1)


if __name__ == "__main__":
    main()
