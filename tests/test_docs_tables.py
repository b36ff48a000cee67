"""The badges and the generated tables: computed from records and settings, and kept in step with the documents."""

import json
import shutil

import pytest
import tables
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

from mixed_precision_study import __version__

COPIED = ("pyproject.toml", "README.md", "docs/running.md", "docs/record.md", "mixed_precision_study/record.py")


@pytest.fixture
def copy(tmp_path):
    """A copy of the suite's notebooks, settings and documents, which a test may spoil."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (tmp_path / "outputs").symlink_to(ROOT / "outputs")
    for name in COPIED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_nothing_is_stale(capsys):
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "text", "stale"),
    [
        (
            "notebooks/lstm_language_model.ipynb",
            '<!-- badges -->\\n",\n',
            '<!-- badges -->\\n",\n    "of yesterday\\n",\n',
        ),
        ("notebooks/lstm_language_model.ipynb", "# @title Find", "# @title Seek"),  # the finder
        ("notebooks/lstm_language_model.ipynb", r"dataset = \"auto\"", r"dataset = \"synthetic\""),  # the parameters
        ("docs/record.md", "- `energy_joules`: whole GPU, timed epochs\n", "- `energy_joules`: of everything\n"),
    ],
)
def test_a_stale_block_or_cell_is_named_with_the_command_and_mended(copy, capsys, name, text, stale):
    path, fresh = copy / name, (ROOT / name).read_text()
    assert fresh.count(text) == 1
    path.write_text(fresh.replace(text, stale))
    assert tables.main(["--check"], root=copy) == 1
    assert f"{name} is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert (tables.main([], root=copy), tables.main(["--check"], root=copy)) == (0, 0)
    assert path.read_text() == fresh


def test_a_repository_fills_badges_addresses_and_finders_and_another_one_replaces_it(copy):
    assert tables.repository_url(copy) is None
    for name in ("someone/study", "An-Other/c.d"):
        assert tables.main(["--repository", name], root=copy) == 0
        assert tables.main(["--check"], root=copy) == 0
        assert tables.repository_url(copy) == f"https://github.com/{name}"
    settings, readme, running, *_ = ((copy / one).read_text() for one in COPIED)
    url = f"https://github.com/{name}"
    assert settings.count("[project.urls]") == 1
    for text in (f"pip install git+{url}`", f"git clone {url}`", f"({url}/actions/workflows/tests.yml)"):
        assert readme.count(text) == 1
    assert "(https://an-other.github.io/c.d/)" in readme
    for one in (*EXPERIMENTS, "summary"):
        notebook = (copy / "notebooks" / f"{one}.ipynb").read_text()
        for place in ("colab.research.google.com/github/", "kaggle.com/kernels/welcome?src=https://github.com/"):
            assert all(f"{place}{name}/blob/main/notebooks/{one}.ipynb" in text for text in (notebook, running))
        (cell,) = [cell for cell in json.loads(notebook)["cells"] if cell.get("id") == "finder"]
        compile("".join(cell["source"]), "finder", "exec")
        assert f"git+{url}@v{__version__}" in "".join(cell["source"])  # pip gets the code from there at last
        assert "someone" not in notebook + settings + readme + running


@pytest.mark.parametrize("given", [["--repository", "study"], ["--repository", "a/b", "--check"]])
def test_another_form_of_address_is_refused_and_changes_nothing(copy, given):
    with pytest.raises(SystemExit):
        tables.main(given, root=copy)
    assert (copy / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
