"""Stored scores as JSON lines, one pair or one group per line.

- ``{"label": "<id>_c<caption>_i<image>", "score": x}``, as Winoground stores them;
- ``{"label": "<id>_c", "score": x, "instrument": ...}`` for the caption of an image, ``<id>_f`` for its foil; texts
  under keys other than ``type`` are tags of the pair (VALSE);
- ttmbench's samples (``group_id``, ``scores``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import EXACT, LARGEST, too_large
from ttmbench._util.text import read_json_lines
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, RAW
from ttmbench.types import GroupShape, Scores

_CELL = re.compile(r"^(?P<group>.+)_c(?P<caption>[0-9]{1,6})_i(?P<image>[0-9]{1,6})\Z", re.DOTALL)
_SIDE = re.compile(r"^(?P<group>.+)_(?P<side>[cf])\Z", re.DOTALL)
_SIDES = {"c": "caption", "f": "foil"}
_NO_TAGS = ("label", "score", "type", "id")
_FILTER = re.compile(r"^\w{1,64}$")
Lines = Iterable[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class StoredScores:
    """What a file of scores holds."""

    scores: dict[str, list[Scores]]  # filter -> score arrays, one per seed
    group_ids: list[str]  # in the order of the arrays
    format: str  # the name of the format, for messages and records
    clusters: Clusters | None = None  # which groups share images; None where the file does not say
    subsets: dict[str, list[int]] = field(default_factory=dict)  # filter -> positions of its groups if not all
    true_captions: int = 1  # number of correct captions of each image
    tags: list[dict[str, str]] | None = None  # of each group, where the file has them
    iterations: dict[str, list[list[Scores]]] = field(default_factory=dict)  # filter -> as `MethodScores.iterations`

    def some(self, places: Sequence[int]) -> StoredScores:
        """The scores of the groups at some positions, without scores across groups and of held-out groups."""
        chosen = list(places)
        whole = {name: arrays for name, arrays in self.scores.items() if name not in self.subsets}
        return replace(
            self,
            scores={name: [Scores(array.groups[chosen]) for array in arrays] for name, arrays in whole.items()},
            group_ids=[self.group_ids[position] for position in chosen],
            clusters=None if self.clusters is None else self.clusters.of(chosen),
            subsets={},
            iterations={},
            tags=None if self.tags is None else [self.tags[position] for position in chosen],
        )


def read_score_lines(path: Path, shape: GroupShape | None) -> StoredScores:
    """The scores of JSON lines in any of the three formats; ``shape`` is None where the file has to say it.

    DataError, naming line or group, if a line has none of the formats, or a cell is missing, duplicate or surplus.
    """
    lines = list(read_json_lines(path))
    if not lines:
        raise DataError(f"{path}: is empty")
    first = lines[0][1]
    if "group_id" in first and "scores" in first and not {"label", "score"} <= first.keys():
        block = _table(path, first.get("scores"), f"group {first.get('group_id')} (line 1)")
        return _samples(path, lines, shape or stated_shape(path, *block.shape))
    if not {"label", "score"} <= first.keys():
        raise DataError(
            f"{path}: line 1 has keys {', '.join(sorted(map(str, first)))}; expected 'label' and 'score' (Winoground, "
            "VALSE) or 'group_id' and 'scores' (ttmbench samples); results of groups are read from a .csv"
        )
    label = str(first.get("label"))
    if _SIDE.match(label) and not _CELL.match(label):
        return _captions_and_foils(path, lines, shape or GroupShape(1, 2))
    return _cells(path, lines, shape)


def checked_scores(path: Path, array: np.ndarray, shape: GroupShape, group_ids: Sequence[str]) -> np.ndarray:
    """Finite floats of the task's shape; float64 stays, whole numbers become it, other floats float32."""
    if array.shape[1:] != (shape.images, shape.captions) or len(array) == 0:
        raise DataError(
            f"{path}: scores have shape {list(array.shape)}; the task needs [groups, {shape.images} images, "
            f"{shape.captions} captions]"
        )
    if len(array) != len(group_ids):
        raise DataError(f"{path}: {len(array)} groups of scores, but {len(group_ids)} group ids")
    kind = np.float64 if array.dtype.kind != "f" or array.dtype == np.float64 else np.float32
    scores = array.astype(kind, copy=False)
    sound = (np.abs(scores) <= LARGEST).all(axis=(1, 2))
    if not sound.all():
        group = int(np.argmin(sound))
        bad = scores[group][~(np.abs(scores[group]) <= LARGEST)][0]
        what = f"larger than any logit ({LARGEST:g})" if np.isfinite(bad) else "not a finite number"
        raise DataError(f"{path}: group {group_ids[group]} has a score that is {bad}, {what}")
    return scores


def stated_shape(path: Path, images: int, captions: int, true_captions: int = 1) -> GroupShape:
    """The shape that a file states; DataError if no group can have it."""
    try:
        return GroupShape(images, captions, true_captions)
    except ValueError as error:
        raise DataError(f"{path}: has scores of {images} images and {captions} captions: {error}") from None


def _cells(path: Path, lines: Lines, shape: GroupShape | None) -> StoredScores:
    cells: dict[str, dict[tuple[int, int], float]] = {}
    labels = [(number, line, _CELL.match(str(line.get("label")))) for number, line in lines]
    if shape is None:
        known = [match for _, _, match in labels if match is not None]
        sizes = (max((int(match[name]) for match in known), default=0) + 1 for name in ("image", "caption"))
        shape = stated_shape(path, *sizes)
    for number, line, match in labels:
        if match is None:
            raise DataError(f"{path}: line {number} has label {line.get('label')!r}, expected <id>_c<caption>_i<image>")
        group, image, caption = match["group"], int(match["image"]), int(match["caption"])
        cell, mine = f"c{caption}_i{image}", cells.setdefault(group, {})
        if image >= shape.images or caption >= shape.captions:
            raise DataError(f"{path}: group {group} has a cell {cell}, outside a {shape} group")
        if (image, caption) in mine:
            raise DataError(f"{path}: group {group} has cell {cell} twice (line {number})")
        mine[image, caption] = _number(path, line.get("score"), f"group {group}, cell {cell}")
    wanted = [(image, caption) for image in range(shape.images) for caption in range(shape.captions)]
    missing = ((group, *cell) for group, mine in cells.items() for cell in wanted if cell not in mine)
    for group, image, caption in missing:
        raise DataError(f"{path}: group {group} has no cell c{caption}_i{image}")
    table = np.array([[mine[cell] for cell in wanted] for mine in cells.values()])
    scores = checked_scores(path, table.reshape(len(cells), shape.images, shape.captions), shape, list(cells))
    return StoredScores({RAW: [Scores(scores)]}, list(cells), "winoground")


def _captions_and_foils(path: Path, lines: Lines, shape: GroupShape) -> StoredScores:
    """Lines of captions and foils, in any order; ids of pairs with an instrument are ``<instrument>/<id>``."""
    sides: dict[str, dict[str, float]] = {}
    tags: dict[str, dict[str, str]] = {}
    for number, line in lines:
        match = _SIDE.match(str(line.get("label")))
        if match is None:
            raise DataError(f"{path}: line {number} has label {line.get('label')!r}, expected <id>_c or <id>_f")
        side = _SIDES[match["side"]]
        if line.get("type", side) != side:
            raise DataError(f"{path}: line {number} has label {line['label']!r} and type {line['type']!r:.80}")
        mine = {key: value for key, value in line.items() if key not in _NO_TAGS and isinstance(value, str)}
        instrument = mine.get("instrument")
        group = match["group"] if instrument is None else f"{instrument}/{match['group']}"
        if tags.setdefault(group, mine) != mine:
            raise DataError(f"{path}: caption and foil of {group} have different tags (line {number})")
        if side in sides.setdefault(group, {}):
            raise DataError(f"{path}: {group} has a {side} twice (line {number})")
        sides[group][side] = _number(path, line.get("score"), f"the {side} of {group}")
    for group, side in (
        (group, side) for group, known in sides.items() for side in _SIDES.values() if side not in known
    ):
        raise DataError(f"{path}: {group} has no {side}")
    table = np.array([[[scores[side] for side in _SIDES.values()]] for scores in sides.values()])
    array = checked_scores(path, table, shape, list(sides))
    stated = list(tags.values()) if any(tags.values()) else None
    return StoredScores({RAW: [Scores(array)]}, list(sides), "captions and foils", tags=stated)


def _samples(path: Path, lines: Lines, shape: GroupShape) -> StoredScores:
    tables: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    cluster_of: dict[str, str] = {}
    tags_of: dict[str, dict[str, str]] = {}
    for number, line in lines:
        group = str(line.get("group_id"))
        block = _table(path, line.get("scores"), f"group {group} (line {number})")
        if block.shape != (shape.images, shape.captions):
            raise DataError(f"{path}: group {group} has scores of shape {list(block.shape)}, the task is {shape}")
        name, index = line.get("filter", RAW), line.get("seed_index", 0)
        if not isinstance(name, str) or not _FILTER.match(name) or type(index) is not int or not 0 <= index < 10_000:
            raise DataError(f"{path}: line {number} has filter {name!r:.80} and seed_index {index!r:.80}")
        table = tables.setdefault((name, index), {})
        if group in table:
            raise DataError(f"{path}: group {group} is duplicated (line {number})")
        table[group] = block
        if isinstance(line.get("tags"), dict):
            tags_of[group] = {tag: value for tag, value in line["tags"].items() if isinstance(value, str)}
        if isinstance(line.get("cluster"), str):
            cluster_of[group] = line["cluster"]
    whole = tables.get((RAW, 0)) or next(iter(tables.values()))
    group_ids = list(whole)
    scores: dict[str, list[Scores]] = {}
    subsets: dict[str, list[int]] = {}
    for (name, index), table in sorted(tables.items(), key=lambda item: (item[0][0] != RAW, item[0])):
        mine = group_ids
        if name in (HOLDOUT, HOLDOUT_RAW):
            positions = subsets.setdefault(name, [at for at, group in enumerate(group_ids) if group in table])
            mine = [group_ids[at] for at in positions]
        for group in (*mine, *table):
            if group not in table or group not in whole:
                raise DataError(f"{path}: group {group} is not there for every filter and seed ({name}, {index})")
        array = _smallest(np.stack([table[group] for group in mine]))
        scores.setdefault(name, []).append(Scores(checked_scores(path, array, shape, mine)))
    clusters = None
    if all(group in cluster_of for group in group_ids):
        each = np.arange(len(group_ids) * shape.images).reshape(len(group_ids), -1)  # metrics over images need more
        clusters = Clusters(np.array(connected([[cluster_of[group]] for group in group_ids])), each)
    tags = [tags_of.get(group, {}) for group in group_ids]
    stated = tags if any(tags) else None
    return StoredScores(scores, group_ids, "ttmbench samples", clusters, subsets, shape.true_captions, stated)


def _table(path: Path, value: object, where: str) -> np.ndarray:
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise DataError(f"{path}: {where} has scores that are not a table of numbers")
    if len({len(row) for row in value}) > 1:
        raise DataError(f"{path}: {where} has scores that are not a table of numbers: its rows differ in length")
    return np.array([[_number(path, cell, where) for cell in row] for row in value], dtype=np.float64)


def _number(path: Path, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{path}: {where} has score {value!r:.80}, which is not a number")
    if isinstance(value, int) and abs(value) > EXACT:
        raise DataError(f"{path}: {where} has an integer beyond 2^53, which is not exact as a float")
    return float(value)


def _smallest(array: np.ndarray) -> np.ndarray:
    """The same numbers as float32 where that is exact, as for scores of a run."""
    small = array if too_large(array) else array.astype(np.float32)
    return small if np.array_equal(small, array) else array
