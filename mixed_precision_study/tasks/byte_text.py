"""A text as bytes, cut into windows of one length: WikiText-2, any text file, or made-up tokens."""

import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .batches import Batches
from .download import announced, found_or_made_up
from .wikitext import Text, contents_in, made_up_text

BYTES = [str(number) for number in range(256)]


def load(settings: Any, device: torch.device) -> "ByteText":
    """Return the text that the settings name: for "auto" WikiText-2, or made-up tokens if it is
    not available. Another name is that of a text file in data_dir.

    Raises UserError where there is no such file, or where its text is too short.
    """
    name = settings.dataset
    folder = Path(settings.data_dir)
    title = name
    find = partial(file_bytes, folder / name)
    if name in ("auto", "wikitext-2", "synthetic"):
        title = "WikiText-2"
        find = partial(wikitext_bytes, folder / "wikitext-2")
    make_up = partial(made_up_text, device, settings.vocabulary)
    found = found_or_made_up(name, title, find, make_up, f"put its text into {folder}")
    given = SimpleNamespace(**vars(settings), bptt=settings.context, asked=settings)
    return announced(ByteText(given, device, *found))


class ByteText(Text):
    """Batches of windows of a text, in a random order that seed and epoch give. A batch is (tokens,
    next tokens), both int64 (size, context).
    """

    def segments(self, columns: Tensor, most: int = 0, joined: int = 1) -> Batches:
        """Yield windows of one length, which are never joined, because a GPT reads no more."""
        for tokens, next_tokens in super().segments(columns, most):
            yield tokens.t(), next_tokens.t()

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Batches:
        batches = list(super().train_batches(epoch, dtype, size))  # which copy nothing
        random.Random(1000 * self.settings.asked.seed + epoch).shuffle(batches)  # noqa: S311
        return iter(batches)


def as_tokens(content: bytes) -> Tensor:
    return torch.tensor(bytearray(content), dtype=torch.uint8).long()


def wikitext_bytes(folder: Path) -> tuple:
    """Return what Text takes, of a folder's texts, which are downloaded if they are missing."""
    contents, source, used = contents_in(folder)
    train, valid = (as_tokens(contents[f"{part}.txt"]) for part in ("train", "valid"))
    return (train, valid, train[:0], BYTES), source, used


def file_bytes(path: Path) -> tuple:
    """Return what Text takes, of one text file, whose last tenth is held out."""
    text = as_tokens(path.read_bytes().replace(b"\r\n", b"\n"))
    cut = len(text) * 9 // 10
    return (text[:cut], text[cut:], text[:0], BYTES), "folder", path.name
