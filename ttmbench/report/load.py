"""Results files of a report. Damaged files are listed and skipped; only an empty folder is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError, UsageError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.models import names_of_runs
from ttmbench.results.numbers import Number, means_of, named, numbers_of
from ttmbench.results.reader import read_document, task_of_artifact, walk_documents, walk_sample_logs


@dataclass(frozen=True)
class ReportedRun:
    """A results document in a report or a leaderboard."""

    model: str  # its name in tables, with the setting where several runs of the model differ
    name: str  # of the file, relative to the searched folder
    path: Path  # the file
    document: ResultsDocument  # its content
    numbers: tuple[Number, ...]  # every metric; in a leaderboard, those that belong to a track, newest or not
    index: int = 0  # position on the page, from 1
    files: dict[str, dict[str, Path]] = field(default_factory=dict)  # kind -> task -> intact file beside it
    damaged: dict[str, str] = field(default_factory=dict)  # file beside it -> what is wrong with it


@dataclass(frozen=True)
class Gathered:
    """All runs of a report, and the files that were skipped: file -> why."""

    runs: tuple[ReportedRun, ...]
    skipped: dict[str, str]


def gather(given: Path) -> Gathered:
    """Every results document of a folder, searched recursively, or one document; runs are sorted by model and path.

    UsageError if the path does not exist, or has no JSON file.
    """
    if not given.exists():
        raise UsageError(f"{given} does not exist; give a results file, or a directory with some (--output_path)")
    folder = given if given.is_dir() else given.parent
    files = dict(walk_documents(given)) if given.is_dir() else {given: _read(given)}
    files |= {path: _read(path) for path in walk_sample_logs(given)} if given.is_dir() else {}
    if not files:
        raise UsageError(f"{given} has no results document; runs write them with --output_path {given}")
    skipped = {
        path.relative_to(folder).as_posix(): why
        for path, why in files.items()
        if isinstance(why, str) and not is_something_else(path)
    }
    documents = [(path, document) for path, document in files.items() if isinstance(document, ResultsDocument)]
    names = names_of_runs(documents)
    runs: list[ReportedRun] = []
    ordered = sorted(zip(names, documents, strict=True), key=lambda run: (run[0].words, str(run[1][0])))
    for index, (called, (path, document)) in enumerate(ordered, start=1):
        name = path.relative_to(folder).as_posix()
        numbers = [*numbers_of(document, name), *means_of(document, name)]
        run = ReportedRun(called.words, name, path, document, tuple(named(number, called) for number in numbers), index)
        _check_artifacts(run)
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


def _check_artifacts(run: ReportedRun) -> None:
    """Add the files beside a run: those that are as the run wrote them, and the damaged ones."""
    for file, artifact in run.document.artifacts.items():
        task, path = task_of_artifact(file, artifact, run.document.results), run.path.parent / file
        try:
            if task is None or Path(file).name != file:
                run.damaged[file] = "is not of a task of its run"
            elif file_digest(path) != artifact.sha256:
                run.damaged[file] = "was changed or is incomplete: its sha256 is not that in the results document"
            else:
                run.files.setdefault(artifact.kind, {})[task] = path
        except OSError as error:
            run.damaged[file] = f"cannot be read ({error.strerror or error})"
