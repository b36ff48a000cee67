"""The records in outputs/: complete, measured on a GPU on real data, small, and without folders
of a machine.
"""

import json
import re
import zipfile

import pytest
from conftest import ROOT, results
from equal_runs import equal_runs, false_positive_rate, table

from mixed_precision_study.runner.plan import parameters_of
from mixed_precision_study.store.reading import PACK, read_records
from mixed_precision_study.store.record import (
    ADDED,
    ADDED_TO,
    OF_ONE_RUN,
    is_explanation,
)

pytestmark = pytest.mark.release

OUTPUTS = ROOT / "outputs"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine


def test_there_are_few_files_and_each_folder_has_a_report():
    files = [path for path in OUTPUTS.rglob("*") if path.is_file()]
    assert len(files) <= 200 and sum(path.stat().st_size for path in files) < 20_000_000
    folders = [path.parent for path in OUTPUTS.glob("*/*/README.md")]
    assert 10 < len(folders) <= 20
    needed = {
        "records.zip",
        "notes.md",
        "study.yaml",
        "summary.ipynb",
        "summary.html",
        "trainings.csv",
        "picture.svg",
        "picture-narrow.svg",
    }
    assert [
        folder for folder in folders if not needed <= {path.name for path in folder.iterdir()}
    ] == []


def texts():
    """Yield (name, text) of every committed file of results, also in zips, but for pictures."""
    for path in OUTPUTS.rglob("*.*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                inside = {name: archive.read(name) for name in archive.namelist()}
            pack = json.loads(inside.pop(PACK, b"{}"))
            inside |= {name: json.dumps(record).encode() for name, record in pack.items()}
            yield from ((f"{path}/{name}", text) for name, text in inside.items())
        else:
            yield str(path), path.read_bytes()


def test_no_file_names_a_folder_of_a_machine():
    found = {
        name: re.search(FOREIGN, text.decode())
        for name, text in texts()
        if not name.endswith((".png", ".svg"))
    }
    assert len(found) > 1000
    assert {name: match[0] for name, match in found.items() if match} == {}


def test_every_record_that_is_kept_here_can_be_used():
    found, left_out = read_records(OUTPUTS)
    assert len(found) > 1000
    assert left_out == []


def test_no_parameter_of_today_parts_a_record_from_a_new_run():
    """A new machine joins those before it, so a parameter that they lack is one they trained by."""
    paths = {path.stem: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for record in read_records(OUTPUTS / "more")[0]:
        known = {*parameters_of(paths[record["notebook"]])[0].model_fields, *OF_ONE_RUN}
        usual = {*ADDED, *ADDED_TO.get(record["notebook"], {})}
        assert known <= {*record["settings"], *OF_ONE_RUN, *usual}


WHOLE = (
    "first-h200 ladder-h200 fastest-h200 fastest-h100 modern-h100 quality-h100 aa-h100 "
    "scaling-h200 order-h200"
)
WHOLE += (
    " inference-h200 gpt-h200 quick-eager-h100 quick-earlier-h100 reference-h100 reference-h200 quick-eager-h200 "
    "graph-quality-h200"
)
WHOLE += " neighbour-h200 executed-h100 hosts-h200 reference-earlier-h100"


@pytest.mark.parametrize("name", WHOLE.split())
def test_every_run_ended_well_on_real_data(name):
    records, left_out = read_records(results(name))
    assert len(records) >= 10 and left_out == []
    for record in records:
        assert (record["status"], record["synthetic"], record["gpu_shared"]) == ("ok", False, False)
        assert name.rpartition("-")[2].upper() in record["gpu_name"]
        epochs = record["settings"]["epochs"] * record["settings"].get("repeats", 1)
        assert is_explanation(record) or len(record["epoch_seconds"]) == epochs


def test_equal_runs_are_seldom_told_apart(monkeypatch):
    monkeypatch.setattr("equal_runs.MOST_SPLITS", 400)
    groups = equal_runs(records := read_records(results("aa-h100"))[0])
    assert [len(runs) for runs in groups] == [24, 24, 24]
    for runs in groups:
        found = false_positive_rate(runs)
        assert found["splits"] == 400 and found["rate"] <= 0.05 + found["error"]
    told = table(records).splitlines()[2:]
    assert ["cannot err" in line for line in told] == [False, True, False]
    limits = [float(line.partition("at most ")[2].partition("%")[0]) for line in told[::2]]
    assert min(limits) > 5 and max(limits) < 10
