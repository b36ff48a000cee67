"""A short hash of what is trained and evaluated on, so that runs on other data under the same name are never paired."""

import hashlib
from typing import Any

import torch


def fingerprint_of(*parts: Any) -> str:
    """Return 12 hex digits for tensors, texts and numbers: shapes, types and contents, in their order.

    Tensors are taken as they are held. CIFAR-10 takes about 0.2 s.
    """

    found = hashlib.sha256()
    for part in parts:
        is_tensor = isinstance(part, torch.Tensor)
        found.update(f"{tuple(part.shape)} {part.dtype};".encode() if is_tensor else f"{part!r};".encode())
        if is_tensor and part.numel():
            found.update(memoryview(part.detach().cpu().contiguous().numpy()).cast("B"))
    return found.hexdigest()[:12]
