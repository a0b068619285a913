"""Reads results documents: checks them, or refuses them with a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from ttmbench._util.console import one_line
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.records import Artifact
from ttmbench.results.sample_logs import is_sample_log, read_sample_log

_KINDS = {
    **dict.fromkeys(("dict_type", "model_type"), "an object"),
    **{"list_type": "a list", "string_type": "a text", "int_type": "a whole number", "bool_type": "true or false"},
}
NOT_A_DOCUMENT = "is not a results document of ttmbench"  # how the reason begins for JSON of another kind
_PLACE = 120  # characters of the key that is named


def read_document(path: Path) -> ResultsDocument:
    """A results document, as `parse_document`.

    A sample log of another harness is read as by `read_sample_log`. DataError, naming the file and the key, if it
    cannot be read, is incomplete or is of another major version.
    """
    if is_sample_log(path):
        return read_sample_log(path)
    try:
        return parse_document(_parse(path))
    except _RefusedError as refused:
        raise DataError(f"{path}: {refused}") from None


def walk_documents(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[tuple[Path, ResultsDocument | str]]:
    """Results documents below a folder by path, and why other JSON files are skipped, except summaries and analyses.

    Hidden folders (the state of stopped runs) and files named in ``without`` are ignored.
    """
    for path in sorted(folder.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.name in without or path.is_symlink() or not path.is_file():
            continue
        try:
            content = _parse(path)
            if isinstance(content, dict) and _is_made_of_documents(content):
                continue
            yield path, parse_document(content)
        except _RefusedError as refused:
            yield path, str(refused)


def _is_made_of_documents(content: Mapping[str, Any]) -> bool:
    """Whether it is a summary of documents, or an analysis, and none itself."""
    return content.get("kind") in ("sweep", "leaderboard") or ("analysis" in content and "results" not in content)


def parse_document(content: object) -> ResultsDocument:
    """The content of a JSON file, checked.

    Keys that a newer minor version adds are not checked, and `ResultsDocument.to_dict` leaves them out.
    """
    if not isinstance(content, dict):
        raise _RefusedError(f"{NOT_A_DOCUMENT} (a JSON {type(content).__name__}, not an object)")
    if "schema_version" not in content:
        raise _RefusedError(f"{NOT_A_DOCUMENT} (it has no schema_version)")
    version = str(content["schema_version"])
    _check_version(version)
    try:
        return ResultsDocument.model_validate(
            {**content, "schema_version": SCHEMA_VERSION}, extra=None if version == SCHEMA_VERSION else "allow"
        )
    except ValidationError as error:
        _refuse(f"is not a complete results document ({_words(error.errors()[0], content)})")
    except RecursionError:
        _refuse("is not a complete results document (it nests too deeply)")


def task_of_artifact(name: str, about: Artifact, tasks: Collection[str]) -> str | None:
    """The task of a file beside a results document: the stated one, else the longest in the file's name, else None.

    >>> about = Artifact(kind="samples", sha256="0" * 64, bytes=0)
    >>> task_of_artifact("x_samples_a_2b.jsonl", about, ["b", "2b", "a_2b"])
    'a_2b'
    """
    kind, stem = about.kind, name.rsplit(".", 1)[0]
    named = (task for task in tasks if name.startswith(f"{kind}_{task}_2") or stem.endswith(f"_{kind}_{task}"))
    return about.task if about.task in tasks else max(named, key=len, default=None)


class _RefusedError(Exception):
    """Why a file is refused, in words that follow its name."""


def _refuse(why: str) -> NoReturn:
    raise _RefusedError(why) from None


def _parse(path: Path) -> object:
    try:
        return read_json(path)
    except Unreadable as error:
        _refuse(str(error))


def _check_version(version: str) -> None:
    known = SCHEMA_VERSION.split(".")[0]
    major, dot, minor = version.partition(".")
    if not (major.isdecimal() and dot and minor.isdecimal()):
        _refuse(f"has schema {version!r:.40}, which is not a version; this version of ttmbench reads {known}.x")
    if int(major) > int(known):
        _refuse(f"has schema {version}, which is newer than {known}.x; upgrade ttmbench to read it")
    if int(major) < int(known):
        _refuse(f"has schema {version}, which is older than {known}.x; run it again")


def _words(error: Any, document: object) -> str:
    """An error of pydantic as a sentence that names the key in the file."""
    kind, tag = error["type"], error["loc"][-1:]
    if kind in _KINDS:
        # Of a number pydantic says first that it is not a whole one.
        message = "is not a finite number" if tag == ("int",) else f"is not {_KINDS[kind]}"
    elif "error" in error.get("ctx", {}):
        message = str(error["ctx"]["error"])
    else:
        message = error["msg"].replace("Input should be", "must be").replace("Extra inputs are not", "is not")
    keys, here = [], document
    for part in error["loc"]:
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        elif error["type"] != "missing" or part != error["loc"][-1]:
            continue  # pydantic's own name of a kind of value
        keys.append(str(part))
    if not keys:
        return message
    name = one_line(".".join(keys), _PLACE)
    return f"it has no '{name}'" if error["type"] == "missing" else f"'{name}' {message}"
