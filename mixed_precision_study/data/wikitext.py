"""WikiText-2 as numbers, cut into columns of text: from a folder or downloaded; otherwise made-up text.

Source: https://github.com/pytorch/examples/tree/main/word_language_model
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from ..errors import UserError
from ..files import written_whole
from ..timing import startup
from .batches import Batch, TrainingData
from .cache import cached_arrays, read_or_stop
from .download import downloaded
from .fingerprint import fingerprint_of

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
    """Return the text that the settings name and print what it is.

    `settings` has dataset, data_dir, batch_size, bptt and max_steps. Raises UserError if a text that was asked for by
    name is not available.
    """
    data = Text(settings, device, read(settings.dataset, settings.data_dir, device))
    words = f"{data.train_samples:,} training words, vocabulary {len(data.vocabulary):,}"
    print(f"{data.title}: {words}")
    startup.lap("data")
    return data


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
        self.test_columns: torch.Tensor | None = None  # made when it is needed

    @property
    def chance(self) -> float:
        """The validation perplexity of guessing by the frequency of each word in the training text."""
        counts = torch.bincount(self.words.train, minlength=len(self.vocabulary)).double() + 1
        return perplexity(-(counts / counts.sum()).log()[self.words.valid].mean().item())

    def in_columns(self, words: torch.Tensor, columns: int) -> torch.Tensor:
        """Return the text (N,) as (N // columns, columns) on the device, without the words left over."""
        bptt = self.settings.bptt
        if len(words) // columns <= bptt:
            raise UserError(
                f"a text of {len(words)} words is too short for {columns} columns of more than bptt {bptt} words."
            )
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
        if size not in self.train_columns:
            self.train_columns[size] = self.in_columns(self.words.train, size)

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

        A recurrent network carries its state over, so its loss is the same. A batch has at most as many words as a
        training batch of `size` columns, and so needs no more memory. A transformer sees no further than bptt words.
        """
        joined = 1 if getattr(self.settings, "model", None) == "transformer" else max(1, size // EVAL_COLUMNS)
        return self.segments(columns, self.settings.max_steps, joined)

    def eval_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch]:
        """Return batches of the validation text, see held_out()."""
        return self.held_out(self.valid_columns, size)

    def test_batches(self, dtype: torch.dtype, size: int) -> Iterator[Batch] | None:
        """Return batches of the test text, None if there is none that is long enough."""
        if len(self.words.test) // EVAL_COLUMNS <= self.settings.bptt:
            return None
        if self.test_columns is None:
            self.test_columns = self.in_columns(self.words.test, EVAL_COLUMNS)
        return self.held_out(self.test_columns, size)

    def show(self) -> None:
        """Print the shape of a batch and the first words of a column, with those to be predicted."""
        words, next_words = self.example(self.asked_size)
        print(f"A batch: words {tuple(words.shape)}, {self.steps_per_epoch(self.asked_size)} steps per epoch")
        print("The first column reads:", *self.as_words(words[:12, 0]))
        print("To be predicted:       ", *self.as_words(next_words[:12, 0]))

    def as_words(self, numbers: torch.Tensor) -> list[str]:
        """Return the words of a tensor of numbers."""
        return [self.vocabulary[number] for number in numbers.tolist()]


def perplexity(loss: float) -> float:
    """Return the exponential of a mean loss per word; infinity if it is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def read(dataset: str, data_dir: str, device: torch.device) -> NumberedText:
    """Return the text of `dataset`; that of "auto" is WikiText-2, or made-up text if it is not available."""
    if dataset == "synthetic":
        return make_synthetic(device)
    folder = Path(data_dir) / "wikitext-2"
    source = "folder"
    if not all((folder / name).exists() for name in ("train.txt", "valid.txt")):
        try:
            download_wikitext(folder)
            source = "download"
        except OSError as error:
            problem = f"WikiText-2 could not be downloaded ({error})"
            advice = f"put train.txt, valid.txt and test.txt into {folder}"
            if dataset != "auto":
                raise UserError(f"{problem}; {advice}.") from None
            print(f"NOTICE: {problem}. MADE-UP TEXT is used instead; to train on WikiText-2, {advice}.")
            return make_synthetic(device)
    names = ["train", "valid"]
    if (folder / "test.txt").exists():  # training does not need it
        names.append("test")
    vocabulary, texts = cached_numbers(folder, names)
    no_text = texts["train"][:0]
    used = "wikitext-2"
    if not is_wikitext(folder, names):
        print(f"NOTICE: the texts in {folder} are not those of WikiText-2, so they are named {used}-like.")
        used += "-like"
    return NumberedText(texts["train"], texts["valid"], texts.get("test", no_text), vocabulary, source, used)


def is_wikitext(folder: Path, names: list[str]) -> bool:
    """Return whether the texts are WikiText-2's, by their checksums. Ends of lines may be those of Windows."""
    contents = {f"{name}.txt": read_or_stop(folder / f"{name}.txt", Path.read_bytes) for name in names}
    return all(git_blob(content.replace(b"\r\n", b"\n")) == WIKITEXT_BLOBS[name] for name, content in contents.items())


def git_blob(content: bytes) -> str:
    """Return the checksum that git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def download_wikitext(folder: Path) -> None:
    """Download the three files. Raises OSError if one has a wrong checksum; only right files are written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in WIKITEXT_BLOBS.items():
        content = downloaded(WIKITEXT_URL + name, git_blob, blob)
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(content)


def read_words(path: Path) -> list[str]:
    """Return the words of a text file, with <eos> at the end of each line; raise UserError if it is no text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); it must be a text file in UTF-8.") from None
    return [word for line in lines for word in (*line.split(), "<eos>")]


def number_words(train: list[str], *others: list[str]) -> tuple[dict[str, int], list[torch.Tensor]]:
    """Return the vocabulary {word: number} of `train` and the numbers of each text; unknown words become <unk>."""
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*train, "<unk>"]))}
    unknown = vocabulary["<unk>"]
    return vocabulary, [torch.tensor([vocabulary.get(word, unknown) for word in text]) for text in (train, *others)]


def cached_numbers(folder: Path, names: list[str]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Return the vocabulary and {name: numbers} of the texts, from the cache if they have not changed."""

    def number():
        vocabulary, texts = number_words(*(read_words(folder / f"{name}.txt") for name in names))
        lines = np.frombuffer("\n".join(vocabulary).encode(), np.uint8)  # no word has white space in it
        return {"vocabulary": lines} | dict(zip(names, (text.int().numpy() for text in texts), strict=True))

    key = [(name, git_blob(read_or_stop(folder / f"{name}.txt", Path.read_bytes))) for name in names]
    arrays = cached_arrays(folder.parent, folder.name, key, number)
    vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
    return vocabulary, {name: torch.from_numpy(arrays[name]).long() for name in names}


def make_text(count: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    """Return `count` made-up word numbers: half follow from the word before, the others are drawn by Zipf's law."""
    frequency = 1 / torch.arange(1, vocabulary + 1)
    words = torch.multinomial(frequency, count, replacement=True, generator=generator)
    follows = torch.rand(count, generator=generator) < 0.5
    successor = torch.multinomial(frequency, vocabulary, replacement=True, generator=torch.Generator().manual_seed(1))
    words[1:] = torch.where(follows[1:], successor[words[:-1]], words[1:])
    return words


def make_synthetic(device: torch.device) -> NumberedText:
    """Return made-up text of WikiText-2's size; on the CPU a small part of it with fewer words."""
    generator = torch.Generator().manual_seed(0)
    words, counts = 1_001, (40_000, 4_000)
    if device.type == "cuda":
        words, counts = 33_278, (2_088_628, 217_646)
    train, valid = (make_text(count, words, generator) for count in counts)
    vocabulary = [f"word{number}" for number in range(words)]
    return NumberedText(train, valid, train[:0], vocabulary, "synthetic", "synthetic")
