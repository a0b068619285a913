"""The single groups of a task's result: as lines of the samples file, and as values that a comparison pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ttmbench._arrays.scores import given_captions
from ttmbench.evaluator.task_result import Answered, Ranked, Scored, TaskResult
from ttmbench.matching import match_groups
from ttmbench.results.labels import AT, CHOICE, HOLDOUT_RAW, RAW
from ttmbench.results.ranks import rank_values
from ttmbench.results.stored_runs import TaskGroups, values_of_lines
from ttmbench.results.summary import metric_values
from ttmbench.scoring.forced_choice.arrays import choice_values


def sample_lines(result: TaskResult, seeds: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """Lines of the samples file: for each column, seed and group; each group's answers; or each query that was ranked.

    ``seeds`` are those of the columns that have several score arrays; None where they are unknown.
    """
    match result:
        case Scored():
            yield from _lines_of_scores(result, seeds)
        case Answered():
            yield from _lines_of_answers(result)
        case Ranked():
            yield from _lines_of_ranks(result)


def task_groups(result: TaskResult) -> TaskGroups:
    """The values and clusters of a task's single groups: means over seeds, without metrics across groups."""
    data = result.data
    names = data.cluster_names
    ids = [group.group_id for group in data.groups]
    clusters = None if names is None else dict(zip(ids, names, strict=True))
    if isinstance(result, Scored):
        values = _values(result)
    else:
        lines = list(sample_lines(result))
        values = values_of_lines(lines)
        if clusters is not None and isinstance(result, Ranked):  # captions are queries, too
            clusters = {line["group_id"]: line["cluster"] for line in lines}
    means = {name: how for name, how in result.spec.means.items() if name in result.tag_means}
    return TaskGroups(values, clusters, {group.group_id: group.tags for group in data.groups}, means)


def groups_by_task(results: Mapping[str, TaskResult]) -> dict[str, TaskGroups]:
    """Task -> its groups; another task that an adapted model was measured on is ``adapted to@measured on``."""
    groups = {name: task_groups(result) for name, result in results.items()}
    for name, result in results.items():
        if isinstance(result, Scored):
            groups |= {f"{name}{AT}{other}": task_groups(one.result) for other, one in result.elsewhere.items()}
    return groups


def _values(result: Scored) -> dict[str, dict[str, dict[str, float]]]:
    """Column -> metric -> group id -> value."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for column in result.columns:
        ids = [group.group_id for group in result.data.groups]
        ids = ids if column.members is None else [ids[member] for member in column.members]
        for metric in (metric for metric in result.metrics if metric.scope != "global"):
            each = [metric_values(metric, scores) for scores in column.scores]
            known = [one for one in each if one is not None]
            if known and len(known) == len(each):
                means = np.mean(known, axis=0).tolist()
                values.setdefault(column.name, {})[metric.name] = dict(zip(ids, means, strict=True))
    return values


def _lines_of_scores(result: Scored, seeds: Sequence[int] | None) -> Iterator[dict[str, Any]]:
    cluster_of, groups = result.data.cluster_names, result.data.groups
    metrics = [metric for metric in result.metrics if metric.scope != "global"]
    for column in result.columns:
        trained = seeds is not None and column.name not in (RAW, HOLDOUT_RAW)
        for index, scores in enumerate(column.scores):
            matching = match_groups(scores.groups, result.spec.shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            for position, member in enumerate(range(len(groups)) if column.members is None else column.members):
                group = groups[member]
                yield {
                    "group_id": group.group_id,
                    **({} if cluster_of is None else {"cluster": cluster_of[member]}),
                    "filter": column.name,
                    "seed_index": index,
                    "seed": seeds[index] if trained and seeds is not None else None,
                    "captions": list(group.captions),
                    "images": [image.name for image in group.images],
                    "scores": scores.groups[position].tolist(),
                    "matching": given_captions(matching.captions[position]),
                    "margin": float(matching.margin[position]),
                    "tie": bool(matching.tie[position]),
                    "metrics": {
                        name: None if value is None else float(value[position]) for name, value in values.items()
                    },
                    "tags": dict(group.tags),
                }


def _lines_of_answers(result: Answered) -> Iterator[dict[str, Any]]:
    data, values = result.data, choice_values(result.choices)
    cluster_of = data.cluster_names
    for position, group in enumerate(data.groups):
        line: dict[str, Any] = {
            "group_id": group.group_id,
            **({} if cluster_of is None else {"cluster": cluster_of[position]}),
            "filter": CHOICE,
            "seed_index": 0,
            "seed": None,
        }
        if result.answers is not None:
            line |= {"captions": list(group.captions), "images": [image.name for image in group.images]}
            line["answers"] = result.answers[position]
        line["metrics"] = {metric: float(right[position]) for metric, right in values.items()}
        yield line if result.answers is None else {**line, "tags": dict(group.tags)}


def _lines_of_ranks(result: Ranked) -> Iterator[dict[str, Any]]:
    """None where only features are known; queries of ranks from a file go by their numbers."""
    data = result.data
    cluster_of = data.cluster_names or [group.group_id for group in data.groups]
    for scope, ranks in result.ranks.items() if data.groups or result.units is not None else ():
        values = {metric.name: rank_values(metric, ranks) for metric in result.metrics if metric.scope == scope}
        known = {name: one.tolist() for name, one in values.items() if one is not None}
        counts = {"strict": ranks.strict, "as_topk": ranks.as_topk, "above": ranks.above}
        units = None if result.units is None else result.units.get(scope)
        seen: Counter[int] = Counter()
        for query in range(len(ranks)):
            line: dict[str, Any] = {"group_id": f"{scope}/{query}"}
            line |= {} if units is None else {"cluster": str(units[query])}
            common = {"filter": RAW, "seed_index": 0, "seed": None}
            numbers = {"metrics": {name: one[query] for name, one in known.items()}}
            if not data.groups:
                yield {**line, **common, **numbers}
                continue
            image = int(result.of_query[scope][query])
            group, of_caption = data.groups[image], scope == "t2i"
            yield {
                "group_id": f"{group.group_id}/{seen[image]}" if of_caption else group.group_id,
                "cluster": cluster_of[image],
                **common,
                "query": "caption" if of_caption else "image",
                "captions": [group.captions[seen[image]]] if of_caption else list(group.captions),
                "images": [group.images[0].name],
                "ranks": {name: None if one is None else int(one[query]) for name, one in counts.items()},
                **numbers,
                "tags": dict(group.tags),
            }
            seen[image] += 1
