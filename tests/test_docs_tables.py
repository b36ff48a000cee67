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
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

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
    with (ROOT / "outputs/main/reference-h100/ratios.csv").open(encoding="utf-8") as opened:
        written = next(csv.reader(opened))
    assert sorted(said) == sorted({*written, "axis", "arm", "base"})


def test_each_number_is_read_by_a_document_and_found_by_name():
    documents = {path: path.read_text() for path in tables.pages(ROOT)}
    own = {path: quoted.quoted(path, text, ROOT / "outputs") for path, text in documents.items()}
    read = {
        name
        for path, text in documents.items()
        for name in set(tables.INLINE.findall(text)) - own[path].keys()
    }
    source = (ROOT / "docs" / "figures.py").read_text()
    assert figures.numbers(ROOT / "outputs").keys() == read
    made = [name for name in read if not re.match(r"line_|\w*memory", name)]  # of several models
    assert [name for name in sorted(made) if f'"{name}"' not in source] == []


@pytest.mark.parametrize(
    ("name", "text", "stale"),
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


def test_a_repository_fills_badges_addresses_and_finders_and_another_one_replaces_it(tagged):
    assert tables.repository_url(tagged) is None
    for name in ("someone/study", "An-Other/c.d"):
        assert tables.main(["--repository", name], root=tagged) == 0
        assert tables.main(["--check"], root=tagged) == 0
        assert tables.repository_url(tagged) == f"https://github.com/{name}"
    settings, readme, start, *_ = ((tagged / one).read_text() for one in COPIED)
    url = f"https://github.com/{name}"
    assert settings.count("[project.urls]") == 1
    assert readme.count(f"git clone {url} ") == 1
    assert readme.index(f"({url}/actions/workflows/tests.yml)") < readme.index("**")
    assert "(https://an-other.github.io/c.d/)" in readme
    places = (
        f"colab.research.google.com/github/{name}/blob/main/notebooks/",
        f"kaggle.com/kernels/welcome?src={url}/blob/main/notebooks/",
    )
    assert all(f"{place}{tables.FIRST}" in readme for place in places)
    for one in (*EXPERIMENTS, "summary"):
        notebook = (tagged / "notebooks" / f"{one}.ipynb").read_text()
        for place in places:
            assert all(f"{place}{one}.ipynb" in text for text in (notebook, start))
        assert f"git+{url}@v{__version__}" in notebook  # pip gets the code from there at last
        assert "someone" not in notebook + settings + readme + start


def test_the_result_comes_first_and_nothing_is_lost(tmp_path):
    """The notebook is as papermill leaves it: with its metadata, a printed line and a warning in
    every cell.
    """
    before = nbformat.read(NOTEBOOKS / "cifar_resnet.ipynb", as_version=4)
    before.metadata["papermill"] = {"output_path": "/somewhere/out.ipynb"}
    for cell in before.cells:
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
    nbformat.write(before, tmp_path / "executed.ipynb")
    paths = [str(tmp_path / "executed.ipynb"), str(tmp_path / "copy.ipynb")]
    assert executed.main([*paths, "Made-up data."]) == 0
    copy, text = (
        nbformat.read(tmp_path / "copy.ipynb", as_version=4),
        (tmp_path / "copy.ipynb").read_text(),
    )
    heads = [cell.source.splitlines()[0] for cell in copy.cells[:4]]
    assert heads[0].startswith("# ") and heads[2:] == ["## Result", "show(records)"]
    assert {cell.source for cell in copy.cells if cell.id not in ("note", "where")} == {
        cell.source for cell in before.cells
    }
    assert (
        copy.cells[1].source.startswith("**the answer**\n\nMade-up data.\n\n")
        and text.count("the answer") == 1
    )
    assert copy.cells[-1].id == "finder"
    assert "papermill" not in copy.metadata and "/somewhere" not in text and "a warning" not in text
    assert "see outputs or https://a.org/b/c" in text
    assert text.count("printed by the cell") == sum(
        cell.cell_type == "code" for cell in before.cells
    )


@pytest.mark.parametrize("name", [str(NOTEBOOKS / "cifar_resnet.ipynb"), "no"])
def test_a_notebook_without_result_is_refused(name, tmp_path, capsys):
    assert (executed.main([name, "x"]), capsys.readouterr().err.count("\n")) == (1, 1)
    assert not (tmp_path / "x").exists()
