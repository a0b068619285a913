"""A task of a submission, and whether it is the package's own: its version, file, size, chance and tracks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ttmbench._util.option_values import groups_of
from ttmbench._util.third_party_errors import describe
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskSpec
from ttmbench.evaluator.settings import filters_of
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import (
    CHOICE,
    FRACTIONS,
    RAW,
    TRACK_OF_FILTER,
    UNRANKED,
    key_of,
    numbers_in,
    supervised_tracks,
)
from ttmbench.results.records import Samples
from ttmbench.scoring.forced_choice.arrays import choice_chance
from ttmbench.stats import IntervalMethod
from ttmbench.types import Group, MetricSpec

FOR_PEOPLE = {
    *("description", "reference", "citation", "license", "label_errors", "images_needed", "evidence", "gated"),
    *("tag", "ttm", "parts"),
}
"""Keys of a task file that no number depends on; the settings of TTM stand in the record of each run."""

MOST_RESAMPLES = 100_000
"""A document may ask for any number of resamples; beyond this its intervals are not computed again."""

Artifacts = Mapping[tuple[str, str, str | None], Path]
"""(kind, task, the other task that it was measured on) -> a file that is as the document says."""


def metrics_of(registry: Registry, spec: TaskSpec) -> list[MetricSpec]:
    """The metrics of a task, as its shape has them."""
    metrics = [registry.metric(name) for name in spec.metrics]
    return [metric_for(metric, spec.shape) for metric in metrics] if spec.kind == "groups" else metrics


@dataclass(frozen=True)
class SubmittedTask:
    """One task of a submission.

    Attributes:
        document: of results.
        spec: the task of this package.
        config: of the run.
        registry: metrics.
        artifacts: files beside the document.
        findings: takes what is wrong.
        groups: the task's data, if they are at hand.
    """

    document: ResultsDocument
    spec: TaskSpec
    config: RunConfig
    registry: Registry
    artifacts: Artifacts
    findings: Findings
    groups: Sequence[Group] | None = None

    @property
    def name(self) -> str:
        """Of the task."""
        return self.spec.task

    @property
    def counts(self) -> Samples:
        """How many groups it has, and how many were scored."""
        return self.document.n_samples[self.name]

    @property
    def results(self) -> Mapping[str, float | None]:
        """``metric,filter`` -> its number."""
        return self.document.results[self.name]

    @property
    def filters(self) -> list[str]:
        """Of its numbers."""
        return list(dict.fromkeys(name for _, name in numbers_in(self.results)))

    @property
    def is_choice(self) -> bool:
        """Whether all its numbers are of forced choices."""
        return all(name == CHOICE for name in self.filters)

    @property
    def metrics(self) -> list[MetricSpec]:
        """Of the task."""
        return metrics_of(self.registry, self.spec)

    @property
    def resampling(self) -> tuple[int, int, IntervalMethod]:
        """Resamples, their seed, and how intervals are made."""
        return min(self.config.bootstrap_iters, MOST_RESAMPLES), self.config.seed, self.config.interval

    def file(self, kind: str, other: str | None = None) -> Path | None:
        """A file beside the document; None if there is none that may be read."""
        return self.artifacts.get((kind, self.name, other))


def check_task(task: SubmittedTask) -> bool:
    """Checks what a document says of a task against the registered one.

    Returns whether it is the same version of the task, so that its numbers can be computed again.
    """
    spec, findings, version = task.spec, task.findings, task.document.versions[task.name]
    if version != spec.version:
        words = f"is {version}, this package has version {spec.version} of the task"
        findings.refuse(f"versions.{task.name}", words)
        return False
    place = f"configs.{task.name}"
    try:
        stated = TaskSpec.model_validate(task.document.configs[task.name])
    except ValidationError as error:
        findings.refuse(place, f"is no task file: {describe(error)}")
        return False
    given, expected = (one.model_dump(mode="json", exclude=FOR_PEOPLE) for one in (stated, spec))
    if not findings.same(place, given, expected, f"version {spec.version} of the task has"):
        return False
    _check_size(task)
    _check_filters(task)
    _check_labels(task)
    if spec.kind == "groups":
        _check_plausible(task)
    return True


def _check_size(task: SubmittedTask) -> None:
    name, spec, findings, counts = task.name, task.spec, task.findings, task.counts
    data, hashes = task.document.datasets[name], task.document.task_hashes
    effective, total = counts.effective, spec.group.n_groups or counts.original
    findings.same(f"n-samples.{name}.original", counts.original, total, "the task has")
    findings.same(f"datasets.{name}.n_groups", data.n_groups, effective, "n-samples says")
    findings.same(f"datasets.{name}.fingerprint", data.fingerprint, hashes[name], "task_hashes says")
    if spec.kind == "groups":
        shape = [spec.shape.images, spec.shape.captions]
        findings.same(f"datasets.{name}.shape", data.shape, shape, "the task has")
        findings.same(f"datasets.{name}.true_captions", data.true_captions or 1, spec.group.true_captions, "it has")
    if task.document.config.get("samples") is not None:
        if effective > total:
            findings.refuse(f"n-samples.{name}.effective", f"is {effective}, the task has {total}")
        return
    limit = groups_of(task.config.limit, total)
    expected = total if limit is None else min(limit, total)
    by = "the task has" if task.config.limit is None else f"config.limit {task.config.limit} gives"
    findings.same(f"n-samples.{name}.effective", effective, expected, by)
    if counts.clusters is not None and counts.clusters > effective:
        findings.refuse(f"n-samples.{name}.clusters", f"is {counts.clusters}, and there are {effective} groups")


def _check_filters(task: SubmittedTask) -> None:
    """What was asked for is there, and nothing else."""
    if task.filters == [CHOICE]:
        return
    capabilities = task.document.model_info.get("capabilities") or []
    can_adapt = any("Trainable" in str(one) for one in capabilities) and task.spec.group.true_captions == 1
    adapts = can_adapt and task.spec.kind == "groups"
    wanted = [name for name in filters_of(task.config) if name != CHOICE] if adapts else [RAW]
    for name in (name for name in wanted if name not in task.filters):
        task.findings.refuse(f"results.{task.name}", f"has no number with filter {name}, and config asks for it")
    for name in (name for name in task.filters if name not in wanted):
        task.findings.refuse(f"results.{task.name}", f"has numbers with filter {name}, and config does not ask for it")


def _check_labels(task: SubmittedTask) -> None:
    """Tracks, which way is up, and what the model has seen of the images."""
    name, document, findings, tracks, upwards = task.name, task.document, task.findings, {}, {}
    for metric, filter_ in numbers_in(task.results):
        known, key = task.registry.metrics.get(metric), key_of(metric, filter_)
        if known is None:
            findings.refuse(f"results.{name}.{key}", "is of a metric that this package does not have")
            continue
        upwards[metric] = known[0].higher_is_better
        if filter_ not in UNRANKED:
            tracks[key] = TRACK_OF_FILTER.get(filter_, known[0].track)
    if "finetuned" in document.model_info:
        tracks = supervised_tracks(tracks)
    findings.same(f"tracks.{name}", document.tracks[name], tracks, "its filter and metric imply")
    findings.same(f"higher_is_better.{name}", document.higher_is_better[name], upwards, "the metric says")
    collections = document.model_info.get("trained_on") or []
    seen, stated = [one for one in task.spec.images_from if one in collections], document.seen_in_training.get(name, [])
    findings.same(f"seen_in_training.{name}", stated, seen, "model_info.trained_on and the task say")


def _check_plausible(task: SubmittedTask) -> None:
    """Chance by the task's shape, and ties that are no more than there are groups."""
    images, captions = task.spec.shape.images, task.spec.shape.captions
    metrics = {metric.name: metric for metric in task.metrics}
    asked = task.document.choice.get(task.name)
    for name, value in task.document.chance[task.name].items():
        metric = metrics.get(name)
        expected: float | None = None
        if task.is_choice:
            expected = choice_chance(images, captions, 1 if asked is None else asked.orders).get(name)
        elif metric is None or metric.scope != "group":
            continue  # what is drawn over all pairs is computed with the scores
        elif metric.chance is not None and metric.defined(images, captions):
            expected = metric.chance(images, captions)
        task.findings.same(f"chance.{task.name}.{name}", value, expected, f"{task.spec.shape} groups give")
    effective = task.counts.effective
    for key, value in task.document.ties[task.name].items():
        if value is not None and not 0 <= value <= effective * images:
            task.findings.refuse(f"ties.{task.name}.{key}", f"is {value}, and there are {effective} groups")


def is_count(metric: str, value: float | None, units: int) -> bool:
    """Whether a mean over units of whole answers can have this value: so many of them are right.

    >>> is_count("group_match", 0.5, 24), is_count("group_match", 0.9, 24), is_count("mine", 0.9, 24)
    (True, False, True)
    """
    if value is None or metric not in FRACTIONS or units < 1:
        return True
    return math.isclose(value * units, round(value * units), abs_tol=1e-6 * max(1, units / 1000))
