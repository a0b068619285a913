"""Stored scores: five formats, told apart by content, read into the arrays that metrics take.

- Winoground's own JSONL: ``{"label": "<id>_c<caption>_i<image>", "score": x}``;
- captions and foils, ``{"label": "<id>_c", "score": x}`` and ``<id>_f``, with tags (VALSE);
- npz, npy or safetensors with one array [groups, images, captions], or a file that ``--save_scores`` wrote;
- ttmbench's samples JSONL (``group_id``, ``scores``);
- npz or safetensors with embeddings ``img`` [groups * images, d] and ``cap`` [groups * captions, d] of unit norm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import LARGEST, NPY, Arrays, metadata_list, read_arrays, refuse_pickle, too_large
from ttmbench._util.text import read_json_lines
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labelled_scores import (
    CELL,
    SIDE,
    captions_and_foils,
    cells_of_labels,
    number_of,
    shape_of_labels,
)
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, RAW
from ttmbench.results.saved_scores import saved_clusters, saved_subsets, stated_true_captions
from ttmbench.types import GroupShape, Scores

FORMAT = "ttmbench-scores"
NORM_TOLERANCE = 5e-3  # half-precision features of unit norm stay well inside
MAX_GLOBAL_IMAGES = 6_000  # the assignment problem is cubic in this
_SAVED_NAME = re.compile(r"^(?:scores|all_pairs|caption_pairs)\.\w{1,64}\.[0-9]{1,4}\Z")
_FILTER = re.compile(r"^\w{1,64}$")


@dataclass(frozen=True)
class StoredScores:
    """What a file of scores holds.

    Attributes:
        scores: filter -> score arrays, one per seed.
        group_ids: in the order of the arrays.
        format: what the file was taken for.
        clusters: which groups share images; None where the file does not say.
        subsets: filter -> positions of the groups that its scores are of, where these are not all.
        true_captions: how many captions are true for each image, as far as the file or the task says.
        tags: of each group, where the file states some: which instrument it is of, say.
    """

    scores: dict[str, list[Scores]]
    group_ids: list[str]
    format: str
    clusters: Clusters | None = None
    subsets: dict[str, list[int]] = field(default_factory=dict)
    true_captions: int = 1
    tags: list[dict[str, str]] | None = None

    def some(self, places: Sequence[int]) -> StoredScores:
        """Those of some of the groups; without scores across groups, which are of all, and of held-out groups."""
        kept = list(places)
        whole = {name: arrays for name, arrays in self.scores.items() if name not in self.subsets}
        return replace(
            self,
            scores={name: [Scores(one.groups[kept]) for one in arrays] for name, arrays in whole.items()},
            group_ids=[self.group_ids[place] for place in kept],
            clusters=None if self.clusters is None else self.clusters.of(kept),
            subsets={},
            tags=None if self.tags is None else [self.tags[place] for place in kept],
        )


def read_scores(path: Path, shape: GroupShape | None, logit_scale: float = 1.0) -> StoredScores:
    """Reads stored scores, whichever of the formats they are in.

    Args:
        path: the file.
        shape: images and captions per group, from the task; None where the file has to say it.
        logit_scale: what inner products of embeddings are multiplied with; other formats hold logits already.

    Returns:
        The scores, all finite and of the task's shape.

    Raises:
        DataError: the file cannot be read, is in none of the formats, does not say its shape, or a cell is missing,
            doubled, surplus or not finite; the group is named.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would be waited for
            raise DataError(f"{path}: cannot be read (is no regular file)")
        with path.open("rb") as file:
            head = file.read(16)
        refuse_pickle(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    packed = head[:2] == b"PK" or head[: len(NPY)] == NPY or head[8:9] == b"{"
    if not packed and path.suffix in (".npz", ".npy", ".safetensors"):  # a page of errors, a pointer of git-lfs
        raise DataError(f"{path}: holds no {path.suffix[1:]} arrays, by how it begins; copy or download it again")
    stored = _from_arrays(path, read_arrays(path), shape, logit_scale) if packed else _from_lines(path, shape)
    if len(stored.scores.get(RAW, ())) != 1:
        filters = ", ".join(f"{name} {len(arrays)} times" for name, arrays in stored.scores.items())
        raise DataError(f"{path}: the raw model's scores (filter none) should be there once; it has {filters}")
    return stored


def save_scores(path: Path, scores: Mapping[str, list[Scores]], metadata: Mapping[str, str]) -> None:
    """Writes scores of all filters and seeds as safetensors that `read_scores` reads back bit for bit.

    Args:
        path: the file, overwritten.
        scores: filter -> score arrays, one per seed.
        metadata: strings to keep with them; ``group_ids`` is a JSON list.
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    for name, per_seed in scores.items():
        for index, one in enumerate(per_seed):
            arrays[f"scores.{name}.{index}"] = np.ascontiguousarray(one.groups)
            if one.all_pairs is not None:
                arrays[f"all_pairs.{name}.{index}"] = np.ascontiguousarray(one.all_pairs)
            if one.caption_pairs is not None:
                arrays[f"caption_pairs.{name}.{index}"] = np.ascontiguousarray(one.caption_pairs)
    # One key only: safetensors writes several in an order that differs from file to file.
    about = json.dumps({"format": FORMAT, **metadata}, sort_keys=True)
    path.write_bytes(save(arrays, metadata={"ttmbench": about}))


def _shape_of(path: Path, images: int, captions: int, true_captions: int = 1) -> GroupShape:
    """The shape that a file states; DataError if no group can have it."""
    try:
        return GroupShape(images, captions, true_captions)
    except ValueError as error:
        raise DataError(f"{path}: has scores of {images} images and {captions} captions: {error}") from None


def _from_arrays(path: Path, content: Arrays, shape: GroupShape | None, logit_scale: float) -> StoredScores:
    arrays, metadata = content.arrays, content.about
    if {"img", "cap"} <= set(arrays):
        if shape is None:
            raise DataError(f"{path}: embeddings do not say how many images and captions a group has; name the task")
        return _from_embeddings(path, arrays["img"], arrays["cap"], shape, logit_scale)
    if metadata.get("format") == FORMAT:
        return _from_saved(path, arrays, metadata, shape)
    cubes = {name: array for name, array in arrays.items() if array.ndim == 3}
    if len(cubes) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "no array"
        raise DataError(
            f"{path}: expected one array [groups, images, captions] or embeddings 'img' and 'cap', found {shapes}"
        )
    array = next(iter(cubes.values()))
    shape = shape or _shape_of(path, *array.shape[1:])
    group_ids = [str(index) for index in range(len(array))]
    return StoredScores({"none": [Scores(_checked(path, array, shape, group_ids))]}, group_ids, "array")


def _from_saved(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any], shape: GroupShape | None
) -> StoredScores:
    strange = [name for name in arrays if not _SAVED_NAME.match(name)]
    first = next((array for name, array in arrays.items() if name.startswith("scores.")), None)
    if first is None or strange:
        raise DataError(f"{path}: arrays should be named scores.<filter>.<seed index>, found {', '.join(arrays)}")
    if first.ndim != 3:
        raise DataError(f"{path}: scores have shape {list(first.shape)}; they should be [groups, images, captions]")
    shape = shape or _shape_of(path, first.shape[1], first.shape[2], stated_true_captions(path, metadata))
    try:
        group_ids = metadata_list(metadata, "group_ids") or [str(index) for index in range(len(first))]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if len(set(group_ids)) < len(group_ids):
        raise DataError(f"{path}: a group id is there twice")
    subsets = saved_subsets(path, metadata, len(group_ids))
    scores: dict[str, list[Scores]] = {}
    names = sorted((name for name in arrays if name.startswith("scores.")), key=_filter_and_index)
    for name in names:
        _, label, index = name.split(".")
        mine = [group_ids[at] for at in subsets[label]] if label in subsets else group_ids
        pairs = arrays.get(f"all_pairs.{label}.{index}")
        if pairs is not None:
            _check_pairs(path, pairs, len(mine), shape)
        texts = arrays.get(f"caption_pairs.{label}.{index}")
        if texts is not None and texts.shape != (len(mine), shape.captions, shape.captions):
            raise DataError(f"{path}: pairs of captions have shape {list(texts.shape)}, not that of the groups")
        scores.setdefault(label, []).append(Scores(_checked(path, arrays[name], shape, mine), pairs, texts))
    clusters = saved_clusters(path, metadata, len(group_ids), shape)
    return StoredScores(scores, group_ids, "ttmbench scores", clusters, subsets, shape.true_captions)


def _from_embeddings(
    path: Path, images: np.ndarray, captions: np.ndarray, shape: GroupShape, logit_scale: float
) -> StoredScores:
    for name, array, per_group in (("img", images, shape.images), ("cap", captions, shape.captions)):
        if array.ndim != 2:
            raise DataError(f"{path}: embeddings '{name}' must be [rows, d], got shape {list(array.shape)}")
        if len(array) == 0 or len(array) % per_group:
            raise DataError(
                f"{path}: embeddings '{name}' have {len(array)} rows, no multiple of {per_group} per {shape} group"
            )
    groups = len(images) // shape.images
    if len(captions) // shape.captions != groups:
        raise DataError(
            f"{path}: {len(images)} image rows make {groups} groups of {shape}, but {len(captions)} caption rows make "
            f"{len(captions) // shape.captions}"
        )
    if images.shape[1] != captions.shape[1]:
        raise DataError(f"{path}: 'img' has dimension {images.shape[1]}, 'cap' has {captions.shape[1]}")
    for name, array, per_group in (("img", images, shape.images), ("cap", captions, shape.captions)):
        norms = np.linalg.norm(array.astype(np.float64), axis=1)
        wrong = ~(np.abs(norms - 1) <= NORM_TOLERANCE)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"{path}: group {row // per_group}: row {row} of '{name}' has norm {norms[row]:.4g}, not 1")
    left = images.astype(np.float32).reshape(groups, shape.images, -1)
    right = captions.astype(np.float32).reshape(groups, shape.captions, -1)
    inside = np.float32(logit_scale) * np.matmul(left, right.transpose(0, 2, 1))
    pairs = None
    if len(images) <= MAX_GLOBAL_IMAGES:
        pairs = np.float32(logit_scale) * (left.reshape(len(images), -1) @ right.reshape(len(captions), -1).T)
    group_ids = [str(index) for index in range(groups)]
    texts = None
    if shape.true_captions > 1:  # only there a metric compares captions
        exact = right.astype(np.float64)
        exact /= np.linalg.norm(exact, axis=2, keepdims=True)
        texts = np.matmul(exact, exact.transpose(0, 2, 1))
    scores = {RAW: [Scores(inside, pairs, texts)]}
    return StoredScores(scores, group_ids, "embeddings", true_captions=shape.true_captions)


def _from_lines(path: Path, shape: GroupShape | None) -> StoredScores:
    lines = list(read_json_lines(path))
    if not lines:
        raise DataError(f"{path}: is empty")
    first = lines[0][1]
    if "label" in first and "score" in first:
        return _from_labels(path, lines, shape)
    if "group_id" in first and "scores" in first:
        block = _table(path, first.get("scores"), f"group {first.get('group_id')} (line 1)")
        return _from_samples(path, lines, shape or _shape_of(path, *block.shape))
    raise DataError(
        f"{path}: line 1 has keys {', '.join(sorted(map(str, first)))}; expected 'label' and 'score' (Winoground, "
        "VALSE) or 'group_id' and 'scores' (ttmbench samples)"
    )


def _from_labels(path: Path, lines: list[tuple[int, dict[str, Any]]], shape: GroupShape | None) -> StoredScores:
    """One pair a line: as Winoground stores them, or captions and foils."""
    label = str(lines[0][1].get("label"))
    if SIDE.match(label) and not CELL.match(label):
        found, form = captions_and_foils(path, lines), "captions and foils"
        shape = shape or GroupShape(1, 2)
    else:
        shape, form = shape or _shape_of(path, *shape_of_labels(lines)), "winoground"
        found = cells_of_labels(path, lines, shape)
    scores = {"none": [Scores(_checked(path, found.groups, shape, found.group_ids))]}
    return StoredScores(scores, found.group_ids, form, tags=found.tags)


def _from_samples(path: Path, lines: Iterable[tuple[int, dict[str, Any]]], shape: GroupShape) -> StoredScores:
    tables: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    cluster_of: dict[str, str] = {}
    tags_of: dict[str, dict[str, str]] = {}
    for number, line in lines:
        group = str(line.get("group_id"))
        block = _table(path, line.get("scores"), f"group {group} (line {number})")
        if block.shape != (shape.images, shape.captions):
            raise DataError(f"{path}: group {group} has scores of shape {list(block.shape)}, the task is {shape}")
        name, index = line.get("filter", "none"), line.get("seed_index", 0)
        if not isinstance(name, str) or not _FILTER.match(name) or type(index) is not int or not 0 <= index < 10_000:
            raise DataError(f"{path}: line {number} has filter {name!r:.80} and seed_index {index!r:.80}")
        table = tables.setdefault((name, index), {})
        if group in table:
            raise DataError(f"{path}: group {group} is there twice (line {number})")
        table[group] = block
        tags = line.get("tags")
        if isinstance(tags, dict):
            tags_of[group] = {tag: value for tag, value in tags.items() if isinstance(value, str)}
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
        scores.setdefault(name, []).append(Scores(_checked(path, array, shape, mine)))
    clusters = None
    if all(group in cluster_of for group in group_ids):
        each = np.arange(len(group_ids) * shape.images).reshape(len(group_ids), -1)  # metrics over images need more
        clusters = Clusters(np.array(connected([[cluster_of[group]] for group in group_ids])), each)
    tags = [tags_of.get(group, {}) for group in group_ids]
    stated = tags if any(tags) else None
    return StoredScores(scores, group_ids, "ttmbench samples", clusters, subsets, shape.true_captions, stated)


def _checked(path: Path, array: np.ndarray, shape: GroupShape, group_ids: list[str]) -> np.ndarray:
    """Finite floats of the task's shape; float64 stays, whole numbers become it, other floats float32."""
    if array.shape[1:] != (shape.images, shape.captions) or len(array) == 0:
        raise DataError(
            f"{path}: scores have shape {list(array.shape)}; the task needs [groups, {shape.images} images, "
            f"{shape.captions} captions]"
        )
    if len(array) != len(group_ids):
        raise DataError(f"{path}: {len(array)} groups of scores, but {len(group_ids)} group ids")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    scores = array if array.dtype == np.float64 else array.astype(np.float32)
    sound = (np.abs(scores) <= LARGEST).all(axis=(1, 2))
    if not sound.all():
        group = int(np.argmin(sound))
        bad = scores[group][~(np.abs(scores[group]) <= LARGEST)][0]
        what = f"larger than any logit ({LARGEST:g})" if np.isfinite(bad) else "not a finite number"
        raise DataError(f"{path}: group {group_ids[group]} has a score that is {bad}, {what}")
    return scores


def _check_pairs(path: Path, pairs: np.ndarray, groups: int, shape: GroupShape) -> None:
    """Every image against every caption, all finite."""
    expected = (groups * shape.images, groups * shape.captions)
    if pairs.shape != expected:
        raise DataError(f"{path}: scores of all pairs have shape {list(pairs.shape)}, expected {list(expected)}")
    finite = np.isfinite(pairs).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: group {int(np.argmin(finite)) // shape.images} has a score that is not finite")
    if too_large(pairs):
        raise DataError(f"{path}: a score of all pairs is larger than {LARGEST:g}, which is no logit")


def _table(path: Path, value: Any, where: str) -> np.ndarray:
    """A list of equally long lists of numbers as float64."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise DataError(f"{path}: {where} has scores that are no table of numbers")
    if len({len(row) for row in value}) > 1:
        raise DataError(f"{path}: {where} has scores that are no table of numbers: its rows differ in length")
    return np.array([[number_of(path, one, where) for one in row] for row in value], dtype=np.float64)


def _smallest(array: np.ndarray) -> np.ndarray:
    """The same numbers as float32 where that holds every one of them, as scores of a run do."""
    if too_large(array):
        return array
    small = array.astype(np.float32)
    return small if np.array_equal(small, array) else array


def _filter_and_index(name: str) -> tuple[bool, str, int]:
    _, label, index = name.split(".")
    return label != "none", label, int(index)
