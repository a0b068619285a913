"""Stored ranks, embeddings or scores of tasks that rank: retrieval and classification without model and data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ttmbench._util.arrays import LARGEST, Arrays, read_arrays
from ttmbench._util.file_io import file_digest
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.eval_results import Data, Ranked
from ttmbench.model import StoredFeatures
from ttmbench.plugins.registry import Registry
from ttmbench.results.numbers import STORED_NOTE, STORED_SCORES
from ttmbench.results.ranks import CLASS, I2T, T2I, Ranks
from ttmbench.results.stored_files import COUNTS, RANKS, check_embeddings
from ttmbench.scoring.ranking import ScoreRows, rank_queries

_EXPECTED = (
    "expected ranks (npy, one for each side; or of --save_scores), embeddings 'img' and 'cap', or a matrix 'scores' "
    "[images, captions or classes]"
)
OWNER, LABEL = "image_of_caption", "label"
_Stored = tuple[tuple[int, int], dict[str, Ranks], dict[str, np.ndarray], dict[str, np.ndarray], list[str]]
"""Number of images, and of captions or classes; by scope ranks, each query's image where known, equal numbers for equal
pixels; notes."""


def stored_ranks(
    paths: Sequence[Path], spec: TaskSpec, registry: Registry, limit: int | None, logit_scale: float
) -> Ranked:
    """Ranks from files as a task; UsageError for too many files, DataError for one that does not fit."""
    sides = 1 if spec.kind == "classification" else 2
    if len(paths) > sides:
        raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: give {sides} files at most, not {len(paths)}")
    contents = [read_arrays(path) for path in paths]
    first = contents[0]
    if len(paths) == 1 and first.about.get("format") == RANKS:
        form, found = "ttmbench ranks", _saved(paths[0], first, spec, limit)
    elif len(paths) == 1 and ({"img", "cap"} <= first.arrays.keys() or "scores" in first.arrays):
        form = "matrix" if "scores" in first.arrays else "embeddings"
        found = _from_scores(paths[0], first.arrays, spec, limit, logit_scale)
    else:
        form, found = "ranks", _plain(list(zip(paths, contents, strict=True)), spec, limit)
    pool, ranks, of_query, clusters, notes = found
    names = "+".join(path.name for path in paths)
    source = {"kind": STORED_SCORES, "file": names, "format": form, "sha256": file_digest(*paths)}
    return Ranked(
        spec=spec,
        metrics=[registry.metrics[name] for name in spec.metrics],
        data=Data.of_file(spec, source, pool=pool),
        notes=[STORED_NOTE, *notes],
        ranks=ranks,
        of_query=of_query,
        pool=pool,
        units={**of_query, **clusters},
    )


def _sizes(spec: TaskSpec, limit: int | None) -> tuple[int | None, int | None]:
    """How many images, and captions or classes, the task's files should be of; None where it does not say."""
    images = spec.group.n_groups if limit is None else min(limit, spec.group.n_groups or limit)
    if spec.classes is not None:
        return images, spec.classes.n_classes
    return images, spec.group.n_captions if limit is None else None


def _check_sizes(spec: TaskSpec, limit: int | None, pool: tuple[int, int], where: str) -> None:
    for what, wanted, found in zip(("images", "captions or classes"), _sizes(spec, limit), pool, strict=True):
        if wanted not in (None, found):
            raise DataError(f"{where} has {found} {what}, but task '{spec.task}' has {wanted}")


def _saved(path: Path, content: Arrays, spec: TaskSpec, limit: int | None) -> _Stored:
    """Ranks that ``--save_scores`` wrote."""
    candidates = content.about.get("candidates")
    scopes = (CLASS,) if spec.kind == "classification" else (I2T, T2I)
    if not isinstance(candidates, dict) or tuple(sorted(candidates)) != scopes:
        raise DataError(f"{path}: its metadata 'candidates' are not those of {' and '.join(scopes)}")
    ranks, images, clusters = {}, {}, {}
    for scope, count in candidates.items():
        arrays = {name: content.arrays.get(f"{scope}.{name}") for name in (*COUNTS, "image", "cluster")}
        strict, true, image = arrays["strict"], arrays["true"], arrays["image"]
        shapes = {row.shape for row in arrays.values() if row is not None}
        if strict is None or true is None or image is None or type(count) is not int or shapes != {(len(strict),)}:
            raise DataError(f"{path}: has no whole ranks of '{scope}', each array with a number for every query")
        for array in (strict, arrays["as_topk"], arrays["above"]):
            if array is not None:
                _check_ranks(path, array, count)
        if not len(true) or true.min() < 1 or true.max() > count or image.min() < 0:
            raise DataError(f"{path}: the arrays of '{scope}' hold what no query can have")
        ranks[scope], images[scope] = Ranks(strict, arrays["as_topk"], arrays["above"], true, count), image
        if arrays["cluster"] is not None:
            clusters[scope] = arrays["cluster"]
    pool = len(ranks[scopes[0]]), ranks[scopes[0]].candidates
    _check_sizes(spec, limit, pool, str(path))
    return pool, ranks, images, clusters, []


def _plain(contents: Sequence[tuple[Path, Arrays]], spec: TaskSpec, limit: int | None) -> _Stored:
    """Ranks of one array a file, counted from 0, of the side in the file's name; how ties were broken is unknown."""
    n_images, n_others = _sizes(spec, limit)
    queries = {CLASS: n_images} if spec.kind == "classification" else {I2T: n_images, T2I: n_others}
    ranks: dict[str, Ranks] = {}
    where, owner = Path(), None
    for path, content in contents:
        arrays = [array for name, array in content.arrays.items() if name != OWNER]
        if len(arrays) != 1 or arrays[0].ndim != 1 or not len(arrays[0]):
            raise DataError(f"{path}: {_EXPECTED}")
        if OWNER in content.arrays:
            where, owner = path, content.arrays[OWNER]
        length = len(arrays[0])
        fitting = [scope for scope in queries if len(queries) == 1 or scope in path.name]
        if len(fitting) != 1 or fitting[0] in ranks:
            raise DataError(f"{path}: its name should have i2t or t2i, which ranks it holds; each side is one file")
        scope = fitting[0]
        if queries[scope] not in (None, length):
            raise DataError(f"{path}: has {length} ranks, but task '{spec.task}' has {queries[scope]} queries")
        count = n_images if scope == T2I else n_others
        if count is None:
            raise DataError(f"{path}: the task does not say how many candidates there are, so ranks cannot be checked")
        _check_ranks(path, arrays[0], count)
        true = max(1, (n_others or 0) // (n_images or 1)) if scope == I2T else 1  # as many as on the mean
        ranks[scope] = Ranks(arrays[0].astype(np.int64), None, None, np.full(length, true), count)
    notes = ["ranks say nothing of ties: these were broken by whoever made the file"]
    captions = len(ranks[T2I]) if T2I in ranks else n_others or 0
    if owner is not None:
        owner = _labels(owner, captions, n_images or 0, OWNER, str(where))
        if I2T in ranks:
            ranks[I2T] = replace(ranks[I2T], true=np.bincount(owner))
    elif T2I in ranks and n_images and captions % n_images == 0:
        owner, each = np.repeat(np.arange(n_images), captions // n_images), captions // n_images
        notes.append(
            f"captions are taken to stand {each} an image, one image's after the other's: intervals go by images"
        )
    elif T2I in ranks:
        notes.append(
            "which captions share an image is unknown, so intervals treat each as independent and are "
            f"too narrow; add '{OWNER}' to the file of ranks"
        )
    of_query = {T2I: owner} if owner is not None and T2I in ranks else {}
    return (n_images or 1, n_others or 1), ranks, of_query, {}, notes


def _check_ranks(path: Path, values: np.ndarray, candidates: int) -> None:
    wrong = ~((values >= 0) & (values <= candidates) & (values == np.round(values)))
    if wrong.any():
        query = int(np.argmax(wrong))
        raise DataError(
            f"{path}: query {query} has rank {values[query]}, which is not a whole number from 0 to {candidates}"
        )


def _from_scores(
    path: Path, arrays: dict[str, np.ndarray], spec: TaskSpec, limit: int | None, logit_scale: float
) -> _Stored:
    of_images: ScoreRows
    of_captions: ScoreRows
    if "scores" in arrays:
        scores = arrays["scores"]
        if scores.ndim != 2 or 0 in scores.shape:
            raise DataError(f"{path}: 'scores' should be [images, captions or classes], got shape {list(scores.shape)}")
        if not all((np.abs(row) <= LARGEST).all() for row in scores):
            raise DataError(f"{path}: 'scores' has a number that is not finite, or larger than a logit")
        sizes = scores.shape
        of_images, of_captions = lambda rows: scores[rows], lambda rows: scores[:, rows].T
    else:
        check_embeddings(path, arrays)
        left, right = (arrays[name].astype(np.float32, copy=False) for name in ("img", "cap"))
        sizes, scale = (len(left), len(right)), np.float32(logit_scale)
        of_images, of_captions = (
            lambda rows: scale * (left[rows] @ right.T),
            lambda rows: scale * (right[rows] @ left.T),
        )
    images, others = _labels_of_pool(spec, sizes[0], sizes[1], arrays, str(path), limit)
    ranks = pool_ranks(spec.kind, of_images, of_captions, images, others)
    of_query = {CLASS: np.arange(len(images))} if spec.kind == "classification" else {I2T: images, T2I: others}
    return (len(images), len(others)), ranks, of_query, {}, []


def _labels_of_pool(
    spec: TaskSpec, n_images: int, n_others: int, labels: Mapping[str, np.ndarray], where: str, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A label for each image (its number, or its class), and for each caption or class (its image's, or its own).

    ``labels`` holds ``image_of_caption`` int [captions] or ``label`` int [images]; without the first, every image has
    equally many captions, in the order of the images. DataError if the file (``where``) does not fit the task.
    """
    _check_sizes(spec, limit, (n_images, n_others), where)
    if spec.kind == "classification":
        if LABEL not in labels:
            raise DataError(f"{where} has no array '{LABEL}': the class of each image, int [images]")
        return _labels(labels[LABEL], n_images, n_others, LABEL, where), np.arange(n_others)
    if OWNER not in labels and n_others % n_images:
        raise DataError(
            f"{where} has {n_others} captions for {n_images} images, not as many for each; it needs '{OWNER}': "
            "the number of each caption's image, int [captions]"
        )
    owner = labels[OWNER] if OWNER in labels else np.repeat(np.arange(n_images), n_others // n_images)
    return np.arange(n_images), _labels(owner, n_others, n_images, OWNER, where)


def _labels(array: np.ndarray, length: int, most: int, name: str, where: str) -> np.ndarray:
    values = np.asarray(array)
    if values.shape != (length,) or not np.array_equal(values, np.round(values)):
        raise DataError(f"{where}: '{name}' should be {length} whole numbers, got {values.dtype} {list(values.shape)}")
    if length and (values.min() < 0 or values.max() >= most):
        raise DataError(f"{where}: '{name}' has values out of range [0, {most - 1}]")
    if name == OWNER and len(without := np.setdiff1d(np.arange(most), values)):
        raise DataError(f"{where}: image {without[0]} has no caption in '{OWNER}'")
    return values.astype(np.int64)


def stored_pool(
    adapter: StoredFeatures, spec: TaskSpec, limit: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Labels of the first stored images, and of their captions or all classes; which these are (bool); the digest."""
    from ttmbench.scoring.inputs import n_rows, tensors_of  # with torch, which files of embeddings alone do not need

    features, others = adapter.stored_images(), adapter.stored_captions()
    labels = _labels_of_pool(spec, n_rows(features), n_rows(others), adapter.labels, "the file of features")
    digest = hashlib.sha256()
    for tensor in (*tensors_of(features), *tensors_of(others)):
        digest.update(tensor.contiguous().numpy().data)
    for array in labels:
        digest.update(array.astype(np.int64).tobytes())
    digest.update(str(limit).encode())
    images = labels[0][:limit]
    is_used = np.isin(labels[1], images) if spec.kind == "retrieval" else np.ones(len(labels[1]), bool)
    return images, labels[1][is_used], is_used, digest.hexdigest()


def pool_ranks(
    kind: str, by_image: ScoreRows, by_other: ScoreRows | None, images: np.ndarray, others: np.ndarray
) -> dict[str, Ranks]:
    """Scope -> ranks of every query among all candidates; ``images`` and ``others`` are labels."""
    if kind == "classification":
        return {CLASS: rank_queries(by_image, images, others, "images")}
    assert by_other is not None, "in retrieval captions are queries, too"
    return {
        I2T: rank_queries(by_image, images, others, "images"),
        T2I: rank_queries(by_other, others, images, "captions"),
    }
