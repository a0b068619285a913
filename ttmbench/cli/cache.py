"""``ttmbench cache``: list and clean the score cache."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase

from ttmbench._util.console import echo
from ttmbench.cache.folder import Entry, cache_folder, entries, remove
from ttmbench.cli.parser import add_run_options
from ttmbench.data.availability import amount
from ttmbench.errors import UsageError
from ttmbench.report.table import TableColumn, print_table

_CONDITIONS = ("task", "model", "older_than", "all")
_DAY = 24 * 60 * 60


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
