"""Train the same models by the code of other projects and by ours, and write the speed of both and
their ratio.

    python benchmarks/peers.py FOLDER --timm CHECKOUT --nanogpt CHECKOUT --cifar CHECKOUT

The checkouts are huggingface/pytorch-image-models, karpathy/nanoGPT and kuangliu/pytorch-cifar; one
may be left out. Each contender has a process of its own, and every second round runs backwards, so
that a host that becomes slower favours nobody. With --abreast several load and compile at the same
time from the second round on, and each is then timed alone while the others wait.
FOLDER/measured.csv has what is measured, from which the same command goes on, and FOLDER/peers.csv
a row for each cell. FOLDER/raw.jsonl keeps the seconds or the record behind each speed, with the
state of its GPU. With --tiny it is a smoke test, on a CPU, too, and its numbers mean nothing.

Their code runs as it is but for this. timm's benchmark waits for the GPU in each step, and here at
the end alone. nanoGPT does not evaluate. pytorch-cifar trains ResNet-18 on made-up images, which
pass through its own transforms and workers. Its fast form has channels_last, bf16 autocast,
torch.compile with CUDA graphs (reduce-overhead), which nanoGPT is given at its best, too, and
workers for nearly every core that live on from epoch to epoch. It reads the loss in every hundredth
step alone. As its loader still holds the GPU back, no cell of it is called best. timm has no scaler
of the loss, so eager mode is compared in bf16, where nobody needs one.
"""

import argparse
import contextlib
import csv
import functools
import io
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import PIL.Image
import torch
import torchvision

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from notebook_cells import run_cells  # noqa: E402

from mixed_precision_study import compare, experiment  # noqa: E402
from mixed_precision_study.judge.ratios import geometric, interval_of, logarithm_of  # noqa: E402
from mixed_precision_study.parameters import UserError  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CELLS = [  # cell, unit, their contender, ours; the first word is the function below that runs it
    ("EfficientNet-B0, 384 x 512, bf16 AMP, eager", "images/s", "timm eager", "efficientnet eager"),
    (
        "EfficientNet-B0, 384 x 512, fp16 AMP, best",
        "images/s",
        "timm best",
        "efficientnet compile_cuda_graph",
    ),
    ("GPT-2 124M, bf16 AMP, eager", "tokens/s", "nanogpt eager", "gpt eager"),
    ("GPT-2 124M, bf16 AMP, compiled", "tokens/s", "nanogpt compile", "gpt compile"),
    ("GPT-2 124M, bf16 AMP, best", "tokens/s", "nanogpt reduce-overhead", "gpt compile_cuda_graph"),
    *(
        (
            f"GPT-2 124M, bf16 AMP, a batch a step, {name}",
            "tokens/s",
            f"nanogpt {theirs}-1",
            f"transformer {ours}",
        )
        for name, theirs, ours in (
            ("eager", "eager", "eager"),
            ("compiled", "compile", "compile"),
            ("best", "reduce-overhead", "compile_cuda_graph"),
        )
    ),
    ("ResNet-18, CIFAR-10, as shipped (TF32)", "images/s", "cifar shipped", "resnet eager"),
    (
        "ResNet-18, CIFAR-10, bf16 AMP, images by workers",
        "images/s",
        "cifar fast",
        "resnet compile_cuda_graph",
    ),
]
CHECKOUTS = ("timm", "nanogpt", "cifar")
MEASURED = ("round", "contender", "speed", "gpu")
SPEED = re.compile(r"^speed ([\d.]+)$", re.MULTILINE)
RAW: dict = {}  # of this process: what its speed comes from
RAW_LINE = re.compile(r"^raw (\{.*\})$", re.MULTILINE)
STATE = "uuid,name,driver_version,power.limit,clocks.sm,temperature.gpu,clocks_event_reasons.active"
TIMEOUT = 240  # seconds in which a contender gets ready, and in which it is timed
EPOCHS = 5  # that are timed, of which the median counts
# of GPT-2: batches a step, whose gradients are added, and steps of the warm-up
MICRO_BATCHES, WARMUP = 4, 10


def wait_for_turn(*_) -> None:
    """Say that all is loaded and compiled, and wait until no other contender is timed."""
    print("ready", file=sys.__stdout__, flush=True)
    sys.stdin.readline()


def changed(text: str, changes: list[tuple[str, str]]) -> str:
    """Return a text with these changes. Raises UserError where there is no such place in it."""
    for old, new in changes:
        if old not in text:
            raise UserError(
                f"The checkout has no {old!r}, because it is of another version than "
                "this script knows."
            )
        text = text.replace(old, new)
    return text


def run_script(path: Path, arguments: list[str], changes: list[tuple[str, str]], **given) -> dict:
    """Run a script with changes in its folder, and return its names. given: names that it finds."""
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    sys.argv = [path.name, *arguments]
    module = types.ModuleType("peer")
    sys.modules["peer"] = module  # torch.compile looks a function's module up
    vars(module).update(given)
    code = compile(changed(path.read_text(encoding="utf-8"), changes), str(path), "exec")
    exec(code, vars(module))  # noqa: S102, a checkout that the user names
    return vars(module)


def timm(way: str, checkout: Path, tiny: bool) -> float:
    """Return images per second of timm's benchmark.py."""
    wait_for_turn()
    height, width, batch, steps = ("64", "96", "4", "5") if tiny else ("384", "512", "32", "100")
    words = [
        "--bench",
        "train",
        "--model",
        "tf_efficientnet_b0",
        "--num-classes",
        "1",
        "--device",
        DEVICE,
        "-b",
        batch,
    ]
    words += [
        "--input-size",
        "3",
        height,
        width,
        "--num-bench-iter",
        steps,
        "--amp",
        "--channels-last",
        "--no-retry",
    ]
    words += ["--amp-dtype", "bfloat16"] if way == "eager" or DEVICE == "cpu" else []
    words += ["--torchcompile", "--torchcompile-mode", "reduce-overhead"] if way == "best" else []
    changes = [
        (
            "t_end = self.time_fn(True)\n            if detail",
            "t_end = self.time_fn()\n            if detail",
        )
    ]
    changes += [("t_run_elapsed = self.time_fn() - t", "t_run_elapsed = self.time_fn(True) - t")]
    names = run_script(checkout / "benchmark.py", words, changes)
    RAW["benchmark"] = names["benchmark"](names["parser"].parse_args())
    return RAW["benchmark"]["train_samples_per_sec"]


def gpt_size(tiny: bool) -> tuple[int, int, int, dict[str, int]]:
    """Return batch, words of a text, steps that are timed at once, and what makes a small model
    of GPT-2.
    """
    return (2, 16, 3, {"n_layer": 1, "n_head": 2, "n_embd": 32}) if tiny else (8, 1024, 20, {})


def nanogpt(way: str, checkout: Path, tiny: bool) -> float:
    """Return tokens per second of nanoGPT's train.py, between two lines that it prints 20 steps
    apart.
    """
    batch, block, apart, small = gpt_size(tiny)
    micro = 1 if way.endswith("-1") else MICRO_BATCHES
    way = way.removesuffix("-1")
    values = small | {
        "batch_size": batch,
        "block_size": block,
        "gradient_accumulation_steps": micro,
    }
    values |= {
        "log_interval": apart,
        "max_iters": EPOCHS * apart,
        "lr_decay_iters": EPOCHS * apart,
        "warmup_iters": WARMUP,
    }
    values |= {"device": DEVICE, "compile": way != "eager", "always_save_checkpoint": False}
    lines = []

    def noted(text):
        if text.startswith("iter "):  # it has just waited for the GPU
            if len(lines) == 1:  # the first line was of the first step
                wait_for_turn()
            lines.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"--{name}={value}"
            for name, value in (values | {"out_dir": folder, "dataset": folder}).items()
        ]
        np.random.default_rng(0).integers(0, 50257, 1_000_000, np.uint16).tofile(
            Path(folder, "train.bin")
        )
        changes = [("if iter_num % eval_interval == 0 and master_process", "if False")]
        if way == "reduce-overhead":
            changes += [("torch.compile(model)", 'torch.compile(model, mode="reduce-overhead")')]
        run_script(checkout / "train.py", words, changes, print=noted)
    RAW["seconds"] = np.diff(lines[1:]).tolist()
    return micro * batch * block * apart / statistics.median(RAW["seconds"])


class Images(torch.utils.data.Dataset):
    """Made-up images in place of torchvision's CIFAR10, with its arguments."""

    def __init__(self, root, train, download, transform):
        generator = np.random.default_rng(0)
        self.images = generator.integers(0, 256, (50_000 if train else 0, 32, 32, 3), np.uint8)
        self.labels = generator.integers(0, 10, len(self.images)).tolist()
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(PIL.Image.fromarray(self.images[index])), self.labels[index]


def fast(network: torch.nn.Module) -> torch.nn.Module:
    """Return a model as PyTorch trains it fastest without other changes of the loop."""
    network.to(memory_format=torch.channels_last)
    network.forward = torch.autocast(DEVICE, torch.bfloat16)(network.forward)
    return torch.compile(network, mode="reduce-overhead")


def cifar(way: str, checkout: Path, tiny: bool) -> float:
    """Return images per second of the second and third epoch of pytorch-cifar's main.py."""
    wait_for_turn()
    torchvision.datasets.CIFAR10 = Images
    os.popen = lambda *_: io.StringIO("24 80")  # its progress bar asks for the terminal's size
    whole = "net = net.to(device)\nif device == 'cuda':\n    net = torch.nn.DataParallel(net)\n"
    changes = [
        ("\nnet = SimpleDLA()", "\nnet = ResNet18()"),
        ("\nfor epoch in range(", "\nfor epoch in () and range("),
    ]
    if way == "fast":
        workers = f"num_workers={max(2, len(os.sched_getaffinity(0)) - 2)}"
        changes += [
            (whole, "net = fast(net.to(device))\nif device == 'cuda':\n"),
            ("num_workers=2)", f"{workers}, persistent_workers=True)"),
            ("loss.item()", "loss.detach()"),
            (".sum().item()", ".sum()"),
            ("        progress_bar(", "        batch_idx % 100 or progress_bar("),
        ]
    names = run_script(checkout / "main.py", [], changes, fast=fast)
    seconds = []
    if tiny:
        names["trainset"].images = names["trainset"].images[:256]
    for epoch in range(3):
        began = time.perf_counter()
        names["train"](epoch)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    RAW["seconds"] = seconds
    return 2 * len(names["trainset"]) / sum(seconds[1:])


def learning_rate(step: int, steps: int) -> float:
    """Return the rate that nanoGPT has in a step: a warm-up to 6e-4, then a cosine down to 6e-5."""
    if step < WARMUP:
        return 6e-4 * (step + 1) / (WARMUP + 1)
    return 6e-5 + 5.4e-4 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def waiting_after_warm_up() -> contextlib.AbstractContextManager:
    """Return a context in which a training of the suite waits for its turn before it is timed."""

    def warmed_up(*given):
        warm_up(*given)
        wait_for_turn()

    warm_up = experiment.warm_up
    return patch.object(experiment, "warm_up", warmed_up)


def gpt(execution: str, checkout: Path, tiny: bool) -> float:
    """Return tokens per second of compare() with nanoGPT's model, optimizer, clipping,
    accumulation and schedule.
    """
    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig

    batch, block, steps, small = gpt_size(tiny)
    config = GPTConfig(block_size=block, vocab_size=50304, dropout=0.0, bias=False, **small)
    texts = torch.randint(
        50257, (steps * MICRO_BATCHES, batch, block + 1), generator=torch.Generator().manual_seed(0)
    )
    given = dict(
        precisions=["amp_bf16"], epochs=EPOCHS, max_steps=steps, repeat=1, execution=execution
    )
    rate = functools.partial(learning_rate, steps=EPOCHS * steps)
    given |= {"accumulate": MICRO_BATCHES, "schedule": rate, "clip": 1.0}
    given["make_optimizer"] = lambda model: model.configure_optimizers(
        0.1, 6e-4, (0.9, 0.95), DEVICE
    )
    batches = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
    with tempfile.TemporaryDirectory() as folder, waiting_after_warm_up():
        (record,) = compare(
            "gpt",
            lambda: GPT(config),
            batches,
            lambda model, batch: model(*batch)[1],
            output_dir=folder,
            **given,
        )
    RAW["record"] = record.model_dump(mode="json")
    return MICRO_BATCHES * batch * block * steps / statistics.median(record.epoch_seconds)


def of_notebook(name: str, **parameters) -> float:
    """Return samples per second of a notebook's training, in its median epoch."""
    with tempfile.TemporaryDirectory() as folder, waiting_after_warm_up():
        parameters |= {"dataset": "synthetic", "epochs": EPOCHS, "repeat": 1, "output_dir": folder}
        (record,) = run_cells(ROOT / "notebooks" / f"{name}.ipynb", "run", parameters)["records"]
    RAW["record"] = record.model_dump(mode="json")
    return record.samples_per_epoch / statistics.median(record.epoch_seconds)


def transformer(execution: str, checkout: Path, tiny: bool) -> float:
    """Return tokens per second of the notebook's GPT, which has nanoGPT's size and no
    accumulation.
    """
    given = {"width": 64, "layers": 1, "context": 16, "batch_size": 2, "max_steps": 2}
    if not tiny:
        given = {"width": 768, "layers": 12, "context": 1024, "batch_size": 8, "max_steps": 20}
    given |= {"vocabulary": 50304, "precisions": ["amp_bf16"]}
    return of_notebook("transformer", execution=execution, **given)


def efficientnet(execution: str, checkout: Path, tiny: bool) -> float:
    parameters = (
        {"image_height": 64, "image_width": 96, "batch_size": 4, "max_steps": 3}
        if tiny
        else {"max_steps": 60}
    )
    parameters |= {
        "precisions": ["amp_bf16" if execution == "eager" or DEVICE == "cpu" else "amp_fp16"]
    }
    return of_notebook(
        "efficientnet_regression", execution=execution, channels_last=True, **parameters
    )


def resnet(execution: str, checkout: Path, tiny: bool) -> float:
    best = execution != "eager"
    precision = "amp_bf16" if best else "tf32" if DEVICE == "cuda" else "fp32"
    parameters = {"batch_size": 4, "max_steps": 3} if tiny else {"max_steps": 390}
    return of_notebook(
        "cifar_resnet",
        model="resnet18",
        precisions=[precision],
        execution=execution,
        channels_last=best,
        **parameters,
    )


FUNCTIONS = (timm, nanogpt, cifar, gpt, transformer, efficientnet, resnet)
RUN = {function.__name__: function for function in FUNCTIONS}
USED = {"gpt": "nanogpt"}  # whose checkout a contender of ours uses


def rows_in(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict], names: tuple[str, ...]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def peers_of(measured: list[dict]) -> list[dict]:
    """Return the rows of peers.csv.

    The ratio is the geometric mean over rounds, whose pairs ran on one GPU.
    """
    rows = []
    for cell, unit, theirs, ours in CELLS:
        speeds = {
            contender: {
                (row["round"], row["gpu"]): float(row["speed"])
                for row in measured
                if row["contender"] == contender
            }
            for contender in (theirs, ours)
        }
        both = sorted(speeds[theirs].keys() & speeds[ours].keys())
        if not both:
            continue
        ratios = [speeds[ours][key] / speeds[theirs][key] for key in both]
        found = interval_of(list(map(logarithm_of, ratios)))
        row = {
            "cell": cell,
            "unit": unit,
            "peer": theirs,
            "ours": statistics.median(speeds[ours][key] for key in both),
            "theirs": statistics.median(speeds[theirs][key] for key in both),
            "ratio": geometric(ratios),
            "low": found["low"],
            "high": found["high"],
            "n": len(both),
        }
        rows.append(
            {
                name: f"{value:.4g}" if isinstance(value, float) else value
                for name, value in row.items()
            }
        )
    return rows


@contextlib.contextmanager
def at_most(seconds: float, process: subprocess.Popen) -> Iterator[None]:
    """End a process that takes longer, and what it has started, which may hold its pipes open."""
    timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def by_turns(commands: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Yield (output, last error) of each command. All of them start at the same time, and each goes
    on from wait_for_turn() after the one before it has ended. One that hangs is ended.
    """
    running = []
    for command in commands:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, a pipe could fill up meanwhile
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        running.append((process, errors))
    for process, _ in running:
        with at_most(TIMEOUT, process):
            next((line for line in process.stdout if line == "ready\n"), None)  # or its end
    for process, errors in running:
        with at_most(TIMEOUT, process):
            output = process.communicate("\n")[0]
        errors.seek(0)
        # libraries may write more after the error
        yield output, ["no result", *re.findall(r"^\S*Error: .*", errors.read(), re.MULTILINE)][-1]


def state_of_gpu() -> dict:
    """Return what nvidia-smi says of this process's GPU, or nothing without one."""
    if DEVICE == "cpu":
        return {}
    gpu = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = ["nvidia-smi", "-i", gpu, f"--query-gpu={STATE}", "--format=csv,noheader"]
    values = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(zip(STATE.split(","), values.strip().split(", "), strict=False))


def measure(contenders: list[str], options: argparse.Namespace) -> Iterator[tuple]:
    """Yield (contender, its speed) of contenders that get ready at the same time and are timed one
    after the other, each in a process of its own.

    The speed is None where one fails, which prints its last line.
    """
    words = [sys.executable, __file__, str(options.folder), *(["--tiny"] if options.tiny else [])]
    for name in CHECKOUTS:
        words += [f"--{name}", str(getattr(options, name))] if getattr(options, name) else []
    outputs = by_turns([[*words, "--one", contender] for contender in contenders])
    for contender, (output, error) in zip(contenders, outputs, strict=True):
        found = SPEED.search(output)
        if not found:
            print(f"{contender}: {error}", flush=True)
        with (options.folder / "raw.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in RAW_LINE.findall(output))
        yield contender, float(found[1]) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of measured.csv and peers.csv")
    for name in CHECKOUTS:
        parser.add_argument(
            f"--{name}", type=lambda path: Path(path).resolve(), help="folder of the checkout"
        )
    parser.add_argument(
        "--rounds",
        type=int,
        nargs="+",
        default=[0, 1, 2],
        help="odd ones run backwards (%(default)s)",
    )
    parser.add_argument(
        "--abreast", type=int, default=1, help="contenders that get ready at the same time"
    )
    parser.add_argument("--cells", default="", help="regular expression of the cells' names")
    parser.add_argument("--tiny", action="store_true", help="a smoke test")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, way = options.one.split()
        RAW.update(contender=options.one, started=time.time(), torch=torch.__version__)
        with contextlib.redirect_stdout(io.StringIO()):
            speed = RUN[kind](way, getattr(options, USED.get(kind, kind), ROOT), options.tiny)
        RAW.update(ended=time.time(), gpu=state_of_gpu(), speed=speed)
        print(f"raw {json.dumps(RAW, default=str)}\nspeed {speed:.2f}")
        return
    if DEVICE == "cpu" and not options.tiny:
        parser.error("there is no GPU here; --tiny is a smoke test that runs on a CPU")
    gpu = str(torch.cuda.get_device_properties(0).uuid) if DEVICE == "cuda" else "cpu"
    given = [cell for cell in CELLS if getattr(options, cell[2].split()[0])]
    given = [cell for cell in given if re.search(options.cells, cell[0])]
    contenders = list(dict.fromkeys(contender for cell in given for contender in cell[2:]))
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "measured.csv"
    rows = rows_in(path)
    for number in options.rounds:
        order = contenders[::-1] if number % 2 else contenders
        keys = {one: {"round": str(number), "contender": one, "gpu": gpu} for one in order}
        left = [one for one in order if not any(keys[one].items() <= row.items() for row in rows)]
        # the first round fills the caches of compiled code, whose search for the best kernels many
        # others would disturb
        abreast = min(2, options.abreast) if number == options.rounds[0] else options.abreast
        for first in range(0, len(left), abreast):
            began = time.perf_counter()
            for contender, speed in measure(left[first : first + abreast], options):
                if speed is None:
                    continue
                spent = time.perf_counter() - began
                print(f"round {number}, {contender}: {speed:,.0f}, {spent:.0f} s", flush=True)
                rows.append(keys[contender] | {"speed": f"{speed:.2f}"})
                write_rows(path, rows, MEASURED)
                table = peers_of(rows)
                write_rows(
                    options.folder / "peers.csv", table, tuple(table[0]) if table else ("cell",)
                )
    for row in peers_of(rows):
        print(row)


if __name__ == "__main__":
    main()
