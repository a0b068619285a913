"""Reads results documents: checks them, or refuses them with a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import ValidationError

from ttmbench._util.console import one_line
from ttmbench._util.text import Unreadable, read_json
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.records import Artifact
from ttmbench.results.sample_logs import is_sample_log, read_sample_log

NOT_A_DOCUMENT = "is not a results document of ttmbench"  # how the reason begins for JSON of another kind


def read_document(path: Path) -> ResultsDocument:
    """A results document, as `parse_document`.

    A sample log of another harness is read as by `read_sample_log`. DataError, naming the file and the key, if it
    cannot be read, is incomplete or is of another major version.
    """
    if is_sample_log(path):
        return read_sample_log(path)
    try:
        return parse_document(read_json(path))
    except Unreadable as error:
        raise DataError(f"{path}: {error}") from None


def walk_documents(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[tuple[Path, ResultsDocument | str]]:
    """Results documents below a folder by path, and why other JSON files are skipped, except summaries and analyses.

    Hidden folders (the state of stopped runs) and files named in ``without`` are ignored.
    """
    for path in sorted(folder.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.name in without or path.is_symlink() or not path.is_file():
            continue
        try:
            content = read_json(path)
            known = content if isinstance(content, dict) else {}
            if known.get("kind") in ("sweep", "leaderboard") or ("analysis" in known and "results" not in known):
                continue
            yield path, parse_document(content)
        except Unreadable as error:
            yield path, str(error)


def parse_document(content: object) -> ResultsDocument:
    """The content of a JSON file, checked; Unreadable with the reason if it is not a document of this version.

    Keys that a newer minor version adds are not checked, and `ResultsDocument.to_dict` leaves them out.
    """
    if not isinstance(content, dict):
        raise Unreadable(f"{NOT_A_DOCUMENT} (a JSON {type(content).__name__}, not an object)")
    if "schema_version" not in content:
        raise Unreadable(f"{NOT_A_DOCUMENT} (it has no schema_version)")
    version, known = str(content["schema_version"]), SCHEMA_VERSION.split(".")[0]
    major, dot, minor = version.partition(".")
    if not (major.isdecimal() and dot and minor.isdecimal()):
        raise Unreadable(
            f"has schema {version!r:.40}, which is not a version; this version of ttmbench reads {known}.x"
        )
    if int(major) != int(known):
        what = (
            "newer than {}.x; upgrade ttmbench to read it" if int(major) > int(known) else "older than {}.x; rerun it"
        )
        raise Unreadable(f"has schema {version}, which is {what.format(known)}")
    try:
        return ResultsDocument.model_validate(
            {**content, "schema_version": SCHEMA_VERSION}, extra=None if version == SCHEMA_VERSION else "allow"
        )
    except ValidationError as error:
        raise Unreadable(f"is not a complete results document ({one_line(describe(error), 300)})") from None
    except RecursionError:
        raise Unreadable("is not a complete results document (it nests too deeply)") from None


def task_of_artifact(name: str, about: Artifact, tasks: Collection[str]) -> str | None:
    """The task of a file beside a results document: the stated one, else the longest in the file's name, else None.

    >>> about = Artifact(kind="samples", sha256="0" * 64, bytes=0)
    >>> task_of_artifact("x_samples_a_2b.jsonl", about, ["b", "2b", "a_2b"])
    'a_2b'
    """
    kind, stem = about.kind, name.rsplit(".", 1)[0]
    named = (task for task in tasks if name.startswith(f"{kind}_{task}_2") or stem.endswith(f"_{kind}_{task}"))
    return about.task if about.task in tasks else max(named, key=len, default=None)
