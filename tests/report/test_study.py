"""What a study says of itself, in study.yaml, in its records and in studies.yaml."""

import pytest

from mixed_precision_study.parameters import UserError
from mixed_precision_study.report.study import Study, study_of

SAID = {"name": "mine", "description": "what it is about", "show": {"over": ["units", "model"], "quality": True}}


@pytest.mark.parametrize(
    ("studies", "study"),
    [
        ([SAID, SAID, {"name": "other"}, None], Study(**SAID)),
        ([None, {"name": "a", "show": {"over": "units", "newer": 1}}], Study("a", "", {"over": "units"})),
        ([SAID, {"name": "other"}], Study("", "", {})),
        ([{"name": "<script>"}], Study("", "", {})),
        ([{"name": "a", "description": "[b](javascript:c)"}], Study("", "", {})),
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
    "text", ["name: a\nshow: {ovr: units}", "show: {steps: [{precision: fp32}]}", "name: <b>", "[]", "a: &a [*a"]
)
def test_a_wrong_study_yaml_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        study_of(tmp_path, [])
    assert "study.yaml" in str(error.value)
    assert "\n" not in str(error.value)
