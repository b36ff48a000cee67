"""A download that ends: its size and its time are limited, and its checksum is compared before anything is kept."""

import queue
import threading
import urllib.request
from collections.abc import Callable

from ..parameters import error_line

MOST_BYTES = 2**28  # of a file; CIFAR-10's has 163 MiB
ANSWER_SECONDS = 30  # until the next bytes
WHOLE_SECONDS = 1200  # until the last bytes


def downloaded(url: str, sum_of: Callable[[bytes], str], wanted: str) -> bytes:
    """Return the file at an address. Raise OSError where it does not come whole and in time, or has another checksum.

    A thread fetches it, because a server can send a byte now and then for ever; such a thread is left behind.
    """
    answers: queue.SimpleQueue = queue.SimpleQueue()
    name = url.rpartition("/")[2]

    def fetch() -> None:
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 the addresses are ours
                answers.put(answer.read(MOST_BYTES))
        except Exception as error:  # a garbled answer raises http.client's errors, which are no OSError
            answers.put(error)

    threading.Thread(target=fetch, daemon=True).start()
    try:
        content = answers.get(timeout=WHOLE_SECONDS)
    except queue.Empty:
        raise OSError(f"{name} did not come whole within {WHOLE_SECONDS / 60:g} minutes") from None
    if isinstance(content, Exception):
        raise content if isinstance(content, OSError) else OSError(f"{name} came garbled: {error_line(content)}")
    if sum_of(content) != wanted:
        raise OSError(f"{name} came with a wrong checksum: it was changed or cut off on the way")
    return content
