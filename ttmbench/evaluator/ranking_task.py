"""Tasks that rank: what retrieval and classification share, from data to the outcome of a task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ttmbench._util.option_values import groups_of
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.plan import RunContext
from ttmbench.evaluator.score_task import load_data
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import RAW
from ttmbench.results.ranks import I2T, T2I, Ranks, rank_values, ranking_record, summarise_ranks
from ttmbench.types import Group, MetricSpec


class RetrievalPool:
    """All images and captions of a retrieval task, and which caption is whose.

    Args:
        groups: images with their captions.

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
        self.candidates = {I2T: self.n_captions, T2I: self.n_images}


@dataclass(frozen=True)
class RankedTask:
    """What ranking a task gave.

    Attributes:
        ranks: scope -> ranks of its queries.
        shape: number of images, and of captions or classes.
        groups: images with their captions, or with their label; none where only features are at hand.
        source: where the data came from.
        fingerprint: of the data.
        of_query: scope -> the image that each query is about.
        about: what results say beside the numbers: classes, re-ranking.
        notes: what a reader should know.
        seconds: step -> wall time.
        from_store: what an earlier run kept.
        clusters: images of the same pixels; None where no image is at hand.
    """

    ranks: Mapping[str, Ranks]
    shape: tuple[int, int]
    groups: list[Group]
    source: dict[str, Any]
    fingerprint: str
    of_query: Mapping[str, np.ndarray]
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    from_store: dict[str, Any] | None = None
    clusters: Clusters | None = None


def check_ranks(context: RunContext, spec: TaskSpec) -> None:
    """UsageError for a model that answers in words, and for re-ranking where there is nothing to rank again."""
    if context.capabilities.scores == "choices":
        raise UsageError(
            f"model {context.config.model} answers in words and has no scores, and task '{spec.task}' is of kind "
            f"{spec.kind}, which ranks by them"
        )


def load_ranked(context: RunContext, task: TaskFile) -> tuple[list[Group], dict[str, Any]]:
    """The images of a task that a run uses, with what belongs to them; errors as for `load_data`."""
    return load_data(context.registry, context.config, task, context.samples)


def stored_limit(context: RunContext, spec: TaskSpec) -> int | None:
    """How many images of stored features a run uses; UsageError for what features cannot tell."""
    config = context.config
    if config.samples is not None:
        raise UsageError("--samples names images by id, and stored features have none; use --limit")
    limit = groups_of(config.limit, spec.group.n_groups)
    if limit is None and config.limit is not None:
        raise UsageError(f"--limit {config.limit}: task '{spec.task}' states no number of images to take a share of")
    return limit


def outcome_of(context: RunContext, task: TaskFile, done: RankedTask) -> TaskOutcome:
    """The numbers of a task that was ranked, with a samples line a query."""
    spec, config, clock = task.spec, context.config, time.perf_counter()
    metrics = [context.registry.metric(name) for name in spec.metrics]
    images = np.arange(done.shape[0]) if done.clusters is None else done.clusters.groups
    clusters = {scope: images[of] for scope, of in done.of_query.items()}
    summary = summarise_ranks(done.ranks, metrics, config.bootstrap_iters, config.seed, config.interval, clusters)
    seconds = {**done.seconds, "count": time.perf_counter() - clock}
    return TaskOutcome(
        spec=spec,
        metrics=metrics,
        groups=done.groups,
        source=done.source,
        fingerprint=done.fingerprint,
        scores={},
        summary=summary,
        records={"ranking": ranking_record(spec.kind, done.ranks, done.about)},
        notes=[*done.notes, *_notes(done, spec)],
        seconds=seconds,
        from_store=done.from_store,
        clusters=done.clusters,
        ranks=dict(done.ranks),
        of_query=done.of_query,
        shape=done.shape,
        own_lines=_lines(done, metrics),
    )


def _notes(done: RankedTask, spec: TaskSpec) -> list[str]:
    if spec.kind != "retrieval" or spec.group.n_groups in (None, done.shape[0]):
        return []
    return ["a part of the images is a smaller pool to search: these numbers are higher than those of the whole task"]


def _lines(done: RankedTask, metrics: Sequence[MetricSpec]) -> list[dict[str, Any]]:
    """A samples line for each query; none where only features are at hand, which have no names."""
    names = [group.group_id for group in done.groups]
    if not names:
        return []
    cluster_of = names if done.clusters is None else done.clusters.names(names)
    lines = []
    for scope, ranks in done.ranks.items():
        values = {metric.name: rank_values(metric, ranks) for metric in metrics if metric.scope == scope}
        known = {name: found.tolist() for name, found in values.items() if found is not None}
        counts = {"strict": ranks.strict, "as_topk": ranks.as_topk, "above": ranks.above}
        places = _places(done.of_query[scope])
        for query, image in enumerate(done.of_query[scope].tolist()):
            group = done.groups[image]
            captions = group.captions if scope != "t2i" else (group.captions[places[query]],)
            lines.append(
                {
                    "group_id": names[image] if scope != "t2i" else f"{names[image]}/{places[query]}",
                    "cluster": cluster_of[image],
                    "filter": RAW,
                    "seed_index": 0,
                    "seed": None,
                    "query": "caption" if scope == "t2i" else "image",
                    "captions": list(captions),
                    "images": [group.images[0].name],
                    "ranks": {name: None if one is None else int(one[query]) for name, one in counts.items()},
                    "metrics": {name: found[query] for name, found in known.items()},
                    "tags": dict(group.tags),
                }
            )
    return lines


def _places(images: np.ndarray) -> list[int]:
    """For each query the number of those about the same image that come before it."""
    seen: dict[int, int] = {}
    found = []
    for image in images.tolist():
        found.append(seen.get(image, 0))
        seen[image] = found[-1] + 1
    return found
