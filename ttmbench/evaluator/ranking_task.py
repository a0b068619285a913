"""Tasks that rank: retrieval, where images and captions look for each other, and zero-shot classification."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ttmbench._util.option_values import groups_of
from ttmbench.cache.scores import RankCache
from ttmbench.data.classes import Classes, labels_of, load_classes
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError, phase
from ttmbench.evaluator.plan import Run
from ttmbench.evaluator.reranking import RetrievalPool, first_stage, rank_pairs
from ttmbench.evaluator.score_task import load_data
from ttmbench.evaluator.stored_pool import pool_ranks, stored_pool
from ttmbench.evaluator.task_result import Data, TaskResult, ranked_result
from ttmbench.results.clusters import clusters_of
from ttmbench.results.ranks import CLASS, I2T, T2I, Ranks
from ttmbench.scoring.debiasing import declared_prior, prior_for
from ttmbench.scoring.dual_encoder import (
    Features,
    caption_scores,
    encode_captions,
    encode_classes,
    encode_images,
    encode_stored,
    image_scores,
)
from ttmbench.scoring.prepare import count_truncated, truncated_notes

_COUNTS = {"retrieval": ("strict", "as_topk", "above", "true"), "classification": ("strict", "as_topk", "above")}
"""What the cache has of ranks."""


def run_ranking(run: Run, task: TaskFile) -> TaskResult:
    """Ranks a task of kind retrieval or classification; errors as for `ttmbench.evaluator.task.run_task`.

    A dual encoder ranks all candidates. A model that scores pairs does so in retrieval where there are few, and else
    reranks the best of another model.
    """
    can, config, spec = run.capabilities, run.config, task.spec
    if can.scores == "choices":
        raise UsageError(
            f"model {config.model} answers in words and has no scores, and task '{spec.task}' is of kind {spec.kind}, "
            "which ranks by them"
        )
    if config.rerank and can.dual_encoder is not None:
        raise UsageError(f"model {config.model} ranks all candidates itself; leave --rerank out")
    if can.stored_features is not None:
        result = _from_features(run, spec)
    else:
        result = (_retrieval if spec.kind == "retrieval" else _classification)(run, task)
    if spec.kind == "retrieval" and spec.group.n_groups not in (None, result.n_groups):
        result.notes.append(
            "a part of the images is a smaller pool to search: these numbers are higher than those of the whole task"
        )
    return result


def _retrieval(run: Run, task: TaskFile) -> TaskResult:
    can, spec, seconds = run.capabilities, task.spec, {}
    adapter = can.dual_encoder
    with phase("load"):
        clock = time.perf_counter()
        loaded = load_data(run.registry, run.config, task, run.samples)
        groups = loaded.groups
        seconds["load"] = time.perf_counter() - clock
    truncated = count_truncated(can.truncating, groups)
    pool = RetrievalPool(groups)
    with phase("model"):
        first = first_stage(run, spec, pool)
    about = {} if first is None else {"rerank": first.about}
    prior = prior_for(can.debiasable, spec.noise_images)
    taken_off = None if prior is None else declared_prior(prior)
    cache = RankCache(run.cache, can, spec, groups, also=[about, taken_off])
    every = np.arange(pool.n_images)
    with phase("score"):
        clock = time.perf_counter()
        shapes = {I2T: (pool.n_images, pool.n_captions), T2I: (pool.n_captions, pool.n_images)}
        ranks = _cached(cache, spec.kind, shapes)
        if ranks is None and adapter is not None:
            sizer = run.sizer
            images = encode_images(adapter, pool.images, sizer, cache.data, cache.prepared, cache.blocks)
            captions = encode_captions(adapter, pool.captions, sizer, cache.blocks)
            features = Features(images, captions)
            by_image, by_caption = image_scores(adapter, features), caption_scores(adapter, features)
            ranks = pool_ranks(spec.kind, by_image, by_caption, every, pool.owner)
        elif ranks is None:
            chosen = None if first is None else first.choose(run, spec, pool)
            first = None  # its weights are not needed beside those of the model
            ranks = rank_pairs(run, prior, pool, cache, chosen)
        seconds["score"] = time.perf_counter() - clock
    data = Data(groups, loaded.source, cache.data.hexdigest(), clusters_of(groups, cache.data.of))
    of_query, notes = {I2T: every, T2I: pool.owner}, list(truncated_notes(truncated))
    return _result(run, spec, data, cache, ranks, of_query, (pool.n_images, pool.n_captions), notes, seconds, about)


def _classification(run: Run, task: TaskFile) -> TaskResult:
    """Every image is ranked against a feature vector for each class, made of prompts."""
    adapter, spec, seconds = run.capabilities.dual_encoder, task.spec, {}
    if adapter is None:
        raise UsageError(
            f"model {run.config.model} scores pair by pair; task '{spec.task}' needs a model that encodes images "
            "and captions, since a class is a mean of encoded prompts"
        )
    with phase("load"):
        clock = time.perf_counter()
        classes = load_classes(spec)
        loaded = load_data(run.registry, run.config, task, run.samples)
        groups = loaded.groups
        labels = labels_of(spec, classes, groups)
        seconds["load"] = time.perf_counter() - clock
    about = {"classes": describe_classes(classes)}
    cache = RankCache(run.cache, run.capabilities, spec, groups, also=about)
    shape = len(groups), len(classes.names)
    with phase("score"):
        clock = time.perf_counter()
        ranks = _cached(cache, spec.kind, {CLASS: shape})
        if ranks is None:
            sizer, named = run.sizer, [(group.group_id, group.images[0]) for group in groups]
            images = encode_images(adapter, named, sizer, cache.data, cache.prepared, cache.blocks)
            weights = encode_classes(adapter, classes.names, classes.templates, sizer, cache.blocks)
            by_image = image_scores(adapter, Features(images, weights))
            ranks = pool_ranks(spec.kind, by_image, None, labels, np.arange(len(classes.names)))
        seconds["score"] = time.perf_counter() - clock
    data = Data(groups, loaded.source, cache.data.hexdigest(), clusters_of(groups, cache.data.of))
    of_query, notes = {CLASS: np.arange(len(groups))}, _notes_on_classes(classes, labels)
    return _result(run, spec, data, cache, ranks, of_query, shape, notes, seconds, about)


def _from_features(run: Run, spec: TaskSpec) -> TaskResult:
    """Features from a file in place of images, captions and classes."""
    can, config, clock = run.capabilities, run.config, time.perf_counter()
    adapter, stored = can.dual_encoder, can.stored_features
    assert adapter is not None and stored is not None, "this is what such models are"
    with phase("score"):
        if config.samples is not None:
            raise UsageError("--samples names images by id, and stored features have none; use --limit")
        limit = groups_of(config.limit, spec.group.n_groups)
        if limit is None and config.limit is not None:
            raise UsageError(
                f"--limit {config.limit}: task '{spec.task}' states no number of images to take a share of"
            )
        pool, stay, fingerprint = stored_pool(stored, spec, limit)
        features = encode_stored(adapter, stored, len(pool.images), stay, run.sizer)
        by_image, by_other = image_scores(adapter, features), caption_scores(adapter, features)
        ranks = pool_ranks(spec.kind, by_image, by_other, pool.images, pool.others)
    every = np.arange(len(pool.images))
    of_query = {I2T: every, T2I: pool.others} if spec.kind == "retrieval" else {CLASS: every}
    data, seconds = Data([], {"kind": "stored_features"}, fingerprint), {"score": time.perf_counter() - clock}
    return _result(run, spec, data, None, ranks, of_query, pool.shape, [], seconds, {})


def _result(
    run: Run,
    spec: TaskSpec,
    data: Data,
    cache: RankCache | None,
    ranks: dict[str, Ranks],
    of_query: dict[str, np.ndarray],
    shape: tuple[int, int],
    notes: list[str],
    seconds: dict[str, float],
    about: dict[str, Any],
) -> TaskResult:
    """The numbers of a task that was ranked; what the cache did not have goes there."""
    config, from_store = run.config, None
    if cache is not None:
        arrays = {scope: np.stack([getattr(one, name) for name in _COUNTS[spec.kind]]) for scope, one in ranks.items()}
        from_store = cache.keep(arrays, config.model_name)
    clock = time.perf_counter()
    metrics = [run.registry.metric(name) for name in spec.metrics]
    resampling = config.bootstrap_iters, config.seed, config.interval
    result = ranked_result(
        spec, metrics, data, ranks, of_query, shape, resampling, notes, seconds, about=about, from_store=from_store
    )
    seconds["count"] = time.perf_counter() - clock
    return result


def _cached(cache: RankCache, kind: str, shapes: dict[str, tuple[int, int]]) -> dict[str, Ranks] | None:
    """Scope -> ranks of an earlier run; ``shapes`` are the numbers of queries and candidates."""
    names = _COUNTS[kind]
    arrays = cache.look_up({scope: (len(names), queries) for scope, (queries, _) in shapes.items()})
    if arrays is None:
        return None
    ranks = {}
    for scope, (queries, candidates) in shapes.items():
        counts = dict(zip(names, arrays[scope].astype(np.int64), strict=True))
        ranks[scope] = Ranks(**{"true": np.ones(queries, np.int64), **counts}, candidates=candidates)
    return ranks


def describe_classes(classes: Classes) -> dict[str, Any]:
    """What results report of classes and prompts: where they come from, how many, and a digest of both lists."""
    content = json.dumps([classes.names, classes.templates])
    return {
        "names": classes.origin_of_names,
        "templates": classes.origin_of_templates,
        "n_classes": len(classes.names),
        "n_templates": len(classes.templates),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "doubled": doubled_names(classes.names),
    }


def doubled_names(names: Sequence[str]) -> dict[str, list[int]]:
    """Names that several classes have, and which classes these are.

    >>> doubled_names(["cat", "crane", "dog", "crane"])
    {'crane': [1, 3]}
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    return {name: [place for place, one in enumerate(names) if one == name] for name in twice}


def _notes_on_classes(classes: Classes, labels: np.ndarray) -> list[str]:
    doubled = doubled_names(classes.names)
    if not doubled:
        return []
    images = int(np.isin(labels, [place for places in doubled.values() for place in places]).sum())
    words = "; ".join(f"{name}: {', '.join(map(str, places))}" for name, places in doubled.items())
    return [f"classes of one name always tie ({words}): {images} images, which accuracy_top1 counts as wrong"]
