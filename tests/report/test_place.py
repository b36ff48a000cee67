"""Where a report may be written: no file of a person's is deleted or overwritten, in any way
that a report starts.
"""

import json
import zipfile

import made_up_records as made_up
import pytest
from conftest import NOTEBOOKS, ROOT, refuses
from drawn_reports import write_all
from tiny_suite import write_notebook

from mixed_precision_study.report.files import check_place, of_a_report
from mixed_precision_study.report.section import File, save
from mixed_precision_study.runner import cli
from mixed_precision_study.store.record import save_record

SOURCE = NOTEBOOKS / "summary.ipynb"
WORDS = {  # a person's files that have the names of a report's
    "summary.ipynb": SOURCE.read_bytes(),
    "summary.html": b"<h1>My summary</h1>",
    "trainings.csv": b"date,kilometres\n",
    "energy.png": b"\x89PNG\r\n\x1a\n" + bytes(60),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_persons_file_is_none_of_a_report(tmp_path, name):
    (tmp_path / name).write_bytes(WORDS[name])
    assert not of_a_report(tmp_path / name)
    assert of_a_report(tmp_path / f"no-{name}")
    (tmp_path / "link").symlink_to(tmp_path / name)
    assert of_a_report(tmp_path / "link")  # it is replaced, and what it leads to stays


@pytest.mark.parametrize("name", ["trainings.csv", "energy.png"])
def test_a_persons_table_or_chart_is_kept_and_the_report_tells(tmp_path, name):
    (tmp_path / name).write_bytes(WORDS[name])
    said = save(File(name, b"new"), tmp_path)
    assert said and name in said.text and (tmp_path / name).read_bytes() == WORDS[name]
    (tmp_path / name).unlink()
    assert save(File(name, b"new"), tmp_path) is None and (tmp_path / name).read_bytes() == b"new"


def refused(folder):
    with refuses() as stopped:
        check_place(folder)
    return str(stopped.value)


def test_a_folder_with_a_source_is_refused_also_through_links(tmp_path):
    assert "summary.ipynb" in refused(NOTEBOOKS)
    (tmp_path / "linked").symlink_to(NOTEBOOKS)
    assert "summary.ipynb" in refused(tmp_path / "linked")
    (tmp_path / "own").mkdir()  # one's own suite, with the records of a study
    write_notebook(tmp_path / "own/summary.ipynb", 'records_dir = "."')
    (tmp_path / "own/a.json").write_text("{}")
    assert "summary.ipynb" in refused(tmp_path / "own")


@pytest.mark.parametrize("name", ["summary.html", "logs/summary.log"])
def test_a_page_or_a_log_of_a_person_is_refused(tmp_path, name):
    (tmp_path / "logs").mkdir()
    (tmp_path / name).write_text("mine")
    assert name in refused(tmp_path)
    (tmp_path / "logs/.lock").touch()  # where run_all.py has been, the log is its own
    if name != "summary.html":
        check_place(tmp_path)


def test_a_strangers_summary_beside_records_stays_unrun(tmp_path, capsys):
    """Where a report goes elsewhere, it is drawn with the notebook of the clone."""
    theirs = tmp_path / "theirs"
    write_all(theirs, *made_up.pair_of())
    planted = f"records_dir = ''\nopen({str(tmp_path / 'run')!r}, 'w')"
    write_notebook(theirs / "summary.ipynb", planted)
    before = (theirs / "summary.ipynb").read_bytes()
    (theirs / "study.yaml").write_text("name: x\nruns: [{notebook: cifar_resnet}]\n")
    assert cli.main(["--report", str(theirs), "--studies", str(theirs / "study.yaml")]) == 2
    assert "--output-dir" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert (theirs / "summary.ipynb").read_bytes() == before


def test_records_that_cannot_be_used_are_one_sentence_at_once(tmp_path, capsys):
    """Also in a zip, and all studies of a clone, of which each has a report of its own."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    save_record(made_up.make("cifar_resnet", "fp32", metric_better="max"), tmp_path / "bad/r.json")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(
            "r.json", json.dumps({"run": {"run_id": "1", "precision": "fp32"}, "settings": {}})
        )
    write_all(tmp_path / "good", made_up.make("cifar_resnet", "fp32"))
    elsewhere = ["--output-dir", "new"]
    for words, says in (
        (["empty", *elsewhere], "folder"),
        (["bad", *elsewhere], "metric_better"),
        (["bad.zip", *elsewhere], "lacks"),
        (["nowhere"], "holds no records"),
        (["good", "good"], "needs --output-dir"),
        ([str(ROOT / "outputs")], "outputs/main"),
    ):
        assert cli.main(["--report", *words]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert says in error
    assert not (tmp_path / "new").exists()
