"""What a study says of itself, in study.yaml, in its records and in studies.yaml."""

import time

import made_up_records as made_up
import pytest
from conftest import refuses
from drawn_reports import write_all

from mixed_precision_study.report.files import Study, plain_yaml, study_of
from mixed_precision_study.report.tables import read_tables

SAID = {
    "name": "mine",
    "description": "what it is about",
    "show": {"over": ["units", "model"], "quality": True},
}


@pytest.mark.parametrize(
    "studies, study",
    [
        ([SAID, SAID, {"name": "other"}, None], Study(**SAID)),
        (
            [None, {"name": "a", "show": {"over": "units", "newer": 1}}],
            Study(name="a", show={"over": "units"}),
        ),
        ([SAID, {"name": "other"}], Study()),
        ([{"name": "<script>"}], Study()),
        ([{"name": "a", "description": "[b](javascript:c)"}], Study()),
        (
            [{"name": "a", "show": {"steps": [{"label": "$x$"}, 5], "over": {"a": 1}}}],
            Study(name="a"),
        ),
        ([], Study()),
    ],
)
def test_most_records_decide_on_the_study_and_odd_ones_do_not(tmp_path, studies, study):
    assert study_of(tmp_path, [{"study": said} for said in studies] + [{}]) == study


def test_study_yaml_goes_before_the_records(tmp_path):
    (tmp_path / "study.yaml").write_text(
        "name: own\nshow: {steps: [{label: a, precision: [fp32, tf32]}]}"
    )
    study = study_of(tmp_path, [{"study": SAID}])
    assert study == Study(
        name="own", show={"steps": [{"label": "a", "precision": ["fp32", "tf32"]}]}
    )


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nshow: {ovr: units}",
        "show: {steps: [{precision: fp32}]}",
        "show: {explained: [updates]}",
        "name: <b>",
        "[]",
        "a: &a [*a",
    ],
)
def test_a_wrong_study_yaml_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text)
    with refuses(r"study\.yaml"):
        study_of(tmp_path, [])


def laughs(first, values):
    """Return YAML of a few lines that, with its aliases written out, has 9 to the tenth values."""
    lines = [f"a0: &a0 {first}"]
    for number in range(9):
        lines.append(f"a{number + 1}: &a{number + 1} " + values % ", ".join([f"*a{number}"] * 9))
    return "\n".join(lines)


ENDLESS = {
    "aliases": laughs("[x, x, x, x, x, x, x, x, x]", "[%s]"),
    "merged": laughs("{k: 1}", "{<<: [%s]}"),
    "long text": "a: &a " + "x" * 9_999 + "\nb: [" + "*a, " * 9_999 + "]",
    "circle": "a: &a [*a]",
    "itself": "&a {a: *a}",
    "deep": "[" * 9_999,
    "large": "a: " + "[1, 2],\n" * 90_000,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_yaml_that_is_large_or_repeats_itself_is_soon_refused(text):
    began = time.process_time()
    with refuses() as stopped:
        plain_yaml(text, "theirs.yaml")
    said = str(stopped.value)
    assert said.startswith("theirs.yaml") and len(said) < 400
    assert time.process_time() - began < 5


def test_a_report_elsewhere_is_of_the_study_of_its_records(tmp_path):
    for name in ("one", "other"):
        folder = tmp_path / name
        write_all(folder, made_up.make("cifar_resnet", "fp32", parameters={"seed": len(name)}))
        (folder / "study.yaml").write_text(f"name: {name}\n")
    assert read_tables(tmp_path / "one", 0.0, tmp_path / "page").name == "one"
    both = [str(tmp_path / name) for name in ("one", "other")]
    assert read_tables(both, 0.0, tmp_path / "page").name == ""
