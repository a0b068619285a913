"""``ttmbench cache``: list and clean the score cache."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo
from ttmbench.cli.parser import add_run_options
from ttmbench.data.availability import amount
from ttmbench.data.paths import cache_folder
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.report.terminal import TableColumn, print_table

_CONDITIONS = ("task", "model", "older_than", "all")
_DAY = 24 * 60 * 60
_FOLDER = "scores"  # of the cache
_FILE = re.compile(r"scores/[0-9a-f]{32}/[0-9a-f]{64}/((scores|block-\d{6})\.safetensors|\.[\w.-]+\.tmp)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench cache``."""
    actions = ("ls", "prune", "path")
    parser.add_argument("action", choices=actions, metavar="ACTION", help=f"One of {', '.join(actions)}")
    add_run_options(parser, "use_cache", title="")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    add = parser.add_argument_group("conditions for prune (all must hold)").add_argument
    add("--task", metavar="GLOB", help="Scores for these tasks")
    add("--model", metavar="GLOB", help="Scores from these models")
    add("--older_than", metavar="DAYS", type=float, help="Scores not used for this many days")
    add("--all", action="store_true", help="All scores")
    add("--dry_run", action="store_true", help="List the scores without removing them")


def cache(options: argparse.Namespace) -> int:
    """Perform the action."""
    folder = cache_folder(options.use_cache)
    if folder is None:
        raise UsageError("the cache is off (--use_cache or TTMBENCH_CACHE); choose a directory with --use_cache DIR")
    given = [name for name in (*_CONDITIONS, "dry_run") if getattr(options, name) not in (None, False)]
    if given and options.action != "prune":
        raise UsageError(f"--{given[0]} is for `ttmbench cache prune`")
    if options.action == "path":
        echo(json.dumps({"path": str(folder), "exists": folder.is_dir()}) if options.json else str(folder))
    elif options.action == "ls":
        _print(entries(folder), f"{folder}: ", options.json)
    else:
        if not given or given == ["dry_run"]:
            raise UsageError("prune needs --task, --model, --older_than or --all, which choose the scores")
        since = time.time() - (options.older_than or 0) * _DAY
        chosen = [
            entry
            for entry in entries(folder)
            if (options.task is None or fnmatchcase(entry.task, options.task))
            and (options.model is None or fnmatchcase(entry.model, options.model))
            and (options.older_than is None or entry.used <= since)
        ]
        if not options.dry_run:
            remove(chosen)
        _print(chosen, "would be removed: " if options.dry_run else "removed: ", options.json)
    return 0


def _print(found: Sequence[Entry], title: str, as_json: bool) -> None:
    if as_json:
        listed = [{**vars(entry), "files": [str(path) for path in entry.files]} for entry in found]
        echo(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    echo(f"{title}{len(found)} entr{'y' if len(found) == 1 else 'ies'}, {amount(sum(entry.bytes for entry in found))}")
    columns = [TableColumn("model", "key"), TableColumn("task", "key"), TableColumn("size", "number")]
    columns += [TableColumn("used", "number", 1), TableColumn("state")]
    rows = [
        [
            entry.model or "-",
            entry.task or "-",
            amount(entry.bytes),
            datetime.fromtimestamp(entry.used).astimezone().isoformat(sep=" ", timespec="minutes")[:16],
            f"unfinished: {entry.blocks} blocks" if entry.blocks else "done" if entry.task else "damaged",
        ]
        for entry in found
    ]
    if rows:
        print_table(columns, rows)


@dataclass(frozen=True)
class Entry:
    """The scores of a model on a task, or finished blocks of them."""

    model: str  # empty for blocks
    task: str  # empty if no file can be read
    blocks: int  # finished blocks of an unfinished run
    bytes: int  # of all files
    used: float  # when it was written or used last, seconds since 1970
    files: tuple[Path, ...]


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, by task and model; TtmbenchError if it cannot be read. Links are not followed."""

    def cannot(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise TtmbenchError(f"{error.filename} cannot be read: {error.strerror or error}") from None

    found: dict[Path, list[Path]] = {}
    root = folder / _FOLDER
    for parent, _, names in () if root.is_symlink() else os.walk(root, onerror=cannot):
        for path in (Path(parent) / name for name in sorted(names)):
            if _FILE.fullmatch(path.relative_to(folder).as_posix()) and not path.is_symlink():
                found.setdefault(path.parent, []).append(path)
    return sorted(map(_entry, found.values()), key=lambda entry: (entry.task, entry.model, entry.files))


def remove(removed: Iterable[Entry]) -> None:
    """Removes entries; TtmbenchError if a file cannot be removed."""
    for entry in removed:
        for path in entry.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise TtmbenchError(f"{path} cannot be removed: {error.strerror or error}") from None
        with suppress(OSError):  # other files lie there
            entry.files[0].parent.rmdir()
            entry.files[0].parent.parent.rmdir()


def _entry(files: Sequence[Path]) -> Entry:
    stats, headers = [], [_header(path) for path in files]
    for path in files:
        with suppress(FileNotFoundError):  # removed meanwhile
            stats.append(path.stat())
    return Entry(
        model=next((str(about["model_name"]) for about in headers if "model_name" in about), ""),
        task=next((str(about["task"]) for about in headers if "task" in about), ""),
        blocks=sum(path.name.startswith("block-") for path in files),
        bytes=sum(stat.st_size for stat in stats),
        used=max((stat.st_mtime for stat in stats), default=0.0),
        files=tuple(files),
    )


def _header(path: Path) -> dict[str, Any]:
    """What a file states about itself; nothing if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["ttmbench"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return {}
    return about if isinstance(about, dict) else {}
