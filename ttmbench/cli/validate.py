"""``ttmbench validate``: is a task file right, and its data what it says? Is a submission of results sound?"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, print_traceback
from ttmbench.cli.chances import chance_of
from ttmbench.cli.options import DATA_DIR, OFFLINE, add_verbosity, count
from ttmbench.cli.submissions import check_submissions, is_submission
from ttmbench.config import split_names
from ttmbench.data.catalog import find_task, is_named, select_tasks
from ttmbench.data.classes import labels_of, load_classes
from ttmbench.data.loader import audit_groups, data_locations, left_out, load_task_data
from ttmbench.data.paths import data_folder, given_data_folder
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.types import Group, ImageRef, Loaded

SHOWN = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench validate``."""
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="TASK|FILE|RESULT",
        help="Tasks, or results files or directories (default: every task)",
    )
    parser.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")
    parser.add_argument("--offline", action="store_true", help=OFFLINE)
    parser.add_argument("--data_dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--limit", metavar="N", type=count, help="Read only the first N groups")
    parser.add_argument("--schema_only", action="store_true", help="Check task files only, without reading the data")
    parser.add_argument(
        "--allow_unchecked",
        action="store_true",
        help="Also accept submitted numbers that cannot be checked",
    )
    add_verbosity(parser)


def validate(options: argparse.Namespace) -> int:
    """Prints one line a task, and one a finding of a submission; the exit code is that of the worst."""
    registry = build_registry(options.include_path or [])
    given_data_folder(options.data_dir)
    results = [word for word in options.tasks if is_submission(registry, word)]
    worst = check_submissions(results, registry, options) if results else 0
    tasks = [word for word in options.tasks if word not in results]
    for name in _names(registry, tasks) if tasks or not results else ():
        try:
            echo(f"{name}: {_check(registry, name, options)}", flush=True)
        except TtmbenchError as error:
            if options.verbosity == "debug":
                print_traceback()
            echo(str(error) if str(error).startswith(name) else f"{name}: {error}", flush=True)
            worst = max(worst, error.exit_code)
    return worst


def _names(registry: Registry, asked: Sequence[str]) -> list[str]:
    """Tasks by name, file, tag or glob, each once; what is none of them stays, so that its error gets a line."""
    if not asked:
        return sorted(registry.task_files)
    found: dict[str, None] = {}
    for word in (name for words in asked for name in split_names(words)):
        if "/" in word and not (is_named(registry, word) or Path(word).exists()):
            raise UsageError(f"{word} does not exist; name tasks, task files, results documents or folders of them")
        found |= dict.fromkeys([word] if is_named(registry, word) else select_tasks(registry, [word]))
    return list(found)


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
    data_locations(
        registry, task, data_folder(Path(options.data_dir) if options.data_dir else None)
    )  # the source's options
    summary = f"ok, version {spec.version}, {spec.extent}, chance in percent: {', '.join(chances) or 'none'}"
    if options.schema_only:
        return f"{summary}; data not read"
    return f"{summary}; {_check_data(registry, task, options)}"


def _check_data(registry: Registry, task: TaskFile, options: argparse.Namespace) -> str:
    loaded = load_task_data(registry, task, options.limit, options.offline, options.data_dir)
    animated: set[str] = set()
    padded: set[str] = set()
    report = audit_groups(task.spec, loaded.groups, lambda image, group_id: _digest(image, group_id, animated, padded))
    if padded:
        what = "1 crop box reaches" if len(padded) == 1 else f"{len(padded)} crop boxes reach"
        report.notes.append(f"{what} beyond the image, which is black there")
    if animated:
        what = "1 image is animated: its first frame is taken"
        report.notes.append(
            what if len(animated) == 1 else f"{len(animated)} images are animated: first frames are taken"
        )
    if report.problems:
        count = f"{len(report.problems)} problems: " if len(report.problems) > 1 else ""
        more = f"; and {len(report.problems) - SHOWN} more" if len(report.problems) > SHOWN else ""
        raise DataError(f"{count}{'; '.join(report.problems[:SHOWN])}{more} (from {_source(loaded.source)})")
    notes = "".join(f", {note}" for note in report.notes)
    return (
        f"{_counted(task, loaded)}, all images decode{notes}; {report.images} images from "
        f"{_source(loaded.source)}; first: {_shown(loaded.groups)}"
    )


def _counted(task: TaskFile, loaded: Loaded) -> str:
    """How much there is; of a classification task every label is looked up among the classes."""
    spec, groups = task.spec, loaded.groups
    if "coverage" in loaded.source:
        rows = loaded.source["coverage"]["rows"]
        return f"{len(groups)} of {rows} groups (some images are not here: {left_out(loaded.source)} are left out)"
    if spec.kind == "retrieval":
        return f"{len(groups)} images with {sum(len(group.captions) for group in groups)} captions"
    if spec.kind == "classification":
        classes = load_classes(spec)
        labels = labels_of(spec, classes, groups)
        return f"{len(groups)} images of {len(set(labels.tolist()))} among {len(classes.names)} classes"
    return f"{len(groups)} groups"


def _digest(image: ImageRef, group_id: str, animated: set[str], padded: set[str]) -> str:
    """Digest of an image as a model sees it: upright, RGB. Names of animated and of padded ones are taken down."""
    from ttmbench.scoring.fingerprint import open_upright  # with torch, which no `--help` should wait for

    opened = open_upright(image, group_id)
    if opened.info.get("animated"):
        animated.add(image.name)
    if opened.info.get("padded"):
        padded.add(image.name)
    return hashlib.sha256(f"{opened.size}".encode() + opened.tobytes()).hexdigest()


def _source(source: dict[str, Any]) -> str:
    """Where the groups came from, and what was tried before."""
    inner = source.get("data") or source
    what = inner.get("path") or inner.get("file") or inner.get("scene") or ""
    passed = inner.get("passed_over")
    return f"{inner.get('kind', 'its source')} {what}".strip() + (f" (not here: {', '.join(passed)})" if passed else "")


def _shown(groups: Sequence[Group]) -> str:
    first = groups[0]
    from ttmbench.scoring.fingerprint import open_upright

    sizes = ", ".join("x".join(map(str, open_upright(image, first.group_id).size)) for image in first.images)
    return f"{first.group_id} ({sizes} px) {' | '.join(first.captions)}"
