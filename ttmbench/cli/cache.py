"""``ttmbench cache``: list and clean the score cache."""

from __future__ import annotations

import argparse
import json
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
        return 0
    if options.action == "prune" and given in ([], ["dry_run"]):
        raise UsageError("prune needs --task, --model, --older_than or --all, which choose the scores")
    since = time.time() - (options.older_than or 0) * _DAY
    chosen = [
        entry
        for entry in sorted(_entries(folder), key=lambda entry: (entry["task"], entry["model"], entry["files"]))
        if (options.task is None or fnmatchcase(entry["task"], options.task))
        and (options.model is None or fnmatchcase(entry["model"], options.model))
        and (options.older_than is None or entry["used"] <= since)
    ]
    for path in (path for entry in chosen for path in map(Path, entry["files"])) if options.action == "prune" else ():
        if options.dry_run:
            break
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
    columns = [TableColumn("model", "key"), TableColumn("task", "key"), TableColumn("size", "number")]
    columns += [TableColumn("used", "number", 1), TableColumn("state")]
    rows = [
        [
            entry["model"] or "-",
            entry["task"] or "-",
            amount(entry["bytes"]),
            datetime.fromtimestamp(entry["used"]).astimezone().isoformat(sep=" ", timespec="minutes")[:16],
            f"unfinished: {entry['blocks']} blocks" if entry["blocks"] else "done" if entry["task"] else "damaged",
        ]
        for entry in chosen
    ]
    if rows:
        print_table(columns, rows)
    return 0


def _entries(folder: Path) -> Iterator[Record]:
    """The scores of a model on a task, or finished blocks of them; links are not followed.

    The model is empty for blocks, and the task too where no file can be read.
    """
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
