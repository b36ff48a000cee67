"""The summary notebook and its page, drawn once by --report from a folder, a folder elsewhere
and a zip.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser

import made_up_records as made_up
import pandas as pd
import pytest
from conftest import ROOT
from drawn_reports import shown, write_all
from notebook_outputs import outputs_of

from mixed_precision_study.report.tables import read_tables
from mixed_precision_study.runner import cli
from mixed_precision_study.store.reading import read_records

pytestmark = pytest.mark.slow  # a process draws the whole report

CHARTS = {"ratios", "time", "memory", "step_time", "memory_breakdown", "energy"}
LINKS = ("trainings.csv", "ratios.csv", "step_time.png", "summary.html", "summary.ipynb", "x.json")
ODD = {  # name: (content, a word of why it is left out; None of what is no record)
    "truncated.json": ('{"run_id": "cut off", "status": "o', "not readable"),
    "poor.json": ('{"run_id": "poor"}', "version"),
    "broken.zip": ("PK no zip", "not readable"),
    "foreign.json": ("[1, 2, 3]", None),
    "settings.json": ('{"theme": "dark"}', None),
}


class Page(HTMLParser):
    """The elements of a page: [(tag, {attribute: value})], and its texts: {tag: text}."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.source = [], {}, text
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        tag = self.elements[-1][0] if self.elements else ""
        self.texts[tag] = self.texts.get(tag, "") + data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def hrefs_in(page):
    return [link.get("href") or "" for link in page.all("a")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a report that --report has drawn of all kinds of records; links to a file lay
    in it before.

    It is the parent of one of the places and holds records that are not asked for; "logs" is a
    folder above.
    """
    above = tmp_path_factory.mktemp("page")
    folder = above / "logs/both"
    place = folder / "everything"
    for name, seconds in {"fp32": 6.0, "tf32": 3.0, "amp_fp16": 3.0, "amp_bf16": 2.9}.items():
        seeds = [
            {"seconds": [seconds + 0.1 * seed] * 3, "parameters": {"seed": seed}}
            for seed in range(3)
        ]
        write_all(place, *(made_up.make("cifar_resnet", name, **fields) for fields in seeds))
    reason = (
        "RuntimeError: <script>alert('x')</script> & <b>bold</b> | $a$ "
        + "and so on " * 20
        + "to the end"
    )
    write_all(place, made_up.make_failed("cifar_resnet", "o2_fp16", "failed", reason))
    write_all(place, made_up.make("cifar_resnet", "o3_fp16", metric=[0.1, 0.1, 0.1]))
    write_all(
        place / "old", made_up.make("cifar_resnet", "fp32", finished_at="2025-10-01T00:00:00+00:00")
    )
    for name, (text, _) in ODD.items():
        (place / name).write_text(text)
    write_all(above / "turing", *made_up.pair_of(device=made_up.TURING, explained=False))
    (above / "turing/._record.json").write_bytes(b"\x00\xa3")  # what macOS adds
    shutil.make_archive(str(place / "second"), "zip", above / "turing")
    write_all(above / "other", made_up.make("lstm_language_model", "tf32", parameters={"units": 7}))
    write_all(folder / "unasked", made_up.make("efficientnet_regression", "fp32"))
    with zipfile.ZipFile(above / "theirs.zip", "w") as archive:
        (path,) = (above / "other").glob("*.json")
        archive.writestr(
            "x.json",
            path.read_text().replace('"seed": 0', '"seed": 1').replace(path.stem, "theirs"),
        )
    (folder / "logs").mkdir()
    (above / "precious").write_text("mine")
    for name in LINKS:
        (folder / name).symlink_to(above / "precious")
    places = map(str, (place, above / "other", above / "theirs.zip"))
    assert cli.main(["--report", *places, "--output-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def notebook(folder):
    return json.loads((folder / "summary.ipynb").read_text())


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "summary.html").read_text())


def test_places_are_read_in_place_and_what_is_left_out_is_named(folder, notebook, page):
    (old,) = (folder / "everything/old").glob("*.json")
    left_out = {
        **{name: word for name, (_, word) in ODD.items() if word},
        f"old/{old.name}": "copy of",
    }
    text = shown(notebook)
    assert "18 used, 4 left out" in text and "could not be drawn" not in text
    assert all(path in text for path in left_out) and "._record" not in text
    tables = read_tables(folder / "everything")
    reasons = dict(tables.left_out)
    assert (
        set(reasons) == {*left_out, "foreign.json", "settings.json"} and len(tables.trainings) == 16
    )
    assert [path for path, word in left_out.items() if word not in reasons[path]] == []
    rows = pd.read_csv(folder / "trainings.csv", low_memory=False)
    assert (
        len(rows) == 18
        and sum(rows.path.str.startswith("../../other/")) == sum(rows.run_id == "theirs") == 1
    )
    links = [link for link in hrefs_in(page) if link.endswith(".json")]
    assert len(links) > 5 and all((folder / link).is_file() for link in links)


def test_links_are_never_followed_and_html_is_shown_as_text(folder, notebook):
    assert (folder.parents[1] / "precious").read_text() == "mine"
    assert [name for name in LINKS if (folder / name).is_symlink()] == ["x.json"]
    assert "x.json" in dict(read_records(folder)[1])
    text = shown(notebook, "text/html")
    assert "&lt;script&gt;" in text and "&lt;b&gt;bold" in text
    assert "<script" not in text and "<b>bold" not in text


@pytest.fixture(scope="module")
def shown_as(notebook):
    """What each output of the notebook is shown as, with its metadata."""
    outputs = outputs_of(notebook, "data")
    return [output["data"] | output.get("metadata", {}) for output in outputs]


def test_charts_and_tables_are_saved_and_small(folder, shown_as, page):
    charts = list(folder.glob("*.png"))
    assert {path.stem for path in charts} == CHARTS
    alts = [output["image/png"]["alt"] for output in shown_as if "image/png" in output]
    assert len(alts) == len(CHARTS) == page.source.count('class="chart" role="img" aria-label="')
    assert all(re.search(r"\d", alt) for alt in alts)
    assert sum(path.stat().st_size for path in [*charts, folder / "summary.ipynb"]) < 1_500_000
    assert len((folder / "ratios.csv").read_text().splitlines()) == 1 + 6


def test_the_page_asks_nothing_of_the_network(page):
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "action", "poster", "data"):
            value = attributes.get(name) or ""
            assert not value.startswith(("http", "//")) or tag == "a", (tag, name, value[:80])
    assert "url(" not in page.texts["style"] and "@import" not in page.texts["style"]
    (policy,) = [
        one["content"]
        for one in page.all("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    ]
    script = page.source.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["script-src"] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'" and allowed["img-src"] == "data:"
    assert len(page.all("script")) == 1 and all(
        one["src"].startswith("data:") for one in page.all("img")
    )


@pytest.mark.skipif(not shutil.which("node"), reason="needs node to run the script of the page")
def test_tables_are_sorted_as_numbers():
    program = f"""
const {{ compared, valueOf }} = require({str(ROOT / "mixed_precision_study/report/template/tables.js")!r});
const texts = ["10.5x one process", "9", "-2%", "1,200", "-", "zebra", "alpha"];
const values = texts.map((text) => valueOf({{ cells: [{{ textContent: text }}] }}, 0));
console.log(values.sort(compared).map((value) => value.text).join("|"));
"""
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "-2%|9|10.5x one process|1200|-|alpha|zebra"
