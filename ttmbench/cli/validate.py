"""``ttmbench validate``: checks of task files and their data, and of submitted results; one line each."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, one_line, print_traceback
from ttmbench._util.images import frames_in
from ttmbench._util.option_values import split_names
from ttmbench.cli.options import OFFLINE, add_data_files, count
from ttmbench.data.catalog import find_task, is_named, select_tasks
from ttmbench.data.classes import labels_of, load_classes
from ttmbench.data.loader import audit_groups, data_locations, left_out, load_task_data, suspects_in
from ttmbench.data.paths import data_folder, given_data_folder
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import AssertionNotMet, DataError, TtmbenchError, UsageError
from ttmbench.plugins.manager import BUILTIN
from ttmbench.plugins.registry import WEIGHTS_ARE_NAMED_BY, Registry, build_registry, metric_for
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.results.document import ResultsDocument
from ttmbench.types import ImageRef, Loaded

MOST_PROBLEMS = 3  # of the data of a task
MOST_FINDINGS = 40  # of a submission


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench validate``."""
    add, names = parser.add_argument, "Tasks, or results files or directories (default: every task)"
    add("tasks", nargs="*", metavar="TASK|FILE|RESULT", help=names)
    add_data_files(parser)
    add("--offline", action="store_true", help=OFFLINE)
    add("--limit", metavar="N", type=count, help="Read only the first N groups")
    add("--schema_only", action="store_true", help="Check task files only, without reading the data")
    add("--allow_unchecked", action="store_true", help="Also accept submitted numbers that cannot be checked")
    add("--with_metadata", action="store_true", help="Refuse results without the metadata that `submit` writes")


def validate(options: argparse.Namespace) -> int:
    """Print one line per task, with places to look at below, and one per finding; returns the highest exit code."""
    registry = build_registry(options.include_path or [])
    given_data_folder(options.data_dir)
    results = [word for word in options.tasks if _is_submission(registry, word)]
    worst = 0
    if results:
        paths = [path for word in results for path in _documents(Path(word))]
        worst = check_results(paths, registry, options, with_metadata=options.with_metadata)
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
        metric = registry.metric(metric_name)
        if spec.kind == "groups":
            metric = metric_for(metric, spec.shape)
            if not metric.defined(spec.shape.images, spec.shape.captions):
                raise DataError(f"metric {metric_name} is undefined for {spec.shape} groups")
        chance = chance_of(metric, spec)
        if chance is not None:
            chances.append(f"{metric_name} {100 * chance:.2f}")
    # Raises if the options of the source are wrong.
    data_locations(registry, task, data_folder(Path(options.data_dir) if options.data_dir else None))
    summary = f"ok, version {spec.version}, {spec.extent}, chance in percent: {', '.join(chances) or 'none'}"
    return f"{summary}; {'data not read' if options.schema_only else _check_data(registry, task, options)}"


def _check_data(registry: Registry, task: TaskFile, options: argparse.Namespace) -> str:
    from ttmbench.scoring.fingerprint import open_upright  # imports torch, which no `--help` should wait for

    loaded = load_task_data(registry, task, options.limit, options.offline, options.data_dir)
    animated: set[str] = set()
    padded: set[str] = set()

    def digest(image: ImageRef, group_id: str) -> str:
        """Digest of an image as a model sees it."""
        opened = open_upright(image, group_id)
        if opened.info.get("animated"):
            animated.add(image.name)
        if opened.info.get("padded"):
            padded.add(image.name)
        return hashlib.sha256(f"{opened.size}".encode() + opened.tobytes()).hexdigest()

    report = audit_groups(task.spec, loaded.groups, digest)
    if padded:
        boxes = "1 crop box extends" if len(padded) == 1 else f"{len(padded)} crop boxes extend"
        report.notes.append(f"{boxes} beyond the image, and the outside is black")
    if animated:
        images = "1 image is" if len(animated) == 1 else f"{len(animated)} images are"
        report.notes.append(f"{images} animated, and the first frame is used")
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
        + "".join(f"\n  {line}" for line in suspects_in(task.spec, loaded.groups))
    )


def _size(task: TaskFile, loaded: Loaded) -> str:
    """The size of the data; every label of a classification task must be one of its classes."""
    spec, groups = task.spec, loaded.groups
    if "coverage" in loaded.source:
        rows = loaded.source["coverage"]["rows"]
        return f"{len(groups)} of {rows} groups (skipped because of missing images: {left_out(loaded.source)})"
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


def _is_submission(registry: Registry, word: str) -> bool:
    """Whether a word names results: a JSON file, or a directory with some that is not a task."""
    if word.endswith(".json"):
        return True
    if not Path(word).is_dir() or next(Path(word).rglob("*.json"), None) is None:
        return False
    try:
        return not select_tasks(registry, [word])
    except TtmbenchError:
        return True


def check_results(
    paths: Sequence[Path],
    registry: Registry,
    options: argparse.Namespace,
    *,
    beside: Path | None = None,
    with_metadata: bool = False,
) -> int:
    """Check results files; 3 if one is rejected, 4 if a file is not a results document.

    ``beside`` is a folder of submissions that none of them may be a copy of; ``with_metadata`` needs their metadata.
    """
    from ttmbench.reproduce.submission.check import check_submission, refuse_copies
    from ttmbench.reproduce.submission.metadata import check_metadata
    from ttmbench.results.reader import read_document

    worst = 0
    findings: dict[str, Findings] = {}
    others = [] if beside is None else [path for path in _documents(beside) if path not in paths]
    for path in [*others, *paths]:
        try:
            outcome = check_submission(
                path,
                registry,
                read_command,
                with_data=path in paths and not getattr(options, "schema_only", False),
                data_dir=options.data_dir,
            )
            check_metadata(path, read_document(path), outcome, with_metadata)
            findings[str(path)] = outcome
        except TtmbenchError as error:
            worst = max(worst, _print_error(str(path), error, options))
    refuse_copies(findings)
    for name, outcome in findings.items():
        if Path(name) in paths:
            worst = max(worst, _print_findings(name, outcome, options.allow_unchecked))
    return worst


def is_shipped(registry: Registry, document: ResultsDocument) -> bool:
    """Whether a document's model is a built-in one, whose weights come with the package."""
    spec, plugin = registry.adapters.get(str(document.config.get("model")), (None, ""))
    named = spec is not None and any(key in spec.model_args for key in WEIGHTS_ARE_NAMED_BY)
    return plugin == BUILTIN and not named and not document.config.get("model_args")


def read_command(command: str) -> Mapping[str, Any]:
    """The settings of a command line that a results document states; no file that it names is read.

    Args:
        command: its words, quoted as a shell needs it.

    Returns:
        Option -> value; ``config`` is the name of the file, if there is one.

    Raises:
        ValueError: it is not a command of ttmbench that runs a model.
    """
    from ttmbench.cli.parser import build_parser, normalise
    from ttmbench.cli.run import LISTINGS, settings_of

    first, *rest = shlex.split(command) or [""]
    words = normalise(rest)
    if first != "ttmbench" or words[:1] != ["run"]:
        raise ValueError("it must begin with ttmbench and run a model")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            options = build_parser("run").parse_args(words)
    except SystemExit:
        message = one_line(printed.getvalue(), 200).removeprefix("ttmbench run: ")
        raise ValueError(message or "it prints the help or the version") from None
    if options.config:
        return {"config": options.config}
    if options.dry_run or options.tasks in LISTINGS:
        raise ValueError("it runs nothing")
    return settings_of(options)


def _documents(path: Path) -> list[Path]:
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


def _print_findings(name: str, findings: Findings, allow_unchecked: bool) -> int:
    """Print the findings of a submission; returns its exit code."""
    rejecting = findings.wrong if allow_unchecked else findings.found
    for finding in rejecting[:MOST_FINDINGS]:
        echo(f"{name}: {finding.line}", flush=True)
    if len(rejecting) > MOST_FINDINGS:
        echo(f"{name}: and {len(rejecting) - MOST_FINDINGS} more findings", flush=True)
    for note in findings.notes:
        echo(f"{name}: note: {one_line(note)}", flush=True)
    if rejecting:
        return AssertionNotMet.exit_code
    unchecked = len(findings.unchecked)
    rest = f"; {unchecked} {'value' if unchecked == 1 else 'values'} could not be checked" if unchecked else ""
    echo(f"{name}: ok; {findings.compared} values agree with the data they are computed from{rest}", flush=True)
    return 0
