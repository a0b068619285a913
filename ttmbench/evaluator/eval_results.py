"""Results as a program reads them, the lines of samples files, and the comparison with a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ttmbench._annotations import pd
from ttmbench._arrays import given_captions
from ttmbench._util.file_io import file_digest
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.evaluator.task_result import Answered, Judged, Ranked, Scored, TaskResult
from ttmbench.matching import match_groups
from ttmbench.results.comparison import adjust_for_several, compare_runs, read_run, why_not_same
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import (
    AT,
    CHOICE,
    RAW,
    Number,
    key_of,
    to_frame,
)
from ttmbench.results.ranks import rank_values
from ttmbench.results.reader import ResultsFile, TaskGroups, Values, stored_groups, values_of_lines
from ttmbench.results.summary import group_rows, mean_over_seeds, metric_values
from ttmbench.scoring.choice_arrays import choice_values
from ttmbench.types import Record, Scores

_SHOWN_TASKS = 5
_COLUMNS = (("raw", "group_score,none"), ("SimpleMatch", "group_match,none"), ("TTM", "group_match,ttm"))
_GLOBAL = (("SimpleMatch", "global_assignment_accuracy,none"), ("TTM", "global_assignment_accuracy,ttm"))


@dataclass(frozen=True, eq=False, repr=False)
class EvalResults(Mapping[str, object]):
    """A results document as a mapping, and what a program needs beside it.

    Attributes:
        typed: the document.
        tasks: task -> its result, of tasks that this program scored or whose scores it read.
        path: the results file, if there is one.
        earlier: task -> single groups, of tasks that an earlier run of the same command had done.
        address: of the results file, if the run wrote to an address (``s3://...``); then there is no ``path``.
        setting: what distinguishes it from others that were read with it: in a sweep the setting's name, else the
            arguments that differ.
    """

    typed: ResultsDocument
    tasks: Mapping[str, TaskResult] = field(default_factory=dict)
    path: Path | None = None
    earlier: Mapping[str, TaskGroups] = field(default_factory=dict)
    address: str | None = None
    setting: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    def __repr__(self) -> str:
        """Model, state and the numbers of the first tasks, in a few lines."""
        tasks = list(self.results)
        lines = [f"EvalResults: {self.model_name}, {self.document['status']}, {_count(len(tasks), 'task')}"]
        lines += [f"  {task}: {self._shown(task)}" for task in tasks[:_SHOWN_TASKS]]
        if len(tasks) > _SHOWN_TASKS:
            lines.append(f"  and {_count(len(tasks) - _SHOWN_TASKS, 'task')} more")
        lines += [f"  failed: {error['task'] or 'the run'}: {error['message']:.100}" for error in self["errors"][:3]]
        return "\n".join(lines)

    def _shown(self, task: str) -> str:
        """One line of a task's numbers, in percent."""
        numbers = self.results[task]
        wanted = _GLOBAL if self.document["configs"][task].get("matching") == "global" else _COLUMNS
        keys = [(name, key) for name, key in wanted if numbers.get(key) is not None]
        keys = keys or [(key, key) for key in self.document["ci"][task] if numbers.get(key) is not None][:3]
        groups = _count(self.document["n-samples"][task]["effective"], "group")
        if covered := (self.document["datasets"].get(task) or {}).get("coverage"):
            groups = f"{self.document['n-samples'][task]['effective']} of {covered['rows']} groups"
        shown = [f"{name} {100 * (numbers[key] or 0):.2f}" for name, key in keys]
        return f"{groups}, percent: {', '.join(shown) or 'nothing is defined'}"

    @cached_property
    def document(self) -> Record:
        """Exactly what the results file holds."""
        return self.typed.to_dict()

    @property
    def model_name(self) -> str:
        """What results call the model."""
        return str(self.document["model_name"])

    @cached_property
    def group_values(self) -> dict[str, Values]:
        """Task -> method -> metric -> group id -> value, a mean over seeds: what `ttmbench.compare` pairs.

        Of results that were read from a file they are those of the samples beside it, tasks without samples skipped.

        Raises:
            DataError: samples are absent or damaged.
        """
        return {task: groups.values for task, groups in self.task_groups.items()}

    @cached_property
    def task_groups(self) -> dict[str, TaskGroups]:
        """Task -> values and clusters of its groups; as `group_values`, and with the same errors."""
        if self.tasks or self.earlier or self.path is None:
            return {**self.earlier, **groups_by_task(self.tasks)}
        return stored_groups(self.path.parent, self.typed)

    @property
    def scores(self) -> dict[str, dict[str, list[Scores]]]:
        """Task -> method -> `Scores`, one per seed, of tasks that this program scored or whose scores it read.

        They are float32, of stored scores float64 where these are. There are none of results that were read back, of
        tasks that an earlier run of the same command had done; those of ranks and of forced choices are empty.
        """
        return {name: result.scores if isinstance(result, Scored) else {} for name, result in self.tasks.items()}

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """Task -> ``metric,method`` -> fraction."""
        return self.document["results"]

    @property
    def failed(self) -> bool:
        """Whether a task failed."""
        return bool(self.document["errors"])

    def to_dict(self) -> Record:
        """The document."""
        return self.document

    def to_frame(self) -> pd.DataFrame:
        """Every number as a row of a table.

        Returns:
            One row a task, metric and method, and behind these what adapted models are on other tasks (task ``adapted
            to@measured on``, and ``adapted_to``): ``model``, ``task``, ``metric``, ``method``, ``method_name``,
            ``track``, ``setting``, ``value`` (a fraction) and everything that belongs to it: interval, chance, ties,
            seeds, groups.

        Raises:
            DataError: the document contradicts itself.
        """
        numbers, file = [*self.typed.numbers, *self.typed.numbers_elsewhere], str(self.path or "")
        return to_frame(replace(one, setting=self.setting, origin=replace(one.origin, file=file)) for one in numbers)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def sample_lines(result: TaskResult, seeds: Sequence[int] | None = None) -> Iterator[Record]:
    """Lines of the samples file: one per column, seed and group, per answered group, or per ranked query."""
    if isinstance(result, Ranked):
        yield from _lines_of_ranks(result)
        return
    groups, names = result.data.groups, result.data.cluster_names
    clusters: list[Record] = [{}] * len(groups) if names is None else [{"cluster": name} for name in names]
    heads = [{"group_id": group.group_id, **cluster} for group, cluster in zip(groups, clusters, strict=True)]
    shown = [{"captions": list(one.captions), "images": [image.name for image in one.images]} for one in groups]
    if isinstance(result, Scored):
        metrics = [metric for metric in result.metrics if metric.scope != "global"]
        for column in result.columns:
            for index, scores in enumerate(column.scores):
                matching = match_groups(scores.groups, result.spec.shape.true_captions)
                values = {metric.name: metric_values(metric, scores) for metric in metrics}
                seed = None if seeds is None or column.name == RAW else seeds[index]
                for at, group in enumerate(groups):
                    yield {
                        **heads[at],
                        **{"method": column.name, "seed_index": index, "seed": seed},
                        **shown[at],
                        "scores": scores.groups[at].tolist(),
                        "matching": given_captions(matching.captions[at]),
                        "margin": float(matching.margin[at]),
                        "tie": bool(matching.tie[at]),
                        "metrics": {
                            name: None if value is None else float(value[at]) for name, value in values.items()
                        },
                        "tags": dict(group.tags),
                    }
        return
    answers = result.answers if isinstance(result, Answered) else None
    known = choice_values(result.choices) if isinstance(result, Answered) else cast("Judged", result).values
    for at, group in enumerate(groups):
        yield {
            **heads[at],
            **{"method": CHOICE if isinstance(result, Answered) else RAW, "seed_index": 0, "seed": None},
            **({} if answers is None else {**shown[at], "answers": answers[at]}),
            "metrics": {metric: float(value[at]) for metric, value in known.items()},
            **({"tags": dict(group.tags)} if answers is not None or isinstance(result, Judged) else {}),
        }


def task_groups(result: TaskResult) -> TaskGroups:
    """The values and clusters of a task's single groups: means over seeds, without metrics across groups."""
    data = result.data
    names = data.cluster_names
    ids = [group.group_id for group in data.groups]
    clusters = None if names is None else dict(zip(ids, names, strict=True))
    if isinstance(result, Scored):
        values: Values = {}
        for (metric, name), rows in group_rows(result.scores, result.metrics).items():
            values.setdefault(name, {})[metric] = dict(zip(ids, mean_over_seeds(rows).tolist(), strict=True))
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
            groups |= {
                f"{name}{AT}{other}": task_groups(transfer.result) for other, transfer in result.elsewhere.items()
            }
    return groups


def _lines_of_ranks(result: Ranked) -> Iterator[Record]:
    """None where only features are known; queries of ranks from a file go by their numbers."""
    data = result.data
    cluster_of = data.cluster_names or [group.group_id for group in data.groups]
    for scope, ranks in result.ranks.items() if data.groups or result.units is not None else ():
        values = {metric.name: rank_values(metric, ranks) for metric in result.metrics if metric.scope == scope}
        known = {name: column.tolist() for name, column in values.items() if column is not None}
        counts = {"strict": ranks.strict, "as_topk": ranks.as_topk, "above": ranks.above}
        units = None if result.units is None else result.units.get(scope)
        seen: Counter[int] = Counter()
        for query in range(len(ranks)):
            line: Record = {"group_id": f"{scope}/{query}"}
            line |= {} if units is None else {"cluster": str(units[query])}
            common = {"method": RAW, "seed_index": 0, "seed": None}
            numbers = {"metrics": {name: column[query] for name, column in known.items()}}
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
                "ranks": {name: None if count is None else int(count[query]) for name, count in counts.items()},
                **numbers,
                "tags": dict(group.tags),
            }
            seen[image] += 1


THIS = Path("this run")
_ADVICE = "; `ttmbench compare --allow_different` compares those whose ids they share"


@dataclass(frozen=True)
class Baseline:
    """The run to compare with, as it was when this one began."""

    run: ResultsFile  # its document, and the values of its groups for tasks that have samples
    sha256: str  # of its document

    @classmethod
    def read(cls, path: Path, tasks: Mapping[str, TaskFile]) -> Baseline:
        """Reads a results document and its samples; UsageError if it has none of the tasks or other versions."""
        run, sha256 = read_run(path, need_samples=False), file_digest(path)
        if not any(task in run.document.results for task in tasks):
            raise UsageError(f"--baseline {path}: has none of this run's tasks ({', '.join(tasks)})")
        for name, task in tasks.items():
            before = run.document.versions.get(name, task.spec.version)
            if before != task.spec.version:
                raise UsageError(
                    f"task '{name}' has version {before} in {path} and {task.spec.version} in {THIS}: they are not the "
                    f"same groups{_ADVICE}"
                )
        return cls(run, sha256)

    def entry(self, document: ResultsDocument, groups: Mapping[str, TaskGroups], iterations: int, seed: int) -> Record:
        """The document's record of the comparison; ``refused`` says why there are no rows, or is None."""
        about = {"file": str(self.run.path), "sha256": self.sha256, "model_name": self.run.document.model_name}
        this = ResultsFile(THIS, document, known_groups=groups)
        try:
            rows = self._rows(this, iterations, seed)
        except UsageError as error:
            return {**about, "rows": [], "refused": f"--baseline: {error}"}
        return {**about, "rows": rows, "refused": None}

    def _rows(self, this: ResultsFile, iterations: int, seed: int) -> list[Record]:
        before = {(number.task, number.key): number.value for number in self.run.document.numbers}
        shared = [task for task in this.document.results if task in self.run.document.results]
        for task in shared:
            if (why := why_not_same(self.run, this, task)) is not None:
                raise UsageError(f"{why}{_ADVICE}")
        paired: dict[tuple[str, str], Record] = {}
        common = [task for task in shared if task in this.groups and task in self.run.groups]
        if any(this.groups[task].values.keys() & self.run.groups[task].values.keys() for task in common):
            compared = adjust_for_several(compare_runs(self.run, this, iterations=iterations, seed=seed))
            paired = {(row["task"], key_of(row["metric"], row["method"])): row for row in compared}
        rows = []
        for number in this.document.numbers:
            old = before.get((number.task, number.key))
            if old is not None and number.value is not None:
                rows.append(_row(number, old, number.value, paired.get((number.task, number.key))))
        return rows


def _row(number: Number, old: float, new: float, paired: Record | None) -> Record:
    row: Record = {"task": number.task, "metric": number.metric, "method": number.method}
    row |= {"baseline": old, "value": new, "difference": new - old}
    if paired is None:
        return {**row, "paired": False, "ci": None, "p": None, "p_holm": None, "test": None, "won": None, "lost": None}
    detail = {name: paired[name] for name in ("ci", "p", "p_holm", "test")}
    if paired["clusters"] is not None and paired["clusters"] < paired["groups"]:
        detail["clusters"] = paired["clusters"]
    return {**row, "paired": True, **detail, "won": len(paired["won"]), "lost": len(paired["lost"])}
