"""A real Chromium for tests of pages and for screenshots: found, started, and kept off the network."""

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
    if given:
        return shutil.which(given)
    return next((path for path in map(shutil.which, NAMES) if path), None)


def why_not() -> str:
    """Why no browser can be used; empty if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError as error:
        return f"playwright cannot be imported ({error}); pip install 'ttmbench[test]'"
    if find_browser() is None:
        return f"no Chromium is installed ({', '.join(NAMES)}), and {VARIABLE} names none"
    return ""


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
def listening(page: Page, **heard: Callable[[Any], object]) -> Iterator[Page]:
    """A page that tests share, a process of its own to start: each hears its events, and no other's."""
    for event, hear in heard.items():
        page.on(event, hear)  # type: ignore[call-overload]
    try:
        yield page
    finally:
        for event, hear in heard.items():
            page.remove_listener(event, hear)


@contextmanager
def page_opener(browser: Browser) -> Iterator[Callable[..., AbstractContextManager[Page]]]:
    """A function that opens a page in a shared tab; the page must log nothing and load nothing outside its ``root``."""
    tab = browser.new_page()
    tab.set_default_timeout(60_000)  # on a machine that does much else

    @contextmanager
    def opened(path: Path, width: int = 1300, color_scheme: str = "light", root: Path | None = None) -> Iterator[Page]:
        complaints: list[str] = []
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=color_scheme)

        def requested(request: Any) -> None:
            is_inside = root is not None and request.url.startswith(root.as_uri())
            if not (is_inside or request.url == path.as_uri() or request.url.startswith("data:")):
                complaints.append(f"request: {request.url}")

        with listening(
            tab,
            console=lambda message: complaints.append(f"console: {message.text}"),
            pageerror=lambda error: complaints.append(f"error: {error}"),
            dialog=lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
            request=requested,
        ):
            tab.goto(path.as_uri())
            yield tab
            assert not complaints

    yield opened
    tab.close()


def column(page: Page, table: str, number: int) -> list[str]:
    """The first lines of the shown cells of a column, from 1."""
    cells = page.locator(f"{table} tbody tr:not([hidden]) > :nth-child({number})").all_inner_texts()
    return [text.strip().split("\n")[0].strip() for text in cells]
