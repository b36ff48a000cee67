"""Odd records: each field with odd values, in the judgement, in the report and beside sound
records.
"""

import json
import zipfile

import pytest
from conftest import results
from drawn_reports import failures_in
from nested import changed, flaw, names_in

from mixed_precision_study.report.tables import read_tables

with zipfile.ZipFile(results("first-h200")) as archive:
    REFERENCE = {name: archive.read(name) for name in archive.namelist() if name.endswith(".json")}
CIFAR = [json.loads(text) for name, text in REFERENCE.items() if name.startswith("cifar")]
ODD = {  # name: a JSON text that some field does not expect
    "empty list": "[]",
    "markup": '"</td><b>$x^{\\\\"',
    "endless text": json.dumps("x" * 10_000),
    "half a character": '"\\ud800"',
    "zero": "0",
    "large number": "1e300",
    "small number": "1e-300",
    "infinity": "1e309",
    "huge whole number": str(10**400),
    "not a number": "NaN",
    "null": "null",
    "nested list": "[[[[[[[[[[1]]]]]]]]]]",
    "list of numbers": "[1]",
    "pairs": '[["x", 1], ["x", 0], ["y", 1e300]]',
    "pairs of numbers": "[[0, 1], [-1, null], [1, 1e300]]",
    "four numbers": "[[0, 0, null, null], [1, 1, 1e300, -1]]",
    "probes": (
        '[[0, "ok", 1, 1], [1, "x", null, null], [2, "oom", 1e300, 1e-300], [2, "ok", 1, null]]'
    ),
}
OFTEN = ("markup", "zero", "large number")  # the others take minutes
DECIDING = {
    "run_id",
    "notebook",
    "precision",
    "status",
    "device_type",
    "dataset_used",
    "epoch_seconds",
    "synthetic",
}


def notebook_of(folder, which):
    """Copy the reference runs of one notebook into a folder and return the path of the one that
    is spoilt.
    """
    for name, text in REFERENCE.items():
        if name.startswith(which) and "tf32" not in name:
            (folder / name).write_bytes(text)
    (target,) = folder.glob("*amp_fp16*.json")
    return target


def test_what_cannot_be_used_is_named_and_costs_no_other_record(tmp_path):
    """Each field of a real record has a third of the odd values, in turn; of those refused one
    of each is read.
    """
    notebook_of(tmp_path, "cifar").unlink()
    (good,) = [one for one in CIFAR if one["run"]["precision"] == "amp_fp16"]
    odds, refused = [json.loads(text) for text in ODD.values()], {}
    for place, field in enumerate(names_in(good)):
        for odd in odds[place % 3 :: 3]:
            if reason := flaw(changed(good, **{field: odd})):
                refused.setdefault(field, []).append(odd)
                assert field in reason.replace("schema v", "schema_v"), (field, odd)
    for field, (odd, *_) in refused.items():
        (tmp_path / f"{field}.json").write_text(json.dumps(changed(good, **{field: odd})))
    tables = read_tables(tmp_path)
    assert sum(map(len, refused.values())) > 400 and len(refused) > 100
    assert len(tables.trainings) == 2 and set(dict(tables.left_out)) == {
        f"{field}.json" for field in refused
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in OFTEN)) for name in ODD],
)
def test_what_the_report_accepts_it_can_draw(tmp_path, name):
    """The odd value stands in all fields at once that accept it, but for those that decide
    whether a run is shown.
    """
    path = notebook_of(tmp_path, "lstm")
    record = json.loads(path.read_text())
    odd = json.loads(ODD[name])
    names = [name for name in names_in(record) if name not in DECIDING]
    fields = [name for name in names if not flaw(changed(record, **{name: odd}))]
    if not fields:
        pytest.skip("no field accepts it")
    path.write_text(json.dumps(changed(record, **dict.fromkeys(fields, odd))))
    tables = read_tables(tmp_path)
    assert len(tables.trainings) == 3 and failures_in(tables) == []
