"""The page of a report: the outputs of an executed summary notebook as HTML, in the form of
report/template.
"""

import json
import re
from pathlib import Path

import jinja2
import mistune

from ..store.files import written_whole

TERMINAL_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal


def write_page(notebook: str | Path) -> None:
    """Write the page of an executed notebook beside it. nbconvert would parse it once more,
    which takes a second.
    """
    notebook = Path(notebook)
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "template")
    environment = jinja2.Environment(loader=loader)  # noqa: S701  # the template escapes what is no HTML
    environment.filters["markdown"] = mistune.create_markdown(plugins=["strikethrough", "table"])
    environment.filters["uncoloured"] = lambda text: TERMINAL_COLOURS.sub("", text)
    content = json.loads(notebook.read_text(encoding="utf-8"))
    page = environment.get_template("page.html").render(nb=content)
    with written_whole(notebook.with_suffix(".html")) as temporary:
        temporary.write_text(page, encoding="utf-8")
