"""Addresses (``s3://...``) as options of commands: fetched before a command works, and sent after it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ttmbench._util.option_values import is_address
from ttmbench.errors import AssertionNotMet

if TYPE_CHECKING:
    from ttmbench._util.remote import RemoteFolder

READ = {
    "report": "path",
    "leaderboard": "folder",
    "compare": "runs",
    "export": "runs",
    "validate": "tasks",
    "score": "scores",
}
"""Command -> the option that names what it reads."""
TAKEN = {
    "run": {"output_path"},
    "report": {"path", "output_path"},
    "leaderboard": {"folder", "output_path"},
    "compare": {"runs", "output_path"},
    "export": {"runs", "output_path"},
    "validate": {"tasks"},
    "score": {"scores", "output_path"},
}
"""Command -> its options that take an address."""
WEB_PAGES = ("source_url", "docs")
"""Options whose values are shown and not read: addresses of pages, and texts that may hold some."""


@contextmanager
def local_copies(command: str, options: argparse.Namespace) -> Iterator[None]:
    """Replaces addresses in the options by local paths, and sends afterwards what was written for an address.

    A run sends its files itself, task by task.

    Args:
        command: one of `READ`.
        options: as parsed; changed.
    """
    value = getattr(options, READ[command])
    address = _output_address(command, options, value)
    paths = value if isinstance(value, list) else [value]
    if any(map(is_address, paths)):
        from ttmbench.results.remote import fetch_results

        with_samples = command not in ("leaderboard", "export")
        paths = [str(fetch_results(path, command, beside=with_samples)) if is_address(path) else path for path in paths]
    setattr(options, READ[command], paths if isinstance(value, list) else paths[0])
    remote = None if address is None else _prepare_output(command, address, options)
    try:
        yield
    except AssertionNotMet:  # results were written before they were checked
        if remote is not None:
            remote.send()
        raise
    if remote is not None:
        remote.send()


def _output_address(command: str, options: argparse.Namespace, read: str) -> str | None:
    """The address to write to: the given one, else where the command reads, if that is an address."""
    address: str | None = getattr(options, "output_path", None)
    if address is None and command in ("report", "leaderboard") and is_address(read):
        from ttmbench._util.remote import folder_and_name

        is_file = read.partition("?")[0].endswith(".json")
        base, mark, query = (folder_and_name(read, command)[0] if is_file else read).partition("?")
        page = "/report.html" if command == "report" else ""
        address = f"{base.rstrip('/')}{page}{mark}{query}"
    return address if is_address(address) else None


def _prepare_output(command: str, address: str, options: argparse.Namespace) -> RemoteFolder:
    """A local folder to write into, with a copy of the file that exists at the address."""
    from ttmbench._util.remote import RemoteFolder, folder_and_name
    from ttmbench.results.remote import fetch_artifacts

    is_file = command != "leaderboard" and bool(PurePosixPath(address.partition("?")[0]).suffix)
    folder, name = folder_and_name(address, "--output_path") if is_file else (address, "")
    remote = RemoteFolder(folder, "--output_path")
    if is_file and remote.fetch(name, "text_bytes") and command == "score":
        fetch_artifacts(remote, name)
    options.output_path = str(remote.copy / name)
    return remote
