"""From stored scores, ranks or answers to results: the numbers of a paper checked without its model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.files import file_digest
from ttmbench.data.catalog import all_tasks, find_task, is_named, select_tasks
from ttmbench.data.loader import check_count
from ttmbench.data.task_file import SCOPES, GroupSpec, TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.eval_results import EvalResults, RunRecord
from ttmbench.evaluator.settings import datasets_of
from ttmbench.evaluator.stored_outcomes import Outcomes, read_answers, read_csv_results
from ttmbench.evaluator.stored_ranks import stored_ranks
from ttmbench.evaluator.task_result import Answered, Data, Judged, Scored, TaskResult
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.results.coverage import STORED_ANSWERS, STORED_NOTE, STORED_SCORES
from ttmbench.results.labels import BUILT_IN_FILTERS, RAW, columns_in
from ttmbench.results.stored_files import StoredScores, checked_scores, read_scores
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.forced_choice.arrays import choice_values
from ttmbench.stats import IntervalMethod
from ttmbench.types import GroupShape, MetricSpec, Record, Scores

Given = Sequence[Path] | tuple[np.ndarray, Any]
"""Files, or an array of scores of groups and one of all pairs or None."""
_ARRAY = Path("the array of scores")


def score_stored(
    given: Given,
    task: str | TaskFile | None,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
    model_name: str | None = None,
    choice: bool = False,
) -> EvalResults:
    """Computes every metric that stored scores, ranks or answers define; arguments and errors as for `ttmbench.score`.

    Several files hold ranks, one for each
    side, or ColorSwap's two files of answers. Parts of a task that tags name become further tasks. ``task`` may also be
    the tag of several tasks, of which a file has all rows.
    """
    started, clock, registry = datetime.now().astimezone(), time.perf_counter(), build_registry(include_path)
    files = _tasks(registry, task)
    specs = [file.spec for file in files]
    spec = specs[0] if specs else None
    if spec is not None and limit is not None and spec.group.n_groups is not None and limit >= spec.group.n_groups:
        limit = None  # the whole task
    if spec is None and limit is not None:
        raise UsageError("--limit says that scores are of a task's first groups; name the task with --task")
    paths = [path for path in given if isinstance(path, Path)]
    config: Record = {"scores": "+".join(path.name for path in paths) or None, "logit_scale": logit_scale}
    tasks: list[TaskResult]
    answers = read_answers(paths, None if spec is None else spec.shape) if paths and _of_groups(spec) else None
    if spec is not None and not _of_groups(spec):
        if not paths:
            raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: give a file of ranks, embeddings or a matrix")
        tasks = [stored_ranks(paths, spec, registry, limit, logit_scale)]
    elif answers is not None and spec is not None:
        config = {"answers": [path.name for path in paths]}
        source = {"kind": STORED_ANSWERS, "files": config["answers"], "format": answers.format}
        tasks = [_judged(paths, answers, spec, registry, limit, True, source)]
    else:
        absent = [path for path in paths if not path.is_file()]
        if len(paths) > 1 and not absent:
            raise UsageError("scores are read from one file; two may hold ColorSwap's answers, or ranks with --task")
        known = [(absent or paths)[0]] if paths else given
        tasks = [
            result for of in specs or (None,) for result in _scored(known, of, registry, limit, logit_scale, choice)
        ]
    config |= {"task": task if isinstance(task, str) else tasks[0].spec.task, "limit": limit, "seed": seed}
    config |= {"bootstrap_iters": bootstrap_iters, "interval": interval}
    name = model_name or "+".join(path.stem for path in paths) or "scores"
    datasets = datasets_of(registry, {file.spec.task: file for file in files})
    record = RunRecord(name, config, command, started, datasets=datasets, clock=clock)
    for read in tasks:
        result = read.summarised((bootstrap_iters, seed, interval))
        before, clock = clock, time.perf_counter()
        record.add(replace(result, seconds={"score": clock - before}))
    return record.evaluated(record.document("done"))


def _of_groups(spec: TaskSpec | None) -> bool:
    return spec is None or spec.kind == "groups"


def _tasks(registry: Registry, task: str | TaskFile | None) -> list[TaskFile]:
    """The tasks that a word names: one, those of a tag, or none."""
    if task is None or isinstance(task, TaskFile):
        return [] if task is None else [task]
    if is_named(registry, task):
        return [find_task(registry, task)]
    files = list(select_tasks(registry, [task]).values())
    specs = [file.spec for file in files]
    if len(specs) > 1 and any(not spec.group.constant_tags or spec.kind != "groups" for spec in specs):
        raise UsageError(
            f"--task {task} names {len(specs)} tasks, and their task files do not say which rows of a file are whose; "
            f"name one of {', '.join(spec.task for spec in specs)}"
        )
    return files


def _scored(
    given: Given,
    spec: TaskSpec | None,
    registry: Registry,
    limit: int | None,
    logit_scale: float,
    choice: bool,
) -> list[TaskResult]:
    """Scores or results of groups as a task, and each part of the task that the tags of scores name."""
    path = given[0]
    stored: StoredScores | Outcomes
    if not isinstance(path, Path):
        stored = _of_array(path, given[1], spec, registry)
        path = _ARRAY
    elif path.suffix.lower() == ".csv":
        by_group = [name for name, (metric, _) in registry.metrics.items() if metric.scope == "group"]
        stored = read_csv_results(path, spec, by_group)
    else:
        stored = read_scores(path, None if spec is None else spec.shape, logit_scale)
    source: Record = {"kind": STORED_SCORES, "file": None, "format": stored.format}
    if isinstance(given[0], Path):
        source |= {"file": path.name, "sha256": file_digest(path)}
    else:
        source["sha256"] = hashlib.sha256(np.ascontiguousarray(given[0]).tobytes()).hexdigest()
    if isinstance(stored, Outcomes):
        assert spec is not None, "results of groups are read for a task"
        return [_judged([path], stored, spec, registry, limit, choice, source)]
    if choice:
        raise UsageError(f"{path}: --choice is for results of groups (true or false), and it holds scores")
    spec = spec_of_scores(stored.scores[RAW][0].groups, registry, stored.true_captions) if spec is None else spec
    wanted = spec.group.constant_tags
    if any(tag in tags for tags in stored.tags or () for tag in wanted):
        stored = _some(stored, wanted, spec, path)
    parts = [] if limit is not None else _parts(registry, spec, stored, path)
    check_count(_first_groups(spec, limit), len(stored.group_ids), str(path))
    whole = scored_task(spec, stored, metrics_of_scores(spec, registry), source, registry)
    return [
        whole,
        *(scored_task(part, of, metrics_of_scores(part, registry, False), source, registry) for part, of in parts),
    ]


def _of_array(array: np.ndarray, pairs: Any, spec: TaskSpec | None, registry: Registry) -> StoredScores:
    """Scores in memory; DataError for what is no scores of the task's groups."""
    if array.ndim != 3 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise DataError(
            f"the scores are an array {array.dtype} {list(array.shape)}; expected numbers [groups, images, captions]"
        )
    ids, shape = [str(index) for index in range(len(array))], (spec or spec_of_scores(array, registry)).shape
    scores = checked_scores(_ARRAY, array, shape, ids)
    pairs = None if pairs is None else np.asarray(pairs, dtype=scores.dtype)
    wanted = (len(array) * shape.images, len(array) * shape.captions)
    if pairs is not None and (pairs.shape != wanted or not np.isfinite(pairs).all()):
        raise DataError(f"all_pairs should be finite and of shape {list(wanted)}, got {list(pairs.shape)}")
    return StoredScores({RAW: [Scores(scores, pairs)]}, ids, "array")


def _some(stored: StoredScores, wanted: Mapping[str, str], spec: TaskSpec, path: Path) -> StoredScores:
    """The scores of groups that have the wanted tags; DataError if there are none."""
    members = [index for index, tags in enumerate(stored.tags or ()) if _fits(tags, wanted)]
    if not members:
        of = ", ".join(f"{tag} {value}" for tag, value in wanted.items())
        raise DataError(f"{path}: has no scores of task '{spec.task}' ({of})")
    return stored.some(members)


def _parts(registry: Registry, spec: TaskSpec, stored: StoredScores, path: Path) -> list[tuple[TaskSpec, StoredScores]]:
    """The parts of a task with their scores, if the tags name them; DataError if a part does not fit."""
    if spec.parts is None or stored.tags is None:
        return []
    parts = [task.spec for task in all_tasks(registry).values() if task.spec.aggregate == spec.parts]
    for group, tags in zip(stored.group_ids, stored.tags, strict=True):
        fitting = [part.group.constant_tags for part in parts if _fits(tags, part.group.constant_tags)]
        if len(fitting) != 1:
            stated = ", ".join(f"{tag} {value!r:.80}" for tag, value in tags.items()) or "none"
            raise DataError(f"{path}: {group} is of no part of task '{spec.task}' (tags: {stated})")
        tags |= fitting[0]
    scores_of_parts = [(part, _some(stored, part.group.constant_tags, part, path)) for part in parts]
    for part, scores in scores_of_parts:
        check_count(part, len(scores.group_ids), f"{path}: {part.task}")
    return scores_of_parts


def _fits(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether tags have one of the wanted values, and no other value for any of them."""
    known = [tag for tag in wanted if tag in tags]
    return bool(known) and all(tags[tag] == wanted[tag] for tag in known)


def _first_groups(spec: TaskSpec, limit: int | None) -> TaskSpec:
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
    metrics = [metric for metric, _ in registry.metrics.values() if metric.scope in SCOPES["groups"]]
    return TaskSpec(
        task="scores",
        version=0,
        source={"kind": "stored_scores"},
        group=GroupSpec(shape=(shape.images, shape.captions), true_captions=true_captions, n_groups=len(array)),
        metrics=[metric.name for metric in metrics if _is_for(metric, shape)],
    )


def metrics_of_scores(spec: TaskSpec, registry: Registry, every: bool = True) -> list[MetricSpec]:
    """The metrics of a task, and on request all others after them."""
    by_name = {name: metric for name, (metric, _) in registry.metrics.items() if metric.scope in SCOPES[spec.kind]}
    rest = [name for name, metric in by_name.items() if name not in spec.metrics and _is_for(metric, spec.shape)]
    return [metric_for(by_name[name], spec.shape) for name in (*spec.metrics, *(rest if every else ()))]


def _is_for(metric: MetricSpec, shape: GroupShape) -> bool:
    """Whether scores of a shape are shown with a metric that their task does not name."""
    return metric.several_true != "only" or shape.true_captions > 1


def scored_task(
    spec: TaskSpec, stored: StoredScores, metrics: Sequence[MetricSpec], source: Record, registry: Registry
) -> Scored:
    """Scores that were read, as a task with these metrics; ``source`` is the record of where they come from."""
    notes = [STORED_NOTE]
    if stored.scores[RAW][0].all_pairs is None and (spec.is_global or stored.format == "embeddings"):
        notes.append("global assignment: not computed, the file has no scores across groups (or too many images)")
    if spec.means and stored.tags is None:
        notes.append(f"the file states no tags, so there are no means over their values ({', '.join(spec.means)})")
    columns = []
    for name in dict.fromkeys(column.filter for column in columns_in(stored.scores)):
        if name in stored.scores:
            column = MethodScores(name, stored.scores[name], members=stored.subsets.get(name))
            if name not in BUILT_IN_FILTERS:  # a test-time method: its scores do not say what chance gives
                track = registry.methods[name][0].track if name in registry.methods else None
                column = replace(column, track=track, chance={})
            columns.append(column)
    data = Data.of_file(spec, source, stored.group_ids, stored.tags, stored.clusters)
    return Scored(spec=spec, metrics=metrics, data=data, columns=columns, notes=notes)


def _judged(
    paths: Sequence[Path],
    outcomes: Outcomes,
    spec: TaskSpec,
    registry: Registry,
    limit: int | None,
    choice: bool,
    source: Record,
) -> TaskResult:
    """Results of groups as a task; with ``choice`` those of forced choices."""
    size, path = len(outcomes.group_ids), paths[0]
    notes = [STORED_NOTE, *outcomes.notes]
    if limit is None and size in spec.group.wrong_sizes:  # what cannot be fetched again may have one that is known
        why = spec.group.wrong_sizes[size].partition(";")[0]  # what follows is how to fetch the data again
        notes.append(f"these are results of {size} groups, the task has {spec.group.n_groups}: {why}")
    else:
        check_count(_first_groups(spec, limit), size, str(path))
    data = Data.of_file(
        spec, {**source, "sha256": file_digest(*paths)}, outcomes.group_ids, outcomes.tags, outcomes.clusters
    )
    if choice:
        asked = [side for side in ("text", "image") if getattr(outcomes.choices, side) is not None]
        if not asked:
            raise DataError(f"{path}: forced choices are text_score, image_score or both, and it has neither")
        metrics = [registry.metric(name) for name in choice_values(outcomes.choices)]
        unread = [dict(zip(("group_id", "question", "answer"), one, strict=True)) for one in outcomes.unread]
        record = {"asked": asked, "orders": 1, "unread": unread}
        return Answered(spec=spec, metrics=metrics, data=data, notes=notes, choices=outcomes.choices, record=record)
    absent = [name for name in spec.metrics if name not in outcomes.values]
    notes += [f"not computed without scores: {', '.join(absent)}"] if absent else []
    metrics = [metric for metric in metrics_of_scores(spec, registry) if metric.name in outcomes.values]
    return Judged(spec=spec, metrics=metrics, data=data, notes=notes, values=outcomes.values)
