"""Compare the loop of a tutorial, a bare loop and this suite's own path, in one process and on one GPU.

    python benchmarks/compare_loops.py                                   # all three experiments, on the GPU
    python benchmarks/compare_loops.py --only resnet --rounds 5 --data-dir data
    python benchmarks/compare_loops.py --steps 2 --rounds 1 --device cpu   # tiny: shows that it works, measures nothing

There are three kinds of contenders. Each has a fresh model in every round, in the order a b c, c b a, a b c.
tutorial  What a tutorial shows: a DataLoader with two workers, contiguous, `.item()` at each step and no warm-up. It
          runs PyTorch's default "fp32" (TF32 in convolutions and RNNs), or autocast with GradScaler. Text needs no
          workers.
bare      The same model on one batch on the device, after ten warm-up steps: no data loading, no `.item()`.
suite     The notebooks' own experiments: data, training step, warm-up, and the timed epoch with its loss meter.
A figure is the wall time of the steps between two synchronisations.
"""

import argparse
import gc
import importlib.util
import io
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, get_args

import PIL.Image
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchvision import transforms

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from notebook_cells import experiment_of  # noqa: E402

from mixed_precision_study.experiment import Experiment  # noqa: E402
from mixed_precision_study.measure.environment import describe_environment  # noqa: E402
from mixed_precision_study.parameters import PRECISION_NAMES, Execution  # noqa: E402
from mixed_precision_study.record import new_record  # noqa: E402
from mixed_precision_study.train.precision import check_supported, set_fp32_precision  # noqa: E402
from mixed_precision_study.train.step import allow_search, timed_epoch, warm_up  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
LARGE = {"image_height": 384, "image_width": 512}
SMALL = {"image_height": 64, "image_width": 96}
EXPERIMENTS: dict[str, tuple[str, dict, int, dict]] = {  # notebook, parameters, steps, parameters to change on the CPU
    "resnet": ("cifar_resnet", {"model": "resnet18", "batch_size": 128}, 390, {}),
    "efficientnet": ("efficientnet_regression", {"batch_size": 32, **LARGE}, 60, SMALL),
    "lstm": ("lstm_language_model", {"model": "lstm", "batch_size": 20, "bptt": 35}, 1000, {"bptt": 5}),
}
EXECUTIONS = get_args(Execution)
SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
DEFAULTS = [switch.fp32_precision for switch in SWITCHES]  # read before a notebook sets its own
DATASETS = {"resnet": "cifar10", "efficientnet": "elpv", "lstm": "wikitext-2"}
UNITS = {"resnet": "s/epoch", "efficientnet": "images/s", "lstm": "ms/step"}


def restore_defaults() -> None:
    """Set PyTorch's switches to their defaults, which a tutorial runs with."""
    torch.set_float32_matmul_precision("highest")
    for switch, value in zip(SWITCHES, DEFAULTS, strict=True):
        switch.fp32_precision = value
    torch.backends.cudnn.benchmark = False


def data_parameters(experiment: str, data_dir: Path) -> dict:
    """Return the parameters that choose the data: the real data if found, else synthetic data, with a notice."""
    name = DATASETS[experiment]
    if name == "elpv":  # comes in a package
        found = importlib.util.find_spec("elpv_dataset") is not None
    else:  # "cifar-10-batches-py" is torchvision's folder, which a notebook downloads
        parts = [f"{name}/train", f"{name}/train.txt"]
        if name == "cifar10":
            parts.append("cifar-10-batches-py")
        found = any((data_dir / part).exists() for part in parts)
    if not found:
        print(f"NOTICE: no {name} here (--data-dir): {experiment} runs on MADE-UP DATA of the same shapes.")
    return {"dataset": name if found else "synthetic", "data_dir": str(data_dir)}


class Images(torch.utils.data.Dataset):
    """Single images, as a tutorial's data set gives them: CIFAR augmented, the others as they are read."""

    changes = (transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor())
    augment = transforms.Compose([*changes, transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))])

    def __init__(self, data):
        self.data = data
        self.indices = getattr(data, "training", None)  # of the images to train on; CIFAR has them in `train`

    def __len__(self):
        return len(self.data.train[0] if self.indices is None else self.indices)

    def __getitem__(self, index):
        if self.indices is None:
            image = PIL.Image.fromarray(self.data.train[0][index].permute(1, 2, 0).numpy())
            return self.augment(image), self.data.train[1][index]
        image_index = int(self.indices[index])
        return self.data.images.read(image_index).float().div(255).expand(3, -1, -1), self.data.labels[image_index]


def is_text(suite: Experiment) -> bool:
    return suite.name == "lstm_language_model"


def tutorial_batches(suite: Experiment, device: torch.device) -> Iterator[tuple]:
    """Yield batches on the device without end, as a tutorial makes them."""
    size = suite.parameters.batch_size
    while is_text(suite):  # PyTorch's example cuts batches out of a tensor on the device
        yield from suite.data.segments(suite.data.text_for(size))
    fork: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"} if hasattr(os, "fork") else {}
    while True:
        loader = torch.utils.data.DataLoader(Images(suite.data), size, shuffle=True, drop_last=True, **fork)
        for images, labels in loader:
            yield images.to(device), labels.to(device)


def loss_of(network: torch.nn.Module, batch: tuple, hidden: tuple | None) -> tuple[torch.Tensor, tuple | None]:
    """Return (mean loss, detached hidden state); the labels tell which experiment it is."""
    inputs, labels = batch
    if labels.dim() == 2:  # text: the next words
        logits, hidden = network(inputs, hidden)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), tuple(part.detach() for part in hidden)
    answers = network(inputs)
    if labels.is_floating_point():
        return binary_cross_entropy_with_logits(answers.squeeze(1), labels), None
    return cross_entropy(answers, labels), None


def count_batches(network: torch.nn.Module) -> torch.nn.Module:
    """Return a trainer's network as PyTorch builds it: batch normalisation counts its batches."""
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked = torch.zeros((), dtype=torch.long, device=module.weight.device)
    return network


def own_loop(suite: Experiment, device: torch.device, steps: int, amp: bool, bare: bool) -> float:
    """Return the seconds of one step of the tutorial's loop, or of a bare one on a single batch."""
    restore_defaults()
    amp = amp and device.type == "cuda"
    vars(suite.parameters).update(execution="eager", channels_last=False)
    network = count_batches(suite.make_trainer("fp32").network)
    options: dict[str, Any] = {"lr": 20.0} if is_text(suite) else {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
    optimizer = torch.optim.SGD(network.parameters(), **options)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    batches = tutorial_batches(suite, device)
    if bare:
        batches = itertools.repeat(next(batches))
    hidden = None
    total = 0.0

    def train_step(batch, hidden):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16, enabled=amp):
            loss, hidden = loss_of(network, batch, hidden)
        scaler.scale(loss).backward()
        if is_text(suite):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        scaler.step(optimizer)
        scaler.update()
        return loss, hidden

    for _ in range(min(10, steps) if bare else 0):
        _, hidden = train_step(next(batches), hidden)
    wait(device)
    start = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        loss, hidden = train_step(batch, hidden)
        if not bare:
            total += loss.item()
    wait(device)
    return (time.perf_counter() - start) / steps


def suite_loop(suite: Experiment, device: torch.device, precision: str, execution: str, channels_last: bool) -> float:
    """Return the seconds of one step of the suite's own path, in the first epoch after its warm-up."""
    if device.type == "cuda":
        check_supported(precision, execution, device)
    set_fp32_precision(precision)
    allow_search()
    vars(suite.parameters).update(execution=execution, channels_last=channels_last)
    size = suite.parameters.batch_size
    steps = suite.data.steps_per_epoch(size)  # max_steps at most
    record = new_record("compare_loops", vars(suite.parameters), precision, suite.facts())
    record.steps_per_epoch = steps
    trainer = suite.make_trainer(precision)
    batches = partial(suite.batches, 0, precision, size)
    rate = partial(suite.schedule, steps_per_epoch=steps, metrics=[]) if suite.schedule else None
    describe_environment(record, device)
    warm_up(record, trainer, batches)
    timed_epoch(record, trainer, batches(), rate)
    return record.epoch_seconds[0] / steps


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def contenders(
    suite: Experiment, device: torch.device, steps: int, options: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """Return {name: function that returns the seconds of one step}."""
    layout = ", channels_last" if options.channels_last else ""
    runs: dict[str, Callable[[], float]] = {}
    for kind, mode in itertools.product(("tutorial", "bare"), ("default fp32", "autocast fp16")):
        runs[f"{kind}, {mode}"] = partial(own_loop, suite, device, steps, "autocast" in mode, kind == "bare")
    for execution, precision in itertools.product(options.executions, options.precisions):
        run = partial(suite_loop, suite, device, precision, execution, options.channels_last)
        runs[f"suite, {precision}, {execution}{layout}"] = run
    return runs


def measure(runs: dict[str, Callable[[], float]], rounds: int) -> tuple[dict[str, list], dict[str, str]]:
    """Return ({name: seconds of one step in each round, None where it failed}, {name: why it failed}).

    Every second round goes in reverse order.
    """
    seconds: dict[str, list] = {name: [] for name in runs}
    reasons = {}
    for number in range(rounds):
        for name in reversed(runs) if number % 2 else runs:
            try:
                with redirect_stdout(io.StringIO()):
                    seconds[name].append(runs[name]())
            except Exception as error:  # the other contenders still run
                seconds[name].append(None)
                reasons[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return seconds, reasons


def spread(values: list[float], form: str) -> str:
    """Return median, smallest and largest value as text."""
    median, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})"


def figure_of(experiment: str, suite: Experiment, step: float) -> float:
    """Return the seconds of one step in the unit of the experiment's table."""
    size = suite.parameters.batch_size
    if experiment == "resnet":
        return step * (suite.data.train_samples // size)
    return size / step if experiment == "efficientnet" else 1000 * step


def table(experiment: str, suite: Experiment, seconds: dict[str, list], reasons: dict[str, str]) -> list[str]:
    """Return the lines of an experiment's table; a ratio compares a round with the tutorial's fp32 in that round."""
    base = seconds["tutorial, default fp32"]
    lines = [f"| {experiment}: {UNITS[experiment]} | median (min to max) | n | times as fast as the tutorial's fp32 |"]
    lines.append("|---|---|---|---|")
    for name, steps in seconds.items():
        figures = [figure_of(experiment, suite, step) for step in steps if step]
        ratios = [other / step for step, other in zip(steps, base, strict=True) if step and other]
        shown = spread(figures, "{:.4g}") if figures else reasons[name]
        ratio = spread(ratios, "{:.2f}x") if ratios else "-"
        lines.append(f"| {name} | {shown} | {len(figures)} | {ratio} |")
    if experiment != "lstm" and any(name.startswith("suite, tf32") and "channels_last" not in name for name in seconds):
        lines.append("")
        lines.append(
            "tf32, contiguous: PyTorch reuses the cuDNN plans of the tutorial, which ran first without a search."
        )
    return lines


def describe_machine(device: torch.device) -> str:
    """Return one line on hardware and software."""
    import timm

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {platform.machine()}"
    versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    versions += f", timm {timm.__version__}, Python {platform.python_version()}"
    return f"{name}, {os.cpu_count()} host cores, {versions}"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", default=list(EXPERIMENTS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--steps", type=int, default=0, help="timed steps of a contender in a round; 0: about an epoch")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="with cifar10/train/<class>, wikitext-2/")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--precisions", nargs="+", default=["tf32", "amp_fp16"], choices=PRECISION_NAMES, help="of the suite's path"
    )
    parser.add_argument(
        "--executions", nargs="+", default=["eager", "cuda_graph"], choices=EXECUTIONS, help="of the suite's path"
    )
    parser.add_argument("--channels-last", action="store_true", help="the suite's images in channels_last")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the notebooks take a GPU where they see one
    elif not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use; --device cpu --steps 2 --rounds 1 shows that it works")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        options.precisions = ["fp32"]
        print("NOT A MEASUREMENT: on the CPU, with tiny shapes, all in fp32, CUDA graph steps without a graph.")
    print(describe_machine(device))
    for experiment in options.only:
        notebook, parameters, usual_steps, on_cpu = EXPERIMENTS[experiment]
        steps = options.steps or usual_steps
        parameters = parameters | data_parameters(experiment, options.data_dir) | {"max_steps": steps}
        if device.type == "cpu":
            parameters |= {"batch_size": 4, **on_cpu}
        with redirect_stdout(io.StringIO()):
            suite = experiment_of(NOTEBOOKS / f"{notebook}.ipynb", parameters)
        seconds, reasons = measure(contenders(suite, device, steps, options), options.rounds)
        print()
        print(*table(experiment, suite, seconds, reasons), sep="\n", flush=True)
    if device.type == "cpu":
        print("\nNOT A MEASUREMENT.")


if __name__ == "__main__":
    main()
