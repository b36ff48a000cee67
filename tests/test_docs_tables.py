"""The badges and the generated tables, kept in step with the documents, and the copy of an
executed notebook.
"""

import csv
import re
import shutil
import subprocess

import executed
import figures
import nbformat
import pytest
import quoted
import tables
from conftest import NOTEBOOKS, ROOT

from mixed_precision_study import __version__

COPIED = (
    "pyproject.toml",
    "README.md",
    "docs/start.md",
    "docs/contributors/record.md",
    "mixed_precision_study/store/record.py",
)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(
        NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    (tmp_path / "outputs").symlink_to(ROOT / "outputs")
    for name in COPIED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_nothing_is_stale(capsys):
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_each_column_of_ratios_csv_is_said_once():
    said = re.findall(r"`(\w+)`(?:, |: )", tables.columns_list())
    with (ROOT / "outputs/main/reference-h100/ratios.csv").open() as opened:
        written = next(csv.reader(opened))
    assert sorted(said) == sorted({*written, "axis", "arm", "base"})


def test_each_number_is_read_by_a_document():
    documents = {path: path.read_text() for path in tables.pages(ROOT)}
    own = {path: quoted.quoted(path, text, ROOT / "outputs") for path, text in documents.items()}
    read = {
        name
        for path, text in documents.items()
        for name in set(tables.INLINE.findall(text)) - own[path].keys()
    }
    assert figures.numbers(ROOT / "outputs").keys() == read


@pytest.mark.parametrize(
    "name, text, stale",
    [
        (
            "notebooks/summary.ipynb",
            '<!-- badges -->\\n",\n',
            '<!-- badges -->\\n",\n    "of yesterday\\n",\n',
        ),
        ("notebooks/summary.ipynb", "# @title Find", "# @title Seek"),  # the finder
        (
            "docs/contributors/record.md",
            "- `energy_joules`: whole GPU, timed epochs\n",
            "- `energy_joules`: of everything\n",
        ),
    ],
)
def test_a_stale_block_or_cell_is_named_and_mended(copy, capsys, name, text, stale):
    path, fresh = copy / name, (ROOT / name).read_text()
    assert fresh.count(text) == 1
    path.write_text(fresh.replace(text, stale))
    assert tables.main(["--check"], root=copy) == 1
    assert f"{name} is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert (tables.main([], root=copy), tables.main(["--check"], root=copy)) == (0, 0)
    assert path.read_text() == fresh


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def tagged(copy):
    """A repository with the tag that its notebooks would install."""
    git(copy, "init", "--quiet")
    git(copy, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-m", "first")
    git(copy, "tag", f"v{__version__}")
    return copy


def test_without_the_tag_nothing_is_written(copy, capsys):
    before = {name: (copy / name).read_text() for name in COPIED}
    with pytest.raises(SystemExit):
        tables.main(["--repository", "someone/study"], root=copy)
    assert f"git tag v{__version__}" in capsys.readouterr().err
    assert {name: (copy / name).read_text() for name in COPIED} == before


NAME = "An-Other/c.d"
URL = f"https://github.com/{NAME}"
PLACES = (
    f"colab.research.google.com/github/{NAME}/blob/main/notebooks/",
    f"kaggle.com/kernels/welcome?src={URL}/blob/main/notebooks/",
)


@pytest.fixture
def renamed(tagged):
    """A repository of which the documents name another one first."""
    assert tables.repository_url(tagged) is None
    for name in ("someone/study", NAME):
        assert tables.main(["--repository", name], root=tagged) == 0
        assert tables.main(["--check"], root=tagged) == 0
        assert tables.repository_url(tagged) == f"https://github.com/{name}"
    return tagged


def test_a_repository_fills_badges_and_addresses(renamed):
    settings, readme = ((renamed / one).read_text() for one in COPIED[:2])
    assert settings.count("[project.urls]") == 1 and "someone" not in settings + readme
    assert readme.count(f"git clone {URL} ") == 1
    assert readme.index(f"({URL}/actions/workflows/tests.yml)") < readme.index("**")
    assert "(https://an-other.github.io/c.d/)" in readme
    assert all(f"{place}{tables.FIRST}" in readme for place in PLACES)


@pytest.fixture(scope="module")
def before():
    """A notebook as papermill leaves it: with its metadata, a printed line and a warning in
    every cell.
    """
    notebook = nbformat.read(NOTEBOOKS / "cifar_resnet.ipynb", as_version=4)
    notebook.metadata["papermill"] = {"output_path": "/somewhere/out.ipynb"}
    for cell in notebook.cells:
        cell.metadata["papermill"] = {"start_time": "now"}
        if cell.cell_type == "code":
            printed = "printed by the cell, see ../../home/me/outputs or https://a.org/b/c"
            streams = (("stdout", printed), ("stderr", "a warning"))
            cell.outputs = [
                nbformat.v4.new_output("stream", name=name, text=text) for name, text in streams
            ]
        if cell.id == "results":
            answer = {"text/markdown": "the answer", "text/plain": "the answer"}
            cell.outputs += [nbformat.v4.new_output("display_data", answer)]
    return notebook


@pytest.fixture(scope="module")
def after(before, tmp_path_factory):
    """The text of its copy."""
    folder = tmp_path_factory.mktemp("executed")
    nbformat.write(before, folder / "executed.ipynb")
    paths = [str(folder / "executed.ipynb"), str(folder / "copy.ipynb")]
    assert executed.main([*paths, "Made-up data."]) == 0
    return (folder / "copy.ipynb").read_text()


def test_the_result_comes_first(after):
    cells = nbformat.reads(after, as_version=4).cells
    heads = [cell.source.splitlines()[0] for cell in cells[:4]]
    assert heads[0].startswith("# ") and heads[2:] == ["## Result", "show(records)"]
    assert cells[1].source.startswith("**the answer**\n\nMade-up data.\n\n")
    assert after.count("the answer") == 1
    assert cells[-1].id == "finder"


def test_a_copy_loses_no_cell_and_names_no_folder(before, after):
    copy = nbformat.reads(after, as_version=4)
    sources = {cell.source for cell in copy.cells if cell.id not in ("note", "where")}
    assert sources == {cell.source for cell in before.cells}
    assert "papermill" not in copy.metadata
    assert "/somewhere" not in after and "a warning" not in after
    assert "see outputs or https://a.org/b/c" in after
    count = sum(cell.cell_type == "code" for cell in before.cells)
    assert after.count("printed by the cell") == count
