"""``ttmbench report``: results and their samples as one page that works offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench._util.file_io import write_text
from ttmbench.cli.parser import add_choice, add_run_options, count
from ttmbench.config import split_names
from ttmbench.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench report``."""
    add = parser.add_argument
    add("path", metavar="DIR|x.json", help="Results file, or directory searched recursively")
    add("--output_path", "-o", metavar="x.html", help="Output file (default: report.html in DIR)")
    add("--title", metavar="TEXT", default="Report", help="Page heading")
    images = "Show thumbnails where the licence permits, or names only"
    add_choice(parser, "--images", "thumbnails|none", "thumbnails", images)
    allowed = "Tasks whose images you may copy, whatever their licence field says"
    add("--allow_images", metavar="A,B", type=split_names, help=allowed)
    add("--max_images", metavar="N", type=count, default=2000, help="Maximum number of thumbnails per task")
    published = "Published numbers: CSV files or names of tables, separated by commas, or all"
    add("--published", metavar="FILE|TABLE", type=split_names, action="extend", help=published)
    add("--figures", metavar="DIR", help="Also draw figures for a paper (PDF, SVG) into this directory")
    add_run_options(parser, "data_dir", "include_path", title="")


def report(options: argparse.Namespace) -> int:
    """Write the page and list what it shows and what was skipped."""
    from ttmbench.report.charts import save_figures
    from ttmbench.report.html.render import read_report, to_html
    from ttmbench.report.load import ThumbnailOptions
    from ttmbench.reproduce.tables import published_beside_runs

    path = Path(options.path)
    folder = path if path.is_dir() else path.parent
    target = Path(options.output_path) if options.output_path else folder / "report.html"
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"--output_path must end with .html, got {target}")
    thumbnails = ThumbnailOptions(
        images=options.images,
        allowed=frozenset(options.allow_images or ()),
        most=options.max_images,
        data_dir=options.data_dir,
        include_path=tuple(options.include_path or ()),
        page=str(target.parent),
    )
    shown = read_report(path, thumbnails, published_beside_runs(options.published or []).numbers)
    page = to_html(shown, options.title)
    for name, why in shown.skipped.items():
        warn(f"skipped: {name}: {why}")
    write_text(target, page)
    echo(f"runs: {len(shown.runs)}, numbers: {sum(len(run.numbers) + len(run.means) for run in shown.runs)}")
    for images in shown.thumbnails:
        echo(f"images of {images.task}: {images.why}")
    if options.figures:
        files = save_figures(shown.runs, shown.rows, Path(options.figures))
        echo(f"{len(files)} figures in {options.figures}")
    echo(str(target))
    return 0
