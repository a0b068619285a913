"""``ttmbench cache``: list, check and clean the score cache."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from ttmbench._util.console import echo, progress_iter, warn
from ttmbench._util.option_values import split_names
from ttmbench.cache.entry import cache_folder, parse_size
from ttmbench.cache.maintenance import DAY, KINDS, Item, list_items, prune, read_items
from ttmbench.cli.options import USE_CACHE
from ttmbench.data.availability import amount
from ttmbench.errors import UsageError
from ttmbench.report.table import TableColumn, print_table

EXIT_DAMAGED = 1
_CONDITIONS = ("kind", "task", "model", "older_than", "max_size", "damaged", "outdated", "all")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench cache``."""
    actions = ("ls", "verify", "prune", "path")
    parser.add_argument("action", choices=actions, metavar="ACTION", help=f"One of {', '.join(actions)}")
    parser.add_argument("--use_cache", metavar="DIR", help=USE_CACHE)
    parser.add_argument("--json", action="store_true", help="Print JSON")
    add = parser.add_argument_group("conditions for prune (all must hold)").add_argument
    add("--kind", metavar="A,B", type=split_names, help="Kinds: scores, blocks, pixels, prepared, temporary")
    add("--task", metavar="GLOB", help="Scores for these tasks")
    add("--model", metavar="GLOB", help="Scores from these models")
    add("--older_than", metavar="DAYS", type=float, help="Files not used for this many days")
    add("--damaged", action="store_true", help="Damaged files")
    add("--outdated", action="store_true", help="Files of other versions of ttmbench, which are not used")
    add("--max_size", metavar="SIZE", help="Least recently used files, until the rest fits in SIZE (2.5GB)")
    add("--all", action="store_true", help="All files")
    add("--dry_run", action="store_true", help="List the files without removing them")


def cache(options: argparse.Namespace) -> int:
    """Perform the action; exit code 1 if `verify` finds a damaged file."""
    folder = cache_folder(options.use_cache)
    if folder is None:
        raise UsageError("the cache is off (--use_cache or TTMBENCH_CACHE); choose a directory with --use_cache DIR")
    chosen = [name for name in (*_CONDITIONS, "dry_run") if getattr(options, name) not in (None, False)]
    if chosen and options.action != "prune":
        raise UsageError(f"--{chosen[0]} is for `ttmbench cache prune`")
    if options.action == "verify":
        return _verify(folder, options)
    if options.action == "prune":
        _prune(folder, options)
    elif options.action == "path":
        echo(json.dumps({"path": str(folder), "exists": folder.is_dir()}) if options.json else str(folder))
    elif options.json:
        _print_json([_as_json(item) for item in list_items(folder)])
    else:
        items = list_items(folder)
        _print_items(items, f"{folder}: {_size(items)}")
        _warn_outdated(items)
    return 0


def _verify(folder: Path, options: argparse.Namespace) -> int:
    def progress(files: Sequence[Path]) -> Iterator[Path]:
        return progress_iter(files, "reading", "files", total=len(files))

    items = read_items(folder, progress)
    damaged = [item for item in items if item.damaged is not None]
    if options.json:
        listed = [{"path": str(item.files[0]), "reason": item.damaged} for item in damaged]
        _print_json({"files": len(items), "damaged": listed})
        return EXIT_DAMAGED if damaged else 0
    for item in damaged:
        echo(f"{item.files[0]}: {item.damaged}")
    if damaged:
        warn(f"{len(damaged)} of {len(items)} files are damaged; `ttmbench cache prune --damaged` removes them")
    else:
        echo(f"{folder}: {len(items)} files, none damaged")
    _warn_outdated(items)
    return EXIT_DAMAGED if damaged else 0


def _prune(folder: Path, options: argparse.Namespace) -> None:
    if all(getattr(options, name) in (None, False) for name in _CONDITIONS):
        raise UsageError(
            "prune needs --kind, --task, --model, --older_than, --damaged, --outdated, --max_size or --all, which "
            "choose the files to remove"
        )
    removed = prune(
        folder,
        wanted=_condition(options),
        damaged=options.damaged,
        outdated=options.outdated,
        max_size=None if options.max_size is None else parse_size(options.max_size, "--max_size"),
        dry_run=options.dry_run,
    )
    if options.json:
        size = sum(item.bytes for item in removed)
        _print_json({"dry_run": options.dry_run, "bytes": size, "removed": [_as_json(item) for item in removed]})
        return
    done = "would be removed" if options.dry_run else "removed"
    if removed:
        _print_items(removed, done)
    echo(f"{sum(len(item.files) for item in removed)} files, {_size(removed)} {done}")


def _condition(options: argparse.Namespace) -> Callable[[Item], bool]:
    """Whether a file meets every given condition."""
    unknown = sorted(set(options.kind or ()) - set(KINDS))
    if unknown:
        raise UsageError(f"--kind must be {', '.join(KINDS)}, got {unknown[0]}")
    oldest = None if options.older_than is None else time.time() - options.older_than * DAY

    def is_met(item: Item) -> bool:
        return (
            (not options.kind or item.kind in options.kind)
            and (options.task is None or fnmatchcase(item.task, options.task))
            and (options.model is None or fnmatchcase(item.model, options.model))
            and (oldest is None or item.used <= oldest)
        )

    return is_met


def _size(items: Sequence[Item]) -> str:
    return amount(sum(item.bytes for item in items))


def _print_json(value: object) -> None:
    echo(json.dumps(value, indent=2, ensure_ascii=False))


def _as_json(item: Item) -> dict[str, object]:
    description = {name: value for name, value in vars(item).items() if name != "files"}
    return {**description, "used": _date(item.used), "files": len(item.files), "path": str(item.files[0])}


def _print_items(items: Sequence[Item], title: str) -> None:
    if not items:
        echo(f"{title}, empty")
        return
    echo(title)
    columns = [TableColumn("kind", "key"), TableColumn("model", "key"), TableColumn("task", "key")]
    columns += [TableColumn("version", "number"), TableColumn("groups", "number", 1), TableColumn("size", "number", 2)]
    columns += [TableColumn("used", "number", 1), TableColumn("name")]
    rows = [
        [
            item.kind + (" (damaged)" if item.damaged else " (outdated)" if item.outdated else ""),
            item.model or "-",
            item.task or "-",
            "-" if item.task_version is None else str(item.task_version),
            "-" if item.n_groups is None else str(item.n_groups),
            amount(item.bytes),
            _date(item.used),
            item.name,
        ]
        for item in items
    ]
    print_table(columns, rows)


def _warn_outdated(items: Sequence[Item]) -> None:
    outdated = [item for item in items if item.outdated is not None]
    if outdated:
        warn(
            f"{sum(len(item.files) for item in outdated)} files, {_size(outdated)}, were written by another version of "
            "ttmbench and are not used by this one; `ttmbench cache prune --outdated` removes them"
        )


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="minutes")[:16]
