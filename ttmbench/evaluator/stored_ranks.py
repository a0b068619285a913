"""Stored ranks, embeddings or scores of tasks that rank: retrieval and classification without model and data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.run_key import stored_digest
from ttmbench.evaluator.stored_scores import STORED_NOTE, digest_of
from ttmbench.evaluator.task_result import Data, Ranked
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import StoredFeatures
from ttmbench.results.coverage import STORED_SCORES
from ttmbench.results.ranks import CLASS, I2T, T2I, Ranks
from ttmbench.results.ranks_file import (
    OWNER,
    SIDES,
    StoredRanks,
    check_matrix,
    read_plain,
    read_saved,
)
from ttmbench.results.scores_file import check_embeddings
from ttmbench.scoring.ranking import ScoreRows, rank_queries

_HINT = (
    "expected ranks (npy, one for each side; or of --save_scores), embeddings 'img' and 'cap', or a matrix 'scores' "
    "[images, captions or classes]"
)
LABEL = "label"


def stored_ranks(
    paths: Sequence[Path], spec: TaskSpec, registry: Registry, limit: int | None, logit_scale: float
) -> Ranked:
    """Ranks from files as a task; UsageError for too many files, DataError for one that does not fit."""
    sides = len(SIDES[spec.kind])
    if len(paths) > sides:
        raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: give {sides} files at most, not {len(paths)}")
    stored, pool = _read(paths, spec, limit, logit_scale)
    names = "+".join(path.name for path in paths)
    source = {"kind": STORED_SCORES, "file": names, "format": stored.format, "sha256": digest_of(paths)}
    return Ranked(
        spec=spec,
        metrics=[registry.metric(name) for name in spec.metrics],
        data=Data([], source, stored_digest(spec.task, spec.version, f"{pool[0]}x{pool[1]}", ())),
        notes=[STORED_NOTE, *_notes(stored)],
        ranks=stored.ranks,
        of_query=stored.of_query,
        pool=pool,
        units=stored.units,
    )


def _read(
    paths: Sequence[Path], spec: TaskSpec, limit: int | None, logit_scale: float
) -> tuple[StoredRanks, tuple[int, int]]:
    """The ranks, and how many images met how many captions or classes."""
    n_images = spec.group.n_groups if limit is None else limit
    n_others = (
        (None if limit is not None else spec.group.n_captions) if spec.classes is None else spec.classes.n_classes
    )
    if len(paths) == 1:
        content = read_arrays(paths[0])
        saved = read_saved(paths[0], content)
        if saved is not None:
            return _checked(paths[0], saved, spec, n_images, n_others)
        if {"img", "cap"} <= set(content.arrays) or "scores" in content.arrays:
            return _from_scores(paths[0], content.arrays, spec, limit, logit_scale)
    plain = read_plain(paths, spec.kind, n_images, n_others)
    if plain is None:
        raise DataError(f"{', '.join(map(str, paths))}: {_HINT}")
    # Ranks of captions come in the order of the images, as many for each as the task has on the mean.
    if T2I in plain.ranks and T2I not in plain.of_query and n_images and len(plain.ranks[T2I]) % n_images == 0:
        owner = np.repeat(np.arange(n_images), len(plain.ranks[T2I]) // n_images)
        plain = replace(plain, of_query={T2I: owner}, assumed=True)
    return plain, (n_images or 1, n_others or 1)


def _checked(
    path: Path, saved: StoredRanks, spec: TaskSpec, n_images: int | None, n_others: int | None
) -> tuple[StoredRanks, tuple[int, int]]:
    scope = I2T if spec.kind == "retrieval" else CLASS
    if scope not in saved.ranks:
        raise DataError(f"{path}: holds ranks of {', '.join(saved.ranks)}; task '{spec.task}' needs those of '{scope}'")
    images, others = len(saved.ranks[scope]), saved.ranks[scope].candidates
    if n_images not in (None, images) or n_others not in (None, others):
        raise DataError(
            f"{path} has {images} images and {others} candidates, but task '{spec.task}' has {n_images} and {n_others}"
        )
    return saved, (images, others)


def _from_scores(
    path: Path, arrays: dict[str, np.ndarray], spec: TaskSpec, limit: int | None, logit_scale: float
) -> tuple[StoredRanks, tuple[int, int]]:
    if "scores" in arrays:
        scores, form = arrays["scores"], "matrix"
        check_matrix(path, scores)
        pool = pool_of(spec, scores.shape[0], scores.shape[1], arrays, str(path), limit)

        def of_images(rows: slice) -> np.ndarray:
            return scores[rows]

        def of_captions(rows: slice) -> np.ndarray:
            return scores[:, rows].T
    else:
        form = "embeddings"
        check_embeddings(path, arrays)
        left, right = (arrays[name].astype(np.float32, copy=False) for name in ("img", "cap"))
        pool = pool_of(spec, len(left), len(right), arrays, str(path), limit)
        scale = np.float32(logit_scale)

        def of_images(rows: slice) -> np.ndarray:
            return scale * (left[rows] @ right.T)

        def of_captions(rows: slice) -> np.ndarray:
            return scale * (right[rows] @ left.T)

    ranks = pool_ranks(spec.kind, of_images, of_captions, pool.images, pool.others)
    of_query = {CLASS: np.arange(len(pool.images))}
    of_query = of_query if spec.kind == "classification" else {I2T: pool.images, T2I: pool.others}
    return StoredRanks(ranks, of_query, form), pool.shape


def _notes(stored: StoredRanks) -> list[str]:
    if stored.format != "ranks":
        return []
    notes = ["ranks say nothing of ties: these were broken by whoever made the file"]
    if T2I in stored.ranks and T2I not in stored.of_query:
        notes.append(
            "which captions share an image is unknown, so intervals treat each as independent and are "
            f"too narrow; add '{OWNER}' to the file of ranks"
        )
    if stored.assumed:
        each = len(stored.ranks[T2I]) // stored.ranks[T2I].candidates
        notes.append(
            f"captions are taken to stand {each} an image, one image's after the other's: intervals go by images"
        )
    return notes


@dataclass(frozen=True)
class StoredPool:
    """Images and captions or classes that are ranked, and which belong together."""

    images: np.ndarray  # label of each image: its number, or its class
    others: np.ndarray  # label of each caption, or each class: the number of its image, or its own

    @property
    def shape(self) -> tuple[int, int]:
        """Number of images, and of captions or classes."""
        return len(self.images), len(self.others)

    def first(self, limit: int | None, kind: str) -> tuple[StoredPool, np.ndarray]:
        """The first images, in retrieval with their captions alone; and which others are used, bool [others]."""
        images = self.images[:limit]
        is_used = np.isin(self.others, images) if kind == "retrieval" else np.ones(len(self.others), bool)
        return StoredPool(images, self.others[is_used]), is_used


def pool_of(
    spec: TaskSpec, n_images: int, n_others: int, labels: Mapping[str, np.ndarray], where: str, limit: int | None = None
) -> StoredPool:
    """Which images and captions or classes of a file belong together; DataError if it does not fit the task.

    ``labels`` holds ``image_of_caption`` int [captions] or ``label`` int [images]; without the first, every image has
    equally many captions, in the order of the images. ``where`` names the file in messages.
    """
    expected = spec.group.n_groups if limit is None else min(limit, spec.group.n_groups or limit)
    if expected not in (None, n_images):
        raise DataError(f"{where} has {n_images} images, but task '{spec.task}' has {expected}")
    if spec.kind == "classification":
        assert spec.classes is not None, "a classification task has classes"
        if n_others != spec.classes.n_classes:
            raise DataError(f"{where} has {n_others} classes, but task '{spec.task}' has {spec.classes.n_classes}")
        if LABEL not in labels:
            raise DataError(f"{where} has no array '{LABEL}': the class of each image, int [images]")
        return StoredPool(_labels(labels[LABEL], n_images, n_others, LABEL, where), np.arange(n_others))
    if limit is None and spec.group.n_captions not in (None, n_others):
        raise DataError(f"{where} has {n_others} captions, but task '{spec.task}' has {spec.group.n_captions}")
    if OWNER in labels:
        owner = _labels(labels[OWNER], n_others, n_images, OWNER, where)
    elif n_others % n_images == 0:
        owner = np.repeat(np.arange(n_images), n_others // n_images)
    else:
        raise DataError(
            f"{where} has {n_others} captions for {n_images} images, not as many for each; it needs '{OWNER}': "
            "the number of each caption's image, int [captions]"
        )
    without = np.flatnonzero(~np.isin(np.arange(n_images), owner))
    if len(without):
        raise DataError(f"{where}: image {without[0]} has no caption")
    return StoredPool(np.arange(n_images), owner)


def stored_pool(adapter: StoredFeatures, spec: TaskSpec, limit: int | None) -> tuple[StoredPool, np.ndarray, str]:
    """Labels, which captions or classes are used (bool), and the data's digest of a model with precomputed features."""
    from ttmbench.scoring.inputs import n_rows  # with torch, which files of embeddings alone do not need

    images, others = adapter.stored_images(), adapter.stored_captions()
    labels: Mapping[str, np.ndarray] = getattr(adapter, "labels", {})
    pool = pool_of(spec, n_rows(images), n_rows(others), labels, "the file of features")
    digest = hashlib.sha256()
    for batch in (images, others):
        assert not isinstance(batch, list), "features are tensors"
        for tensor in batch.values() if isinstance(batch, Mapping) else [batch]:
            digest.update(tensor.contiguous().numpy().data)
    for array in (pool.images, pool.others):
        digest.update(array.astype(np.int64).tobytes())
    digest.update(str(limit).encode())
    return *pool.first(limit, spec.kind), digest.hexdigest()


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


def _labels(array: np.ndarray, length: int, most: int, name: str, where: str) -> np.ndarray:
    values = np.asarray(array)
    if values.shape != (length,) or not np.array_equal(values, np.round(values)):
        raise DataError(f"{where}: '{name}' should be {length} whole numbers, got {values.dtype} {list(values.shape)}")
    if length and (values.min() < 0 or values.max() >= most):
        raise DataError(f"{where}: '{name}' has values out of range [0, {most - 1}]")
    return values.astype(np.int64)
