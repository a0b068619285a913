"""A real Chromium for tests of pages: found, started, and kept off the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VARIABLE = "TTMBENCH_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")


def find_browser() -> str | None:
    """Path of an installed Chromium, or what TTMBENCH_BROWSER names; None if there is none."""
    given = os.environ.get(VARIABLE)
    return shutil.which(given) if given else next((path for path in map(shutil.which, NAMES) if path), None)


def why_not() -> str:
    """Why no browser can be used; empty if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError as error:
        return f"playwright cannot be imported ({error}); pip install 'ttmbench[test]'"
    return "" if find_browser() else f"no Chromium is installed ({', '.join(NAMES)}), and {VARIABLE} names none"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_opener(browser: Browser) -> Iterator[Callable[..., AbstractContextManager[Page]]]:
    """A function that opens a page in a shared tab; the page must log nothing and load nothing outside its ``root``."""
    tab = browser.new_page()
    tab.set_default_timeout(60_000)  # on a machine that does much else
    allowed: list[str] = []
    complaints: list[str] = []

    def requested(request: Any) -> None:
        if not request.url.startswith(("data:", *allowed)):
            complaints.append(f"request: {request.url}")

    tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", requested)

    @contextmanager
    def opened(path: Path, width: int = 1300, color_scheme: str = "light", root: Path | None = None) -> Iterator[Page]:
        allowed[:], complaints[:] = [(root or path).as_uri()], []
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=color_scheme)  # type: ignore[arg-type]
        tab.goto(path.as_uri())
        yield tab
        assert not complaints

    yield opened
    tab.close()


def column(page: Page, table: str, number: int) -> list[str]:
    """The first lines of the shown cells of a column, from 1."""
    cells = page.locator(f"{table} tbody tr:not([hidden]) > :nth-child({number})").all_inner_texts()
    return [text.strip().split("\n")[0].strip() for text in cells]
