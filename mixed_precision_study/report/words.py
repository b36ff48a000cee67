"""How numbers and texts of a record are written."""

import html
import re


def plain(text):
    """Return `text` from a record on one line, and so that neither Markdown nor HTML in it takes effect."""
    return re.sub(r"([\\`*_\[\]$|~])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def count(number, word):
    return f"{number} {word}{'s' * (number != 1)}"


def natural(text):
    """Return a sort key that puts resnet18 before resnet101."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(text))]


def short(number):
    """Return a number with three digits that count."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:#.3g}".rstrip(".")


def span(numbers, form="{}"):
    """Return "smallest to largest", or the one number where they look alike."""
    return " to ".join(dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers))))


def percent(share):
    return "-" if share is None else f"{share:.0%}"
