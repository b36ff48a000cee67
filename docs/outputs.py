"""Draw the committed reports anew: each folder's summary.ipynb, its page, its CSV files and its first picture.

python docs/outputs.py                       # every folder of outputs/ that has a summary.html
python docs/outputs.py outputs/quick-h100
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from mixed_precision_study.runner.cli import report_steps  # noqa: E402


def draw(folder: Path) -> None:
    """Execute the summary notebook in a folder of results, and keep one of its pictures as picture.png."""
    executed, kept = folder / "summary.ipynb", set(folder.glob("*.png"))
    parameters = {"records_dir": folder.relative_to(ROOT).as_posix()}
    execute, page = report_steps(ROOT / "notebooks" / "summary.ipynb", folder, parameters)
    subprocess.run([sys.executable, *execute], check=True, cwd=ROOT)
    content = json.loads(executed.read_text(encoding="utf-8"))
    for part in (content, *content["cells"]):
        for name in ("papermill", "execution"):  # they name paths of this machine and times
            part["metadata"].pop(name, None)
    executed.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, *page], check=True)
    outputs = [part for cell in content["cells"] for part in cell.get("outputs", [])]
    first = next((part["data"]["image/png"] for part in outputs if "image/png" in part.get("data", {})), "")
    for path in set(folder.glob("*.png")) - kept:
        path.unlink()
    if first:
        (folder / "picture.png").write_bytes(base64.b64decode(first))


def main(names: list[str]) -> None:
    """Draw the folders that are named, or all."""
    folders = [Path(name).resolve() for name in names]
    for folder in folders or sorted(path.parent for path in (ROOT / "outputs").glob("*/summary.html")):
        draw(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
