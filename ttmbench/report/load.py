"""Results files -> plain data. What is damaged is named and left out; only an empty folder stops a report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError, UsageError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import Number, means_of, numbers_of
from ttmbench.results.reader import read_document, task_of_artifact, walk_documents
from ttmbench.results.records import Artifact
from ttmbench.results.settings import names_of_runs


@dataclass(frozen=True)
class ReportedRun:
    """A results document, and the files beside it.

    Attributes:
        index: from 1, the position on the page.
        model: what tables call its model: a name that tells it, and its setting, from those of the other runs.
        name: of the file, from the folder that was searched.
        path: the file.
        document: its content.
        numbers: every metric.
        files: kind -> task -> file beside it that is as the run wrote it.
        damaged: file beside it -> what is wrong with it.
    """

    index: int
    model: str
    name: str
    path: Path
    document: ResultsDocument
    numbers: tuple[Number, ...]
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gathered:
    """All runs of a report, and the files that were skipped: file -> why."""

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
        raise UsageError(f"{place} does not exist; give a results file, or a directory with some (--output_path)")
    folder = place if place.is_dir() else place.parent
    files = dict(walk_documents(place)) if place.is_dir() else {place: _read(place)}
    if not files:
        raise UsageError(f"{place} has no results document; runs write them with --output_path {place}")
    skipped = {
        path.relative_to(folder).as_posix(): why
        for path, why in files.items()
        if isinstance(why, str) and not is_something_else(path)
    }
    documents = [(path, document) for path, document in files.items() if isinstance(document, ResultsDocument)]
    names = names_of_runs(documents)
    runs: list[ReportedRun] = []
    in_order = sorted(zip(names, documents, strict=True), key=lambda one: (one[0].words, str(one[1][0])))
    for index, (called, (path, document)) in enumerate(in_order, start=1):
        name = path.relative_to(folder).as_posix()
        numbers = [*numbers_of(document, name), *means_of(document, name)]
        named = tuple(replace(one, model=called.words, setting=called.setting) for one in numbers)
        run = ReportedRun(index, called.words, name, path, document, named)
        for file, artifact in document.artifacts.items():
            _take(run, file, artifact)
        skipped |= {(Path(name).parent / file).as_posix(): why for file, why in run.damaged.items()}
        runs.append(run)
    return Gathered(tuple(runs), skipped)


def _read(path: Path) -> ResultsDocument | str:
    """A document, or why it cannot be read."""
    try:
        return read_document(path)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")


def is_something_else(path: Path) -> bool:
    """Whether a file is a complete document of another kind: an analysis, a model card, settings."""
    if path.name.startswith("results_"):
        return False
    try:
        content = read_json(path)
    except Unreadable:
        return False
    return not (isinstance(content, dict) and "results" in content)


def _take(run: ReportedRun, file: str, artifact: Artifact) -> None:
    """Adds a file beside a run, if it is there and as the run wrote it."""
    task = task_of_artifact(file, artifact, run.document.results)
    if task is None or Path(file).name != file:
        run.damaged[file] = "is of no task of its run"
        return
    path = run.path.parent / file
    try:
        digest = file_digest(path)
    except OSError as error:
        run.damaged[file] = f"cannot be read ({error.strerror or error})"
        return
    if digest != artifact.sha256:
        run.damaged[file] = "is not what the run wrote (its sha256 differs); it was changed or is incomplete"
        return
    run.files.setdefault(artifact.kind, {})[task] = path
