"""Features from a file in place of images, captions and classes: which belongs to which, for tasks that rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError
from ttmbench.protocols import StoredFeatures
from ttmbench.results.ranks import CLASS, I2T, T2I, Ranks
from ttmbench.results.ranks_file import OWNER
from ttmbench.scoring.ranking import ScoreRows, rank_queries

LABEL = "label"


@dataclass(frozen=True)
class StoredPool:
    """How many images meet how many captions or classes, and which of them are true.

    Attributes:
        images: label of each image: its number, or its class.
        others: label of each caption, or each class: the number of its image, or its own.
    """

    images: np.ndarray
    others: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Number of images, and of captions or classes."""
        return len(self.images), len(self.others)

    def first(self, limit: int | None, kind: str) -> tuple[StoredPool, np.ndarray]:
        """The first images; in retrieval with their captions alone. Also which of the others stay, bool [others]."""
        images = self.images[:limit]
        stay = np.isin(self.others, images) if kind == "retrieval" else np.ones(len(self.others), bool)
        return StoredPool(images, self.others[stay]), stay


def pool_of(
    spec: TaskSpec, n_images: int, n_others: int, labels: Mapping[str, np.ndarray], where: str, limit: int | None = None
) -> StoredPool:
    """Which rows of a file belong together.

    Args:
        spec: the task, of kind retrieval or classification.
        n_images: rows of images.
        n_others: rows of captions or classes.
        labels: arrays of the file: ``image_of_caption`` int [captions], or ``label`` int [images]. Without the first,
            every image has as many captions, one image's after the other's.
        where: names the file, for messages.
        limit: the rows are of the task's first images only.

    Returns:
        The labels.

    Raises:
        DataError: the file is not what the task says.
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
    lonely = np.flatnonzero(~np.isin(np.arange(n_images), owner))
    if len(lonely):
        raise DataError(f"{where}: image {lonely[0]} has no caption")
    return StoredPool(np.arange(n_images), owner)


def stored_pool(adapter: StoredFeatures, spec: TaskSpec, limit: int | None) -> tuple[StoredPool, np.ndarray, str]:
    """The rows of a model that reads stored features, of a task's first images if a limit says so.

    Args:
        adapter: the model; its attribute ``labels`` has the arrays that `pool_of` takes.
        spec: the task.
        limit: use no more images than this.

    Returns:
        The labels, which captions or classes stay (bool), and the fingerprint of the data.

    Raises:
        DataError: the file is not what the task says.
    """
    from ttmbench.scoring.inputs import n_rows  # with torch, which files of embeddings alone do not need

    images, others = adapter.stored_images(), adapter.stored_captions()
    labels: Mapping[str, np.ndarray] = getattr(adapter, "labels", {})
    pool = pool_of(spec, n_rows(images), n_rows(others), labels, "the file of features")
    digest = hashlib.sha256()
    for batch in (images, others):
        assert not isinstance(batch, list), "features are tensors"
        tensors: Any = batch.values() if isinstance(batch, Mapping) else [batch]
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().data)
    for array in (pool.images, pool.others):
        digest.update(array.astype(np.int64).tobytes())
    digest.update(str(limit).encode())
    return *pool.first(limit, spec.kind), digest.hexdigest()


def pool_ranks(
    kind: str, by_image: ScoreRows, by_other: ScoreRows | None, images: np.ndarray, others: np.ndarray
) -> dict[str, Ranks]:
    """Ranks every query of a pool among all candidates.

    Args:
        kind: ``retrieval`` or ``classification``.
        by_image: scores of some images with every caption or class.
        by_other: scores of some captions with every image; not used in classification.
        images: label of each image.
        others: label of each caption or class.

    Returns:
        Scope -> ranks.
    """
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
        raise DataError(f"{where}: '{name}' has numbers outside 0 to {most - 1}")
    return values.astype(np.int64)
