"""What holds a GPT-2 of 124M parameters back in bf16, and what gives time besides precision.

    python benchmarks/gpt_limit.py FOLDER --nanogpt CHECKOUT

Each rung trains the GPT of transformer.ipynb in a process of its own, one after the other, because
several that compiled at the same time did not all end on an H200. So give each GPU some of them
(--rungs). FOLDER/phases.txt says how far each came, and FOLDER/limit.csv has a row for each rung:

- milliseconds of a step (the median of five times 20 steps), tokens per second and peak memory
- MFU, which is the arithmetic of the model over that of the data sheet's peak (dense bf16, 989
  TFLOP/s on an H100 or H200). A token takes 6 N + 12 layers x width x context FLOP, where N counts
  all weights but those of the places (PaLM, https://arxiv.org/abs/2204.02311, appendix B).
- the mean loss of the first steps, on the same batches from the same weights
- which kernel computed attention, and the milliseconds of each family of kernels

With --nanogpt a plain loop trains karpathy/nanoGPT's model from our weights, too, for its losses.
With --tiny it is a smoke test on a CPU.
"""

import argparse
import contextlib
import io
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from peers import DEVICE, ROOT, by_turns, wait_for_turn, write_rows

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from notebook_cells import experiment_of  # noqa: E402

from mixed_precision_study.explain.attention import use_attention  # noqa: E402
from mixed_precision_study.explain.profile import profile_steps  # noqa: E402
from mixed_precision_study.train.precision import set_fp32_precision  # noqa: E402
from mixed_precision_study.train.step import cycle_batches  # noqa: E402

PEAK = 989e12  # FLOP/s of dense bf16 products: NVIDIA's data sheets of the H100 SXM and the H200
SIZE = {"width": 768, "layers": 12, "context": 1024, "vocabulary": 50304, "batch_size": 8}
SIZE |= {"execution": "compile_cuda_graph", "precisions": ["amp_bf16"], "dataset": "synthetic"}
# what the notebook itself takes without a GPU
TINY = {"width": 64, "layers": 2, "context": 64, "batch_size": 4, "vocabulary": 256}
FIRST, TIMED, BLOCKS = 12, 20, 5  # steps
RUNGS = {  # in what the parameters of each differ
    "eager": {"execution": "eager"},
    "compiled": {"execution": "compile"},
    "compiled CUDA graph": {},
    "vocabulary of 50,257": {"vocabulary": 50257},
    "FlashAttention": {"attention": "flash"},
    "nanoGPT, compiled": {"execution": "compile"},
    "batch 16": {"batch_size": 16},
    "batch 32": {"batch_size": 32},
    "batch 32, logits in 8 parts": {"batch_size": 32, "loss_chunks": 8},
    "batch 32, fp8": {"batch_size": 32, "precisions": ["fp8"]},
    "batch 32, max-autotune": {"batch_size": 32, "compile_mode": "max-autotune-no-cudagraphs"},
}
FIELDS = ("rung", "ms", "tokens_per_second", "mfu", "peak_gib", "first_losses", "attention")
FIELDS += ("families_ms", "gpu")


def suites(given: dict):
    """Return (a step of the suite from batch to loss, what profile_steps takes as a trainer)."""
    experiment, (precision,) = given["experiment"], given["precisions"]
    trainer = experiment.make_trainer(precision)
    use_attention(given.get("attention"), trainer, given["batches"])
    return lambda batch: trainer.step(batch)[0], trainer


def plain(given: dict, checkout: Path):
    """Return the same of a loop as nanoGPT has it, which begins from the suite's weights."""
    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig

    sizes = {"block_size": given["context"], "vocab_size": given["vocabulary"], "bias": False}
    sizes |= {"n_layer": given["layers"], "n_embd": given["width"], "dropout": 0.0}
    network = GPT(GPTConfig(n_head=given["width"] // 64, **sizes)).to(DEVICE)
    weights = given["experiment"].make_trainer("amp_bf16").weights
    with torch.no_grad():
        for weight, ours in zip(network.parameters(), weights, strict=True):
            weight.copy_(ours)
    optimizer = network.configure_optimizers(0.1, 6e-4, (0.9, 0.95), DEVICE)
    model = torch.compile(network)

    def step(batch, hidden=None):
        with torch.autocast(DEVICE, torch.bfloat16):
            _, loss = model(*(part.contiguous() for part in batch))  # it views them
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), hidden

    return lambda batch: step(batch)[0], SimpleNamespace(step=step, device=torch.device(DEVICE))


def flop_per_token(given: dict, weights: int) -> float:
    """Return the FLOP of a token, forward and backward. weights: without those of the places."""
    return 6 * weights + 12 * given["layers"] * given["width"] * given["context"]


def measure(rung: str, options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row of limit.csv, once it is this rung's turn, and again with what a profile tells,
    because that takes longest.
    """
    given = SIZE | RUNGS[rung] | (TINY if options.tiny else {})
    parameters = {**given, "epochs": 1, "output_dir": str(options.folder)}
    began_at = time.monotonic()

    def note(phase: str) -> None:
        with (options.folder / "phases.txt").open("a") as file:
            file.write(f"{rung}: {phase} after {time.monotonic() - began_at:.0f} s\n")

    experiment = given["experiment"] = experiment_of(
        ROOT / "notebooks/transformer.ipynb", parameters
    )
    (precision,), size = given["precisions"], given["batch_size"]
    set_fp32_precision(precision)
    batches = given["batches"] = lambda: experiment.batches(0, precision, size)
    step, trainer = plain(given, options.nanogpt) if "nanoGPT" in rung else suites(given)
    every = cycle_batches(batches)
    note("built")
    losses = [step(next(every)).item() for _ in range(FIRST)]
    note("compiled")
    wait_for_turn()
    note("its turn")
    seconds = []
    for _ in range(BLOCKS):
        began = time.perf_counter()
        for _ in range(2 if options.tiny else TIMED):
            loss = step(next(every))
        loss.item()
        seconds.append((time.perf_counter() - began) / TIMED)
    note("timed")
    second = statistics.median(seconds)
    weights = sum(one.numel() for one in experiment.make_model().parameters())
    tokens = size * given["context"] / second
    flop = flop_per_token(given, weights - given["context"] * given["width"])
    row = {"rung": rung, "ms": 1000 * second, "tokens_per_second": tokens, "gpu": DEVICE}
    row |= {"mfu": tokens * flop / PEAK, "first_losses": statistics.fmean(losses)}
    if DEVICE == "cuda":
        row |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        row |= {"gpu": torch.cuda.get_device_name()}
    yield row
    if DEVICE == "cuda":
        seen: dict = {}
        record = SimpleNamespace(step_ms_median=1000 * second, fill=seen.update)
        profile_steps(record, trainer, every)
        row["attention"] = f"{seen['attention_forward']}, {seen['attention_backward']}"
        row["families_ms"] = "; ".join(
            f"{name} {share * seen['gpu_busy_ms_per_step']:.2f}"
            for name, share in seen["kernel_family_fractions"]
        )
        note("profiled")
        yield row


def rounded(row: dict) -> dict:
    return {name: f"{one:.5g}" if isinstance(one, float) else one for name, one in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of limit.csv")
    parser.add_argument("--nanogpt", type=Path, help="folder of the checkout")
    parser.add_argument("--rungs", default="", help="regular expression of those to climb")
    parser.add_argument("--tiny", action="store_true", help="a smoke test")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with contextlib.redirect_stdout(io.StringIO()):
            for row in measure(options.one, options):
                print(json.dumps(rounded(row)), file=sys.__stdout__, flush=True)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    words = [sys.executable, __file__, str(options.folder), *(["--tiny"] if options.tiny else [])]
    words += ["--nanogpt", str(options.nanogpt.resolve())] if options.nanogpt else []
    for name in RUNGS:
        if not re.search(options.rungs, name) or ("nanoGPT" in name and not options.nanogpt):
            continue
        ((output, error),) = by_turns([[*words, "--one", name]])
        last = (output.strip().splitlines() or [""])[-1]
        if not last.startswith("{"):
            print(f"{name}: {error}", flush=True)
            continue
        rows.append(json.loads(last))
        write_rows(options.folder / "limit.csv", rows, FIELDS)
        print(*(rows[-1].get(field, "") for field in FIELDS[:-1]), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
