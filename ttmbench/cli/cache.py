"""``ttmbench cache``: what the cache holds, whether it is whole, and how to make room."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, warn
from ttmbench._util.progress import progress_iter
from ttmbench.cache.location import cache_folder, parse_size
from ttmbench.cache.maintenance import DAY, KINDS, Damage, Item, find_damage, list_items, prune
from ttmbench.cli.options import USE_CACHE, add_verbosity, names
from ttmbench.data.availability import amount
from ttmbench.errors import UsageError
from ttmbench.report.table import TableColumn, print_table

EXIT_DAMAGED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench cache``."""
    actions = ("ls", "verify", "prune", "path")
    parser.add_argument("action", choices=actions, metavar="ACTION", help=f"One of {', '.join(actions)}")
    parser.add_argument("--use_cache", metavar="DIR", help=USE_CACHE)
    parser.add_argument("--json", action="store_true", help="Print JSON")
    prune = parser.add_argument_group("conditions for prune (all must hold)")
    prune.add_argument("--kind", metavar="A,B", type=names, help="Kinds: scores, blocks, pixels, prepared, temporary")
    prune.add_argument("--task", metavar="GLOB", help="Scores for these tasks")
    prune.add_argument("--model", metavar="GLOB", help="Scores from these models")
    prune.add_argument("--older_than", metavar="DAYS", type=float, help="Files not used for this many days")
    prune.add_argument("--damaged", action="store_true", help="Damaged files")
    prune.add_argument(
        "--max_size", metavar="SIZE", help="Least recently used files, until the rest fits in SIZE (2.5GB)"
    )
    prune.add_argument("--all", action="store_true", help="All files")
    prune.add_argument("--dry_run", action="store_true", help="List the files without removing them")
    add_verbosity(parser)


def cache(options: argparse.Namespace) -> int:
    """Prints what was asked for; 1 if `verify` finds a damaged file."""
    folder = cache_folder(options.use_cache)
    if folder is None:
        raise UsageError("the cache is off (--use_cache or TTMBENCH_CACHE says so); name a folder with --use_cache DIR")
    pruning = {name: getattr(options, name) for name in ("kind", "task", "model", "older_than", "max_size")}
    flags = {name: getattr(options, name) for name in ("damaged", "all", "dry_run")}
    given = [name for name, value in {**pruning, **flags}.items() if value not in (None, False)]
    if given and options.action != "prune":
        raise UsageError(f"--{given[0]} is for `ttmbench cache prune`")
    actions: dict[str, Callable[[Path, argparse.Namespace], int]] = {
        "ls": _ls,
        "verify": _verify,
        "prune": _prune,
        "path": _path,
    }
    return actions[options.action](folder, options)


def _path(folder: Path, options: argparse.Namespace) -> int:
    echo(json.dumps({"path": str(folder), "exists": folder.is_dir()}) if options.json else str(folder))
    return 0


def _ls(folder: Path, options: argparse.Namespace) -> int:
    items = list_items(folder)
    if options.json:
        echo(json.dumps([_as_json(item) for item in items], indent=2, ensure_ascii=False))
    else:
        _print_items(items, f"{folder}: {amount(sum(item.bytes for item in items))}")
    return 0


def _verify(folder: Path, options: argparse.Namespace) -> int:
    def progress(files: Sequence[Path]) -> Iterator[Path]:
        return progress_iter(files, "reading", "files", total=len(files))

    count, damaged = find_damage(folder, progress)
    if options.json:
        found = [{"path": str(one.path), "reason": one.reason} for one in damaged]
        echo(json.dumps({"files": count, "damaged": found}, indent=2, ensure_ascii=False))
    else:
        _print_damage(folder, count, damaged)
    return EXIT_DAMAGED if damaged else 0


def _prune(folder: Path, options: argparse.Namespace) -> int:
    chosen = ("kind", "task", "model", "older_than", "damaged", "max_size", "all")
    if all(getattr(options, name) in (None, False) for name in chosen):
        raise UsageError("say what to remove: --kind, --task, --model, --older_than, --damaged, --max_size or --all")
    limit = None if options.max_size is None else parse_size(options.max_size, "--max_size")
    gone = prune(folder, wanted=_wanted(options), damaged=options.damaged, max_size=limit, dry_run=options.dry_run)
    size = sum(item.bytes for item in gone)
    if options.json:
        description = {"dry_run": options.dry_run, "bytes": size, "removed": [_as_json(item) for item in gone]}
        echo(json.dumps(description, indent=2, ensure_ascii=False))
        return 0
    files = sum(len(item.files) for item in gone)
    would = "would be removed" if options.dry_run else "removed"
    if gone:
        _print_items(gone, would)
    echo(f"{files} files, {amount(size)} {would}")
    return 0


def _wanted(options: argparse.Namespace) -> Callable[[Item], bool]:
    """Whether a file may go; every condition that is given has to hold."""
    unknown = sorted(set(options.kind or ()) - set(KINDS))
    if unknown:
        raise UsageError(f"--kind {unknown[0]} is unknown; known: {', '.join(KINDS)}")
    oldest = None if options.older_than is None else time.time() - options.older_than * DAY

    def wanted(item: Item) -> bool:
        if options.kind and item.kind not in options.kind:
            return False
        if options.task is not None and not fnmatchcase(item.task, options.task):
            return False
        if options.model is not None and not fnmatchcase(item.model, options.model):
            return False
        return oldest is None or item.used <= oldest

    return wanted


def _as_json(item: Item) -> dict[str, Any]:
    description = {name: value for name, value in vars(item).items() if name != "files"}
    return {**description, "used": _date(item.used), "files": len(item.files), "path": str(item.files[0])}


def _print_items(items: Sequence[Item], title: str) -> None:
    if not items:
        echo(f"{title}, nothing kept")
        return
    echo(title)
    columns = [TableColumn("kind", "key"), TableColumn("model", "key"), TableColumn("task", "key")]
    columns += [TableColumn(name, "number") for name in ("version", "groups", "size", "used")]
    rows = [
        [
            item.kind + (" (damaged)" if item.damaged else ""),
            _clean(item.model) or "-",
            _clean(item.task) or "-",
            "-" if item.task_version is None else _clean(str(item.task_version)),
            "-" if item.n_groups is None else str(item.n_groups),
            amount(item.bytes),
            _date(item.used),
            item.name,
        ]
        for item in items
    ]
    print_table([*columns, TableColumn("name")], rows)


def _print_damage(folder: Path, count: int, damaged: Sequence[Damage]) -> None:
    for one in damaged:
        echo(f"{one.path}: {_clean(one.reason)}")
    if damaged:
        warn(f"{len(damaged)} of {count} files are damaged; `ttmbench cache prune --damaged` removes them")
    else:
        echo(f"{folder}: {count} files, all whole")


def _clean(text: str) -> str:
    """Text of a file without what a terminal would act on."""
    return "".join(letter for letter in text if letter.isprintable())


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="minutes")[:16]
