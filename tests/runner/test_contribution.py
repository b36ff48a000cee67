"""A zip of records for others: nothing private is in it, and a report takes it in."""

import json
import zipfile

import made_up_records as made_up
import pytest
from drawn_reports import flat

from mixed_precision_study.errors import UserError
from mixed_precision_study.record import read_records, write_record
from mixed_precision_study.report.load import load
from mixed_precision_study.runner import cli, contribution

HOME = "/home/annabell/study/data"
PRIVATE = {
    "output_dir": HOME,
    "data_dir": HOME,
    "host_id": "0123456789abcdef",
    "host_platform": "Linux-6.1-annabells-own-kernel",
    "reason": f"OSError: [Errno 28] No space left on device: '{HOME}/train.txt' on workhorse",
    "energy_reason": r"PermissionError: C:\Users\Annabell\nvml.dll, asked by annabell",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with records of a GPU and of a CPU, made by annabell on workhorse."""
    monkeypatch.setattr(contribution.socket, "gethostname", lambda: "workhorse.example.org")
    monkeypatch.setattr(contribution.getpass, "getuser", lambda: "annabell")
    for precision, seconds in (("fp32", 4.0), ("amp_fp16", 2.0)):
        for repeat in range(3):
            record = made_up.make("cifar_resnet", precision, seconds=[seconds] * 3, parameters={"repeat": repeat})
            for name, value in PRIVATE.items():
                target = record.parameters if name in record.parameters else None
                if target is not None:
                    target[name] = value
                else:
                    setattr(record, name, value)
            write_record(record, tmp_path / "mine")
    write_record(made_up.make("cifar_resnet", "fp32", device=made_up.CPU, seconds=[9.0]), tmp_path / "mine")
    return tmp_path / "mine"


def archive_of(folder):
    (path,) = folder.parent.glob("records-*.zip")
    return path


def test_nothing_private_is_in_it(folder, capsys):
    assert contribution.contribute(folder, "mine") == 0
    with zipfile.ZipFile(archive_of(folder)) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert len(texts) == 6  # without the one of a CPU
    private = ("annabell", "workhorse", "home", "Users", "own-kernel", "0123456789abcdef", made_up.H200["gpu_uuid"])
    for word in private:
        assert not any(word.lower() in (name + text).lower() for name, text in texts.items()), word
    record = json.loads(next(iter(texts.values())))
    assert record["host_platform"] == "Linux" and record["host_id"].startswith("host-")
    assert record["reason"] == "OSError: [Errno 28] No space left on device: '(removed)' on (removed)"
    said = capsys.readouterr().out
    assert f"{archive_of(folder).name}: 6 records" in said and "1 of a CPU left out" in said


def test_a_report_takes_it_in_and_says_the_same(folder, tmp_path):
    contribution.contribute(folder, "mine")
    pooled = tmp_path / "contributed"
    pooled.mkdir()
    archive_of(folder).rename(pooled / "theirs.zip")
    records, left_out = read_records(pooled)
    assert len(records) == 6 and not left_out
    assert len({record["gpu_uuid"] for record in records}) == 1
    (ratio,) = load(str(pooled)).speedups.values()
    assert (ratio["ratio"], ratio["processes"]) == (pytest.approx(2.0), 3)


def test_the_command_line_has_it(folder):
    assert cli.run_all(cli.parse_arguments(["--send", str(folder)])) == 0
    assert archive_of(folder).stat().st_size > 1000


def test_it_says_where_to_send_it(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(contribution, "ROOT", tmp_path)
    contribution.contribute(folder, "mine")
    assert "data/contributed/" in capsys.readouterr().out
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/someone/study.git"\n')
    contribution.contribute(folder, "mine")
    assert "https://github.com/someone/study/issues/new" in capsys.readouterr().out


def test_a_folder_without_records_of_a_gpu_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        contribution.contribute(tmp_path / "no", "no")
    write_record(made_up.make("cifar_resnet", "fp32", device=made_up.CPU, seconds=[9.0]), tmp_path)
    with pytest.raises(UserError, match="holds no records of runs on a GPU"):
        contribution.contribute(tmp_path, "it")


def test_equal_identifiers_stay_equal_and_different_ones_different():
    one, other = contribution.alias("gpu", "a"), contribution.alias("gpu", "b")
    assert one == contribution.alias("gpu", "a") != other and contribution.alias("gpu", None) is None
    assert flat(made_up.make("cifar_resnet", "fp32", seconds=[1.0]))["gpu_uuid"] != one
