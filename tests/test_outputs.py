"""docs/outputs.py: the committed reports are drawn anew, their zips only where needed, and the
pages of a site link to what it holds.
"""

from html.parser import HTMLParser

import nbformat
import pytest

import outputs

REPORT = """<h1>One report</h1><script>a = '<a href="../../lost.md">x</a>'</script>
<a href="#numbers">numbers</a> <a href="ratios.csv">ratios</a> <a href="../../docs/one.md#how">how</a>
<a href="../../docs/none.md">nowhere</a> <a href="../README.md">about</a> <a class="x"
href="/tmp/elsewhere.md">elsewhere</a> <a href="https://pytorch.org">PyTorch</a> <a href="../n.ipynb">n</a>"""
ADDRESS = "https://github.com/someone/study"
BLOB = f"{ADDRESS}/blob/main"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one report, whose page links to all sorts of places, and one notebook."""
    folder = tmp_path / "study/outputs/main"
    for place in (folder, tmp_path / "study/docs"):
        place.mkdir(parents=True)
    (folder / "summary.html").write_text(REPORT)
    (folder / "ratios.csv").write_text("")
    cell = nbformat.v4.new_markdown_cell("# A notebook\n\n[how](../docs/one.md), [gone](../b.md)")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.write(notebook, folder.parent / "n.ipynb")
    nbformat.write(notebook, folder / "summary.ipynb")
    (folder.parent / "README.md").write_text("[main](main)")
    (tmp_path / "study/docs/one.md").write_text("")
    monkeypatch.setattr(outputs, "OUTPUTS", folder.parent)
    return tmp_path / "study"


def links_in(page):
    """Return the links of a page with their ids beside them, as a browser finds them."""
    found = Links()
    found.feed(page.read_text())
    return found.links


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links = []

    def handle_starttag(self, tag, attributes):
        if tag == "a" and (link := dict(attributes).get("href")):
            self.links.append(link)


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_each_link_of_a_site_leads_somewhere(address, project, tmp_path):
    urls = f'[project.urls]\nRepository = "{address}"\n' if address else ""
    (project / "pyproject.toml").write_text(f'[project]\nname = "study"\n{urls}')
    site = tmp_path / "site"
    outputs.publish(site)
    pages = sorted(site.rglob("*.html"))
    assert [page.name for page in pages] == ["index.html", "summary.html", "n.html"]
    links = [(page, link.partition("#")[0]) for page in pages for link in links_in(page)]
    inside = [page.parent / link for page, link in links if link and "//" not in link]
    assert all(path.resolve().is_relative_to(site) and path.is_file() for path in inside)
    outward = [f"{BLOB}/{name}" for name in ("docs/one.md", "outputs/README.md", "docs/one.md")]
    web = [link for _, link in links if "//" in link and link != "https://pytorch.org"]
    assert sorted(web) == (sorted(outward) if address else [])
    assert "'<a href=\"../../lost.md\">x</a>'" in pages[1].read_text()


def test_each_link_of_a_committed_report_leads_somewhere():
    root, pages = outputs.ROOT, sorted(outputs.OUTPUTS.rglob("*.html"))
    links = [(page, link.partition("#")[0]) for page in pages for link in links_in(page)]
    lost = [link for page, link in links if not (page.parent / link).exists() and ":" not in link]
    assert len(pages) > 10 and lost == [] and root in pages[0].parents
