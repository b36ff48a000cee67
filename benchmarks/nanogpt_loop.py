"""GPT-2 124M trained by a plain loop as nanoGPT's and by compare(): tokens per second and losses of both, on one GPU.

    python benchmarks/nanogpt_loop.py        # about three minutes on an H100; a CPU measures nothing, in a tiny form
    python benchmarks/nanogpt_loop.py 2      # gradients of two batches in a step; without a number of one, then of two

Both have bf16 autocast, torch.compile, fused AdamW with two parameter groups, clipping and a cosine schedule. The
contenders run in one order and then in the other, three epochs each time. All begin with the same weights and batches,
so their losses differ by rounding alone. The lines that compare() prints itself stand between the results.
"""

import argparse
import copy
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mixed_precision_study import compare

EPOCHS = 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FULL = {"words": 50304, "block": 1024, "layers": 12, "heads": 12, "width": 768}, 8, 60  # model, batch size, steps
TINY = {"words": 256, "block": 16, "layers": 1, "heads": 2, "width": 32}, 2, 3


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        query, key, value = self.attend(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, words, block, layers, heads, width):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(block, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        for weight in (one for one in self.parameters() if one.dim() > 1):
            nn.init.normal_(weight, std=0.02)

    def forward(self, words, following):  # both (batch, block)
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        logits = nn.functional.linear(self.layers(x).flatten(0, 1), self.words.weight)
        return nn.functional.cross_entropy(logits, following.flatten())


def make_optimizer(model):
    decayed = {"params": [weight for weight in model.parameters() if weight.dim() > 1], "weight_decay": 0.1}
    others = {"params": [weight for weight in model.parameters() if weight.dim() < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([decayed, others], lr=6e-4, betas=(0.9, 0.95), fused=True)


def rate_at(step):
    return 6e-4 * min((step + 1) / 11, 0.55 + 0.45 * math.cos(math.pi * max(0, step - 10) / 190))


def plain_loop(make_model, batches, accumulate):
    """Train as nanoGPT's train.py does. Returns the seconds and the mean loss of each epoch."""
    torch.set_float32_matmul_precision("high")
    torch.compiler.reset()
    torch.manual_seed(0)
    network = make_model().to(DEVICE)
    begun = copy.deepcopy(network.state_dict())
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
    given = dict(make_optimizer=make_optimizer, schedule=rate_at, clip=1.0, accumulate=accumulate, execution=execution)
    with tempfile.TemporaryDirectory() as folder:
        given |= dict(precisions=["amp_bf16"], epochs=EPOCHS, max_steps=len(batches), repeat=1, output_dir=folder)
        (record,) = compare("gpt", make_model, batches, lambda model, batch: model(*batch), **given)
    return record.epoch_seconds, record.train_loss


CONTENDERS = {
    "plain loop, compiled": plain_loop,
    "compare(), compiled": lambda *given: compared(*given, "compile"),
    "compare(), compiled graph": lambda *given: compared(*given, "compile_cuda_graph"),
}


def main():
    model, size, steps = FULL if DEVICE.type == "cuda" else TINY
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accumulate", type=int, nargs="*", default=[1, 2], help="batches in a step")
    block, generator = model["block"], torch.Generator().manual_seed(0)
    for accumulate in parser.parse_args().accumulate:
        text = torch.randint(model["words"], (steps * accumulate, size, block + 1), generator=generator)
        batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in text.to(DEVICE)]
        for name in (*CONTENDERS, *reversed(CONTENDERS)):
            seconds, losses = CONTENDERS[name](lambda: GPT(**model), batches, accumulate)
            rates = [round(len(batches) * size * block / one) for one in seconds]
            print(f"accumulate {accumulate} | {name:25} | tokens/s {rates} | losses {losses}", flush=True)


if __name__ == "__main__":
    main()
