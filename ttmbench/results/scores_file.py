"""Stored scores: arrays and JSON lines, distinguished by content, read into the arrays that metrics take.

- npz, npy or safetensors with one array [groups, images, captions], or a file that ``--save_scores`` wrote;
- npz or safetensors with embeddings ``img`` [groups * images, d] and ``cap`` [groups * captions, d] of unit norm;
- JSON lines, as `ttmbench.results.score_lines` has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ttmbench._util.arrays import LARGEST, NPY, Arrays, metadata_list, read_arrays, refuse_pickle, too_large
from ttmbench._util.text import parse_json
from ttmbench.errors import DataError
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import RAW
from ttmbench.results.score_lines import StoredScores, checked_scores, read_score_lines, stated_shape
from ttmbench.types import GroupShape, Scores

FORMAT = "ttmbench-scores"
NORM_TOLERANCE = 5e-3  # half-precision features of unit norm stay well inside
MAX_GLOBAL_IMAGES = 6_000  # the assignment problem is cubic in this
_SAVED_NAME = re.compile(r"^(?:scores|all_pairs|caption_pairs)\.\w{1,64}\.[0-9]{1,4}(?:\.[0-9]{1,5})?\Z")


def read_scores(path: Path, shape: GroupShape | None, logit_scale: float = 1.0) -> StoredScores:
    """Reads stored scores in any of the formats; they are finite and of the task's shape.

    Args:
        path: the file.
        shape: images and captions per group, from the task; None where the file has to say it.
        logit_scale: factor for inner products of embeddings; other formats hold logits already.

    Raises:
        DataError: the file cannot be read, has none of the formats or no shape, or a cell is missing, duplicate,
            surplus or not finite; the group is named.
    """
    if is_packed(path):
        return scores_of_arrays(path, read_arrays(path), shape, logit_scale)
    return _with_raw(path, read_score_lines(path, shape))


def is_packed(path: Path) -> bool:
    """Whether a file is npz, npy or safetensors by its content; DataError for one that only its name says is."""
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would be waited for
            raise DataError(f"{path}: cannot be read (is not a regular file)")
        with path.open("rb") as file:
            head = file.read(16)
        refuse_pickle(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    packed = head[:2] == b"PK" or head[: len(NPY)] == NPY or head[8:9] == b"{"
    if not packed and path.suffix in (".npz", ".npy", ".safetensors"):  # a page of errors, a pointer of git-lfs
        raise DataError(f"{path}: begins unlike a file of {path.suffix[1:]} arrays; copy or download it again")
    return packed


def scores_of_arrays(path: Path, content: Arrays, shape: GroupShape | None, logit_scale: float = 1.0) -> StoredScores:
    """The scores of arrays that were read; arguments and errors as for `read_scores`."""
    return _with_raw(path, _from_arrays(path, content, shape, logit_scale))


def _with_raw(path: Path, stored: StoredScores) -> StoredScores:
    if len(stored.scores.get(RAW, ())) != 1:
        filters = ", ".join(f"{name} {len(arrays)} times" for name, arrays in stored.scores.items())
        raise DataError(f"{path}: the raw model's scores (filter none) should be there once; it has {filters}")
    return stored


def save_scores(
    path: Path,
    scores: Mapping[str, list[Scores]],
    metadata: Mapping[str, str],
    iterations: Mapping[str, list[list[Scores]]] = MappingProxyType({}),
) -> None:
    """Writes scores of all filters and seeds as safetensors that `read_scores` reads back bit for bit.

    Args:
        path: the file, overwritten.
        scores: filter -> score arrays, one per seed: ``scores.<filter>.<seed index>``.
        metadata: strings to keep with them; ``group_ids`` is a JSON list.
        iterations: filter -> for each seed the scores of its iterations: ``scores.<filter>.<seed index>.<iteration>``.
    """
    named = {f"{name}.{index}": value for name, per_seed in scores.items() for index, value in enumerate(per_seed)}
    for name, per_seed in iterations.items():
        for index, several in enumerate(per_seed):
            named |= {f"{name}.{index}.{iteration}": value for iteration, value in enumerate(several)}
    arrays = {
        f"{kind}.{name}": array
        for name, value in named.items()
        for kind, array in (
            ("scores", value.groups),
            ("all_pairs", value.all_pairs),
            ("caption_pairs", value.caption_pairs),
        )
        if array is not None
    }
    save_arrays(path, arrays, {"format": FORMAT, **metadata})


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, object]) -> None:
    """Writes safetensors with what `ttmbench._util.arrays.read_arrays` reads beside them."""
    from safetensors.numpy import save

    # One key only: safetensors writes several in an order that differs from file to file.
    metadata = {"ttmbench": json.dumps(about, sort_keys=True)}
    path.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=metadata))


def check_embeddings(path: Path, arrays: Mapping[str, np.ndarray], shape: GroupShape | None = None) -> None:
    """DataError if embeddings ``img`` and ``cap`` are not unit vectors of one dimension, in whole groups."""
    sizes = {"img": 1, "cap": 1} if shape is None else {"img": shape.images, "cap": shape.captions}
    for name, per_group in sizes.items():
        rows = arrays[name]
        if rows.ndim != 2 or 0 in rows.shape:
            raise DataError(f"{path}: embeddings '{name}' must be [rows, d], got shape {list(rows.shape)}")
        if len(rows) % per_group:
            raise DataError(
                f"{path}: embeddings '{name}' have {len(rows)} rows, no multiple of {per_group} per {shape} group"
            )
    images, captions = (len(arrays[name]) // per_group for name, per_group in sizes.items())
    if shape is not None and images != captions:
        raise DataError(
            f"{path}: {len(arrays['img'])} image rows make {images} groups of {shape}, but {len(arrays['cap'])} "
            f"caption rows make {captions}"
        )
    if arrays["img"].shape[1] != arrays["cap"].shape[1]:
        raise DataError(f"{path}: 'img' has dimension {arrays['img'].shape[1]}, 'cap' has {arrays['cap'].shape[1]}")
    for name, per_group in sizes.items():
        norms = np.sqrt(np.einsum("ij,ij->i", arrays[name], arrays[name], dtype=np.float64))
        wrong = ~(np.abs(norms - 1) <= NORM_TOLERANCE)
        if wrong.any():
            row = int(np.argmax(wrong))
            group = "" if shape is None else f"group {row // per_group}: "
            raise DataError(f"{path}: {group}row {row} of '{name}' has norm {norms[row]:.4g}, not 1")


def _from_arrays(path: Path, content: Arrays, shape: GroupShape | None, logit_scale: float) -> StoredScores:
    arrays = content.arrays
    if {"img", "cap"} <= set(arrays):
        if shape is None:
            raise DataError(f"{path}: embeddings do not say how many images and captions a group has; name the task")
        check_embeddings(path, arrays, shape)
        return _from_embeddings(arrays["img"], arrays["cap"], shape, logit_scale)
    if content.about.get("format") == FORMAT:
        return _from_saved(path, arrays, content.about, shape)
    cubes = {name: array for name, array in arrays.items() if array.ndim == 3}
    if len(cubes) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "no array"
        raise DataError(
            f"{path}: expected one array [groups, images, captions] or embeddings 'img' and 'cap', found {shapes}"
        )
    (array,) = cubes.values()
    group_ids = [str(index) for index in range(len(array))]
    scores = checked_scores(path, array, shape or stated_shape(path, *array.shape[1:]), group_ids)
    return StoredScores({RAW: [Scores(scores)]}, group_ids, "array")


def _from_embeddings(images: np.ndarray, captions: np.ndarray, shape: GroupShape, logit_scale: float) -> StoredScores:
    groups = len(images) // shape.images
    left = images.astype(np.float32).reshape(groups, shape.images, -1)
    right = captions.astype(np.float32).reshape(groups, shape.captions, -1)
    inside = np.float32(logit_scale) * np.matmul(left, right.transpose(0, 2, 1))
    pairs = None
    if len(images) <= MAX_GLOBAL_IMAGES:
        pairs = np.float32(logit_scale) * (left.reshape(len(images), -1) @ right.reshape(len(captions), -1).T)
    texts = None
    if shape.true_captions > 1:  # only there a metric compares captions
        exact = right.astype(np.float64)
        exact /= np.linalg.norm(exact, axis=2, keepdims=True)
        texts = np.matmul(exact, exact.transpose(0, 2, 1))
    scores, group_ids = {RAW: [Scores(inside, pairs, texts)]}, [str(index) for index in range(groups)]
    return StoredScores(scores, group_ids, "embeddings", true_captions=shape.true_captions)


def _from_saved(
    path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, object], shape: GroupShape | None
) -> StoredScores:
    first = arrays.get(f"scores.{RAW}.0")
    if first is None or not all(map(_SAVED_NAME.match, arrays)):
        raise DataError(f"{path}: arrays should be named scores.<filter>.<seed index>, found {', '.join(arrays)}")
    if first.ndim != 3:
        raise DataError(f"{path}: scores have shape {list(first.shape)}; they should be [groups, images, captions]")
    true_captions = str(about.get("true_captions", "1"))
    if not true_captions.isdecimal() or len(true_captions) > 6:
        raise DataError(f"{path}: its 'true_captions' is {true_captions!r:.80}, not a whole number")
    shape = shape or stated_shape(path, first.shape[1], first.shape[2], int(true_captions))
    try:
        group_ids = metadata_list(about, "group_ids") or [str(index) for index in range(len(first))]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if len(set(group_ids)) < len(group_ids):
        raise DataError(f"{path}: duplicate group id")
    subsets = _saved_subsets(path, about, len(group_ids))
    scores: dict[str, list[Scores]] = {}
    iterations: dict[str, list[list[Scores]]] = {}
    for name in sorted((name for name in arrays if name.startswith("scores.")), key=_order):
        _, label, index, *iteration = name.split(".")
        held = subsets.get(label, ())
        mine = [group_ids[at] for at in held] if held else group_ids
        if iteration and held:
            mine = [group for at, group in enumerate(group_ids) if at not in set(held)]
        pairs, texts = (arrays.get(name.replace("scores", kind, 1)) for kind in ("all_pairs", "caption_pairs"))
        if pairs is not None:
            _check_pairs(path, pairs, len(mine), shape)
        if texts is not None and texts.shape != (len(mine), shape.captions, shape.captions):
            raise DataError(f"{path}: pairs of captions have shape {list(texts.shape)}, not that of the groups")
        seeds, steps = scores.setdefault(label, []), iterations.setdefault(label, [])
        here = steps[-1] if iteration and steps else seeds
        if int(index) != len(seeds) - bool(iteration) or (iteration and int(iteration[0]) != len(here)):
            raise DataError(f"{path}: has '{name}', and the array of the seed or iteration before it is missing")
        here.append(Scores(checked_scores(path, arrays[name], shape, mine), pairs, texts))
        steps += [] if iteration else [[]]
    clusters = _saved_clusters(path, about, len(group_ids), shape)
    return StoredScores(
        scores, group_ids, "ttmbench scores", clusters, subsets, shape.true_captions, iterations=iterations
    )


def _saved(path: Path, about: Mapping[str, object], key: str, default: str) -> Any:
    try:
        return parse_json(str(about.get(key, default)))
    except ValueError as error:
        raise DataError(f"{path}: its '{key}' cannot be read: {error}") from None


def _saved_subsets(path: Path, about: Mapping[str, object], groups: int) -> dict[str, list[int]]:
    """Filter -> positions of its groups; nothing where every filter has all groups."""
    subsets = _saved(path, about, "subsets", "{}")
    if not isinstance(subsets, dict):
        raise DataError(f"{path}: its 'subsets' must map filters to positions")
    for name, positions in subsets.items():
        whole = isinstance(positions, list) and all(type(index) is int and 0 <= index < groups for index in positions)
        if name == RAW or not whole or positions != sorted(set(positions)):
            raise DataError(f"{path}: its 'subsets' of {name} are not increasing positions of its {groups} groups")
    return subsets


def _saved_clusters(path: Path, about: Mapping[str, object], groups: int, shape: GroupShape) -> Clusters | None:
    """Clusters; None if no image stands in several groups."""
    if "clusters" not in about:
        return None
    arrays = []
    for key, length in (("clusters", groups), ("image_clusters", groups * shape.images)):
        numbers = _saved(path, about, key, "[]")
        if not isinstance(numbers, list) or len(numbers) != length or any(type(value) is not int for value in numbers):
            raise DataError(f"{path}: its '{key}' is not a list of {length} whole numbers")
        try:
            arrays.append(np.array(numbers, np.int64))
        except OverflowError:
            raise DataError(f"{path}: its 'clusters' are numbers too large to be any") from None
    return Clusters(arrays[0], arrays[1].reshape(groups, -1))


def _check_pairs(path: Path, pairs: np.ndarray, groups: int, shape: GroupShape) -> None:
    expected = (groups * shape.images, groups * shape.captions)
    if pairs.shape != expected:
        raise DataError(f"{path}: scores of all pairs have shape {list(pairs.shape)}, expected {list(expected)}")
    finite = np.isfinite(pairs).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: group {int(np.argmin(finite)) // shape.images} has a score that is not finite")
    if too_large(pairs):
        raise DataError(f"{path}: a score of all pairs is larger than {LARGEST:g}, which is not a logit")


def _order(name: str) -> tuple[bool, str, list[int]]:
    """A sort key of names of arrays: the raw model first, then by filter, seed and iteration."""
    _, label, *numbers = name.split(".")
    return label != RAW, label, list(map(int, numbers))
