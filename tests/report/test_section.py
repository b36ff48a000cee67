"""Files and words of a section."""

import mistune

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
