"""README, docs and the pages of results: their length, their lines to copy, their numbers."""

import re
from pathlib import Path

import pytest
import quoted
import tables
import torch
import yaml
from conftest import ROOT

from mixed_precision_study import __version__

OUTPUTS = ROOT / "outputs"
ANSWERS = sorted((ROOT / "docs/answers").glob("*.md"))
FOLDERS = sorted(path.parent for path in OUTPUTS.rglob("trainings.csv"))
PAGES = [path for path in tables.pages(ROOT) if path.suffix == ".md"]
PHONE, CELL = 358, 27  # pixels: measured in a browser, with GitHub's style
LETTERS = dict.fromkeys("fijlrtI.,:;|()[]-/ ", 4.6) | dict.fromkeys("mwMW%~", 12.5)
LINES = ROOT / "docs/answers/which-lines-do-i-add.md"


def prose_of(text):
    """Return a page without code, comments, tags and addresses."""
    for left_out in (
        r"(?s)```.*?```",
        r"(?s)<!--.*?-->",
        r"<[^>]+>",
        r"(?m)^    .*$",
        r"\]\([^)]*\)",
    ):
        text = re.sub(left_out, "", text)
    return text


def words_of(text):
    """Return how many words a text has."""
    return len(re.findall(r"\S*\w\S*", text.replace("|", " ")))


def sentences_of(text):
    """Return the sentences of a page; headings, points of a list and cells of a table are some."""
    apart = r"\n\s*\n|\n(?=[-|#\d])|\||(?<=[.?!])[*)]*\s+|:\*\*\s+"
    return re.split(apart, prose_of(text))


def width_of(table):
    """Return the pixels that a table takes at least, because its longest words do not break."""
    rows = [line[1:-1].split("|") for line in table.splitlines() if set(line) - set("|-: ")]
    return sum(CELL + max(map(longest, column)) for column in zip(*rows, strict=True))


def longest(cell):
    """Return the pixels of a cell's longest word; a browser breaks some words into two."""
    shown = re.sub(r"<!--.*?-->|\[|\]\([^)]*\)", "", cell)
    shown = re.sub(r"<wbr>|&shy;|(?<=\w[-–])", " ", shown)
    words = [
        [LETTERS.get(one, 11 if one.isupper() else 8.7) for one in word] for word in shown.split()
    ]
    return max(map(sum, words), default=0)


def code_of(path):
    """Return the Python code of a page, of which there is one block."""
    (code,) = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    return code


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    # comments and tags count, too, but no badges, which are pictures
    shown = re.sub(r"(?s)```.*?```|\]\([^)]*\)", "", tables.BADGES.sub("", text))
    assert len(shown.split()) <= 450
    assert text.count("\n") <= 70


def test_what_we_found_is_short():
    assert words_of(prose_of((ROOT / "docs/results.md").read_text())) <= 800


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_no_wide_table_and_no_long_sentence(path):
    text = path.read_text()
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table for table in found if width_of(table) > PHONE] == []
    assert [one for one in sentences_of(text) if words_of(one) > 25] == []


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_an_answer_has_its_form_and_length(path):
    title, _, answer, *_ = path.read_text().splitlines()
    text = path.read_text().partition("\n## ")[0]
    assert title.endswith("?")
    assert answer.startswith("**") and quoted.QUOTED.search(answer)
    tables_there = re.findall(r"^\|[-|]+\|$", text, re.MULTILINE)
    assert (text.count("<picture>"), len(tables_there)) == (1, 1)
    assert re.search(r"^    python ", text, re.MULTILINE)
    assert words_of(prose_of(path.read_text())) <= 350


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_finding_has_its_form_and_no_number_by_hand(folder):
    """docs/tables.py --check recomputes the others."""
    title, finding, *_ = (folder / "README.md").read_text().split("\n\n")
    assert title.rstrip(")").split(" (")[0].endswith("?")
    assert finding.startswith("**") and quoted.QUOTED.search(finding)
    assert quoted.uncovered(finding) == []


@pytest.mark.parametrize(
    "sentence, left",
    {
        "ResNet-18 gains <!--a-->1.5<!--/--> times in fp16 on an H100.": [],
        "WideResNet-28-10 gains 1.5 times over 2,048 images.": ["1.5", "2,048"],
        "Three of <!--a-->four<!--/--> gain 5%.": ["Three", "5%"],
    }.items(),
)
def test_a_number_by_hand_is_found(sentence, left):
    assert quoted.uncovered(sentence) == left


def test_numbers_say_where_they_are_from(tmp_path):
    (tmp_path / "ratios.csv").write_text("comparison,precision,ratio\n0,fp16,1.5\n1,fp16,1.75\n")
    (tmp_path / "trainings.csv").write_text("comparison,model\n0,a\n1,b\n")
    page = "<!-- numbers\nhalf = ratios where precision == 'fp16'\n{}\n-->"
    lines = "both: ratio of half as .2f\nmodels: model of half as count"
    found = quoted.quoted(tmp_path / "README.md", page.format(lines), OUTPUTS)
    assert found == {"both": "1.50 to 1.75", "models": "two"}
    for wrong in (
        "both: ratio of other as .2f",
        "none = ratios where ratio > 9\nx: ratio of none as d",
    ):
        with pytest.raises(ValueError, match=wrong.splitlines()[-1]):
            quoted.quoted(tmp_path / "README.md", page.format(wrong), OUTPUTS)


def small_problem(device):
    """Return model, optimizer, loss function and six batches of a problem that can be learned."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 2)
    )
    model = model.to(device)
    inputs = torch.randn(32, 3, 8, 8, device=device)
    batches = [(inputs, (inputs.mean((1, 2, 3)) > 0).long())] * 30
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.nn.functional.cross_entropy, batches


def names_of(*problem):
    """Return what the lines of a page find where they run: torch, and a problem by its names."""
    given = zip(("model", "optimizer", "loss_function", "batches"), problem, strict=True)
    return {"torch": torch, **dict(given)}


def test_the_lines_of_the_readme_train(monkeypatch):
    """They run as they stand, but for the device, and without the compiler's seconds."""
    model, optimizer, loss_function, batches = small_problem("cpu")
    before = loss_function(model(batches[0][0]), batches[0][1]).item()
    monkeypatch.setattr(torch, "compile", lambda model, mode: model)
    names = names_of(model, optimizer, loss_function, batches)
    try:
        exec(code_of(ROOT / "README.md").replace('"cuda"', '"cpu"'), names)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert names["loss"].item() < 0.8 * before


@pytest.mark.gpu
@pytest.mark.parametrize("page", [ROOT / "README.md", LINES], ids=["readme", "lstm"])
def test_the_lines_train_on_a_gpu_as_a_plain_loop(page):
    model, optimizer, loss_function, batches = small_problem("cuda")
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_function(model(inputs), targets)
        loss.backward()
        optimizer.step()
    copied, optimizer, loss_function, batches = small_problem("cuda")
    names = names_of(copied, optimizer, loss_function, batches)
    try:
        exec(code_of(page), names)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert names["loss"].item() == pytest.approx(loss.item(), rel=0.05)


def test_the_version_to_cite_is_this_one():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_docs_have_five_pages():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages == {"start", "results", "why-not-faster", "your-model", "how-measured"}
    linked = {
        Path(name).stem
        for path in tables.pages(ROOT)
        for name in re.findall(r"\]\(([^)#\s]+\.md)", path.read_text())
    }
    assert pages <= linked
