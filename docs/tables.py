"""Write the generated parts of notebooks and documents: finder and parameters cells, badges and tables.

python docs/tables.py           rewrite what is stale
python docs/tables.py --check   change nothing; list what is stale and exit with 1
"""

import argparse
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
import figures  # noqa: E402

from mixed_precision_study import __version__  # noqa: E402
from mixed_precision_study.parameters import EXPERIMENTS, parameters_cell  # noqa: E402

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

INLINE = re.compile(r"<!--(\w+)-->.*?<!--/-->")
BADGES = re.compile(r"<!-- badges -->\n.*?<!-- /badges -->", re.DOTALL)
MEND = "run: python docs/tables.py"
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "_kg_hide-input": True}  # Colab, Jupyter, Kaggle
FROM_REPOSITORY = """\
    source = "{source}"
    if subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", source]).returncode == 0:
        importlib.invalidate_caches()
        return source
"""


def repository_url(root):
    """Return (GitHub address, where it stands: "pyproject", "origin" or None); other hosts have no such badges."""
    settings = (
        tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        if (root / "pyproject.toml").exists()
        else {}
    )
    url = settings.get("project", {}).get("urls", {}).get("Repository")
    if url:
        return github_address(url), "pyproject"
    answer = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    url = github_address(answer.stdout)
    return url, "origin" if url else None


def github_address(text):
    """Return "https://github.com/OWNER/NAME" for any usual form of that address, else None."""
    found = re.search(r"github\.com[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?/?$", text.strip())
    return f"https://github.com/{found[1]}/{found[2]}" if found else None


def badges(url, notebook):
    """Return the badge block of a notebook; it is empty where there is no address."""
    if not url:
        return "<!-- badges -->\n<!-- /badges -->"
    path = url.removeprefix("https://github.com/") + f"/blob/main/notebooks/{notebook}"
    colab, kaggle = "https://colab.research.google.com", "https://kaggle.com"
    line = (
        f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({colab}/github/{path}) "
        f"[![Open in Kaggle]({kaggle}/static/images/open-in-kaggle.svg)]({kaggle}/kernels/welcome?src=https://github.com/{path})"
    )
    return f"<!-- badges -->\n{line}\n<!-- /badges -->"


def notebook_text(path, url):
    """Return the notebook at `path` with the finder, the parameters and the badges that it should have."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = BADGES.sub(lambda _: badges(url, path.name), text)
        elif cell.get("id") == "finder":
            text, cell["metadata"] = finder(url), dict(FOLDED)
            if path.stem == "summary":  # its first output is the title of the report
                text = text[: text.rindex("\nprint(")]
        elif cell.get("id") == "parameters" and path.stem in EXPERIMENTS:
            text = parameters_of(path.stem)
        cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def parameters_of(name):
    """Return the source of a notebook's parameters cell: what a reader changes, and where the others are listed."""
    others = f"# Others may be assigned here, too: `python run_all.py --parameters {name}` lists them."
    return f"{parameters_cell(EXPERIMENTS[name], shown_only=True)}\n{others}"


def finder(url):
    """Return the source of the first cell; where there is a repository, pip gets the code from there at last."""
    text = (ROOT / "docs" / "finder.py").read_text(encoding="utf-8").rstrip("\n")
    if not url:
        return text
    install = FROM_REPOSITORY.format(source=f"git+{url}@v{__version__}")
    return text.replace("import sys\n", "import subprocess\nimport sys\n", 1).replace(
        "    sys.exit(", f"{install}    sys.exit("
    )


def stale_files(root, check=False):
    """Yield (path, text it should have) of every notebook and document that is not as it should be.

    Where the address is only that of the clone's origin, `check` also accepts files without badges: whoever clones the
    repository has changed nothing.
    """
    url, found_in = repository_url(root)
    outputs = (root / "outputs").resolve()
    addresses = (url, None) if check and found_in == "origin" else (url,)
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    for path in paths:
        texts = [notebook_text(path, address) for address in addresses]
        if path.read_text(encoding="utf-8") not in texts:
            yield path, texts[0]
    notebooks = [path.name for path in paths]
    for path, blocks in generated_blocks(root).items():
        if not path.exists():
            continue
        now = path.read_text(encoding="utf-8")
        text = with_blocks(now, blocks, lambda: figures.numbers(outputs))
        blocks_of_badges = [badge_list(address, notebooks) for address in addresses]
        texts = [BADGES.sub(lambda _, badges=badges: badges, text) for badges in blocks_of_badges]
        if now not in texts:
            yield path, texts[0]


def with_blocks(text, blocks, numbers=dict):
    """Return a document with its generated parts made anew.

    blocks: {name: make} of the text between `<!-- name -->` and `<!-- /name -->`
    numbers: returns {name: text} of what stands in a sentence, between <!--name--> and <!--/-->
    """
    for name, make in blocks.items():
        block = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if block.search(text):
            made = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
            text = block.sub(lambda _, made=made: made, text)
    if INLINE.search(text):
        known = numbers()
        text = INLINE.sub(lambda found: f"<!--{found[1]}-->{known[found[1]]}<!--/-->", text)
    return text


def generated_blocks(root):
    """Return {document: {name of a block: what makes it}}."""
    return {
        root / "README.md": {"headline": lambda: figures.headline((root / "outputs").resolve())},
        root / "docs" / "results.md": {},
        root / "docs" / "running.md": {},  # the badges
        root / "docs" / "record.md": {"fields": lambda: fields_list(root / "mixed_precision_study" / "record.py")},
        root / "docs" / "reliability.md": {"cases": lambda: cases_table(root / "tests" / "built_cases")},
    }


def fields_list(path):
    """Return the list of the record's fields: name, and the comment beside it in record.py.

    Neighbours with the same comment share a line. Reasons are left out, because their names say all. So are lists that
    are not written.
    """
    meanings = []
    for text in path.read_text(encoding="utf-8").splitlines():
        found = re.match(r"    (\w+): (?:Text|Integer|Number|str|int|bool|list|dict)\b.*?#\s*(.*)", text)
        if found and not found[1].endswith("_reason") and "not written" not in found[2]:
            meanings.append((found[2], found[1]))
    groups = groupby(meanings, key=itemgetter(0))
    return "\n".join(f"- {', '.join(f'`{name}`' for _, name in group)}: {meaning}" for meaning, group in groups)


def cases_table(folder):
    """Return the table of the built cases: what each must be called, and how that is known without the rules."""
    lines = ["| case | must be called | known because |", "|---|---|---|"]
    for name, case in yaml.safe_load((folder / "cases.yaml").read_text(encoding="utf-8")).items():
        lines.append(f"| {name} | {case['expected']} | {case['because']} |")
    return "\n".join(lines)


def badge_list(url, notebooks):
    """Return the block of badges in a document: a line for every notebook, or one sentence without an address."""
    if not url:
        line = "Upload one notebook: on Colab with *File > Upload notebook*, on Kaggle with *File > Import Notebook*."
        return f"<!-- badges -->\n{line}\n<!-- /badges -->"
    lines = [f"- `{name}` {badges(url, name).splitlines()[1]}" for name in notebooks]
    return "\n".join(["<!-- badges -->", *lines, "<!-- /badges -->"])


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when something is stale")
    check, failed = parser.parse_args(arguments).check, False
    for path, text in stale_files(root, check=check):
        if check:
            failed = True
            print(f"{path.relative_to(root)} is stale; {MEND}", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(root)} rewritten")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
