"""What a notebook needs before anything else: its packages, by the standard library alone."""

import importlib
import importlib.util
import os
import subprocess
import sys

from ..store.variables import HOSTED

# The modules that a notebook imports. nvidia-ml-py is left out because a run can do without it.
REPORT_PACKAGES = ["numpy", "scipy", "pandas", "matplotlib", "pydantic", "yaml", "jinja2"]
EXPERIMENT_PACKAGES = [*REPORT_PACKAGES, "torch", "torchvision", "tqdm", "psutil"]
IMAGE_PACKAGES = [*EXPERIMENT_PACKAGES, "timm"]
NAMES_FOR_PIP = {"yaml": "PyYAML"}  # of others it is the module's


class UserError(Exception):
    """Something the user can mend.

    The message says what to do in one sentence; notebooks show no traceback.
    """

    def _render_traceback_(self) -> list[str]:  # IPython prints this instead of a traceback
        return [f"Stopped: {self}"]


def require_packages(modules: list[str]) -> None:
    """Install the packages of missing modules on Colab and Kaggle, which have PyTorch.

    Elsewhere, and where pip fails, raise UserError with the command that installs them.
    """
    missing = [
        NAMES_FOR_PIP.get(name, name) for name in modules if importlib.util.find_spec(name) is None
    ]
    if not missing:
        return
    command = f"install them with: pip install {' '.join(missing)}"
    if not os.environ.keys() & HOSTED:
        raise UserError(f"these packages are missing; {command}")
    try:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *missing], check=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(
            f"pip could not install what is missing; look above why, or {command}"
        ) from None
    importlib.invalidate_caches()  # or the new packages are not found
