"""How numbers and texts from records are written."""

import html
import re
from collections.abc import Collection

from ..parameters import printable


def plain(text: object) -> str:
    """Return `text` on one line, escaped so that neither Markdown nor HTML in it takes effect,
    nor becomes a link.
    """
    text = html.escape(" ".join(printable(str(text)).split()), quote=False)
    return re.sub(r"([\\`*_\[\]$|~@]|:(?=//)|(?<=www)\.)", r"\\\1", text)


def count(number: int, word: str) -> str:
    """Return "1 run" or "2 runs"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def listed(values: list, word: str = "or") -> str:
    """Return "2, 15 or 32"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} {word} {last}" if first else last


def natural(text: object) -> list[int | str]:
    """Return a sort key that puts resnet18 before resnet101."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(text))]


def short(number: float) -> str:
    """Return a number with three significant digits."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:#.3g}".rstrip(".")


def span(numbers: Collection[float], form: str = "{}") -> str:
    """Return "smallest to largest", or one number where both look alike."""
    return " to ".join(
        dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers)))
    )


def times(ratio: float) -> str:
    """Return "1.5×", with two decimals where one would hide on which side of 1 it is."""
    return f"{ratio:.2f}×" if ratio < 0.995 or 1.005 < ratio < 1.05 else f"{ratio:.1f}×"
