"""Golden traces: the first 20 steps of every notebook in every precision mode and way of execution.

    python tests/golden/trace.py --root CHECKOUT --write FILE.json     record
    python tests/golden/trace.py --root CHECKOUT --compare FILE.json   record anew and name every
    difference

A trace holds each step's loss and loss scale as exact hexadecimal floats, the skipped steps so far,
and a checksum of the final weights. On a GPU it also counts the kernels that a step launches and
how often the host waits for the GPU.
"""

import argparse
import atexit
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import types
import warnings
from pathlib import Path

from torch.backends import cudnn

os.environ["TQDM_DISABLE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

STEPS = 20
MODES = ("fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16")
MODES_ON_GPU = (*MODES, "bf16_true", "fp8")
EXECUTIONS = ("eager", "compile", "cuda_graph", "compile_cuda_graph")
SMALL = {"dataset": "synthetic", "max_steps": STEPS, "epochs": 1, "seed": 3}
PARAMETERS = {  # small models: the traces are about the step, not about the model
    "cifar_resnet": {
        **SMALL,
        "model": "resnet18" if torch.cuda.is_available() else "resnet10t",
        "batch_size": 8,
    },
    "efficientnet_regression": SMALL
    | {"model": "mobilenetv3_small_050", "batch_size": 4, "image_height": 64, "image_width": 64},
    "lstm_language_model": {
        **SMALL,
        "model": "lstm",
        "batch_size": 4,
        "units": 64,
        "generate_words": 0,
    },
    "transformer": {**SMALL, "batch_size": 4, "width": 64, "layers": 2, "context": 32},
}
FP8 = ("transformer",)  # nearly all of its work is in layers that take fp8, and little of others'


def modes_of(notebook):
    """Return the precisions in which a notebook is traced on a GPU."""
    return [mode for mode in MODES_ON_GPU if mode != "fp8" or notebook in FP8]


def waits_and_kernels(take):
    """Return (result of `take()`, kernels launched by it, host waits in it); the counts are None
    on the CPU.
    """
    if not torch.cuda.is_available():
        return take(), None, None
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with (
        warnings.catch_warnings(record=True) as caught,
        profile(activities=[ProfilerActivity.CUDA]) as profiler,
    ):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = take()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    kernels = sum("CUDA" in str(event.device_type()) for event in events)
    return (
        result,
        kernels,
        sum("synchronizing CUDA operation" in str(warning.message) for warning in caught),
    )


def trace_step_by_step(root, notebook, precision, execution):
    """Return the trace of one training."""
    # loads the package from the checkout that is asked for
    from notebook_cells import experiment_of

    from mixed_precision_study.train.precision import set_fp32_precision

    torch._dynamo.reset()
    cudnn.benchmark = False
    cudnn.deterministic = True
    torch.backends.mkldnn.set_flags(_enabled=True)
    parameters = {
        **PARAMETERS[notebook],
        "execution": execution,
        "output_dir": tempfile.mkdtemp(dir="."),
    }
    experiment = experiment_of(root / f"notebooks/{notebook}.ipynb", parameters)
    lr_at = experiment.lr_at(types.SimpleNamespace(steps_per_epoch=STEPS), [])
    set_fp32_precision(precision)
    if notebook == "lstm_language_model" and not torch.cuda.is_available():
        # The notebook does so for amp_bf16. oneDNN has no LSTM in fp16 either.
        torch.backends.mkldnn.set_flags(_enabled=precision not in ("amp_bf16", "amp_fp16"))
    trainer, hidden, rows = experiment.make_trainer(precision), None, []
    torch.manual_seed(0)
    batches = experiment.batches(0, precision, parameters["batch_size"], ahead=False)
    for number, batch in enumerate(itertools.islice(itertools.cycle(batches), STEPS)):
        if lr_at:
            trainer.set_lr(lr_at(number))
        take = functools.partial(trainer.step, batch, hidden)
        # the profiler is slow, and the first steps capture or compile
        counted = number >= STEPS - 2
        (loss, hidden), kernels, waits = (
            waits_and_kernels(take) if counted else (take(), None, None)
        )
        rows.append(
            [
                loss.item().hex(),
                trainer.scaler.get_scale().hex(),
                trainer.skipped_steps,
                kernels,
                waits,
            ]
        )
    weights = b"".join(
        master.detach().float().cpu().numpy().tobytes() for master in trainer.masters
    )
    return {"steps": rows, "weights": hashlib.sha256(weights).hexdigest()[:16]}


def cpu_and_torch():
    """Return what decides the order of sums on a CPU: two with AVX-512 may differ in the rest."""
    file = Path("/proc/cpuinfo")
    flags = re.findall(r"^flags\s*:(.*)$", file.read_text(), re.MULTILINE) if file.exists() else []
    flags = sorted(set(" ".join(flags).split()))
    machine = {"torch": torch.__version__, "cpu": platform.machine()}
    machine["capability"] = torch.backends.cpu.get_cpu_capability()
    return machine | {"flags": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]}


def all_traces(root, notebooks, modes, executions):
    """Return {"machine": ..., "notebook/mode/execution": trace}."""
    machine = cpu_and_torch()
    machine["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    traces = {"machine": machine}
    for notebook, execution, mode in itertools.product(notebooks, executions, modes):
        if mode not in modes_of(notebook):
            continue
        name = f"{notebook}/{mode}/{execution}"
        traces[name] = trace_step_by_step(root, notebook, mode, execution)
        print(name, traces[name]["steps"][-1], file=sys.stderr, flush=True)
    return traces


def first_difference(old, new):
    """Return where two traces first differ, in words."""
    for number, (a, b) in enumerate(zip(old.get("steps", ()), new.get("steps", ()), strict=False)):
        if a != b:
            return f"step {number}: {a} and {b}"
    return next(
        (f"{key}: {old.get(key)} and {one}" for key, one in new.items() if one != old.get(key)),
        "fewer keys",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--notebooks", nargs="*", default=list(PARAMETERS))
    parser.add_argument(
        "--modes", nargs="*", default=MODES_ON_GPU if torch.cuda.is_available() else MODES
    )
    parser.add_argument("--executions", nargs="*", default=EXECUTIONS)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    root, write, compare = (
        args.root.resolve(),
        args.write and args.write.resolve(),
        [p.resolve() for p in args.compare],
    )
    sys.path[:0] = [str(root), str(Path(__file__).resolve().parents[1])]
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the order of a sum must not depend on the cores
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    os.chdir(folder)
    new = all_traces(root, args.notebooks, args.modes, args.executions)
    if write:
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(trace)}" for name, trace in new.items()
        )
        write.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    old = {
        name: trace
        for path in compare
        for name, trace in json.loads(path.read_text(encoding="utf-8")).items()
    }
    names = [name for name in new if old and new[name] != old.get(name)]
    found = [f"{name}: {first_difference(old.get(name, {}), new[name])}" for name in names]
    print("\n".join(found) or f"{len(new) - 1} traces" + (", no difference" if old else " written"))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
