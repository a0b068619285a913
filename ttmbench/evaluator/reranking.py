"""Retrieval by models that see an image and a caption together: all pairs of a small pool, or the best of another.

Such a model takes as long for a pair as a dual encoder for an image. So a dual encoder chooses the best k candidates of
each query, and only these are ranked by the model's own score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttmbench._util.console import warn
from ttmbench.cache.scores import RankCache
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, remarks
from ttmbench.evaluator.plan import Run
from ttmbench.evaluator.settings import model_settings
from ttmbench.evaluator.stored_ranks import pool_ranks
from ttmbench.protocols import Debiasable, DualEncoder
from ttmbench.results.ranks import I2T, T2I, Ranks
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import debias
from ttmbench.scoring.dual_encoder import Features, caption_scores, encode_captions, encode_images, image_scores
from ttmbench.scoring.fingerprint import distinct_images
from ttmbench.scoring.pairs import MAX_GLOBAL_PAIRS, score_ranked_pairs
from ttmbench.scoring.ranking import ScoreRows, best_candidates, rank_chosen
from ttmbench.types import Group

_ADVICE = "--rerank model=MODEL gives it the best candidates of a model that ranks them all"


class RetrievalPool:
    """All images and captions of a retrieval task.

    Attributes:
        images: each with its group's id.
        captions: those of one image after those of another.
        owner: the number of each caption's image.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.images = [(group.group_id, group.images[0]) for group in groups]
        self.captions = [caption for group in groups for caption in group.captions]
        self.owner = np.repeat(np.arange(len(groups)), [len(group.captions) for group in groups])
        self.n_images, self.n_captions = len(self.images), len(self.captions)


def score_pool(
    adapter: DualEncoder, sizer: BatchSizer, pool: RetrievalPool, cache: RankCache
) -> tuple[ScoreRows, ScoreRows]:
    """Encodes a pool; returns what scores some images with all captions, and some captions with all images."""
    images = encode_images(adapter, pool.images, sizer, cache.data, cache.prepared, cache.blocks)
    features = Features(images, encode_captions(adapter, pool.captions, sizer, cache.blocks))
    return image_scores(adapter, features), caption_scores(adapter, features)


@dataclass(frozen=True)
class FirstStage:
    """The model that chooses candidates.

    Attributes:
        capabilities: of the model.
        adapter: the model.
        name: what the user calls it.
        k: how many candidates of each query it chooses.
    """

    capabilities: Capabilities
    adapter: DualEncoder
    name: str
    k: int

    @property
    def about(self) -> dict[str, Any]:
        """What results report of it."""
        return {"model": self.name, "k": self.k, "fingerprint": model_info(self.capabilities)["fingerprint"]}

    def choose(self, run: Run, spec: TaskSpec, pool: RetrievalPool) -> dict[str, np.ndarray]:
        """Positions of the best k captions of each image and images of each caption, in ascending order."""
        cache = RankCache(run.cache, self.capabilities, spec, pool.groups, also={"best": self.k})
        found = cache.look_up({I2T: (pool.n_images, self.k), T2I: (pool.n_captions, self.k)})
        if found is None:
            by_image, by_caption = score_pool(self.adapter, run.sizer, pool, cache)
            found = {
                I2T: best_candidates(by_image, pool.n_images, pool.n_captions, self.k, "images"),
                T2I: best_candidates(by_caption, pool.n_captions, pool.n_images, self.k, "captions"),
            }
        cache.keep(found, f"{self.name}, best {self.k}")
        return {scope: places.astype(np.int64) for scope, places in found.items()}


def first_stage(run: Run, spec: TaskSpec, pool: RetrievalPool) -> FirstStage | None:
    """The model that chooses candidates for one that scores pairs; None where every candidate is ranked.

    Raises:
        UsageError: there are too many pairs and no first stage is named, or it cannot rank.
    """
    config = run.config
    if run.capabilities.dual_encoder is not None:
        return None
    pairs = pool.n_images * pool.n_captions
    if not config.rerank:
        if pairs > MAX_GLOBAL_PAIRS:
            raise UsageError(
                f"model {config.model} scores pair by pair, and task '{spec.task}' has {pairs} pairs, more than "
                f"{MAX_GLOBAL_PAIRS}; {_ADVICE}"
            )
        return None
    k, name = config.rerank.get("k", spec.rerank_k), str(config.rerank["model"])
    if k is None:
        raise UsageError(f"task '{spec.task}' does not say how many candidates are ranked again; give --rerank k=N")
    arguments = {key: value for key, value in config.rerank.items() if key not in ("model", "k")}
    can = Capabilities(make_adapter(run.registry, name, arguments, model_settings(config)))
    if can.dual_encoder is None or can.stored_features is not None:
        raise UsageError(f"--rerank: model {name} cannot rank all candidates, since it does not encode them")
    for remark in remarks(can.adapter):
        warn(remark)
    return FirstStage(can, can.dual_encoder, name, min(k, pool.n_images, pool.n_captions))


def rank_pairs(
    run: Run,
    prior: Debiasable | None,
    pool: RetrievalPool,
    cache: RankCache,
    chosen: Mapping[str, np.ndarray] | None,
) -> dict[str, Ranks]:
    """Ranks by a model that scores pairs: scope -> ranks.

    Args:
        run: the run and its model.
        prior: where log P(t) comes from; None if it is not taken off.
        pool: the task's images and captions.
        cache: where finished blocks of scores go.
        chosen: positions of the candidates of images and of captions; None for all.
    """
    pairs = _Pairs(pool, chosen)
    texts, images = list(pairs.texts), list(distinct_images(pool.groups))
    can, sizer = run.capabilities, run.sizer
    values = score_ranked_pairs(can, images, texts, pairs.wanted, sizer, cache.data, cache.prepared, cache.blocks)
    if prior is not None:
        values = debias(prior, values, texts, pairs.wanted, len(images))
    every, places = np.arange(pool.n_images), np.arange(pool.n_captions)

    def of_images(rows: slice) -> np.ndarray:
        return pairs.look(values, every[rows, None], places if chosen is None else chosen[I2T][rows])

    def of_captions(rows: slice) -> np.ndarray:
        return pairs.look(values, every if chosen is None else chosen[T2I][rows], places[rows, None])

    if chosen is None:
        return pool_ranks("retrieval", of_images, of_captions, every, pool.owner)
    return {
        I2T: rank_chosen(of_images, chosen[I2T], every, pool.owner, "images"),
        T2I: rank_chosen(of_captions, chosen[T2I], pool.owner, every, "captions"),
    }


class _Pairs:
    """Distinct pairs of images and captions, each scored once, and their positions."""

    def __init__(self, pool: RetrievalPool, chosen: Mapping[str, np.ndarray] | None) -> None:
        names = {name: row for row, name in enumerate(dict.fromkeys(image.name for _, image in pool.images))}
        self.texts = {caption: row for row, caption in enumerate(dict.fromkeys(pool.captions))}
        self._image = np.array([names[image.name] for _, image in pool.images])
        self._caption = np.array([self.texts[caption] for caption in pool.captions])
        if chosen is None:
            self._keys = np.arange(len(names) * len(self.texts))
        else:
            of_images = self._key(np.arange(pool.n_images)[:, None], chosen[I2T])
            of_captions = self._key(chosen[T2I], np.arange(pool.n_captions)[:, None])
            self._keys = np.unique(np.concatenate([of_images.reshape(-1), of_captions.reshape(-1)]))
        self.wanted = np.stack(np.divmod(self._keys, len(self.texts)), axis=1)

    def _key(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        keys: np.ndarray = self._image[images] * len(self.texts) + self._caption[captions]
        return keys

    def look(self, values: np.ndarray, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Scores of images with captions, given by their positions and broadcast against each other."""
        found: np.ndarray = values[np.searchsorted(self._keys, self._key(images, captions))]
        return found
