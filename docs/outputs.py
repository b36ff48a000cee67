"""Draw the committed reports anew: each folder's summary.ipynb, its page, its CSV files and its
first picture.

    python docs/outputs.py  # every folder below outputs/ that has a summary.html
    python docs/outputs.py outputs/main/quick-h200
    python docs/outputs.py --pages site  # all pages in a folder, with an index, for a web server

Records that lie loose in a folder go into its records.zip, as one JSON file {name: record}, because
equal parts of records then take no room. The zip is written only where a record has changed, and
has no date, because git would keep every other version of it for ever.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.address import with_links  # noqa: E402
from mixed_precision_study.store.reading import PACK  # noqa: E402

OUTPUTS = ROOT / "outputs"
DATE = (1980, 1, 1, 0, 0, 0)
PAGE = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
PAGE += (
    "<title>Mixed-precision study</title>\n<h1>Mixed-precision study: reports and executed "
    "notebooks</h1>\n"
)


def zip_files(archive: Path, files: list[Path]) -> None:
    """Move records from below the archive's folder into it; those of the same name there are
    replaced.
    """
    entries = {}
    if archive.exists():
        with zipfile.ZipFile(archive) as opened:
            entries = json.loads(opened.read(PACK))
    new = entries | {
        path.relative_to(archive.parent).as_posix(): json.loads(path.read_bytes()) for path in files
    }
    if new != entries:
        with zipfile.ZipFile(archive, "w") as opened:
            packed = json.dumps(dict(sorted(new.items())), separators=(",", ":"))
            opened.writestr(zipfile.ZipInfo(PACK, DATE), packed, zipfile.ZIP_DEFLATED, 9)
    for path in files:
        path.unlink()


@contextmanager
def readable(results: Path) -> Iterator[Path]:
    """Give a folder of results as it is, and for a zip a folder that has it and its study.yaml.
    They lie beside each other, because a study.yaml inside a zip is not read.
    """
    if results.is_dir():
        yield results
        return
    with tempfile.TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(shutil.copy(results, unpacked)) as archive:
            archive.extractall(unpacked, {"study.yaml"} & {*archive.namelist()})
        yield Path(unpacked)


def draw(folder: Path) -> None:
    """Execute the summary notebook in a folder of results, and keep its first picture for wide
    and narrow pages.
    """
    # --pages does without what it loads
    from docs.sheets import sheet_of
    from mixed_precision_study.runner.execute import papermill
    from mixed_precision_study.store.variables import RUNNER_ENV

    executed, kept = folder / "summary.ipynb", set(folder.glob("*.png"))
    parameters = {"records_dir": folder.relative_to(ROOT).as_posix()}
    command = papermill(ROOT / "notebooks" / "summary.ipynb", executed, parameters)
    command += ["--page", str(executed)]
    # what ends with run_all.py ends with this here
    environment = {**os.environ, RUNNER_ENV: str(os.getpid())}
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT, env=environment)
    content = json.loads(executed.read_text(encoding="utf-8"))
    for part in (content, *content["cells"]):
        for name in ("papermill", "execution"):  # they name paths of this machine and times
            part["metadata"].pop(name, None)
        if "injected-parameters" in part["metadata"].get("tags", []):
            part["id"] = "injected-parameters"  # papermill draws a new one each time
    # the page has the drawings of charts, so they need not stand in the notebook a second time
    charts = [
        part["metadata"].pop("chart")
        for cell in content["cells"]
        for part in cell.get("outputs", [])
        if "chart" in part.get("metadata", {})
    ]
    drawings = charts[0]["drawings"] if charts else []
    executed.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in set(folder.glob("*.png")) - kept:
        path.unlink()
    if drawings:
        for name, columns in (("picture", min(3, len(drawings))), ("picture-narrow", 1)):
            (folder / f"{name}.svg").write_text(sheet_of(drawings, columns), encoding="utf-8")


def publish(site: Path) -> None:
    """Copy all results to a folder, give each executed notebook a page there, and write an index
    of the pages. Markdown stays behind, because a web server shows its source; links of the pages
    to it and to what else lies outside lead to GitHub, or become text.
    """
    shutil.copytree(OUTPUTS, site, ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)
    items = []
    for notebook in sorted(site.rglob("*.ipynb")):
        page = notebook.with_suffix(".html")
        if not page.exists():
            subprocess.run(
                [sys.executable, "-m", "nbconvert", "--to", "html", str(notebook)], check=True
            )
        way = page.relative_to(site).as_posix()
        text = page.read_text(encoding="utf-8")
        title = re.search("<h1[^>]*>(.*?)(<a |</h1>)", text, re.DOTALL)[1]
        folder = (OUTPUTS / way).parent.resolve()
        page.write_text(with_links(text, folder, OUTPUTS.resolve(), site), encoding="utf-8")
        items.append(f'<li><a href="{way}">{title}</a> ({page.parent.name})</li>\n')
    (site / "index.html").write_text(f"{PAGE}<ul>\n{''.join(items)}</ul>\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Draw the folders that are named, or all; or publish all pages."""
    if names[:1] == ["--pages"]:
        publish(Path(names[1]))
        return
    folders = [Path(name).resolve() for name in names]
    for folder in folders or sorted(path.parent for path in OUTPUTS.rglob("summary.html")):
        zip_files(folder / "records.zip", sorted(folder.rglob("*.json")))
        draw(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
