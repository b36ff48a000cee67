"""The shared sections, the badges, and the state of the notebook sources."""

import ast
import json
import shutil
import subprocess

import papermill
import pytest
import sync
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT, code_cells, read_notebook
from record import RunRecord

ALL = (*EXPERIMENTS, "summary")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the suite's notebooks, settings and README, which a test may spoil."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    reference = ROOT / "outputs" / "reference"  # the README's first table is computed from its records
    (tmp_path / "outputs" / "reference").mkdir(parents=True)
    for path in reference.glob("*.json"):
        shutil.copy(path, tmp_path / "outputs" / "reference" / path.name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(sync, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(sync.stale_files, "__defaults__", (tmp_path / "notebooks", False))
    monkeypatch.setattr(sync.read_sections, "__defaults__", (tmp_path / "notebooks",))
    return tmp_path


def test_nothing_is_stale(copy, capsys):
    assert sync.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_a_stale_cell_is_named_with_the_command_and_mended(copy, capsys):
    path = copy / "notebooks" / "cifar_resnet.ipynb"
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if "# %% Training step" in "".join(cell["source"]))
    cell["source"].append("\nx = 1")
    path.write_text(json.dumps(notebook))
    assert sync.main(["--check"]) == 1
    assert "notebooks/cifar_resnet.ipynb is stale; run: python notebooks/sync.py" in capsys.readouterr().err
    assert sync.main([]) == 0
    assert sync.main(["--check"]) == 0
    assert path.read_text() == (NOTEBOOKS / "cifar_resnet.ipynb").read_text()


def test_an_edited_section_makes_every_notebook_stale(copy, capsys):
    path = copy / "notebooks" / "record.py"
    path.write_text(path.read_text().replace("def finite(", "def finite_numbers("))
    assert sync.main(["--check"]) == 1
    assert capsys.readouterr().err.count("is stale") == len(EXPERIMENTS)  # the summary writes no records


def test_a_missing_and_an_unknown_section_are_named(copy, capsys):
    path = copy / "notebooks" / "lstm_language_model.ipynb"
    path.write_text(path.read_text().replace("# %% Training step -- ", "# %% Training stop -- "))
    assert sync.main(["--check"]) == 1
    problems = capsys.readouterr().err
    assert "lstm_language_model.ipynb lacks the section 'Training step'" in problems
    assert "unknown section: # %% Training stop" in problems


def test_a_check_over_nothing_fails(copy, capsys):
    for path in (copy / "notebooks").glob("*.ipynb"):
        path.unlink()
    assert sync.main(["--check"]) == 1
    assert "nothing was checked" in capsys.readouterr().err


def set_url(root, url):
    path = root / "pyproject.toml"
    path.write_text(path.read_text() + f'\n[project.urls]\nRepository = "{url}"\n')


def test_badges_come_from_pyproject(copy):
    set_url(copy, "https://github.com/someone/study")
    assert sync.main(["--check"]) == 1
    assert sync.main([]) == 0
    assert sync.main(["--check"]) == 0
    for name in ALL:
        text = (copy / "notebooks" / f"{name}.ipynb").read_text()
        assert f"colab.research.google.com/github/someone/study/blob/main/notebooks/{name}.ipynb" in text
        assert (
            f"kaggle.com/kernels/welcome?src=https://github.com/someone/study/blob/main/notebooks/{name}.ipynb" in text
        )
        assert name in (copy / "README.md").read_text().split("<!-- badges -->")[1]


def test_badges_from_the_origin_are_written_but_a_clone_without_them_is_not_stale(copy):
    subprocess.run(["git", "init", "-q", str(copy)], check=True)
    subprocess.run(["git", "-C", str(copy), "remote", "add", "origin", "git@github.com:a-b/c.d.git"], check=True)
    assert sync.main(["--check"]) == 0
    assert sync.main([]) == 0
    assert "github/a-b/c.d/blob/main" in (copy / "notebooks" / "summary.ipynb").read_text()
    assert sync.main(["--check"]) == 0


def test_without_an_address_the_text_says_how_to_upload(copy):
    assert sync.repository_url(copy) == (None, None)
    assert "Upload notebook" in (copy / "notebooks" / "cifar_resnet.ipynb").read_text()
    assert "colab.research" not in (copy / "notebooks" / "cifar_resnet.ipynb").read_text()


def test_the_headline_is_computed_from_records():
    def record(precision, seconds, status="ok", **facts):
        facts = {"gpu_name": "T4", "driver_version": "5", "cuda_version": "13", "cudnn_version": "9", **facts}
        facts |= {"torch_version": "2.9", "timm_version": "1", "status": status, "precision": precision}
        facts = {
            "model": "m",
            "dataset_used": "d",
            "batch_size": 8,
            "peak_allocated_mib": 512,
            "seed": 0,
            "gpu_uuid": "u",
            **facts,
        }
        return {"notebook": "n", "device_type": "cuda", **facts, "epoch_seconds": seconds}

    table = sync.headline(
        [
            record("fp32", [3.0, 5.0]),
            record("fp32", [4.0], seed=1),
            record("amp_fp16", [1.5, 2.5]),
            record("tf32", [1.0], status="oom"),
            record("amp_bf16", [1.0], gpu_name=None),
            record("tf32", [3.0], channels_last=True),
            record("amp_bf16", [1.0], batch_size=16),
            record("fp32", [4.0] * 6, batch_size=32),
            record("tf32", [2.0] * 6, batch_size=32),
        ]
    )
    assert "| m on d, batch 8 (n = 2 or 3) | 4.00 s, 0.50 GiB | - | 2.00 s (2.00x), 0.50 GiB | - |" in table
    assert "| m on d, batch 8, channels_last (n = 1) | - | 3.00 s, 0.50 GiB | - | - |" in table  # never mixed
    assert "| 4.00 s, 0.50 GiB | 2.00 s (2.00x, 2.00 to 2.00), 0.50 GiB | - | - |" in table  # six pairs
    assert "| m on d, batch 16 (n = 1) | - | - | - | 1.00 s, 0.50 GiB |" in table
    assert "T4, driver 5, CUDA 13, cuDNN 9, PyTorch 2.9, timm 1" in table
    assert "None yet" in sync.headline([])


def test_the_table_of_fields_has_every_field_of_a_record():
    lines = sync.fields_table(NOTEBOOKS).splitlines()
    names = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert names == list(RunRecord.__dataclass_fields__)
    assert all(line.count("|") >= 3 and line.split("|")[2].strip() for line in lines[1:-1])


def test_the_document_of_measurements_is_kept_in_step(copy, capsys):
    shutil.copytree(ROOT / "tests" / "built_cases", copy / "tests" / "built_cases")
    (copy / "docs").mkdir()
    document = copy / "docs" / "measurements.md"
    document.write_text("Before.\n<!-- fields -->\n<!-- /fields -->\n<!-- cases -->\nold\n<!-- /cases -->\nAfter.\n")
    assert sync.main(["--check"]) == 1
    assert "docs/measurements.md is stale; run: python notebooks/sync.py" in capsys.readouterr().err
    assert sync.main([]) == 0
    assert sync.main(["--check"]) == 0
    text = document.read_text()
    assert text.startswith("Before.\n<!-- fields -->\n| field | meaning |\n|---|---|\n| `overflow_steps` | ")
    assert text.endswith("<!-- /cases -->\nAfter.\n")
    for path in (copy / "tests" / "built_cases").glob("*.json"):
        assert f"| {path.stem} | " in text
    path = copy / "notebooks" / "record.py"
    path.write_text(path.read_text().replace("# whole card, timed epochs", "# of everything"))
    assert sync.main([]) == 0
    assert "| `energy_joules` | of everything |" in document.read_text()


@pytest.mark.parametrize("text", ["https://example.org/a/b.git", "/some/folder/b", "", "git@gitlab.com:a/b.git"])
def test_other_hosts_have_no_such_badges(text):
    assert sync.github_address(text) is None


def test_sections_are_short_and_files_near_their_size():
    sections = sync.read_sections()
    assert len(sections) >= 12
    for title, text, _ in sections.values():
        assert len(text.splitlines()) <= 80, title
    limits = {"record.py": 354, "verdict.py": 230, "card.py": 412, "instruments.py": 416}
    limits |= {"diagnosis.py": 400, "harness.py": 435, "results.py": 120, "inference.py": 95, "largest.py": 120}
    limits |= {"graph.py": 278, "preparation.py": 268}
    assert set(limits) == set(sync.SOURCES)
    for name, limit in limits.items():
        assert len((NOTEBOOKS / name).read_text().splitlines()) <= limit, name


def test_every_section_is_in_every_notebook_that_needs_it():
    titles = {title for title, _, _ in sync.read_sections().values()}
    for name in ALL:
        first_lines = {source.partition("\n")[0] for source in code_cells(name).values()}
        needed = sync.sections_needed(f"{name}.ipynb", titles)
        assert len(needed) >= 3
        assert {title for line, (title, _, _) in sync.read_sections().items() if line in first_lines} == needed


@pytest.mark.parametrize("name", ALL)
def test_sources_carry_no_outputs_and_cells_are_short(name):
    notebook = read_notebook(name)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            shared = "".join(cell["source"]).startswith(sync.MARK)
            assert len(cell["source"]) <= (80 if shared else 60), cell["id"]


@pytest.mark.parametrize("name", ALL)
def test_papermill_sees_every_parameter(name, capsys):
    cells = [cell for cell in read_notebook(name)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    assert len(cells) == 1
    tree = ast.parse("".join(cells[0]["source"]))
    values = {line.targets[0].id: ast.literal_eval(line.value) for line in tree.body}  # flat literals only
    assert all("  # " in line for line in cells[0]["source"])
    seen = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert {key: ast.literal_eval(item["default"]) for key, item in seen.items()} == values


COMMON = "dataset model precisions batch_size epochs max_steps lr loss_scale execution repeats seed data_dir output_dir"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiments_have_the_parameters_of_the_design(name):
    seen = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert set(COMMON.split()) <= set(seen)
    assert ("channels_last" in seen) is (name != "lstm_language_model")
    assert ast.literal_eval(seen["precisions"]["default"]) == ["fp32", "tf32", "amp_fp16", "amp_bf16"]
    tree = ast.parse(code_cells(name)["check"])
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
    )
    given = {keyword.arg: keyword.value.id for keyword in call.keywords}
    assert given == {key: key for key in seen}  # the record gets each parameter under its own name
