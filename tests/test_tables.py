"""The badges and the generated tables: computed from records and settings, and kept in step with the documents."""

import json
import shutil
import subprocess

import pytest
import tables
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

from mixed_precision_study import __version__
from mixed_precision_study.record import RunRecord

ALL = (*EXPERIMENTS, "summary")


@pytest.fixture
def copy(tmp_path):
    """A copy of the suite's notebooks, settings and README, which a test may spoil."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    reference = ROOT / "outputs" / "reference"  # the README's first table is computed from its records
    (tmp_path / "outputs" / "reference").mkdir(parents=True)
    for path in reference.glob("*.json"):
        shutil.copy(path, tmp_path / "outputs" / "reference" / path.name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def check(root):
    return tables.main(["--check"], root=root)


def write(root):
    return tables.main([], root=root)


def test_nothing_is_stale(copy, capsys):
    assert check(copy) == 0
    assert capsys.readouterr().err == ""


def test_a_stale_block_is_named_with_the_command_and_mended(copy, capsys):
    path = copy / "notebooks" / "cifar_resnet.ipynb"
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if "<!-- badges -->" in "".join(cell["source"]))
    place = next(number for number, line in enumerate(cell["source"]) if "<!-- badges -->" in line)
    cell["source"].insert(place + 1, "of yesterday\n")
    path.write_text(json.dumps(notebook))
    assert check(copy) == 1
    assert "notebooks/cifar_resnet.ipynb is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    assert path.read_text() == (NOTEBOOKS / "cifar_resnet.ipynb").read_text()


def set_url(root, url):
    path = root / "pyproject.toml"
    path.write_text(path.read_text() + f'\n[project.urls]\nRepository = "{url}"\n')


def test_badges_come_from_pyproject(copy):
    set_url(copy, "https://github.com/someone/study")
    assert check(copy) == 1
    assert write(copy) == 0
    assert check(copy) == 0
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
    assert check(copy) == 0
    assert write(copy) == 0
    assert "github/a-b/c.d/blob/main" in (copy / "notebooks" / "summary.ipynb").read_text()
    assert check(copy) == 0


def test_without_an_address_the_text_says_how_to_upload(copy):
    assert tables.repository_url(copy) == (None, None)
    assert "Upload notebook" in (copy / "README.md").read_text()
    assert "colab.research" not in (copy / "notebooks" / "cifar_resnet.ipynb").read_text()


@pytest.mark.parametrize("cell", ["finder", "parameters"])
def test_a_stale_cell_is_named_and_mended(copy, cell, capsys):
    path = copy / "notebooks" / "lstm_language_model.ipynb"
    notebook = json.loads(path.read_text())
    found = next(one for one in notebook["cells"] if one["id"] == cell)
    found["source"][0] = found["source"][0].replace("auto", "synthetic").replace("Find", "Seek")
    path.write_text(json.dumps(notebook))
    assert check(copy) == 1
    assert "notebooks/lstm_language_model.ipynb is stale" in capsys.readouterr().err
    assert write(copy) == 0
    assert path.read_text() == (NOTEBOOKS / "lstm_language_model.ipynb").read_text()


def test_where_there_is_a_repository_pip_gets_the_code_from_there_at_last(copy):
    plain = tables.finder(None)
    assert "pip" not in plain
    assert plain == (ROOT / "docs" / "finder.py").read_text().rstrip()
    text = tables.finder("https://github.com/someone/study")
    compile(text, "finder", "exec")
    assert f'source = "git+https://github.com/someone/study@v{__version__}"' in text
    assert text.index("pip") > text.index("*.whl") and text.index("return source") < text.index("sys.exit(")
    set_url(copy, "https://github.com/someone/study")
    assert write(copy) == 0
    for name in ALL:
        notebook = json.loads((copy / "notebooks" / f"{name}.ipynb").read_text())
        (cell,) = [cell for cell in notebook["cells"] if cell.get("id") == "finder"]
        assert "".join(cell["source"]) == text


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

    table = tables.headline(
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
    assert (
        "| m on d, batch 8 (n = 2 or 3) | 4.00 s, 0.50 GiB | - | 2.00 s (2.00x, one process), 0.50 GiB | - |" in table
    )
    assert "| m on d, batch 8, channels_last (n = 1) | - | 3.00 s, 0.50 GiB | - | - |" in table  # never mixed
    assert "| 4.00 s, 0.50 GiB | 2.00 s (2.00x, one process), 0.50 GiB | - | - |" in table  # whatever the epochs
    assert "| m on d, batch 16 (n = 1) | - | - | - | 1.00 s, 0.50 GiB |" in table
    assert "T4, driver 5, CUDA 13, cuDNN 9, PyTorch 2.9, timm 1" in table
    assert "None yet" in tables.headline([])


def test_the_table_of_fields_has_every_field_of_a_record():
    lines = tables.fields_table(ROOT / "mixed_precision_study" / "record.py").splitlines()
    names = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert names == list(RunRecord.__dataclass_fields__)
    assert all(line.count("|") >= 3 and line.split("|")[2].strip() for line in lines[1:-1])


def test_the_document_of_measurements_is_kept_in_step(copy, capsys):
    shutil.copytree(ROOT / "tests" / "built_cases", copy / "tests" / "built_cases")
    (copy / "docs").mkdir()
    (copy / "mixed_precision_study").mkdir()
    shutil.copy(ROOT / "mixed_precision_study" / "record.py", copy / "mixed_precision_study" / "record.py")
    document = copy / "docs" / "measurements.md"
    document.write_text("Before.\n<!-- fields -->\n<!-- /fields -->\n<!-- cases -->\nold\n<!-- /cases -->\nAfter.\n")
    assert check(copy) == 1
    assert "docs/measurements.md is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    text = document.read_text()
    assert text.startswith("Before.\n<!-- fields -->\n| field | meaning |\n|---|---|\n| `overflow_steps` | ")
    assert text.endswith("<!-- /cases -->\nAfter.\n")
    for path in (copy / "tests" / "built_cases").glob("*.json"):
        assert f"| {path.stem} | " in text
    path = copy / "mixed_precision_study" / "record.py"
    path.write_text(path.read_text().replace("# whole GPU, timed epochs", "# of everything"))
    assert write(copy) == 0
    assert "| `energy_joules` | of everything |" in document.read_text()


@pytest.mark.parametrize("text", ["https://example.org/a/b.git", "/some/folder/b", "", "git@gitlab.com:a/b.git"])
def test_other_hosts_have_no_such_badges(text):
    assert tables.github_address(text) is None
