"""Reads results documents: checks them, or refuses them with a reason.

Sample logs of lm-evaluation-harness and lmms-eval are read as runs, too: a document, and lines as ours. A line of both
has ``doc_id``, ``target`` and the values of metrics under their own names: numbers, or objects with a ``score``.
lm-evaluation-harness lists the names in ``metrics``, has ``filter`` and the ``doc``; lmms-eval has ``input_media``.
Metrics whose values are not fractions, and those computed over all documents only, are skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ttmbench import stats
from ttmbench._util.console import one_line
from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json, read_json_lines
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError
from ttmbench.results.clusters import connected
from ttmbench.results.document import Artifact, ResultsDocument, mapping
from ttmbench.results.labels import RAW, STORED_SCORES, key_of, stderr_key
from ttmbench.results.stored_files import SCHEMA_VERSION

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


_Line = dict[str, Any]
# lmms-eval puts the time before the name, lm-evaluation-harness behind the task.
_NAME = re.compile(
    r"^(?:(?P<before>\d{8}_\d{6})_|.*_)?samples_(?P<task>.+?)(?:_(?P<behind>\d{4}-\d{2}-\d{2}T[\d.\-]+))?\Z"
)
_NOT_METRICS = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "input")
_IMAGES = ("image_id", "image_path", "image_name", "image", "filename", "video_id", "video_name", "video")
_SHOWN = 200  # characters of an input


def is_sample_log(path: Path) -> bool:
    """Whether a file is JSON lines of one of the two harnesses, by its first line."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    try:
        line = next(read_json_lines(path), (0, {}))[1]
    except DataError:
        return False
    return "doc_id" in line and "group_id" not in line and bool({"target", "filtered_resps", "resps"} & set(line))


def walk_sample_logs(folder: Path) -> Iterator[Path]:
    """The logs below a folder in the order of their paths."""
    for path in sorted(folder.rglob("*samples_*.jsonl")):
        if not path.is_symlink() and is_sample_log(path):
            yield path


def sample_lines(path: Path) -> Iterator[tuple[int, _Line]]:
    """The numbered lines of a samples file of ttmbench, or of a log as if it were one: a line a document.

    DataError as for `read_json_lines`, and for a log in which a document has a metric twice.
    """
    if not is_sample_log(path):
        yield from read_json_lines(path)
        return
    merged: dict[str, tuple[int, _Line]] = {}  # a document has a line for each filter
    for number, line in read_json_lines(path):
        ours = _as_ours(path, number, line)
        _, first = merged.setdefault(ours["group_id"], (number, ours))
        if first is not ours:
            if not ours["metrics"] or ours["metrics"].keys() & first["metrics"].keys():
                raise DataError(f"{path}: line {number} has doc_id {ours['group_id']!r:.80} again, of the same filter")
            first["metrics"] |= ours["metrics"]
    yield from merged.values()


def _as_ours(path: Path, number: int, line: Mapping[str, Any]) -> _Line:
    """A line as ``--log_samples`` writes it: one of forced choices or scores without its arrays."""
    group = line.get("doc_id")
    if not isinstance(group, int | str) or isinstance(group, bool):
        raise DataError(f"{path}: line {number} has no doc_id")
    media, doc = line.get("input_media"), mapping(line.get("doc"))
    named = [doc[key] for key in _IMAGES if isinstance(doc.get(key), str | int) and not isinstance(doc[key], bool)]
    images = list(map(str, media if isinstance(media, list) and media else named[:1]))
    shown = line.get("input") if isinstance(line.get("input"), str) else next(_texts(line.get("arguments")), "")
    chosen = line.get("filter", RAW)
    suffix = "" if chosen == RAW else "_" + re.sub(r"\W", "_", str(chosen))
    return {
        "group_id": str(group),
        **({"cluster": "|".join(images)} if images else {}),
        "filter": RAW,
        "seed_index": 0,
        "seed": None,
        "captions": [str(shown)[:_SHOWN], f"target: {str(line.get('target'))[:_SHOWN]}"],
        "images": images,
        "metrics": {f"{name}{suffix}": value for name, value in _metrics(line).items()},
        "tags": {},
        "digest": [line.get("doc_hash"), str(line.get("target"))],
    }


def _metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a document that are fractions."""
    named = line.get("metrics")
    values = {}
    for name in map(str, named if isinstance(named, list) else [key for key in line if key not in _NOT_METRICS]):
        value = line.get(name)
        value = value.get("score") if isinstance(value, Mapping) else value
        if isinstance(value, bool | int | float) and 0 <= value <= 1 and re.match(r"^\w+\Z", name):
            values[name] = float(value)
    return values


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(item)


def read_sample_log(path: Path) -> ResultsDocument:
    """A log as the document of a run of one task, with the file as its samples.

    DataError if no metric is a fraction of every document, or a line is not one of a log.
    """
    named: dict[str, list[float]] = {}
    images: list[list[str]] = []
    digest = hashlib.sha256()
    for _, line in sample_lines(path):
        images.append(line["images"])
        digest.update(json.dumps([line["group_id"], line["digest"]]).encode())
        for metric, value in line["metrics"].items():
            named.setdefault(metric, []).append(value)
    values = {name: np.array(of) for name, of in named.items() if len(of) == len(images)}
    if not values:
        raise DataError(f"{path}: no metric is a fraction from 0 to 1 of every document")
    counts: dict[str, int] = {"original": len(images), "effective": len(images)}
    clusters = np.array(connected(images)) if all(images) else None
    counts |= {} if clusters is None else {"clusters": len(np.unique(clusters))}
    results: dict[str, float | None] = {}
    intervals: dict[str, list[float] | None] = {}
    for name, each in values.items():
        ends = stats.interval(each, "wilson", 1000, 0, clusters=clusters)
        results |= {key_of(name, RAW): stats.mean(each), stderr_key(name, RAW): stats.standard_error(each, clusters)}
        intervals[key_of(name, RAW)] = None if ends is None else list(ends)
    task, model = _task_and_model(path)
    fingerprint, about = digest.hexdigest(), path.stat()
    source = {"kind": STORED_SCORES, "file": path.name, "format": "sample log of another harness"}
    dataset = {"source": source, "revision": None, "fingerprint": fingerprint, "n_groups": len(images)}
    by_task: dict[str, object] = {
        "tracks": dict.fromkeys(intervals, "zero_shot"),
        "results": results,
        "ci": intervals,
        "chance": dict.fromkeys(values, None),
        "ties": dict.fromkeys(intervals, None),
        "configs": {"task": task},
        "versions": 0,
        "n-samples": counts,
        "higher_is_better": dict.fromkeys(values, True),
        "task_hashes": fingerprint,
        "datasets": {**dataset, "shape": [1, 1], "license": ""},
        "timing": {},
        "notes": ["read from a sample log of lm-evaluation-harness or lmms-eval: values are those of its own metrics"],
    }
    file = {"kind": "samples", "task": task, "sha256": file_digest(path), "bytes": about.st_size}
    return ResultsDocument.of(
        {
            **{"schema_version": SCHEMA_VERSION, "status": "done", "track": "zero_shot"},
            **{key: {task: entry} for key, entry in by_task.items()},
            **{"ttm": {}, "simple_match": {}, "errors": [], "config": {}, "run_key": None},
            **{"model_name": model, "model_info": {}, "date": about.st_mtime, "git_hash": None},
            **{"packages": {}, "hardware": {}, "total_evaluation_time_seconds": 0, "command": ""},
            "artifacts": {path.name: file},
        }
    )


def _task_and_model(path: Path) -> tuple[str, str]:
    """The task by the name of a log; the model by the results file of the same run, else by the folder.

    >>> _task_and_model(Path("/m/samples_mme_2025-01-02T03-04-05.678.jsonl"))
    ('mme', 'm')
    >>> _task_and_model(Path("/org__m/20250102_030405_samples_mme.jsonl"))
    ('mme', 'org/m')
    """
    match = _NAME.match(path.stem)
    task = re.sub(r"[^A-Za-z0-9_.\-]", "_", path.stem if match is None else match["task"])
    times = {} if match is None else match.groupdict()
    beside = f"results_{times.get('behind')}.json", f"{times.get('before')}_results.json"
    for file in map(path.with_name, beside):
        try:
            stated = mapping(read_json(file)).get("model_name")
        except Unreadable:
            continue
        if isinstance(stated, str) and stated:
            return task, stated
    return task, path.resolve().parent.name.replace("__", "/") or path.stem
