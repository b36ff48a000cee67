"""The order of the precisions in a repetition: a row of a Latin square, the same whenever it is
drawn again.
"""

import random
from collections.abc import Sequence


def in_turn(items: Sequence, key: str, repetition: int) -> list:
    """Return the items in the order of one repetition, which depends on nothing but the arguments.

    The orders are the rows of a Latin square (Williams, 1949): in as many repetitions as there are
    items, each item comes once first, once second and so on. With an even number each also follows
    every other exactly once, so that heat, or whatever else a run leaves behind, meets all of them
    alike. Every second repetition has the row that reverses the one before, nearly so with an odd
    number, so that few repetitions have both orders, too. `key` shuffles the items beforehand.
    """
    count = len(items)
    shuffled = random.Random(key).sample(items, count)  # noqa: S311  # no secret; equal everywhere
    places = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    row = repetition // 2 + repetition % 2 * ((count + 1) // 2)
    return [shuffled[(place + row) % count] for place in places]
