"""Results at an address (``s3://bucket/results``), fetched to where every reader finds them."""

from __future__ import annotations

from pathlib import Path

from ttmbench._util.limits import limit, raised_by
from ttmbench._util.option_values import is_address, read_place
from ttmbench._util.remote import RemoteError, RemoteFolder, folder_and_name
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import UsageError


def place_of(given: object, what: str = "the path") -> Path:
    """A local path; results at an address are fetched with the files beside them. Errors as for `fetch_results`."""
    location = read_place(what, given, may_be_address=True)
    return fetch_results(location, what) if is_address(location) else Path(location)


def fetch_results(address: str, what: str, beside: bool = True) -> Path:
    """Fetches a file, or the results documents below a folder, to a folder that is removed when the process ends.

    ``what`` is the argument, for messages; ``beside``: also the files that documents name. UsageError if there is
    nothing; RemoteError if it cannot be read, or is larger than the limits allow.
    """
    remote = RemoteFolder(address, what)
    if remote.is_file():
        folder, name = folder_and_name(address, what)
        remote = RemoteFolder(folder, what)
        remote.fetch(name, "text_bytes" if name.endswith((".json", ".jsonl")) else "array_bytes")
        if beside:
            fetch_artifacts(remote, name)
        return remote.copy / name
    sizes = {name: size for name, size in remote.files().items() if name.endswith(".json")}
    if not sizes:
        raise UsageError(f"{what} {remote.url}: there is no such file, and no folder with results in it")
    if sum(sizes.values()) > limit("remote_bytes"):
        raise RemoteError(f"{remote.url} has {sum(sizes.values())} bytes of JSON; {raised_by('remote_bytes')}")
    for name in sizes:
        remote.fetch(name, "text_bytes")
        if beside:
            fetch_artifacts(remote, name)
    return remote.copy


def fetch_artifacts(remote: RemoteFolder, name: str) -> None:
    """Fetches the files beside a results document that it names; its readers report missing ones."""
    try:
        content = read_json(remote.copy / name) if name.endswith(".json") else None
    except Unreadable:
        return
    artifacts = content.get("artifacts") if isinstance(content, dict) and "schema_version" in content else None
    for file in artifacts if isinstance(artifacts, dict) else ():
        if Path(file).name == file and "\\" not in file and not file.startswith("."):
            beside = "/".join([*name.split("/")[:-1], file])
            remote.fetch(beside, "text_bytes" if file.endswith(".jsonl") else "array_bytes")
