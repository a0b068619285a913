"""Files of a run, and of scores and ranks: those that ``--save_scores`` writes, and arrays and JSON lines of others.

``docs/stored-scores.md`` lists the formats. All but CSV are recognised by their content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, Json, ValidationError

from ttmbench._util.arrays import EXACT, LARGEST, NPY, Arrays, read_arrays, refuse_pickle
from ttmbench._util.file_io import check_no_pointer, read_json_lines
from ttmbench._util.third_party import describe
from ttmbench.errors import DataError
from ttmbench.results.numbers import RAW
from ttmbench.results.ranks import Ranks
from ttmbench.results.summary import Clusters, connected
from ttmbench.types import GroupShape, Scores

SCORES, RANKS, SAMPLES = "ttmbench-scores", "ttmbench-ranks", "ttmbench samples"  # formats of saved files
COUNTS = ("strict", "as_topk", "above", "true")  # of ranks
NORM_TOLERANCE = 5e-3  # half-precision features of unit norm stay well inside
MAX_GLOBAL_IMAGES = 6_000  # the assignment problem is cubic in this
_SAVED_NAME = re.compile(r"^(?:scores|all_pairs|caption_pairs)\.\w{1,64}\.[0-9]{1,4}(?:\.[0-9]{1,5})?\Z")
_LABEL = re.compile(r"^(?P<group>.+)_(?:c(?P<caption>[0-9]{1,6})_i(?P<image>[0-9]{1,6})|(?P<side>[cf]))\Z", re.DOTALL)
_SIDES = {"c": "caption", "f": "foil"}
_NO_TAGS = ("label", "score", "type", "id")
_METHOD = re.compile(r"^\w{1,64}$")
_Lines = Iterable[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class StoredScores:
    """What a file of scores holds."""

    scores: dict[str, list[Scores]]  # method -> score arrays, one per seed
    group_ids: list[str]  # in the order of the arrays
    format: str  # the name of the format, for messages and records
    clusters: Clusters | None = None  # which groups share images; None where the file does not say
    true_captions: int = 1  # number of correct captions of each image
    tags: list[dict[str, str]] | None = None  # of each group, where the file has them
    iterations: dict[str, list[list[Scores]]] = field(default_factory=dict)  # method -> as `MethodScores.iterations`
    about: Mapping[str, Any] = field(default_factory=dict)  # the metadata of a saved file

    def some(self, places: Sequence[int]) -> StoredScores:
        """The scores of the groups at some positions, without scores across groups."""
        chosen = list(places)
        return replace(
            self,
            scores={name: [Scores(array.groups[chosen]) for array in arrays] for name, arrays in self.scores.items()},
            group_ids=[self.group_ids[position] for position in chosen],
            clusters=None if self.clusters is None else self.clusters.of(chosen),
            iterations={},
            tags=None if self.tags is None else [self.tags[position] for position in chosen],
        )


def save_scores(
    path: Path,
    scores: Mapping[str, list[Scores]],
    metadata: Mapping[str, str],
    iterations: Mapping[str, list[list[Scores]]] = MappingProxyType({}),
) -> None:
    """Writes scores of all methods and seeds as safetensors that `read_scores` reads back bit for bit.

    Their arrays are ``scores.<method>.<seed index>``, of iterations ``scores.<method>.<seed index>.<iteration>``;
    ``metadata`` are strings to keep with them, of which ``group_ids`` is a JSON list.
    """
    named = {f"{name}.{index}": value for name, per_seed in scores.items() for index, value in enumerate(per_seed)}
    for name, per_seed in iterations.items():
        for index, several in enumerate(per_seed):
            named |= {f"{name}.{index}.{iteration}": value for iteration, value in enumerate(several)}
    kinds = {"scores": "groups", "all_pairs": "all_pairs", "caption_pairs": "caption_pairs"}
    arrays = {f"{kind}.{name}": getattr(value, key) for name, value in named.items() for kind, key in kinds.items()}
    _save(path, arrays, {"format": SCORES, **metadata})


def save_ranks(
    path: Path,
    ranks: Mapping[str, Ranks],
    of_query: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    clusters: np.ndarray | None = None,
) -> None:
    """Writes ranks by scope, and the image of each query; ``clusters`` are equal numbers for images of equal pixels."""
    arrays: dict[str, np.ndarray | None] = {}
    for scope, ranked in ranks.items():
        known = {name: getattr(ranked, name) for name in COUNTS} | {"image": of_query[scope]}
        known |= {} if clusters is None else {"cluster": clusters[of_query[scope]]}
        arrays |= {f"{scope}.{name}": row if row is None else row.astype(np.int64) for name, row in known.items()}
    candidates = {scope: ranked.candidates for scope, ranked in ranks.items()}
    _save(path, arrays, {"format": RANKS, "candidates": candidates, **metadata})


def _save(path: Path, arrays: Mapping[str, np.ndarray | None], about: Mapping[str, object]) -> None:
    from safetensors.numpy import save

    # One key only: safetensors writes several in an order that differs from file to file.
    metadata = {"ttmbench": json.dumps(about, sort_keys=True)}
    there = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    path.write_bytes(save(there, metadata=metadata))


def read_scores(path: Path, shape: GroupShape | None, logit_scale: float = 1.0) -> StoredScores:
    """Reads stored scores in any of the formats but CSV; they are finite and of the task's shape, else the file's.

    ``logit_scale`` is a factor for inner products of embeddings. DataError if the file cannot be read, has none of the
    formats or no shape, or a cell is missing, duplicate, surplus or not finite; the group is named.
    """
    if _is_packed(path):
        content = read_arrays(path)
        if content.about.get("format") == SCORES:
            stored = _saved(path, content, shape)
        elif {"img", "cap"} <= content.arrays.keys():
            stored = _embeddings(path, content.arrays, shape, logit_scale)
        else:
            stored = _array(path, content.arrays, shape)
    else:
        stored = _lines(path, shape)
    if len(stored.scores.get(RAW, ())) != 1:
        methods = ", ".join(f"{name} {len(arrays)} times" for name, arrays in stored.scores.items())
        raise DataError(f"{path}: the raw model's scores (method none) should be there once; it has {methods}")
    return stored


def checked_scores(path: Path, array: np.ndarray, shape: GroupShape, group_ids: Sequence[str]) -> np.ndarray:
    """Finite floats of the task's shape; float64 stays, whole numbers become it, other floats float32."""
    if array.shape[1:] != (shape.images, shape.captions) or len(array) == 0:
        wanted = f"[groups, {shape.images} images, {shape.captions} captions]"
        raise DataError(f"{path}: scores have shape {list(array.shape)}; the task needs {wanted}")
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


def check_embeddings(path: Path, arrays: Mapping[str, np.ndarray], shape: GroupShape | None = None) -> None:
    """DataError if embeddings ``img`` and ``cap`` are not unit vectors of one dimension, in whole groups."""
    sizes = {"img": 1, "cap": 1} if shape is None else {"img": shape.images, "cap": shape.captions}
    for name, per_group in sizes.items():
        rows = arrays[name]
        if rows.ndim != 2 or 0 in rows.shape:
            raise DataError(f"{path}: embeddings '{name}' must be [rows, d], got shape {list(rows.shape)}")
        if len(rows) % per_group:
            raise DataError(f"{path}: '{name}' has {len(rows)} rows, no multiple of {per_group} per {shape} group")
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        wrong = ~(np.abs(norms - 1) <= NORM_TOLERANCE)
        if wrong.any():
            row = int(np.argmax(wrong))
            group = "" if shape is None else f"group {row // per_group}: "
            raise DataError(f"{path}: {group}row {row} of '{name}' has norm {norms[row]:.4g}, not 1")
    images, captions = (len(arrays[name]) // per_group for name, per_group in sizes.items())
    if shape is not None and images != captions:
        raise DataError(f"{path}: 'img' has the rows of {images} groups of {shape}, 'cap' those of {captions}")
    if arrays["img"].shape[1] != arrays["cap"].shape[1]:
        raise DataError(f"{path}: 'img' has dimension {arrays['img'].shape[1]}, 'cap' has {arrays['cap'].shape[1]}")


def _is_packed(path: Path) -> bool:
    """Whether a file is npz, npy or safetensors by its content; DataError for one that only its name says is."""
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would be waited for
            raise DataError(f"{path}: cannot be read (is not a regular file)")
        check_no_pointer(path)
        head = refuse_pickle(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    packed = head[:2] == b"PK" or head[: len(NPY)] == NPY or head[8:9] == b"{"
    if not packed and path.suffix in (".npz", ".npy", ".safetensors"):  # a page of errors
        raise DataError(f"{path}: begins unlike a file of {path.suffix[1:]} arrays; copy or download it again")
    return packed


def _array(path: Path, arrays: Mapping[str, np.ndarray], shape: GroupShape | None) -> StoredScores:
    cubes = [array for array in arrays.values() if array.ndim == 3]
    if len(cubes) != 1:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "no array"
        expected = "one array [groups, images, captions] or embeddings 'img' and 'cap'"
        raise DataError(f"{path}: expected {expected}, found {found}")
    group_ids = [str(index) for index in range(len(cubes[0]))]
    scores = checked_scores(path, cubes[0], shape or stated_shape(path, *cubes[0].shape[1:]), group_ids)
    return StoredScores({RAW: [Scores(scores)]}, group_ids, "array")


def _embeddings(
    path: Path, arrays: Mapping[str, np.ndarray], shape: GroupShape | None, logit_scale: float
) -> StoredScores:
    if shape is None:
        raise DataError(f"{path}: embeddings do not say how many images and captions a group has; name the task")
    check_embeddings(path, arrays, shape)
    images, captions = (arrays[name].astype(np.float32) for name in ("img", "cap"))
    scale, groups = np.float32(logit_scale), len(images) // shape.images
    left, right = images.reshape(groups, shape.images, -1), captions.reshape(groups, shape.captions, -1)
    inside = scale * np.matmul(left, right.transpose(0, 2, 1))
    pairs = scale * (images @ captions.T) if len(images) <= MAX_GLOBAL_IMAGES else None
    texts = None
    if shape.true_captions > 1:  # only there a metric compares captions
        exact = right.astype(np.float64)
        exact /= np.linalg.norm(exact, axis=2, keepdims=True)
        texts = np.matmul(exact, exact.transpose(0, 2, 1))
    scores = {RAW: [Scores(inside, pairs, texts, are_logits=logit_scale != 1)]}
    return StoredScores(scores, list(map(str, range(groups))), "embeddings", true_captions=shape.true_captions)


_Position = Annotated[int, Field(ge=0, lt=2**53)]


class _Metadata(BaseModel, strict=True):
    """Metadata of saved scores, each as JSON in a string."""

    group_ids: Json[list[str]] = []
    true_captions: Json[Annotated[int, Field(ge=1, le=10**6)]] = 1
    logits: Json[bool] = True
    clusters: Json[list[_Position]] | None = None
    image_clusters: Json[list[_Position]] | None = None


def _saved(path: Path, content: Arrays, shape: GroupShape | None) -> StoredScores:
    """Scores that ``--save_scores`` wrote."""
    arrays = content.arrays
    first = arrays.get(f"scores.{RAW}.0")
    if first is None or first.ndim != 3 or not all(map(_SAVED_NAME.match, arrays)):
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise DataError(f"{path}: expected scores.<method>.<seed index> [groups, images, captions], found {found}")
    try:
        about = _Metadata.model_validate(content.about)
    except ValidationError as error:
        raise DataError(f"{path}: its metadata are wrong: {describe(error)}") from None
    shape = shape or stated_shape(path, first.shape[1], first.shape[2], about.true_captions)
    group_ids = about.group_ids or [str(index) for index in range(len(first))]
    if len(set(group_ids)) < len(group_ids):
        raise DataError(f"{path}: duplicate group id")
    scores: dict[str, list[Scores]] = {}
    iterations: dict[str, list[list[Scores]]] = {}

    def order(name: str) -> tuple[bool, str, list[int]]:  # the raw model first, then by method, seed and iteration
        _, label, *numbers = name.split(".")
        return label != RAW, label, list(map(int, numbers))

    for name in sorted((name for name in arrays if name.startswith("scores.")), key=order):
        _, label, index, *iteration = name.split(".")
        seeds, steps = scores.setdefault(label, []), iterations.setdefault(label, [])
        here = steps[-1] if iteration and steps else seeds
        if int(index) != len(seeds) - bool(iteration) or (iteration and int(iteration[0]) != len(here)):
            raise DataError(f"{path}: has '{name}', and the array of the seed or iteration before it is missing")
        here.append(replace(_scores_of(path, arrays, name, shape, group_ids), are_logits=about.logits))
        steps += [] if iteration else [[]]
    clusters = None
    if about.clusters is not None:
        whole, images = np.array(about.clusters), np.array(about.image_clusters or ())
        if len(whole) != len(group_ids) or len(images) != len(group_ids) * shape.images:
            raise DataError(f"{path}: 'clusters' and 'image_clusters' are not one number for each group and image")
        clusters = Clusters(whole, images.reshape(len(whole), -1))
    known = (scores, group_ids, "ttmbench scores", clusters, shape.true_captions)
    return StoredScores(*known, iterations=iterations, about=content.about)


def _scores_of(
    path: Path, arrays: Mapping[str, np.ndarray], name: str, shape: GroupShape, group_ids: Sequence[str]
) -> Scores:
    """A saved array of scores, with those across groups and between captions where there are any."""
    pairs, texts = (arrays.get(name.replace("scores", kind, 1)) for kind in ("all_pairs", "caption_pairs"))
    groups, where = len(group_ids), f"{path}: pairs of '{name}'"
    check_pairs(where, pairs, groups * shape.images, groups * shape.captions)
    check_pairs(where, texts, groups, shape.captions, shape.captions)
    return Scores(checked_scores(path, arrays[name], shape, group_ids), pairs, texts)


def check_pairs(where: str, array: np.ndarray | None, *shape: int) -> None:
    """DataError if there are scores across groups that are not finite, too large, or of another shape."""
    if array is not None and (array.shape != shape or not (np.abs(array) <= LARGEST).all()):
        raise DataError(f"{where} should be finite logits {list(shape)}, got {list(array.shape)}")


def _lines(path: Path, shape: GroupShape | None) -> StoredScores:
    """The scores of JSON lines: of pairs by label, or of ttmbench's samples."""
    lines = list(read_json_lines(path))
    if not lines:
        raise DataError(f"{path}: is empty")
    first = lines[0][1]
    if {"label", "score"} <= first.keys():
        return _labelled(path, lines, shape)
    if {"group_id", "scores"} <= first.keys():
        return _samples(path, lines, shape)
    raise DataError(
        f"{path}: line 1 has keys {', '.join(sorted(first))}; expected 'label' and 'score' (Winoground, VALSE) or "
        "'group_id' and 'scores' (ttmbench samples); results of groups are read from a .csv"
    )


def _labelled(path: Path, lines: _Lines, shape: GroupShape | None) -> StoredScores:
    """Lines of pairs in any order, ``<id>_c<caption>_i<image>``, or of captions ``<id>_c`` and foils ``<id>_f``.

    Ids of captions and foils with an instrument are ``<instrument>/<id>``; their texts are tags.
    """
    cells: dict[str, dict[tuple[int, int], float]] = {}
    tags: dict[str, dict[str, str]] = {}
    sided: bool | None = None
    for number, line in lines:
        match = _LABEL.match(str(line.get("label")))
        if match is None or sided not in (None, match["side"] is not None):
            expected = "<id>_c<caption>_i<image> in each line, or <id>_c and <id>_f"
            raise DataError(f"{path}: line {number} has label {line.get('label')!r}, expected {expected}")
        group, sided = match["group"], match["side"] is not None
        if sided:
            side = _SIDES[match["side"]]
            if line.get("type", side) != side:
                raise DataError(f"{path}: line {number} has label {line['label']!r} and type {line['type']!r:.80}")
            mine = {key: value for key, value in line.items() if key not in _NO_TAGS and isinstance(value, str)}
            group = f"{mine['instrument']}/{group}" if "instrument" in mine else group
            if tags.setdefault(group, mine) != mine:
                raise DataError(f"{path}: caption and foil of {group} have different tags (line {number})")
            cell, what = (0, int(side == "foil")), side
        else:
            cell = int(match["image"]), int(match["caption"])
            what = f"cell c{cell[1]}_i{cell[0]}"
        known = cells.setdefault(group, {})
        if cell in known:
            raise DataError(f"{path}: group {group} has {what} twice (line {number})")
        known[cell] = _number(path, line.get("score"), f"group {group}, {what}")
    if shape is None:
        sizes = (1 + max(cell[axis] for known in cells.values() for cell in known) for axis in (0, 1))
        shape = GroupShape(1, 2) if sided else stated_shape(path, *sizes)
    wanted = [(image, caption) for image in range(shape.images) for caption in range(shape.captions)]
    for group, known in cells.items():
        for image, caption in [*wanted, *known]:
            if (image, caption) not in known:
                raise DataError(f"{path}: group {group} has no cell c{caption}_i{image}")
            if image >= shape.images or caption >= shape.captions:
                raise DataError(f"{path}: group {group} has a cell c{caption}_i{image}, outside a {shape} group")
    table = np.array([[known[cell] for cell in wanted] for known in cells.values()])
    array = table.reshape(len(cells), shape.images, shape.captions)
    scores, form = checked_scores(path, array, shape, list(cells)), "captions and foils" if sided else "winoground"
    stated = list(tags.values()) if any(tags.values()) else None
    return StoredScores({RAW: [Scores(scores)]}, list(cells), form, tags=stated)


def _samples(path: Path, lines: _Lines, shape: GroupShape | None) -> StoredScores:
    tables: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    about: dict[str, dict[str, Any]] = {}  # group -> its last line
    for number, line in lines:
        group = str(line.get("group_id"))
        block = _table(path, line.get("scores"), f"group {group} (line {number})")
        shape = shape or stated_shape(path, *block.shape)
        if block.shape != (shape.images, shape.captions):
            raise DataError(f"{path}: group {group} has scores of shape {list(block.shape)}, the task is {shape}")
        if "filter" in line:  # of other harnesses: which answers count, and so not which scores these are
            raise DataError(f"{path}: line {number} has the key 'filter'; the key of a method's scores is 'method'")
        name, index = line.get("method", RAW), line.get("seed_index", 0)
        if not isinstance(name, str) or not _METHOD.match(name) or type(index) is not int or not 0 <= index < 10_000:
            raise DataError(f"{path}: line {number} has method {name!r:.80} and seed_index {index!r:.80}")
        if tables.setdefault((name, index), {}).setdefault(group, block) is not block:
            raise DataError(f"{path}: group {group} is duplicated (line {number})")
        about[group] = line
    assert shape is not None, "there is a line"
    group_ids = list(tables.get((RAW, 0)) or next(iter(tables.values())))
    scores: dict[str, list[Scores]] = {}
    for (name, index), table in sorted(tables.items(), key=lambda item: (item[0][0] != RAW, item[0])):
        for group in sorted(set(group_ids) ^ set(table)):
            raise DataError(f"{path}: group {group} is not there for every method and seed ({name}, {index})")
        array = np.stack([table[group] for group in group_ids])
        if (np.abs(array) <= LARGEST).all() and np.array_equal(small := array.astype(np.float32), array):
            array = small  # as the scores of a run are
        scores.setdefault(name, []).append(Scores(checked_scores(path, array, shape, group_ids)))
    named = [about[group].get("cluster") for group in group_ids]
    clusters = None
    if all(isinstance(cluster, str) for cluster in named):
        each = np.arange(len(group_ids) * shape.images).reshape(len(group_ids), -1)  # metrics over images need more
        clusters = Clusters(np.array(connected([[cluster] for cluster in named])), each)
    stated = [of if isinstance(of := about[group].get("tags"), dict) else {} for group in group_ids]
    tags = [{tag: value for tag, value in of.items() if isinstance(value, str)} for of in stated]
    known = tags if any(tags) else None
    return StoredScores(scores, group_ids, SAMPLES, clusters, shape.true_captions, known)


def _table(path: Path, value: object, where: str) -> np.ndarray:
    rows = value if isinstance(value, list) else []
    if not rows or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise DataError(f"{path}: {where} has scores that are not a table of numbers")
    return np.array([[_number(path, cell, where) for cell in row] for row in rows], dtype=np.float64)


def _number(path: Path, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{path}: {where} has score {value!r:.80}, which is not a number")
    if isinstance(value, int) and abs(value) > EXACT:
        raise DataError(f"{path}: {where} has an integer beyond 2^53, which is not exact as a float")
    return float(value)
