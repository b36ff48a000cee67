"""Run studies of experiment notebooks: python run_all.py --help.

The code is in mixed_precision_study.runner.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

try:
    from mixed_precision_study.runner.cli import run_as_program
except ModuleNotFoundError as error:
    print(
        f"run_all.py: {error.name} is not installed; run: pip install -r requirements.txt",
        file=sys.stderr,
    )
    sys.exit(2)
except KeyboardInterrupt:  # while it loads, so nothing has begun
    sys.exit(1)

if __name__ == "__main__":
    run_as_program()
