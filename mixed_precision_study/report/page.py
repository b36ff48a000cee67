"""The page of a report: the outputs of an executed summary notebook as HTML, in the form of
report/template. The notebook itself gets its report first, and its code last.
"""

import json
import re
from pathlib import Path

import jinja2
import mistune

from ..store.files import written_whole

TERMINAL_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal


def place_of(cell: dict) -> int:
    """Return where a reader wants a cell of the summary: title, report, words, and other code."""
    if cell.get("id") in ("title", "report"):
        return ("title", "report").index(cell["id"])
    return 2 if cell["cell_type"] == "markdown" else 3


def write_page(notebook: str | Path) -> None:
    """Write the page of an executed summary beside it, and put the summary's own cells in the
    order of place_of(). nbconvert would parse it once more, which takes a second.
    """
    notebook = Path(notebook)
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "template")
    environment = jinja2.Environment(loader=loader)  # noqa: S701  # the template escapes what is no HTML
    environment.filters["markdown"] = mistune.create_markdown(plugins=["strikethrough", "table"])
    environment.filters["uncoloured"] = lambda text: TERMINAL_COLOURS.sub("", text)
    content = json.loads(notebook.read_text(encoding="utf-8"))
    content["cells"].sort(key=place_of)
    with written_whole(notebook) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page = environment.get_template("page.html").render(nb=content)
    with written_whole(notebook.with_suffix(".html")) as temporary:
        temporary.write_text(page, encoding="utf-8")
