"""Results documents read from disk: checked, brought to the present schema, or refused with a reason.

Files of other versions, half-written and damaged ones lie among good ones. Whoever reads one file gets an error that
names it; whoever walks a folder gets the reason beside the path and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.results.check import wrong_with
from ttmbench.results.files import SCHEMA_VERSION, schema

Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: Mapping[str, tuple[str, Migration]] = {}
"""Schema version -> (the next version, what makes a document of it). 1.0 is the first, so nothing is older yet."""

# A task in ``results`` has to be in each of these, or its numbers cannot be told apart or explained.
_BY_TASK: Mapping[str, type] = {
    **dict.fromkeys(("tracks", "ci", "chance", "ties", "configs", "n-samples", "higher_is_better", "datasets"), dict),
    "versions": int,
    "task_hashes": str,
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "null": (type(None),),
}


@dataclass(frozen=True)
class Found:
    """A JSON file of a folder.

    Attributes:
        path: the file.
        document: the results document, None if it was skipped.
        skipped: why it was, None if it was not.
    """

    path: Path
    document: dict[str, Any] | None
    skipped: str | None = None


def read_document(path: Path) -> dict[str, Any]:
    """Reads a results document, of this schema or of one that can be brought to it.

    Args:
        path: the file.

    Returns:
        The document. One of a newer minor version keeps the keys that this version does not know.

    Raises:
        DataError: it cannot be read, is no results document, is of another major version, or lacks a key; the file
            is named, and the key.
    """
    try:
        return checked(_parse(path), MIGRATIONS)
    except _RefusedError as refused:
        raise DataError(f"{path}: {refused}") from None


def walk_documents(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[Found]:
    """Every results document below a folder, and every other JSON file with the reason why it is none.

    Args:
        folder: searched with all folders below it, hidden ones aside.
        without: names of files to pass over.

    Yields:
        The files in the order of their paths.
    """
    for path in sorted(folder.rglob("*.json")):
        # What a stopped run goes on from lies in a hidden folder.
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.name in without or path.is_symlink() or not path.is_file():
            continue
        try:
            yield Found(path, checked(_parse(path), MIGRATIONS))
        except _RefusedError as refused:
            yield Found(path, None, str(refused))


def checked(content: Any, migrations: Mapping[str, tuple[str, Migration]]) -> dict[str, Any]:
    """Brings a parsed document to the present schema and checks that what readers need is there.

    Args:
        content: what the JSON holds.
        migrations: version -> (the next version, what makes a document of it).

    Returns:
        The document.
    """
    if not isinstance(content, dict):
        raise _RefusedError(f"is no results document of ttmbench (a JSON {type(content).__name__}, not an object)")
    if "schema_version" not in content:
        raise _RefusedError("is no results document of ttmbench (it has no schema_version)")
    document = dict(content)
    seen: set[str] = set()
    while (version := str(document["schema_version"])) in migrations and version not in seen:
        seen.add(version)
        after, migrate = migrations[version]
        try:
            document = {**migrate(document), "schema_version": after}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _refuse(f"has schema {version} and cannot be brought to {after} ({type(error).__name__}: {error})")
    _check_version(str(document["schema_version"]))
    _check_keys(document)
    wrong = wrong_with(document)
    if wrong is not None:
        _refuse(wrong)
    return document


def task_of_artifact(name: str, about: Mapping[str, Any], tasks: Collection[str]) -> str | None:
    """The task that a file beside a results document is of.

    Args:
        name: of the file.
        about: what the document says of it.
        tasks: of the document.

    Returns:
        The task. Older documents do not state it: then the one that the name holds, which is the longest of several,
        since one task may be called as another begins. None if there is none.

    >>> task_of_artifact("x_samples_a_2b.jsonl", {"kind": "samples"}, ["b", "2b", "a_2b"])
    'a_2b'
    """
    kind, stem = about.get("kind"), name.rsplit(".", 1)[0]
    named = (task for task in tasks if name.startswith(f"{kind}_{task}_2") or stem.endswith(f"_{kind}_{task}"))
    stated = about.get("task")
    return str(stated) if stated in tasks else max(named, key=len, default=None)


class _RefusedError(Exception):
    """Why a file is not taken, in words that follow its name."""


def _refuse(why: str) -> NoReturn:
    raise _RefusedError(why) from None


def _parse(path: Path) -> Any:
    try:
        return read_json(path)
    except Unreadable as error:
        _refuse(str(error))


def _check_version(version: str) -> None:
    known = SCHEMA_VERSION.split(".")[0]
    major, dot, minor = version.partition(".")
    if not (major.isdecimal() and dot and minor.isdecimal()):
        _refuse(f"has schema {version!r:.40}, which is no version; this version of ttmbench reads {known}.x")
    if int(major) > int(known):
        _refuse(f"has schema {version}, which is newer than {known}.x; upgrade ttmbench to read it")
    if int(major) < int(known):
        _refuse(f"has schema {version}, which is older than {known}.x and cannot be brought to it; run it again")


def _check_keys(document: Mapping[str, Any]) -> None:
    """The required keys of the shipped JSON Schema, their types, and every task in every map that is by task."""
    about = schema("results")
    for key in about["required"]:
        if key not in document:
            _refuse(f"is no complete results document (it has no '{key}')")
        wanted = about["properties"][key].get("type", [])
        names = [wanted] if isinstance(wanted, str) else wanted
        if names and not isinstance(document[key], tuple(kind for name in names for kind in _TYPES[name])):
            _refuse(f"is no complete results document ('{key}' is no {' or '.join(names)})")
    for task, numbers in document["results"].items():
        _check_task(task, numbers, document)
    for stage in ("ttm", "simple_match", "oracle"):
        records = document.get(stage, {})
        for record in records.values() if isinstance(records, dict) else [None]:
            if not isinstance(record, dict) or not isinstance(record.get("seeds"), list):
                _refuse(f"is no complete results document ('{stage}' states no seeds)")


def _check_task(task: str, numbers: Any, document: Mapping[str, Any]) -> None:
    if not isinstance(numbers, dict):
        _refuse(f"is no complete results document ('results' of task '{task:.60}' is no object)")
    for key, kind in _BY_TASK.items():
        if not isinstance(document[key].get(task), kind):
            _refuse(f"is no complete results document ('{key}' lacks task '{task:.60}', or says what it cannot)")
    if not all(isinstance(document["n-samples"][task].get(count), int) for count in ("original", "effective")):
        _refuse(f"is no complete results document ('n-samples' of task '{task:.60}' states no counts)")
