"""Checks the built site: nothing comes from another host, links and anchors lead somewhere, search works from a file.

python scripts/docs/check_site.py site

With an installed Chromium it also opens pages at the widths of a telephone and of a desk, without a server.
"""

from __future__ import annotations

import argparse
import re
import sys
import urllib.parse
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_LOADED = {"canonical", "next", "prev", "alternate"}  # relations of a <link> that name another page
OUTSIDE = re.compile(r"(?:https?:)?//", flags=re.IGNORECASE)
IN_STYLE = re.compile(r"(?:@import\s+|url\(\s*)['\"]?((?:https?:)?//[^\s'\"();]+)", flags=re.IGNORECASE)
OPENED = ("index.html", "tasks.html", "command-line.html", "api/metrics.html", "why-believe-it.html")
WIDTHS = (360, 1400)
SEARCHED = ("group match", "simple_evaluate")


class Page(HTMLParser):
    """What a page loads, where it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self._style = tag == "style"
        self.loads += IN_STYLE.findall(found.get("style", ""))
        if tag in LOADED and LOADED[tag] in found and not NOT_LOADED & set(found.get("rel", "").split()):
            self.loads.append(found[LOADED[tag]])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])

    def handle_data(self, data: str) -> None:
        """Called by the parser."""
        self.loads += IN_STYLE.findall(data) if self._style else []
        self._style = False


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    return Page(path.read_text(encoding="utf-8"))


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a built site, a sentence each.

    Args:
        site: folder of the site.

    Yields:
        What a page loads from another host; links to files or anchors that are not there.
    """
    for path in sorted(site.rglob("*.css")):
        for address in IN_STYLE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {address}"
    for path in sorted(site.rglob("*.html")):
        name, page = path.relative_to(site), read(path)
        yield from (f"{name} loads {address}" for address in page.loads if OUTSIDE.match(address))
        if name.name == "404.html":  # it is served for any address, so its links start at the root
            continue
        for link in page.links:
            address, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:|//", address):
                continue
            target = (path.parent / urllib.parse.unquote(address)).resolve() if address else path
            if not target.is_file():
                yield f"{name} links to {link}, which is not there"
            elif anchor and target.suffix == ".html" and urllib.parse.unquote(anchor) not in read(target).anchors:
                yield f"{name} links to {link}: that page has no such anchor"


def seen_problems(site: Path) -> Iterator[str]:
    """What a browser finds wrong: requests to another host, pages wider than the window, a search without results.

    Args:
        site: folder of the site.

    Yields:
        Sentences.
    """
    from screenshot import open_browser, open_page

    with open_browser() as browser:
        for name in OPENED:
            for width in WIDTHS:
                page = open_page(browser, site / name, width, dark=width == min(WIDTHS))
                asked: list[str] = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
                yield from (f"{name} asked for {address}" for address in asked if OUTSIDE.match(address))
                wider = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                if wider > 0:
                    yield f"{name} is {wider} pixels wider than a window of {width}"
                page.close()
        for words in SEARCHED:
            page = open_page(browser, site / "index.html", max(WIDTHS))
            page.locator(".md-search__input").first.press_sequentially(words)
            try:
                page.locator(".md-search-result__item").first.wait_for()
            except Exception as error:
                yield f"searching for {words!r} finds nothing: {error}"
            page.close()


def main() -> None:
    """Command line; exits with what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder that mkdocs built")
    site: Path = parser.parse_args().site.resolve()
    found = list(problems(site))
    from screenshot import why_not

    if why_not():
        print(f"not looked at in a browser: {why_not()}")
    else:
        found += seen_problems(site)
    if found:
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages: links and anchors lead somewhere, nothing comes from another host")


if __name__ == "__main__":
    main()
