"""docs/outputs.py: where the links of the committed reports lead."""

from html.parser import HTMLParser

import outputs


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


def test_each_link_of_a_committed_report_leads_somewhere():
    root, pages = outputs.ROOT, sorted(outputs.OUTPUTS.rglob("*.html"))
    links = [(page, link.partition("#")[0]) for page in pages for link in links_in(page)]
    lost = [link for page, link in links if not (page.parent / link).exists() and ":" not in link]
    assert len(pages) > 10 and lost == [] and root in pages[0].parents
