"""Groups of a run that kept its score arrays and no samples: matched and measured again from the scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ttmbench._arrays.matchings import given_captions
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.matching import match_groups
from ttmbench.report.groups import GroupSet, group_set
from ttmbench.report.load import ReportedRun
from ttmbench.report.task_data import load_again
from ttmbench.report.thumbnails import ThumbnailOptions
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW
from ttmbench.results.scores_file import read_scores
from ttmbench.results.shaped_metric import metric_for
from ttmbench.results.summary import metric_values
from ttmbench.types import GroupShape


def groups_from_scores(run: ReportedRun, task: str, path: Path, options: ThumbnailOptions) -> GroupSet:
    """Reads a scores file; captions, names of images and tags come from the task's data, if they are at hand.

    Args:
        run: whose.
        task: name.
        path: the scores file.
        options: where data lie.

    Returns:
        The groups, as from samples.

    Raises:
        DataError: the file is not what a run writes.
    """
    try:
        lines = list(_lines(run, task, path, options))
    except (TtmbenchError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from None
    return group_set(run, task, enumerate(lines, start=1), path)


def _lines(run: ReportedRun, task: str, path: Path, options: ThumbnailOptions) -> Iterator[dict[str, Any]]:
    from ttmbench.plugins.registry import build_registry

    registry = build_registry(options.include_path)
    about = run.of_task("datasets", task) or {}
    images, captions = about["shape"]
    shape = GroupShape(images, captions, about.get("true_captions", 1))
    stored = read_scores(path, shape)
    names = {one.metric for one in run.numbers if one.task == task}
    known = [spec for name, (spec, _) in registry.metrics.items() if name in names and spec.scope != "global"]
    metrics = [metric_for(spec, shape) for spec in known]
    try:
        _, groups = load_again(run, task, options.data_dir, options.include_path)
    except DataError:
        groups = {}
    for name, per_seed in stored.scores.items():
        if name in (HOLDOUT, HOLDOUT_RAW):
            continue  # of a part of the groups
        training = ResultsDocument.of(run.document).training(task, name)
        for index, scores in enumerate(per_seed):
            matching = match_groups(scores.groups, shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            for at, group_id in enumerate(stored.group_ids):
                group = groups.get(group_id)
                yield {
                    "group_id": group_id,
                    "filter": name,
                    "seed_index": index,
                    "seed": training.seeds[index] if training is not None else None,
                    "captions": [] if group is None else list(group.captions),
                    "images": [] if group is None else [image.name for image in group.images],
                    "scores": scores.groups[at].tolist(),
                    "matching": given_captions(matching.captions[at]),
                    "margin": float(matching.margin[at]),
                    "tie": bool(matching.tie[at]),
                    "metrics": {key: None if row is None else float(row[at]) for key, row in values.items()},
                    "tags": {} if group is None else dict(group.tags),
                }
