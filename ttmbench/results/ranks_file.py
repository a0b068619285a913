"""Ranks and scores of retrieval and classification in files, as ``ttmbench score`` reads them.

- npy, npz or safetensors with the rank of each query's best correct candidate, counted from 0: one file for images, one
  for captions; ``image_of_caption`` is optional;
- safetensors that ``--save_scores`` wrote;
- npz or safetensors with embeddings ``img`` [images, d] and ``cap`` [captions or classes, d] of unit norm, or with a
  matrix ``scores`` [images, captions or classes]; and with ``image_of_caption`` or ``label``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ttmbench._util.arrays import Arrays, read_arrays, too_large
from ttmbench.errors import DataError
from ttmbench.results.ranks import Ranks
from ttmbench.results.scores_file import save_arrays

FORMAT = "ttmbench-ranks"
OWNER = "image_of_caption"
COUNTS = ("strict", "as_topk", "above", "true")
SIDES = {"retrieval": ("i2t", "t2i"), "classification": ("class",)}


@dataclass(frozen=True)
class StoredRanks:
    """What files of ranks hold."""

    ranks: dict[str, Ranks]  # scope -> ranks
    of_query: dict[str, np.ndarray] = field(default_factory=dict)  # scope -> the image of each query, where known
    format: str = "ranks"  # the name of the format
    clusters: dict[str, np.ndarray] = field(default_factory=dict)  # scope -> equal numbers for equal pixels
    assumed: bool = False  # ``of_query`` of captions is inferred from their number

    @property
    def units(self) -> dict[str, np.ndarray]:
        """Scope -> clusters of queries for intervals: those given, else queries about one image."""
        return {**self.of_query, **self.clusters}


def save_ranks(
    path: Path,
    ranks: Mapping[str, Ranks],
    of_query: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    clusters: np.ndarray | None = None,
) -> None:
    """Writes ranks by scope, with the image that each query is about.

    ``clusters`` are a number for each image, equal for the same pixels; None where every image is another one.
    """
    arrays: dict[str, np.ndarray] = {}
    for scope, ranked in ranks.items():
        known = {name: getattr(ranked, name) for name in COUNTS} | {"image": of_query[scope]}
        known |= {} if clusters is None else {"cluster": clusters[of_query[scope]]}
        arrays |= {f"{scope}.{name}": np.asarray(row, np.int64) for name, row in known.items() if row is not None}
    candidates = {scope: ranked.candidates for scope, ranked in ranks.items()}
    save_arrays(path, arrays, {"format": FORMAT, "candidates": candidates, **metadata})


def read_saved(path: Path, content: Arrays) -> StoredRanks | None:
    """Ranks that ``--save_scores`` wrote, None for another file; DataError if they are damaged."""
    if content.about.get("format") != FORMAT:
        return None
    candidates = content.about.get("candidates")
    if not isinstance(candidates, dict) or not candidates:
        raise DataError(f"{path}: does not say how many candidates there were")
    ranks, images, clusters = {}, {}, {}
    for scope, count in candidates.items():
        arrays = {name: content.arrays.get(f"{scope}.{name}") for name in (*COUNTS, "image", "cluster")}
        strict, true, image = arrays["strict"], arrays["true"], arrays["image"]
        if strict is None or true is None or image is None or type(count) is not int or count < 1:
            raise DataError(f"{path}: has no whole ranks of '{scope}'")
        if len({row.shape for row in arrays.values() if row is not None}) > 1 or strict.ndim != 1 or not len(strict):
            raise DataError(f"{path}: the arrays of '{scope}' differ in length")
        for name in ("strict", "as_topk", "above"):
            array = arrays[name]
            if array is not None:
                _check_ranks(path, array, count)
        if true.min() < 1 or true.max() > count or image.min() < 0:
            raise DataError(f"{path}: the arrays of '{scope}' hold what no query can have")
        ranks[scope] = Ranks(strict, arrays["as_topk"], arrays["above"], true, count)
        images[scope] = image
        if arrays["cluster"] is not None:
            clusters[scope] = arrays["cluster"]
    return StoredRanks(ranks, images, "ttmbench ranks", clusters)


def read_plain(paths: Sequence[Path], kind: str, n_images: int | None, n_others: int | None) -> StoredRanks | None:
    """Ranks of one array a file, counted from 0; how ties were broken is unknown. None if a file holds something else.

    The files of two sides are distinguished by their number of queries, else by ``i2t`` or ``t2i`` in the name.
    ``n_images`` and ``n_others`` (captions or classes) are the task's; None where it does not say. DataError for a rank
    that no query can have, or two files of one side.
    """
    ranks: dict[str, Ranks] = {}
    owner: np.ndarray | None = None
    for path in paths:
        named = read_arrays(path).arrays
        owner = named.get(OWNER, owner)
        arrays = [array for name, array in named.items() if name != OWNER]
        if len(arrays) != 1 or arrays[0].ndim != 1 or not len(arrays[0]):
            return None
        values = arrays[0]
        scope = _side(path, kind, len(values), n_images, n_others)
        if scope in ranks:
            raise DataError(f"{path}: is another file of the ranks of '{scope}'")
        count = n_images if scope == "t2i" else n_others
        if count is None:
            raise DataError(f"{path}: the task does not say how many candidates there are, so ranks cannot be checked")
        _check_ranks(path, values, count)
        true = max(1, (n_others or 0) // (n_images or 1)) if scope == "i2t" else 1  # as many as on the mean
        ranks[scope] = Ranks(values.astype(np.int64), None, None, np.full(len(values), true), count)
    return StoredRanks(ranks, _owners(paths, ranks, owner, n_images, n_others))


def _owners(
    paths: Sequence[Path], ranks: dict[str, Ranks], owner: np.ndarray | None, n_images: int | None, n_others: int | None
) -> dict[str, np.ndarray]:
    """The image of each caption, as the files state it; sets the number of correct captions in ``ranks``."""
    if owner is None:
        return {}
    where = ", ".join(map(str, paths))
    captions = n_others if "t2i" not in ranks else len(ranks["t2i"])
    if owner.shape != (captions,) or not np.array_equal(owner, np.round(owner)):
        raise DataError(f"{where}: '{OWNER}' should be {captions} whole numbers, got {owner.dtype} {list(owner.shape)}")
    if owner.min() < 0 or n_images is None or owner.max() >= n_images:
        raise DataError(f"{where}: '{OWNER}' has numbers outside 0 to {(n_images or 0) - 1}")
    owner = owner.astype(np.int64)
    true = np.bincount(owner, minlength=n_images)
    if true.min() < 1:
        raise DataError(f"{where}: image {int(np.argmin(true))} has no caption in '{OWNER}'")
    if "i2t" in ranks:
        ranks["i2t"] = replace(ranks["i2t"], true=true)
    return {"t2i": owner} if "t2i" in ranks else {}


def check_matrix(path: Path, scores: np.ndarray) -> None:
    """DataError for a matrix of something else than logits."""
    if scores.ndim != 2 or 0 in scores.shape:
        raise DataError(f"{path}: 'scores' should be [images, captions or classes], got shape {list(scores.shape)}")
    if not all(np.isfinite(row).all() and not too_large(row) for row in scores):
        raise DataError(f"{path}: 'scores' has a number that is not finite, or larger than a logit")


def _side(path: Path, kind: str, length: int, n_images: int | None, n_others: int | None) -> str:
    if kind == "classification":
        fitting = ["class"] if n_images in (None, length) else []
    else:
        fitting = [side for side, count in (("i2t", n_images), ("t2i", n_others)) if count in (None, length)]
    if len(fitting) > 1:
        fitting = [side for side in fitting if side in path.name]
    if len(fitting) == 1:
        return fitting[0]
    sizes = f"{n_images} images" + (f" or {n_others} captions" if kind == "retrieval" else "")
    raise DataError(
        f"{path}: has {length} ranks, the task {sizes}; where both are as many, the file's name should say i2t or t2i"
    )


def _check_ranks(path: Path, values: np.ndarray, candidates: int) -> None:
    wrong = ~((values >= 0) & (values <= candidates) & (values == np.round(values)))
    if wrong.any():
        query = int(np.argmax(wrong))
        raise DataError(
            f"{path}: query {query} has rank {values[query]}, which is not a whole number from 0 to {candidates}"
        )
