"""``ttmbench validate``: checks of task files and their data, and of results; one line each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, one_line, print_traceback
from ttmbench._util.images import frames_in
from ttmbench.cli.parser import add_run_options, count
from ttmbench.config import split_names
from ttmbench.data.classes import labels_of, load_classes
from ttmbench.data.loader import audit_groups, data_locations, load_task_data
from ttmbench.data.paths import data_folder
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import TaskFile, find_task, is_named, select_tasks
from ttmbench.errors import AssertionNotMet, DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.types import Loaded

MOST_PROBLEMS = 3  # of the data of a task
MOST_FINDINGS = 40  # of a results document


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench validate``."""
    add, names = parser.add_argument, "Tasks, or results files or directories (default: every task)"
    add("tasks", nargs="*", metavar="TASK|FILE|RESULT", help=names)
    add_run_options(parser, "data_dir", "include_path", "offline", title="")
    add("--limit", metavar="N", type=count, help="Read only the first N groups")
    add("--schema_only", action="store_true", help="Check task files only, without reading the data")
    add("--complete", action="store_true", help="Refuse results whose scores, ranks or answers are not stored")


def validate(options: argparse.Namespace) -> int:
    """Print one line per task, with places to look at below, and one per finding; returns the highest exit code."""
    registry = build_registry(options.include_path or [])
    data_folder(options.data_dir, is_read=True)
    results = [word for word in options.tasks if _is_results(registry, word)]
    worst = 0
    if results:
        paths = [path for word in results for path in documents_in(Path(word))]
        worst = check_results(paths, registry, options, options.complete)
    tasks = [word for word in options.tasks if word not in results]
    for name in _names(registry, tasks) if tasks or not results else ():
        try:
            echo(f"{name}: {_check(registry, name, options)}", flush=True)
        except TtmbenchError as error:
            worst = max(worst, _print_error(name, error, options))
    return worst


def _print_error(name: str, error: TtmbenchError, options: argparse.Namespace) -> int:
    if options.verbosity == "debug":
        print_traceback()
    echo(str(error) if str(error).startswith(f"{name}:") else f"{name}: {error}", flush=True)
    return error.exit_code


def _names(registry: Registry, words: Sequence[str]) -> list[str]:
    """Tasks by name, file, tag or glob, each once; an unknown name stays, so that its error gets a line."""
    if not words:
        return sorted(registry.task_files)
    names: dict[str, None] = {}
    for name in (name for word in words for name in split_names(word)):
        if "/" in name and not (is_named(registry, name) or Path(name).exists()):
            raise UsageError(f"{name} does not exist; give tasks, task files, or results files or directories")
        names |= dict.fromkeys([name] if is_named(registry, name) else select_tasks(registry, [name]))
    return list(names)


def _check(registry: Registry, name: str, options: argparse.Namespace) -> str:
    task = find_task(registry, name)
    spec = task.spec
    chances = []
    for metric_name in spec.metrics:
        metric = registry.metrics[metric_name]
        if spec.kind == "groups":
            metric = metric_for(metric, spec.shape)
            if not metric.defined(spec.shape.images, spec.shape.captions):
                raise DataError(f"metric {metric_name} is undefined for {spec.shape} groups")
        chance = chance_of(metric, spec)
        if chance is not None:
            chances.append(f"{metric_name} {100 * chance:.2f}")
    # Raises if the options of the source are wrong.
    data_locations(registry, task, data_folder(options.data_dir))
    summary = f"ok, version {spec.version}, {spec.extent}, chance in percent: {', '.join(chances) or 'none'}"
    return f"{summary}; {'data not read' if options.schema_only else _check_data(registry, task, options)}"


def _check_data(registry: Registry, task: TaskFile, options: argparse.Namespace) -> str:
    from ttmbench.scoring.inputs import open_upright, pixels_digest  # imports torch, which no `--help` should wait for

    loaded = load_task_data(registry, task, options.limit, bool(options.offline), options.data_dir)
    report = audit_groups(task.spec, loaded.groups, lambda *image: pixels_digest(open_upright(*image)))
    source = _source(loaded.source)
    if report.problems:
        total = f"{len(report.problems)} problems: " if len(report.problems) > 1 else ""
        more = f"; and {len(report.problems) - MOST_PROBLEMS} more" if len(report.problems) > MOST_PROBLEMS else ""
        raise DataError(f"{total}{'; '.join(report.problems[:MOST_PROBLEMS])}{more} (from {source})")
    notes = "".join(f", {note}" for note in report.notes)
    first = loaded.groups[0]
    opened = [open_upright(image, first.group_id) for image in first.images]
    sizes = ", ".join(f"{image.width}x{image.height // frames_in(image)}" for image in opened)
    items, frames = ("images", "") if task.spec.video is None else ("videos", f", {task.spec.video.frames} frames each")
    return (
        f"{_size(task, loaded)}, all {items} decode{notes}; {report.images} {items} from {source}; "
        f"first: {first.group_id} ({sizes} px{frames}) {' | '.join(first.captions)}"
    )


def _size(task: TaskFile, loaded: Loaded) -> str:
    """The size of the data; every label of a classification task must be one of its classes."""
    spec, groups = task.spec, loaded.groups
    if "coverage" in loaded.source:
        rows, missing = loaded.source["coverage"]["rows"], len(loaded.source["coverage"]["missing"])
        return f"{len(groups)} of {rows} groups (skipped because of missing images: {missing})"
    if spec.kind == "retrieval":
        return f"{len(groups)} images with {sum(len(group.captions) for group in groups)} captions"
    if spec.kind == "classification":
        classes = load_classes(spec)
        labels = labels_of(spec, classes, groups)
        return f"{len(groups)} images of {len(set(labels.tolist()))} among {len(classes.names)} classes"
    return f"{len(groups)} groups"


def _source(source: Mapping[str, Any]) -> str:
    """Where the groups come from, and the locations that were tried before."""
    inner = source.get("data") or source
    path = inner.get("path") or inner.get("file") or inner.get("scene") or ""
    skipped = inner.get("passed_over")
    tried = f" (unavailable: {', '.join(skipped)})" if skipped else ""
    return f"{inner.get('kind', 'its source')} {path}".strip() + tried


def _is_results(registry: Registry, word: str) -> bool:
    """Whether a word names results: a JSON file, or a directory with some that is not a task."""
    if word.endswith(".json"):
        return True
    if not Path(word).is_dir() or next(Path(word).rglob("*.json"), None) is None:
        return False
    try:
        return not select_tasks(registry, [word])
    except TtmbenchError:
        return True


def check_results(paths: Sequence[Path], registry: Registry, options: argparse.Namespace, complete: bool) -> int:
    """Check results files; 3 if one is refused, 4 if a file is not a results document.

    With ``complete`` a number that nothing is stored for is refused, too.
    """
    from ttmbench.evaluator.check_result import check_result  # imports torch, which no `--help` should wait for

    worst = 0
    for path in paths:
        try:
            checked = check_result(path, registry, options.data_dir, with_data=not options.schema_only)
        except TtmbenchError as error:
            worst = max(worst, _print_error(str(path), error, options))
            continue
        wrong, rest = checked.wrong, ""
        if lacking := dict.fromkeys(checked.not_stored):
            rest = f"not computed again, since no scores, ranks or answers are stored: {', '.join(lacking)}"
            rest += "; run with --save_scores (forced choices: --log_samples) to store them"
            wrong = [*wrong, rest] if complete else wrong
        for line in wrong[:MOST_FINDINGS]:
            echo(f"{path}: {one_line(line, 400)}", flush=True)
        if len(wrong) > MOST_FINDINGS:
            echo(f"{path}: and {len(wrong) - MOST_FINDINGS} more", flush=True)
        for note in checked.notes:
            echo(f"{path}: note: {one_line(note, 400)}", flush=True)
        if wrong:
            worst = max(worst, AssertionNotMet.exit_code)
        elif checked.document.results.keys() <= lacking.keys():
            echo(f"{path}: no metric was checked; {rest}", flush=True)
        else:
            echo(f"{path}: ok; {checked.numbers} values computed again{f'; {rest}' if rest else ''}", flush=True)
    return worst


def documents_in(path: Path) -> list[Path]:
    """The results files of a directory, without files of other kinds; a file that is named counts as it is."""
    from ttmbench.report.load import is_something_else
    from ttmbench.results.reader import walk_documents

    if not path.is_dir():
        return [path]
    walked = walk_documents(path)
    files = [file for file, document in walked if not isinstance(document, str) or not is_something_else(file)]
    if not files:
        raise DataError(f"{path}: has no results document")
    return files
