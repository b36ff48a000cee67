"""GPT-2 124M trained by a plain loop as nanoGPT's and by compare(): tokens per second and losses of both, on one GPU.

    python benchmarks/nanogpt_loop.py             # about three minutes on an H100
    python benchmarks/nanogpt_loop.py --tiny      # on the CPU: shows that it works, measures nothing

Both have bf16 autocast, torch.compile, fused AdamW with two parameter groups, clipping and a cosine schedule. The
contenders run in one order and then in the other, three epochs each time, because the first finds a cold compiler. All
begin with the same weights and batches, so their losses differ by rounding alone.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mixed_precision_study import compare

EPOCHS = 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FULL = {"words": 50304, "block": 1024, "layers": 12, "heads": 12, "width": 768}, 8, 25  # model, batch size, steps
TINY = {"words": 256, "block": 16, "layers": 1, "heads": 2, "width": 32}, 2, 3


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.attend(self.norms[0](x)).chunk(3, dim=2)
        heads = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.project(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """nanoGPT's model without dropout. forward(words, following), both (batch, block), returns the mean loss."""

    def __init__(self, words, block, layers, heads, width):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(block, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                last = name.endswith(("project.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers if last else 1))

    def forward(self, words, following):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        logits = functional.linear(self.layers(x), self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def make_optimizer(model):
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def rate_at(step):
    return 6e-4 * min((step + 1) / 11, 0.55 + 0.45 * math.cos(math.pi * max(0, step - 10) / 190))


def plain_loop(make_model, batches, accumulate):
    """Train as nanoGPT's train.py does. Returns the seconds and the mean loss of each epoch."""
    torch.set_float32_matmul_precision("high")
    torch.compiler.reset()
    torch.manual_seed(0)
    network = make_model().to(DEVICE)
    begun = {name: value.clone() for name, value in network.state_dict().items()}
    model, optimizer = torch.compile(network), make_optimizer(network)
    seconds, losses = [], []
    for epoch in range(-1, EPOCHS):  # the first only compiles
        if epoch == 0:
            network.load_state_dict(begun)
            optimizer.state.clear()
        began, total = time.perf_counter(), torch.zeros((), device=DEVICE)
        for start in range(0, len(batches), accumulate):
            for group in optimizer.param_groups:
                group["lr"] = rate_at((max(epoch, 0) * len(batches) + start) // accumulate)
            for batch in batches[start : start + accumulate]:
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = model(*(part.to(DEVICE, non_blocking=True) for part in batch)) / accumulate
                total += loss.detach()
                loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(total.item() * accumulate / len(batches))  # waits for the GPU
        seconds.append(time.perf_counter() - began)
    return seconds[1:], losses[1:]


def compared(make_model, batches, accumulate, execution):
    """Train with compare() and return the same."""
    given = {"precisions": ["amp_bf16"], "epochs": EPOCHS, "max_steps": len(batches), "purpose": "time", "clip": 1.0}
    functions = {"make_optimizer": make_optimizer, "schedule": rate_at}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        given |= {"accumulate": accumulate, "execution": execution, "output_dir": folder}
        (record,) = compare("gpt", make_model, batches, lambda model, batch: model(*batch), **functions, **given)
    print("" if record.status == "ok" else f"{record.status}: {record.reason}\n", end="")
    return record.epoch_seconds, record.train_loss


CONTENDERS = {
    "plain loop, compiled": plain_loop,
    "compare(), compiled": partial(compared, execution="compile"),
    "compare(), compiled graph": partial(compared, execution="compile_cuda_graph"),
}


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model and few steps")
    options = parser.parse_args(words)
    model, size, steps = TINY if options.tiny else FULL
    generator, block = torch.Generator().manual_seed(0), model["block"]
    for accumulate in (1, 2):
        text = torch.randint(model["words"], (steps * accumulate, size, block + 1), generator=generator)
        batches = [(part[:, :-1].contiguous().to(DEVICE), part[:, 1:].contiguous().to(DEVICE)) for part in text]
        for name in (*CONTENDERS, *reversed(CONTENDERS)):
            seconds, losses = CONTENDERS[name](lambda: GPT(**model), batches, accumulate)
            rates = [len(batches) * size * block / one for one in seconds]
            shown = [f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))] if rates else []
            print(f"accumulate {accumulate} | {name:25} | tokens/s {shown} | losses {losses}", flush=True)


if __name__ == "__main__":
    main()
