"""Does diagnose() name planted mistakes in Trainer, accelerate, Lightning and a plain loop, at what
cost, same bits?

Then it times steps with and without a diagnosis in blocks that take turns, and diagnoses thrice
after a profile of the loop's own. It takes less than 240 s on an H100, and --small tries it on a
CPU. What is not installed is left out. --blocks leaves out the frameworks and the three networks.
"""

import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mixed_precision_study import diagnose

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = torch.randint(512, (64, 32), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": words, "labels": words} for words in WORDS]


class Gpt(torch.nn.Module):
    """A small language model, whose forward returns its loss."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, dropout=0.0, batch_first=True
        )
        body, table = torch.nn.TransformerEncoder(layer, layers), torch.nn.Embedding(512, width)
        self.layers = torch.nn.Sequential(table, body, torch.nn.Linear(width, 512))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(input_ids)
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()),
            "logits": logits,
        }


def with_trainer(steps: int) -> torch.Tensor:
    from transformers import Trainer, TrainingArguments

    model = Gpt()
    # the mistake: a read
    model.register_forward_hook(lambda *call: call[2]["loss"].item() and None)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "use_cpu": DEVICE == "cpu",
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 0,
        }
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=8, max_steps=steps, bf16=True, **options
        )
        return torch.tensor(Trainer(model, arguments, train_dataset=DATA).train().training_loss)


def with_accelerate(steps: int) -> torch.Tensor:
    from accelerate import Accelerator

    accelerator, model = Accelerator(mixed_precision="bf16", cpu=DEVICE == "cpu"), Gpt()
    optimizer, loader = (
        torch.optim.AdamW(model.parameters(), 1e-3),
        torch.utils.data.DataLoader(DATA, 8),
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in itertools.islice(itertools.cycle(loader), steps):  # the mistake: no zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
    return loss.detach()


def with_lightning(steps: int) -> torch.Tensor:
    import lightning

    class Module(lightning.LightningModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            self.model = Gpt().to(self.device, self.dtype)
            return torch.optim.AdamW(self.model.parameters(), 1e-6)

        def training_step(self, batch: dict, number: int) -> torch.Tensor:
            self.loss = self.model(**batch)["loss"]
            return self.loss

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(devices=1, precision="bf16-true", max_steps=steps, **quiet)
    # the mistake: weights in bf16 alone
    trainer.fit(module := Module(), torch.utils.data.DataLoader(DATA, 8))
    return module.loss.detach()


def with_a_loop(steps: int) -> torch.Tensor:
    model, scaler = Gpt().to(DEVICE), torch.amp.GradScaler(DEVICE)
    optimizer, words = torch.optim.AdamW(model.parameters(), 1e-3), WORDS.to(DEVICE)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            loss = model(words, words)["loss"]
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the mistake: before unscale_
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


def time_steps(name: str, model: torch.nn.Module, loss_of, warm_up: int, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    marks, watch = [], diagnose(on_report=lambda report: None)
    for number in range(warm_up + 2 * steps + 32):
        if number == warm_up + steps:
            watch.start()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        loss.item()
        marks.append(time.perf_counter())
    times = [1000 * (b - a) for a, b in itertools.pairwise(marks)][warm_up - 1 :]
    medians = [
        statistics.median(part)
        for part in (times[:steps], times[steps + 8 : steps + 28], times[-steps:])
    ]
    print(
        f"{name}: {medians} ms before, timed and after; "
        f"{[one.rule for one in watch.stop().mistakes]}"
    )


def block_of(step, steps: int) -> list[float]:
    """Return the milliseconds of steps, which the device marks and the host never waits for."""
    on_gpu = DEVICE == "cuda"
    marks = []
    for _ in range(steps + 1):
        step()
        marks.append(torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter())
        if on_gpu:
            marks[-1].record()
    if on_gpu:
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    return [1000 * (after - before) for before, after in itertools.pairwise(marks)]


def alternate(name: str, step, steps: int, blocks: int = 5) -> None:
    """Print the medians of steps in half a block without a diagnosis, one with it, and the other
    half without it.

    The timed part of a diagnosis is meant, so its first eight steps are left out, and no profile
    follows.
    """
    block_of(step, steps)
    medians: dict[str, list[float]] = {"first half": [], "second half": [], "watched": []}
    for _ in range(blocks):
        medians["first half"].append(statistics.median(block_of(step, steps // 2)))
        with diagnose(steps=10**9, on_report=lambda report: None):
            block_of(step, 8)
            medians["watched"].append(statistics.median(block_of(step, steps)))
        medians["second half"].append(statistics.median(block_of(step, steps // 2)))
    first, second, watched = (statistics.median(values) for values in medians.values())
    within, without = watched / statistics.mean((first, second)) - 1, second / first - 1
    rows = "; ".join(
        f"{key} {[round(one, 3) for one in values]}" for key, values in medians.items()
    )
    print(f"{name}: watched {within:+.2%}, second half over first {without:+.2%} (ms: {rows})")


def after_a_profile(batch: int, width: int) -> None:
    """Diagnose three times after a profile of one's own: a read in each step, and memory that is
    not pinned.
    """
    layers = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer, rows = torch.optim.SGD(model.parameters(), 1e-3), torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(rows.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()  # the mistake

    with torch.profiler.profile():
        for _ in range(3):
            step()
    for number in range(3):
        with diagnose(on_report=lambda report: None) as report:
            for _ in range(50):
                step()
        said = [mistake.rule for mistake in report.mistakes]
        print(
            f"diagnosis {number + 1} after a profile: {bool(report.kernels)}, {said}, "
            f"{report.unseen}"
        )


def main() -> None:
    small = "--small" in sys.argv
    photos = torch.randn((2, 3, 32, 32) if small else (64, 3, 224, 224), device=DEVICE)
    torch.set_float32_matmul_precision("high")
    small_one = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 8))
    network = small_one if small else torchvision.models.resnet50().to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = network(photos).float().square().mean()
        loss.backward()
        optimizer.step()

    after_a_profile(*((8, 16) if small else (8192, 2048)))
    alternate("ResNet-50", step, 6 if small else 60)
    if "--blocks" in sys.argv:
        return
    for train in (with_trainer, with_accelerate, with_lightning, with_a_loop):
        reports: list = []
        with contextlib.suppress(ImportError):
            plain = train(40)
            with diagnose(on_report=reports.append):
                watched = train(40)
            print(
                train.__name__,
                *reports[0].mistakes,
                f"same bits: {torch.equal(plain, watched)}",
                sep="\n    ",
            )
    words = torch.randint(512, (2, 16) if small else (16, 512), device=DEVICE)
    resnet, gpt = (
        torchvision.models.resnet50().to(DEVICE),
        Gpt(*((64, 1) if small else (512, 8))).to(DEVICE),
    )
    compiled, counts = torch.compile(gpt), (3, 5) if small else (20, 60)
    time_steps("ResNet-50", resnet, lambda: resnet(photos).float().square().mean(), *counts)
    time_steps("GPT", gpt, lambda: gpt(words, words)["loss"], *counts)
    time_steps("compiled GPT", gpt, lambda: compiled(words, words)["loss"], *counts)


if __name__ == "__main__":
    main()
