"""From a folder of results to a page: what ``ttmbench report`` does, for Python too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttmbench.errors import DataError
from ttmbench.report.groups import GroupSet, read_groups
from ttmbench.report.groups_from_scores import groups_from_scores
from ttmbench.report.load import Gathered, gather
from ttmbench.report.page import Content, made_now, to_html
from ttmbench.report.thumbnails import ThumbnailOptions, Thumbnails, thumbnails_for
from ttmbench.results.numbers import Number


def make_report(
    place: Path, options: ThumbnailOptions, title: str = "Report", published: Sequence[Number] = ()
) -> tuple[str, Gathered, list[Thumbnails]]:
    """Reads results and lays out their page.

    Args:
        place: a folder, or one results document.
        options: how images come onto the page.
        title: heading of the page.
        published: numbers from papers, to stand beside those of runs.

    Returns:
        The page; what was gathered, with everything that was left out; and the images of each task.

    Raises:
        UsageError: there is nothing to read.
    """
    gathered = gather(place)
    skipped = dict(gathered.skipped)
    sets: list[GroupSet] = []
    for run in gathered.runs:
        samples, scores = run.files.get("samples", {}), run.files.get("scores", {})
        for task, path in {**scores, **samples}.items():
            try:
                known = task in samples
                sets.append(read_groups(run, task, path) if known else groups_from_scores(run, task, path, options))
            except DataError as error:
                name = (Path(run.name).parent / path.name).as_posix()
                skipped[name] = str(error).removeprefix(f"{path}: ")
    by_data: dict[tuple[str, str], list[GroupSet]] = {}
    for one in sets:
        by_data.setdefault(one.images_of, []).append(one)
    thumbnails = {key: thumbnails_for(same, options) for key, same in by_data.items()}
    gathered = Gathered(gathered.runs, skipped)
    page = to_html(Content(title, gathered, sets, thumbnails, options.images, made_now(), published))
    return page, gathered, list(thumbnails.values())
