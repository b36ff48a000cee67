"""Draw the committed folders of results anew: report as notebook and page, picture, CSV files and the records.zip.

    python docs/outputs.py                       # every folder below outputs/ that has a study.yaml
    python docs/outputs.py outputs/main/quick-h100

Records that lie loose in a folder go into its records.zip. That file is written only where a record has changed, and
its entries are in order and have one date, so the same records always make the same file.
"""

import base64
import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "mixed_precision_study" / "report" / "template"
DATE = (1980, 1, 1, 0, 0, 0)


def zip_records(folder: Path) -> None:
    """Move the loose records of a folder into its records.zip."""
    archive, entries = folder / "records.zip", {}
    if archive.exists():
        with zipfile.ZipFile(archive) as opened:
            entries = {name: opened.read(name) for name in opened.namelist()}
    loose = sorted(folder.rglob("*.json"))
    new = entries | {path.relative_to(folder).as_posix(): path.read_bytes() for path in loose}
    if new != entries:
        with zipfile.ZipFile(archive, "w") as opened:
            for name in sorted(new):
                opened.writestr(zipfile.ZipInfo(name, DATE), new[name], zipfile.ZIP_DEFLATED, 9)
    for path in loose:
        path.unlink()


def draw(folder: Path) -> None:
    """Execute the summary notebook in a folder of results, and keep one of its pictures as picture.png."""
    for old in folder.glob("*.png"):
        old.unlink()
    executed = folder / "summary.ipynb"
    options = ["--no-progress-bar", "-p", "records_dir", folder.relative_to(ROOT).as_posix(), "--cwd", str(ROOT)]
    notebook = ROOT / "notebooks" / "summary.ipynb"
    subprocess.run([sys.executable, "-m", "papermill", *options, str(notebook), str(executed)], check=True)
    content = json.loads(executed.read_text(encoding="utf-8"))
    for part in (content, *content["cells"]):
        for name in ("papermill", "execution"):  # they name paths of this machine and times
            part["metadata"].pop(name, None)
    executed.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    template = ["--template", "study", f"--TemplateExporter.extra_template_basedirs={TEMPLATES}"]
    subprocess.run([sys.executable, "-m", "nbconvert", "--to", "html", *template, str(executed)], check=True)
    outputs = [part for cell in content["cells"] for part in cell.get("outputs", [])]
    first = next((part["data"]["image/png"] for part in outputs if "image/png" in part.get("data", {})), "")
    for path in folder.glob("*.png"):
        path.unlink()
    if first:
        (folder / "picture.png").write_bytes(base64.b64decode(first))


def main(names: list[str]) -> None:
    """Draw the folders that are named, or all."""
    folders = [Path(name).resolve() for name in names]
    for folder in folders or sorted(path.parent for path in (ROOT / "outputs").rglob("study.yaml")):
        zip_records(folder)
        draw(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
