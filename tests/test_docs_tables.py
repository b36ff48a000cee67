"""The badges and the generated tables, kept in step with the documents."""

import csv
import re
import shutil
import subprocess

import figures
import pytest
import tables
from conftest import CASES, NOTEBOOKS, ROOT

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


NAME = "An-Other/c.d"
URL = f"https://github.com/{NAME}"
PLACES = (
    f"colab.research.google.com/github/{NAME}/blob/main/notebooks/",
    f"kaggle.com/kernels/welcome?src={URL}/blob/main/notebooks/",
)


def test_a_repository_fills_badges_and_addresses(copy):
    """It has the tag that its notebooks would install, and had another address before."""
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (
        ("init", "--quiet"),
        (*author, "commit", "--quiet", "--allow-empty", "-m", "first"),
        ("tag", f"v{__version__}"),
    ):
        subprocess.run(["git", "-C", str(copy), *words], check=True)
    assert tables.repository_url(copy) is None
    for name in ("someone/study", NAME):
        for words in (["--repository", name], ["--check"]):
            assert tables.main(words, root=copy) == 0
        assert tables.repository_url(copy) == f"https://github.com/{name}"
    settings, readme = ((copy / one).read_text() for one in COPIED[:2])
    assert settings.count("[project.urls]") == 1 and "someone" not in settings + readme
    assert readme.count(f"git clone {URL} ") == 1
    words = (f"({URL}/actions/workflows/tests.yml)", "(https://an-other.github.io/c.d/)")
    assert all(one in readme for one in (*words, *(place + tables.FIRST for place in PLACES)))


def test_amp_pays_where_all_machines_and_tf32_s_step_say_so(tmp_path):
    folder = tmp_path / figures.EAGER
    folder.mkdir(parents=True)
    for name in ("ratios.csv", "trainings.csv"):
        (folder / name).write_text(CASES["an eager study"][name])
    assert figures.of_eager_study(tmp_path) == CASES["an eager study"]["figures"]
