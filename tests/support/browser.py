"""A real Chromium for tests of pages and for screenshots: found, started, and kept off the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
