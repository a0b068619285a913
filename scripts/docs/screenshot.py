"""Photographs a page of ttmbench in an installed Chromium, for the documentation and for looking at it.

python scripts/docs/screenshot.py results/report.html report.png --width 1400 --selector '#groups'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.browser import open_browser, why_not

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_SHOW_EVERYTHING = """() => Promise.all([...document.images].map(image => {
    image.loading = "eager";
    return image.decode().catch(() => null);
}))"""


def open_page(
    browser: Browser, page: Path, width: int, height: int = 900, scale: float = 1.0, dark: bool = False
) -> Page:
    """Opens a page in a window of its own.

    Args:
        browser: of `open_browser`.
        page: an HTML file.
        width: of the window, in CSS pixels.
        height: of the window, in CSS pixels.
        scale: pixels of a screenshot for each CSS pixel.
        dark: as in dark mode.

    Returns:
        The opened page.
    """
    opened = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        device_scale_factor=scale,
    )
    opened.set_default_timeout(5000)
    opened.goto(page.resolve().as_uri())
    return opened


def load_screenshots(page: Page) -> None:
    """Waits for all screenshots of a page, also for those that are loaded when they come into view."""
    page.evaluate(_SHOW_EVERYTHING)


def main() -> None:
    """Writes one PNG; exits with the reason where there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, metavar="FILE.html")
    parser.add_argument("screenshot", type=Path, metavar="OUT.png")
    parser.add_argument("--width", type=int, default=1400, help="of the window, in CSS pixels")
    parser.add_argument("--height", type=int, default=900, help="of the window")
    parser.add_argument("--scale", type=float, default=1.0, help="pixels of the screenshot for each CSS pixel")
    parser.add_argument("--dark", action="store_true", help="as in dark mode")
    parser.add_argument("--scroll", metavar="SELECTOR", help="begin at this element")
    parser.add_argument("--selector", metavar="SELECTOR", help="this element alone")
    parser.add_argument("--full", action="store_true", help="the page from top to bottom")
    options = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    with open_browser() as browser:
        page = open_page(browser, options.page, options.width, options.height, options.scale, options.dark)
        load_screenshots(page)
        if options.scroll:
            page.locator(options.scroll).first.evaluate("element => element.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(200)
        if options.selector:
            page.locator(options.selector).first.screenshot(path=options.screenshot)
        else:
            page.screenshot(path=options.screenshot, full_page=options.full)


if __name__ == "__main__":
    main()
