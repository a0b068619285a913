"""What a run writes of a task beside its results document: samples, scores, ranks and the iterations of TTM."""

from __future__ import annotations

import json

from ttmbench.config import RunConfig
from ttmbench.evaluator.single_groups import sample_lines
from ttmbench.evaluator.task_result import Ranked, Scored, TaskResult
from ttmbench.results.files import RunFiles
from ttmbench.results.labels import TTM


def write_artifacts(files: RunFiles, config: RunConfig, result: TaskResult) -> None:
    """Writes the files of a task: samples and scores if the run asks for them, and TTM's iterations."""
    task, data, scored = result.spec.task, result.data, result.scored
    if config.log_samples:
        files.write_lines("samples", task, sample_lines(result, config.run_seeds))
    if config.save_scores and isinstance(result.body, Ranked):
        about = {"task": task, "model": config.model_name, "data_sha256": data.fingerprint}
        clusters = data.clusters.groups if data.clusters is not None and data.shares_images else None
        files.write_ranks(task, result.body.ranks, result.body.of_query, about, clusters)
    if config.save_scores and scored.columns:
        files.write_scores(task, scored.scores, _about_scores(config, result))
    for name, elsewhere in scored.elsewhere.items():
        other = elsewhere.result
        if config.log_samples and isinstance(other.body, Scored):
            files.write_lines("also_samples", task, sample_lines(other, config.run_seeds), name)
        if config.save_scores and isinstance(other.body, Scored):
            files.write_scores(task, other.body.scores, {**_about_scores(config, other), "adapted_on": task}, name)
    for column in scored.columns:
        if column.name == TTM:
            # Times stay in the results document, so that the same run writes the same lines.
            records = column.record["iterations"]
            lines = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
            files.write_lines("ttm", task, lines)


def _about_scores(config: RunConfig, result: TaskResult) -> dict[str, str]:
    spec, data, subsets, several = result.spec, result.data, result.scored.subsets, result.spec.group.true_captions
    about = {
        "task": spec.task,
        "task_version": str(spec.version),
        "model": config.model_name,
        "seeds": json.dumps(config.run_seeds),
        "group_ids": json.dumps([group.group_id for group in data.groups]),
        **({"true_captions": str(several)} if several > 1 else {}),
        "data_sha256": data.fingerprint,
        **({"subsets": json.dumps(subsets)} if subsets else {}),
    }
    if data.clusters is not None and data.shares_images:
        about["clusters"] = json.dumps(data.clusters.groups.tolist())
        about["image_clusters"] = json.dumps(data.clusters.images.reshape(-1).tolist())
    return about
