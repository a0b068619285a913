"""Sample logs of lm-evaluation-harness and lmms-eval, read as runs: a results document, and lines as ours.

A line of both has ``doc_id``, ``target`` and the values of metrics under their own names: numbers, or objects with a
``score``. lm-evaluation-harness lists the names in ``metrics``, has ``filter`` and the ``doc``; lmms-eval has
``input_media``. Metrics whose values are not fractions, and those computed over all documents only, are skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench import stats
from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json, read_json_lines
from ttmbench.errors import DataError
from ttmbench.results.clusters import connected
from ttmbench.results.coverage import STORED_SCORES
from ttmbench.results.document import ResultsDocument, mapping
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.labels import RAW, key_of, stderr_key

Line = dict[str, Any]
_NAMES = (
    re.compile(r"^samples_(?P<task>.+?)_(?P<time>\d{4}-\d{2}-\d{2}T[\d.\-]+)\Z"),  # lm-evaluation-harness
    re.compile(r"^(?P<time>\d{8}_\d{6})_samples_(?P<task>.+)\Z"),  # lmms-eval
    re.compile(r"^(?:.*_)?samples_(?P<task>.+)\Z"),
)
_NOT_METRICS = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "input")
_IMAGES = ("image_id", "image_path", "image_name", "image", "filename", "video_id", "video_name", "video")
_SHOWN = 200  # characters of an input


def is_sample_log(path: Path) -> bool:
    """Whether a file is JSON lines of one of the two harnesses, by its first line."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    try:
        return _is_of_log(next(read_json_lines(path), (0, {}))[1])
    except DataError:
        return False


def sample_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """The numbered lines of a samples file of ttmbench, or of a log as if it were one: a line a document.

    DataError as for `read_json_lines`, and for a log in which a document has a metric twice.
    """
    if not is_sample_log(path):
        yield from read_json_lines(path)
        return
    merged: dict[str, tuple[int, Line]] = {}  # a document has a line for each filter
    for number, line in read_json_lines(path):
        ours = _as_ours(path, number, line)
        _, first = merged.setdefault(ours["group_id"], (number, ours))
        if first is not ours:
            twice = next((name for name in ours["metrics"] if name in first["metrics"]), None)
            if twice is not None or not ours["metrics"]:
                raise DataError(f"{path}: line {number} has doc_id {ours['group_id']!r:.80} again, of the same filter")
            first["metrics"] |= ours["metrics"]
    yield from merged.values()


def read_sample_log(path: Path) -> ResultsDocument:
    """A log as the document of a run of one task, with the file as its samples.

    DataError if no metric is a fraction, or a line is not one of a log.
    """
    values: dict[str, dict[str, float]] = {}
    images: dict[str, list[str]] = {}
    digest = hashlib.sha256()
    for _, line in sample_lines(path):
        images[line["group_id"]] = line["images"]
        digest.update(json.dumps([line["group_id"], line["digest"]]).encode())
        for metric, value in line["metrics"].items():
            values.setdefault(metric, {})[line["group_id"]] = value
    if not values:
        raise DataError(
            f"{path}: no line has a metric that is a fraction from 0 to 1; what is computed over all documents "
            "together, a log does not have"
        )
    task, known = task_of(path), all(images.values())
    clusters = np.array(connected(images.values())) if known else None
    about = {"clusters": len(set(clusters.tolist()))} if clusters is not None else {}
    return _document(path, task, values, {"original": len(images), "effective": len(images), **about}, digest, clusters)


def task_of(path: Path) -> str:
    """The task of a log by its name.

    >>> task_of(Path("samples_mme_2025-01-02T03-04-05.678.jsonl")), task_of(Path("20250102_030405_samples_mme.jsonl"))
    ('mme', 'mme')
    """
    match = next((match for pattern in _NAMES if (match := pattern.match(path.stem))), None)
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", path.stem if match is None else match["task"])


def _model_of(path: Path) -> str:
    """The model by the results file of the same run, else by the folder."""
    time = next((match["time"] for pattern in _NAMES[:2] if (match := pattern.match(path.stem))), None)
    for name in () if time is None else (f"results_{time}.json", f"{time}_results.json"):
        try:
            stated = mapping(read_json(path.with_name(name))).get("model_name")
        except Unreadable:
            continue
        if isinstance(stated, str) and stated:
            return stated
    folder = path.resolve().parent.name
    return folder.replace("__", "/") or path.stem


def _is_of_log(line: Mapping[str, object]) -> bool:
    return "doc_id" in line and "group_id" not in line and bool({"target", "filtered_resps", "resps"} & set(line))


def _as_ours(path: Path, number: int, line: Mapping[str, Any]) -> Line:
    """A line as ``--log_samples`` writes it: one of forced choices or scores without its arrays."""
    group = line.get("doc_id")
    if not isinstance(group, int | str) or isinstance(group, bool):
        raise DataError(f"{path}: line {number} has no doc_id")
    media, doc = line.get("input_media"), mapping(line.get("doc"))
    known = media if isinstance(media, list) and media else [doc[key] for key in _IMAGES if _is_name(doc.get(key))][:1]
    images = [str(name) for name in known]
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
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(item, str):
            yield item
        else:
            yield from _texts(item)


def _is_name(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _document(
    path: Path,
    task: str,
    values: Mapping[str, Mapping[str, float]],
    counts: Mapping[str, int],
    digest: Any,
    clusters: np.ndarray | None,
) -> ResultsDocument:
    whole = {name: np.array(list(of.values())) for name, of in values.items() if len(of) == counts["effective"]}
    if not whole:
        raise DataError(f"{path}: no metric is there for every document")
    results: dict[str, float | None] = {}
    intervals: dict[str, list[float] | None] = {}
    for name, each in whole.items():
        ends = stats.interval(each, "wilson", 1000, 0, clusters=clusters)
        results |= {key_of(name, RAW): stats.mean(each), stderr_key(name, RAW): stats.standard_error(each, clusters)}
        intervals[key_of(name, RAW)] = None if ends is None else list(ends)
    fingerprint, about = digest.hexdigest(), path.stat()
    file = {"kind": "samples", "task": task, "sha256": file_digest(path), "bytes": about.st_size}
    source = {"kind": STORED_SCORES, "file": path.name, "format": "sample log of another harness"}
    dataset = {"source": source, "revision": None, "fingerprint": fingerprint, "n_groups": counts["effective"]}
    by_task: dict[str, object] = {
        "tracks": dict.fromkeys(intervals, "zero_shot"),
        "results": results,
        "ci": intervals,
        "chance": dict.fromkeys(whole, None),
        "ties": dict.fromkeys(intervals, None),
        "configs": {"task": task},
        "versions": 0,
        "n-samples": dict(counts),
        "higher_is_better": dict.fromkeys(whole, True),
        "task_hashes": fingerprint,
        "datasets": {**dataset, "shape": [1, 1], "license": ""},
        "timing": {},
        "notes": ["read from a sample log of lm-evaluation-harness or lmms-eval: values are those of its own metrics"],
    }
    return ResultsDocument.of(
        {
            **{"schema_version": SCHEMA_VERSION, "status": "done", "track": "zero_shot"},
            **{key: {task: entry} for key, entry in by_task.items()},
            **{"ttm": {}, "simple_match": {}, "errors": [], "config": {}, "run_key": None},
            **{"model_name": _model_of(path), "model_info": {}, "date": about.st_mtime, "git_hash": None},
            **{"packages": {}, "hardware": {}, "total_evaluation_time_seconds": 0, "command": ""},
            "artifacts": {path.name: file},
        }
    )


def walk_sample_logs(folder: Path) -> Iterator[Path]:
    """The logs below a folder in the order of their paths."""
    for path in sorted(folder.rglob("*samples_*.jsonl")):
        if not path.is_symlink() and is_sample_log(path):
            yield path
