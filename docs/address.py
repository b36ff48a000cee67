"""The project's address on GitHub, as pyproject.toml has it, and the links of a copied page."""

import html
import re
import tomllib
import urllib.parse
from pathlib import Path

GITHUB = "https://github.com/"
ON_THE_WEB = ("http", "https", "mailto")
SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL | re.IGNORECASE)
LINK = re.compile(r'(<a\b[^>]*?\shref=")([^"]*)("[^>]*>)(.*?)</a>', re.DOTALL | re.IGNORECASE)


def repository_url(root: Path) -> str | None:
    """Return the GitHub address in pyproject.toml, or None; other hosts have no such badges and
    pages.
    """
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    url = settings["project"].get("urls", {}).get("Repository", "")
    return url if url.startswith(GITHUB) else None


def seen_on_site(link: str, folder: Path, copied: Path, site: Path) -> str | None:
    """Return where a link of a copied page has to lead: to the same place where that is on the
    site or on the web, else to the project's file on GitHub, and None where neither holds it.

    folder: where the page lies in the project, below `copied`, which the site is a copy of
    """
    parts = urllib.parse.urlsplit(link)
    if parts.scheme in ON_THE_WEB or (link.startswith("#") or not link):
        return link
    root = copied.parent
    target = (folder / urllib.parse.unquote(parts.path)).resolve()
    if target.is_relative_to(copied) and (site / target.relative_to(copied)).is_file():
        return link
    url = repository_url(root)
    if parts.scheme or not url or not target.is_relative_to(root) or not target.exists():
        return None
    whole = f"{url}/blob/main/{urllib.parse.quote(target.relative_to(root).as_posix())}"
    return f"{whole}#{parts.fragment}" if parts.fragment else whole


def with_links(page: str, folder: Path, copied: Path, site: Path) -> str:
    """Return the HTML of a copied page with its links as `seen_on_site` has them; the text of a
    link that leads nowhere stays.
    """

    def mended(found: re.Match) -> str:
        before, link, after, text = found.groups()
        seen = seen_on_site(html.unescape(link), folder, copied, site)
        return text if seen is None else f"{before}{html.escape(seen)}{after}{text}</a>"

    parts = SCRIPT.split(page)  # a script is not changed, because the page names its hash
    return "".join(part if SCRIPT.match(part) else LINK.sub(mended, part) for part in parts)
