"""Do the recipes of bf16 weights train as a CUDA graph as they do in eager mode? From the repository's root, on a GPU:

    python weights_graph_check.py
"""

import functools
import os
import sys
import time
import traceback

sys.path.insert(0, os.getcwd())
import torch

from mixed_precision_study.tasks.gpt import Gpt
from mixed_precision_study.train.device_optimizer import rounded_at_random
from mixed_precision_study.train.precision import set_fp32_precision
from mixed_precision_study.train.step import Trainer, training_step

RECIPES = {
    ("tf32", "as_weights", "nearest"): 0.005,
    ("amp_bf16", "as_weights", "nearest"): 0.02,
    ("amp_fp16", "as_weights", "nearest"): 0.02,
    ("amp_bf16", "bf16", "nearest"): 0.02,
    ("bf16_true", "as_weights", "nearest"): 0.02,
    ("bf16_true", "fp32", "nearest"): 0.02,
    ("bf16_true", "as_weights", "stochastic"): 0.02,
    ("bf16_true", "fp32", "stochastic"): 0.02,
    ("bf16_true", "as_weights", "kahan"): 0.02,
    ("bf16_true", "fp32", "fp32_copy"): 0.02,
}
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS, WIDTH, LAYERS, CONTEXT, BATCH = 20, 256, 2, 128, 8


def loss_of(model, batch, hidden):
    tokens, following = batch
    logits = model.logits(model.features(tokens)).flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, following.flatten()), None


def optimizer_of(weights):
    groups = [{"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.1},
              {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, 3e-4, betas=(0.9, 0.95), fused=weights[0].is_cuda)


def trained(precision, moments, rounding, execution):
    set_fp32_precision("tf32" if precision == "tf32" else "fp32") if GPU.type == "cuda" else None
    torch.manual_seed(0)
    trainer = Trainer(
        Gpt(WIDTH, LAYERS, CONTEXT, 256, "auto").to(GPU), precision, loss_of, device=GPU,
        make_optimizer=optimizer_of, step_function=functools.partial(training_step, clip=1.0),
        execution=execution, moments=moments, rounding=rounding)
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 256, (BATCH, CONTEXT + 1), generator=draw).to(GPU) for _ in range(3)]
    first = [weight.detach().clone() for weight in trainer.masters]
    torch.manual_seed(2)
    losses = []
    for number in range(STEPS):
        if execution == "cuda_graph" and number == STEPS - 5 and GPU.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")  # a replay waits for nothing
        trainer.set_lr(3e-4 * (1 - number / STEPS))
        batch = batches[number % 3]
        losses.append(trainer.step((batch[:, :-1], batch[:, 1:]))[0].clone())
    if GPU.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    moved = any(not torch.equal(a, b) for a, b in zip(first, trainer.masters))
    return torch.stack(losses).float().cpu(), [w.detach().float().cpu() for w in trainer.masters], trainer, moved


def noise_is_new():
    """A captured rounding at random draws anew in each replay, and is right on average."""
    exact = torch.full((100_000,), 1 + 2**-9, device=GPU)  # a quarter of the way from 1 to 1 + 2**-7
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rounded_at_random(exact)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rounded_at_random(exact)
    draws = []
    for _ in range(2):
        graph.replay()
        draws.append(out.float().clone())
    torch.cuda.synchronize()
    means = [draw.mean().item() for draw in draws]
    return not torch.equal(*draws) and all(abs(mean - 1 - 2**-9) < 1e-4 for mean in means), means


def main():
    began, failed = time.perf_counter(), 0
    if GPU.type == "cuda":
        print(torch.cuda.get_device_name(), torch.__version__)
    for recipe, close in RECIPES.items():
        try:
            (eager, weights, one, _), (replayed, others, two, moved) = (
                trained(*recipe, execution) for execution in ("eager", "cuda_graph"))
            apart = ((eager - replayed).abs() / eager.abs()).max().item()
            step = max((a - b).abs().max().item() for a, b in zip(weights, others))
            same = sum(torch.equal(a, b) for a, b in zip(weights, others))
            is_graph = GPU.type == "cpu" or two.captured.graph is not None
            ok = apart <= close and moved and is_graph and bool(replayed.isfinite().all())
            words = f"losses {eager[0]:.4f} to {eager[-1]:.4f} and {replayed[-1]:.4f}, apart {apart:.1e}; "
            words += f"weights apart {step:.1e}, {same} of {len(weights)} tensors with equal bits"
        except Exception as error:
            if GPU.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            ok, words = False, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        failed += not ok
        print("pass" if ok else "FAIL", *recipe, words, flush=True)
    if GPU.type == "cuda":
        ok, means = noise_is_new()
        failed += not ok
        print("pass" if ok else "FAIL", "noise of replays is new:", means)
    print(f"{failed} failed; {time.perf_counter() - began:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
