"""Results files -> plain data. What is damaged is named and left out; only an empty folder stops a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError, UsageError
from ttmbench.report.curves import Panel, panels_of
from ttmbench.report.tagcharts import TagTable, tag_tables_of
from ttmbench.results.document import ResultsDocument
from ttmbench.results.models import stated_model, tell_apart
from ttmbench.results.numbers import Number, means_of, numbers_of
from ttmbench.results.reader import read_document, task_of_artifact
from ttmbench.results.records import Artifact

_NUMBERS = (numbers_of, means_of)


@dataclass(frozen=True)
class ReportedRun:
    """A results document, taken apart.

    Attributes:
        index: from 1, the position on the page.
        model: what tables call its model: a name that tells it from those of the other runs.
        name: of the file, from the folder that was searched.
        path: the file.
        document: its content.
        numbers: every metric.
        panels: courses of TTM.
        tag_tables: numbers by tag.
        files: kind -> task -> file beside it that is as the run wrote it.
        damaged: file beside it -> what is wrong with it.
    """

    index: int
    model: str
    name: str
    path: Path
    document: Mapping[str, Any]
    numbers: tuple[Number, ...]
    panels: tuple[Panel, ...]
    tag_tables: tuple[TagTable, ...]
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """As the document states it."""
        return str(self.document.get("status") or "unknown")

    def of_task(self, key: str, task: str) -> Any:
        """What the document says of a task under a key; None if nothing."""
        found = self.document.get(key)
        return found.get(task) if isinstance(found, Mapping) else None


@dataclass(frozen=True)
class Gathered:
    """All runs of a report, and what was left out: file -> why."""

    runs: tuple[ReportedRun, ...]
    skipped: dict[str, str]


def gather(place: Path) -> Gathered:
    """Reads every results document of a place.

    Args:
        place: a folder, searched with all folders below it; or one document.

    Returns:
        The runs by model and date.

    Raises:
        UsageError: there is no such place, or no JSON file in it.
    """
    if not place.exists():
        raise UsageError(f"{place} does not exist; name a folder that runs wrote to (--output_path), or a document")
    folder = place if place.is_dir() else place.parent
    skipped: dict[str, str] = {}
    found: list[tuple[Path, ResultsDocument]] = []
    empty = True
    for path in _candidates(place):
        empty = False
        try:
            document = read_document(path)
        except (DataError, RecursionError) as error:
            if not is_something_else(path):
                skipped[path.relative_to(folder).as_posix()] = str(error).removeprefix(f"{path}: ")
            continue
        found.append((path, document))
    if empty:
        raise UsageError(f"{place} has no results document; runs write theirs with --output_path {place}")
    runs: list[ReportedRun] = []
    models = tell_apart([stated_model(document) for _, document in found])
    for model, path, document in sorted(
        ((model, path, document) for model, (path, document) in zip(models, found, strict=True)),
        key=lambda one: (one[0], str(one[1])),
    ):
        name = path.relative_to(folder).as_posix()
        runs.append(_run(len(runs) + 1, model, name, path, document))
    for run in runs:
        beside = Path(run.name).parent
        skipped |= {(beside / file).as_posix(): why for file, why in run.damaged.items()}
    return Gathered(tuple(runs), skipped)


def _candidates(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*.json")):
        # What a stopped run goes on from lies in a hidden folder.
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(place).parts):
            yield path


def is_something_else(path: Path) -> bool:
    """Whether a file that is no results document is whole and was never meant as one: an analysis, a card, settings."""
    if path.name.startswith("results_"):
        return False
    try:
        content = read_json(path)
    except Unreadable:
        return False
    return not (isinstance(content, dict) and "results" in content)


def _run(index: int, model: str, name: str, path: Path, typed: ResultsDocument) -> ReportedRun:
    document = typed.to_dict()
    run = ReportedRun(
        index,
        model,
        name,
        path,
        document,
        tuple(replace(one, model=model) for of in _NUMBERS for one in of(typed, name)),
        tuple(panels_of(typed)),
        tuple(tag_tables_of(document)),
    )
    for file, about in typed.artifacts.items():
        _take(run, file, about)
    return run


def _take(run: ReportedRun, file: str, about: Artifact) -> None:
    """Adds a file beside a run, if it is there and as the run wrote it."""
    kind = about.kind
    tasks = run.document["results"]
    task = task_of_artifact(file, about, tasks)
    if task is None or Path(file).name != file:
        run.damaged[file] = "is of no task of its run"
        return
    path = run.path.parent / file
    try:
        found = file_digest(path)
    except OSError as error:
        run.damaged[file] = f"cannot be read ({error.strerror or error})"
        return
    if found != about.sha256:
        run.damaged[file] = "is not what the run wrote (its sha256 differs); it was changed or is incomplete"
        return
    run.files.setdefault(kind, {})[task] = path
