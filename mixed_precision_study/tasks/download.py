"""What all data sets share: a checked download, made-up data in place of missing ones, and the line that says which."""

import http.client
import urllib.request
from collections.abc import Callable
from typing import Any

from ..measure.timing import startup
from ..parameters import UserError, error_line
from .batches import TrainingData

ANSWER_SECONDS = 30  # until the next bytes


def downloaded(url: str, sum_of: Callable[[bytes], str], wanted: str) -> bytes:
    """Return the file at an address. Raise OSError where it does not come whole, or has another checksum."""
    name = url.rpartition("/")[2]
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 the addresses are ours
            content = answer.read()
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{name} came garbled: {error_line(error)}") from None
    if sum_of(content) != wanted:
        raise OSError(f"{name} came with a wrong checksum: it was changed or cut off on the way")
    return content


def found_or_made_up(dataset: str, name: str, find: Callable, make_up: Callable, advice: str) -> Any:
    """Return `find()`, or `make_up()` for dataset "synthetic", and for "auto" where the data are not available.

    `find` raises OSError or RuntimeError for missing data, which ends in a UserError with `advice` for other datasets.
    """
    if dataset == "synthetic":
        return make_up()
    try:
        return find()
    except (OSError, RuntimeError) as error:
        problem = f"{name} is not available ({error})"
        if dataset != "auto":
            raise UserError(f"{problem}; {advice}.") from None
        print(f"NOTICE: {problem}, so MADE-UP DATA are used instead; to train on {name}, {advice}.")
        return make_up()


def announced(data: TrainingData, also: str = "") -> Any:
    print(f"{data.title}: {data.train_samples:,} {data.sample_unit} to train on, {data.eval_samples:,} held out{also}")
    startup.lap("data")
    return data
