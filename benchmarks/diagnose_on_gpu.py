"""Does diagnose() name planted mistakes in Trainer, accelerate, Lightning and a plain loop, at what cost, same bits?

python benchmarks/diagnose_on_gpu.py takes less than 240 s on an H100. --small tries it on a CPU. What is not installed
is left out. Each framework prints the rules that were named, and whether the loss has the same bits without diagnose().
"""

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time

import torch
from torch.nn import functional

from mixed_precision_study import diagnose

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = torch.randint(512, (64, 32), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": words, "labels": words} for words in WORDS]


class Gpt(torch.nn.Module):
    """A small language model, whose forward returns its loss. reads: the planted mistake, a value that is read."""

    def __init__(self, width: int = 64, layers: int = 2, reads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.reads = torch.nn.Embedding(512, width), reads
        layer = torch.nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout=0.0, batch_first=True)
        self.body, self.head = torch.nn.TransformerEncoder(layer, layers), torch.nn.Linear(width, 512)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(self.table(input_ids)))
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        if self.reads:
            loss.item()
        return {"loss": loss, "logits": logits}


def with_trainer(steps: int) -> torch.Tensor:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        options = {"use_cpu": DEVICE == "cpu", "report_to": [], "save_strategy": "no", "disable_tqdm": True, "seed": 0}
        arguments = TrainingArguments(folder, per_device_train_batch_size=8, max_steps=steps, bf16=True, **options)
        return torch.tensor(Trainer(Gpt(reads=True), arguments, train_dataset=DATA).train().training_loss)


def with_accelerate(steps: int) -> torch.Tensor:
    from accelerate import Accelerator

    accelerator, model = Accelerator(mixed_precision="bf16", cpu=DEVICE == "cpu"), Gpt()
    optimizer, loader = torch.optim.AdamW(model.parameters(), 1e-3), torch.utils.data.DataLoader(DATA, 8)
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

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    device = "gpu" if DEVICE == "cuda" else "cpu"
    trainer = lightning.Trainer(accelerator=device, devices=1, precision="bf16-true", max_steps=steps, **quiet)
    trainer.fit(module := Module(), torch.utils.data.DataLoader(DATA, 8))  # the mistake: weights in bf16 alone
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
    """Print the median step before, during and after the diagnosis, which times and profiles the steps between."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    marks, reports = [], []
    for number in range(warm_up + 2 * steps + 32):
        if number == warm_up + steps:
            watch = diagnose(on_report=reports.append).start()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
    watch.stop()
    times = [1000 * (b - a) for a, b in itertools.pairwise(marks)][warm_up - 1 :]
    pieces = times[:steps], times[steps + 8 : steps + 28], times[-steps:]
    before, timed, after = (f"{statistics.median(piece):.3f}" for piece in pieces)
    print(f"{name}: {before} ms before, {timed} timed, {after} after; {[one.rule for one in reports[0].mistakes]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="small sizes, as for a CPU")
    small = parser.parse_args().small
    for train in (with_trainer, with_accelerate, with_lightning, with_a_loop):
        reports: list = []
        with contextlib.suppress(ImportError):
            plain = train(40)
            with diagnose(on_report=reports.append):
                watched = train(40)
            rules = [(one.rule, one.figures) for one in reports[0].mistakes]
            print(f"{train.__name__}: {rules}; same bits: {torch.equal(plain, watched)}", flush=True)
    import torchvision

    torch.set_float32_matmul_precision("high")
    images, side, rows, length, width, layers = (2, 32, 2, 16, 64, 1) if small else (64, 224, 16, 512, 512, 8)
    photos, words = torch.randn(images, 3, side, side), torch.randint(512, (rows, length), device=DEVICE)
    resnet, gpt = torchvision.models.resnet50().to(DEVICE), Gpt(width, layers).to(DEVICE)
    photos, compiled = photos.to(DEVICE), torch.compile(gpt)
    counts = (3, 5) if small else (20, 60)
    time_steps("ResNet-50", resnet, lambda: resnet(photos).float().square().mean(), *counts)
    time_steps("GPT", gpt, lambda: gpt(words, words)["loss"], *counts)
    time_steps("compiled GPT", gpt, lambda: compiled(words, words)["loss"], *counts)


if __name__ == "__main__":
    main()
