"""Stored scores of one pair a line, told apart by a label: as Winoground stores them, and as pairs of caption and foil.

- ``{"label": "<id>_c<caption>_i<image>", "score": x}``;
- ``{"label": "<id>_c", "score": x, "instrument": ...}`` for the caption of an image, ``<id>_f`` for its foil. Texts
  under other keys than ``type`` are tags of the pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import EXACT
from ttmbench.errors import DataError
from ttmbench.types import GroupShape

CELL = re.compile(r"^(?P<group>.+)_c(?P<caption>[0-9]{1,6})_i(?P<image>[0-9]{1,6})\Z", re.DOTALL)
SIDE = re.compile(r"^(?P<group>.+)_(?P<side>[cf])\Z", re.DOTALL)
_SIDES = {"c": "caption", "f": "foil"}
_NO_TAGS = ("label", "score", "type", "id")
Lines = Iterable[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class LabelledScores:
    """Scores put in their places.

    Attributes:
        groups: float64 [groups, images, captions], in the order in which groups first appear.
        group_ids: their ids.
        tags: tag -> value for each group; None if no line states any.
    """

    groups: np.ndarray
    group_ids: list[str]
    tags: list[dict[str, str]] | None = None


def cells_of_labels(path: Path, lines: Lines, shape: GroupShape) -> LabelledScores:
    """Lines as Winoground stores them.

    Args:
        path: the file, for messages.
        lines: number -> object.
        shape: of the groups.

    Returns:
        The scores.

    Raises:
        DataError: a label that is none, or a cell that is missing, doubled or surplus; the group is named.
    """
    cells: dict[str, dict[tuple[int, int], float]] = {}
    for number, line in lines:
        found = CELL.match(str(line.get("label")))
        if found is None:
            raise DataError(f"{path}: line {number} has label {line.get('label')!r}, expected <id>_c<caption>_i<image>")
        group, image, caption = found["group"], int(found["image"]), int(found["caption"])
        if image >= shape.images or caption >= shape.captions:
            raise DataError(f"{path}: group {group} has a cell c{caption}_i{image}, outside a {shape} group")
        group_cells = cells.setdefault(group, {})
        if (image, caption) in group_cells:
            raise DataError(f"{path}: group {group} has cell c{caption}_i{image} twice (line {number})")
        group_cells[image, caption] = number_of(path, line.get("score"), f"group {group}, cell c{caption}_i{image}")
    wanted = [(image, caption) for image in range(shape.images) for caption in range(shape.captions)]
    for group, group_cells in cells.items():
        for image, caption in wanted:
            if (image, caption) not in group_cells:
                raise DataError(f"{path}: group {group} has no cell c{caption}_i{image}")
    table = np.array([[group_cells[cell] for cell in wanted] for group_cells in cells.values()])
    return LabelledScores(table.reshape(len(cells), shape.images, shape.captions), list(cells))


def shape_of_labels(lines: Lines) -> tuple[int, int]:
    """How many images and captions labels name; a label that is none is named when all are read."""
    found = [cell for _, line in lines if (cell := CELL.match(str(line.get("label"))))]
    images, captions = (max((int(cell[name]) for cell in found), default=0) + 1 for name in ("image", "caption"))
    return images, captions


def captions_and_foils(path: Path, lines: Lines) -> LabelledScores:
    """Lines of captions and foils, in any order; the caption is the first of the two.

    Args:
        path: the file, for messages.
        lines: number -> object.

    Returns:
        The scores [groups, 1, 2]. Ids of pairs that have an instrument are ``<instrument>/<id>``.

    Raises:
        DataError: a label that is none or contradicts its line, or a side that is missing or doubled; it is named.
    """
    sides: dict[str, dict[str, float]] = {}
    tags: dict[str, dict[str, str]] = {}
    for number, line in lines:
        found = SIDE.match(str(line.get("label")))
        if found is None:
            raise DataError(f"{path}: line {number} has label {line.get('label')!r}, expected <id>_c or <id>_f")
        side = _SIDES[found["side"]]
        if line.get("type", side) != side:
            raise DataError(f"{path}: line {number} has label {line['label']!r} and type {line['type']!r:.80}")
        own = {key: value for key, value in line.items() if key not in _NO_TAGS and isinstance(value, str)}
        instrument = own.get("instrument")
        group = found["group"] if instrument is None else f"{instrument}/{found['group']}"
        if tags.setdefault(group, own) != own:
            raise DataError(f"{path}: caption and foil of {group} have different tags (line {number})")
        if side in sides.setdefault(group, {}):
            raise DataError(f"{path}: {group} has a {side} twice (line {number})")
        sides[group][side] = number_of(path, line.get("score"), f"the {side} of {group}")
    for group, scores in sides.items():
        absent = [side for side in _SIDES.values() if side not in scores]
        if absent:
            raise DataError(f"{path}: {group} has no {absent[0]}")
    table = np.array([[[scores[side] for side in _SIDES.values()]] for scores in sides.values()])
    return LabelledScores(table, list(sides), list(tags.values()) if any(tags.values()) else None)


def number_of(path: Path, value: Any, where: str) -> float:
    """A score as a float.

    Raises:
        DataError: it is no number, or a whole one that no float tells apart from the next.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{path}: {where} has score {value!r:.80}, which is no number")
    if isinstance(value, int) and abs(value) > EXACT:
        raise DataError(f"{path}: {where} has a whole number beyond 2^53, which no float tells apart from the next")
    return float(value)
