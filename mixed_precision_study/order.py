"""The order of the runs of a comparison: random within each block, and the same whenever it is drawn again."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shuffled_blocks(blocks: Sequence[Sequence[Item]], seed: str) -> list[list[Item]]:
    """Return each block in a random order, every second one in the reverse of the order before it.

    A block is one repetition of all precisions, listed in the same order in every block. So of any two precisions each
    has run before the other, and a drift of the machine meets them alike. No block begins with the same place as the
    one before it. The order of a block depends on `seed`, on its length and on
    the blocks before it. More blocks do not change it, and a study that was interrupted goes on in its old order.
    """
    shuffled = []
    first = None
    before: list[int] = []
    for number, block in enumerate(blocks):
        places = list(range(len(block)))
        draw = random.Random(f"{seed}, block {number}")  # noqa: S311 - no secret; of a text it is the same everywhere
        draw.shuffle(places)
        if number % 2 and len(before) == len(places):
            places = before[::-1]
        while len(places) > 1 and places[0] == first:
            draw.shuffle(places)
        first = places[0] if places else None
        before = places
        shuffled.append([block[place] for place in places])
    return shuffled
