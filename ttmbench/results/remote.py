"""Results at an address (``s3://bucket/results``), fetched to where every reader finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.limits import limit, raised_by
from ttmbench._util.places import is_address, read_place
from ttmbench._util.remote import RemoteError, RemoteFolder, folder_and_name
from ttmbench._util.remote_copy import RemoteCopy
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import UsageError


def place_of(given: Any, what: str = "the path") -> Path:
    """A file or folder as a path of this machine.

    Args:
        given: a path; or an address, whose results and the files beside them are then fetched.
        what: the argument, for messages.

    Returns:
        The path.

    Raises:
        UsageError: nothing can be there.
        RemoteError: it cannot be read.
    """
    place = read_place(what, given, may_be_address=True)
    return fetch_results(place, what) if is_address(place) else Path(place)


def fetch_results(address: str, what: str, beside: bool = True) -> Path:
    """Fetches a file, or the results documents below a folder, to a folder that is gone when the process ends.

    Args:
        address: of a file or folder.
        what: the argument, for messages.
        beside: also fetch the files that documents name.

    Returns:
        The file or folder here.

    Raises:
        UsageError: there is nothing.
        RemoteError: it cannot be read, or is larger than the limits allow.
    """
    remote = RemoteFolder.at(address, what)
    if remote.is_file():
        folder, name = folder_and_name(address, what)
        copy = RemoteCopy.temporary(RemoteFolder.at(folder, what))
        copy.fetch(name, "text_bytes" if name.endswith((".json", ".jsonl")) else "array_bytes")
        if beside and name.endswith(".json"):
            fetch_artifacts(copy, name)
        return copy.folder / name
    sizes = {name: size for name, size in remote.files().items() if name.endswith(".json")}
    if not sizes:
        raise UsageError(f"{what} {remote.url}: there is no such file, and no folder with results in it")
    if sum(sizes.values()) > limit("remote_bytes"):
        raise RemoteError(f"{remote.url} has {sum(sizes.values())} bytes of JSON; {raised_by('remote_bytes')}")
    copy = RemoteCopy.temporary(remote)
    for name in sizes:
        copy.fetch(name, "text_bytes")
        if beside:
            fetch_artifacts(copy, name)
    return copy.folder


def fetch_artifacts(copy: RemoteCopy, name: str) -> None:
    """Fetches the files that a results document here names, those left out that are here as it says.

    What is not there, or is no name of a file beside it, is left to whoever reads the document.
    """
    folder = name.rpartition("/")[0]
    for file, about in _artifacts(copy.folder / name):
        beside = f"{folder}/{file}" if folder else file
        path = copy.folder / beside
        if not path.is_file() or copy.digest(beside) != about.get("sha256"):
            copy.fetch(beside, "text_bytes" if file.endswith(".jsonl") else "array_bytes")


def _artifacts(document: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and entries of a document's files that lie beside it; none for what is no document."""
    try:
        content = read_json(document)
    except Unreadable:
        return
    artifacts = content.get("artifacts") if isinstance(content, dict) and "schema_version" in content else None
    for name, about in artifacts.items() if isinstance(artifacts, dict) else ():
        if Path(name).name == name and "\\" not in name and not name.startswith(".") and isinstance(about, dict):
            yield name, about
