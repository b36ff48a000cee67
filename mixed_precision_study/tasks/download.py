"""A download of limited size, whose checksum is compared before anything is kept."""

import urllib.request
from collections.abc import Callable

from ..parameters import error_line

MOST_BYTES = 2**28  # of a file; CIFAR-10's has 163 MiB
ANSWER_SECONDS = 30  # until the next bytes


def downloaded(url: str, sum_of: Callable[[bytes], str], wanted: str) -> bytes:
    """Return the file at an address. Raise OSError where it does not come whole, or has another checksum."""
    name = url.rpartition("/")[2]
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 the addresses are ours
            content = answer.read(MOST_BYTES)
    except OSError:
        raise
    except Exception as error:  # a garbled answer raises http.client's errors and ValueError
        raise OSError(f"{name} came garbled: {error_line(error)}") from None
    if sum_of(content) != wanted:
        raise OSError(f"{name} came with a wrong checksum: it was changed or cut off on the way")
    return content
