"""Write the generated parts of notebooks and documents: finder cells, badges and tables.

python docs/tables.py                           rewrite what is stale
python docs/tables.py --check                   change nothing; list what is stale and exit with 1
python docs/tables.py --repository OWNER/NAME   write badges and addresses of this GitHub repository
"""

import argparse
import inspect
import json
import re
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "docs"))
import attention  # noqa: E402
import copied  # noqa: E402
import does_not_fit  # noqa: E402
import figures  # noqa: E402
import quoted  # noqa: E402
import weights  # noqa: E402
from address import GITHUB, repository_url  # noqa: E402

from mixed_precision_study import __version__  # noqa: E402
from mixed_precision_study.judge.arms import compared  # noqa: E402
from mixed_precision_study.judge.equivalence import quality_difference  # noqa: E402
from mixed_precision_study.judge.ratios import paired_ratio  # noqa: E402
from mixed_precision_study.report.tables import quality_of, ratios_of  # noqa: E402
from mixed_precision_study.report.words import LIMITS  # noqa: E402
from mixed_precision_study.store import record  # noqa: E402

FIRST = "cifar_resnet.ipynb"  # what the README's badges open
FIELDS = "mixed_precision_study/store/record.py"
# what makes the columns of ratios.csv, and how their names begin there
MAKERS = (
    *((ratios_of, ""), (paired_ratio, ""), (compared, "")),
    *((quality_difference, "quality_"), (quality_of, "quality_")),
)
INLINE = re.compile(r"<!--(\w+)-->.*?<!--/-->", re.DOTALL)
# a comment of the lines to copy, which says what the line below it gained
GAIN = re.compile(r"^( *# (TF32|channels_last|compile|bf16|fp16)\b[^:\n]*: ).*$", re.MULTILINE)
BADGES = re.compile(r"<!-- badges -->\n.*?<!-- /badges -->", re.DOTALL)
URLS = re.compile(r"^(# )?\[project\.urls\]\n(# )?Repository = .*\n", re.MULTILINE)
TAG = f"v{__version__}"  # what the notebooks install where they find no code
MEND = "run: python docs/tables.py"
FOLDED = {
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "_kg_hide-input": True,
}  # Colab, Jupyter, Kaggle


def set_repository(root, name):
    """Write the address of the GitHub repository OWNER/NAME into pyproject.toml."""
    path = root / "pyproject.toml"
    lines = f'[project.urls]\nRepository = "{GITHUB}{name}"\n'
    path.write_text(URLS.sub(lines, path.read_text(encoding="utf-8")), encoding="utf-8")


def has_tag(root, tag):
    """Return whether the repository of this folder has a tag."""
    command = ["git", "-C", str(root), "rev-parse", "--quiet", "--verify", f"refs/tags/{tag}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def badge_line(url):
    """Return the README's badges: state of the tests, one notebook on Colab and Kaggle, and the
    pages of all reports.
    """
    if not url:
        return ""
    owner, name = url.removeprefix(GITHUB).split("/")
    tests = f"{url}/actions/workflows/tests.yml"
    return (
        f"[![tests]({tests}/badge.svg)]({tests}) {badge_pair(url, FIRST)} "
        f"[All reports as pages](https://{owner.lower()}.github.io/{name}/)"
    )


def commands(url):
    """Return the README's commands, which begin with the clone."""
    lines = (
        f"git clone {url or 'REPOSITORY_ADDRESS'} study",
        "cd study",
        "pip install -r requirements.txt -e .",
        "# 7 min on an H200, 10 GB of disk",
        "python run_all.py",
    )
    return "\n".join(["```sh", *lines, "```"])


def badge_pair(url, notebook):
    """Return the two badges that open a notebook."""
    path = url.removeprefix(GITHUB) + f"/blob/main/notebooks/{notebook}"
    colab, kaggle = "https://colab.research.google.com", "https://kaggle.com"
    open_in = f"{kaggle}/kernels/welcome?src={GITHUB}{path}"
    return (
        f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({colab}/github/{path}) "
        f"[![Open in Kaggle]({kaggle}/static/images/open-in-kaggle.svg)]({open_in})"
    )


def badges(url, notebook):
    """Return the badge block of a notebook; it is empty where there is no address."""
    line = f"{badge_pair(url, notebook)}\n" if url else ""
    return f"<!-- badges -->\n{line}<!-- /badges -->"


def notebook_text(path, url):
    """Return the notebook at `path` with the finder and the badges that it should have."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = BADGES.sub(lambda _: badges(url, path.name), text)
        elif cell.get("id") == "finder":
            text, cell["metadata"] = finder(url), dict(FOLDED)
        cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def finder(url):
    """Return the source of the first cell; where there is a repository, pip gets the code from
    there at last.
    """
    text = (ROOT / "docs" / "finder.py").read_text(encoding="utf-8").rstrip("\n")
    if not url:
        return text
    install = f'os.system(f"{{sys.executable}} -m pip install -q git+{url}@{TAG}")'
    return re.sub(r"sys\.exit\(f?\"In a clone.*?\"\)", lambda _: install, text)


def stale_files(root):
    """Yield (path, text it should have) of every notebook and document that is not as it should
    be.
    """
    url, outputs = repository_url(root), (root / "outputs").resolve()
    texts = {
        path: notebook_text(path, url) for path in sorted((root / "notebooks").glob("*.ipynb"))
    }
    for path, blocks in generated_blocks(root, url, [path.name for path in texts]).items():
        if path.exists():
            texts[path] = with_blocks(path.read_text(encoding="utf-8"), blocks)
    for path in pages(root):
        text = texts.get(path) or path.read_text(encoding="utf-8")
        texts[path] = with_numbers(path, text, outputs)
    for path, text in texts.items():
        if path.read_text(encoding="utf-8") != text:
            yield path, text


def pages(root):
    """Return the pages that quote numbers: README, all docs, and the folders of results."""
    below = [*(root / "docs").rglob("*.md"), *(root / "outputs").resolve().rglob("README.md")]
    return [path for path in (root / "README.md", *sorted(below)) if path.exists()]


def with_blocks(text, blocks):
    """Return a document with its generated parts made anew.

    blocks: {name: make} of the text between `<!-- name -->` and `<!-- /name -->`
    """
    for name, make in blocks.items():
        block = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if block.search(text):
            made = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
            text = block.sub(lambda _, made=made: made, text)
    return text


def with_numbers(path, text, outputs):
    """Return a page with its numbers made anew: those in sentences, between <!--name--> and
    <!--/-->, and those in comments of the lines to copy.

    A page says by itself where a number is from (see quoted.py), or `figures` knows its name.
    """
    known = quoted.quoted(path, text, outputs)
    if {found[1] for found in INLINE.finditer(text)} - known.keys():
        known = figures.numbers(outputs) | known
    text = INLINE.sub(lambda found: f"<!--{found[1]}-->{known[found[1]]}<!--/-->", text)
    if GAIN.search(text):
        gains = copied.gains(outputs)
        text = GAIN.sub(lambda found: found[1] + gains[found[2].lower()], text)
    return text


def generated_blocks(root, url, notebooks):
    """Return {document: {name of a block: what makes it}}."""
    outputs, docs = (root / "outputs").resolve(), root / "docs"
    return {
        root / "README.md": {
            "badges": lambda: badge_line(url),
            "commands": lambda: commands(url),
        },
        docs / "results.md": {"headline": lambda: figures.headline(outputs)},
        docs / "answers" / "which-lines-do-i-add.md": {"lines": lambda: copied.table_of(outputs)},
        docs / "answers" / "attention.md": {"gains": lambda: attention.table_of(outputs)},
        docs / "answers" / "does-not-fit.md": {
            "remedies": lambda: does_not_fit.table_of(outputs),
            "nothing": lambda: does_not_fit.nothing_of(outputs),
            "score": lambda: does_not_fit.score_of(outputs),
            "quality": lambda: does_not_fit.quality_of(outputs),
        },
        outputs / does_not_fit.FOLDER / "README.md": {
            "frontier": lambda: does_not_fit.frontier_of(outputs)
        },
        docs / "answers" / "bf16-weights.md": {
            "recipes": lambda: weights.table_of(outputs),
            "score": lambda: weights.score_of(outputs),
        },
        docs / "start.md": {"badges": lambda: badge_list(url, notebooks)},
        docs / "contributors" / "record.md": {
            "fields": lambda: fields_list(root / "mixed_precision_study" / "store" / "record.py"),
            "columns": columns_list,
        },
        docs / "contributors" / "reliability.md": {
            "cases": lambda: cases_table(root / "tests" / "built_cases")
        },
    }


def fields_list(path):
    """Return the list of the record's fields, a heading for each section: name, and its comment in
    record.py.

    The comment stands beside a field, or above it where the line would be too long. Neighbours with
    the same comment share a line. Reasons are left out, because their names say all. So are lists
    that are not written.
    """
    meanings = []
    field = re.compile(r"^((?:    # .*\n)*)    (\w+): .*?(?:# (.*))?$", re.MULTILINE)
    for above, name, beside in field.findall(path.read_text(encoding="utf-8")):
        meaning = beside or " ".join(re.findall(r"# (.*)", above))
        written = meaning and "not written" not in meaning and not name.endswith("_reason")
        if name in record.PLACES and written:
            meanings.append((".".join(record.PLACES[name]), meaning, name))
    lines, section = [], ""
    for (place, meaning), group in groupby(meanings, key=itemgetter(0, 1)):
        if place != section:
            lines += ["", f"**`{place}`**", ""]
            section = place
        lines.append(f"- {', '.join(f'`{name}`' for *_, name in group)}: {meaning}")
    return "\n".join(lines[1:])


def columns_list():
    """Return the columns of ratios.csv, from the lines "name, name: meaning" of their makers."""
    lines = []
    for maker, begin in MAKERS:
        key = re.compile(r"^(\w+(?:, \w+)*): (.+(?:\n +.+)*)", re.MULTILINE)
        for names, meaning in key.findall(inspect.getdoc(maker)):
            columns = ", ".join(f"`{begin}{name}`" for name in names.split(", "))
            lines.append(f"- {columns}: {' '.join(meaning.split())}")
    return "\n".join(lines)


def cases_table(folder):
    """Return the list of the built cases: what each must be called, and how that is known
    without the rules.
    """
    lines = []
    for name, case in yaml.safe_load((folder / "cases.yaml").read_text(encoding="utf-8")).items():
        expected = LIMITS.get(case["expected"], case["expected"])
        lines.append(f"- **{name}**: {expected}, because {case['because']}")
    return "\n".join(lines)


def badge_list(url, notebooks):
    """Return the badges in a document: a line for every notebook, or one sentence without an
    address.
    """
    if not url:
        return (
            "Upload one notebook: on Colab with *File > Upload notebook*, on Kaggle with "
            "*File > Import Notebook*."
        )
    return "\n".join(f"- `{name}` {badges(url, name).splitlines()[1]}" for name in notebooks)


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 when something is stale"
    )
    way.add_argument(
        "--repository",
        metavar="OWNER/NAME",
        help="on GitHub; for badges, addresses and pip install git+",
    )
    given = parser.parse_args(arguments)
    if given.repository:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", given.repository):
            parser.error("--repository takes OWNER/NAME, as in https://github.com/OWNER/NAME.")
        if not has_tag(root, TAG):
            parser.error(
                f"There is no tag {TAG} yet, and the notebooks would install it. First run: "
                f"git tag {TAG} && git push origin {TAG}"
            )
        set_repository(root, given.repository)
    failed = False
    for path, text in stale_files(root):
        if given.check:
            failed = True
            print(f"{path.relative_to(root)} is stale; {MEND}", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(root)} rewritten")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
