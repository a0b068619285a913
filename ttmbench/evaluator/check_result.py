"""A results document checked: every number is computed again from the scores, ranks or answers stored beside it."""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ttmbench._util.console import one_line
from ttmbench._util.file_io import file_digest, read_json_lines
from ttmbench.config import RunConfig, make_run_config
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec, find_task
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.evaluator.eval_results import Answered, Data, Scored, TaskResult
from ttmbench.evaluator.one_task import gains_of
from ttmbench.evaluator.output import groups_digest
from ttmbench.evaluator.score_files import CSV, metrics_of_scores, scored_task
from ttmbench.evaluator.stored_ranks import stored_ranks
from ttmbench.model import ChoiceStyle
from ttmbench.plugins.registry import Registry
from ttmbench.results.document import AlsoRecord, Artifact, Part, ResultsDocument
from ttmbench.results.numbers import RAW, STORED_SCORES, as_entries, key_of, read_key, supervised_tracks
from ttmbench.results.reader import read_document
from ttmbench.results.stored_files import SAMPLES, read_scores
from ttmbench.results.summary import Clusters, aggregates, breakdowns, connected, metric_mean
from ttmbench.scoring.choice_arrays import choice_values
from ttmbench.scoring.forced_choice import Asked, Given, choices_of, read_answer
from ttmbench.scoring.inputs import Inputs
from ttmbench.types import Group

TOLERANCE = 1e-12  # of floats, relative to the larger one and to 1: another CPU may round the last bits
MOST_RESAMPLES = 100_000  # a document may state any number
_CONFIG = ("metrics", "limit", "seed", "bootstrap_iters", "interval", "task_args")


def check_result(path: Path, registry: Registry, data_dir: str | None = None, *, with_data: bool = True) -> Checked:
    """Computes the numbers of a results document again, from the files beside it, and compares them.

    ``with_data``: also ids, tags and digest are compared with the tasks' data, where these are available locally.
    DataError if the file is not a results document.
    """
    checked = Checked(path.parent, read_document(path), registry, data_dir, with_data)
    try:
        checked.run()
    except TtmbenchError as error:
        checked.wrong.append(f"config: {error}")
    return checked


@dataclass
class Checked:
    """A results document, and what was found in it."""

    folder: Path
    document: ResultsDocument
    registry: Registry
    data_dir: str | None
    with_data: bool
    wrong: list[str] = field(default_factory=list)  # the key or file, what it is, and what it should be
    notes: list[str] = field(default_factory=list)  # what could not be compared, and why
    numbers: int = 0  # values that were computed again
    # tasks whose scores, ranks or answers were not stored, or what of a task (in parentheses) does not follow from them
    not_stored: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)  # metrics of the task that its samples are not enough for

    def run(self) -> None:
        """Checks files, then each task, then the means over tasks."""
        document = self.document
        if document.status != "done":
            self.notes.append(f"the run is not complete: its status is {document.status}")
        if not document.results:
            self.wrong.append("results: no task is finished")
            return
        problems = {name: _file_problem(self.folder, name, about) for name, about in document.artifacts.items()}
        self.wrong += [f"artifacts.{name}: {why}" for name, why in problems.items() if why]
        self.sound = {name for name, why in problems.items() if not why}
        stated = {name: document.config[name] for name in _CONFIG if document.config.get(name) is not None}
        options = {"model": "none", "tasks": list(document.results), "data_dir": self.data_dir, "offline": True}
        self.config: RunConfig = make_run_config({**stated, **options}, "its configuration")
        if self.config.bootstrap_iters > MOST_RESAMPLES:
            raise DataError(f"bootstrap_iters is {self.config.bootstrap_iters}, at most {MOST_RESAMPLES} are computed")
        self.resampling = (self.config.bootstrap_iters, self.config.seed, self.config.interval)
        self.same("groups", document.groups, aggregates(document.results, document.group_subtasks))
        for name in document.results:
            self.left_out.clear()
            try:
                self.task(name)
            except TtmbenchError as error:
                self.wrong.append(f"{name}: {error}")

    def task(self, name: str) -> None:
        """Checks one task; DataError if what is stored is not of the task."""
        document = self.document
        task = self.known_task(name)
        data = None if task is None else self.data(name, task)
        spec = TaskSpec.model_validate(document.configs[name]) if task is None else task.spec
        if data is not None:
            stated = document.datasets[name]
            for key, value in (("task_hashes", document.task_hashes[name]), ("fingerprint", stated.fingerprint)):
                self.same(f"{key}.{name}", value, data.fingerprint, "the data have")
            if stated.groups_sha256 is not None:
                self.same(f"datasets.{name}.groups_sha256", stated.groups_sha256, groups_digest(data.groups))
        result = self.stored(name, spec, data)
        if result is None:
            return
        result = result.summarised(self.resampling)
        self.values(name, result)
        if isinstance(result, Scored):
            self.training(name, result)
            if data is not None:
                tags = breakdowns(data.groups, result.scores, result.metrics, spec.means)
                self.same(f"breakdowns.{name}", _plain(document.breakdowns.get(name, {})), tags)
        if data is not None:
            self.same(f"tag_means.{name}", _plain(document.tag_means.get(name, {})), result.tag_means)

    def known_task(self, name: str) -> TaskFile | None:
        """The registered task of the document's version; None, with a note, if there is none."""
        if name not in self.registry.task_files:
            self.notes.append(f"{name}: no such task here, so the data are not compared (--include_path)")
            return None
        task, version = find_task(self.registry, name).with_source(self.config.task_args), self.document.versions[name]
        task = task.with_metrics(self.registry, self.config.metrics)
        if task.spec.version == version:
            return task
        self.notes.append(f"{name}: of version {version}, here it is {task.spec.version}: data are not compared")
        return None

    def data(self, name: str, task: TaskFile) -> Data | None:
        """The task's data; None, with a note, if they are not available locally or a part of them was used."""
        document, stated = self.document, self.document.datasets[name]
        if stated.source.get("kind") in (STORED_SCORES, "stored_features") or not self.with_data:
            return None
        try:
            if document.config.get("samples") is not None:
                raise DataError("the run used the groups of --samples")
            loaded = load_task_data(self.registry, task, self.config.limit, True, self.data_dir)
            if loaded.source.get("coverage") != _plain(stated.coverage):
                raise DataError("other groups have their images here")
            known = Data.of(Inputs(loaded.groups, loaded.source))
        except TtmbenchError as error:
            self.notes.append(f"{name}: ids, tags and digest are not compared with the data ({error})")
            return None
        return known

    def stored(self, name: str, spec: TaskSpec, data: Data | None) -> TaskResult | None:
        """What the run stored of a task; None, which is noted, if it stored nothing."""
        is_choice = name in self.document.choice
        kinds = ("samples",) if is_choice else ("scores", "samples") if spec.kind == "groups" else ("ranks",)
        path = self.file(kinds[:1] if self.document.datasets[name].source.get("format") == CSV else kinds, name)
        if is_choice and path is not None and path.suffix == ".gz":  # without answers
            self.not_stored.append(name)
            path = None
        if path is None:
            return None
        if is_choice:
            return self.answered(name, spec, path, data)
        if spec.kind == "groups":
            return self.scored(name, spec, path, data)
        limit = self.document.n_samples[name].effective
        ranked = stored_ranks([path], spec, self.registry, limit, 1.0)
        if data is not None and len(data.groups) != ranked.pool[0]:
            raise DataError(f"{path.name} has ranks of {ranked.pool[0]} images, the data have {len(data.groups)}")
        record = self.document.ranking[name]
        self.same(f"ranking.{name}.queries", record.queries, {scope: len(of) for scope, of in ranked.ranks.items()})
        candidates = {scope: of.candidates for scope, of in ranked.ranks.items()}
        self.same(f"ranking.{name}.candidates", record.candidates, candidates)
        return ranked if data is None else replace(ranked, data=data)

    def file(self, kinds: Sequence[str], task: str, other: str | None = None) -> Path | None:
        """The first file of these kinds that there is, None if it was changed; None, which is noted, without one."""
        for wanted in ((kind, task, other) for kind in kinds):
            for name, about in self.document.artifacts.items():
                if (about.kind, about.task, about.measured_on) == wanted:
                    return self.folder / name if name in self.sound else None
        self.not_stored.append(task if other is None else f"{task}@{other}")
        return None

    def scored(self, name: str, spec: TaskSpec, path: Path, data: Data | None, other: str | None = None) -> Scored:
        """Stored scores as the task ``name`` (or ``other``, measured after adapting to it) with its metrics."""
        stored, measured = read_scores(path, spec.shape), other or name
        record = self.document.also[name][other] if other else None
        digest = record.fingerprint if record is not None else self.document.task_hashes[name]
        metrics = metrics_of_scores(spec, self.registry, False)
        if stored.format == SAMPLES:  # which have no scores across groups or between captions, and no scale
            metrics = [metric for metric in metrics if metric.scope in ("group", "task") and not metric.needs_logits]
            self.left_out |= set(spec.metrics) - {metric.name for metric in metrics}
            results = record.results if record is not None else self.document.results[name]
            if lost := sorted(one for one in self.left_out if results.get(key_of(one, RAW)) is not None):
                self.not_stored.append(f"{name if other is None else f'{name}@{other}'} ({', '.join(lost)})")
        for key, value in () if stored.format == SAMPLES else (("task", measured), ("data_sha256", digest)):
            if stored.about.get(key) != value:
                raise DataError(f"{path.name} is of {key} {stored.about.get(key)!s:.80}, the document has {value}")
        counts = record.n_samples if record is not None else self.document.n_samples[name]
        if data is None:
            clusters, size = stored.clusters, len(stored.group_ids)
            if clusters is None and counts.clusters is not None:  # each group is one
                clusters = Clusters(np.arange(size), np.arange(size * spec.shape.images).reshape(size, -1))
            groups = [Group(group, (), (), {}) for group in stored.group_ids]
            data = Data(groups, self._coverage(name) if other is None else {}, digest, clusters)
        elif [group.group_id for group in data.groups] != stored.group_ids:
            raise DataError(f"{path.name} has group ids that are not those of the data, in their order")
        result = scored_task(spec, stored, metrics, {}, self.registry)
        levels = {} if other else self.document.chance[name]
        columns = []
        for column in result.columns:
            keys = {metric.name: key_of(metric.name, column.name) for metric in result.metrics}
            own = {metric: levels[key] for metric, key in keys.items() if key in levels}
            iterations = stored.iterations.get(column.name, [])
            columns.append(replace(column, iterations=iterations, chance=own or None))
        return replace(result, data=data, columns=columns)

    def _coverage(self, name: str) -> dict[str, object]:
        coverage = self.document.datasets[name].coverage
        return {} if coverage is None else {"coverage": _plain(coverage)}

    def answered(self, name: str, spec: TaskSpec, path: Path, data: Data | None) -> Answered:
        """Stored answers, read again: which option each chooses."""
        record = self.document.choice[name]
        style = ChoiceStyle(record.order or "random", bool(record.side_by_side))
        groups, clusters, given = list[Group](), list[str](), list[Given]()
        for number, line in read_json_lines(path):
            try:
                group = Group(line["group_id"], (), tuple(line["captions"]), line.get("tags", {}))
                clusters.append(line.get("cluster", group.group_id))
                for answer in line["answers"]:
                    about, subject = answer["question"].split()
                    side, order = _SIDES[about], tuple(answer["order"])
                    asked = Asked(len(groups), side, int(subject) - 1, order, answer["prompt"])
                    given.append(Given(asked, answer["answer"], read_answer(answer["answer"], asked, group, style)))
                groups.append(group)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise DataError(f"{path.name}: line {number} is not one of answers ({error!r:.80})") from None
        asked_of_group = min(spec.shape.images, spec.shape.captions) * record.orders * len(record.asked)
        if len(given) != len(groups) * asked_of_group:
            raise DataError(f"{path.name} has {len(given)} answers of {len(groups)} groups with {asked_of_group} each")
        if data is not None and [group.group_id for group in data.groups] != [group.group_id for group in groups]:
            raise DataError(f"{path.name} has group ids that are not those of the data, in their order")
        choices = choices_of(given, len(groups), spec.shape)
        if data is None:
            images = np.arange(len(groups) * spec.shape.images).reshape(len(groups), -1)
            known = Clusters(np.array(connected([[cluster] for cluster in clusters])), images)
            data = Data(groups, self._coverage(name), "", known)
        metrics = [self.registry.metrics[metric] for metric in choice_values(choices)]
        return Answered(spec=spec, metrics=metrics, data=data, choices=choices, record={"orders": record.orders})

    def values(self, name: str, result: TaskResult) -> None:
        """Compares everything that follows from the values of a task's groups."""
        document, entries = self.document, as_entries(result.numbers)
        tracks = entries["tracks"] if not document.model_info.finetuned else supervised_tracks(entries["tracks"])
        for key in ("results", "ci", "chance", "ties"):
            self.same(f"{key}.{name}", getattr(document, key)[name], entries[key])
        self.same(f"tracks.{name}", document.tracks[name], tracks)
        better = {metric.name: metric.higher_is_better for metric in result.metrics}
        self.same(f"higher_is_better.{name}", document.higher_is_better[name], better)
        counts, stated = result.counts(), document.n_samples[name]
        for key, count in counts.items():
            self.same(f"n-samples.{name}.{key}", getattr(stated, key), count)
        self.same(f"datasets.{name}.n_groups", document.datasets[name].n_groups, counts["effective"])
        self.same(f"datasets.{name}.shape", document.datasets[name].shape, result.shape)

    def training(self, name: str, result: Scored) -> None:
        """Compares the metrics of each iteration, and what adapted models are on other tasks."""
        for column in result.columns:
            record = self.document.methods.get(name, {}).get(column.name)
            if record is None:
                continue
            self.same(f"{name}.{column.name}.seeds", len(record.seeds), len(column.scores))
            lines = record.iterations or []
            for at, seed in enumerate(record.seeds if lines else []):
                steps = column.iterations[at] if at < len(column.iterations) else []
                after = [*steps, column.scores[at]]
                mine = [line for line in lines if line.seed == seed]
                if not column.iterations and len(mine) > 1:  # of samples, which have the last alone
                    self.not_stored.append(f"{name} (iterations before the last)")
                    mine = mine[-1:]
                self.same(f"{name}.{column.name}.iterations of seed {seed}", len(mine), len(after))
                for line, scores in zip(mine, after, strict=False):
                    place = f"{name}.{column.name}.seed {seed}.iteration {line.iteration}.metrics"
                    means = {metric.name: metric_mean(metric, scores) for metric in result.metrics}
                    self.same(place, line.metrics, means)
            if record.differences is not None:
                expected = gains_of(result, column.scores, self.config)
                self.same(f"{name}.{column.name}.differences", _plain(record.differences), expected)
        for other, of_other in self.document.also.get(name, {}).items():
            self.transfer(name, other, of_other)

    def transfer(self, name: str, other: str, record: AlsoRecord) -> None:
        """Compares the numbers of another task after adaptation."""
        task = find_task(self.registry, other) if other in self.registry.task_files else None
        if task is None or task.spec.kind != "groups":
            self.notes.append(f"also.{name}.{other}: not a task with stored scores here")
            return
        path = self.file(("also_scores", "also_samples"), name, other)
        if path is None:
            return
        result = self.scored(name, task.spec, path, None, other).summarised(self.resampling)
        place, entries = f"also.{name}.{other}", as_entries(result.numbers)
        for key in ("results", "ci", "chance", "ties"):
            self.same(f"{place}.{key}", getattr(record, key), entries[key])
        for method, stated in record.methods.items():
            if method in result.scores:
                gains = gains_of(result, result.scores[method], self.config)
                self.same(f"{place}.{method}.differences", _plain(stated.differences), gains)

    def same(self, place: str, found: object, expected: object, by: str = "what is stored gives") -> None:
        """Compares JSON values; each that differs is reported with its key."""
        if isinstance(found, Mapping) and isinstance(expected, Mapping):
            for key in (key for key in dict.fromkeys([*expected, *found]) if read_key(key).metric not in self.left_out):
                self.same(f"{place}.{key}", found.get(key, _ABSENT), expected.get(key, _ABSENT), by)
            return
        self.numbers += 1
        if not _agree(found, expected):
            self.wrong.append(f"{place}: is {one_line(str(found), 160)}; {by} {one_line(str(expected), 160)}")


_ABSENT = "missing"
_SIDES: dict[str, Literal["text", "image"]] = {"image": "text", "caption": "image"}  # subject of a question -> its side


def _agree(found: object, expected: object) -> bool:
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    if isinstance(found, float) and isinstance(expected, int | float):
        return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return found == expected


def _plain(value: object) -> object:
    """Parts of a document as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(value, Part) else value


def _file_problem(folder: Path, name: str, about: Artifact) -> str | None:
    """Why a file that a document names cannot be used; None if it is as the document says."""
    path = folder / name
    if Path(name).name != name or "\\" in name:
        return "is not the name of a file beside the document"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file (links are not followed)"
        if status.st_size != about.bytes or file_digest(path) != about.sha256:
            return "is another file: its size or sha256 is not that of the document"
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    return None
