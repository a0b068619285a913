"""``ttmbench cache``: list and clean the score cache."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from ttmbench._util.console import echo
from ttmbench.cli.parser import add_run_options
from ttmbench.data.availability import amount
from ttmbench.data.paths import cache_folder
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.report.terminal import TableColumn, print_table
from ttmbench.types import Record

_OF_PRUNE = ("task", "model", "older_than", "all", "dry_run")
_FOLDER = "scores"  # of the cache
_FILE = re.compile(r"scores/[0-9a-f]{32}/[0-9a-f]{64}/((scores|block-\d{6})\.safetensors|\.[\w.-]+\.tmp)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench cache``."""
    parser.add_argument("action", choices=("ls", "prune"), metavar="ACTION", help="One of ls, prune")
    add_run_options(parser, "use_cache", title="")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    add = parser.add_argument_group("conditions for prune (all must hold)").add_argument
    add("--task", metavar="GLOB", help="Scores for these tasks")
    add("--model", metavar="GLOB", help="Scores from these models")
    add("--older_than", metavar="DAYS", type=float, help="Scores not used for this many days")
    add("--all", action="store_true", default=None, help="All scores")
    add("--dry_run", action="store_true", default=None, help="List the scores without removing them")


def cache(options: argparse.Namespace) -> int:
    """Perform the action."""
    folder = cache_folder(options.use_cache)
    if folder is None:
        raise UsageError("the cache is off (--use_cache or TTMBENCH_CACHE); choose a directory with --use_cache DIR")
    given = [name for name in _OF_PRUNE if getattr(options, name) is not None]
    if given and options.action != "prune":
        raise UsageError(f"--{given[0]} is for `ttmbench cache prune`")
    if options.action == "prune" and given in ([], ["dry_run"]):
        raise UsageError("prune needs --task, --model, --older_than or --all, which choose the scores")
    since = math.inf if options.older_than is None else time.time() - options.older_than * 86400
    globs = {name: getattr(options, name) for name in ("task", "model") if name in given}
    chosen = [
        entry
        for entry in sorted(_entries(folder), key=lambda entry: (entry["task"], entry["model"], entry["files"]))
        if all(fnmatchcase(entry[name], glob) for name, glob in globs.items()) and entry["used"] <= since
    ]
    removes = options.action == "prune" and not options.dry_run
    for path in (Path(file) for entry in chosen if removes for file in entry["files"]):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TtmbenchError(f"{path} cannot be removed: {error.strerror or error}") from None
        with suppress(OSError):  # other files lie there
            path.parent.rmdir()
            path.parent.parent.rmdir()
    if options.json:
        echo(json.dumps(chosen, indent=2, ensure_ascii=False))
        return 0
    done = f"{folder}: " if options.action == "ls" else "would be removed: " if options.dry_run else "removed: "
    count = f"{len(chosen)} entr{'y' if len(chosen) == 1 else 'ies'}"
    echo(f"{done}{count}, {amount(sum(entry['bytes'] for entry in chosen))}")
    kinds = {"model": "key", "task": "key", "size": "number", "used": "number", "state": "text"}
    rows = []
    for entry in chosen:
        state = f"unfinished: {entry['blocks']} blocks" if entry["blocks"] else "done" if entry["task"] else "damaged"
        used = f"{datetime.fromtimestamp(entry['used']):%Y-%m-%d %H:%M}"
        rows.append([entry["model"] or "-", entry["task"] or "-", amount(entry["bytes"]), used, state])
    if rows:
        print_table([TableColumn(name, kind) for name, kind in kinds.items()], rows)
    return 0


def _entries(folder: Path) -> Iterator[Record]:
    """Scores of a model on a task, or finished blocks (no model), or what cannot be read (no task); no links."""
    from safetensors import SafetensorError, safe_open

    def cannot(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise TtmbenchError(f"{error.filename} cannot be read: {error.strerror or error}") from None

    damaged, root = (SafetensorError, OSError, ValueError, KeyError, TypeError), folder / _FOLDER
    for parent, _, names in () if root.is_symlink() else os.walk(root, onerror=cannot):
        paths = [Path(parent) / name for name in sorted(names)]
        stats, about = dict[Path, os.stat_result](), Record()
        for path in paths:
            if path.is_symlink() or not _FILE.fullmatch(path.relative_to(folder).as_posix()):
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                stats[path] = path.stat()
            with suppress(*damaged), safe_open(path, framework="numpy") as file:
                about = {**json.loads((file.metadata() or {})["ttmbench"]), **about}
        if stats:
            yield {
                "model": str(about.get("model_name", "")),
                "task": str(about.get("task", "")),
                "blocks": sum(path.name.startswith("block-") for path in stats),
                "bytes": sum(one.st_size for one in stats.values()),
                "used": max(one.st_mtime for one in stats.values()),
                "files": list(map(str, stats)),
            }
