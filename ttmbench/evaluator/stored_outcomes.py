"""Per-sample results of others as tasks: tables of scores, or of which groups are right, without model and data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ttmbench.data.loader import check_count
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError
from ttmbench.evaluator.sample_table import CORRECT, EXPECTED, SCORES, Row, SampleTable, boolean
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labels import RAW
from ttmbench.results.score_lines import StoredScores, checked_scores, stated_shape
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.types import GroupShape, Scores

TIES_NOTE = "per-sample results say nothing of ties: these were decided by whoever made the file"
NEEDS_TASK = "has no scores; results of groups need their task: name it with --task"
_IMAGE, _CAPTION = r"(?:i|img|image)_?([0-9]{1,4})", r"(?:c|t|cap|caption|text)_?([0-9]{1,4})"
_CELL = re.compile(rf"^(?:\w+_)??(?:{_CAPTION}_{_IMAGE}|{_IMAGE}_{_CAPTION})\Z")
_QUESTION = re.compile(rf"^(?:(text)(?:_score|_correct)?_{_IMAGE}|(image)(?:_score|_correct)?_{_CAPTION})\Z")
_PREDICTED = re.compile(r"^pred_?([0-9]{1,4})\Z")
_GROUP_IDS = ("group_id", "id", "idx", "index", "qid", "qid1", "question_id", "sample_id", "doc_id")
_CLUSTERS = ("cluster", "image_id", "filename", "image_path", "image_file")
_SUBSETS = ("subset", "category", "split", "data_split", "type")
_CORRECT = (CORRECT, "is_correct", "right", "is_right", "acc", "accuracy", "hit", "result", "score")
_OTHER_NAMES = {
    **dict.fromkeys(("text_correct", "text_acc", "text_accuracy"), "text_score"),
    **dict.fromkeys(("image_correct", "image_acc", "image_accuracy"), "image_score"),
    **dict.fromkeys(("group_correct", "group_acc", "group_accuracy"), "group_score"),
}


@dataclass(frozen=True)
class Outcomes:
    """Which groups are right, by metric."""

    values: dict[str, np.ndarray]  # metric -> fraction [groups]
    choices: Choices  # the same by question; a side is None where it is not known
    group_ids: list[str]
    tags: list[dict[str, str]]
    clusters: Clusters | None
    notes: list[str] = field(default_factory=list)


def of_table(path: Path, table: SampleTable, spec: TaskSpec | None, metrics: Sequence[str]) -> StoredScores | Outcomes:
    """What a table holds of a task's groups.

    Args:
        path: the file, for messages.
        table: rows of groups, of this task or of several that a column tells apart.
        spec: the task; None for tables of scores, whose shape is then that of the table.
        metrics: of groups, that columns may be named by.

    Raises:
        DataError: the table has neither scores nor results of groups, or a cell is wrong; the row is named.
    """
    rows = [row for row in table.rows if spec is None or _is_of(row, spec, table.rows[0])]
    if not rows:
        wanted = "" if spec is None else ", ".join(spec.group.constant_tags.values())
        raise DataError(f"{path}: has no rows" + (f" of {wanted}" if wanted else ""))
    ids, tags = _ids(path, rows), [_tags(row, spec) for row in rows]
    scores = _scores(path, rows, ids, None if spec is None else spec.shape)
    if scores is not None:
        return replace(scores, tags=tags if any(tags) else None, clusters=_clusters(rows, spec, scores))
    if spec is None:
        raise DataError(f"{path}: {NEEDS_TASK}")
    choices = Choices(*(_questions(path, rows, side, spec.shape) for side in ("text", "image")))
    values = _values(path, rows, choices, spec.shape, metrics)
    if not values:
        raise DataError(f"{path}: has columns {', '.join(list(rows[0])[:12])}; {EXPECTED}")
    return Outcomes(values, _of_values(choices, values), ids, tags, _clusters(rows, spec, None), list(table.notes))


def size_notes(spec: TaskSpec, size: int, limited: TaskSpec, path: Path) -> list[str]:
    """What cannot be fetched again may have a size of which the task file knows why it differs: a note says so."""
    if limited is spec and size in spec.group.wrong_sizes:
        why = spec.group.wrong_sizes[size].partition(";")[0]  # what follows is how to fetch the data again
        return [f"these are results of {size} groups, the task has {spec.group.n_groups}: {why}"]
    check_count(limited, size, str(path))
    return []


def _is_of(row: Row, spec: TaskSpec, first: Row) -> bool:
    """Whether a row is of the task, where the table says what its rows are of."""
    for tag, wanted in spec.group.constant_tags.items():
        column = next((name for name in (tag, *_SUBSETS) if name in first), None)
        if column is None:
            continue
        value = str(row.get(column)).strip()
        both = f"{value}_{str(row.get('subtype')).strip()}" if column == "type" and "subtype" in first else value
        if wanted not in (value, both):
            return False
    return True


def _ids(path: Path, rows: Sequence[Row]) -> list[str]:
    column = next((name for name in _GROUP_IDS if rows[0].get(name) not in (None, "")), None)
    if column is None:
        return [str(index) for index in range(len(rows))]
    ids = [str(row.get(column)).strip() for row in rows]
    if len(set(ids)) < len(ids):
        doubled = next(index for index, name in enumerate(ids) if name in ids[:index])
        raise DataError(f"{path}: row {doubled} has {column} {ids[doubled]!r:.80} again")
    return ids


def _tags(row: Row, spec: TaskSpec | None) -> dict[str, str]:
    if spec is None:
        return {}
    given = {tag: str(row[tag.lower()]) for tag in spec.group.tags if row.get(tag.lower()) not in (None, "")}
    return {**given, **spec.group.constant_tags}


def _clusters(rows: Sequence[Row], spec: TaskSpec | None, scores: StoredScores | None) -> Clusters | None:
    """By a column that names a cluster, or the image of a group that has one."""
    shape = spec.shape if spec is not None else None if scores is None else scores.scores[RAW][0].shape
    names = _CLUSTERS if shape is not None and shape.images == 1 else _CLUSTERS[:1]
    column = next((name for name in names if rows[0].get(name) not in (None, "")), None)
    if column is None or shape is None:
        return None
    groups = np.array(connected([[str(row.get(column))] for row in rows]))
    images = groups[:, None] if shape.images == 1 else np.arange(len(rows) * shape.images).reshape(len(rows), -1)
    return Clusters(groups, images)


def _scores(path: Path, rows: Sequence[Row], ids: Sequence[str], shape: GroupShape | None) -> StoredScores | None:
    """The scores of rows that have any; DataError for one that lacks a cell."""
    if isinstance(rows[0].get(SCORES), list):
        blocks = [row.get(SCORES) for row in rows]
        form = "score table"
    else:
        cells = _cells(path, rows[0])
        if not cells:
            return None
        images, captions = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
        wanted = [[cells.get((image, caption)) for caption in range(captions)] for image in range(images)]
        if None in (name for line in wanted for name in line):
            raise DataError(f"{path}: has columns {', '.join(cells.values())}, not one for each image and caption")
        blocks = [[[row.get(name or "") for name in line] for line in wanted] for row in rows]
        form = "score cells"
    array = np.array([_numbers(path, block, ids[index]) for index, block in enumerate(blocks)])
    known = shape or stated_shape(path, *array.shape[1:])
    checked = checked_scores(path, array, known, ids)
    return StoredScores({RAW: [Scores(checked)]}, list(ids), form, true_captions=known.true_captions)


def _cells(path: Path, row: Row) -> dict[tuple[int, int], str]:
    """(image, caption), from 0, -> its column."""
    cells: dict[tuple[int, int], str] = {}
    for name in row:
        if (match := _CELL.match(name)) is not None:
            caption, image, other_image, other_caption = match.groups()
            cell = (int(image or other_image), int(caption or other_caption))
            if cell in cells:
                raise DataError(f"{path}: columns {cells[cell]} and {name} are of one image and caption")
            cells[cell] = name
    start = 0 if any(0 in cell for cell in cells) else 1  # some count from 1
    return {(image - start, caption - start): name for (image, caption), name in cells.items()}


def _numbers(path: Path, block: object, group: str) -> list[list[float]]:
    rows = block if isinstance(block, list) and block and all(isinstance(row, list) for row in block) else None
    if rows is None or len({len(row) for row in rows}) > 1:
        raise DataError(f"{path}: group {group} has scores that are not a table [images][captions] of numbers")
    try:
        return [[float(cell) if not isinstance(cell, bool) else float("x") for cell in row] for row in rows]
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{path}: group {group} has a score that is not a number") from None


def _questions(path: Path, rows: Sequence[Row], side: str, shape: GroupShape) -> np.ndarray | None:
    """Whether each question of a side was answered correctly: bool [groups, questions]; None where it was not asked."""
    names = {}
    for name in rows[0]:
        if (match := _QUESTION.match(name)) is not None and side in match.groups():
            names[int(match[2] or match[4])] = name
    if not names:
        return _predictions(path, rows) if side == "image" and "gt1" in rows[0] and "pred1" in rows[0] else None
    expected = min(shape.images, shape.captions)
    start = min(names)
    if start > 1 or sorted(names) != list(range(start, start + expected)):
        asked = "image" if side == "text" else "caption"
        raise DataError(
            f"{path}: has {', '.join(names.values())}; a {shape} group needs one for each of {expected} {asked}s"
        )
    columns = [names[number] for number in sorted(names)]
    return np.array([[_true(path, row, name, index) for name in columns] for index, row in enumerate(rows)])


def _predictions(path: Path, rows: Sequence[Row]) -> np.ndarray:
    """The image that each caption chose, ``pred<n>``, beside the correct one, ``gt<n>`` (MMVP-VLM's evaluation)."""
    numbers = [match[1] for name in rows[0] if (match := _PREDICTED.match(name)) is not None]
    right = []
    for index, row in enumerate(rows):
        pairs = [(str(row.get(f"pred{number}")), str(row.get(f"gt{number}"))) for number in numbers]
        wrong = next((word for pair in pairs for word in pair if not re.match(r"^(?:img|image)_?\d+\Z", word)), None)
        if wrong is not None:
            raise DataError(
                f"{path}: row {index} has {wrong!r:.80} as pred or gt; expected the chosen image, img1 or img2"
            )
        right.append([chosen == truth for chosen, truth in pairs])
    return np.array(right)


def _true(path: Path, row: Row, name: str, index: int) -> bool:
    value = boolean(row.get(name))
    if value is None:
        raise DataError(f"{path}: row {index} has {name} {row.get(name)!r:.80}; expected true/false or 1/0")
    return value


def _values(
    path: Path, rows: Sequence[Row], choices: Choices, shape: GroupShape, metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """Metric -> values of groups: those of columns, and those that follow from them and from questions."""
    values: dict[str, np.ndarray] = {}
    for name in rows[0]:
        metric = name if name in metrics else _OTHER_NAMES.get(name)
        # A column "image" or "text" may hold the data: only where it is of booleans it is a result.
        if metric is None or (metric != name and boolean(rows[0][name]) is None):
            continue
        if metric in values:
            raise DataError(f"{path}: two columns are the metric {metric}")
        values[metric] = np.array([_true(path, row, name, index) for index, row in enumerate(rows)], np.float64)
    column = next((name for name in _CORRECT if name in rows[0] and boolean(rows[0][name]) is not None), None)
    if column is not None and not values and choices.text is None and choices.image is None:
        if min(shape.images, shape.captions) > 1 or shape.true_captions > 1:
            raise DataError(
                f"{path}: '{column}' does not say which metric of a {shape} group it is; name the columns text_score, "
                "image_score and group_score"
            )
        right = np.array([_true(path, row, column, index) for index, row in enumerate(rows)], np.float64)
        values["image_score" if shape.more_images else "text_score"] = right
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
