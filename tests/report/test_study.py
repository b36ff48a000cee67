"""What a study says of itself, in study.yaml, in its records and in studies.yaml."""

import json
import zipfile

import pytest
from conftest import ROOT

from mixed_precision_study.parameters import UserError
from mixed_precision_study.record import comparison_key, read_records
from mixed_precision_study.report.study import Study, study_of

SAID = {"name": "mine", "description": "what it is about", "show": {"over": ["units", "model"], "quality": True}}
FOLDERS = sorted(path.parent for path in (ROOT / "outputs").rglob("study.yaml"))


def occurring(steps, records):
    """Return the labels of the steps that one model ran, climbed as the head of studies.yaml describes."""
    rungs = [{**dict(comparison_key(run)), "precision": json.dumps(run["precision"])} for run in records]
    here, *_ = [rung for rung in rungs if json.loads(rung["precision"]) == steps[0]["precision"]]
    labels = [steps[0]["label"]]
    for step in steps[1:]:
        for name, alternatives in step.items():
            several = alternatives if isinstance(alternatives, list) else [alternatives]
            found = [{**here, name: json.dumps(value)} for value in several if name != "label"]
            if there := [rung for rung in found if rung in rungs]:
                here = there[0]
                labels.append(step["label"])
    return labels


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_a_committed_folder_shows_is_in_its_records(folder):
    study = study_of(folder, [])
    records = read_records(folder)[0] if {"over", "steps"} & set(study.show) else []
    assert study.name
    assert study.description
    over = study.show.get("over", [])
    for setting in [over] if isinstance(over, str) else over:
        assert len({record.get(setting) for record in records}) >= 3, setting
    if steps := study.show.get("steps"):
        models = {record["model"] for record in records}
        climbed = [occurring(steps, [record for record in records if record["model"] == model]) for model in models]
        assert max(climbed, key=len) == [step["label"] for step in steps]
        assert all(labels[-1] == steps[-1]["label"] for labels in climbed)


def test_all_committed_records_say_what_they_show():
    for path in (ROOT / "outputs").rglob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            assert path.parent in FOLDERS or "study.yaml" in archive.namelist()


@pytest.mark.parametrize(
    ("studies", "study"),
    [
        ([SAID, SAID, {"name": "other"}, None], Study(**SAID)),
        (
            [None, {**SAID, "show": {"over": "units", "newer": 1}}],
            Study("mine", SAID["description"], {"over": "units"}),
        ),
        ([SAID, {"name": "other"}], Study("", "", {})),
        ([{"name": "<script>"}], Study("", "", {})),
        ([{"name": "a", "description": "[b](javascript:c)"}], Study("", "", {})),
        ([{"name": ["a"], "show": "over"}], Study("", "", {})),
        ([{"name": "a", "show": {"steps": [{"label": "$x$"}, 5], "over": {"a": 1}}}], Study("a", "", {})),
        ([], Study("", "", {})),
    ],
)
def test_most_records_that_know_their_study_decide_and_odd_ones_do_no_harm(tmp_path, studies, study):
    assert study_of(tmp_path, [{"study": said} for said in studies] + [{}]) == study


def test_study_yaml_goes_before_the_records(tmp_path):
    (tmp_path / "study.yaml").write_text("name: own\nshow: {steps: [{label: a, precision: [fp32, tf32]}]}")
    study = study_of(tmp_path, [{"study": SAID}])
    assert study == Study("own", "", {"steps": [{"label": "a", "precision": ["fp32", "tf32"]}]})


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nshow: {ovr: units}",
        "show: {steps: [{precision: fp32}]}",
        "show: {quality: 1}",
        "name: <b>",
        "description: 5",
        "show: units",
        "[]",
        "a: &a [*a",
        "show: {over: &a [*a]}",
    ],
)
def test_a_wrong_study_yaml_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        study_of(tmp_path, [])
    assert "study.yaml" in str(error.value)
    assert "\n" not in str(error.value)
