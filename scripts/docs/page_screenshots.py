"""The screenshots of the documentation: a report and a leaderboard of the reference runs.

    ttmbench --model tiny-clip --tasks builtin --simple_match --ttm --seeds 0,1,2,3 --log_samples --output_path shown
    python scripts/docs/page_screenshots.py shown

They are taken in an installed Chromium. The run is that of results/reference with samples, which are too large to be
kept there; its numbers must be the same. ``--boards`` takes those of the leaderboard and its site alone, which need no
samples. ``scripts/docs/reference.py check`` says when screenshots show something else than the reference.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import reference
from PIL import Image

from ttmbench.cli import main as ttmbench
from ttmbench.results.reader import read_document, walk_documents

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.browser import open_browser, why_not

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LARGEST = 200_000  # bytes
COLORS = 256


@dataclass(frozen=True)
class Shot:
    """One screenshot of a width and height in CSS pixels, from the element ``begin`` on; ``before`` it a reader acts.

    The page is ``report``, ``leaderboard``, ``board_site`` (its start page) or ``board_task``.
    """

    page: str
    begin: str
    width: int
    height: int
    dark: bool = False
    before: Callable[[Page], None] | None = None


def _show_flipped(page: Page) -> None:
    page.locator("#browser label", has_text="flipped to correct").click()


def _show_task(page: Page) -> None:
    page.locator("form[data-for='result-tables'] select[name='task']").select_option("shapes_color")


SHOTS = {
    "report_answer.png": Shot("report", "#answer", 1240, 585),
    "report_results.png": Shot("report", "#results", 1240, 860, before=_show_task),
    "report_curves.png": Shot("report", "#ttm", 1100, 640),
    "report_groups.png": Shot("report", "#cards", 1140, 520, before=_show_flipped),
    "report_narrow_dark.png": Shot("report", "#cards", 390, 780, dark=True, before=_show_flipped),
    "leaderboard.png": Shot("leaderboard", "h1", 1100, 840),
    "leaderboard_site.png": Shot("board_site", "body", 1100, 860),
    "leaderboard_site_dark.png": Shot("board_site", "body", 1100, 860, dark=True),
    "leaderboard_site_task.png": Shot("board_task", "body", 1100, 860),
    "leaderboard_site_task_dark.png": Shot("board_task", "body", 1100, 860, dark=True),
}

_SHOW_EVERYTHING = """() => Promise.all([...document.images].map(image => {
    image.loading = "eager";
    return image.decode().catch(() => null);
}))"""


def open_page(browser: Browser, page: Path, width: int, height: int = 900, dark: bool = False) -> Page:
    """Opens an HTML file in a window of its own, of this width and height in CSS pixels."""
    scheme: Literal["dark", "light"] = "dark" if dark else "light"
    opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened.set_default_timeout(5000)
    opened.goto(page.resolve().as_uri())
    return opened


def load_screenshots(page: Page) -> None:
    """Waits for all screenshots of a page, also for those that are loaded when they come into view."""
    page.evaluate(_SHOW_EVERYTHING)


def photograph(page: Page, shot: Shot) -> bytes:
    """A PNG; with few colours if it would be too large otherwise."""
    if shot.before is not None:
        shot.before(page)
    load_screenshots(page)
    box = page.locator(shot.begin).first.bounding_box()
    if box is None:
        sys.exit(f"{shot.page} has no {shot.begin}")
    top = max(0.0, box["y"] + page.evaluate("window.scrollY") - 8)
    clip = {"x": 0, "y": top, "width": shot.width, "height": shot.height}
    # What stays at the upper edge while scrolling would lie over the screenshot.
    page.evaluate("document.querySelectorAll('.bar-nav').forEach(bar => { bar.style.position = 'static'; })")
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip, animations="disabled"))).convert("RGB")
    small = io.BytesIO()
    taken.save(small, "png", optimize=True)
    if small.tell() > LARGEST:
        small = io.BytesIO()
        taken.quantize(COLORS, method=Image.Quantize.MEDIANCUT).save(small, "png", optimize=True)
    return small.getvalue()


def take(shots: Mapping[str, Shot], pages: Mapping[str, Path]) -> None:
    """Takes screenshots into docs/images, and notes what they show.

    Args:
        shots: by the name of the file.
        pages: the file of each page that they name.
    """
    with open_browser() as browser:
        for name, shot in shots.items():
            page = open_page(browser, pages[shot.page], shot.width, dark=shot.dark)
            screenshot = photograph(page, shot)
            page.close()
            if len(screenshot) > LARGEST:
                sys.exit(f"{name} has {len(screenshot)} bytes, more than {LARGEST}; show less")
            (reference.IMAGES / name).write_bytes(screenshot)
            reference.record(name, reference.shown_in(name))
            print(reference.IMAGES / name, len(screenshot))


def take_of_runs(folder: Path | None) -> None:
    """Those of a report, if there is a run to report, and of the leaderboard and its site."""
    if folder is not None:
        wanted = reference.shown_numbers(read_document(reference.MAIN))
        documents = [document for _, document in walk_documents(folder) if not isinstance(document, str)]
        if [reference.shown_numbers(document) for document in documents] != [wanted]:
            sys.exit(f"{folder} has to hold one run, with the numbers of {reference.MAIN.name}")
    with tempfile.TemporaryDirectory() as scratch:
        report, board, site = Path(scratch) / "report.html", Path(scratch) / "board", Path(scratch) / "site"
        for words in (
            *([["report", str(folder), "-o", str(report)]] if folder is not None else []),
            ["leaderboard", str(reference.FOLDER), "-o", str(board)],
            ["leaderboard", str(reference.FOLDER), "--published", "all", "--site", str(site), "--docs", ".."],
        ):
            if ttmbench(words) != 0:
                sys.exit(f"ttmbench {' '.join(words)} failed")
        pages = {
            **({} if folder is None else {"report": report}),
            "leaderboard": board / "leaderboard.html",
            "board_site": site / "index.html",
            "board_task": site / "tasks" / "winoground.html",
        }
        take({name: shot for name, shot in SHOTS.items() if shot.page in pages}, pages)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", help="folder of the run with samples")
    parser.add_argument("--boards", action="store_true", help="the leaderboard and its site")
    options = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    if options.runs is not None or options.boards:
        take_of_runs(options.runs)


if __name__ == "__main__":
    main()
