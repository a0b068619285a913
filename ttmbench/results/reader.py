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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from pydantic import ValidationError

from ttmbench._util.console import one_line
from ttmbench._util.file_io import Unreadable, file_digest, read_json, read_json_lines
from ttmbench._util.third_party import describe, error_line
from ttmbench.errors import DataError
from ttmbench.results.document import SCHEMA_VERSION, ResultsDocument, Transfer, mapping
from ttmbench.results.models import ModelLabel, names_of_runs, with_setting
from ttmbench.results.numbers import AT, RAW, SLASH, STORED_SCORES, Number, as_entries, sample_value
from ttmbench.results.summary import NO_VALUE, SEPARATOR, TagMean, connected, number_of

CELL = 200  # characters of a name in a table
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


def walk_documents(folder: Path) -> Iterator[tuple[Path, ResultsDocument | str]]:
    """Results documents below a folder by path, and why other JSON files are skipped, except summaries and analyses.

    Hidden folders (the state of stopped runs) are ignored.
    """
    for path in sorted(folder.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.is_symlink() or not path.is_file():
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


Values = dict[str, dict[str, dict[str, float]]]
"""method -> metric -> group id -> value, a mean over seeds."""


@dataclass(frozen=True)
class TaskGroups:
    """What is known of the single groups of a task."""

    values: Values
    clusters: Mapping[str, str] | None = None  # group id -> cluster; None where it is unknown which share images
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # group id -> its tags
    means: Mapping[str, TagMean] = field(default_factory=dict)  # name -> a mean of means over values of tags

    def with_value(self, groups: Iterable[str], tag: str, value: str) -> list[str]:
        """Those of some groups that have a value of a tag, alone or among several."""
        texts = {group: self.tags.get(group, {}).get(tag) or NO_VALUE for group in groups}
        return [group for group, text in texts.items() if value in (text, *text.split(SEPARATOR))]


@dataclass(frozen=True)
class ResultsFile:
    """A results document, where it lies, and what tables call it."""

    path: Path
    document: ResultsDocument
    file: str = ""  # its path below the folder that was read, or as the user gave it
    called: ModelLabel = field(default_factory=lambda: ModelLabel(""))  # its names beside other files
    known_groups: Mapping[str, TaskGroups] | None = None  # the values of its groups, if a program has them
    index: int = 0  # its position on a page, from 1

    @property
    def model(self) -> str:
        """What tables call it."""
        return self.called.words if self.called.model else self.document.model_name

    @cached_property
    def numbers(self) -> list[Number]:
        """The numbers of its tasks."""
        return list(map(self._named, self.document.numbers))

    @cached_property
    def ranked(self) -> list[Number]:
        """The defined numbers that belong to a track, with names that fit into a cell."""
        return [
            replace(
                number,
                task=_cell(number.task),
                metric=_cell(number.metric),
                method=_cell(number.method),
                origin=replace(number.origin, data=_cell(number.origin.data or "")),
            )
            for number in self.numbers
            if number.track is not None and number.value is not None
        ]

    @cached_property
    def means(self) -> list[Number]:
        """The means over the tasks of its datasets."""
        return list(map(self._named, self.document.means))

    def by_tag(self, tag: str) -> list[Number]:
        """Its numbers of the groups of each value of a tag, of tasks called ``task/value``."""
        known, found = {(one.task, one.key): one for one in self.numbers}, list[Number]()
        for task, tags in self.document.breakdowns.items():
            for value, row in tags.get(tag, {}).items():
                for key, rate in (row.model_extra or {}).items():
                    if (one := known.get((task, key))) is not None:
                        groups, is_whole = int(row.groups or 0), one.extent.groups == one.extent.of
                        size = replace(one.extent, groups=groups, of=groups if is_whole else None)
                        about: dict[str, Any] = {"value": rate, "stderr": None, "interval": None, "ties": None}
                        found.append(replace(one, task=f"{task}{SLASH}{value}", seed_std=None, extent=size, **about))
        return found

    @cached_property
    def numbers_elsewhere(self) -> list[Number]:
        """The numbers of its adapted models on other tasks."""
        return list(map(self._named, self.document.numbers_elsewhere))

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The numbers of its adapted models on their own and other tasks, each beside that of the model as it was."""
        return [replace(row, number=self._named(row.number)) for row in self.document.transfers]

    @cached_property
    def groups(self) -> Mapping[str, TaskGroups]:
        """Task -> its groups, by default from the samples beside the document; DataError if they are damaged."""
        return stored_groups(self.path.parent, self.document) if self.known_groups is None else self.known_groups

    @cached_property
    def checked(self) -> tuple[dict[str, dict[str, Path]], dict[str, str]]:
        """The files beside it: kind -> task -> intact file, and name -> what is wrong with a damaged one."""
        intact, damaged = dict[str, dict[str, Path]](), dict[str, str]()
        for name, artifact in self.document.artifacts.items():
            task, path = artifact.task, self.path.parent / name
            try:
                if task not in self.document.results or Path(name).name != name:
                    damaged[name] = "is not of a task of its run"
                elif file_digest(path) != artifact.sha256:
                    damaged[name] = _CHANGED
                else:
                    intact.setdefault(artifact.kind, {})[task] = path
            except OSError as error:
                damaged[name] = f"cannot be read ({error.strerror or error})"
        return intact, damaged

    def _named(self, number: Number) -> Number:
        origin = replace(number.origin, file=self.file or self.path.name)
        if not self.called.model:
            return replace(number, origin=origin)
        setting = self.called.setting_of(number.adapted_to or number.own_task, number.method)
        return replace(number, origin=origin, model=with_setting(self.called.model, setting), setting=setting)


@lru_cache(maxsize=10_000)  # documents repeat the same tasks, metrics and data
def _cell(text: str) -> str:
    return one_line(text, CELL)


def read_files(paths: Sequence[Path], logs: bool = False) -> tuple[list[ResultsFile], dict[Path, str]]:
    """Results documents, named or in folders, and why other JSON files of folders were skipped.

    With ``logs``, sample logs of other harnesses in folders follow. DataError if a named file cannot be read.
    """
    files, skipped = list[tuple[Path, ResultsDocument, str]](), dict[Path, str]()
    for source in paths:
        found: list[tuple[Path, ResultsDocument | str]] = []
        if source.is_dir():
            found += [*walk_documents(source), *(_read_logs(source) if logs else ())]
        else:
            found.append((source, read_document(source)))
        for path, document in found:
            below = path.relative_to(source if source.is_dir() else source.parent) if len(paths) == 1 else path
            if isinstance(document, str):
                skipped[path] = document
            else:
                files.append((path, document, below.as_posix()))
    names = names_of_runs([(path, document) for path, document, _ in files])
    return [ResultsFile(*file, name) for file, name in zip(files, names, strict=True)], skipped


def _read_logs(folder: Path) -> Iterator[tuple[Path, ResultsDocument | str]]:
    for path in sorted(folder.rglob("*samples_*.jsonl")):
        if path.is_symlink() or not is_sample_log(path):
            continue
        try:
            yield path, read_sample_log(path)
        except DataError as error:
            yield path, str(error).removeprefix(f"{path}: ")


_CHANGED = "was changed or is incomplete: its sha256 is not that in the results document"


def stored_groups(folder: Path, document: ResultsDocument) -> dict[str, TaskGroups]:
    """Task (or ``adapted to@measured on``) -> its groups, from the samples that lie beside a document.

    DataError if a file is damaged.
    """
    groups: dict[str, TaskGroups] = {}
    for name, about in document.artifacts.items():
        if about.kind not in ("samples", "also_samples"):
            continue
        if PurePosixPath(name).name != name or "\\" in name or "\0" in name:
            raise DataError(
                f"{folder}: the artifact {name!r:.80} of a results document is in another folder; only files next to "
                "it are read"
            )
        task = about.task if about.kind == "samples" else f"{about.task}{AT}{about.measured_on}"
        if about.task in document.results and (folder / name).exists():
            if file_digest(folder / name) != about.sha256:
                raise DataError(f"{folder / name}: {_CHANGED}")
            groups[task] = replace(_groups(folder / name), means=stated_means(document, task))
    return groups


def stated_means(document: ResultsDocument, task: str) -> dict[str, TagMean]:
    """How the means over values of tags that a document has of a task are made; DataError where it does not say."""
    known = document.tag_means.get(task, {})
    stated = mapping(document.configs[task].get("means")) if known else {}
    try:
        return {name: TagMean.model_validate(how) for name, how in stated.items() if name in known}
    except ValidationError as error:
        raise DataError(f"'configs' of task '{task}' has 'means' that are not valid ({error_line(error)})") from None


def _groups(path: Path) -> TaskGroups:
    lines, clusters, tags = [], dict[str, str](), dict[str, Mapping[str, str]]()
    seen: set[str] = set()
    for number, line in sample_lines(path):
        group, name, metrics = line.get("group_id"), line.get("method"), sample_value(line.get("metrics"))
        if not isinstance(group, str) or not isinstance(name, str) or metrics is None:
            raise DataError(f"{path}: line {number} is not a samples line, or a metric is not a fraction")
        again = (name, line.get("seed_index", 0), group)
        if str(again) in seen:
            raise DataError(f"{path}: line {number} has group {group} again, of the same method and seed")
        seen.add(str(again))
        lines.append({"group_id": group, "method": name, "metrics": metrics})
        cluster = line.get("cluster")
        if not isinstance(cluster, str | None):
            raise DataError(f"{path}: line {number} has a cluster that is not a text")
        if cluster is not None:
            clusters[group] = cluster
        if isinstance(line.get("tags"), dict):
            tags[group] = {str(tag): str(value) for tag, value in line["tags"].items()}
    return TaskGroups(values_of_lines(lines), clusters or None, tags)


def values_of_lines(lines: Sequence[Mapping[str, Any]]) -> Values:
    """The values of groups, means over seeds, from samples lines."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for line in lines:
        for metric, value in line["metrics"].items():
            if value is not None:
                sums.setdefault((line["method"], metric, line["group_id"]), []).append(float(value))
    values: Values = {}
    for (name, metric, group), per_seed in sums.items():
        mean = per_seed[0] if min(per_seed) == max(per_seed) else sum(per_seed) / len(per_seed)
        values.setdefault(name, {}).setdefault(metric, {})[group] = mean
    return values


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


def sample_lines(path: Path) -> Iterator[tuple[int, _Line]]:
    """The numbered lines of a samples file of ttmbench, or of a log as if it were one: a line a document.

    DataError as for `read_json_lines`, and for a log in which a document has a metric twice.
    """
    if not is_sample_log(path):
        yield from read_json_lines(path)
        return
    merged: dict[str, tuple[int, _Line]] = {}  # lm-eval writes a line for each filter
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
        "method": RAW,
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
    task, model = _task_and_model(path)
    numbers = [
        number_of(task, name, RAW, each, (1000, 0, "wilson"), clusters, track="zero_shot")
        for name, each in values.items()
    ]
    fingerprint, about = digest.hexdigest(), path.stat()
    source = {"kind": STORED_SCORES, "file": path.name, "format": "sample log of another harness"}
    dataset = {"source": source, "revision": None, "fingerprint": fingerprint, "n_groups": len(images)}
    by_task: dict[str, object] = {
        **as_entries(numbers),
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
    return ResultsDocument.model_validate(
        {
            **{"schema_version": SCHEMA_VERSION, "status": "done", "track": "zero_shot"},
            **{key: {task: entry} for key, entry in by_task.items()},
            **{"errors": [], "config": {}, "run_key": None},
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
