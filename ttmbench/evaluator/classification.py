"""Zero-shot classification: every image is ranked against a feature vector for each class, made of prompts."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ttmbench.cache.ranks import RankCache
from ttmbench.data.classes import Classes, labels_of, load_classes
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError, phase
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.plan import RunContext
from ttmbench.evaluator.ranking_task import (
    RankedTask,
    check_ranks,
    load_ranked,
    outcome_of,
    stored_limit,
)
from ttmbench.evaluator.stored_pool import stored_pool
from ttmbench.protocols import DualEncoder
from ttmbench.results.clusters import clusters_of
from ttmbench.results.ranks import CLASS, Ranks
from ttmbench.scoring.dual_encoder import Features, encode_classes, encode_images, encode_stored, image_scores
from ttmbench.scoring.ranking import rank_queries


def run_classification(context: RunContext, task: TaskFile) -> TaskOutcome:
    """Ranks the classes of every image; errors as for `ttmbench.evaluator.task.run_task`."""
    check_ranks(context, task.spec)
    adapter, config, spec = context.capabilities.dual_encoder, context.config, task.spec
    if context.capabilities.stored_features is not None:
        return outcome_of(context, task, _from_features(context, spec))
    if adapter is None:
        raise UsageError(
            f"model {config.model} scores pair by pair; task '{spec.task}' needs a model that encodes images and "
            "captions, since a class is a mean of encoded prompts"
        )
    with phase("load"):
        clock = time.perf_counter()
        classes = load_classes(spec)
        groups, source = load_ranked(context, task)
        labels = labels_of(spec, classes, groups)
        seconds = {"load": time.perf_counter() - clock}
    about = {"classes": describe_classes(classes)}
    cache = RankCache(context.cache, context.capabilities, spec, groups, about)
    with phase("score"):
        clock = time.perf_counter()
        kept = cache.look_up({CLASS: (3, len(groups))})
        if kept is None:
            images = encode_images(
                adapter,
                [(group.group_id, group.images[0]) for group in groups],
                context.batch_sizer,
                cache.data,
                cache.prepared,
                cache.blocks,
            )
            weights = encode_classes(adapter, classes.names, classes.templates, context.batch_sizer, cache.blocks)
            ranks = _ranks_of(adapter, Features(images, weights), labels, np.arange(len(classes.names)))
        else:
            strict, as_topk, above = kept[CLASS].astype(np.int64)
            ranks = Ranks(strict, as_topk, above, np.ones(len(groups), np.int64), len(classes.names))
        seconds["score"] = time.perf_counter() - clock
    done = RankedTask(
        ranks={CLASS: ranks},
        shape=(len(groups), len(classes.names)),
        groups=groups,
        source=source,
        fingerprint=cache.data.hexdigest(),
        of_query={CLASS: np.arange(len(groups))},
        about=about,
        notes=tuple(_notes(classes, labels)),
        seconds=seconds,
        from_store=cache.keep(
            {CLASS: np.stack([ranks.strict, _known(ranks.as_topk), _known(ranks.above)])}, config.model_name
        ),
        clusters=clusters_of(groups, cache.data.of),
    )
    return outcome_of(context, task, done)


def describe_classes(classes: Classes) -> dict[str, Any]:
    """What results say of classes and prompts: where they come from, how many, and a digest of both lists."""
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


def _ranks_of(adapter: DualEncoder, features: Features, labels: np.ndarray, every: np.ndarray) -> Ranks:
    return rank_queries(image_scores(adapter, features), labels, every, "images")


def _known(counts: np.ndarray | None) -> np.ndarray:
    assert counts is not None, "what was counted here is known"
    return counts


def _notes(classes: Classes, labels: np.ndarray) -> list[str]:
    doubled = doubled_names(classes.names)
    if not doubled:
        return []
    images = int(np.isin(labels, [place for places in doubled.values() for place in places]).sum())
    words = "; ".join(f"{name}: {', '.join(map(str, places))}" for name, places in doubled.items())
    return [f"classes of one name always tie ({words}): {images} images, which accuracy_top1 counts as wrong"]


def _from_features(context: RunContext, spec: TaskSpec) -> RankedTask:
    adapter, stored, clock = (
        context.capabilities.dual_encoder,
        context.capabilities.stored_features,
        time.perf_counter(),
    )
    assert adapter is not None and stored is not None, "this is what such models are"
    with phase("score"):
        pool, stay, fingerprint = stored_pool(stored, spec, stored_limit(context, spec))
        features = encode_stored(adapter, stored, len(pool.images), stay, context.batch_sizer)
        ranks = _ranks_of(adapter, features, pool.images, pool.others)
    return RankedTask(
        ranks={CLASS: ranks},
        shape=pool.shape,
        groups=[],
        source={"kind": "stored_features"},
        fingerprint=fingerprint,
        of_query={CLASS: np.arange(pool.shape[0])},
        seconds={"score": time.perf_counter() - clock},
    )
