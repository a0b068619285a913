"""What came out of one task: a header that every kind of task has, and what was scored, ranked or answered."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.results.numbers import CHOICE, RAW, Number, as_entries
from ttmbench.results.ranks import Ranks, ranking_record, summarise_ranks
from ttmbench.results.summary import (
    Clusters,
    MethodScores,
    Resampling,
    clusters_of,
    group_rows,
    number_of,
    summarise,
    tag_means,
)
from ttmbench.scoring.choice_arrays import Choices, choice_chance, choice_values
from ttmbench.types import Group, MetricSpec, Record, Scores

if TYPE_CHECKING:  # both import torch, which `ttmbench score` does without
    from ttmbench.scoring.debiasing import Likelihoods
    from ttmbench.scoring.dual_encoder import PreparedTask
    from ttmbench.scoring.inputs import Inputs


@dataclass(frozen=True)
class Data:
    """The data that the numbers of a task are of."""

    # in the order of the scores; of stored scores, ids and tags alone; none where only features are known
    groups: list[Group]
    source: Record  # where they came from
    fingerprint: str  # data digest; of stored scores, of task, version, shape and group ids
    clusters: Clusters | None = None  # which groups share images; None where that is not known

    @classmethod
    def of(cls, inputs: Inputs) -> Self:
        """The data that were scored."""
        digest, content = inputs.digest(), inputs.contents
        clusters = clusters_of(inputs.groups, lambda image: content[image.name]) if content else None
        return cls(inputs.groups, inputs.source, digest, clusters)

    @classmethod
    def of_file(
        cls,
        spec: TaskSpec,
        source: Record,
        group_ids: Sequence[str] = (),
        tags: Sequence[Mapping[str, str]] | None = None,
        clusters: Clusters | None = None,
        pool: tuple[int, int] | None = None,
    ) -> Self:
        """Data of which only a file of scores, ranks (of a ``pool`` of images and captions) or answers is known.

        Files of one task, version, shape and group ids, in any order, are comparable.
        """
        shape = str(spec.shape) if pool is None else f"{pool[0]}x{pool[1]}"
        named = json.dumps(["stored", spec.task, spec.version, shape, sorted(group_ids)])
        groups = [Group(name, (), (), of) for name, of in zip(group_ids, tags or [{}] * len(group_ids), strict=True)]
        return cls(groups, source, hashlib.sha256(named.encode()).hexdigest(), clusters)

    @property
    def shares_images(self) -> bool:
        """Whether it is known that an image is in several groups, or several times in one."""
        return self.clusters is not None and len(np.unique(self.clusters.images)) < self.clusters.images.size

    @property
    def cluster_names(self) -> list[str] | None:
        """For each group the id of the first group of its cluster; None where that is not known."""
        return None if self.clusters is None else self.clusters.names([group.group_id for group in self.groups])


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of one task: `Scored`, `Ranked`, `Answered` or `Judged`; `summarised` computes its numbers."""

    spec: TaskSpec  # the task
    metrics: Sequence[MetricSpec]  # to compute, in the order of the output
    data: Data  # the groups or images
    notes: Sequence[str] = ()  # what a reader should know
    seconds: Mapping[str, float] = field(default_factory=dict)  # step -> wall time
    # which raw scores an earlier run had cached: key and date of an entry, or blocks; None for none
    from_store: Record | None = None
    tokens: int = 0  # that a chat model read to score or answer; 0 where it does not count them
    # pairs whose score is a bound or missing, and how many were scored; None for none
    undecided: Record | None = None
    numbers: Sequence[Number] = ()  # none until `summarised`
    # name -> a mean of means over the values of tags; likewise
    tag_means: Mapping[str, Record] = field(default_factory=dict)

    @property
    def n_groups(self) -> int:
        """Number of groups; of a task that ranks, of images."""
        return len(self.data.groups)

    @property
    def shape(self) -> list[int]:
        """Images and captions of a group; of a task that ranks, all images and captions or classes."""
        return list(self.spec.group.shape or ())

    def summarised(self, resampling: Resampling) -> Self:
        """The result with every metric, its interval and the means over tags."""
        raise NotImplementedError

    def records(self) -> Record:
        """The document's records of this task: ``methods``, ``ranking`` or ``choice``."""
        raise NotImplementedError

    def rates(self) -> dict[str, float]:
        """The document's ``efficiency``, as far as it is about speed; nothing where scores came from the cache."""
        seconds, tokens = self.seconds.get("score", 0.0), self.tokens
        if not seconds or self.from_store is not None:
            return {}
        images = len({image.name for group in self.data.groups for image in group.images})
        done = {"images": images, "pairs": self.n_pairs, "tokens": tokens}
        return {f"{what}_per_second": count / seconds for what, count in done.items() if count}

    @property
    def n_pairs(self) -> int:
        """How many scores of an image with a caption or class were computed; 0 where that is not known."""
        return 0

    def counts(self) -> dict[str, int]:
        """The document's ``n-samples``: how many groups the task has, how many were scored, how many clusters."""
        coverage = self.data.source.get("coverage")  # the data say how many there are where images are missing
        original = self.spec.group.n_groups if coverage is None else int(coverage["rows"])
        clusters = {} if self.data.clusters is None else {"clusters": self.data.clusters.count}
        return {"original": original or self.n_groups, "effective": self.n_groups, **clusters}


@dataclass(frozen=True, kw_only=True)
class Scored(TaskResult):
    """A task whose groups have scores."""

    columns: Sequence[MethodScores]  # the model as it is first, then each method in the order of the table
    # model and prepared inputs, while methods may need them; None for a model that scores pair by pair, unless the run
    # adapts it
    stage: PreparedTask | None = None
    parts: Likelihoods | None = None  # of scores that were debiased, likewise
    # of the captions, how many the model cuts; None for a model that does not report it
    truncated: dict[str, int] | None = None
    # tag -> value -> numbers of its groups
    breakdowns: Mapping[str, Mapping[str, Mapping[str, float | None]]] = field(default_factory=dict)
    # other task -> what the model adapted to this one is on it
    elsewhere: Mapping[str, TransferResult] = field(default_factory=dict)
    failure: Exception | None = None  # what ended the test-time stage early; what was reached before it is here

    @property
    def raw(self) -> Scores:
        """Scores of the model as it is."""
        return self.columns[0].scores[0]

    @property
    def scores(self) -> dict[str, list[Scores]]:
        """Name of a column -> score arrays, one per seed."""
        return {column.name: column.scores for column in self.columns}

    @property
    def n_pairs(self) -> int:
        """Scores of the raw model: of every image with every caption where the task needs these."""
        return (self.raw.groups if self.raw.all_pairs is None else self.raw.all_pairs).size

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: every metric of every column."""
        groups, clusters = self.data.groups, self.data.clusters
        numbers = summarise(self.columns, self.metrics, *resampling, clusters, self.spec.task)
        rows = group_rows(self.scores, self.metrics) if self.spec.means else {}
        return replace(self, numbers=numbers, tag_means=tag_means(groups, rows, self.spec.means, clusters, resampling))

    def records(self) -> Record:
        """The document's records of the methods."""
        records = {column.name: dict(column.record) for column in self.columns if column.record}
        return {"methods": records} if records else {}


@dataclass(frozen=True, kw_only=True)
class Ranked(TaskResult):
    """A task whose candidates were ranked: retrieval or classification."""

    ranks: Mapping[str, Ranks]  # scope -> ranks of its queries
    of_query: Mapping[str, np.ndarray]  # scope -> the image that each query is about, where that is known
    pool: tuple[int, int]  # number of images, and of captions or classes
    # what results report beside the numbers: classes, reranking
    about: Mapping[str, object] = field(default_factory=dict)
    # of ranks from a file: scope -> a number for each query, equal for those that are about one image; intervals go by
    # them, and without them by the images' clusters
    units: Mapping[str, np.ndarray] | None = None

    @property
    def n_groups(self) -> int:
        """Number of images."""
        return self.pool[0]

    @property
    def n_pairs(self) -> int:
        """Every image with every caption or class, unless only some were ranked again."""
        return 0 if "rerank" in self.about else self.pool[0] * self.pool[1]

    @property
    def shape(self) -> list[int]:
        """Number of images, and of captions or classes."""
        return list(self.pool)

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: every metric of the ranks."""
        clock, clusters = time.perf_counter(), self.data.clusters
        images = np.arange(self.n_groups) if clusters is None else clusters.groups
        among = {scope: images[of] for scope, of in self.of_query.items()} if self.units is None else self.units
        numbers = summarise_ranks(self.ranks, self.metrics, *resampling, among, self.spec.task)
        return replace(self, numbers=numbers, seconds={**self.seconds, "count": time.perf_counter() - clock})

    def records(self) -> Record:
        """The document's ``ranking``."""
        return {"ranking": ranking_record(self.spec.kind, self.ranks, self.about)}


@dataclass(frozen=True, kw_only=True)
class Answered(TaskResult):
    """A task whose forced choices were answered in words; its numbers have the method ``choice``."""

    choices: Choices  # which questions were answered correctly
    record: Record  # of the results document; its ``orders`` says how often each question was asked
    answers: Sequence[list[Record]] | None = None  # those of each group, for the samples; None of answers from a file

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: the scores that follow from the questions that were asked."""
        data, orders = self.data, self.record["orders"]
        values, shape = choice_values(self.choices), self.spec.shape
        chance = choice_chance(shape.images, shape.captions, orders)
        about = {name: {"track": "forced_choice", "chance": chance[name]} for name in values}
        return replace(self, **_of_values(self.spec, data, values, CHOICE, about, resampling))

    def records(self) -> Record:
        """The document's ``choice``."""
        return {CHOICE: self.record}


@dataclass(frozen=True, kw_only=True)
class Judged(TaskResult):
    """A task of which only the value of each metric for each group is known, from a file."""

    values: Mapping[str, np.ndarray]  # metric -> fraction [groups]

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: means, with the chance levels of scores."""
        data, shape = self.data, self.spec.shape
        values = {metric.name: self.values[metric.name] for metric in self.metrics}
        about = {
            one.name: {
                "track": one.track,
                "chance": None if one.chance is None else one.chance(shape.images, shape.captions),
            }
            for one in self.metrics
        }
        return replace(self, **_of_values(self.spec, data, values, RAW, about, resampling))

    def records(self) -> Record:
        """None: nothing was done with the model."""
        return {}


def _of_values(
    spec: TaskSpec,
    data: Data,
    values: Mapping[str, np.ndarray],
    method: str,
    about: Mapping[str, Mapping[str, Any]],
    resampling: Resampling,
) -> dict[str, Any]:
    """``numbers`` and ``tag_means`` of metrics of which only the values of groups are known, so that ties are not."""
    each = {metric: np.asarray(row, np.float64) for metric, row in values.items()}
    among = None if data.clusters is None else data.clusters.groups
    numbers = [number_of(spec.task, name, method, row, resampling, among, **about[name]) for name, row in each.items()]
    rows = {(name, method): row[None] for name, row in each.items()}
    return {"numbers": numbers, "tag_means": tag_means(data.groups, rows, spec.means, data.clusters, resampling)}


@dataclass(frozen=True)
class TransferResult:
    """Another task, measured with the model as it was and as each seed of TTM and of other methods trained it."""

    result: TaskResult  # of the other task; its columns and numbers are ``none`` and those of the methods
    seeds: Mapping[str, Sequence[int]]  # of each method
    differences: Mapping[str, Mapping[str, object]]  # likewise, as `ttmbench.results.summary.differences` has them
    seconds: float  # all its measurements took

    def record(self) -> Record:
        """The document's record. There is no track: it ranks nowhere."""
        result, entries = self.result, as_entries(self.result.numbers)
        return {
            **{key: entries[key] for key in ("results", "ci", "chance", "ties")},
            "methods": {
                method: {"seeds": list(self.seeds[method]), "differences": dict(gains)}
                for method, gains in self.differences.items()
            },
            "version": result.spec.version,
            "matching": result.spec.matching,
            "n-samples": result.counts(),
            "fingerprint": result.data.fingerprint,
            "shape": result.shape,
            "seconds": self.seconds,
        }
