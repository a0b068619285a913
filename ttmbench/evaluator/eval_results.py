"""What came out of tasks: results as a program reads them, lines of samples files, comparison with a baseline."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from ttmbench._annotations import pd
from ttmbench._arrays import given_captions
from ttmbench._util.file_io import file_digest
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.matching import match_groups
from ttmbench.results.comparison import adjust_for_several, compare_runs, read_run, why_not_same
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import AT, CHOICE, RAW, Number, as_entries, key_of, to_frame
from ttmbench.results.ranks import Ranks, rank_values, ranking_record, summarise_ranks
from ttmbench.results.reader import ResultsFile, TaskGroups, Values, stored_groups, values_of_lines
from ttmbench.results.stored_files import save_ranks, save_scores
from ttmbench.results.summary import (
    Clusters,
    MethodScores,
    Resampling,
    connected,
    group_rows,
    mean_over_seeds,
    metric_values,
    number_of,
    summarise,
    tag_means,
)
from ttmbench.scoring.choice_arrays import Choices, choice_chance, choice_values
from ttmbench.types import Group, MetricSpec, Record, Scores

if TYPE_CHECKING:
    from ttmbench.scoring.debiasing import Likelihoods
    from ttmbench.scoring.dual_encoder import PreparedTask
    from ttmbench.scoring.inputs import Inputs


_SHOWN_TASKS = 5


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
        """The size of a task, and numbers in percent: of whole groups, else the first ones."""
        known = {key: value for key, value in self.results[task].items() if key in self.document["ci"][task]}
        of_groups = {key: value for key, value in known.items() if key.startswith(("group_match", "global"))}
        shown = [f"{key} {100 * value:.2f}" for key, value in (of_groups or known).items() if value is not None][:6]
        groups = _count(self.document["n-samples"][task]["effective"], "group")
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
    heads: list[Record] = [{"group_id": group.group_id} for group in groups]
    heads = heads if names is None else [{**head, "cluster": name} for head, name in zip(heads, names, strict=True)]
    shown = [{"captions": list(one.captions), "images": [image.name for image in one.images]} for one in groups]
    if isinstance(result, Scored):
        metrics = [metric for metric in result.metrics if metric.scope not in ("global", "task")]
        each = [(column.name, index, scores) for column in result.columns for index, scores in enumerate(column.scores)]
        for method, index, scores in each:
            matching = match_groups(scores.groups, result.spec.shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            seed = None if seeds is None or method == RAW else seeds[index]
            for at, group in enumerate(groups):
                yield {
                    **heads[at],
                    **{"method": method, "seed_index": index, "seed": seed},
                    **shown[at],
                    "scores": scores.groups[at].tolist(),
                    "matching": given_captions(matching.captions[at]),
                    "margin": float(matching.margin[at]),
                    "tie": bool(matching.tie[at]),
                    "metrics": {name: None if value is None else float(value[at]) for name, value in values.items()},
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


@dataclass(frozen=True)
class Data:
    """The data that the numbers of a task are of."""

    # in the order of the scores; of stored scores, ids and tags alone; none where only features are known
    groups: list[Group]
    source: Record  # where they came from
    fingerprint: str  # data digest; of stored scores, of task, version, shape and group ids
    clusters: Clusters | None = None  # which groups share images; None where that is not known

    @classmethod
    def of(cls, inputs: Inputs) -> Self:
        """The data that were scored."""
        digest, content = inputs.digest(), inputs.contents
        if not content:
            return cls(inputs.groups, inputs.source, digest)
        shown = [[content[image.name] for image in group.images] for group in inputs.groups]  # parts are their image
        number = {key: at for at, key in enumerate(dict.fromkeys(key for row in shown for key in row))}
        images = np.array([[number[key] for key in row] for row in shown])
        return cls(inputs.groups, inputs.source, digest, Clusters(np.array(connected(shown)), images))

    @classmethod
    def of_file(
        cls,
        spec: TaskSpec,
        source: Record,
        group_ids: Sequence[str] = (),
        tags: Sequence[Mapping[str, str]] | None = None,
        clusters: Clusters | None = None,
        pool: tuple[int, int] | None = None,
    ) -> Self:
        """Data of which only a file of scores, ranks (of a ``pool`` of images and captions) or answers is known.

        Files of one task, version, shape and group ids, in any order, are comparable.
        """
        shape = str(spec.shape) if pool is None else f"{pool[0]}x{pool[1]}"
        named = json.dumps(["stored", spec.task, spec.version, shape, sorted(group_ids)])
        groups = [Group(name, (), (), of) for name, of in zip(group_ids, tags or [{}] * len(group_ids), strict=True)]
        return cls(groups, source, hashlib.sha256(named.encode()).hexdigest(), clusters)

    @property
    def shares_images(self) -> bool:
        """Whether it is known that an image is in several groups, or several times in one."""
        return self.clusters is not None and len(np.unique(self.clusters.images)) < self.clusters.images.size

    @property
    def cluster_names(self) -> list[str] | None:
        """For each group the id of the first group of its cluster; None where that is not known."""
        if self.clusters is None:
            return None
        first: dict[int, str] = {}
        each = zip(self.clusters.groups.tolist(), self.groups, strict=True)
        return [first.setdefault(cluster, group.group_id) for cluster, group in each]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of one task: `Scored`, `Ranked`, `Answered` or `Judged`; `summarised` computes its numbers."""

    spec: TaskSpec  # the task
    metrics: Sequence[MetricSpec]  # to compute, in the order of the output
    data: Data  # the groups or images
    notes: Sequence[str] = ()  # what a reader should know
    seconds: Mapping[str, float] = field(default_factory=dict)  # step -> wall time
    # which raw scores an earlier run had cached: key and date of an entry, or blocks; None for none
    from_store: Record | None = None
    # pairs whose score is a bound or missing, and how many were scored; None for none
    undecided: Record | None = None
    numbers: Sequence[Number] = ()  # none until `summarised`
    # name -> a mean of means over the values of tags; likewise
    tag_means: Mapping[str, Record] = field(default_factory=dict)
    pool: tuple[int, int] | None = None  # of a task that ranks: number of images, and of captions or classes
    stored_as: ClassVar[str | None] = None  # kind of the file that `save` writes; None where there is nothing to write

    @property
    def shape(self) -> list[int]:
        """Images and captions of a group; of a task that ranks, all images and captions or classes."""
        return list(self.pool or self.spec.group.shape or ())

    def summarised(self, resampling: Resampling) -> Self:
        """The result with every metric, its interval and the means over tags."""
        raise NotImplementedError

    def records(self) -> Record:
        """The document's records of this task: ``methods``, ``ranking`` or ``choice``."""
        raise NotImplementedError

    def save(self, path: Path, config: RunConfig, adapted_on: str | None = None) -> None:
        """Writes scores or ranks of the task for `ttmbench score`, after the model was ``adapted_on`` another one."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """The document's ``n-samples``: how many groups the task has, how many were scored, how many clusters."""
        coverage = self.data.source.get("coverage")  # the data say how many there are where images are missing
        original = self.spec.group.n_groups if coverage is None else int(coverage["rows"])
        clusters = {} if self.data.clusters is None else {"clusters": len(np.unique(self.data.clusters.groups))}
        scored = len(self.data.groups) if self.pool is None else self.pool[0]
        return {"original": original or scored, "effective": scored, **clusters}


@dataclass(frozen=True, kw_only=True)
class Scored(TaskResult):
    """A task whose groups have scores."""

    columns: Sequence[MethodScores]  # the model as it is first, then each method in the order of the table
    # model and prepared inputs, while methods may need them; None for a model that scores pair by pair, unless the run
    # adapts it
    stage: PreparedTask | None = None
    parts: Likelihoods | None = None  # of scores that were debiased, likewise
    # of the captions, how many the model cuts; None for a model that does not report it
    truncated: dict[str, int] | None = None
    # tag -> value -> numbers of its groups
    breakdowns: Mapping[str, Mapping[str, Mapping[str, float | None]]] = field(default_factory=dict)
    # other task -> what the model adapted to this one is on it
    elsewhere: Mapping[str, TransferResult] = field(default_factory=dict)
    failure: Exception | None = None  # what ended the test-time stage early; what was reached before it is here
    stored_as = "scores"

    @property
    def raw(self) -> Scores:
        """Scores of the model as it is."""
        return self.columns[0].scores[0]

    @property
    def scores(self) -> dict[str, list[Scores]]:
        """Name of a column -> score arrays, one per seed."""
        return {column.name: column.scores for column in self.columns}

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: every metric of every column."""
        groups, clusters = self.data.groups, self.data.clusters
        numbers = summarise(self.columns, self.metrics, resampling, clusters, self.spec.task)
        if not self.spec.means:
            return replace(self, numbers=numbers)
        means = tag_means(groups, group_rows(self.scores, self.metrics), self.spec.means, clusters, resampling)
        return replace(self, numbers=numbers, tag_means=means)

    def records(self) -> Record:
        """The document's records of the methods, of tags, of captions that were cut, and of other tasks."""
        return {
            "methods": {column.name: dict(column.record) for column in self.columns if column.record},
            "breakdowns": self.breakdowns,
            "truncated": self.truncated,
            "also": {name: other.record() for name, other in self.elsewhere.items()},
        }

    def save(self, path: Path, config: RunConfig, adapted_on: str | None = None) -> None:
        """Writes the scores of every method, seed and iteration."""
        spec, data, several = self.spec, self.data, self.spec.group.true_captions
        about = {
            "task": spec.task,
            "task_version": str(spec.version),
            "model": config.model_name,
            "seeds": json.dumps(config.run_seeds),
            "group_ids": json.dumps([group.group_id for group in data.groups]),
            **({"true_captions": str(several)} if several > 1 else {}),
            **({} if self.raw.are_logits else {"logits": "false"}),
            "data_sha256": data.fingerprint,
            **({} if adapted_on is None else {"adapted_on": adapted_on}),
        }
        if data.clusters is not None and data.shares_images:
            about["clusters"] = json.dumps(data.clusters.groups.tolist())
            about["image_clusters"] = json.dumps(data.clusters.images.reshape(-1).tolist())
        save_scores(path, self.scores, about, {column.name: column.iterations for column in self.columns})


@dataclass(frozen=True, kw_only=True)
class Ranked(TaskResult):
    """A task whose candidates were ranked: retrieval or classification."""

    ranks: Mapping[str, Ranks]  # scope -> ranks of its queries
    of_query: Mapping[str, np.ndarray]  # scope -> the image that each query is about, where that is known
    pool: tuple[int, int]
    # what results report beside the numbers: classes, reranking
    about: Mapping[str, object] = field(default_factory=dict)
    # of ranks from a file: scope -> a number for each query, equal for those that are about one image; intervals go by
    # them, and without them by the images' clusters
    units: Mapping[str, np.ndarray] | None = None

    stored_as = "ranks"

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: every metric of the ranks."""
        clock, clusters = time.perf_counter(), self.data.clusters
        images = np.arange(self.pool[0]) if clusters is None else clusters.groups
        among = {scope: images[of] for scope, of in self.of_query.items()} if self.units is None else self.units
        numbers = summarise_ranks(self.ranks, self.metrics, *resampling, among, self.spec.task)
        return replace(self, numbers=numbers, seconds={**self.seconds, "count": time.perf_counter() - clock})

    def records(self) -> Record:
        """The document's ``ranking``."""
        return {"ranking": ranking_record(self.spec.kind, self.ranks, self.about)}

    def save(self, path: Path, config: RunConfig, adapted_on: str | None = None) -> None:
        """Writes the ranks of both sides."""
        data = self.data
        about = {"task": self.spec.task, "model": config.model_name, "data_sha256": data.fingerprint}
        clusters = data.clusters.groups if data.clusters is not None and data.shares_images else None
        save_ranks(path, self.ranks, self.of_query, about, clusters)


@dataclass(frozen=True, kw_only=True)
class Answered(TaskResult):
    """A task whose forced choices were answered in words; its numbers have the method ``choice``."""

    choices: Choices  # which questions were answered correctly
    record: Record  # of the results document; its ``orders`` says how often each question was asked
    answers: Sequence[list[Record]] | None = None  # those of each group, for the samples; None of answers from a file

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: the scores that follow from the questions that were asked."""
        data, orders = self.data, self.record["orders"]
        values, shape = choice_values(self.choices), self.spec.shape
        chance = choice_chance(shape.images, shape.captions, orders)
        about = {name: {"track": "forced_choice", "chance": chance[name]} for name in values}
        return replace(self, **_of_values(self.spec, data, values, CHOICE, about, resampling))

    def records(self) -> Record:
        """The document's ``choice``."""
        return {CHOICE: self.record}


@dataclass(frozen=True, kw_only=True)
class Judged(TaskResult):
    """A task of which only the value of each metric for each group is known, from a file."""

    values: Mapping[str, np.ndarray]  # metric -> fraction [groups]

    def summarised(self, resampling: Resampling) -> Self:
        """As `TaskResult.summarised`: means, with the chance levels of scores."""
        data, shape = self.data, self.spec.shape
        values = {metric.name: self.values[metric.name] for metric in self.metrics}
        about = {
            one.name: {
                "track": one.track,
                "chance": None if one.chance is None else one.chance(shape.images, shape.captions),
            }
            for one in self.metrics
        }
        return replace(self, **_of_values(self.spec, data, values, RAW, about, resampling))

    def records(self) -> Record:
        """None: nothing was done with the model."""
        return {}


def _of_values(
    spec: TaskSpec,
    data: Data,
    values: Mapping[str, np.ndarray],
    method: str,
    about: Mapping[str, Mapping[str, Any]],
    resampling: Resampling,
) -> dict[str, Any]:
    """``numbers`` and ``tag_means`` of metrics of which only the values of groups are known, so that ties are not."""
    each = {metric: np.asarray(row, np.float64) for metric, row in values.items()}
    among = None if data.clusters is None else data.clusters.groups
    numbers = [number_of(spec.task, name, method, row, resampling, among, **about[name]) for name, row in each.items()]
    rows = {(name, method): row[None] for name, row in each.items()}
    return {"numbers": numbers, "tag_means": tag_means(data.groups, rows, spec.means, data.clusters, resampling)}


@dataclass(frozen=True)
class TransferResult:
    """Another task, measured with the model as it was and as each seed of TTM and of other methods trained it."""

    result: TaskResult  # of the other task; its columns and numbers are ``none`` and those of the methods
    seeds: Mapping[str, Sequence[int]]  # of each method
    differences: Mapping[str, Mapping[str, object]]  # likewise, as `ttmbench.results.summary.differences` has them
    seconds: float  # all its measurements took

    def record(self) -> Record:
        """The document's record. There is no track: it ranks nowhere."""
        result, entries = self.result, as_entries(self.result.numbers)
        return {
            **{key: entries[key] for key in ("results", "ci", "chance", "ties")},
            "methods": {
                method: {"seeds": list(self.seeds[method]), "differences": dict(gains)}
                for method, gains in self.differences.items()
            },
            "version": result.spec.version,
            "matching": result.spec.matching,
            "n-samples": result.counts(),
            "fingerprint": result.data.fingerprint,
            "shape": result.shape,
            "seconds": self.seconds,
        }
