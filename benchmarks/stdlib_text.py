"""Write the text that weights_plan.md fine-tunes a GPT on: the source of Python's standard library.

    python benchmarks/stdlib_text.py data/stdlib.txt

Modules stand in the order of the SHA-256 of their names, so that the text is a mix of them, and the
first 1.8 million bytes are taken. Tests are left out, because many installations lack them, and so
is what was installed besides. The source is that of the Python that runs this, under the Python
Software Foundation's licence, version 2.
"""

import argparse
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SIZE = 1_800_000  # bytes
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def modules_in(folder: Path) -> list[Path]:
    """Return the modules below a folder in the order of the hash of their names."""

    def place(path: Path) -> bytes:
        return hashlib.sha256(path.relative_to(folder).as_posix().encode()).digest()

    paths = (path.relative_to(folder) for path in folder.rglob("*.py"))
    return sorted((folder / path for path in paths if not LEFT_OUT & {*path.parts}), key=place)


def contents(paths: list[Path]) -> Iterator[bytes]:
    """Yield the bytes of files, without those of Windows' line ends."""
    for path in paths:
        yield path.read_bytes().replace(b"\r\n", b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path, help="where the text is written")
    arguments = parser.parse_args()
    paths = modules_in(Path(sysconfig.get_path("stdlib")))
    text = b"".join(contents(paths))[:SIZE]
    if len(text) < SIZE:
        sys.exit(f"The library has {len(text):,} bytes alone; install Python with all its modules.")
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.write_bytes(text)
    sha256 = hashlib.sha256(text).hexdigest()
    print(f"Python {platform.python_version()}: {len(paths)} modules, sha256 {sha256}")


if __name__ == "__main__":
    main()
