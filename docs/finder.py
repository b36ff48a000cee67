# @title Find the code of this study: in its clone, installed, or as a wheel beside this notebook
import importlib.util
import os
import sys
from pathlib import Path

import psutil

PACKAGE = "mixed_precision_study"


def find_code():
    """Make the package importable and return where it was found."""
    said = [os.environ.get("JPY_SESSION_NAME", "")]  # by Jupyter, else on papermill's command line
    if psutil.pid_exists(os.getppid()):  # not where the kernel is the first process of a container
        said += psutil.Process(os.getppid()).cmdline()
    near = [Path(word).absolute().parent for word in said if word.endswith(".ipynb")] + [Path.cwd()]
    for folder in (above for place in near for above in (place, *place.parents)):
        if (folder / PACKAGE / "__init__.py").is_file():
            sys.path.insert(0, str(folder))
            return f"the clone at {os.path.relpath(folder)}"
    if importlib.util.find_spec(PACKAGE):
        return "the installed package"
    places = [*near, Path("/content"), *Path("/kaggle/input").glob("**/")]
    for wheel in (wheel for place in places for wheel in sorted(place.glob(f"{PACKAGE}-*.whl"), reverse=True)):
        sys.path.insert(0, str(wheel))
        return wheel.name
    sys.exit(f"The code was not found: pip install the clone, or put the wheel {PACKAGE}-*.whl beside this notebook.")


where = find_code()
print(f"{PACKAGE} {importlib.import_module(PACKAGE).__version__} from {where}")
