"""Tables, files and words of a section, and the page of its outputs."""

import json

import mistune

from mixed_precision_study.report.files import write_page
from mixed_precision_study.report.section import File, save
from mixed_precision_study.report.words import plain, short


def test_file_that_cannot_be_written_costs_a_sentence(tmp_path):
    (tmp_path / "summary.csv").mkdir()
    assert "summary.csv" in save(File("summary.csv", b""), tmp_path).text


def test_texts_are_plain_in_markdown_and_numbers_are_short():
    assert [short(number) for number in (0.41234, 6.1, 12, 19230.77)] == [
        "0.412",
        "6.10",
        "12.0",
        "19,231",
    ]
    assert plain("<b> a_b*c | $x$ `y`") == r"&lt;b&gt; a\_b\*c \| \$x\$ \`y\`"
    # of which "url" would make links
    for address in ("https://example.org/x", "www.example.org", "a@example.org"):
        page = mistune.create_markdown(plugins=["url"])(f"see {plain(address)}")
        assert "href" not in page and address in page


def test_a_page_shows_all_outputs_and_escapes_what_is_no_html(tmp_path):
    """Texts stand in a notebook whole or as a list of lines; what the cell of the report prints
    is not shown.
    """
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[31m<b>\n", "red\x1b[0m"]},
        {"output_type": "error", "traceback": ["<i>", "\x1b[0;31mError"]},
    ]
    data = {
        "image/png": "AA\n==\n",
        "text/html": ["<em>as", " it is</em>"],
        "text/markdown": "**bold** <script>",
        "text/plain": "a < b",
    }
    outputs += [
        {"output_type": "display_data", "data": {kind: data[kind]}, "metadata": {}} for kind in data
    ]
    cells = [{"cell_type": "code", "id": "report", "outputs": outputs[:1]}]
    cells.append({"cell_type": "code", "id": "mine", "outputs": outputs})
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}))
    write_page(tmp_path / "x.ipynb")
    page = (tmp_path / "x.html").read_text()
    assert page.count('<pre class="said">&lt;b&gt;\nred</pre>') == 1 and "\x1b" not in page
    texts = (
        "&lt;i&gt;\nError",
        "base64,AA==",
        "<em>as it is</em>",
        "<strong>bold</strong> &lt;script&gt;",
        "a &lt; b",
    )
    assert [page.count(text) for text in texts] == [1] * 5
