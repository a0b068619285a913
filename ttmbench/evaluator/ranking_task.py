"""Tasks that rank: retrieval, where images and captions look for each other, and zero-shot classification."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ttmbench._util.console import warn
from ttmbench._util.file_io import json_digest
from ttmbench._util.third_party import phase
from ttmbench.data.classes import Classes, labels_of, load_classes
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, remarks
from ttmbench.evaluator.eval_results import Data, Ranked
from ttmbench.evaluator.score_task import Run, TaskCache, feature_limit
from ttmbench.evaluator.stored_ranks import pool_ranks, stored_pool
from ttmbench.model import DualEncoder, PairScorer, StoredFeatures
from ttmbench.results.ranks import CLASS, I2T, T2I, Ranks
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.debiasing import Prior, debias, prior_for
from ttmbench.scoring.dual_encoder import (
    Features,
    caption_scores,
    encode_captions,
    encode_classes,
    encode_images,
    encode_stored,
    image_scores,
)
from ttmbench.scoring.inputs import Inputs, check_captions
from ttmbench.scoring.pairs import MAX_GLOBAL_PAIRS, score_ranked_pairs
from ttmbench.scoring.ranking import ScoreRows, best_candidates, rank_chosen
from ttmbench.types import Record

_COUNTS = {"retrieval": ("strict", "as_topk", "above", "true"), "classification": ("strict", "as_topk", "above")}
"""What the cache has of ranks."""
_ADVICE = "--rerank model=MODEL gives it the best candidates of a model that ranks them all"


def rank_task(run: Run, task: TaskFile) -> Ranked:
    """Ranks a retrieval or classification task; errors as for `ttmbench.evaluator.one_task.run_task`.

    A model that scores pairs ranks all candidates if there are few, else reranks the best of another model.
    """
    model, config, spec = run.model, run.config, task.spec
    if not isinstance(model, DualEncoder | PairScorer):
        raise UsageError(
            f"model {config.model} answers in words and has no scores, and task '{spec.task}' is of kind {spec.kind}, "
            "which ranks by them"
        )
    if config.rerank and isinstance(model, DualEncoder):
        raise UsageError(f"model {config.model} ranks all candidates itself; omit --rerank")
    if isinstance(model, StoredFeatures):
        result = _from_features(run, model, spec)
    elif spec.kind == "retrieval":
        result = _retrieval(run, model, task)
    elif isinstance(model, DualEncoder):
        result = _classification(run, model, task)
    else:
        raise UsageError(
            f"model {run.config.model} scores pair by pair; task '{spec.task}' needs a model that encodes images "
            "and captions, since a class is a mean of encoded prompts"
        )
    if spec.kind == "retrieval" and spec.group.n_groups not in (None, result.pool[0]):
        note = "with a part of the images there is a smaller pool to search: numbers are higher than on the whole task"
        return replace(result, notes=[*result.notes, note])
    return result


def _retrieval(run: Run, model: DualEncoder | PairScorer, task: TaskFile) -> Ranked:
    spec, clock = task.spec, time.perf_counter()
    inputs = run.load(task)
    loading = time.perf_counter() - clock
    check_captions(model, inputs)
    pool = RetrievalPool(inputs)
    with phase("model"):
        first = first_stage(run, spec, pool)
    about = {} if first is None else {"rerank": first[0]}
    prior = prior_for(model, spec.noise_images) if isinstance(model, PairScorer) else None
    debiasing = None if prior is None else prior.declared
    cache = TaskCache(run.cache, model, spec, inputs, {"debiasing": debiasing, **about}, "ranks")
    images, clock = np.arange(pool.n_images), time.perf_counter()
    with phase("score"):
        shapes = {I2T: (pool.n_images, pool.n_captions), T2I: (pool.n_captions, pool.n_images)}
        ranks = _cached(cache, spec.kind, shapes)
        if ranks is None:
            if isinstance(model, DualEncoder):
                by_image, by_caption = score_pool(model, run.sizer, pool)
                ranks = pool_ranks(spec.kind, by_image, by_caption, images, pool.owner)
            else:
                chosen = None if first is None else first[1]()
                first = None  # its weights are not needed beside those of the model
                ranks = rank_pairs(model, run.sizer, prior, pool, cache, chosen)
    return Ranked(
        spec=spec,
        metrics=[run.registry.metrics[name] for name in spec.metrics],
        data=Data.of(inputs),
        notes=inputs.notes,
        seconds={"load": loading, "score": time.perf_counter() - clock},
        from_store=_keep(run, spec, cache, ranks),
        ranks=ranks,
        of_query={I2T: images, T2I: pool.owner},
        pool=(pool.n_images, pool.n_captions),
        about=about,
    )


def _classification(run: Run, model: DualEncoder, task: TaskFile) -> Ranked:
    """Every image is ranked against a feature vector for each class, made of prompts."""
    spec, sizer, clock = task.spec, run.sizer, time.perf_counter()
    with phase("load"):
        classes = load_classes(spec)
        inputs = run.load(task)
        groups, labels = inputs.groups, labels_of(spec, classes, inputs.groups)
        loading = time.perf_counter() - clock
    digest = json_digest([classes.names, classes.templates])
    record: Record = {"names": classes.origin_of_names, "templates": classes.origin_of_templates}
    record |= {"n_classes": len(classes.names), "n_templates": len(classes.templates)}
    about = {"classes": record | {"sha256": digest, "doubled": doubled_names(classes.names)}}
    cache = TaskCache(run.cache, model, spec, inputs, about, "ranks")
    pool, clock = (len(groups), len(classes.names)), time.perf_counter()
    with phase("score"):
        ranks = _cached(cache, spec.kind, {CLASS: pool})
        if ranks is None:
            inputs.images = [(group.group_id, group.images[0]) for group in groups]
            images = encode_images(model, inputs, sizer)
            weights = encode_classes(model, classes.names, classes.templates, sizer)
            by_image = image_scores(model, Features(images, weights))
            ranks = pool_ranks(spec.kind, by_image, None, labels, np.arange(len(classes.names)))
    return Ranked(
        spec=spec,
        metrics=[run.registry.metrics[name] for name in spec.metrics],
        data=Data.of(inputs),
        notes=_notes_on_classes(classes, labels),
        seconds={"load": loading, "score": time.perf_counter() - clock},
        from_store=_keep(run, spec, cache, ranks),
        ranks=ranks,
        of_query={CLASS: np.arange(len(groups))},
        pool=pool,
        about=about,
    )


def _from_features(run: Run, model: StoredFeatures, spec: TaskSpec) -> Ranked:
    """Features from a file in place of images, captions and classes."""
    clock = time.perf_counter()
    with phase("score"):
        images, others, is_used, fingerprint = stored_pool(model, spec, feature_limit(run, spec, "images"))
        features = encode_stored(model, len(images), is_used, run.sizer)
        by_image, by_other = image_scores(model, features), caption_scores(model, features)
        ranks = pool_ranks(spec.kind, by_image, by_other, images, others)
    count = np.arange(len(images))
    return Ranked(
        spec=spec,
        metrics=[run.registry.metrics[name] for name in spec.metrics],
        data=Data([], {"kind": "stored_features"}, fingerprint),
        seconds={"score": time.perf_counter() - clock},
        ranks=ranks,
        of_query={I2T: count, T2I: others} if spec.kind == "retrieval" else {CLASS: count},
        pool=(len(images), len(others)),
    )


def _keep(run: Run, spec: TaskSpec, cache: TaskCache, ranks: Mapping[str, Ranks]) -> Record | None:
    """Caches ranks that are new; returns what an earlier run had cached."""
    names = _COUNTS[spec.kind]  # whole numbers below 2^24 stay exact
    arrays = {scope: np.stack([getattr(of, name) for name in names]).astype(np.float32) for scope, of in ranks.items()}
    return cache.keep(arrays, run.config.model_name)


def _cached(cache: TaskCache, kind: str, shapes: dict[str, tuple[int, int]]) -> dict[str, Ranks] | None:
    """Scope -> ranks of an earlier run; ``shapes`` are the numbers of queries and candidates."""
    names = _COUNTS[kind]
    arrays = cache.find({scope: (len(names), queries) for scope, (queries, _) in shapes.items()})
    if arrays is None:
        return None
    ranks = {}
    for scope, (queries, candidates) in shapes.items():
        counts = dict(zip(names, arrays[scope].astype(np.int64), strict=True))
        ranks[scope] = Ranks(**{"true": np.ones(queries, np.int64), **counts}, candidates=candidates)
    return ranks


def doubled_names(names: Sequence[str]) -> dict[str, list[int]]:
    """Names that several classes have, and which classes these are.

    >>> doubled_names(["cat", "crane", "dog", "crane"])
    {'crane': [1, 3]}
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    return {name: [index for index, other in enumerate(names) if other == name] for name in twice}


def _notes_on_classes(classes: Classes, labels: np.ndarray) -> list[str]:
    doubled = doubled_names(classes.names)
    images = int(np.isin(labels, [index for indices in doubled.values() for index in indices]).sum())
    words = "; ".join(f"{name}: {', '.join(map(str, indices))}" for name, indices in doubled.items())
    note = f"classes of one name always tie ({words}): {images} images, which accuracy_top1 counts as wrong"
    return [note] if doubled else []


class RetrievalPool:
    """All images and captions of a retrieval task."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, groups = inputs, inputs.groups
        self.images = [(group.group_id, group.images[0]) for group in groups]
        self.captions = [caption for group in groups for caption in group.captions]
        # the number of each caption's image
        self.owner = np.repeat(np.arange(len(groups)), [len(group.captions) for group in groups])
        self.n_images, self.n_captions = len(self.images), len(self.captions)


def score_pool(adapter: DualEncoder, sizer: BatchSizer, pool: RetrievalPool) -> tuple[ScoreRows, ScoreRows]:
    """Encodes a pool; returns what scores some images with all captions, and some captions with all images."""
    pool.inputs.images = pool.images  # one of each group
    images = encode_images(adapter, pool.inputs, sizer)
    features = Features(images, encode_captions(adapter, pool.captions, sizer))
    return image_scores(adapter, features), caption_scores(adapter, features)


def first_stage(
    run: Run, spec: TaskSpec, pool: RetrievalPool
) -> tuple[Record, Callable[[], dict[str, np.ndarray]]] | None:
    """The model whose candidates are reranked: what results report of it, and what chooses them.

    These are the positions of the best k captions of each image and images of each caption, in ascending order. None to
    rank all, UsageError if a model is needed and not given.
    """
    config = run.config
    if isinstance(run.model, DualEncoder):
        return None
    pairs = pool.n_images * pool.n_captions
    if not config.rerank:
        if pairs > MAX_GLOBAL_PAIRS:
            raise UsageError(
                f"model {config.model} scores pair by pair, and task '{spec.task}' has {pairs} pairs, more than "
                f"{MAX_GLOBAL_PAIRS}; {_ADVICE}"
            )
        return None
    asked, name = config.rerank.get("k", spec.rerank_k), str(config.rerank["model"])
    if asked is None:
        raise UsageError(f"task '{spec.task}' does not say how many candidates are ranked again; give --rerank k=N")
    arguments = {key: value for key, value in config.rerank.items() if key not in ("model", "k")}
    loaded = make_adapter(run.registry, name, arguments, config)
    model, k = replace(run, model=loaded, loaded=None).on(spec).model, min(asked, pool.n_images, pool.n_captions)
    if not isinstance(model, DualEncoder) or isinstance(model, StoredFeatures):
        raise UsageError(f"--rerank: model {name} cannot rank all candidates, since it does not encode them")
    for remark in remarks(model):
        warn(remark)

    def choose() -> dict[str, np.ndarray]:
        by_image, by_caption = score_pool(model, run.sizer, RetrievalPool(Inputs(pool.inputs.groups)))
        return {
            I2T: best_candidates(by_image, pool.n_images, pool.n_captions, k, "images"),
            T2I: best_candidates(by_caption, pool.n_captions, pool.n_images, k, "captions"),
        }

    return {"model": name, "k": k, "fingerprint": model_info(model)["fingerprint"]}, choose


def rank_pairs(
    model: PairScorer,
    sizer: BatchSizer,
    prior: Prior | None,
    pool: RetrievalPool,
    cache: TaskCache,
    chosen: Mapping[str, np.ndarray] | None,
) -> dict[str, Ranks]:
    """Ranks by a model that scores pairs: scope -> ranks; ``chosen`` are the candidates of images and captions."""
    pairs = _Pairs(pool, chosen)
    values = score_ranked_pairs(model, pool.inputs, pairs.wanted, sizer, cache.blocks)
    if prior is not None:
        values = debias(prior, values, pool.inputs.captions, pairs.wanted, len(pool.inputs.images))
    all_images, all_captions = np.arange(pool.n_images), np.arange(pool.n_captions)

    def of_images(rows: slice) -> np.ndarray:
        return pairs.look(values, all_images[rows, None], all_captions if chosen is None else chosen[I2T][rows])

    def of_captions(rows: slice) -> np.ndarray:
        return pairs.look(values, all_images if chosen is None else chosen[T2I][rows], all_captions[rows, None])

    if chosen is None:
        return pool_ranks("retrieval", of_images, of_captions, all_images, pool.owner)
    return {
        I2T: rank_chosen(of_images, chosen[I2T], all_images, pool.owner, "images"),
        T2I: rank_chosen(of_captions, chosen[T2I], pool.owner, all_images, "captions"),
    }


class _Pairs:
    """Distinct pairs of images and captions, each scored once, and their positions."""

    def __init__(self, pool: RetrievalPool, chosen: Mapping[str, np.ndarray] | None) -> None:
        names = {image.name: row for row, (_, image) in enumerate(pool.inputs.images)}
        self.texts = {caption: row for row, caption in enumerate(pool.inputs.captions)}
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
        scores: np.ndarray = values[np.searchsorted(self._keys, self._key(images, captions))]
        return scores
