"""From files of ranks, embeddings or scores to the numbers of retrieval or classification: no model, no data."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench.data.catalog import find_task
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.stored_scores import STORED_NOTE, ScoredFile
from ttmbench.plugins.registry import build_registry
from ttmbench.results.coverage import STORED_SCORES
from ttmbench.results.labels import RAW
from ttmbench.results.ranks import CLASS, I2T, T2I, rank_values, ranking_record, summarise_ranks
from ttmbench.results.ranks_file import (
    OWNER,
    SIDES,
    StoredRanks,
    check_embeddings,
    check_matrix,
    read_plain,
    read_saved,
)
from ttmbench.scoring.data_identity import stored_digest
from ttmbench.stats import IntervalMethod
from ttmbench.types import MetricSpec

_HINT = (
    "expected ranks (npy, one for each side; or of --save_scores), embeddings 'img' and 'cap', or a matrix 'scores' "
    "[images, captions or classes]"
)


def score_ranks(
    paths: Sequence[Path],
    task: str | TaskFile,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
) -> ScoredFile:
    """Computes recall or accuracy from files.

    Args:
        paths: in a format of `ttmbench.results.ranks_file`; plain ranks may be in two files, one a side.
        task: name or file of the task, of kind retrieval or classification.
        include_path: folders of further task files.
        logit_scale: factor on products of embeddings; no rank depends on it.
        limit: the file is of the task's first images only.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        command: the command line, for the record.

    Returns:
        A results document, and the ranks. What a file does not tell is undefined: of plain ranks, how ties were broken.

    Raises:
        UsageError: no such task, or too many files.
        DataError: a file is not what the task says.
    """
    started, clock = datetime.now().astimezone(), time.perf_counter()
    registry = build_registry(include_path)
    spec = (find_task(registry, task) if isinstance(task, str) else task).spec
    sides = len(SIDES[spec.kind])
    if len(paths) > sides:
        raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: give {sides} files at most, not {len(paths)}")
    total = spec.group.n_groups
    limit = None if limit is None or (total is not None and limit >= total) else limit
    stored, shape = _read(paths, spec, limit, logit_scale)
    metrics = [registry.metric(name) for name in spec.metrics]
    summary = summarise_ranks(stored.ranks, metrics, bootstrap_iters, seed, interval, stored.units)
    names = [path.name for path in paths]
    outcome = TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=[],
        source={
            "kind": STORED_SCORES,
            "file": "+".join(names),
            "format": stored.format,
            "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest(),
        },
        fingerprint=stored_digest(spec.task, spec.version, f"{shape[0]}x{shape[1]}", ()),
        scores={},
        summary=summary,
        records={"ranking": ranking_record(spec.kind, stored.ranks, {})},
        notes=[STORED_NOTE, *_notes(stored)],
        seconds={"score": time.perf_counter() - clock},
        ranks=stored.ranks,
        of_query=stored.of_query,
        shape=shape,
        own_lines=_lines(stored, metrics),
    )
    config: dict[str, Any] = {"scores": "+".join(names), "task": task if isinstance(task, str) else spec.task}
    config |= {"logit_scale": logit_scale, "limit": limit, "seed": seed}
    config |= {"bootstrap_iters": bootstrap_iters, "interval": interval}
    record = RunRecord("+".join(path.stem for path in paths), config, command, started)
    record.outcomes[spec.task] = outcome
    return ScoredFile(record.document("done", clock, None), record.outcomes)


def _lines(stored: StoredRanks, metrics: Sequence[MetricSpec]) -> list[dict[str, Any]]:
    """A samples line for each query, which is known by its number."""
    lines = []
    for scope, ranks in stored.ranks.items():
        values = {metric.name: rank_values(metric, ranks) for metric in metrics if metric.scope == scope}
        known = {name: found.tolist() for name, found in values.items() if found is not None}
        units = stored.units.get(scope)
        for query in range(len(ranks)):
            lines.append(
                {
                    "group_id": f"{scope}/{query}",
                    **({} if units is None else {"cluster": str(units[query])}),
                    "filter": RAW,
                    "seed_index": 0,
                    "seed": None,
                    "metrics": {name: found[query] for name, found in known.items()},
                }
            )
    return lines


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
    from ttmbench.evaluator.stored_pool import pool_of
    from ttmbench.scoring.ranking import rank_queries

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

    if spec.kind == "classification":
        ranks = {CLASS: rank_queries(of_images, pool.images, pool.others, "images")}
        return StoredRanks(ranks, {CLASS: np.arange(len(pool.images))}, form), pool.shape
    ranks = {
        I2T: rank_queries(of_images, pool.images, pool.others, "images"),
        T2I: rank_queries(of_captions, pool.others, pool.images, "captions"),
    }
    return StoredRanks(ranks, {I2T: pool.images, T2I: pool.others}, form), pool.shape


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
