"""Per-sample results of others as tasks: CSV of scores, or of which groups are right, without model and data."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ttmbench._util.text import Unreadable, read_text
from ttmbench.data.loader import check_count
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labels import RAW
from ttmbench.results.score_lines import StoredScores, checked_scores, stated_shape
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.types import GroupShape, Scores

TIES_NOTE = "per-sample results say nothing of ties: these were decided by whoever made the file"
EXPECTED = (
    "expected columns of scores (c0_i0, c0_i1, ...), questions (text_score_i0, image_score_c0, ...), metrics "
    "(text_score, image_score, group_score) or 'correct' (groups with one image or one caption)"
)
_CELL = re.compile(r"^c([0-9]{1,4})_i([0-9]{1,4})\Z")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
Row = Mapping[str, str]


@dataclass(frozen=True)
class Outcomes:
    """Which groups are right, by metric."""

    values: dict[str, np.ndarray]  # metric -> fraction [groups]
    choices: Choices  # the same by question; a side is None where it is not known
    group_ids: list[str]
    tags: list[dict[str, str]]
    clusters: Clusters | None


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of CSV with a header, cells as they are; DataError for a file that is none."""
    import pandas as pd

    try:
        frame = pd.read_csv(io.StringIO(read_text(path)), header=None, dtype=str, keep_default_na=False)
    except (Unreadable, ValueError) as error:
        raise DataError(f"{path}: is not CSV ({' '.join(str(error).split())})") from None
    header, *lines = frame.values.tolist()
    if len(set(header)) < len(header):
        raise DataError(f"{path}: the header of a CSV names each column once; it has {', '.join(header)}")
    return [dict(zip(header, cells, strict=True)) for cells in lines]


def read_outcomes(path: Path, spec: TaskSpec | None, metrics: Sequence[str]) -> StoredScores | Outcomes:
    """What CSV holds of a task's groups.

    Args:
        path: the file: rows of groups, of this task or of several that a column tells apart.
        spec: the task; None for scores, whose shape is then that of the columns.
        metrics: of groups, that columns may be named by.

    Raises:
        DataError: the file has neither scores nor results of groups, or a cell is wrong; the row is named.
    """
    rows = [row for row in read_csv(path) if spec is None or _is_of(row, spec)]
    if not rows:
        raise DataError(f"{path}: has no rows of the task")
    ids = [row.get("group_id", str(index)) for index, row in enumerate(rows)]
    if len(set(ids)) < len(ids):
        doubled = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"{path}: has group_id {doubled!r:.80} twice")
    tags = [_tags(row, spec) for row in rows]
    scores = _scores(path, rows, ids, None if spec is None else spec.shape)
    if scores is not None:
        clusters = _clusters(rows, scores.scores[RAW][0].shape)
        return replace(scores, tags=tags if any(tags) else None, clusters=clusters)
    if spec is None:
        raise DataError(f"{path}: has no scores; results of groups need their task: name it with --task")
    choices = Choices(*(_questions(path, rows, side, spec.shape) for side in ("text", "image")))
    values = _values(path, rows, choices, spec.shape, metrics)
    if not values:
        raise DataError(f"{path}: has columns {', '.join(list(rows[0])[:12])}; {EXPECTED}")
    return Outcomes(values, _of_values(choices, values), ids, tags, _clusters(rows, spec.shape))


def size_notes(spec: TaskSpec, size: int, limited: TaskSpec, path: Path) -> list[str]:
    """What cannot be fetched again may have a size of which the task file knows why it differs: a note says so."""
    if limited is spec and size in spec.group.wrong_sizes:
        why = spec.group.wrong_sizes[size].partition(";")[0]  # what follows is how to fetch the data again
        return [f"these are results of {size} groups, the task has {spec.group.n_groups}: {why}"]
    check_count(limited, size, str(path))
    return []


def _is_of(row: Row, spec: TaskSpec) -> bool:
    """Whether a row is of the task, where columns with the names of the task's tags say what it is of."""
    both = f"{row['type']}_{row['subtype']}" if {"type", "subtype"} <= row.keys() else None  # as BiVLC's release
    return all(wanted == row.get(tag, both or wanted) for tag, wanted in spec.group.constant_tags.items())


def _tags(row: Row, spec: TaskSpec | None) -> dict[str, str]:
    if spec is None:
        return {}
    return {**{tag: row[tag] for tag in spec.group.tags if row.get(tag)}, **spec.group.constant_tags}


def _clusters(rows: Sequence[Row], shape: GroupShape) -> Clusters | None:
    """By a column that names a cluster, or the image of groups that have one."""
    names = ("cluster", "filename") if shape.images == 1 else ("cluster",)
    column = next((name for name in names if name in rows[0]), None)
    if column is None:
        return None
    groups = np.array(connected([[row[column]] for row in rows]))
    images = groups[:, None] if shape.images == 1 else np.arange(len(rows) * shape.images).reshape(len(rows), -1)
    return Clusters(groups, images)


def _scores(path: Path, rows: Sequence[Row], ids: Sequence[str], shape: GroupShape | None) -> StoredScores | None:
    """The scores of rows that have any; DataError for one that lacks a cell."""
    cells = {(int(match[2]), int(match[1])): name for name in rows[0] if (match := _CELL.match(name)) is not None}
    if not cells:
        return None
    images, captions = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    if len(cells) != images * captions:
        raise DataError(f"{path}: has columns {', '.join(cells.values())}, not one for each image and caption")
    names = [cells[cell] for cell in sorted(cells)]
    table = np.array(
        [[_number(path, row[name], group) for name in names] for group, row in zip(ids, rows, strict=True)]
    )
    known = shape or stated_shape(path, images, captions)
    checked = checked_scores(path, table.reshape(len(rows), images, captions), known, ids)
    return StoredScores({RAW: [Scores(checked)]}, list(ids), "score cells", true_captions=known.true_captions)


def _number(path: Path, cell: str, group: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"{path}: group {group} has score {cell!r:.80}, which is not a number") from None


def _questions(path: Path, rows: Sequence[Row], side: str, shape: GroupShape) -> np.ndarray | None:
    """Whether each question of a side was answered correctly: bool [groups, questions]; None where it was not asked."""
    stem = f"{side}_score_{'i' if side == 'text' else 'c'}"
    found = sorted(name for name in rows[0] if name.startswith(stem))
    wanted = [f"{stem}{number}" for number in range(min(shape.images, shape.captions))]
    if found and found != sorted(wanted):
        raise DataError(f"{path}: has {', '.join(found)}; a {shape} group needs {', '.join(wanted)}")
    return np.array([[_true(path, row, name, at) for name in wanted] for at, row in enumerate(rows)]) if found else None


def _true(path: Path, row: Row, name: str, index: int) -> bool:
    if (value := _TRUTH.get(row[name].lower())) is None:
        raise DataError(f"{path}: row {index} has {name} {row[name]!r:.80}; expected true/false or 1/0")
    return value


def _values(
    path: Path, rows: Sequence[Row], choices: Choices, shape: GroupShape, metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """Metric -> values of groups: those of columns, and those that follow from them and from questions."""

    def column(name: str) -> np.ndarray:
        return np.array([_true(path, row, name, index) for index, row in enumerate(rows)], np.float64)

    values = {name: column(name) for name in rows[0] if name in metrics}
    if "correct" in rows[0] and not values and choices.text is None and choices.image is None:
        if min(shape.images, shape.captions) > 1 or shape.true_captions > 1:
            raise DataError(
                f"{path}: 'correct' does not say which metric of a {shape} group it is; name the columns text_score, "
                "image_score and group_score"
            )
        values["image_score" if shape.more_images else "text_score"] = column("correct")
    for metric, followed in _followed(choices, values, shape).items():
        if metric in values and not np.array_equal(values[metric], followed):
            index = int(np.argmax(values[metric] != followed))
            said, follows = bool(values[metric][index]), bool(followed[index])
            raise DataError(f"{path}: row {index} has {metric} {said}, and by its other columns it is {follows}")
        values.setdefault(metric, followed)
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


def _of_values(choices: Choices, values: Mapping[str, np.ndarray]) -> Choices:
    """The sides that only the metrics say something of, as one question each."""
    sides = []
    for side in ("text", "image"):
        of_questions, score = getattr(choices, side), values.get(f"{side}_score")
        sides.append(of_questions if of_questions is not None or score is None else score[:, None].astype(bool))
    return Choices(*sides)
