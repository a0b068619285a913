"""Retrieval: every image looks for its captions among all, every caption for its image among all."""

from __future__ import annotations

import time

import numpy as np

from ttmbench.cache.ranks import RankCache
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError, phase
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.plan import RunContext
from ttmbench.evaluator.ranking_task import (
    RankedTask,
    RetrievalPool,
    check_ranks,
    load_ranked,
    outcome_of,
    stored_limit,
)
from ttmbench.evaluator.reranking import first_stage, rank_pairs
from ttmbench.evaluator.stored_pool import stored_pool
from ttmbench.protocols import DualEncoder
from ttmbench.results.clusters import clusters_of
from ttmbench.results.ranks import I2T, T2I, Ranks
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.debiasing import declared_prior, prior_for
from ttmbench.scoring.dual_encoder import (
    Features,
    caption_scores,
    encode_captions,
    encode_images,
    encode_stored,
    image_scores,
)
from ttmbench.scoring.notes import count_truncated, truncated_notes
from ttmbench.scoring.ranking import rank_queries

COUNTS = ("strict", "as_topk", "above", "true")


def run_retrieval(context: RunContext, task: TaskFile) -> TaskOutcome:
    """Ranks a retrieval task; errors as for `ttmbench.evaluator.task.run_task`.

    A dual encoder ranks all candidates. A model that scores pairs does so where there are few, and else ranks the best
    of another model again.
    """
    check_ranks(context, task.spec)
    can, config = context.capabilities, context.config
    if config.rerank and can.dual_encoder is not None:
        raise UsageError(f"model {config.model} ranks all candidates itself; leave --rerank out")
    if can.stored_features is not None:
        return outcome_of(context, task, _from_features(context, task.spec))
    with phase("load"):
        clock = time.perf_counter()
        groups, source = load_ranked(context, task)
        seconds = {"load": time.perf_counter() - clock}
    truncated = count_truncated(can.truncating, groups)
    pool = RetrievalPool(groups)
    with phase("model"):
        first = first_stage(context, task.spec, pool)
    about = {} if first is None else {"rerank": first.about}
    prior = prior_for(can.debiasable, task.spec.noise_images)
    taken_off = None if prior is None else declared_prior(prior)
    cache = RankCache(context.cache, can, task.spec, groups, [about, taken_off])
    with phase("score"):
        clock = time.perf_counter()
        kept = cache.look_up({I2T: (4, pool.n_images), T2I: (4, pool.n_captions)})
        if kept is not None:
            ranks = {scope: _of_array(kept[scope], others) for scope, others in pool.candidates.items()}
        elif can.dual_encoder is not None:
            ranks = _rank_all(can.dual_encoder, pool, context.batch_sizer, cache)
        else:
            chosen = None if first is None else first.choose(context, task.spec, pool)
            first = None  # its weights are not needed beside those of the model
            ranks = rank_pairs(context, prior, pool, cache, chosen)
        seconds["score"] = time.perf_counter() - clock
    done = RankedTask(
        ranks=ranks,
        shape=(pool.n_images, pool.n_captions),
        groups=groups,
        source=source,
        fingerprint=cache.data.hexdigest(),
        of_query={I2T: np.arange(pool.n_images), T2I: pool.owner},
        about=about,
        notes=tuple(truncated_notes(truncated)),
        seconds=seconds,
        from_store=cache.keep({scope: _as_array(one) for scope, one in ranks.items()}, config.model_name),
        clusters=clusters_of(groups, cache.data.of),
    )
    return outcome_of(context, task, done)


def _rank_all(adapter: DualEncoder, pool: RetrievalPool, sizer: BatchSizer, cache: RankCache) -> dict[str, Ranks]:
    images = encode_images(adapter, pool.images, sizer, cache.data, cache.prepared, cache.blocks)
    captions = encode_captions(adapter, pool.captions, sizer, cache.blocks)
    return _ranks_of(adapter, Features(images, captions), pool.owner)


def _ranks_of(adapter: DualEncoder, features: Features, owner: np.ndarray) -> dict[str, Ranks]:
    every = np.arange(len(features.images))
    return {
        I2T: rank_queries(image_scores(adapter, features), every, owner, "images"),
        T2I: rank_queries(caption_scores(adapter, features), owner, every, "captions"),
    }


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
        ranks = _ranks_of(adapter, features, pool.others)
    return RankedTask(
        ranks=ranks,
        shape=pool.shape,
        groups=[],
        source={"kind": "stored_features"},
        fingerprint=fingerprint,
        of_query={I2T: np.arange(len(pool.images)), T2I: pool.others},
        seconds={"score": time.perf_counter() - clock},
    )


def _as_array(ranks: Ranks) -> np.ndarray:
    return np.stack([getattr(ranks, name) for name in COUNTS])


def _of_array(array: np.ndarray, candidates: int) -> Ranks:
    strict, as_topk, above, true = array.astype(np.int64)
    return Ranks(strict, as_topk, above, true, candidates)
