"""Which options of which commands take an address (``s3://...``), and how these come to work on files at hand."""

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
    "report": "place",
    "leaderboard": "folder",
    "compare": "runs",
    "export": "runs",
    "validate": "tasks",
    "score": "scores",
}
"""Command -> the option that names what it reads."""
_DOCUMENTS_ALONE = ("leaderboard", "export")  # which read no samples
_WRITTEN = ("report", "leaderboard", "compare", "export", "score")
TAKEN = {
    "run": {"output_path"},
    "report": {"place", "output_path"},
    "leaderboard": {"folder", "output_path"},
    "compare": {"runs", "output_path"},
    "export": {"runs", "output_path"},
    "validate": {"tasks"},
    "score": {"scores", "output_path"},
}
"""Command -> its options that take an address."""


@contextmanager
def addresses_at_hand(command: str, options: argparse.Namespace) -> Iterator[None]:
    """Fetches what is read from addresses, puts paths into the options, and sends what was written for addresses.

    A run does the same itself, task after task.

    Args:
        command: its name, one of `READ`.
        options: as they were parsed; changed.

    Yields:
        Nothing; inside, the options name files of this machine.
    """
    given = getattr(options, READ[command])
    address = _output(command, options, given) if command in _WRITTEN else None
    found = [_fetched(command, one) for one in (given if isinstance(given, list) else [given])]
    setattr(options, READ[command], found if isinstance(given, list) else found[0])
    remote = None if address is None else _prepare_output(command, address, options)
    try:
        yield
    except AssertionNotMet:  # what was computed is written all the same
        if remote is not None:
            remote.send()
        raise
    if remote is not None:
        remote.send()


def _fetched(command: str, given: str) -> str:
    if not is_address(given):
        return given
    from ttmbench.results.remote import fetch_results

    return str(fetch_results(given, command, beside=command not in _DOCUMENTS_ALONE))


def _output(command: str, options: argparse.Namespace, read: str) -> str | None:
    """The address to write to: as given, else where the command reads, if that is one."""
    given: str | None = options.output_path
    if given is None and command in ("report", "leaderboard") and is_address(read):
        from ttmbench._util.remote import folder_and_name

        is_file = read.partition("?")[0].endswith(".json")
        base, mark, query = (folder_and_name(read, command)[0] if is_file else read).partition("?")
        page = "/report.html" if command == "report" else ""
        given = f"{base.rstrip('/')}{page}{mark}{query}"
    return given if is_address(given) else None


def _prepare_output(command: str, address: str, options: argparse.Namespace) -> RemoteFolder:
    """A folder to write into; a file that lies at the address already is put there, with what belongs to it."""
    from ttmbench._util.remote import RemoteFolder, folder_and_name
    from ttmbench.results.remote import fetch_artifacts

    is_file = command != "leaderboard" and bool(PurePosixPath(address.partition("?")[0]).suffix)
    folder, name = folder_and_name(address, "--output_path") if is_file else (address, "")
    remote = RemoteFolder(folder, "--output_path")
    if is_file and remote.fetch(name, "text_bytes") and command == "score":
        fetch_artifacts(remote, name)
    options.output_path = str(remote.copy / name)
    return remote
