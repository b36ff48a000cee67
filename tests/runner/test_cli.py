"""The command line on tiny notebooks: what it plans, refuses, starts, skips, sets aside and sums
up.
"""

import os
import sys
from unittest.mock import Mock

import pytest
from conftest import CASES
from tiny_suite import (
    LIGHT,
    call,
    entry,
    main,
    read_records,
    records_of,
    survivors,
    write_notebook,
    write_suite,
)

from mixed_precision_study.parameters import assignments
from mixed_precision_study.runner import cli, execute, folder
from mixed_precision_study.runner.plan import parameters_of

STUDIES = {
    "mix": [entry(precisions="fp32, amp_bf16", lr=1), entry("late"), entry("fail")],
    "one": [entry()],
    "flaky": [entry("flaky")],
    "gpu_only": [{"notebook": "tiny", "sweep": {"model": ["a", "b"], "seed": [0, 1]}}],
}
SUMMARY = "from pathlib import Path\nprint(len(list(Path(records_dir).glob('*.json'))), 'records')"


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with studies, the notebooks they run and a summary."""
    place = tmp_path_factory.mktemp("suite")
    write_notebook(place / "summary.ipynb", 'records_dir = "."', SUMMARY)
    return write_suite(place, STUDIES)


@pytest.fixture(scope="module")
def mixed(suite):
    """(output folder, its records, what the batch printed) of runs that end well, fail, and fail
    after their record.
    """
    # papermill puts parameters into braces, nbconvert looks for patterns
    output = suite / "mixed {ends} [1]"
    # the folder is named from where the user stands, and settings of Python do not matter
    (suite / "here").mkdir()
    (suite / "here/mixed_precision_study.py").write_text("raise SystemExit('a foreign module')")
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2"}
    words = ("--output-dir", f"../{output.name}", "--jobs", 2)
    done = call(suite, "mix", *words, env=environment, cwd=suite / "here")
    assert done.returncode == 1 and not survivors(output)
    return output, read_records(output), done


def test_a_batch_leaves_records_and_a_report(mixed):
    output, records, _ = mixed
    assert {one["study"]["name"] for one in records} == {"mix"}
    assert sorted(
        (one["settings"]["mode"], one["status"], one["precision"], one["settings"]["lr"])
        for one in records
    ) == [
        ("fail", "failed", "fp32", 0.1),
        ("late", "ok", "fp32", 0.1),
        ("ok", "ok", "amp_bf16", 1.0),
        ("ok", "ok", "fp32", 1.0),
    ]
    for page in ("summary.ipynb", "summary.html"):
        assert "4 records" in (output / page).read_text()


def test_a_second_start_executes_nothing(suite, mixed, tmp_path, capsys, monkeypatch):
    """A dry run names what is not finished."""
    output = mixed[0]
    monkeypatch.setattr(cli, "summarise", Mock(return_value=True))

    def times():
        return {path: path.stat().st_mtime_ns for path in output.rglob("*")}

    before = times()
    for place, count in ((output, 1), (tmp_path / "nowhere", 3)):
        assert main(suite, "mix", "--output-dir", place, "--dry-run", "--retry-failed") == 0
        assert capsys.readouterr().out.count("  tiny, batch 4, eager fp32") == count
    assert times() == before and not (tmp_path / "nowhere").exists()
    assert main(suite, "mix", "--output-dir", output) == 1  # what failed is still failed
    assert not [
        path
        for path, time in times().items()
        if path.name.startswith("tiny-") and time != before[path]
    ]


def test_retry_failed_and_fresh(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "NOTEBOOK_PROCESS", ("-c", LIGHT))
    monkeypatch.setattr(cli, "summarise", Mock(return_value=True))
    output, data = tmp_path / "out", tmp_path / "data"
    data.mkdir()
    statuses = []
    for option, status in (((), 1), ((), 1), (("--retry-failed",), 0), (("--fresh",), 0)):
        assert (
            main(suite, "flaky", "--output-dir", output, "-p", "data_dir", data, *option) == status
        )
        statuses.append(records_of(output)["flaky"]["status"])
        (data / "mended").touch()
    assert statuses == ["failed", "failed", "ok", "ok"]
    (archive,) = tmp_path.glob("out.archived-*")
    assert len(read_records(archive)) == len(read_records(output)) == 1


@pytest.mark.parametrize(
    "source, drawn",
    {"import time; time.sleep(600)": False, "raise ValueError": False, "1": True}.items(),
)
def test_a_report_that_hangs_or_breaks_is_stopped(tmp_path, monkeypatch, source, drawn):
    monkeypatch.setattr(cli, "REPORT_SECONDS", 0.1 if "sleep" in source else 3600)
    (tmp_path / "logs").mkdir()
    write_notebook(tmp_path / "source.ipynb", 'records_dir = "."', source)
    assert cli.summarise(tmp_path, tmp_path / "source.ipynb") is drawn
    files = (tmp_path / "logs/summary.log", tmp_path / "summary.html")
    assert [path.is_file() for path in files] == [not drawn, drawn]
    assert not survivors(tmp_path)


@pytest.mark.parametrize("named, words", CASES["wrong requests"].items())
def test_a_wrong_request_is_one_sentence_and_writes_nothing(suite, tmp_path, capsys, named, words):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "home/letters").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/logs").symlink_to(tmp_path / "folder")
    for name in ("absent", "untagged", "deep"):
        (tmp_path / f"{name}.yaml").write_text(f"one: {{runs: [{{notebook: {name}, cpu: {{}}}}]}}")
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    (tmp_path / "untagged.ipynb").write_text(
        (suite / "tiny.ipynb").read_text().replace("parameters", "words")
    )
    before = sorted(tmp_path.rglob("*"))
    assert main(suite, "--output-dir", "new/out", *words) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert sorted(tmp_path.rglob("*")) == before


def test_listing_names_what_is_asked_for_without_pytorch(capsys, monkeypatch):
    """With the notebooks of the suite, in seconds that leave no room for it; timm would load
    PyTorch.
    """
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    for name in ("torch", "papermill"):
        monkeypatch.setitem(sys.modules, name, None)  # an import fails
    for words, names in ((["--dry-run"], {"quick"}), (["ladder", "--list"], {"ladder"})):
        assert cli.main(["--gpus", "none", *words]) == 0
        said = {
            line.split()[0].rstrip(":")
            for line in capsys.readouterr().out.splitlines()
            if line[0] != " "
        }
        assert said & set(cli.load_studies(cli.STUDIES_FILE)) == names
    assert cli.main(["--parameters", "cifar_resnet.ipynb"]) == 0
    said = capsys.readouterr().out
    declared, _ = parameters_of(cli.STUDIES_FILE.with_name("cifar_resnet.ipynb"))
    assert set(assignments(said)) == set(declared.model_fields)


def test_a_folder_that_cannot_be_locked_is_one_sentence(suite, tmp_path, capsys, monkeypatch):
    """Its lock is another user's, the file system knows none, another run_all.py holds it, or it
    is a mount point.
    """
    for name in ("flaky", "one"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs/batch.log").touch()
    words = ("flaky", "one", "--output-dir", tmp_path, "--fresh")
    with folder.held(tmp_path / "one"):
        assert main(suite, *words) == 2
    monkeypatch.setattr(
        folder.Path, "rename", Mock(side_effect=OSError(16, "Device or resource busy"))
    )
    assert main(suite, *words) == 1
    for error in (PermissionError(13, "Permission denied"), NotImplementedError("no flock")):
        monkeypatch.setattr(folder.FileLock, "acquire", Mock(side_effect=error))
        assert main(suite, "one", "--output-dir", tmp_path / "one") == 2
    assert capsys.readouterr().err.count("\n") == 4
    # none was set aside
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flaky", "one"]
