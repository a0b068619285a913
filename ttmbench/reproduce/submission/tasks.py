"""A task of a submission, and whether it is the package's own: its version, file, size, chance and tracks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ttmbench._util.option_values import groups_of
from ttmbench._util.third_party_errors import describe
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskSpec
from ttmbench.evaluator.settings import filters_of
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.artifacts import Artifacts
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.results.labels import (
    CHOICE,
    RAW,
    TRACK_OF_FILTER,
    UNRANKED,
    numbers_in,
    supervised_tracks,
)
from ttmbench.results.samples import FRACTIONS
from ttmbench.results.shaped_metric import metric_for
from ttmbench.scoring.forced_choice.arrays import choice_chance
from ttmbench.types import Group, MetricSpec, Track

FOR_PEOPLE = frozenset(
    {
        *("description", "reference", "citation", "license", "label_errors", "images_needed", "evidence", "gated"),
        *("tag", "ttm", "parts"),
    }
)
"""Keys of a task file that no number depends on; the settings of TTM stand in the record of each run."""

MOST_RESAMPLES = 100_000
"""A document may ask for any number of resamples; beyond this its intervals are not computed again."""


def metrics_of(registry: Registry, spec: TaskSpec) -> list[MetricSpec]:
    """The metrics of a task, as its shape has them."""
    metrics = [registry.metric(name) for name in spec.metrics]
    return [metric_for(one, spec.shape) for one in metrics] if spec.kind == "groups" else metrics


@dataclass(frozen=True)
class OfTask:
    """One task of a submission.

    Attributes:
        document: of results.
        spec: the task of this package.
        config: of the run.
        registry: metrics.
        artifacts: files beside the document.
        groups: the task's data, if they are at hand.
    """

    document: Mapping[str, Any]
    spec: TaskSpec
    config: RunConfig
    registry: Registry
    artifacts: Artifacts
    groups: Sequence[Group] | None = None

    @property
    def metrics(self) -> list[MetricSpec]:
        """Of the task."""
        return metrics_of(self.registry, self.spec)

    @property
    def resampling(self) -> tuple[int, int, Any]:
        """Resamples, their seed, and how intervals are made."""
        return min(self.config.bootstrap_iters, MOST_RESAMPLES), self.config.seed, self.config.interval

    def file(self, kind: str, other: str | None = None) -> Path | None:
        """A file beside the document; None if there is none that may be read."""
        return self.artifacts.get((kind, self.spec.task, other))


def check_task(
    document: Mapping[str, Any], spec: TaskSpec, config: RunConfig, registry: Registry, findings: Findings
) -> bool:
    """Checks what a document says of a task against the registered one.

    Args:
        document: of results.
        spec: the task of this package.
        config: of the run.
        registry: metrics.
        findings: takes what is wrong.

    Returns:
        Whether it is the same version of the task, so that its numbers can be computed again.
    """
    task = spec.task
    version = document["versions"][task]
    if version != spec.version:
        findings.refuse(f"versions.{task}", f"is {version}, this package has version {spec.version} of the task")
        return False
    if not _check_file(document["configs"][task], spec, findings):
        return False
    _check_size(document, spec, config, findings)
    _check_filters(document, spec, config, findings)
    _check_labels(document, spec, registry, findings)
    _check_plausible(document, spec, registry, findings)
    return True


def _check_file(stated: Mapping[str, Any], spec: TaskSpec, findings: Findings) -> bool:
    place = f"configs.{spec.task}"
    try:
        found = TaskSpec.model_validate(stated)
    except ValidationError as error:
        findings.refuse(place, f"is no task file: {describe(error)}")
        return False
    given, expected = (one.model_dump(mode="json", exclude=set(FOR_PEOPLE)) for one in (found, spec))
    # One that this version of the package does not have in its file cannot change what the numbers are of.
    return findings.same(place, given, expected, f"version {spec.version} of the task has")


def _check_size(document: Mapping[str, Any], spec: TaskSpec, config: RunConfig, findings: Findings) -> None:
    task, data = spec.task, document["datasets"][spec.task]
    counts = document["n-samples"][task]
    effective, total = counts["effective"], spec.group.n_groups or counts["original"]
    findings.same(f"n-samples.{task}.original", counts["original"], total, "the task has")
    findings.same(f"datasets.{task}.n_groups", data["n_groups"], effective, "n-samples says")
    findings.same(
        f"datasets.{task}.fingerprint", data["fingerprint"], document["task_hashes"][task], "task_hashes says"
    )
    if spec.kind == "groups":
        shape = [spec.shape.images, spec.shape.captions]
        findings.same(f"datasets.{task}.shape", data["shape"], shape, "the task has")
        findings.same(
            f"datasets.{task}.true_captions", data.get("true_captions", 1), spec.group.true_captions, "it has"
        )
    if document["config"].get("samples") is not None:
        if effective > total:
            findings.refuse(f"n-samples.{task}.effective", f"is {effective}, the task has {total}")
        return
    limit = groups_of(config.limit, total)
    expected = total if limit is None else min(limit, total)
    by = "the task has" if config.limit is None else f"config.limit {config.limit} gives"
    findings.same(f"n-samples.{task}.effective", effective, expected, by)
    clusters = counts.get("clusters")
    if clusters is not None and clusters > effective:
        findings.refuse(f"n-samples.{task}.clusters", f"is {clusters}, and there are {effective} groups")


def _check_filters(document: Mapping[str, Any], spec: TaskSpec, config: RunConfig, findings: Findings) -> None:
    """What was asked for is there, and nothing else."""
    task = spec.task
    found = list(dict.fromkeys(name for _, name in numbers_in(document["results"][task])))
    if found == [CHOICE]:
        return
    capabilities = document["model_info"].get("capabilities") or []
    can_adapt = any("Trainable" in str(one) for one in capabilities) and spec.group.true_captions == 1
    wanted = [name for name in filters_of(config) if name != CHOICE] if can_adapt and spec.kind == "groups" else [RAW]
    for name in wanted:
        if name not in found:
            findings.refuse(f"results.{task}", f"has no number with filter {name}, and config asks for it")
    for name in found:
        if name not in wanted:
            findings.refuse(f"results.{task}", f"has numbers with filter {name}, and config does not ask for it")


def _check_labels(document: Mapping[str, Any], spec: TaskSpec, registry: Registry, findings: Findings) -> None:
    """Tracks, which way is up, and what the model has seen of the images."""
    task = spec.task
    numbers = numbers_in(document["results"][task])
    metrics = {name: registry.metrics[name][0] for name, _ in numbers if name in registry.metrics}
    tracks: dict[str, Track] = {}
    for name, filter_ in numbers:
        if name not in metrics:
            findings.refuse(f"results.{task}.{name},{filter_}", "is of a metric that this package does not have")
        elif filter_ not in UNRANKED:
            tracks[f"{name},{filter_}"] = TRACK_OF_FILTER.get(filter_, metrics[name].track)
    if "finetuned" in document["model_info"]:
        tracks = supervised_tracks(tracks)
    findings.same(f"tracks.{task}", document["tracks"][task], tracks, "its filter and metric imply")
    upwards = {name: metric.higher_is_better for name, metric in metrics.items()}
    findings.same(f"higher_is_better.{task}", document["higher_is_better"][task], upwards, "the metric says")
    collections = document["model_info"].get("trained_on") or []
    seen = [name for name in spec.images_from if name in collections]
    stated = document.get("seen_in_training", {}).get(task, [])
    findings.same(f"seen_in_training.{task}", stated, seen, "model_info.trained_on and the task say")


def _check_plausible(document: Mapping[str, Any], spec: TaskSpec, registry: Registry, findings: Findings) -> None:
    """Chance by the task's shape, counts that are whole, ties that are no more than there are groups."""
    task = spec.task
    effective = document["n-samples"][task]["effective"]
    if spec.kind != "groups":
        return
    images, captions = spec.shape.images, spec.shape.captions
    own = {one.name: one for one in metrics_of(registry, spec)}
    is_choice = all(name == CHOICE for _, name in numbers_in(document["results"][task]))
    orders = document.get("choice", {}).get(task, {}).get("orders", 1)
    for name, value in document["chance"][task].items():
        metric = own.get(name)
        if is_choice:
            expected = choice_chance(images, captions, orders).get(name)
        elif metric is None or metric.scope != "group":
            continue  # what is drawn over all pairs is computed with the scores
        else:
            known = metric.chance is not None and metric.defined(images, captions)
            expected = metric.chance(images, captions) if known and metric.chance is not None else None
        findings.same(f"chance.{task}.{name}", value, expected, f"{spec.shape} groups give")
    for key, value in document["ties"][task].items():
        if value is not None and not 0 <= value <= effective * images:
            findings.refuse(f"ties.{task}.{key}", f"is {value}, and there are {effective} groups")


def is_count(metric: str, value: float | None, units: int) -> bool:
    """Whether a mean over units of whole answers can have this value: so many of them are right.

    >>> is_count("group_match", 0.5, 24), is_count("group_match", 0.9, 24), is_count("mine", 0.9, 24)
    (True, False, True)
    """
    if value is None or metric not in FRACTIONS or units < 1:
        return True
    return math.isclose(value * units, round(value * units), abs_tol=1e-6 * max(1, units / 1000))
