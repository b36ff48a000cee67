"""WikiText-2 as numbers, cut into columns of text: from a folder or downloaded; otherwise made-up
text.

Source: https://github.com/pytorch/examples/tree/main/word_language_model
"""

import hashlib
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ..parameters import UserError
from ..store.files import written_whole
from .batches import Batches, TrainingData, fingerprint_of
from .download import announced, downloaded, found_or_made_up

WIKITEXT_URL = (
    "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
)
WIKITEXT_BLOBS = {  # git's own checksum of each file: SHA-1 over "blob <size>\0" and the bytes
    "train.txt": "2d84b35af79e411d73ea7cae83c73964c6ac83b4",
    "valid.txt": "eec944eb2d9e46061cd34a6913528797db6842fc",
    "test.txt": "6f3fc88e4cd88456ea892971f9f12243e8428624",
}

TITLES = {"wikitext-2": "WikiText-2", "wikitext-2-like": "WikiText-2", "synthetic": "made-up data"}
NEEDED = ("train.txt", "valid.txt")  # training does not need test.txt
EVAL_COLUMNS = 10  # of the validation and the test text, as in the public example


def load(settings: SimpleNamespace, device: torch.device) -> "Text":
    """Return the text that the settings name: for "auto" WikiText-2, or made-up text if it is
    not available.
    """
    folder = Path(settings.data_dir) / "wikitext-2"
    advice = f"put train.txt, valid.txt and test.txt into {folder}"
    find = partial(wikitext_in, folder)
    make_up = partial(made_up_text, device)
    data = Text(
        settings, device, *found_or_made_up(settings.dataset, "WikiText-2", find, make_up, advice)
    )
    return announced(data, f", vocabulary {len(data.vocabulary):,}")


class Text(TrainingData):
    """Batches of text in columns that run side by side. A batch is (words, next words), both int64
    (bptt, batch size).

    `train`, `valid` and `test` are numbers of words in the `vocabulary`, int64 (N,); `test` is
    empty if there is none.
    """

    sample_unit = "tokens"
    folder = "wikitext-2"

    def __init__(
        self, settings: SimpleNamespace, device: torch.device, texts: tuple, source: str, used: str
    ):
        self.settings = settings
        self.device = device
        self.source = source
        self.used = used
        self.title = TITLES.get(used)
        self.train, self.valid, self.test, self.vocabulary = texts
        self.fingerprint = fingerprint_of(
            self.train, self.valid, self.test, "\n".join(self.vocabulary)
        )
        self.train_samples = len(self.train)
        self.eval_samples = len(self.valid)
        self.samples_per_item = settings.bptt
        self.largest_batch = self.train_samples // (settings.bptt + 1)
        self.asked_size = 20 if settings.batch_size == "max" else settings.batch_size  # to show
        self.train_columns = {self.asked_size: self.in_columns(self.train, self.asked_size)}
        self.valid_columns = self.in_columns(self.valid, EVAL_COLUMNS)

    @property
    def chance(self) -> float:
        """The validation perplexity of guessing by the frequency of each word in the training
        text.
        """
        counts = torch.bincount(self.train, minlength=len(self.vocabulary)).double() + 1
        return perplexity(-(counts / counts.sum()).log()[self.valid].mean().item())

    def in_columns(self, words: Tensor, columns: int) -> Tensor:
        """Return the text (N,) as (N // columns, columns) on the device, without the words left
        over.
        """
        bptt = self.settings.bptt
        if len(words) // columns <= bptt:
            raise UserError(
                f"{len(words)} words or bytes of text are too few for {columns} columns of "
                f"more than {bptt}."
            )
        return (
            words[: len(words) // columns * columns]
            .view(columns, -1)
            .t()
            .contiguous()
            .to(self.device)
        )

    def segments(self, columns: Tensor, most: int = 0, joined: int = 1) -> Batches:
        """Yield (words, next words), both (bptt, columns), from top to bottom; an incomplete last
        one is left out.

        most: how many, 0 for all. joined: how many are joined as one, of more rows; the last ones
            may be fewer.
        """
        bptt = self.settings.bptt
        steps = (len(columns) - 1) // bptt
        rows = bptt * min(steps, most or steps)
        for start in range(0, rows, joined * bptt):
            stop = min(start + joined * bptt, rows)
            yield columns[start:stop], columns[start + 1 : stop + 1]

    def steps_per_epoch(self, size: int) -> int:
        steps = (len(self.train) // size - 1) // self.settings.bptt
        return min(steps, self.settings.max_steps or steps)

    def train_batches(self, epoch: int, dtype: torch.dtype, size: int) -> Batches:
        """Return the segments of the training text, which is never shuffled.

        It is kept in columns of the last size.
        """
        if size not in self.train_columns:
            self.train_columns = {size: self.in_columns(self.train, size)}
        return self.segments(self.train_columns[size], self.settings.max_steps)

    def held_out(self, columns: Tensor, size: int) -> Batches:
        """Return the segments of a held-out text, at most max_steps of them, several joined as one
        batch.

        The loss stays the same, because a recurrent network carries its state over. A batch has at
        most as many words as a training batch of `size` columns, so it needs no more memory.
        """
        return self.segments(columns, self.settings.max_steps, max(1, size // EVAL_COLUMNS))

    def eval_batches(self, dtype: torch.dtype, size: int) -> Batches:
        return self.held_out(self.valid_columns, size)

    def test_batches(self, dtype: torch.dtype, size: int) -> Batches | None:
        """Return batches of the test text, or None if it is missing or too short."""
        if len(self.test) // EVAL_COLUMNS <= self.settings.bptt:
            return None
        return self.held_out(self.in_columns(self.test, EVAL_COLUMNS), size)

    def show(self) -> None:
        """Print the shape of a batch and the first words of a column, with those to be
        predicted.
        """
        words, next_words = self.example(self.asked_size)
        print(
            f"A batch: words {tuple(words.shape)}, "
            f"{self.steps_per_epoch(self.asked_size)} steps per epoch"
        )
        for title, column in (
            ("The first column reads:", words),
            ("To be predicted:       ", next_words),
        ):
            print(title, *(self.vocabulary[number] for number in column[:12, 0].tolist()))


def perplexity(loss: float) -> float:
    """Return the exponential of a mean loss per word; infinity if it is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def download_into(folder: Path, lacking: str) -> None:
    """Download WikiText-2 into a folder.

    Raise UserError where a text of one's own would be replaced.
    """
    for path in folder.glob("*.txt"):
        if git_blob(path.read_bytes()) not in WIKITEXT_BLOBS.values():
            raise UserError(f"{folder} holds {path.name} and lacks {lacking}; put it there, too.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in WIKITEXT_BLOBS.items():
        content = downloaded(WIKITEXT_URL + name, git_blob, blob)
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(content)


def wikitext_in(folder: Path) -> tuple:
    """Return what Text takes, of a folder's texts, which are downloaded if they are missing.

    Every line ends with <eos>. Words that the training text does not have become <unk>.
    """
    source = "folder"
    if lacking := [name for name in NEEDED if not (folder / name).exists()]:
        download_into(folder, lacking[0])
        source = "download"
    texts: dict = {"test.txt": []}
    known = True
    for name, blob in WIKITEXT_BLOBS.items():
        if (folder / name).exists():
            content = (folder / name).read_bytes().replace(b"\r\n", b"\n")
            known = known and git_blob(content) == blob
            texts[name] = words_of(content, folder / name)
    different = dict.fromkeys([*texts["train.txt"], "<unk>"])
    vocabulary = dict(zip(different, range(len(different)), strict=True))
    numbers = []
    for name in WIKITEXT_BLOBS:
        numbers_of_text = [vocabulary.get(word, vocabulary["<unk>"]) for word in texts[name]]
        numbers.append(torch.tensor(numbers_of_text, dtype=torch.long))
    used = "wikitext-2"
    if not known:
        print(
            f"NOTICE: the texts in {folder} are not those of WikiText-2, so they are "
            f"named {used}-like."
        )
        used += "-like"
    return (*numbers, list(vocabulary)), source, used


def words_of(content: bytes, path: Path) -> list[str]:
    """Return the words of a text, with <eos> at the end of each line."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} cannot be read ({error}); it must be a text file in UTF-8."
        ) from None
    return [word for line in lines for word in (*line.split(), "<eos>")]


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def made_up_text(device: torch.device, words: int = 0) -> tuple:
    """Return text of WikiText-2's size; on the CPU a small part of it with fewer words.

    words: how many there are; 0 for as many as WikiText-2 has.

    Half of the words follow from the word before, the others are drawn by Zipf's law.
    """
    generator = torch.Generator().manual_seed(0)
    usual = 1_001
    counts = (40_000, 4_000)
    if device.type == "cuda":
        usual = 33_278
        counts = (2_088_628, 217_646)
    words = words or usual
    frequency = 1 / torch.arange(1, words + 1)
    successor = torch.multinomial(
        frequency, words, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    texts = []
    for count in counts:
        text = torch.multinomial(frequency, count, replacement=True, generator=generator)
        follows = torch.rand(count, generator=generator) < 0.5
        text[1:] = torch.where(follows[1:], successor[text[:-1]], text[1:])
        texts.append(text)
    return (
        (*texts, texts[0][:0], [f"word{number}" for number in range(words)]),
        "synthetic",
        "synthetic",
    )
