"""A short hash of what is trained and evaluated on, so that runs on other data under the same name are never paired."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..data_files import hash_of_bytes, hash_of_files


def fingerprint_of(*parts: Any) -> str:
    """Return 12 hex digits for tensors, texts and numbers: shapes, types and contents, in their order.

    Tensors are taken as they are held. CIFAR-10 takes about 0.2 s.
    """
    return hash_of_bytes(piece for part in parts for piece in pieces_of(part))


def pieces_of(part: Any) -> Iterable:
    """Yield what identifies a tensor (shape, type and bytes) or another value (its text)."""
    if isinstance(part, torch.Tensor):
        yield f"{tuple(part.shape)} {part.dtype};"
        yield memoryview(part.detach().cpu().contiguous().numpy()).cast("B") if part.numel() else ""
    else:
        yield f"{part!r};"


def fingerprint_of_files(paths: list[Path], *parts: Any) -> str:
    """Return 12 hex digits for images that stay files: their sizes, their contents or a sample, and other parts.

    All contents are read up to 64 MiB. Of larger sets, 64 files spread over all are read, 64 KiB of each.
    """
    return fingerprint_of(hash_of_files(paths), *parts)
