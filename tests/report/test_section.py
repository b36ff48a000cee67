"""Tables, files and words of a section."""

import pytest
from nbconvert.filters import markdown2html

from mixed_precision_study.report.section import Cards, File, Heading, Section, Table, save
from mixed_precision_study.report.words import plain, short


def test_file_that_cannot_be_written_costs_a_sentence(tmp_path):
    (tmp_path / "summary.csv").mkdir()
    assert "summary.csv" in save(File("summary.csv", b""), tmp_path).text


def test_whole_numbers_of_a_table_stay_whole_beside_a_gap():
    page = Table([{"batch size": 128, "GiB": 0.5}, {"batch size": None, "GiB": 1.0}]).html()
    assert ">128<" in page and "128.0" not in page and ">0.5<" in page and ">-<" in page


def test_long_tables_of_runs_are_folded():
    for number, folded in ((24, False), (25, True)):
        page = Table([{"a": 1}] * number, "Energy of every run").html()
        assert ("<details><summary>Energy of every run: 25 rows</summary>" in page) is folded


@pytest.mark.parametrize(
    ("text", "escaped"), [("<b>", "&lt;b&gt;"), ("a_b*c", r"a\_b\*c"), ("$x$ | `y`", r"\$x\$ \| \`y\`")]
)
def test_text_of_a_record_is_plain_in_markdown(text, escaped):
    assert plain(text) == escaped


@pytest.mark.parametrize("address", ["https://example.org/x", "http://a.b", "www.example.org", "a@example.org"])
def test_an_address_in_a_record_is_no_link(address):
    page = markdown2html(f"see {plain(address)}")
    assert "href" not in page and address in page


@pytest.mark.parametrize(("number", "text"), [(0.41234, "0.412"), (6.1, "6.10"), (12, "12.0"), (19230.77, "19,231")])
def test_numbers_have_three_significant_digits(number, text):
    assert short(number) == text


def test_cards_are_a_table_of_three_columns_that_needs_no_style():
    card = {"name": "<LSTM>", "task": "WikiText-2", "number": "1.3×", "against": "as fast", "lines": ["a", "b & c"]}
    data = Cards([card] * 4)._repr_mimebundle_()
    assert data["text/html"].count("<tr>") == 2 and data["text/html"].count("<td>") == 4
    assert "&lt;LSTM&gt;" in data["text/html"] and "b &amp; c" in data["text/html"]
    assert data["text/plain"].splitlines() == ["<LSTM>, WikiText-2: 1.3× as fast; a; b & c"] * 4


def test_the_bar_links_to_sections_by_the_word_before_the_colon_and_not_to_folded_ones():
    sections = (Section("Why: it waits"), Section("Why: it waits", folded=True), Section("Memory", link="GiB"))
    links = []
    for section in sections:
        section.say("text")
        heading = next(iter(section))
        assert isinstance(heading, Heading)
        links.append(heading._repr_mimebundle_()[1]["section"]["link"])
    assert links == ["Why", "", "GiB"]
