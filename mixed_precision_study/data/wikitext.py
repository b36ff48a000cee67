"""WikiText-2 as numbers, cut into columns of text: read from a folder or downloaded; else made-up text.

Source: https://github.com/pytorch/examples/tree/main/word_language_model
"""

import hashlib
import itertools
import math
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from ..errors import UserError
from ..files import written_whole
from ..timing import startup
from .batches import TrainingData
from .cache import cached_arrays, read_or_stop

WIKITEXT_URL = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
WIKITEXT_BLOBS = {  # git's own checksum of each file: SHA-1 over "blob <size>\0" and the bytes
    "train.txt": "2d84b35af79e411d73ea7cae83c73964c6ac83b4",
    "valid.txt": "eec944eb2d9e46061cd34a6913528797db6842fc",
    "test.txt": "6f3fc88e4cd88456ea892971f9f12243e8428624",
}

EVAL_COLUMNS = 10  # of the validation and the test text, as in the public example


def load(settings, device):
    """Return the text that the settings name, as Text; print what it is.

    `settings` has dataset, data_dir, batch_size, bptt and max_steps. Raises UserError where a text asked for by
    name cannot be had.
    """
    data = Text(settings, device, read(settings.dataset, settings.data_dir, device))
    words = f"{data.train_samples:,} training words, vocabulary {len(data.vocabulary):,}"
    print(f"{data.used} ({data.source}): {words}")
    startup.lap("data")
    return data


class Text(TrainingData):
    """Text as word numbers on the device, in columns that run side by side; `vocabulary` holds the words by number."""

    sample_unit = "tokens"

    def __init__(self, settings, device, words):
        self.settings, self.device, self.words = settings, device, words
        self.vocabulary, self.source, self.used = words.vocabulary, words.source, words.used
        self.train_samples, self.eval_samples = len(words.train), len(words.valid)
        self.samples_per_item = settings.bptt
        self.largest_batch = len(words.train) // (settings.bptt + 1)
        self.asked_size = 20 if settings.batch_size == "max" else settings.batch_size
        self.rows = {self.asked_size: self.in_columns(words.train, self.asked_size)}
        self.valid_rows = self.in_columns(words.valid, EVAL_COLUMNS)
        self.test_rows = None  # made when it is needed

    @property
    def chance(self):
        """The validation perplexity of guessing by how often each word stands in the training text."""
        counts = torch.bincount(self.words.train, minlength=len(self.vocabulary)).double() + 1
        return perplexity(-(counts / counts.sum()).log()[self.words.valid].mean().item())

    def in_columns(self, words, columns):
        """Return the text (N,) as rows (N // columns, columns) on the device; the rest is left out."""
        bptt = self.settings.bptt
        if len(words) // columns <= bptt:
            text = f"a text of {len(words)} words"
            raise UserError(f"{text} is too short for {columns} columns of more than bptt {bptt} words.")
        return words[: len(words) // columns * columns].view(columns, -1).t().contiguous().to(self.device)

    def pieces(self, rows):
        """Yield (words, next words), both (bptt, columns); an incomplete last piece is left out."""
        bptt = self.settings.bptt
        for start in range(0, len(rows) - bptt, bptt):
            yield rows[start : start + bptt], rows[start + 1 : start + bptt + 1]

    def settle(self, size):
        if size not in self.rows:
            self.rows[size] = self.in_columns(self.words.train, size)

    def train_rows(self, size):
        """Return the training text in `size` columns; only that of the training itself stays on the device."""
        return self.rows[size] if size in self.rows else self.in_columns(self.words.train, size)

    def steps_per_epoch(self, size):
        steps = (len(self.words.train) // size - 1) // self.settings.bptt
        return min(steps, self.settings.max_steps or steps)

    def train_batches(self, epoch, dtype, size):
        """Yield an epoch's pieces of the training text, which is never shuffled."""
        return itertools.islice(self.pieces(self.train_rows(size)), self.steps_per_epoch(size))

    def eval_batches(self, dtype, size):
        """Yield the pieces of the validation text; max_steps at most."""
        return itertools.islice(self.pieces(self.valid_rows), self.settings.max_steps or None)

    def test_batches(self, dtype, size):
        """Yield the pieces of the test text; None where there is none that is long enough."""
        if len(self.words.test) // EVAL_COLUMNS <= self.settings.bptt:
            return None
        if self.test_rows is None:
            self.test_rows = self.in_columns(self.words.test, EVAL_COLUMNS)
        return itertools.islice(self.pieces(self.test_rows), self.settings.max_steps or None)

    def example(self, count):
        """Return the first training batch, in `count` columns."""
        return next(self.pieces(self.train_rows(count)))

    def show(self):
        """Print the shape of a batch and the beginning of its first column, with what is to be predicted."""
        words, next_words = self.example(self.asked_size)
        print(f"A batch: words {tuple(words.shape)}, {self.steps_per_epoch(self.asked_size)} steps per epoch")
        print("The first column reads:", *self.as_words(words[:12, 0]))
        print("To be predicted:       ", *self.as_words(next_words[:12, 0]))

    def as_words(self, numbers):
        """Return the words of a tensor of numbers."""
        return [self.vocabulary[number] for number in numbers.tolist()]


def perplexity(loss):
    """Return the exponential of a mean loss per word; infinite where that is no longer a number."""
    return math.exp(loss) if loss < 700 else math.inf


def git_blob(content):
    """Return the checksum that git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def download_wikitext(folder):
    """Download the three files; each is checked, written under a temporary name and renamed, or nothing is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in WIKITEXT_BLOBS.items():
        with urllib.request.urlopen(WIKITEXT_URL + name, timeout=30) as answer:  # noqa: S310 the address is above
            content = answer.read()
        if git_blob(content) != blob:
            raise OSError(f"{name} came with a wrong checksum: it was changed or cut off on the way")
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(content)


def read_words(path):
    """Return the words of a text file, with <eos> at the end of each line; stop and name the file if it is not text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); it must be a text file in UTF-8.") from None
    return [word for line in lines for word in (*line.split(), "<eos>")]


def number_words(train, *others):
    """Return (vocabulary {word: number} of `train`, [tensor of numbers of each text]); strange words become <unk>."""
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*train, "<unk>"]))}
    unknown = vocabulary["<unk>"]
    return vocabulary, [torch.tensor([vocabulary.get(word, unknown) for word in text]) for text in (train, *others)]


def cached_numbers(folder, names):
    """Return (vocabulary as a list, {name: tensor of numbers}) of the texts, from the cache where they are known."""

    def number():
        vocabulary, texts = number_words(*(read_words(folder / f"{name}.txt") for name in names))
        lines = np.frombuffer("\n".join(vocabulary).encode(), np.uint8)  # no word has white space in it
        return {"vocabulary": lines} | dict(zip(names, (text.int().numpy() for text in texts), strict=True))

    key = [(name, git_blob(read_or_stop(folder / f"{name}.txt", Path.read_bytes))) for name in names]
    arrays = cached_arrays(folder.parent, folder.name, key, number)
    vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
    return vocabulary, {name: torch.from_numpy(arrays[name]).long() for name in names}


def make_text(count, vocabulary, generator):
    """Return made-up words, as numbers: mostly a fixed successor of the word before, else a word by Zipf's law."""
    frequency = 1 / torch.arange(1, vocabulary + 1)
    words = torch.multinomial(frequency, count, replacement=True, generator=generator)
    follows = torch.rand(count, generator=generator) < 0.5
    successor = torch.multinomial(frequency, vocabulary, replacement=True, generator=torch.Generator().manual_seed(1))
    words[1:] = torch.where(follows[1:], successor[words[:-1]], words[1:])
    return words


def make_synthetic(device):
    """Return made-up text of WikiText-2's size; on the CPU a small part of it with fewer words."""
    on_gpu, generator = device.type == "cuda", torch.Generator().manual_seed(0)
    words, counts = (33_278, (2_088_628, 217_646)) if on_gpu else (1_001, (40_000, 4_000))
    train, valid = (make_text(count, words, generator) for count in counts)
    vocabulary = [f"word{number}" for number in range(words)]
    texts = {"train": train, "valid": valid, "test": train[:0]}
    return SimpleNamespace(**texts, vocabulary=vocabulary, source="synthetic", used="synthetic")


def read(dataset, data_dir, device):
    """Return the data: train, valid and test as word numbers (N,), the words by number, the source.

    The test text is empty where there is no test.txt: it is not needed for training.
    """
    folder, source = Path(data_dir) / "wikitext-2", "folder"
    if dataset == "synthetic":
        return make_synthetic(device)
    if not all((folder / name).exists() for name in ("train.txt", "valid.txt")):
        try:
            download_wikitext(folder)
            source = "download"
        except OSError as error:
            advice = f"put train.txt, valid.txt and test.txt into {folder}"
            if dataset != "auto":
                raise UserError(f"WikiText-2 could not be downloaded ({error}); {advice}.") from None
            print(f"NOTICE: WikiText-2 could not be downloaded ({error}). MADE-UP TEXT takes its place; {advice}.")
            return make_synthetic(device)
    names = [name for name in ("train", "valid", "test") if name != "test" or (folder / "test.txt").exists()]
    vocabulary, texts = cached_numbers(folder, names)
    texts = {"test": texts["train"][:0], **texts}
    return SimpleNamespace(**texts, vocabulary=vocabulary, source=source, used="wikitext-2")
