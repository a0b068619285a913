"""``ttmbench report``: results documents and their samples as one page that opens offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import complain, say
from ttmbench._util.files import write_atomically
from ttmbench.errors import UsageError
from ttmbench.report.making import make_report
from ttmbench.report.thumbnails import PictureOptions


def report(options: argparse.Namespace) -> int:
    """Writes the page, and says what is on it and what was left out."""
    place = Path(options.place)
    folder = place if place.is_dir() else place.parent
    target = Path(options.output_path) if options.output_path else folder / "report.html"
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"--output_path {target} is no name of a page; it should end with .html")
    pictures = PictureOptions(
        images=options.images,
        allowed=frozenset(options.allow_images or ()),
        most=options.max_images,
        data_dir=options.data_dir,
        include_path=tuple(options.include_path or ()),
        page_folder=target.parent,
    )
    page, gathered, found = make_report(place, pictures, options.title)
    for name, why in gathered.skipped.items():
        complain(f"left out: {name}: {why}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output_path {target} cannot be written: {error.strerror or error}") from None
    write_atomically(target, lambda path: path.write_text(page, encoding="utf-8"))
    say(f"runs: {len(gathered.runs)}, numbers: {sum(len(run.numbers) for run in gathered.runs)}")
    for one in found:
        say(f"pictures of {one.task}: {one.why}")
    if options.figures:
        from ttmbench.report.figures import save_figures

        files = save_figures(gathered.runs, Path(options.figures))
        say(f"{len(files)} figures in {options.figures}")
    say(str(target))
    return 0
