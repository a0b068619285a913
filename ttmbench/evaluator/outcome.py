"""What came out of one task of a run, and of other tasks measured with the model that was adapted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ttmbench.data.task_file import TaskSpec
from ttmbench.results.clusters import Clusters
from ttmbench.results.labels import RAW
from ttmbench.results.ranks import Ranks
from ttmbench.results.summary import Summary
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.types import Group, MetricSpec, Scores


@dataclass(frozen=True)
class TaskOutcome:
    """What came out of one task.

    Attributes:
        spec: the task.
        metrics: what was computed.
        groups: in the order of the score arrays; of stored scores, ids and tags alone.
        source: where the data came from.
        fingerprint: digest of decoded pixels and captions; of stored scores, of task, version, shape and group ids.
        scores: filter -> score arrays, one per seed.
        summary: the numbers.
        records: the document's records of ``ttm``, ``simple_match`` and ``oracle``, those that were run.
        notes: what a reader should know.
        seconds: stage -> wall time.
        subsets: filter -> positions of the groups that its score arrays are of, where these are not all.
        breakdowns: tag -> value -> numbers of its groups.
        tag_means: name -> a mean of means over the values of tags.
        choices: which forced choices were answered right; such a task has no score arrays.
        own_lines: samples lines of a task without score arrays: of forced choices, or of queries.
        failure: what ended the test-time stage before its time; what was reached before it is here.
        undecided: pairs whose score is a bound or missing, and how many were scored; None for none.
        from_store: what of the raw scores an earlier run kept; None for nothing.
        clusters: which groups share images; None where that is not known.
        truncated: of the captions, how many the model cuts; None for a model that does not say.
        also: other task -> what the model adapted to this one is on it.
        ranks: scope -> ranks of the queries of a task that ranks; such a task has no score arrays.
        of_query: scope -> the image that each of these queries is about.
        shape: images, and captions or classes, of a task that ranks.
    """

    spec: TaskSpec
    metrics: list[MetricSpec]
    groups: list[Group]
    source: dict[str, Any]
    fingerprint: str
    scores: dict[str, list[Scores]]
    summary: Summary
    records: dict[str, dict[str, Any]]
    notes: list[str]
    seconds: dict[str, float]
    subsets: dict[str, list[int]] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    tag_means: dict[str, dict[str, Any]] = field(default_factory=dict)
    choices: Choices | None = None
    own_lines: list[dict[str, Any]] = field(default_factory=list)
    failure: Exception | None = None
    from_store: dict[str, Any] | None = None
    undecided: dict[str, int] | None = None
    clusters: Clusters | None = None
    truncated: dict[str, int] | None = None
    also: Mapping[str, AlsoOutcome] = field(default_factory=dict)
    ranks: dict[str, Ranks] = field(default_factory=dict)
    of_query: Mapping[str, np.ndarray] = field(default_factory=dict)
    shape: tuple[int, int] | None = None

    @property
    def shares_images(self) -> bool:
        """Whether it is known that an image stands in several places."""
        found = self.clusters
        return found is not None and len(np.unique(found.images)) < found.images.size

    @property
    def cluster_names(self) -> list[str] | None:
        """For each group the id of the first one of its cluster; None where that is not known."""
        return None if self.clusters is None else self.clusters.names([group.group_id for group in self.groups])

    @property
    def n_groups(self) -> int:
        """Number of groups that were scored; of a task that ranks, of images."""
        if self.shape is not None:
            return self.shape[0]
        return len(self.scores[RAW][0].groups) if self.choices is None else len(self.choices)


@dataclass(frozen=True)
class AlsoOutcome:
    """Another task, measured with the model as it was and with what each seed made of it.

    Attributes:
        outcome: of the other task; its scores and numbers stand under ``none`` and ``ttm``.
        seeds: of TTM.
        differences: as `ttmbench.results.deltas.differences` has them.
        seconds: all its measurements took.
    """

    outcome: TaskOutcome
    seeds: Sequence[int]
    differences: Mapping[str, Any]
    seconds: float

    def record(self) -> dict[str, Any]:
        """As the results document has it. There is no track: it ranks nowhere."""
        one, summary = self.outcome, self.outcome.summary
        return {
            "seeds": list(self.seeds),
            "results": summary.results,
            "ci": summary.ci,
            "chance": summary.chance,
            "ties": summary.ties,
            "differences": dict(self.differences),
            "version": one.spec.version,
            "matching": one.spec.matching,
            "n-samples": {
                "original": n_groups_of(one.spec, one.source) or one.n_groups,
                "effective": one.n_groups,
                **({} if one.clusters is None else {"clusters": one.clusters.count}),
            },
            "fingerprint": one.fingerprint,
            "shape": list(one.shape or one.spec.group.shape or ()),
            "seconds": self.seconds,
        }


def n_groups_of(spec: TaskSpec, source: Mapping[str, Any]) -> int | None:
    """How many groups a task has, by its file or by the data, whose images may not all be here."""
    coverage = source.get("coverage")
    return spec.group.n_groups if coverage is None else int(coverage["rows"])
