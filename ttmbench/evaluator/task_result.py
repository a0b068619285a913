"""What came out of one task: a header that every kind of task has, and a body: scored, ranked or answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import CHOICE, HOLDOUT, ORACLE, SIMPLE_MATCH, TTM, split_key
from ttmbench.results.ranks import Ranks, ranking_record, summarise_ranks
from ttmbench.results.summary import MethodScores, Summary, summarise
from ttmbench.results.tag_means import means_of_rows, tag_means
from ttmbench.scoring.forced_choice.arrays import Choices, choice_values, summarise_choices
from ttmbench.stats import IntervalMethod
from ttmbench.types import Group, MetricSpec, Scores

Resampling = tuple[int, int, IntervalMethod]
"""Resamples of bootstrap intervals, the seed of the resampling, and how intervals are made."""


@dataclass(frozen=True)
class Data:
    """What the numbers of a task are of.

    Attributes:
        groups: in the order of the scores; of stored scores, ids and tags alone; none where only features are known.
        source: where they came from.
        fingerprint: digest of decoded pixels and captions; of stored scores, of task, version, shape and group ids.
        clusters: which groups share images; None where that is not known.
    """

    groups: list[Group]
    source: dict[str, Any]
    fingerprint: str
    clusters: Clusters | None = None

    @property
    def shares_images(self) -> bool:
        """Whether it is known that an image is in several groups, or several times in one."""
        return self.clusters is not None and len(np.unique(self.clusters.images)) < self.clusters.images.size

    @property
    def cluster_names(self) -> list[str] | None:
        """For each group the id of the first group of its cluster; None where that is not known."""
        return None if self.clusters is None else self.clusters.names([group.group_id for group in self.groups])


@dataclass(frozen=True)
class Scored:
    """A task whose groups have scores.

    Attributes:
        columns: the raw model first, then each method in the order of the table.
        truncated: of the captions, how many the model cuts; None for a model that does not report it.
        elsewhere: other task -> what the model adapted to this one is on it.
    """

    columns: list[MethodScores]
    truncated: dict[str, int] | None = None
    elsewhere: dict[str, TransferResult] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, list[Scores]]:
        """MethodScores -> score arrays, one per seed."""
        return {column.name: column.scores for column in self.columns}

    @property
    def subsets(self) -> dict[str, list[int]]:
        """MethodScores -> positions of the groups that its scores are of, where these are not all."""
        return {column.name: column.members for column in self.columns if column.members is not None}

    def records(self) -> dict[str, Any]:
        """The document's records of the methods: controls and held-out groups are part of TTM's."""
        records: dict[str, Any] = {}
        for column in self.columns:
            if column.name in (SIMPLE_MATCH, TTM, ORACLE) and column.record:
                records[column.name] = dict(column.record)
            elif column.name == HOLDOUT and column.record:
                records[TTM]["holdout"] = column.record
            elif column.record:
                records[TTM].setdefault("controls", {})[column.name] = column.record
        return records


@dataclass(frozen=True)
class Ranked:
    """A task whose candidates were ranked: retrieval or classification.

    Attributes:
        ranks: scope -> ranks of its queries.
        of_query: scope -> the image that each query is about, where that is known.
        shape: number of images, and of captions or classes.
        record: of the results document.
        units: of ranks from a file: scope -> a number for each query, equal for those that are about one image.
    """

    ranks: Mapping[str, Ranks]
    of_query: Mapping[str, np.ndarray]
    shape: tuple[int, int]
    record: dict[str, Any]
    units: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Answered:
    """A task whose forced choices were answered in words.

    Attributes:
        choices: which questions were answered correctly.
        record: of the results document.
        answers: those of each group, for the samples; None of answers from a file.
    """

    choices: Choices
    record: dict[str, Any]
    answers: Sequence[list[dict[str, Any]]] | None = None


@dataclass(frozen=True)
class TaskResult:
    """What came out of one task.

    Attributes:
        spec: the task.
        metrics: what was computed.
        data: what it was computed on.
        body: scores, ranks or answers.
        summary: the numbers.
        notes: what a reader should know.
        seconds: stage -> wall time.
        tag_means: name -> a mean of means over the values of tags.
        breakdowns: tag -> value -> numbers of its groups.
        from_store: which raw scores an earlier run had cached; None for none.
        undecided: pairs whose score is a bound or missing, and how many were scored; None for none.
        failure: what ended the test-time stage early; what was reached before it is here.
    """

    spec: TaskSpec
    metrics: list[MetricSpec]
    data: Data
    body: Scored | Ranked | Answered
    summary: Summary
    notes: list[str]
    seconds: dict[str, float]
    tag_means: dict[str, dict[str, Any]] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    from_store: dict[str, Any] | None = None
    undecided: dict[str, int] | None = None
    failure: Exception | None = None

    @property
    def scored(self) -> Scored:
        """The body of a task with scores; one without columns for another."""
        return self.body if isinstance(self.body, Scored) else Scored([])

    @property
    def n_groups(self) -> int:
        """Number of groups that were scored; of a task that ranks, of images."""
        match self.body:
            case Scored(columns):
                return len(columns[0].scores[0].groups)
            case Ranked(shape=shape):
                return shape[0]
            case Answered(choices):
                return len(choices)

    @property
    def shape(self) -> list[int]:
        """Images and captions of a group; of a task that ranks, all images and captions or classes."""
        return list(self.body.shape if isinstance(self.body, Ranked) else self.spec.group.shape or ())

    def counts(self) -> dict[str, int]:
        """The document's ``n-samples``: how many groups the task has, how many were scored, how many clusters."""
        coverage = self.data.source.get("coverage")  # the data say how many there are where images are missing
        original = self.spec.group.n_groups if coverage is None else int(coverage["rows"])
        clusters = {} if self.data.clusters is None else {"clusters": self.data.clusters.count}
        return {"original": original or self.n_groups, "effective": self.n_groups, **clusters}

    def records(self) -> dict[str, Any]:
        """The document's records of this task: ``ttm``, ``simple_match``, ``oracle``, ``ranking`` or ``choice``."""
        match self.body:
            case Scored():
                return self.body.records()
            case Ranked(record=record):
                return {"ranking": record}
            case Answered(record=record):
                return {CHOICE: record}


@dataclass(frozen=True)
class TransferResult:
    """Another task, measured with the model as it was and as each seed of TTM adapted it.

    Attributes:
        result: of the other task; its columns and numbers are ``none`` and ``ttm``.
        seeds: of TTM.
        differences: as `ttmbench.results.summary.differences` has them.
        seconds: all its measurements took.
    """

    result: TaskResult
    seeds: Sequence[int]
    differences: Mapping[str, Any]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The document's record. There is no track: it ranks nowhere."""
        result, summary = self.result, self.result.summary
        return {
            "seeds": list(self.seeds),
            "results": summary.results,
            "ci": summary.ci,
            "chance": summary.chance,
            "ties": summary.ties,
            "differences": dict(self.differences),
            "version": result.spec.version,
            "matching": result.spec.matching,
            "n-samples": result.counts(),
            "fingerprint": result.data.fingerprint,
            "shape": result.shape,
            "seconds": self.seconds,
        }


def scored_result(
    spec: TaskSpec,
    metrics: list[MetricSpec],
    data: Data,
    body: Scored,
    resampling: Resampling,
    notes: list[str],
    seconds: dict[str, float],
    **header: Any,
) -> TaskResult:
    """A task with scores: every metric of every column, and the named means over values of tags.

    Args:
        spec: the task.
        metrics: to compute, in the order of the output.
        data: the groups.
        body: the columns.
        resampling: of intervals.
        notes: what a reader should know.
        seconds: stage -> wall time.
        header: further fields of the result.

    Returns:
        The result.
    """
    scores, subsets = body.scores, body.subsets
    summary = summarise(scores, metrics, *resampling, data.clusters, subsets)
    means = {}
    if spec.means:
        means = tag_means(data.groups, scores, metrics, subsets, spec.means, data.clusters, resampling)
    return TaskResult(spec, metrics, data, body, summary, notes, seconds, means, **header)


def ranked_result(
    spec: TaskSpec,
    metrics: list[MetricSpec],
    data: Data,
    ranks: Mapping[str, Ranks],
    of_query: Mapping[str, np.ndarray],
    shape: tuple[int, int],
    resampling: Resampling,
    notes: list[str],
    seconds: dict[str, float],
    *,
    units: Mapping[str, np.ndarray] | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    from_store: dict[str, Any] | None = None,
) -> TaskResult:
    """A task that ranks: every metric of its ranks.

    Args:
        spec: the task.
        metrics: to compute.
        data: images with their captions or label; no groups where only features are known.
        ranks: scope -> ranks of its queries.
        of_query: scope -> the image that each query is about.
        shape: number of images, and of captions or classes.
        resampling: of intervals.
        notes: what a reader should know.
        seconds: stage -> wall time.
        units: as in `Ranked`; intervals go by them, and without them by the images' clusters.
        about: what results report beside the numbers: classes, reranking.
        from_store: what an earlier run had cached.

    Returns:
        The result.
    """
    images = np.arange(shape[0]) if data.clusters is None else data.clusters.groups
    among = {scope: images[of] for scope, of in of_query.items()} if units is None else units
    summary = summarise_ranks(ranks, metrics, *resampling, among)
    body = Ranked(ranks, of_query, shape, ranking_record(spec.kind, ranks, about), units)
    return TaskResult(spec, metrics, data, body, summary, notes, seconds, from_store=from_store)


def answered_result(
    spec: TaskSpec,
    metric: Callable[[str], MetricSpec],
    data: Data,
    choices: Choices,
    orders: int,
    record: dict[str, Any],
    resampling: Resampling,
    notes: list[str],
    seconds: dict[str, float],
    answers: Sequence[list[dict[str, Any]]] | None = None,
) -> TaskResult:
    """A task of forced choices: the scores that follow from the questions that were asked.

    Args:
        spec: the task.
        metric: gives a registered metric by its name.
        data: the groups.
        choices: which questions were answered correctly.
        orders: how often each question was asked.
        record: of the results document.
        resampling: of intervals.
        notes: what a reader should know.
        seconds: stage -> wall time.
        answers: those of each group, for the samples; None where they are not known.

    Returns:
        The result, its numbers under the filter ``choice``.
    """
    summary = summarise_choices(choices, spec.shape, orders, *resampling, data.clusters)
    asked = [metric(split_key(key)[0]) for key in summary.tracks]
    rows = {(name, CHOICE): np.asarray([row], np.float64) for name, row in choice_values(choices).items()}
    means = means_of_rows(data.groups, rows, spec.means, data.clusters, resampling)
    body = Answered(choices, record, answers)
    return TaskResult(spec, asked, data, body, summary, notes, seconds, means)
