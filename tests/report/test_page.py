"""The page of a report: what it asks of the network, its pictures, its contents, folds and tables."""

import base64
import hashlib
import re
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser

import made_up_records as made_up
import pandas as pd
import pytest
from conftest import ROOT
from drawn_reports import write_all

from mixed_precision_study.record import read_records
from mixed_precision_study.runner import cli

SCRIPT = ROOT / "mixed_precision_study" / "report" / "template" / "study" / "tables.js"
LINKS = ("trainings.csv", "ratios.csv", "step_time.png", "summary.html", "summary.ipynb", "logs/.private", "x.json")


class Page(HTMLParser):
    """The elements of a page: [(tag, {attribute: value})], and the text of its style."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.inside = ""
        self.texts = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, data):
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(page, folder) of a report of three precisions, drawn by --report into a folder that holds links to a file."""
    folder = tmp_path_factory.mktemp("page") / "records"
    (folder / "logs").mkdir(parents=True)
    (folder.parent / "precious").write_text("mine")
    for name in LINKS:
        (folder / name).symlink_to(folder.parent / "precious")
    seconds = {"fp32": 4.0, "tf32": 2.0, "amp_fp16": 10.0}
    write_all(folder, *(made_up.make("cifar_resnet", name, seconds=[one] * 3) for name, one in seconds.items()))
    assert cli.main(["--report", str(folder)]) == 0
    return Page((folder / "summary.html").read_text(encoding="utf-8")), folder


def test_links_in_the_folder_are_replaced_or_left_out_and_never_followed(page):
    assert (page[1].parent / "precious").read_text() == "mine"
    assert [name for name in LINKS if (page[1] / name).is_symlink()] == ["x.json"]
    assert [name for name, _ in read_records(page[1])[1]] == ["x.json"]


def test_nothing_is_asked_of_the_network(page):
    for tag, attributes in page[0].elements:
        for name in ("src", "srcset", "href", "action", "poster", "data"):
            value = attributes.get(name) or ""
            assert not value.startswith(("http", "//")) or tag == "a", (tag, name, value[:80])
    assert "url(" not in page[0].texts["style"] and "@import" not in page[0].texts["style"]
    assert "import(" not in page[0].texts["script"] and "fetch(" not in page[0].texts["script"]


def test_the_page_allows_its_own_script_and_pictures_alone(page):
    (policy,) = [one["content"] for one in page[0].all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    script = (page[1] / "summary.html").read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["script-src"] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'" and allowed["img-src"] == "data:"
    assert len(page[0].all("script")) == 1 and all(one["src"].startswith("data:") for one in page[0].all("img"))


def test_every_picture_says_what_it_shows(page):
    pictures = [one for one in page[0].all("svg") if one.get("role") == "img"]
    assert len(pictures) >= 3
    for picture in pictures:
        assert len(picture["aria-label"]) > 40 and re.search(r"\d", picture["aria-label"])


def test_contents_lead_to_every_section_and_those_of_method_are_folded(page):
    links = [link["href"][1:] for link in page[0].all("a") if (link.get("href") or "").startswith("#")]
    places = {attributes["id"] for tag, attributes in page[0].elements if "id" in attributes}
    assert len(links) >= 5 and set(links) <= places
    folded = {one["id"] for one in page[0].all("details") if one.get("class") == "folded"}
    assert {"method-hardware-and-records", "how-to-read-it"} <= folded
    assert "all-numbers" not in folded


def test_the_page_has_no_code_and_is_named_after_its_finding(page):
    assert page[0].texts["title"].strip() == page[0].texts["h1"].strip()
    assert "import os" not in str(page[0].texts) and "records_dir" not in str(page[0].texts.get("pre", ""))
    heads = page[0].all("th")
    assert heads and all(head.get("scope") == "col" for head in heads if head)


def test_a_report_of_several_places_reads_them_where_they_lie(page, tmp_path, monkeypatch, capsys):
    """The output is the parent of one of them and holds other records; "logs" is the name of a folder above."""
    output = tmp_path / "logs" / "both"
    other = output / "other"
    write_all(other, made_up.make("lstm_language_model", "fp32"))
    write_all(output / "unasked", made_up.make("efficientnet_regression", "fp32"))
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        (path,) = other.glob("*.json")
        archive.writestr("x.json", path.read_text().replace('"seed": 0', '"seed": 1').replace(path.stem, "theirs"))
    before = sorted(output.rglob("*.json"))
    places = map(str, (page[1], other, tmp_path / "theirs.zip"))
    assert cli.main(["--report", *places, "--output-dir", str(output)]) == 0
    both = Page((output / "summary.html").read_text(encoding="utf-8"))
    links = [link["href"] for link in both.all("a") if (link.get("href") or "").endswith(".json")]
    assert len(links) == 4 and all((output / link).is_file() for link in links)
    rows = pd.read_csv(output / "trainings.csv")
    assert sorted(rows["notebook"]) == ["cifar_resnet"] * 3 + ["lstm_language_model"] * 2
    assert sorted(output.rglob("*.json")) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "there is no such folder"),
        (["empty"], "holds no records"),
        (["good", "good"], "needs --output-dir"),
    ],
)
def test_a_wrong_folder_is_one_sentence(tmp_path, capsys, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_all(tmp_path / "good", made_up.make("cifar_resnet", "fp32"))
    assert cli.main(["--report", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and says in errors[0]


@pytest.mark.skipif(not shutil.which("node"), reason="needs node to run the script of the page")
def test_tables_are_sorted_as_numbers():
    program = f"""
const {{ compared, valueOf }} = require({str(SCRIPT)!r});
const texts = ["10.5x one process", "9", "-2%", "1,200", "-", "zebra", "alpha"];
const values = texts.map((text) => valueOf({{ cells: [{{ textContent: text }}] }}, 0));
console.log(values.sort(compared).map((value) => value.text).join("|"));
"""
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "-2%|9|10.5x one process|1200|-|alpha|zebra"
