"""How exact each kernel of attention is: its output and gradients against fp64.

    python benchmarks/attention_error.py --out errors.csv [--contexts 1024 8192]

Causal attention of 12 heads of 64 on normal random numbers in fp32, as a GPT of width 768 has them.
A kernel that computes in 16 bits gets them rounded, as autocast does. An error is a relative one:
the norm of the difference from fp64, over the norm of fp64's result. `spread` is the standard
deviation of the scores: at 1 a token looks at all others alike, and at 4 at a few of them. Writes a
row for each kernel, format, context, spread and draw, with PyTorch's reason where it cannot run, and
`chosen`, which kernel PyTorch takes by itself.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, SIZE = 12, 64
KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# TF32 is fp32 with PyTorch's switch on
FORMATS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
PARTS = ("output", "query", "key", "value")  # the result, and the gradients of its inputs
SPREADS, DRAWS = (1, 4), 3


def drawn(context: int, spread: float, draw: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries, keys and values (3, 1, HEADS, context, SIZE), and the gradient of the output
    (1, HEADS, context, SIZE).
    """
    generator = torch.Generator(device).manual_seed(draw)
    shape = (4, 1, HEADS, context, SIZE)
    *heads, gradient = torch.randn(shape, generator=generator, device=device)
    heads[0] *= spread
    return torch.stack(heads), gradient


def attended(heads: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return the output of causal attention and the gradients of its inputs, in their format."""
    inputs = [one.detach().requires_grad_() for one in heads]
    output = scaled_dot_product_attention(*inputs, is_causal=True)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient.to(output.dtype))]


def exact(heads: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return attended() in fp64, head by head, because the scores of all need much memory."""
    parts = []
    with sdpa_kernel(SDPBackend.MATH):
        for head in range(HEADS):
            one = slice(head, head + 1)
            parts.append(attended(heads[:, :, one].double(), gradient[:, one].double()))
    return [torch.cat(part, dim=1) for part in zip(*parts, strict=True)]


def errors(
    kernel: str, name: str, heads: torch.Tensor, gradient: torch.Tensor, right: list[torch.Tensor]
) -> dict[str, str]:
    """Return {part: relative error} of a kernel in a format, or {"reason": why it cannot run}."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    try:
        with sdpa_kernel(KERNELS[kernel]):
            found = attended(heads.to(FORMATS[name]), gradient)
    except RuntimeError as error:
        return {"reason": str(error).splitlines()[0][:100]}
    pairs = zip(PARTS, found, right, strict=True)
    return {part: f"{((one - ref).norm() / ref.norm()).item():.4g}" for part, one, ref in pairs}


def rows_of(contexts: list[int], device: str) -> Iterator[dict]:
    """Yield a row for each kernel and format on each draw."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    for context, spread, draw in product(contexts, SPREADS, range(DRAWS)):
        heads, gradient = drawn(context, spread, draw, device)
        right = exact(heads, gradient)
        for kernel, name in product(KERNELS, FORMATS):
            chosen = torch._fused_sdp_choice(*heads.to(FORMATS[name]), is_causal=True)
            row = {"context": context, "spread": spread, "draw": draw}
            row |= {"kernel": kernel, "format": name, "chosen": SDPBackend(chosen).name}
            row |= {"gpu": gpu, "torch": torch.__version__}
            yield row | errors(kernel, name, heads, gradient, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = [
        "context",
        "spread",
        "draw",
        "kernel",
        "format",
        *PARTS,
        "reason",
        "chosen",
        "gpu",
        "torch",
    ]
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for row in rows_of(arguments.contexts, device):
            writer.writerow(row)
    print(f"{arguments.out} written", file=sys.stderr)


if __name__ == "__main__":
    main()
