"""A small archive of records for others: without host names, paths and user names."""

import getpass
import hashlib
import json
import re
import socket
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..record import read_records
from .paths import ROOT
from .status import say

FREE_TEXTS = ("reason", "_reason")  # endings of fields that hold messages
PATH_FIELDS = ("data_dir", "output_dir", "csv_path", "path", "image_dir")
PLACE = re.compile(r"(?:[A-Za-z]:\\|~?/)[^\s'\",;:)\]]*")  # an absolute path, on Windows too
GONE = "(removed)"
SHORTEST_NAME = 3  # letters; a shorter user name may be a part of any word
REPOSITORY = re.compile(r'^Repository\s*=\s*"(https://github\.com/[^"\s]+)"', re.MULTILINE)


def private_words() -> list[str]:
    """Return what names this person and this machine, the longest first."""
    words = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(KeyError, OSError):  # as in a container without users
        words.add(getpass.getuser())
    return sorted((word for word in words if len(word) >= SHORTEST_NAME and word != "root"), key=len, reverse=True)


def alias(kind: str, value: str | None) -> str | None:
    """Return a short name for an identifier: equal ones get equal names, and nobody can read it back."""
    return value and f"{kind}-{hashlib.sha256(f'{kind} {value}'.encode()).hexdigest()[:12]}"


def cleaned(record: dict, words: list[str]) -> dict:
    """Return a record without what tells whose machine it was."""

    def clean(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: clean(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [clean(one, name) for one in value]
        if not isinstance(value, str):
            return value
        if name.endswith(FREE_TEXTS):
            value = PLACE.sub(GONE, value)
        for word in words:
            value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", GONE, value, flags=re.IGNORECASE)
        return value

    kept = {name: clean(value, name) for name, value in record.items() if name not in PATH_FIELDS}
    for kind, name in (("gpu", "gpu_uuid"), ("host", "host_id")):
        if name in kept:
            kept[name] = alias(kind, record[name])
    if kept.get("host_platform"):
        kept["host_platform"] = kept["host_platform"].partition("-")[0]  # the rest may name a kernel of one's own
    return kept


def repository() -> str | None:
    """Return the address of the repository in pyproject.toml, or None."""
    with suppress(OSError):
        if found := REPOSITORY.search((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
            return found[1].removesuffix(".git").rstrip("/")
    return None


def contribute(folder: Path, word: str) -> int:
    """Write the records of a folder as a zip beside it, and say where to send it. Return the exit status.

    Runs on a CPU are left out: they measure nothing. Raises UserError where no other is there.
    """
    if not folder.is_dir():
        raise UserError(f"--send {word}: there is no such folder.")
    records = [record for record in read_records(folder)[0] if record.get("device_type") == "cuda"]
    if not records:
        raise UserError(f"--send {word} holds no records of runs on a GPU.")
    words = private_words()
    gpu = re.sub(r"\W+", "-", records[0]["gpu_name"] or "GPU").removeprefix("NVIDIA-")
    days = max(record["finished_at"] or "" for record in records)[:10]
    target = folder.parent / f"records-{gpu}-{days or 'undated'}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, record in enumerate(records):
            name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', str(record['run_id']))}-{number}.json"
            archive.writestr(name, json.dumps(cleaned(record, words), indent=1))
    left = len(read_records(folder)[0]) - len(records)
    cpu = f"; {left} of a CPU left out" if left else ""
    say(f"{target.name}: {len(records)} records, {target.stat().st_size / 1000:.0f} kB{cpu}")
    say("It holds no host names, paths or user names. Look into it before you send it.")
    if url := repository():
        say(f"To send it, attach it to a new issue: {url}/issues/new?title=Records")
    else:
        say("To send it, give it to those who keep your copy of this study: they put it into data/contributed/.")
    return 0
