"""The summary notebook, executed on made-up records: it alone among the records, as on Colab."""

import json
import re

import made_up_records as made_up
import PIL.Image
import pytest
from conftest import read_notebook
from drawn_reports import execute, outputs, shown

from mixed_precision_study.record import DiagnosticFields, write_record
from mixed_precision_study.report.load import load
from mixed_precision_study.report.sections import sections_of
from mixed_precision_study.report.style import CPU_WARNING, MEMORY_STYLES

ALWAYS = ("speedup", "time_and_memory")
EXPLAINED = ("memory_breakdown", "step_time", "energy", "inference_latency", "inference_throughput")
CHARTS = {*ALWAYS, *EXPLAINED, "last_metrics", "quality", "several_gpus", "loss_scale"}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """(folder, what must be left out, process, executed notebook) of the records with every status."""
    folder = tmp_path_factory.mktemp("everything")
    left_out = made_up.write_everything(folder)
    return folder, left_out, *execute(folder)[:2]


def test_counts_what_is_found_used_and_left_out(executed):
    _, left_out, process, notebook = executed
    assert process.returncode == 0, process.stderr
    assert "47 records found below .: 34 used, 13 left out; beside them 2 JSON files" in shown(notebook)
    tables = [output["data"] for output in outputs(notebook) if "text/html" in output.get("data", {})]
    table = next("".join(data["text/plain"]) for data in tables if "foreign.json" in "".join(data["text/plain"]))
    *lines, others = table.splitlines()[1:]
    lines = {line.split()[0]: line for line in lines}
    assert set(lines) == set(left_out)
    assert [path for path, word in left_out.items() if word not in lines[path]] == []
    assert "foreign.json" in others and "settings.json" in others and "__MACOSX" not in table


def test_environment_marks_what_differs(executed):
    text = shown(executed[3])
    assert "DIFFERS: 570.9 | 580.1" in text
    assert "ieee / ieee / ieee, autocast float16" in text and "tf32 / tf32 / tf32, autocast off" in text
    (said,) = re.findall(r"\*\*RTX 2080 Ti\*\*: mind .*", shown(executed[3], "text/markdown"))
    assert said.endswith(": driver.")


def test_html_in_a_record_is_shown_as_text(executed):
    page = shown(executed[3], "text/html")
    assert "&lt;script&gt;" in page and "&lt;b&gt;bold" in page
    assert "<script" not in page and "<b>" not in page


def test_charts_are_saved_small_and_beside_the_records(executed):
    folder, _, _, notebook = executed
    for name in CHARTS:
        content = (folder / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG") and 3_000 < len(content) < 200_000
    assert {path.stem for path in folder.glob("*.png")} == set(CHARTS)
    images = [output["metadata"]["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(images) == len(CHARTS) and all(re.search(r"\d", image["alt"]) for image in images)
    assert (folder / "summary.ipynb").stat().st_size < 1_200_000


def test_charts_keep_the_colours_of_their_parts(executed):
    image = PIL.Image.open(executed[0] / "memory_breakdown.png").convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert {bytes.fromhex(colour[1:]) for colour, _ in MEMORY_STYLES.values()} <= set(map(bytes, colours))


def test_the_table_is_saved_and_the_sections_follow_each_other(executed):
    folder, _, _, notebook = executed
    head, *rows = (folder / "summary.csv").read_text(encoding="utf-8").splitlines()
    assert head.startswith("notebook,title,device,data,model,batch_size,precision,baseline,verdict,speed_up,")
    assert len(rows) > 13
    headings = re.findall("^## (.+)$", shown(notebook, "text/markdown"), re.MULTILINE)
    drawn = [section.title for section in sections_of(load(folder)) if section.parts and section.title]
    assert headings == drawn and len(headings) > 10


@pytest.fixture(scope="module")
def report_of_the_cpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    made_up.write_cpu(folder)
    return execute(folder)


def test_a_report_of_the_cpu_says_so(report_of_the_cpu):
    process, notebook, _ = report_of_the_cpu
    assert process.returncode == 0, process.stderr
    text = shown(notebook) + shown(notebook, "text/markdown")
    assert CPU_WARNING in text and "measures nothing" in text
    judged = (r"\b(faster|slower)( in)? \d", r"the same within 5% \d", r"takes \*\*", "2.50x as fast")
    assert [word for word in (*judged, "between kernel launches") if re.search(word, text)] == []


@pytest.fixture(scope="module")
def report_of_nothing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nothing")
    (folder / "foreign.json").write_text('{"theme": "dark"}', encoding="utf-8")
    return execute(folder)


def test_nothing_to_read_ends_in_one_sentence(report_of_nothing):
    process, notebook, _ = report_of_nothing
    assert process.returncode != 0
    (error,) = [output for output in outputs(notebook) if output["output_type"] == "error"]
    assert error["ename"] == "UserError" and len(error["traceback"]) == 1
    assert "records_dir" in error["traceback"][0]


@pytest.fixture(scope="module")
def report_of_before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    for precision in ("fp32", "amp_fp16"):
        path = write_record(made_up.make("cifar_resnet", precision, explained=False), folder)
        record = json.loads(path.read_text(encoding="utf-8"))
        new = {*DiagnosticFields.__dataclass_fields__, "block_seconds", "data_wait_fraction"}
        path.write_text(json.dumps({name: value for name, value in record.items() if name not in new}))
    return execute(folder)


def test_records_of_before_are_still_read(report_of_before):
    process, notebook, folder = report_of_before
    assert process.returncode == 0, process.stderr
    text = shown(notebook, "text/markdown")
    assert "was not measured in any run" not in text
    assert re.search("Not in this folder: .*energy, inference", text)
    assert {path.stem for path in folder.glob("*.png")} == {*ALWAYS, "last_metrics"}
    assert "what limits it is not known" in text


def test_one_cell_holds_the_parameters():
    cells = [
        cell["id"] for cell in read_notebook("summary")["cells"] if "parameters" in cell["metadata"].get("tags", [])
    ]
    assert cells == ["parameters"]
