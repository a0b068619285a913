"""Stored ranks, embeddings or scores of tasks that rank: retrieval and classification without model and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.run_key import stored_digest
from ttmbench.evaluator.stored_pool import pool_of, pool_ranks
from ttmbench.evaluator.stored_scores import STORED_NOTE, digest_of
from ttmbench.evaluator.task_result import Data, Ranked
from ttmbench.plugins.registry import Registry
from ttmbench.results.coverage import STORED_SCORES
from ttmbench.results.ranks import CLASS, I2T, T2I
from ttmbench.results.ranks_file import (
    OWNER,
    SIDES,
    StoredRanks,
    check_matrix,
    read_plain,
    read_saved,
)
from ttmbench.results.scores_file import check_embeddings

_HINT = (
    "expected ranks (npy, one for each side; or of --save_scores), embeddings 'img' and 'cap', or a matrix 'scores' "
    "[images, captions or classes]"
)


def stored_ranks(
    paths: Sequence[Path], spec: TaskSpec, registry: Registry, limit: int | None, logit_scale: float
) -> Ranked:
    """Ranks of files as a task; what a file does not tell is undefined: of plain ranks, how ties were broken.

    Args:
        paths: in a format of `ttmbench.results.ranks_file`; plain ranks may be in two files, one a side.
        spec: the task, of kind retrieval or classification.
        registry: the metrics.
        limit: the file is of the task's first images only.
        logit_scale: factor on products of embeddings; no rank depends on it.

    Returns:
        The task, without numbers.

    Raises:
        UsageError: too many files.
        DataError: a file is not what the task says.
    """
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
    found = read_plain(paths, spec.kind, n_images, n_others)
    if found is None:
        raise DataError(f"{', '.join(map(str, paths))}: {_HINT}")
    # Ranks of captions come in the order of the images, as many for each as the task has on the mean.
    if T2I in found.ranks and T2I not in found.of_query and n_images and len(found.ranks[T2I]) % n_images == 0:
        owner = np.repeat(np.arange(n_images), len(found.ranks[T2I]) // n_images)
        found = replace(found, of_query={T2I: owner}, assumed=True)
    return found, (n_images or 1, n_others or 1)


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
            "which captions are of one image is not known, so intervals take each for an independent answer and are "
            f"too narrow; a file with '{OWNER}' beside the ranks says it"
        )
    if stored.assumed:
        each = len(stored.ranks[T2I]) // stored.ranks[T2I].candidates
        notes.append(
            f"captions are taken to stand {each} an image, one image's after the other's: intervals go by images"
        )
    return notes
