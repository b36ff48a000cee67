"""What all data sets share: made-up data in place of missing ones, and the line that says what was loaded."""

from collections.abc import Callable
from typing import TypeVar

from ..measure.timing import startup
from ..parameters import UserError
from .batches import TrainingData

Source = TypeVar("Source")
Loaded = TypeVar("Loaded", bound=TrainingData)


def found_or_made_up(
    dataset: str, name: str, find: Callable[[], Source], make_up: Callable[[], Source], advice: str
) -> Source:
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


def announced(data: Loaded, also: str = "") -> Loaded:
    """Return the data after a line that says what they are."""
    print(f"{data.title}: {data.train_samples:,} {data.sample_unit} to train on, {data.eval_samples:,} held out{also}")
    startup.lap("data")
    return data
