"""From stored scores, ranks or results of groups to numbers: those of a paper checked without its model."""

from __future__ import annotations

import hashlib
import io
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import plain_numbers
from ttmbench._util.file_io import file_digest
from ttmbench.config import make_run_config
from ttmbench.data.loader import check_count
from ttmbench.data.rows import read_text
from ttmbench.data.task_file import SCOPES, GroupSpec, TaskFile, TaskSpec, all_tasks, find_task, is_named, select_tasks
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.eval_results import Answered, Data, EvalResults, Judged, Scored, TaskResult
from ttmbench.evaluator.output import Output
from ttmbench.evaluator.stored_ranks import stored_ranks
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.results.document import check_names
from ttmbench.results.numbers import BUILT_IN_METHODS, RAW, SLASH, STORED_NOTE, STORED_SCORES, columns_in
from ttmbench.results.stored_files import StoredScores, check_pairs, checked_scores, read_scores, stated_shape
from ttmbench.results.summary import Clusters, MethodScores, connected, refuse_unless_logits
from ttmbench.scoring.choice_arrays import Choices, choice_values
from ttmbench.types import GroupShape, MetricSpec, Record, Scores

CSV = "per-sample results"
EXPECTED = (
    "expected columns of scores (c0_i0, c0_i1, ...), questions (text_score_i0, image_score_c0, ...), metrics "
    "(text_score, image_score, group_score) or 'correct' (groups with one image or one caption)"
)
_CELL = re.compile(r"^c([0-9]{1,4})_i([0-9]{1,4})\Z")
_Table = dict[str, list[str]]  # column -> cells
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Outcomes:
    """Which groups are right."""

    group_ids: list[str]  # in the order of the arrays
    choices: Choices  # which questions were answered correctly; a side is None where it is not known
    values: dict[str, np.ndarray]  # metric -> fraction [groups]
    tags: list[dict[str, str]] | None
    clusters: Clusters | None


def _number(value: object) -> float:
    """A number, also of its text; NaN for anything else."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def read_csv_results(path: Path, spec: TaskSpec | None, metrics: Sequence[str]) -> StoredScores | Outcomes:
    """What CSV holds of the groups of a task, or of no task: scores, whose shape is then that of the columns.

    Its rows are of this task, or of several that a column distinguishes; ``metrics`` are names that columns may have.
    DataError if the file has neither scores nor results of groups, or a cell is wrong; the row is named.
    """
    table = _read_table(path, spec)
    rows = len(next(iter(table.values())))
    ids = table.get("group_id", [str(row) for row in range(rows)])
    if not rows:
        raise DataError(f"{path}: has no rows of the task")
    if len(set(ids)) < rows:
        raise DataError(f"{path}: has group_id {Counter(ids).most_common(1)[0][0]!r:.80} twice")
    named = [tag for tag in ([] if spec is None else spec.group.tags) if tag in table]
    constant = {} if spec is None else spec.group.constant_tags
    tags = [{tag: table[tag][row] for tag in named if table[tag][row]} | constant for row in range(rows)]
    cells = {(int(match[2]), int(match[1])): name for name in table if (match := _CELL.match(name)) is not None}
    shape = None if spec is None else spec.shape
    if cells:  # scores
        images, captions = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
        if len(cells) != images * captions:
            raise DataError(f"{path}: has columns {', '.join(cells.values())}, not one for each image and caption")
        numbers = np.array([list(map(_number, table[cells[cell]])) for cell in sorted(cells)]).T
        shape = shape or stated_shape(path, images, captions)
        scores = {RAW: [Scores(checked_scores(path, numbers.reshape(rows, images, captions), shape, ids))]}
    elif shape is None:
        raise DataError(f"{path}: has no scores; results of groups need their task: name it with --task")
    names = ("cluster", "filename") if shape.images == 1 else ("cluster",)
    column = next((name for name in names if name in table), None)
    clusters = None
    if column is not None:  # it names a cluster, or the image of groups that have one
        groups = np.array(connected([[name] for name in table[column]]))
        each = groups if shape.images == 1 else np.arange(rows * shape.images)
        clusters = Clusters(groups, each.reshape(rows, -1))
    if cells:
        known = tags if any(tags) else None
        return StoredScores(scores, ids, "score cells", clusters, shape.true_captions, known)
    choices, values = _results(path, table, shape, metrics)
    return Outcomes(ids, choices, values, tags, clusters)


def _read_table(path: Path, spec: TaskSpec | None) -> _Table:
    """The rows of a task, where columns with the names of its tags, or ``type`` and ``subtype``, say what they are."""
    import pandas as pd

    try:
        table = pd.read_csv(io.StringIO(read_text(path)), header=None, dtype=str, keep_default_na=False)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise DataError(f"{path}: is not CSV ({why}); each row needs as many cells as the header") from None
    header = table.iloc[0].tolist()  # given as a header, pandas would rename a column that is there twice
    if len(set(header)) < len(header):
        raise DataError(f"{path}: the header of a CSV names each column once; it has {', '.join(header)}")
    table = table.iloc[1:].set_axis(header, axis=1)
    for tag, wanted in {} if spec is None else spec.group.constant_tags.items():
        if tag in table:
            table = table[table[tag] == wanted]
        elif {"type", "subtype"} <= set(header):  # as BiVLC's release
            table = table[table["type"] + "_" + table["subtype"] == wanted]
    return {name: table[name].tolist() for name in header}


def _truth(path: Path, table: _Table, name: str) -> np.ndarray:
    """A column of true and false: bool [groups]."""
    for row, cell in enumerate(table[name]):
        if cell.lower() not in _TRUTH:
            raise DataError(f"{path}: row {row} has {name} {cell!r:.80}; expected true/false or 1/0")
    return np.array([_TRUTH[cell.lower()] for cell in table[name]])


def _results(
    path: Path, table: _Table, shape: GroupShape, metrics: Sequence[str]
) -> tuple[Choices, dict[str, np.ndarray]]:
    """Which questions were answered correctly, and metric -> values of groups: of columns, and what follows of them."""
    values = {name: _truth(path, table, name).astype(np.float64) for name in table if name in metrics}
    sides: dict[str, np.ndarray] = {}  # text and image -> bool [groups, questions]
    for side, letter in (("text", "i"), ("image", "c")):
        found = sorted(name for name in table if name.startswith(f"{side}_score_{letter}"))
        wanted = [f"{side}_score_{letter}{number}" for number in range(min(shape.images, shape.captions))]
        if found and found != sorted(wanted):
            raise DataError(f"{path}: has {', '.join(found)}; a {shape} group needs {', '.join(wanted)}")
        if found:
            sides[side] = np.column_stack([_truth(path, table, name) for name in wanted])
    if "correct" in table and not values and not sides:
        if min(shape.images, shape.captions) > 1 or shape.true_captions > 1:
            raise DataError(
                f"{path}: 'correct' does not say which metric of a {shape} group it is; name the columns text_score, "
                "image_score and group_score"
            )
        values["image_score" if shape.more_images else "text_score"] = _truth(path, table, "correct").astype(np.float64)
    known: dict[str, np.ndarray] = {}
    for side, right in sides.items():
        known[f"{side}_score"] = np.asarray(right.all(axis=1), np.float64)
        if side == "text" and shape.true_captions == 1:
            known["individual_match"] = np.asarray(right.mean(axis=1), np.float64)
    text, image = ({**values, **known}.get(f"{side}_score") for side in ("text", "image"))
    deciding = image if shape.more_images else text
    if shape.images == shape.captions:
        deciding = None if text is None or image is None else text * image
    if deciding is not None and shape.true_captions == 1:
        known["group_score"] = deciding
        if min(shape.images, shape.captions) == 1:  # the best candidate of one side is the matching
            known["group_match"] = deciding
            known |= {} if shape.more_images else {"individual_match": deciding}
    for metric, followed in known.items():
        differing = np.flatnonzero(values.setdefault(metric, followed) != followed)
        if len(differing):
            raise DataError(f"{path}: row {differing[0]} has {metric} that contradicts its other columns")
    if not values:
        raise DataError(f"{path}: has columns {', '.join(list(table)[:12])}; {EXPECTED}")
    for side in ("text", "image"):  # of which only the metric is known, as one question each
        if side not in sides and f"{side}_score" in values:
            sides[side] = values[f"{side}_score"][:, None].astype(bool)
    return Choices(sides.get("text"), sides.get("image")), values


Given = Sequence[Path] | tuple[np.ndarray, Any]
"""Files, or an array of scores of groups and one of all pairs or None."""
_ARRAY = Path("the array of scores")


def score_stored(
    given: Given,
    task: str | TaskFile | None,
    *,
    logit_scale: float = 1.0,
    limit: int | None = None,
    command: Sequence[str] = (),
    model_name: str | None = None,
    choice: bool = False,
    **options: Any,
) -> EvalResults:
    """Computes every metric that stored scores, ranks or results define; arguments and errors as for `ttmbench.score`.

    ``options`` are of `RunConfig`: with ``output_path`` a document and samples are written. Two files hold ranks, one
    for each side. Parts of a task that tags name become further tasks. ``task`` may also be the tag of several tasks,
    if the rows of the file say which task they are of.
    """
    clock, paths = time.perf_counter(), [path for path in given if isinstance(path, Path)]
    name = model_name or "+".join(path.stem for path in paths) or "scores"
    run = make_run_config({**options, "model": "scores", "tasks": ["scores"], "model_name": name}, "options")
    registry = build_registry(run.include_path)
    files = _tasks(registry, task)
    specs = [file.spec for file in files]
    spec = specs[0] if specs else None
    if spec is not None and limit is not None and spec.group.n_groups is not None and limit >= spec.group.n_groups:
        limit = None  # the whole task
    if spec is None and limit is not None:
        raise UsageError("--limit says that scores are of a task's first groups; name the task with --task")
    config: Record = {"scores": "+".join(path.name for path in paths) or None, "logit_scale": logit_scale}
    if spec is not None and spec.kind != "groups":
        if not paths:
            raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: give a file of ranks, embeddings or a matrix")
        read: Sequence[TaskResult] = [stored_ranks(paths, spec, registry, limit, logit_scale)]
    elif len(paths) > 1:
        raise UsageError("scores are read from one file; two may hold ranks, with --task")
    else:
        read = [of for one in specs or (None,) for of in _scored(given, one, registry, limit, logit_scale, choice)]
    read = [_with_metrics(result, run.metrics, registry) for result in read] if run.metrics else read
    tasks = [result.summarised((run.bootstrap_iters, run.seed, run.interval)) for result in read]
    config |= {"task": task if isinstance(task, str) else tasks[0].spec.task, "limit": limit, "seed": run.seed}
    config |= {"bootstrap_iters": run.bootstrap_iters, "interval": run.interval, "metrics": run.metrics}
    metrics = {result.spec.task: [metric.name for metric in result.metrics] for result in tasks}
    metrics |= {f"{of.spec.task}{SLASH}{mean}": metrics[of.spec.task] for of in tasks for mean in of.tag_means}
    check_names(run.assertions, metrics, list({number.method: None for of in tasks for number in of.numbers}))
    output = Output(run, registry, {file.spec.task: file for file in files}, None, command, config, clock)
    with output.recording():
        for result in tasks:
            with output.task(result.spec.task, None, goes_on=False):
                output.add(result)
    return output.evaluated


def _tasks(registry: Registry, task: str | TaskFile | None) -> list[TaskFile]:
    """The tasks that a word names: one, those of a tag, or none."""
    if task is None or isinstance(task, TaskFile):
        return [] if task is None else [task]
    if is_named(registry, task):
        return [find_task(registry, task)]
    files = list(select_tasks(registry, [task]).values())
    specs = [file.spec for file in files]
    if len(specs) > 1 and any(not spec.group.constant_tags or spec.kind != "groups" for spec in specs):
        names = ", ".join(spec.task for spec in specs)
        raise UsageError(f"--task {task}: task files do not say which rows of a file are whose; name one of {names}")
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
        by_group = [name for name, metric in registry.metrics.items() if metric.scope == "group"]
        stored = read_csv_results(path, spec, by_group)
    else:
        stored = read_scores(path, None if spec is None else spec.shape, logit_scale)
    source: Record = {
        "kind": STORED_SCORES,
        "file": None,
        "format": CSV if isinstance(stored, Outcomes) else stored.format,
    }
    if isinstance(given[0], Path):
        source |= {"file": path.name, "sha256": file_digest(path)}
    else:
        source["sha256"] = hashlib.sha256(np.ascontiguousarray(given[0]).tobytes()).hexdigest()
    if isinstance(stored, Outcomes):
        assert spec is not None, "results of groups are read for a task"
        return [_judged(path, stored, spec, registry, limit, choice, source)]
    if choice:
        raise UsageError(f"{path}: --choice is for results of groups (true or false), and it holds scores")
    spec = spec_of_scores(stored.scores[RAW][0].groups, registry, stored.true_captions) if spec is None else spec
    wanted = spec.group.constant_tags
    if any(tag in tags for tags in stored.tags or () for tag in wanted):
        stored = _some(stored, wanted, spec, path)
    parts = [] if limit is not None else _parts(registry, spec, stored, path)
    check_count(spec, len(stored.group_ids), str(path), limit)
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
    scores = checked_scores(_ARRAY, plain_numbers(_ARRAY, "scores", array), shape, ids)
    pairs = None if pairs is None else plain_numbers(_ARRAY, "all_pairs", np.asarray(pairs)).astype(scores.dtype)
    check_pairs("all_pairs", pairs, len(array) * shape.images, len(array) * shape.captions)
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


def spec_of_scores(array: np.ndarray, registry: Registry, true_captions: int = 1) -> TaskSpec:
    """The task of scores that are of none; DataError for a shape that no group has."""
    shape = stated_shape(_ARRAY, array.shape[1], array.shape[2], true_captions)
    metrics = [metric for metric in registry.metrics.values() if metric.scope in SCOPES["groups"]]
    return TaskSpec(
        task="scores",
        version=0,
        source={"kind": "stored_scores"},
        group=GroupSpec(shape=(shape.images, shape.captions), true_captions=true_captions, n_groups=len(array)),
        metrics=[metric.name for metric in metrics if _is_for(metric, shape)],
    )


def metrics_of_scores(spec: TaskSpec, registry: Registry, every: bool = True) -> list[MetricSpec]:
    """The metrics of a task, and on request all others after them."""
    by_name = {name: metric for name, metric in registry.metrics.items() if metric.scope in SCOPES[spec.kind]}
    rest = [name for name, metric in by_name.items() if name not in spec.metrics and _is_for(metric, spec.shape)]
    return [metric_for(by_name[name], spec.shape) for name in (*spec.metrics, *(rest if every else ()))]


def _is_for(metric: MetricSpec, shape: GroupShape) -> bool:
    """Whether scores of a shape are shown with a metric that their task does not name."""
    return metric.scope != "task" and (metric.several_true != "only" or shape.true_captions > 1)


def _with_metrics(result: TaskResult, names: Sequence[str], registry: Registry) -> TaskResult:
    """What was read with further metrics (``--metrics``); UsageError for those that it cannot have."""
    spec = TaskFile(result.spec, None).with_metrics(registry, names).spec
    if not isinstance(result, Scored):
        raise UsageError(f"--metrics {','.join(names)} needs scores, and the file has results or ranks")
    asked = [metric_for(registry.metrics[name], spec.shape) for name in names if name not in result.spec.metrics]
    why = "the file has probabilities or cosines; for cosines give the model's --logit_scale X"
    refuse_unless_logits(asked, None if result.raw.are_logits else why)
    return replace(result, spec=spec, metrics=list(dict.fromkeys([*result.metrics, *asked])))


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
    for name in dict.fromkeys(column.method for column in columns_in(stored.scores)):
        if name in stored.scores:
            column = MethodScores(name, stored.scores[name])
            if name not in BUILT_IN_METHODS:  # a test-time method: its scores do not say what chance gives
                method = registry.methods.get(name)
                scores = [replace(one, are_logits=method is None or method.gives_logits) for one in column.scores]
                column = replace(column, scores=scores, track=method.track if method else None, chance={})
            columns.append(column)
    data = Data.of_file(spec, source, stored.group_ids, stored.tags, stored.clusters)
    return Scored(spec=spec, metrics=metrics, data=data, columns=columns, notes=notes)


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
    size = len(outcomes.group_ids)
    notes = [STORED_NOTE, "per-sample results say nothing of ties: these were decided by whoever made the file"]
    if limit is None and size in spec.group.wrong_sizes:  # what cannot be fetched again may have one that is known
        why = spec.group.wrong_sizes[size].partition(";")[0]  # what follows is how to fetch the data again
        notes.append(f"these are results of {size} groups, the task has {spec.group.n_groups}: {why}")
    else:
        check_count(spec, size, str(path), limit)
    data = Data.of_file(spec, source, outcomes.group_ids, outcomes.tags, outcomes.clusters)
    if choice:
        asked = [side for side in ("text", "image") if getattr(outcomes.choices, side) is not None]
        if not asked:
            raise DataError(f"{path}: forced choices are text_score, image_score or both, and it has neither")
        metrics = [registry.metrics[name] for name in choice_values(outcomes.choices)]
        record = {"asked": asked, "orders": 1, "unread": []}
        return Answered(spec=spec, metrics=metrics, data=data, notes=notes, choices=outcomes.choices, record=record)
    absent = [name for name in spec.metrics if name not in outcomes.values]
    notes += [f"not computed without scores: {', '.join(absent)}"] if absent else []
    metrics = [metric for metric in metrics_of_scores(spec, registry) if metric.name in outcomes.values]
    return Judged(spec=spec, metrics=metrics, data=data, notes=notes, values=outcomes.values)
