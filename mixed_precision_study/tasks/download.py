"""What all data sets share: a checked download, made-up data in place of missing ones, and the
line that says which.
"""

import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from ..measure.timing import startup
from ..parameters import UserError
from .batches import TrainingData


def downloaded(url: str, sum_of: Callable, wanted: str) -> bytes:
    """Return the file at an address.

    Raise OSError or HTTPException where it does not come whole and unchanged.
    """
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 the addresses are ours
        content = answer.read()
    if sum_of(content) != wanted:
        raise OSError(
            f"{url.rpartition('/')[2]} came with a wrong checksum: "
            "it was changed or cut off on the way"
        )
    return content


def found_or_made_up(
    dataset: str, name: str, find: Callable, make_up: Callable, advice: str
) -> Any:
    """Return `find()`, or `make_up()` for dataset "synthetic", and for "auto" where the data are
    not available.

    Where those of another dataset are missing, raise a UserError with `advice`.
    """
    if dataset == "synthetic":
        return make_up()
    try:
        return find()
    except (OSError, HTTPException, ImportError, RuntimeError) as error:
        problem = f"{name} is not available ({error})"
        if dataset != "auto":
            raise UserError(f"{problem}; {advice}.") from None
        print(f"NOTICE: {problem}, so MADE-UP DATA are used instead; to train on {name}, {advice}.")
        return make_up()


def announced(data: TrainingData, also: str = "") -> Any:
    title = data.used if data.source == data.used else f"{data.used} ({data.source})"
    print(
        f"{title}: {data.train_samples:,} {data.sample_unit} to train on, "
        f"{data.eval_samples:,} held out{also}"
    )
    startup.lap("data")
    return data
