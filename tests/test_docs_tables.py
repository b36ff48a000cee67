"""The badges and the generated tables: computed from records and settings, and kept in step with the documents."""

import json
import re
import shutil

import figures
import pytest
import tables
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

from mixed_precision_study import __version__
from mixed_precision_study.record import NOT_WRITTEN, RunRecord

ALL = (*EXPERIMENTS, "summary")


@pytest.fixture
def copy(tmp_path):
    """A copy of the suite's notebooks, settings and README, which a test may spoil."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (tmp_path / "outputs").symlink_to(ROOT / "outputs")
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "README.md", "docs/running.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def check(root):
    return tables.main(["--check"], root=root)


def write(root):
    return tables.main([], root=root)


def test_nothing_is_stale(copy, capsys):
    assert check(copy) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ('<!-- badges -->\\n",\n', '<!-- badges -->\\n",\n    "of yesterday\\n",\n'),
        ("# @title Find", "# @title Seek"),  # the finder
        (r"dataset = \"auto\"", r"dataset = \"synthetic\""),  # the cell of parameters
    ],
)
def test_a_stale_block_or_cell_is_named_with_the_command_and_mended(copy, capsys, text, stale):
    path, fresh = (place / "lstm_language_model.ipynb" for place in (copy / "notebooks", NOTEBOOKS))
    assert fresh.read_text().count(text) == 1
    path.write_text(fresh.read_text().replace(text, stale))
    assert check(copy) == 1
    assert "notebooks/lstm_language_model.ipynb is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    assert path.read_text() == fresh.read_text()


def test_a_repository_fills_badges_and_addresses_and_another_one_replaces_it(copy):
    for name in ("someone/study", "An-Other/c.d"):
        assert tables.main(["--repository", name], root=copy) == 0
        assert check(copy) == 0 and write(copy) == 0
        url = f"https://github.com/{name}"
        assert tables.repository_url(copy) == url
        documents = {path: (copy / path).read_text() for path in ("pyproject.toml", "README.md", "docs/running.md")}
        notebooks = {one: (copy / "notebooks" / f"{one}.ipynb").read_text() for one in ALL}
        assert documents["pyproject.toml"].count("[project.urls]") == 1
        for text in (f"pip install git+{url}`", f"git clone {url}`", f"({url}/actions/workflows/tests.yml)"):
            assert documents["README.md"].count(text) == 1
        for one, text in notebooks.items():
            for place in ("colab.research.google.com/github/", "kaggle.com/kernels/welcome?src=https://github.com/"):
                assert f"{place}{name}/blob/main/notebooks/{one}.ipynb" in text
                assert f"{place}{name}/blob/main/notebooks/{one}.ipynb" in documents["docs/running.md"]
            assert f"git+{url}@v{__version__}" in text
    assert "(https://an-other.github.io/c.d/)" in documents["README.md"]
    assert not any("someone" in text for text in (*documents.values(), *notebooks.values()))


@pytest.mark.parametrize("given", [["--repository", "study"], ["--repository", "a/b", "--check"]])
def test_another_form_of_address_is_refused_and_changes_nothing(copy, given):
    before = (copy / "pyproject.toml").read_text()
    with pytest.raises(SystemExit):
        tables.main(given, root=copy)
    assert (copy / "pyproject.toml").read_text() == before


def test_without_an_address_the_text_says_how_to_upload(copy):
    assert tables.repository_url(copy) is None
    assert "Upload notebook" in (copy / "docs" / "running.md").read_text()
    assert "colab.research" not in (copy / "notebooks" / "cifar_resnet.ipynb").read_text()
    path = copy / "pyproject.toml"  # other hosts have no such badges
    path.write_text(tables.URLS.sub('[project.urls]\nRepository = "https://example.org/a/b"\n', path.read_text()))
    assert tables.repository_url(copy) is None


def test_where_there_is_a_repository_pip_gets_the_code_from_there_at_last(copy):
    plain = tables.finder(None)
    assert "git+" not in plain
    assert plain == (ROOT / "docs" / "finder.py").read_text().rstrip()
    text = tables.finder("https://github.com/someone/study")
    compile(text, "finder", "exec")
    assert f"git+https://github.com/someone/study@v{__version__}" in text
    assert tables.main(["--repository", "someone/study"], root=copy) == 0
    for name in ALL:
        notebook = json.loads((copy / "notebooks" / f"{name}.ipynb").read_text())
        (cell,) = [cell for cell in notebook["cells"] if cell.get("id") == "finder"]
        assert "".join(cell["source"]) == text


def test_a_number_in_a_sentence_is_made_anew_and_texts_without_one_ask_for_none():
    text = "It is <!--gain-->1.0<!--/--> times.\n<!-- list -->\nold\n<!-- /list -->\n"
    made = tables.with_blocks(text, {"list": lambda: "- new"}, lambda: {"gain": "1.2"})
    assert made == "It is <!--gain-->1.2<!--/--> times.\n<!-- list -->\n- new\n<!-- /list -->\n"
    assert tables.with_blocks("none <!-- here -->", {}, lambda: pytest.fail("asked")) == "none <!-- here -->"
    with pytest.raises(KeyError):
        tables.with_blocks("<!--unknown--><!--/-->", {}, dict)


def test_the_table_of_the_readme_has_both_formats_of_each_model():
    rows = [line[1:-1].split("|") for line in figures.headline(ROOT / "outputs").splitlines()]
    assert [row[1] for row in rows[2:]] == ["fp16", "bf16"] * 3
    for model, row in zip([name for name in figures.BATCHES for _ in figures.AMP], rows[2:], strict=True):
        for way, folders, cell in (("CUDA graph", figures.CARDS, row[2]), ("eager", figures.EAGER_SETS, row[3])):
            own = figures.bars(ROOT / "outputs", folders, way)
            own = own[(own.model == model) & (own.precision == f"amp_{row[1]}")]
            assert own.folder.is_unique and set(folders) - set(own.folder) <= {
                "main/ladder-h200"
            }  # has one format for each model
            assert cell.rstrip("×").split("–") == [f"{own.ratio.min():.2f}", f"{own.ratio.max():.2f}"]


def test_the_list_of_fields_has_every_field_of_a_record():
    lines = tables.fields_list(ROOT / "mixed_precision_study" / "record.py").splitlines()
    names = [name for line in lines for name in re.findall(r"`(\w+)`", line.split(": ")[0])]
    left_out = [name for name in RunRecord.__dataclass_fields__ if name not in names]
    assert names == [name for name in RunRecord.__dataclass_fields__ if name not in left_out]
    assert all(name.endswith("_reason") or name in NOT_WRITTEN for name in left_out) and len(names) > 100
    assert all(line.startswith("- `") and line.partition(": ")[2] for line in lines)


def test_lists_of_fields_and_cases_are_kept_in_step(copy, capsys):
    shutil.copytree(ROOT / "tests" / "built_cases", copy / "tests" / "built_cases")
    (copy / "mixed_precision_study").mkdir()
    shutil.copy(ROOT / "mixed_precision_study" / "record.py", copy / "mixed_precision_study" / "record.py")
    fields, cases = copy / "docs" / "record.md", copy / "docs" / "reliability.md"
    fields.write_text("Before.\n<!-- fields -->\n<!-- /fields -->\nAfter.\n")
    cases.write_text("<!-- cases -->\nold\n<!-- /cases -->\n")
    assert check(copy) == 1
    assert "docs/record.md is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    assert fields.read_text().startswith("Before.\n<!-- fields -->\n- `run_id`, `notebook`, `precision`: ")
    assert fields.read_text().endswith("<!-- /fields -->\nAfter.\n")
    for path in (copy / "tests" / "built_cases").glob("*.json"):
        assert f"| {path.stem} | " in cases.read_text()
    path = copy / "mixed_precision_study" / "record.py"
    path.write_text(path.read_text().replace("# whole GPU, timed epochs", "# of everything"))
    assert write(copy) == 0
    assert "- `energy_joules`: of everything\n" in fields.read_text()
