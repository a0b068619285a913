"""Runs as they are stored: a results document, and the values of single groups from the samples beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError
from ttmbench.results.document import ResultsDocument, mapping
from ttmbench.results.labels import AT, sample_value
from ttmbench.results.reader import read_document, task_of_artifact, walk_documents
from ttmbench.results.sample_logs import sample_lines, walk_sample_logs
from ttmbench.results.tag_means import TagMean

NO_SAMPLES = "its run wrote no samples (results of each group), which are compared; repeat it with --log_samples"
Values = dict[str, dict[str, dict[str, float]]]
"""filter -> metric -> group id -> value, a mean over seeds."""


@dataclass(frozen=True)
class TaskGroups:
    """What is known of the single groups of a task."""

    values: Values
    clusters: Mapping[str, str] | None = None  # group id -> cluster; None where it is unknown which share images
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # group id -> its tags
    means: Mapping[str, TagMean] = field(default_factory=dict)  # name -> a mean of means over values of tags


@dataclass(frozen=True)
class StoredRun:
    """A finished run with the values of its groups."""

    path: Path  # of its results document
    document: ResultsDocument
    groups: Mapping[str, TaskGroups]  # by task

    @property
    def values(self) -> dict[str, Values]:
        """Task -> filter -> metric -> group id -> value."""
        return {task: groups.values for task, groups in self.groups.items()}

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.document.model_name


def read_run(path: Path, need_samples: bool = True) -> StoredRun:
    """Reads a results document and the samples beside it.

    DataError if a file is missing or damaged, or with ``need_samples`` if the run wrote no samples.
    """
    document = read_document(path)
    groups = stored_groups(path.parent, document)
    if not groups and need_samples:
        raise DataError(f"{path}: {NO_SAMPLES}")
    return StoredRun(path, document, groups)


def stored_groups(folder: Path, document: ResultsDocument) -> dict[str, TaskGroups]:
    """Task (or ``adapted to@measured on``) -> its groups, from the samples that a document names.

    DataError if a file is missing or damaged.
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
        task = task_of_artifact(name, about, document.results)
        if task is not None and about.kind == "also_samples":
            task = f"{task}{AT}{about.measured_on}"
        if task is not None:
            groups[task] = replace(_groups(folder / name), means=stated_means(document, task))
    return groups


def runs_in(folder: Path) -> tuple[list[StoredRun], dict[Path, str]]:
    """The runs with samples below a folder in the order of their paths, and why other JSON files are skipped.

    Sample logs of other harnesses follow, a run each.
    """
    runs, skipped = [], dict[Path, str]()
    for path, document in walk_documents(folder):
        if isinstance(document, str):
            skipped[path] = document
            continue
        try:
            groups = stored_groups(path.parent, document)
        except DataError as error:
            skipped[path] = str(error)
            continue
        if groups:
            runs.append(StoredRun(path, document, groups))
        else:
            skipped[path] = NO_SAMPLES
    for path in walk_sample_logs(folder):
        try:
            runs.append(read_run(path))
        except DataError as error:
            skipped[path] = str(error)
    return runs, skipped


def stated_means(document: ResultsDocument, task: str) -> dict[str, TagMean]:
    """How the means over values of tags that a document has of a task are made; DataError where it does not say."""
    known = document.tag_means.get(task, {})
    stated = mapping(document.configs[task].get("means")) if known else {}
    try:
        return {name: TagMean.model_validate(how) for name, how in stated.items() if name in known}
    except ValidationError as error:
        raise DataError(f"'configs' of task '{task}' has 'means' that are none ({error_line(error)})") from None


def _groups(path: Path) -> TaskGroups:
    lines, clusters, tags = [], dict[str, str](), dict[str, Mapping[str, str]]()
    seen: set[str] = set()
    for number, line in sample_lines(path):
        group, name, metrics = line.get("group_id"), line.get("filter"), sample_value(line.get("metrics"))
        if not isinstance(group, str) or not isinstance(name, str) or metrics is None:
            raise DataError(f"{path}: line {number} is not a samples line, or a metric is not a fraction")
        again = (name, line.get("seed_index", 0), group)
        if str(again) in seen:
            raise DataError(f"{path}: line {number} has group {group} again, of the same filter and seed")
        seen.add(str(again))
        lines.append({"group_id": group, "filter": name, "metrics": metrics})
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
                sums.setdefault((line["filter"], metric, line["group_id"]), []).append(float(value))
    values: Values = {}
    for (name, metric, group), per_seed in sums.items():
        values.setdefault(name, {}).setdefault(metric, {})[group] = sum(per_seed) / len(per_seed)
    return values
