"""The summary notebook, executed on made-up records: it alone among the records, as on Colab."""

import json
import re

import made_up_records as made_up
import PIL.Image
import pytest
from conftest import read_notebook
from drawn_reports import execute, failures_in, outputs, parts_of, shown

from mixed_precision_study.errors import UserError
from mixed_precision_study.record import DiagnosticFields, write_record
from mixed_precision_study.report import memory
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.sections import sections_of
from mixed_precision_study.report.tables import read_tables

CHARTS = {"time_and_memory", "step_time", "memory_breakdown", "energy", "ways"}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """(folder, what must be left out, process, executed notebook) of the records with every status."""
    folder = tmp_path_factory.mktemp("everything")
    left_out = made_up.write_everything(folder)
    return folder, left_out, *execute(folder)[:2]


def test_what_is_found_used_and_left_out_is_named(executed):
    folder, left_out, process, notebook = executed
    assert process.returncode == 0, process.stderr
    text = shown(notebook)
    assert "34 used, 13 left out" in text and "could not be drawn" not in text
    tables = read_tables(folder)
    reasons = dict(tables.left_out)
    assert set(reasons) == {*left_out, "foreign.json", "settings.json"} and len(tables.trainings) == 34
    assert [path for path, word in left_out.items() if word not in reasons[path]] == []
    assert all(path in text for path in left_out) and "__MACOSX" not in text


def test_html_in_a_record_is_shown_as_text(executed):
    page = shown(executed[3], "text/html")
    assert "&lt;script&gt;" in page and "&lt;b&gt;bold" in page
    assert "<script" not in page and "<b>bold" not in page


def test_charts_and_tables_are_saved_small_and_beside_the_records(executed):
    folder, _, _, notebook = executed
    assert {path.stem for path in folder.glob("*.png")} == CHARTS
    for name in CHARTS:
        content = (folder / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG") and 1_000 < len(content) < 200_000
    images = [output["metadata"]["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(images) == len(CHARTS) and all(re.search(r"\d", image["alt"]) for image in images)
    assert (folder / "summary.ipynb").stat().st_size < 1_200_000
    assert len((folder / "trainings.csv").read_text(encoding="utf-8").splitlines()) == 1 + 34
    assert len((folder / "ratios.csv").read_text(encoding="utf-8").splitlines()) == 1 + 13


def test_charts_keep_the_colours_of_their_parts(executed):
    image = PIL.Image.open(executed[0] / "memory_breakdown.png").convert("RGB")
    colours = {bytes(colour) for _, colour in image.getcolors(1 << 24)}
    assert {bytes.fromhex(colour[1:]) for colour in memory.COLOURS if len(colour) == 7} <= colours


def test_the_title_comes_first_and_the_sections_follow_each_other(executed):
    folder, _, _, notebook = executed
    first = next(output for output in outputs(notebook) if "text/html" in output.get("data", {}))
    assert "<h1>" in "".join(first["data"]["text/html"])
    drawn = [section.title for section in sections_of(read_tables(folder)) if section.parts and section.title]
    headings = re.findall("^## (.+)$", shown(notebook, "text/markdown"), re.MULTILINE)
    assert len(headings) == len(drawn) > 5


def test_nothing_to_read_ends_in_one_sentence(tmp_path):
    (tmp_path / "foreign.json").write_text('{"theme": "dark"}', encoding="utf-8")
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(UserError, match="records_dir") as caught:
            read_tables(folder)
        assert "\n" not in str(caught.value) and len(caught.value._render_traceback_()) == 1


def test_records_of_before_are_still_read(tmp_path):
    for precision in ("fp32", "amp_fp16"):
        path = write_record(made_up.make("cifar_resnet", precision, explained=False), tmp_path)
        record = json.loads(path.read_text(encoding="utf-8"))
        new = {*DiagnosticFields.__dataclass_fields__, "block_seconds", "data_wait_fraction"}
        path.write_text(json.dumps({name: value for name, value in record.items() if name not in new}))
    tables = read_tables(tmp_path)
    assert (len(tables.trainings), tables.left_out, failures_in(tables)) == (2, [], [])
    drawn = {part.name for section in sections_of(tables) for part in parts_of(section, Chart)}
    assert drawn == {"time_and_memory"} and tables.ratios.ratio.tolist() == [1.0]


def test_one_cell_holds_the_parameters():
    cells = read_notebook("summary")["cells"]
    assert [one["id"] for one in cells if "parameters" in one["metadata"].get("tags", [])] == ["parameters"]
