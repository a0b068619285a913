"""What a run keeps of a task beside its results document: samples, scores, ranks and the iterations of TTM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ttmbench._arrays.matchings import given_captions
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskSpec
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.matching import match_groups
from ttmbench.results.clusters import Clusters
from ttmbench.results.files import RunFiles
from ttmbench.results.labels import HOLDOUT_RAW, RAW
from ttmbench.results.summary import metric_values


def write_artifacts(files: RunFiles, config: RunConfig, outcome: TaskOutcome) -> None:
    """Writes what a run keeps of a task beside its results document: samples, scores, TTM iterations."""
    task = outcome.spec.task
    if config.log_samples:
        files.write_lines("samples", task, _sample_lines(outcome, config.run_seeds))
    if config.save_scores and outcome.ranks:
        about = {"task": task, "model": config.model_name, "data_sha256": outcome.fingerprint}
        shared = outcome.clusters.groups if outcome.clusters is not None and outcome.shares_images else None
        files.write_ranks(task, outcome.ranks, outcome.of_query, about, shared)
    if config.save_scores and outcome.scores:
        files.write_scores(task, outcome.scores, _about_scores(config, outcome))
    for other, one in outcome.also.items():
        if config.log_samples and one.outcome.scores:
            files.write_lines("also_samples", task, _sample_lines(one.outcome, config.run_seeds), other)
        if config.save_scores and one.outcome.scores:
            about = {**_about_scores(config, one.outcome), "adapted_on": task}
            files.write_scores(task, one.outcome.scores, about, other)
    if "ttm" in outcome.records:
        # Times stay in the results document, so that the same run writes the same lines.
        iterations = outcome.records["ttm"]["iterations"]
        lines = [{key: value for key, value in record.items() if key != "seconds"} for record in iterations]
        files.write_lines("ttm", task, lines)


def write_samples(files: RunFiles, outcome: TaskOutcome) -> None:
    """Writes the samples of scores, ranks or answers that were read from a file, which state no seeds."""
    most = max((len(per_seed) for per_seed in outcome.scores.values()), default=0)
    files.write_lines("samples", outcome.spec.task, _sample_lines(outcome, [None] * most))


def _true_captions(spec: TaskSpec) -> dict[str, str]:
    several = spec.group.true_captions
    return {"true_captions": str(several)} if several > 1 else {}


def _about_scores(config: RunConfig, outcome: TaskOutcome) -> dict[str, str]:
    return {
        "task": outcome.spec.task,
        "task_version": str(outcome.spec.version),
        "model": config.model_name,
        "seeds": json.dumps(config.run_seeds),
        "group_ids": json.dumps([group.group_id for group in outcome.groups]),
        **_true_captions(outcome.spec),
        "data_sha256": outcome.fingerprint,
        **({"subsets": json.dumps(outcome.subsets)} if outcome.subsets else {}),
        **(_cluster_lists(outcome.clusters) if outcome.clusters and outcome.shares_images else {}),
    }


def _cluster_lists(clusters: Clusters) -> dict[str, str]:
    return {
        "clusters": json.dumps(clusters.groups.tolist()),
        "image_clusters": json.dumps(clusters.images.reshape(-1).tolist()),
    }


def _sample_lines(outcome: TaskOutcome, seeds: Sequence[int | None]) -> Iterator[dict[str, Any]]:
    """One line per filter, seed and group."""
    yield from outcome.own_lines
    of = outcome.cluster_names
    for name, per_seed in outcome.scores.items():
        for index, scores in enumerate(per_seed):
            matching = match_groups(scores.groups, outcome.spec.shape.true_captions)
            values = {
                metric.name: metric_values(metric, scores) for metric in outcome.metrics if metric.scope != "global"
            }
            members = outcome.subsets.get(name, range(len(outcome.groups)))
            for position, member in enumerate(members):
                group = outcome.groups[member]
                yield {
                    "group_id": group.group_id,
                    **({} if of is None else {"cluster": of[member]}),
                    "filter": name,
                    "seed_index": index,
                    "seed": None if name in (RAW, HOLDOUT_RAW) else seeds[index],
                    "captions": list(group.captions),
                    "images": [image.name for image in group.images],
                    "scores": scores.groups[position].tolist(),
                    "matching": given_captions(matching.captions[position]),
                    "margin": float(matching.margin[position]),
                    "tie": bool(matching.tie[position]),
                    "metrics": {
                        metric: None if value is None else float(value[position]) for metric, value in values.items()
                    },
                    "tags": dict(group.tags),
                }
