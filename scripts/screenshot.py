"""Photographs a page of ttmbench in an installed Chromium, for the documentation and for looking at it.

python scripts/screenshot.py results/report.html report.png --width 1400 --selector '#groups'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from browser import open_browser, why_not


def main() -> None:
    """Writes one PNG; exits with the reason where there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, metavar="FILE.html")
    parser.add_argument("picture", type=Path, metavar="OUT.png")
    parser.add_argument("--width", type=int, default=1400, help="of the window, in CSS pixels")
    parser.add_argument("--height", type=int, default=900, help="of the window")
    parser.add_argument("--scale", type=float, default=1.0, help="pixels of the picture for each CSS pixel")
    parser.add_argument("--dark", action="store_true", help="as in dark mode")
    parser.add_argument("--scroll", metavar="SELECTOR", help="begin at this element")
    parser.add_argument("--selector", metavar="SELECTOR", help="this element alone")
    parser.add_argument("--full", action="store_true", help="the page from top to bottom")
    options = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    with open_browser() as browser:
        page = browser.new_page(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
            device_scale_factor=options.scale,
        )
        page.set_default_timeout(5000)
        page.goto(options.page.resolve().as_uri())
        if options.scroll:
            page.locator(options.scroll).first.evaluate("element => element.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(200)
        if options.selector:
            page.locator(options.selector).first.screenshot(path=options.picture)
        else:
            page.screenshot(path=options.picture, full_page=options.full)


if __name__ == "__main__":
    main()
