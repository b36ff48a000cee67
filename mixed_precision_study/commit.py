"""Which commit of this suite is in use."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def suite_commit() -> str | None:
    """Return MIXED_PRECISION_COMMIT where it is set, else the commit of this clone, with "-dirty" after local changes.

    None means that neither is known.
    """
    if commit := os.environ.get("MIXED_PRECISION_COMMIT"):
        return commit
    if not (ROOT / ".git").exists():  # git would answer for a repository around this folder
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
