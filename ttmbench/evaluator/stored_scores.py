"""Stored scores and answers as tasks, with neither model nor data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ttmbench.data.catalog import all_tasks
from ttmbench.data.loader import check_count
from ttmbench.data.task_file import SCOPES, GroupSpec, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.run_key import stored_digest
from ttmbench.evaluator.stored_outcomes import TIES_NOTE, Outcomes, read_outcomes, size_notes
from ttmbench.evaluator.task_result import Answered, Data, Judged, Scored, TaskResult
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.coverage import STORED_ANSWERS, STORED_SCORES
from ttmbench.results.labels import BUILT_IN_FILTERS, RAW, columns_in
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.scores_file import is_packed, read_scores
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.forced_choice.arrays import choice_values, unread_notes
from ttmbench.scoring.forced_choice.stored_answers import COLORSWAP, read_answers
from ttmbench.types import Group, GroupShape, MetricSpec, Record

STORED_NOTE = (
    "scored from a file, without images and captions: comparable with results from files that have the same task, "
    "version, shape and group ids"
)


def stored_scores(
    path: Path, spec: TaskSpec | None, registry: Registry, limit: int | None, logit_scale: float, choice: bool = False
) -> list[TaskResult]:
    """A file of scores or results of groups as a task, and each part of the task that the tags of scores name.

    Without ``spec`` a file of scores gives shape and size; with ``choice``, results are of forced choices. DataError,
    with the group, if the file does not fit the task.
    """
    read = _read(path, spec, registry, logit_scale)
    form = "per-sample results" if isinstance(read, Outcomes) else read.format
    source = {"kind": STORED_SCORES, "file": path.name, "format": form, "sha256": digest_of([path])}
    if isinstance(read, Outcomes):
        assert spec is not None, "results of groups are read for a task"
        return [_judged(path, read, spec, registry, limit, choice, source)]
    if choice:
        raise UsageError(f"{path}: --choice is for results of groups (true or false), and it holds scores")
    stored = read
    spec = spec_of_scores(stored.scores[RAW][0].groups, registry, stored.true_captions) if spec is None else spec
    stored = _of_task(stored, spec, path)
    parts = [] if limit is not None else _parts(registry, spec, stored, path)
    check_count(first_groups(spec, limit), len(stored.group_ids), str(path))
    whole = scored_task(spec, stored, metrics_of_scores(spec, registry), source, registry)
    return [
        whole,
        *(scored_task(part, of, metrics_of_scores(part, registry, False), source, registry) for part, of in parts),
    ]


def _read(path: Path, spec: TaskSpec | None, registry: Registry, logit_scale: float) -> StoredScores | Outcomes:
    if is_packed(path) or path.suffix.lower() != ".csv":
        return read_scores(path, None if spec is None else spec.shape, logit_scale)
    return read_outcomes(
        path, spec, [name for name, (metric, _) in registry.metrics.items() if metric.scope == "group"]
    )


def _judged(
    path: Path,
    outcomes: Outcomes,
    spec: TaskSpec,
    registry: Registry,
    limit: int | None,
    choice: bool,
    source: Record,
) -> TaskResult:
    """Results of groups as a task; with ``choice`` those of forced choices."""
    notes = [STORED_NOTE, TIES_NOTE]
    notes += size_notes(spec, len(outcomes.group_ids), first_groups(spec, limit), path)
    groups = [Group(name, (), (), of) for name, of in zip(outcomes.group_ids, outcomes.tags, strict=True)]
    digest = stored_digest(spec.task, spec.version, str(spec.shape), outcomes.group_ids)
    data = Data(groups, source, digest, outcomes.clusters)
    if choice:
        asked = [side for side in ("text", "image") if getattr(outcomes.choices, side) is not None]
        if not asked:
            raise DataError(f"{path}: forced choices are text_score, image_score or both, and it has neither")
        metrics = [registry.metric(name) for name in choice_values(outcomes.choices)]
        record = {"asked": asked, "orders": 1, "unread": []}
        return Answered(spec=spec, metrics=metrics, data=data, notes=notes, choices=outcomes.choices, record=record)
    absent = [name for name in spec.metrics if name not in outcomes.values]
    notes += [f"not computed without scores: {', '.join(absent)}"] if absent else []
    metrics = [metric for metric in metrics_of_scores(spec, registry) if metric.name in outcomes.values]
    return Judged(spec=spec, metrics=metrics, data=data, notes=notes, values=outcomes.values)


def digest_of(paths: Sequence[Path]) -> str:
    """sha256 of the content of files, hexadecimal."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def first_groups(spec: TaskSpec, limit: int | None) -> TaskSpec:
    """The task as far as a limit takes it."""
    if limit is None:
        return spec
    return spec.model_copy(update={"group": spec.group.model_copy(update={"n_groups": limit})})


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


def scored_task(
    spec: TaskSpec, stored: StoredScores, metrics: Sequence[MetricSpec], source: Record, registry: Registry
) -> Scored:
    """Scores that were read, as a task with these metrics; ``source`` is the record of where they come from."""
    tags = stored.tags or [{}] * len(stored.group_ids)
    groups = [Group(name, (), (), of) for name, of in zip(stored.group_ids, tags, strict=True)]
    notes = [STORED_NOTE]
    if stored.scores[RAW][0].all_pairs is None and (spec.is_global or stored.format == "embeddings"):
        notes.append("global assignment: not computed, the file has no scores across groups (or too many images)")
    if spec.means and stored.tags is None:
        notes.append(f"the file states no tags, so there are no means over their values ({', '.join(spec.means)})")
    digest = stored_digest(spec.task, spec.version, str(spec.shape), stored.group_ids)
    order = dict.fromkeys(column.filter for column in columns_in(stored.scores))
    columns = [_column(name, stored, registry) for name in order if name in stored.scores]
    data = Data(groups, source, digest, stored.clusters)
    return Scored(spec=spec, metrics=metrics, data=data, columns=columns, notes=notes)


def _column(name: str, stored: StoredScores, registry: Registry) -> MethodScores:
    """The scores of a filter; a test-time method has its track, and chance levels that its scores do not give."""
    column = MethodScores(name, stored.scores[name], members=stored.subsets.get(name))
    if name in BUILT_IN_FILTERS:
        return column
    track = registry.methods[name][0].track if name in registry.methods else None
    return replace(column, track=track, chance={})


def metrics_of_scores(spec: TaskSpec, registry: Registry, every: bool = True) -> list[MetricSpec]:
    """The metrics of a task, and on request all others after them."""
    by_name = {name: metric for name, (metric, _) in registry.metrics.items() if metric.scope in SCOPES[spec.kind]}
    rest = [name for name, metric in by_name.items() if name not in spec.metrics and _is_for(metric, spec.shape)]
    return [metric_for(by_name[name], spec.shape) for name in (*spec.metrics, *(rest if every else ()))]


def _of_task(stored: StoredScores, spec: TaskSpec, path: Path) -> StoredScores:
    """The scores that are of a task, where the file says what they are of."""
    wanted = spec.group.constant_tags
    if stored.tags is None or not any(tag in tags for tags in stored.tags for tag in wanted):
        return stored  # it does not say
    return _some(stored, [index for index, tags in enumerate(stored.tags) if _fits(tags, wanted)], spec, path)


def _some(stored: StoredScores, members: Sequence[int], spec: TaskSpec, path: Path) -> StoredScores:
    """The scores at these positions; DataError if there are none."""
    if not members:
        of = ", ".join(f"{tag} {value}" for tag, value in spec.group.constant_tags.items())
        raise DataError(f"{path}: has no scores of task '{spec.task}' ({of})")
    return stored.some(members)


def _parts(registry: Registry, spec: TaskSpec, stored: StoredScores, path: Path) -> list[tuple[TaskSpec, StoredScores]]:
    """The parts of a task with their scores, if the tags name them; DataError if a part does not fit."""
    if spec.parts is None or stored.tags is None:
        return []
    parts = [task.spec for task in all_tasks(registry).values() if task.spec.aggregate == spec.parts]
    members: dict[str, list[int]] = {part.task: [] for part in parts}
    for index, tags in enumerate(stored.tags):
        fitting = [part for part in parts if _fits(tags, part.group.constant_tags)]
        if len(fitting) != 1:
            stated = ", ".join(f"{tag} {value!r:.80}" for tag, value in tags.items()) or "none"
            raise DataError(f"{path}: {stored.group_ids[index]} is of no part of task '{spec.task}' (tags: {stated})")
        tags |= fitting[0].group.constant_tags
        members[fitting[0].task].append(index)
    scores_of_parts = [(part, _some(stored, members[part.task], part, path)) for part in parts]
    for part, scores in scores_of_parts:
        check_count(part, len(scores.group_ids), f"{path}: {part.task}")
    return scores_of_parts


def _fits(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether tags have one of the wanted values, and no other value for any of them."""
    known = [tag for tag in wanted if tag in tags]
    return bool(known) and all(tags[tag] == wanted[tag] for tag in known)


def _is_for(metric: MetricSpec, shape: GroupShape) -> bool:
    """Whether scores of a shape are shown with a metric that their task does not name."""
    return metric.several_true != "only" or shape.true_captions > 1


def stored_answers(paths: Sequence[Path], spec: TaskSpec, registry: Registry, limit: int | None) -> Answered:
    """Stored answers as a task; UsageError for files that do not belong together, DataError for a wrong one."""
    stored = read_answers(paths, spec.shape)
    notes = [STORED_NOTE]
    if stored.format == COLORSWAP:
        notes.append("answers are read by the rules of ColorSwap's release, which are not those for answers of a run")
    notes += [*stored.notes, *size_notes(spec, len(stored.choices), first_groups(spec, limit), paths[0])]
    notes += [*unread_notes(stored.unread)]
    names = [path.name for path in paths]
    source = {"kind": STORED_ANSWERS, "files": names, "format": stored.format, "sha256": digest_of(paths)}
    unread = [{"group_id": group, "question": question, "answer": answer} for group, question, answer in stored.unread]
    digest = stored_digest(spec.task, spec.version, str(spec.shape), stored.group_ids)
    return Answered(
        spec=spec,
        metrics=[registry.metric(name) for name in choice_values(stored.choices)],
        data=Data([Group(name, (), ()) for name in stored.group_ids], source, digest),
        notes=notes,
        choices=stored.choices,
        record={
            "asked": [side for side in ("text", "image") if getattr(stored.choices, side) is not None],
            "orders": 1,
            "unread": unread,
        },
    )
