"""The data of the groups browser, from samples or stored scores, as compact lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttmbench._arrays.scores import given_captions
from ttmbench._util.option_values import groups_of
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.matching import match_groups
from ttmbench.plugins.registry import metric_for
from ttmbench.report.charts import HEADLINE
from ttmbench.report.load import ReportedRun
from ttmbench.results.labels import HOLDOUT, HOLDOUT_RAW, RAW, TTM, name_of
from ttmbench.results.sample_logs import sample_lines
from ttmbench.results.stored_files import read_scores
from ttmbench.results.summary import metric_values
from ttmbench.types import Group, GroupShape

Line = Mapping[str, Any]
"""A samples line."""
Json = Any
"""A JSON value for the page."""
DIGITS = 5  # of scores and margins on the page


@dataclass(frozen=True)
class GroupSet:
    """The groups of one task of a run.

    Attributes:
        run: the run.
        task: its name.
        data: for the page: ``metrics``, ``filters`` (name, words, seeds), ``tags``, and ``groups``, each
            ``[id, captions, images, tags, filters]``; a filter is null or a list over seeds of
            ``[scores, matching, tie, margin, metrics, answers]``.
    """

    run: ReportedRun
    task: str
    data: dict[str, Json]

    @property
    def images_of(self) -> tuple[str, str]:
        """Task and data, by which runs share images."""
        return self.task, str(self.run.document.task_hashes.get(self.task))

    def by_interest(self) -> list[list[Json]]:
        """The groups, with those first that changed, then incorrect ones."""
        return sorted(self.data["groups"], key=self._interest)

    def _interest(self, group: list[Json]) -> int:
        names = [filter_["name"] for filter_ in self.data["filters"]]
        metric = self.data["metrics"].index(HEADLINE) if HEADLINE in self.data["metrics"] else 0
        means: list[float | None] = []
        for name in (RAW, TTM):
            rows = group[4][names.index(name)] if name in names else None
            values = [row[4][metric] for row in rows or () if row and row[4] and row[4][metric] is not None]
            means.append(sum(values) / len(values) if values else None)
        before, after = means
        if before is None or after is None or before == after:
            return 2 if (before if after is None else after) == 1 else 1
        return 0


def read_groups(run: ReportedRun, task: str, path: Path) -> GroupSet:
    """The groups in a samples file; DataError with its number for a line that is not a samples line."""
    return _group_set(run, task, sample_lines(path), path)


def _group_set(run: ReportedRun, task: str, lines: Iterable[tuple[int, Line]], path: Path) -> GroupSet:
    """Groups from numbered lines."""
    filters: dict[str, dict[int, int | None]] = {}
    metrics: list[str] = []
    tags: list[str] = []
    groups: dict[str, tuple[Line, dict[str, dict[int, list[Json]]]]] = {}
    for number, line in lines:
        try:
            name, seed = str(line["filter"]), int(line.get("seed_index", 0))
            filters.setdefault(name, {})[seed] = line.get("seed")
            metrics += [metric for metric in line["metrics"] if metric not in metrics]
            tags += [tag for tag in line.get("tags", {}) if tag not in tags]
            _, results = groups.setdefault(str(line["group_id"]), (line, {}))
            results.setdefault(name, {})[seed] = _result(line, metrics)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: line {number} is not a samples line of ttmbench") from None
    compact = []
    for group_id, (line, results) in groups.items():
        for rows in results.values():
            for row in rows.values():
                row[4] += [None] * (len(metrics) - len(row[4]))
        texts = [[str(text) for text in line.get(key, [])] for key in ("captions", "images")]
        values = [None if tag not in line.get("tags", {}) else str(line["tags"][tag]) for tag in tags]
        # Only held-out groups have their filter.
        per_filter = [
            [results[name].get(seed) for seed in sorted(seeds)] if name in results else None
            for name, seeds in filters.items()
        ]
        compact.append([group_id, *texts, values, per_filter])
    described = [
        {"name": name, "words": name_of(name), "seeds": [seeds[index] for index in sorted(seeds)]}
        for name, seeds in filters.items()
    ]
    return GroupSet(run, task, {"metrics": metrics, "filters": described, "tags": tags, "groups": compact})


def _result(line: Line, metrics: Iterable[str]) -> list[Json]:
    result = [
        [[_short(score) for score in row] for row in line["scores"]] if "scores" in line else None,
        [_indices(captions) for captions in line["matching"]] if "matching" in line else None,
        1 if line.get("tie") else 0,
        _short(line.get("margin")),
        [_short(line["metrics"].get(metric)) for metric in metrics],
    ]
    if "answers" in line:
        result.append(
            [
                [str(answer["question"]), str(answer["prompt"])]
                + [answer[key] for key in ("answer", "order", "chosen")]
                + [bool(answer["right"])]
                for answer in line["answers"]
            ]
        )
    return result


def _indices(captions: Json) -> int | list[int] | None:
    """The caption or captions that a matching gives an image; None where it gives none."""
    if captions is None:
        return None
    return [int(caption) for caption in captions] if isinstance(captions, list) else int(captions)


def _short(value: object) -> float | int | None:
    """A number with few digits, as an integer if it is one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    if value - value != 0:
        raise ValueError(f"{value} is NaN or infinite")
    short = float(f"{value + 0:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def groups_from_scores(
    run: ReportedRun, task: str, path: Path, data_dir: str | None = None, include_path: Sequence[str] = ()
) -> GroupSet:
    """The groups in a scores file, with captions, image names and tags if the task's data are available.

    Args:
        run: the run.
        task: its name.
        path: the scores file.
        data_dir: the data folder; None for the default one.
        include_path: folders with additional task files.

    Raises:
        DataError: the file is not one that a run writes.
    """
    try:
        lines = list(_lines_of_scores(run, task, path, data_dir, include_path))
    except (TtmbenchError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from None
    return _group_set(run, task, enumerate(lines, start=1), path)


def _lines_of_scores(
    run: ReportedRun, task: str, path: Path, data_dir: str | None, include_path: Sequence[str]
) -> Iterator[Line]:
    from ttmbench.plugins.registry import build_registry

    about = run.document.datasets[task]
    images, captions = about.shape
    shape = GroupShape(images, captions, about.true_captions or 1)
    stored = read_scores(path, shape)
    names = {number.metric for number in run.numbers if number.task == task}
    known = build_registry(include_path).metrics.items()
    metrics = [metric_for(spec, shape) for name, (spec, _) in known if name in names and spec.scope != "global"]
    try:
        _, groups = load_again(run, task, data_dir, include_path)
    except DataError:
        groups = {}
    for name, per_seed in stored.scores.items():
        if name in (HOLDOUT, HOLDOUT_RAW):
            continue  # of a part of the groups
        training = run.document.training(task, name)
        for index, scores in enumerate(per_seed):
            matching = match_groups(scores.groups, shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            for at, group_id in enumerate(stored.group_ids):
                group = groups.get(group_id)
                yield {
                    "group_id": group_id,
                    "filter": name,
                    "seed_index": index,
                    "seed": None if training is None else training.seeds[index],
                    "captions": [] if group is None else list(group.captions),
                    "images": [] if group is None else [image.name for image in group.images],
                    "scores": scores.groups[at].tolist(),
                    "matching": given_captions(matching.captions[at]),
                    "margin": float(matching.margin[at]),
                    "tie": bool(matching.tie[at]),
                    "metrics": {key: None if row is None else float(row[at]) for key, row in values.items()},
                    "tags": {} if group is None else dict(group.tags),
                }


def load_again(
    run: ReportedRun, task: str, data_dir: str | None, include_path: Sequence[str]
) -> tuple[TaskSpec, dict[str, Group]]:
    """The task as its file is now, and its groups by id, with the run's numeric source options, template and limit.

    A results document may come from anyone, so none of its paths is followed: the task must be registered or in
    ``include_path``, and its files in ``data_dir``.

    Args:
        run: the run.
        task: its name.
        data_dir: the data folder; None for the default one.
        include_path: folders with additional task files.

    Raises:
        DataError: why the data are not available.
    """
    from ttmbench.plugins.registry import build_registry

    config = run.document.config
    try:
        if task.endswith((".yaml", ".yml")):
            raise DataError(f"'{task}' is a file; give its folder as --include_path")
        registry = build_registry(list({Path(path).resolve(): path for path in include_path}.values()))
        numbers = {
            name: value
            for name, value in (config.get("task_args") or {}).items()
            if isinstance(value, int | float) or name == "caption_template"
        }
        source = find_task(registry, task).with_source(numbers)
        limit = config.get("limit") if config.get("samples") is None else None
        wanted = groups_of(float(limit), source.spec.group.n_groups) if limit else None
        groups = load_task_data(registry, source, wanted, offline=True, data_dir=data_dir).groups
    except (TtmbenchError, OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        raise DataError(" ".join(str(error).split())) from None
    by_id = {group.group_id: group for group in groups}
    if source.spec.kind == "retrieval":  # a caption is a query with a samples line
        for group in groups:
            for number, caption in enumerate(group.captions):
                by_id.setdefault(f"{group.group_id}/{number}", replace(group, captions=(caption,)))
    return source.spec, by_id
