"""Per-sample results of others as tasks: CSV of scores, or of which groups are right, without model and data."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ttmbench._util.text import Unreadable, read_text
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labels import RAW
from ttmbench.results.stored_files import StoredScores, checked_scores, stated_shape
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.types import GroupShape, Scores

TIES_NOTE = "per-sample results say nothing of ties: these were decided by whoever made the file"
EXPECTED = (
    "expected columns of scores (c0_i0, c0_i1, ...), questions (text_score_i0, image_score_c0, ...), metrics "
    "(text_score, image_score, group_score) or 'correct' (groups with one image or one caption)"
)
_CELL = re.compile(r"^c([0-9]{1,4})_i([0-9]{1,4})\Z")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_Table = dict[str, list[str]]  # column -> cells


@dataclass(frozen=True)
class Outcomes:
    """Which groups are right, by metric."""

    values: dict[str, np.ndarray]  # metric -> fraction [groups]
    choices: Choices  # the same by question; a side is None where it is not known
    group_ids: list[str]
    tags: list[dict[str, str]]
    clusters: Clusters | None


def read_outcomes(path: Path, spec: TaskSpec | None, metrics: Sequence[str]) -> StoredScores | Outcomes:
    """What CSV holds of a task's groups.

    Args:
        path: the file: rows of groups, of this task or of several that a column tells apart.
        spec: the task; None for scores, whose shape is then that of the columns.
        metrics: of groups, that columns may be named by.

    Raises:
        DataError: the file has neither scores nor results of groups, or a cell is wrong; the row is named.
    """
    table = _read_csv(path, spec)
    rows = len(next(iter(table.values())))
    if not rows:
        raise DataError(f"{path}: has no rows of the task")
    ids = table.get("group_id", list(map(str, range(rows))))
    if len(set(ids)) < len(ids):
        doubled = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"{path}: has group_id {doubled!r:.80} twice")
    tags: list[dict[str, str]] = [{} for _ in ids]
    if spec is not None:
        columns = {tag: table[tag] for tag in spec.group.tags if tag in table}
        stated = [{tag: column[at] for tag, column in columns.items() if column[at]} for at in range(rows)]
        tags = [of | spec.group.constant_tags for of in stated]
    scores = _scores(path, table, ids, None if spec is None else spec.shape)
    if scores is not None:
        clusters = _clusters(table, scores.scores[RAW][0].shape)
        return replace(scores, tags=tags if any(tags) else None, clusters=clusters)
    if spec is None:
        raise DataError(f"{path}: has no scores; results of groups need their task: name it with --task")
    shape = spec.shape
    choices = Choices(*(_questions(path, table, side, shape) for side in ("text", "image")))
    values = _values(path, table, choices, shape, metrics)
    if not values:
        raise DataError(f"{path}: has columns {', '.join(list(table)[:12])}; {EXPECTED}")
    sides = {"text": choices.text, "image": choices.image}
    for side, known in sides.items():  # of which only the metric is known, as one question each
        if known is None and f"{side}_score" in values:
            sides[side] = values[f"{side}_score"][:, None].astype(bool)
    return Outcomes(values, Choices(**sides), ids, tags, _clusters(table, shape))


def _read_csv(path: Path, spec: TaskSpec | None) -> _Table:
    """The rows of a task, where columns with the names of its tags, or ``type`` and ``subtype``, say what they are."""
    import pandas as pd

    try:
        table = pd.read_csv(io.StringIO(read_text(path)), header=None, dtype=str, keep_default_na=False)
    except (Unreadable, ValueError) as error:
        raise DataError(f"{path}: is not CSV ({' '.join(str(error).split())})") from None
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


def _clusters(table: _Table, shape: GroupShape) -> Clusters | None:
    """By a column that names a cluster, or the image of groups that have one."""
    names = ("cluster", "filename") if shape.images == 1 else ("cluster",)
    column = next((name for name in names if name in table), None)
    if column is None:
        return None
    groups = np.array(connected([[name] for name in table[column]]))
    images = groups if shape.images == 1 else np.arange(len(groups) * shape.images)
    return Clusters(groups, images.reshape(len(groups), -1))


def _scores(path: Path, table: _Table, ids: Sequence[str], shape: GroupShape | None) -> StoredScores | None:
    """The scores of rows, if these have any; DataError for one that lacks a cell."""
    cells = {(int(match[2]), int(match[1])): name for name in table if (match := _CELL.match(name)) is not None}
    if not cells:
        return None
    images, captions = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    if len(cells) != images * captions:
        raise DataError(f"{path}: has columns {', '.join(cells.values())}, not one for each image and caption")
    names = [cells[cell] for cell in sorted(cells)]
    array = np.array([list(map(_number, table[name])) for name in names]).T.reshape(-1, images, captions)
    known = shape or stated_shape(path, images, captions)
    scores = {RAW: [Scores(checked_scores(path, array, known, ids))]}
    return StoredScores(scores, list(ids), "score cells", true_captions=known.true_captions)


def _number(cell: str) -> float:
    """The number of a cell; NaN for none, which is refused as one."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _truth(path: Path, table: _Table, name: str) -> np.ndarray:
    """A column of true and false: bool [groups]."""
    for row, cell in enumerate(table[name]):
        if cell.lower() not in _TRUTH:
            raise DataError(f"{path}: row {row} has {name} {cell!r:.80}; expected true/false or 1/0")
    return np.array([_TRUTH[cell.lower()] for cell in table[name]])


def _questions(path: Path, table: _Table, side: str, shape: GroupShape) -> np.ndarray | None:
    """Whether each question of a side was answered correctly: bool [groups, questions]; None where it was not asked."""
    stem = f"{side}_score_{'i' if side == 'text' else 'c'}"
    found = sorted(name for name in table if name.startswith(stem))
    wanted = [f"{stem}{number}" for number in range(min(shape.images, shape.captions))]
    if found and found != sorted(wanted):
        raise DataError(f"{path}: has {', '.join(found)}; a {shape} group needs {', '.join(wanted)}")
    return np.column_stack([_truth(path, table, name) for name in wanted]) if found else None


def _values(
    path: Path, table: _Table, choices: Choices, shape: GroupShape, metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """Metric -> values of groups: those of columns, and those that follow from them and from questions."""
    values = {name: _truth(path, table, name).astype(np.float64) for name in table if name in metrics}
    if "correct" in table and not values and choices.text is None and choices.image is None:
        if min(shape.images, shape.captions) > 1 or shape.true_captions > 1:
            raise DataError(
                f"{path}: 'correct' does not say which metric of a {shape} group it is; name the columns text_score, "
                "image_score and group_score"
            )
        metric = "image_score" if shape.more_images else "text_score"
        values[metric] = _truth(path, table, "correct").astype(np.float64)
    for metric, followed in _followed(choices, values, shape).items():
        differing = np.flatnonzero(values.setdefault(metric, followed) != followed)
        if len(differing):
            raise DataError(f"{path}: row {differing[0]} has {metric} that contradicts its other columns")
    return values


def _followed(choices: Choices, values: Mapping[str, np.ndarray], shape: GroupShape) -> dict[str, np.ndarray]:
    """Metrics that follow from questions, and from each other."""
    known: dict[str, np.ndarray] = {}
    if choices.text is not None:
        known["text_score"] = np.asarray(choices.text.all(axis=1), np.float64)
        if shape.true_captions == 1:
            known["individual_match"] = np.asarray(choices.text.mean(axis=1), np.float64)
    if choices.image is not None:
        known["image_score"] = np.asarray(choices.image.all(axis=1), np.float64)
    text, image = ({**values, **known}.get(f"{side}_score") for side in ("text", "image"))
    deciding = image if shape.more_images else text
    if shape.images == shape.captions:
        deciding = None if text is None or image is None else text * image
    if deciding is not None and shape.true_captions == 1:
        known["group_score"] = deciding
        if min(shape.images, shape.captions) == 1:  # the best candidate of one side is the matching
            known["group_match"] = deciding
            known |= {} if shape.more_images else {"individual_match": deciding}
    return known
