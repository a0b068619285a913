"""Addresses (``s3://...``) as arguments of commands that read results: fetched before a command works."""

from __future__ import annotations

import argparse

from ttmbench._util.option_values import is_address
from ttmbench.errors import UsageError

READ = {
    "report": "path",
    "leaderboard": "folder",
    "compare": "runs",
    "export": "runs",
    "validate": "tasks",
    "score": "scores",
}
"""Command -> the option that names what it reads, which may be an address."""
WEB_PAGES = ("source_url", "weights_url", "files_url", "contact", "note", "docs")
"""Options whose values are shown and not read: addresses of pages, and texts that may hold some."""


def fetch_addresses(command: str, options: argparse.Namespace) -> None:
    """Replaces addresses that a command of `READ` reads by local copies; UsageError if it would write into one."""
    value = getattr(options, READ[command])
    paths = value if isinstance(value, list) else [value]
    if not any(map(is_address, paths)):
        return
    from ttmbench._util.remote import fetched

    if command in ("report", "leaderboard") and not (options.output_path or getattr(options, "site", None)):
        raise UsageError(f"{command} of an address needs --output_path: a local place for what it writes")
    paths = [str(fetched(path, command)) if is_address(path) else path for path in paths]
    setattr(options, READ[command], paths if isinstance(value, list) else paths[0])
