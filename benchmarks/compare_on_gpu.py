"""Does compare() train as a plain loop does? BERT with dropout, and an optimizer with counters of
its own.

It takes about four minutes on a GPU and needs transformers, but no network. On a CPU it only checks
itself, with tiny sizes and without graphs and fp16. --eager leaves out the graphs. It ends with
status 1 where a check does not hold.

In eager mode both loops use PyTorch's deterministic algorithms. Without them the sums of an
embedding's gradient come in another order each time, of which AdamW makes a difference of 1e-5 in
six epochs, also of a loop with itself.

The batches bring a finished mask of four dimensions, because BERT takes that as it is. Without one,
transformers before 5.22 builds a mask while a graph is captured, though not in eager steps, and
copies a number of the host to the GPU for it, which a capture refuses.
"""

import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from functools import partial, partialmethod
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when PyTorch begins

import torch
from scipy.stats import t as student
from transformers import BertConfig, BertForSequenceClassification

sys.path.insert(0, str(Path(__file__).parents[1]))
from mixed_precision_study import compare
from mixed_precision_study.experiment import Metric
from mixed_precision_study.tasks.iterable import seed_all
from mixed_precision_study.train.precision import set_fp32_precision

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SEEDS, EPOCHS, STEPS = (6, 6, 40) if GPU else (3, 2, 4)
WIDTH, LENGTH, BATCH = (256, 64, 64) if GPU else (32, 8, 4)
# of the loss in fp16, fixed, because a search for it begins where the warm-up has left it
SCALE = 1024.0
adamw = partial(torch.optim.AdamW, lr=3e-4)
TYPES = {"fp32": None, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


class Averaged(torch.optim.Optimizer):
    """Schedule-free gradient descent: counters in its groups, and other weights to evaluate than
    to train.
    """

    def __init__(self, weights, lr=0.05, beta=0.9, rise=20):
        super().__init__(
            weights, {"lr": lr, "beta": beta, "rise": rise, "k": 0, "total": 0.0, "training": True}
        )

    @torch.no_grad()
    def change(self, training):
        for group in self.param_groups:
            if group["training"] != training:
                group["training"] = training
                for weight in group["params"]:
                    if weight in self.state:  # w = x + (1 - beta) (z - x), of which x is evaluated
                        part = 1 - group["beta"] if training else 1 - 1 / group["beta"]
                        weight.lerp_(self.state[weight]["z"], part)

    train, eval = partialmethod(change, True), partialmethod(change, False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            rate = group["lr"] * min(1.0, group["k"] / group["rise"])
            group["total"] += rate**2
            share = rate**2 / group["total"]
            for weight in group["params"]:
                if weight.grad is not None:
                    z = self.state[weight].setdefault("z", weight.clone())
                    weight.lerp_(z, share)
                    weight.add_(weight.grad, alpha=rate * (group["beta"] * (1 - share) - 1))
                    z.sub_(weight.grad, alpha=rate)


def loss_of(model, batch):
    return model(**batch).loss.float()


def accuracy(model, batches):
    return torch.stack(
        [(model(**one).logits.argmax(1) == one["labels"]).float().mean() for one in batches]
    ).mean()


def plain(make_model, batches, make_optimizer, precision, seed):
    set_fp32_precision("fp32")
    torch.manual_seed(seed)
    model = make_model().to(DEVICE).train()
    optimizer = make_optimizer(model.parameters())
    fixed = {"init_scale": SCALE, "growth_interval": 10**9, "enabled": precision == "amp_fp16"}
    scaler = torch.amp.GradScaler(DEVICE.type, **fixed)
    kind, losses = TYPES[precision], []
    placed = [{name: part.to(DEVICE) for name, part in batch.items()} for batch in batches]
    for epoch in range(EPOCHS):
        for number, batch in enumerate(placed):
            # the random numbers that compare() gives this step
            seed_all(seed, epoch, number, on_gpu=GPU)
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, dtype=kind, enabled=kind is not None):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
    getattr(optimizer, "eval", int)()
    with torch.no_grad(), torch.autocast(DEVICE.type, dtype=kind, enabled=kind is not None):
        right = accuracy(model.eval(), placed).item()
    return [part.mean().item() for part in torch.stack(losses).split(len(batches))], right


def compared(name, make_model, batches, make_optimizer, folder, **given):
    held_out = {
        "evaluate": accuracy,
        "eval_batches": batches,
        "metric": Metric("accuracy", better="higher"),
    }
    given |= {
        "make_optimizer": make_optimizer,
        "epochs": EPOCHS,
        "max_steps": STEPS,
        "output_dir": f"{folder}/{name}",
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        # repeat=1, because the first repetition also explains itself, which takes long
        records = compare(
            name, make_model, batches, loss_of, repeat=1, loss_scale=SCALE, **held_out, **given
        )
    if reasons := [
        f"{record.precision}: {record.reason}" for record in records if record.status != "ok"
    ]:
        sys.exit(f"{name}: {'; '.join(reasons)}")
    return records


def main():
    began, rows = time.perf_counter(), []
    torch.use_deterministic_algorithms(True, warn_only=True)
    folder, drawn = tempfile.mkdtemp(), torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * WIDTH,
    }
    BertForSequenceClassification(BertConfig(vocab_size=512, **sizes)).save_pretrained(
        f"{folder}/bert"
    )
    tokens = torch.randint(512, (STEPS, BATCH, LENGTH), generator=drawn)
    nothing_masked = torch.zeros(BATCH, 1, 1, LENGTH)
    batches = [
        {"input_ids": part, "attention_mask": nothing_masked, "labels": (part[:, 0] >= 256).long()}
        for part in tokens
    ]
    bert = partial(
        BertForSequenceClassification.from_pretrained, f"{folder}/bert", attn_implementation="eager"
    )
    modes = {"fp32": 1e-6, "amp_bf16": 1e-3, **({"amp_fp16": 1e-3} if GPU else {})}
    for name, make_optimizer in (("AdamW", adamw), ("schedule-free", Averaged)):
        for record in compared(name, bert, batches, make_optimizer, folder, precisions=[*modes]):
            losses, right = plain(bert, batches, make_optimizer, record.precision, 0)
            pairs = zip(record.train_loss, losses, strict=True)
            # in units of the first epoch's loss, because the last one is nearly 0
            apart = max(abs(own - other) for own, other in pairs) / losses[0]
            told = (
                f"{record.warmup_steps} warm-up steps, losses {losses[0]:.4f} to {losses[-1]:.4f}"
            )
            told += f", accuracy {record.metric[-1]:.3f} and {right:.3f}"
            rows.append(
                (f"{name}, eager, {record.precision}", apart, modes[record.precision], told)
            )
    torch.use_deterministic_algorithms(False)
    executions, apart, fell = (["cuda_graph", "compile"] if GPU else ["eager"]), {}, []
    for seed in range(0 if "--eager" in sys.argv else SEEDS):
        losses, _ = plain(bert, batches, adamw, "amp_bf16", seed)
        fell.append(losses[0] - losses[-1])
        given = {"precisions": ["amp_bf16"], "execution": executions, "seed": seed}
        for execution, record in zip(
            executions,
            compared("seeds", bert, batches, adamw, folder, **given),
            strict=True,
        ):
            apart.setdefault(execution, []).append(record.train_loss[-1] - losses[-1])
    for execution, found in apart.items():
        half = student.ppf(0.975, len(found) - 1) * statistics.stdev(found) / len(found) ** 0.5
        worst = max(
            abs(statistics.fmean(found) + side * half) for side in (-1, 1)
        ) / statistics.fmean(fell)
        told = (
            f"{SEEDS} seeds, mean difference {statistics.fmean(found):+.2e}, half the "
            f"interval {half:.1e}"
        )
        rows.append((f"AdamW, {execution}, amp_bf16", worst, 0.02, told))
    print(
        torch.cuda.get_device_name() if GPU else "CPU",
        torch.__version__,
        f"{time.perf_counter() - began:.0f} s",
    )
    for name, value, most, told in rows:
        print(
            f"{name:32} {value:8.1e} of at most {most:.0e}  "
            f"{'ok' if value <= most else 'NOT OK':6}  {told}"
        )
    return int(any(value > most for _, value, most, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
