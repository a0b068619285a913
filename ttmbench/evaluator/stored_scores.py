"""From a file of stored scores to a results document: the numbers of a paper checked without its model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ttmbench.data.catalog import all_tasks, find_task
from ttmbench.data.checks import check_count
from ttmbench.data.task_file import SCOPES, GroupSpec, TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.baseline import task_groups
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.record import RunRecord
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.coverage import STORED_SCORES
from ttmbench.results.labels import RAW
from ttmbench.results.scores_file import StoredScores, read_scores
from ttmbench.results.shaped_metric import metric_for
from ttmbench.results.stored_runs import TaskGroups
from ttmbench.results.summary import summarise
from ttmbench.results.tag_means import tag_means
from ttmbench.scoring.data_identity import stored_digest
from ttmbench.stats import IntervalMethod
from ttmbench.types import Group, GroupShape, MetricSpec, Scores

_Answer = TypeVar("_Answer")

STORED_NOTE = (
    "scored from a file, without images and captions: comparable with results from files that have the same task, "
    "version, shape and group ids"
)


def score_file(path: Path, task: str | TaskFile | None, **settings: Any) -> dict[str, Any]:
    """The results document of `scored_file`, with its arguments and errors."""
    return scored_file(path, task, **settings).document


@dataclass(frozen=True)
class ScoredFile:
    """What became of a file of scores, ranks or answers.

    Attributes:
        document: the results.
        outcomes: task -> its numbers, scores and groups.
    """

    document: dict[str, Any]
    outcomes: Mapping[str, TaskOutcome]

    @property
    def scores(self) -> dict[str, dict[str, list[Scores]]]:
        """Task -> filter -> score arrays, one per seed; none of ranks and answers."""
        return {name: one.scores for name, one in self.outcomes.items() if one.scores}

    def groups(self) -> dict[str, TaskGroups]:
        """Task -> the values of its groups, for a comparison."""
        return {name: task_groups(one) for name, one in self.outcomes.items()}


def scored_file(
    path: Path,
    task: str | TaskFile | None,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
) -> ScoredFile:
    """Computes every metric that is defined from stored scores.

    Args:
        path: the scores, in a format that `ttmbench.results.scores_file` knows.
        task: name or file of the task whose shape and size they have, or the task; None takes those of the file, and
            results call the task ``scores``.
        include_path: folders of further task files.
        logit_scale: factor on products of embeddings.
        limit: the scores are of the task's first groups only.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        command: the command line, for the record.

    Returns:
        A results document, in which the metrics of the task come first; and the scores. Where the file states tags that
        the task has parts by, each part is a further task of the document.

    Raises:
        UsageError: no such task, or a limit without one.
        DataError: the file is not what the task says; the message names the group.
    """
    registry = build_registry(include_path)
    if task is None:
        if limit is not None:
            raise UsageError("limit says that scores are of a task's first groups; name the task, or leave it out")
        stored = read_scores(path, None, logit_scale)
        spec = spec_of_scores(stored.scores[RAW][0].groups, registry, stored.true_captions)
    else:
        spec = (find_task(registry, task) if isinstance(task, str) else task).spec
        stored = _of_task(read_scores(path, spec.shape, logit_scale), spec, path)
    parts = [] if limit is not None else _parts(registry, spec, stored, path)
    return score_stored(
        registry,
        stored,
        spec,
        name=path.stem,
        where=str(path),
        source={
            "kind": STORED_SCORES,
            "file": path.name,
            "format": stored.format,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        },
        config={
            "scores": path.name,
            "task": task if isinstance(task, str) else spec.task,
            "logit_scale": logit_scale,
            "limit": limit,
            "seed": seed,
            "bootstrap_iters": bootstrap_iters,
            "interval": interval,
        },
        command=command,
        parts=parts,
    )


def spec_of_scores(array: np.ndarray, registry: Registry, true_captions: int = 1) -> TaskSpec:
    """The task of scores that are of none; DataError for a shape that no group has."""
    try:
        shape = GroupShape(array.shape[1], array.shape[2], true_captions)
    except ValueError as error:
        raise DataError(f"the scores have shape {list(array.shape)}: {error}") from None
    return TaskSpec(
        task="scores",
        version=0,
        source={"kind": "stored_scores"},
        group=GroupSpec(shape=(shape.images, shape.captions), true_captions=true_captions, n_groups=len(array)),
        metrics=[
            metric.name
            for metric, _ in registry.metrics.values()
            if metric.scope in SCOPES["groups"] and _is_for(metric, shape)
        ],
    )


def score_stored(
    registry: Registry,
    stored: StoredScores,
    spec: TaskSpec,
    *,
    name: str,
    where: str,
    source: dict[str, Any],
    config: dict[str, Any],
    command: Sequence[str] = (),
    parts: Sequence[tuple[TaskSpec, StoredScores]] = (),
) -> ScoredFile:
    """Computes every metric of scores that are read.

    Args:
        registry: the metrics.
        stored: the scores.
        spec: the task that they are of.
        name: what results call the model.
        where: the scores, in messages.
        source: where they come from, for the record.
        config: ``limit``, ``seed``, ``bootstrap_iters``, ``interval``, and what else the record should hold.
        command: the command line, for the record.
        parts: further tasks, each with those of the scores that are of it; of these their own metrics alone.

    Returns:
        A results document, in which the metrics of the task come first; and the scores.

    Raises:
        DataError: the number of groups is not the task's.
    """
    started, clock = datetime.now().astimezone(), time.perf_counter()
    config = {**config, "limit": _real_limit(spec, config["limit"])}
    expected = spec if config["limit"] is None else _first_groups(spec, config["limit"])
    check_count(expected, len(stored.group_ids), where)
    record = RunRecord(name, config, command, started)
    for one, scores in [(spec, stored), *parts]:
        metrics = _metrics_for(one, registry, every=one is spec)
        record.outcomes[one.task] = _outcome(one, scores, metrics, source, config)
    return ScoredFile(record.document("done", clock, None), record.outcomes)


def _outcome(
    spec: TaskSpec,
    stored: StoredScores,
    metrics: list[MetricSpec],
    source: dict[str, Any],
    config: Mapping[str, Any],
) -> TaskOutcome:
    """The numbers of one task."""
    clock = time.perf_counter()
    settings = config["bootstrap_iters"], config["seed"], config["interval"]
    summary = summarise(stored.scores, metrics, *settings, stored.clusters, stored.subsets)
    means = {}
    tags = stored.tags or [{}] * len(stored.group_ids)
    groups = [Group(name, (), (), of) for name, of in zip(stored.group_ids, tags, strict=True)]
    if stored.tags is not None:
        means = tag_means(groups, stored.scores, metrics, stored.subsets, spec.means, stored.clusters, settings)
    notes = [STORED_NOTE, *_notes(spec, stored.scores[RAW][0].all_pairs is None, stored.format)]
    if spec.means and stored.tags is None:
        notes.append(f"the file states no tags, so there are no means over their values ({', '.join(spec.means)})")
    return TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=groups,
        source=source,
        fingerprint=stored_digest(spec.task, spec.version, str(spec.shape), stored.group_ids),
        scores=stored.scores,
        summary=summary,
        records={},
        notes=notes,
        seconds={"score": time.perf_counter() - clock},
        tag_means=means,
        clusters=stored.clusters,
    )


def _of_task(stored: StoredScores, spec: TaskSpec, path: Path) -> StoredScores:
    """Those of the scores that are of a task, where the file says what they are of."""
    wanted = spec.group.constant_tags
    if stored.tags is None or not any(tag in tags for tags in stored.tags for tag in wanted):
        return stored  # it does not say
    fitting = _by_values(stored.tags, wanted, lambda tags: _fits(tags, wanted))
    return _of_places(stored, [place for place, fits in enumerate(fitting) if fits], spec, path)


def _of_places(stored: StoredScores, places: Sequence[int], spec: TaskSpec, path: Path) -> StoredScores:
    """Those of the scores at the places that are a task's; there is one at least."""
    if not places:
        of = ", ".join(f"{tag} {value}" for tag, value in spec.group.constant_tags.items())
        raise DataError(f"{path}: has no scores of task '{spec.task}' ({of})")
    return stored.some(places)


def _parts(registry: Registry, spec: TaskSpec, stored: StoredScores, path: Path) -> list[tuple[TaskSpec, StoredScores]]:
    """The tasks that a task consists of, each with its scores; none where the file does not say which are whose.

    Raises:
        DataError: scores that are of no part, or a part with another number of groups than its task.
    """
    if spec.parts is None or stored.tags is None:
        return []
    parts = [task.spec for task in all_tasks(registry).values() if task.spec.aggregate == spec.parts]
    asked = {tag for part in parts for tag in part.group.constant_tags}
    fitting = _by_values(
        stored.tags, asked, lambda tags: [part for part in parts if _fits(tags, part.group.constant_tags)]
    )
    places: dict[str, list[int]] = {part.task: [] for part in parts}
    for place, (tags, of) in enumerate(zip(stored.tags, fitting, strict=True)):
        if len(of) != 1:
            stated = ", ".join(f"{tag} {value!r:.80}" for tag, value in tags.items()) or "none"
            raise DataError(f"{path}: {stored.group_ids[place]} is of no part of task '{spec.task}' (tags: {stated})")
        tags |= of[0].group.constant_tags
        places[of[0].task].append(place)
    found = [(part, _of_places(stored, places[part.task], part, path)) for part in parts]
    for part, scores in found:
        check_count(part, len(scores.group_ids), f"{path}: {part.task}")
    return found


def _by_values(
    tags: Sequence[Mapping[str, str]], asked: Collection[str], answer: Callable[[Mapping[str, str]], _Answer]
) -> list[_Answer]:
    """An answer for each group, given once for each set of values of the tags that it depends on: these are few."""
    known: dict[tuple[str | None, ...], _Answer] = {}
    found = []
    for one in tags:
        values = tuple(map(one.get, asked))
        if values not in known:
            known[values] = answer(one)
        found.append(known[values])
    return found


def _fits(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether tags say some of what is wanted, and nothing else of it."""
    known = [tag for tag in wanted if tag in tags]
    return bool(known) and all(tags[tag] == wanted[tag] for tag in known)


def _metrics_for(spec: TaskSpec, registry: Registry, every: bool) -> list[MetricSpec]:
    """The metrics of a task, and on request all others after them."""
    by_name = {name: metric for name, (metric, _) in registry.metrics.items() if metric.scope in SCOPES[spec.kind]}
    rest = [name for name, metric in by_name.items() if name not in spec.metrics and _is_for(metric, spec.shape)]
    return [metric_for(by_name[name], spec.shape) for name in (*spec.metrics, *(rest if every else ()))]


def _is_for(metric: MetricSpec, shape: GroupShape) -> bool:
    """Whether scores of a shape are shown with a metric that their task does not name."""
    return metric.several_true != "only" or shape.true_captions > 1


def _real_limit(spec: TaskSpec, limit: int | None) -> int | None:
    """The limit; None if it takes the whole task, so that a document with a limit is one of a part."""
    total = spec.group.n_groups
    return None if limit is None or (total is not None and limit >= total) else limit


def _first_groups(spec: TaskSpec, limit: int) -> TaskSpec:
    return spec.model_copy(update={"group": spec.group.model_copy(update={"n_groups": limit})})


def _notes(spec: TaskSpec, no_pairs: bool, file_format: str) -> list[str]:
    if no_pairs and (spec.is_global or file_format == "embeddings"):
        return ["global assignment: not computed, the file has no scores across groups (or too many images)"]
    return []
