"""WikiText-2 as numbers, cut into columns of text: from a folder or downloaded; otherwise made-up text.

Source: https://github.com/pytorch/examples/tree/main/word_language_model
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from ..measure.files import written_whole
from ..parameters import UserError
from .batches import Batch, TrainingData, fingerprint_of
from .download import announced, downloaded, found_or_made_up

WIKITEXT_URL = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
WIKITEXT_BLOBS = {  # git's own checksum of each file: SHA-1 over "blob <size>\0" and the bytes
    "train.txt": "2d84b35af79e411d73ea7cae83c73964c6ac83b4",
    "valid.txt": "eec944eb2d9e46061cd34a6913528797db6842fc",
    "test.txt": "6f3fc88e4cd88456ea892971f9f12243e8428624",
}

EVAL_COLUMNS = 10  # of the validation and the test text, as in the public example
USUAL_COLUMNS = 20  # shown as an example if the batch size is not known yet


@dataclass
class NumberedText:
    """Texts as word numbers, int64 (N,). The test text is empty if there is none."""

    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor
    vocabulary: list[str]  # the word of each number
    source: str  # "folder", "download" or "synthetic"
    used: str  # name of the data set


def load(settings: SimpleNamespace, device: torch.device) -> "Text":
    """Return the text that the settings name: for "auto" WikiText-2, or made-up text if it is not available.

    `settings` has dataset, data_dir, batch_size, bptt and max_steps. Raises UserError if a text that was asked for by
    name is not available.
    """
    folder = Path(settings.data_dir) / "wikitext-2"
    advice = f"put train.txt, valid.txt and test.txt into {folder}"
    find, make_up = partial(wikitext_in, folder), partial(made_up_text, device)
    words = found_or_made_up(settings.dataset, "WikiText-2", find, make_up, advice)
    return announced(Text(settings, device, words), f", vocabulary {len(words.vocabulary):,}")


class Text(TrainingData):
    """Batches of text in columns that run side by side. `vocabulary` holds the words by number.

    A batch is (words, next words), both int64 (bptt, batch size). `train_columns` holds the training text on the
    device, by batch size.
    """

    sample_unit = "tokens"

    def __init__(self, settings: SimpleNamespace, device: torch.device, words: NumberedText):
        self.settings = settings
        self.device = device
        self.words = words
        self.vocabulary = words.vocabulary
        self.source, self.used = words.source, words.used
        self.fingerprint = fingerprint_of(words.train, words.valid, words.test, "\n".join(words.vocabulary))
        self.train_samples: int = len(words.train)
        self.eval_samples: int = len(words.valid)
        self.samples_per_item = settings.bptt
        self.largest_batch = len(words.train) // (settings.bptt + 1)
        self.asked_size = USUAL_COLUMNS if settings.batch_size == "max" else settings.batch_size
        self.train_columns = {self.asked_size: self.in_columns(words.train, self.asked_size)}
        self.valid_columns = self.in_columns(words.valid, EVAL_COLUMNS)

    @property
    def chance(self) -> float:
        """The validation perplexity of guessing by the frequency of each word in the training text."""
        counts = torch.bincount(self.words.train, minlength=len(self.vocabulary)).double() + 1
        return perplexity(-(counts / counts.sum()).log()[self.words.valid].mean().item())

    def in_columns(self, words: torch.Tensor, columns: int) -> torch.Tensor:
        """Return the text (N,) as (N // columns, columns) on the device, without the words left over."""
        bptt = self.settings.bptt
        if len(words) // columns <= bptt:
            raise UserError(f"{len(words)} words of text are too few for {columns} columns of more than {bptt} (bptt).")
        return words[: len(words) // columns * columns].view(columns, -1).t().contiguous().to(self.device)

    def segments(self, columns: torch.Tensor, most: int = 0, joined: int = 1) -> Iterator[Batch]:
        """Yield (words, next words), both (bptt, columns), from top to bottom; an incomplete last one is left out.

        most: how many, 0 for all. joined: how many are joined as one, of more rows; the last ones may be fewer.
        """
        bptt = self.settings.bptt
        steps = (len(columns) - 1) // bptt
        rows = bptt * min(steps, most or steps)
        for start in range(0, rows, joined * bptt):
            stop = min(start + joined * bptt, rows)
            yield columns[start:stop], columns[start + 1 : stop + 1]

    def set_batch_size(self, size: int) -> None:
        """Keep the training text in `size` columns on the device."""
        self.train_columns[size] = self.text_for(size)

    def text_for(self, size: int) -> torch.Tensor:
        """Return the training text in `size` columns; it is not kept unless set_batch_size() was called."""
        return self.train_columns[size] if size in self.train_columns else self.in_columns(self.words.train, size)

    def steps_per_epoch(self, size: int) -> int:
        steps = (len(self.words.train) // size - 1) // self.settings.bptt
        return min(steps, self.settings.max_steps or steps)

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Return the segments of the training text, which is never shuffled."""
        return self.segments(self.text_for(size), self.settings.max_steps)

    def held_out(self, columns: torch.Tensor, size: int) -> Iterator[Batch]:
        """Return the segments of a held-out text, at most max_steps of them, several joined as one batch.

        The loss stays the same, because a recurrent network carries its state over. A batch has at most as many words
        as a training batch of `size` columns, so it needs no more memory. A transformer sees bptt words at most.
        """
        joined = 1 if getattr(self.settings, "model", None) == "transformer" else max(1, size // EVAL_COLUMNS)
        return self.segments(columns, self.settings.max_steps, joined)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        return self.held_out(self.valid_columns, size)

    def test_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch] | None:
        """Return batches of the test text, or None if it is missing or too short."""
        if len(self.words.test) // EVAL_COLUMNS <= self.settings.bptt:
            return None
        return self.held_out(self.in_columns(self.words.test, EVAL_COLUMNS), size)

    def show(self) -> None:
        """Print the shape of a batch and the first words of a column, with those to be predicted."""
        words, next_words = self.example(self.asked_size)
        print(f"A batch: words {tuple(words.shape)}, {self.steps_per_epoch(self.asked_size)} steps per epoch")
        print("The first column reads:", *self.as_words(words[:12, 0]))
        print("To be predicted:       ", *self.as_words(next_words[:12, 0]))

    def as_words(self, numbers: torch.Tensor) -> list[str]:
        return [self.vocabulary[number] for number in numbers.tolist()]


def perplexity(loss: float) -> float:
    """Return the exponential of a mean loss per word; infinity if it is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def wikitext_in(folder: Path) -> NumberedText:
    """Return the texts of a folder, downloaded if they are missing; raise OSError if they cannot be downloaded.

    Every line ends with <eos>. Words that the training text does not have become <unk>. Texts other than WikiText-2's
    get a name of their own. Ends of lines may be those of Windows.
    """
    source = "folder"
    if not all((folder / name).exists() for name in ("train.txt", "valid.txt")):  # training does not need test.txt
        download_wikitext(folder)
        source = "download"
    texts: dict[str, list[str]] = {"test": []}
    known = True
    for name, blob in WIKITEXT_BLOBS.items():
        if (folder / name).exists():
            content = (folder / name).read_bytes().replace(b"\r\n", b"\n")
            known = known and git_blob(content) == blob
            try:
                lines = content.decode().splitlines()
            except UnicodeDecodeError as error:
                raise UserError(f"{folder / name} cannot be read ({error}); it must be a text file in UTF-8.") from None
            texts[name.removesuffix(".txt")] = [word for line in lines for word in (*line.split(), "<eos>")]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*texts["train"], "<unk>"]))}
    unknown = vocabulary["<unk>"]
    train, valid, test = (
        torch.tensor([vocabulary.get(word, unknown) for word in texts[part]], dtype=torch.long)
        for part in ("train", "valid", "test")
    )
    used = "wikitext-2"
    if not known:
        print(f"NOTICE: the texts in {folder} are not those of WikiText-2, so they are named {used}-like.")
        used += "-like"
    return NumberedText(train, valid, test, list(vocabulary), source, used)


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def download_wikitext(folder: Path) -> None:
    """Download the three files. Raises OSError if one has a wrong checksum; only right files are written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in WIKITEXT_BLOBS.items():
        content = downloaded(WIKITEXT_URL + name, git_blob, blob)
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(content)


def made_up_text(device: torch.device) -> NumberedText:
    """Return text of WikiText-2's size; on the CPU a small part of it with fewer words.

    Half of the words follow from the word before, the others are drawn by Zipf's law.
    """
    generator = torch.Generator().manual_seed(0)
    words, counts = 1_001, (40_000, 4_000)
    if device.type == "cuda":
        words, counts = 33_278, (2_088_628, 217_646)
    frequency = 1 / torch.arange(1, words + 1)
    successor = torch.multinomial(frequency, words, replacement=True, generator=torch.Generator().manual_seed(1))
    texts = []
    for count in counts:
        text = torch.multinomial(frequency, count, replacement=True, generator=generator)
        follows = torch.rand(count, generator=generator) < 0.5
        text[1:] = torch.where(follows[1:], successor[text[:-1]], text[1:])
        texts.append(text)
    train, valid = texts
    vocabulary = [f"word{number}" for number in range(words)]
    return NumberedText(train, valid, train[:0], vocabulary, "synthetic", "synthetic")
