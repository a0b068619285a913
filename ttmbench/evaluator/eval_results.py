"""What a run learns: the results document, the files it is written to, and what a program reads from it."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ttmbench._annotations import pd
from ttmbench._arrays import given_captions
from ttmbench._util import machine
from ttmbench._util.console import one_line, warn
from ttmbench._util.file_io import file_digest
from ttmbench._util.third_party_errors import describe, error_line, phase, phase_of
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.adapters import finetuned, finetuning_shown, fits_note, model_info
from ttmbench.evaluator.resume import DataNow, RunDirectory, RunKey, groups_digest
from ttmbench.evaluator.task_result import Answered, Judged, Ranked, Scored, TaskResult
from ttmbench.matching import match_groups
from ttmbench.model import Model, overrides
from ttmbench.results.comparison import adjust_for_several, compare_runs, read_run, why_not_same
from ttmbench.results.document import ResultsDocument, keys_by_task
from ttmbench.results.numbers import (
    AT,
    CHOICE,
    RAW,
    TRACK_ORDER,
    Number,
    as_entries,
    key_of,
    supervised_tracks,
    to_frame,
)
from ttmbench.results.ranks import rank_values
from ttmbench.results.reader import ResultsFile, TaskGroups, Values, stored_groups, values_of_lines
from ttmbench.results.stored_files import SCHEMA_VERSION
from ttmbench.results.summary import aggregates, clusters_note, group_rows, metric_values, shared_images_note
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
        """Task -> filter -> metric -> group id -> value, a mean over seeds: what `ttmbench.compare` pairs.

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
        """Task -> filter -> `Scores`, one per seed, of tasks that this program scored or whose scores it read.

        They are float32, of stored scores float64 where these are. There are none of results that were read back, of
        tasks that an earlier run of the same command had done; those of ranks and of forced choices are empty.
        """
        return {name: result.scores if isinstance(result, Scored) else {} for name, result in self.tasks.items()}

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """Task -> ``metric,filter`` -> fraction."""
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
            One row a task, metric and filter, and behind these what adapted models are on other tasks (task ``adapted
            to@measured on``, and ``adapted_to``): ``model``, ``task``, ``metric``, ``filter``, ``method`` (in words),
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
    match result:
        case Scored():
            yield from _lines_of_scores(result, seeds)
        case Answered():
            yield from _lines_of_answers(result)
        case Ranked():
            yield from _lines_of_ranks(result)
        case Judged():
            yield from _lines_of_values(result)


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
            groups |= {
                f"{name}{AT}{other}": task_groups(transfer.result) for other, transfer in result.elsewhere.items()
            }
    return groups


def _values(result: Scored) -> dict[str, dict[str, dict[str, float]]]:
    """Column -> metric -> group id -> value."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    ids = [group.group_id for group in result.data.groups]
    for (metric, name), rows in group_rows(result.scores, result.metrics).items():
        values.setdefault(name, {})[metric] = dict(zip(ids, rows.mean(axis=0).tolist(), strict=True))
    return values


def _lines_of_scores(result: Scored, seeds: Sequence[int] | None) -> Iterator[Record]:
    cluster_of, groups = result.data.cluster_names, result.data.groups
    metrics = [metric for metric in result.metrics if metric.scope != "global"]
    for column in result.columns:
        for index, scores in enumerate(column.scores):
            matching = match_groups(scores.groups, result.spec.shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            for position, group in enumerate(groups):
                yield {
                    "group_id": group.group_id,
                    **({} if cluster_of is None else {"cluster": cluster_of[position]}),
                    "filter": column.name,
                    "seed_index": index,
                    "seed": None if seeds is None or column.name == RAW else seeds[index],
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


def _lines_of_answers(result: Answered) -> Iterator[Record]:
    data, values = result.data, choice_values(result.choices)
    cluster_of = data.cluster_names
    for position, group in enumerate(data.groups):
        line: Record = {
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


def _lines_of_values(result: Judged) -> Iterator[Record]:
    cluster_of = result.data.cluster_names
    for position, group in enumerate(result.data.groups):
        yield {
            "group_id": group.group_id,
            **({} if cluster_of is None else {"cluster": cluster_of[position]}),
            **{"filter": RAW, "seed_index": 0, "seed": None},
            "metrics": {metric: float(values[position]) for metric, values in result.values.items()},
            "tags": dict(group.tags),
        }


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
            common = {"filter": RAW, "seed_index": 0, "seed": None}
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
            paired = {(row["task"], key_of(row["metric"], row["filter"])): row for row in compared}
        rows = []
        for number in this.document.numbers:
            old = before.get((number.task, number.key))
            if old is not None and number.value is not None:
                rows.append(_row(number, old, number.value, paired.get((number.task, number.key))))
        return rows


def _row(number: Number, old: float, new: float, paired: Record | None) -> Record:
    row: Record = {"task": number.task, "metric": number.metric, "filter": number.method}
    row |= {"baseline": old, "value": new, "difference": new - old}
    if paired is None:
        return {**row, "paired": False, "ci": None, "p": None, "p_holm": None, "test": None, "won": None, "lost": None}
    detail = {name: paired[name] for name in ("ci", "p", "p_holm", "test")}
    if paired["clusters"] is not None and paired["clusters"] < paired["groups"]:
        detail["clusters"] = paired["clusters"]
    return {**row, "paired": True, **detail, "won": len(paired["won"]), "lost": len(paired["lost"])}


_COUNTS = ("requests", "answers", "answers_without_count", "prompt_tokens", "completion_tokens", "cost")
_RARE = (
    *(CHOICE, "undecided", "ranking", "truncated", "seen_in_training", "tag_means", "also", "methods"),
    "efficiency",
)


class RunRecord:
    """Collects the results of a run and saves them as the results document while the run proceeds.

    ``datasets`` maps a dataset to its tasks, whose mean is reported once all of them are done.
    """

    def __init__(
        self,
        model_name: str,
        config: Mapping[str, object],
        command: Sequence[str],
        started: datetime,
        tasks: Sequence[str] = (),
        datasets: Mapping[str, Sequence[str]] | None = None,
        key: RunKey | None = None,
        output: RunDirectory | None = None,
        clock: float | None = None,
    ) -> None:
        self._tasks, self._datasets, self._key, self._output = list(tasks), datasets or {}, key, output
        self.config: Record = dict(config)
        self._model_name, self._date = model_name, started
        self._command = shlex.join(command).encode("utf-8", "replace").decode("utf-8")
        self._clock = time.perf_counter() if clock is None else clock
        self._git_hash, self._packages = machine.git_hash(), machine.packages()
        self.results: dict[str, TaskResult] = {}
        self.errors: list[Record] = []
        self.model_info: Record = {}
        self.baseline: Record | None = None
        self._model: Model | None = None  # that reports its usage
        self._earlier: dict[str, Record] = {}
        self._earlier_seconds = 0.0
        self._earlier_usage: Record = {}
        self.is_new = output is None or output.previous is None  # else the document is still an earlier run's
        self._task: str | None = None  # under way
        self._unsaved = self._saving = 0.0  # seconds of work that no document has, and that writing the last one took
        self._states: list[Path] = []  # checkpoints of tasks that are done
        self._document: ResultsDocument | None = None  # as last saved
        self._used: dict[str, Record] = {}  # task -> memory that it took

    def describe_model(self, model: Model, trained_on: Sequence[str] | None) -> None:
        """Records what the model states about itself; ``trained_on`` names image collections, None if unknown."""
        collections = None if trained_on is None else list(trained_on)
        self.model_info = {**model_info(model), "trained_on": collections}
        finetuning = finetuned(model)
        self._model = model if overrides(model, "usage") else None
        if finetuning is not None:
            self.model_info["finetuned"] = finetuning_shown(finetuning)

    def resume(self, data_of: Callable[[str], DataNow | None]) -> list[str]:
        """Takes over and returns the tasks that an earlier run finished; ``data_of`` gives None for absent data."""
        output, done = self._output, list[str]()
        if output is not None and output.previous is not None:
            done = output.keep_completed(self.model_info["fingerprint"], data_of)
            previous = output.previous
            if previous is not None:  # of this model
                document = previous.to_dict()
                for task in done:
                    known = (key for key in keys_by_task() if task in document.get(key, {}))
                    self._earlier[task] = {key: document[key][task] for key in known}
                self.errors.extend(error for error in document["errors"] if error["task"] in done)
                self._date = datetime.fromtimestamp(previous.date).astimezone()
                self._earlier_seconds = previous.total_evaluation_time_seconds
                self._earlier_usage = previous.model_info.get("usage") or {}
            self.is_new = True
        self._save_running()
        return done

    @contextmanager
    def recording(self, notify: Callable[..., object]) -> Iterator[None]:
        """Saves the document and notifies plugins at both ends; an error carries the results of the finished tasks."""
        self._save_running()
        notify("ttmbench_run_started", config=deepcopy(self.config))
        folder = None if self._output is None else self._output.files.folder
        try:
            yield
            document = self._save("failed" if self.errors else "done")
        except BaseException as error:
            if not any(failed["task"] == self._task for failed in self.errors):
                self._fail(None if self._task in self.results else self._task, phase_of(error, "run"), error)
            document = self._save_after(error)
            notify("ttmbench_run_finished", result=document.to_dict(), run_dir=folder)
            if document.results:
                error.results = self.evaluated(is_whole=False)  # type: ignore[attr-defined]
            raise
        notify("ttmbench_run_finished", result=document.to_dict(), run_dir=folder)
        if self._output is not None and self._output.unsent is not None:
            self._output.unsent.results = self.evaluated()
            raise self._output.unsent

    @contextmanager
    def task(self, name: str, state: Path | None, is_last_failure: bool) -> Iterator[None]:
        """Records how a task ends; its checkpoints in ``state`` are removed once a document with the task is saved."""
        self._task, began = name, time.perf_counter()
        try:
            machine.peak_memory(restart=True)
            try:
                yield
            finally:
                self._used[name] = machine.peak_memory()
        except Exception as error:
            self._fail(name, phase_of(error, "run"), error)
            if is_last_failure:
                raise
            warn(f"task {name} failed: {self.errors[-1]['message']}")
        else:
            self._states += [] if state is None else [state]
        self._unsaved += time.perf_counter() - began
        # A document takes longer to write the more tasks it has: work that took less than that can wait for the next.
        if self._unsaved >= self._saving or self.errors:
            self._save_running()

    def add(self, result: TaskResult) -> None:
        """Takes a task's result; raises the failure that ended its test-time stage early, if one did."""
        self.results[result.spec.task] = result
        if isinstance(result, Scored) and result.failure is not None:
            raise result.failure

    def compare_with(self, baseline: Baseline) -> None:
        """Adds the comparison with another run."""
        results = self.evaluated(self.document("done"))
        iterations, seed = self.config["bootstrap_iters"], self.config["seed"]
        self.baseline = baseline.entry(results.typed, results.task_groups, iterations, seed)

    def evaluated(self, document: ResultsDocument | None = None, is_whole: bool = True) -> EvalResults:
        """The results, by default as last saved; of a whole run with the sample values of resumed tasks."""
        document, output = document or self._document, self._output
        assert document is not None, "a document was saved before"
        if output is None:
            return EvalResults(document, dict(self.results))
        path, address = output.results
        groups: dict[str, TaskGroups] = {}
        if is_whole and any(task not in self.results for task in document.results):
            groups = stored_groups(output.files.folder, document)
        return EvalResults(document, dict(self.results), path, groups, address)

    def _save_running(self) -> None:
        if self._output is not None and self.is_new:
            self._save("running")

    def _save(self, status: str) -> ResultsDocument:
        """The document as it is now, written; an earlier run's is left alone until its tasks are taken over."""
        began, document = time.perf_counter(), self.document(status)
        if self._output is not None and self.is_new:
            with phase("save"):
                self._output.files.write_results(document.to_dict())
                self._output.put()
            while self._states:  # these tasks are done, so nothing resumes from their checkpoints
                shutil.rmtree(self._states.pop(), ignore_errors=True)
        self._unsaved, self._saving, self._document = 0.0, time.perf_counter() - began, document
        return document

    def _save_after(self, error: BaseException) -> ResultsDocument:
        """Saves the document of a failed run; if saving fails too, the first error is the one to raise."""
        status = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            return self._save(status)
        except TtmbenchError as second:
            if phase_of(error, "run") != "save":
                warn(str(second))
            self._document = self.document(status)
            return self._document

    def _fail(self, task: str | None, stage: str, error: BaseException) -> None:
        """Records a failure."""
        cause = error.__cause__ if type(error) is TtmbenchError and error.__cause__ is not None else error
        message = one_line(str(error))
        self.errors.append({"task": task, "stage": stage, "type": type(cause).__name__, "message": message})

    def _usage(self) -> Record:
        """What the model has used; one that fails to report it does not end the run."""
        try:
            used = {} if self._model is None else dict(self._model.usage())
            json.dumps(used, allow_nan=False)
        except Exception as error:
            return {"error": error_line(error)}
        return _with_earlier(used, self._earlier_usage)

    def document(self, status: str) -> ResultsDocument:
        """The results document as it is now."""
        per_task, failed = self._per_task(), {error["task"] for error in self.errors}
        done = per_task["results"]
        used = {track for tracks in per_task["tracks"].values() for track in tracks.values()}
        groups = aggregates(done, self._datasets)
        notes = {name: shared_images_note(per_task["configs"], self._datasets[name]) for name in groups}
        notes = {name: lines for name, lines in notes.items() if lines}
        document = {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "task_status": {
                name: "failed" if name in failed else "done" if name in done else "pending"
                for name in self._tasks or list(done)
            },
            "track": next((track for track in reversed(TRACK_ORDER) if track in used), "zero_shot"),
            "groups": groups,
            "group_subtasks": {name: list(self._datasets[name]) for name in groups},
            **({"group_notes": notes} if notes else {}),
            **per_task,
            **({} if self.baseline is None else {"baseline": self.baseline}),
            "errors": self.errors,
            "config": self.config,
            "run_key": None if self._key is None else self._key.sha256,
            "model_name": self._model_name,
            "model_info": {**self.model_info, **({} if self._model is None else {"usage": self._usage()})},
            "date": self._date.timestamp(),
            "git_hash": self._git_hash,
            "packages": self._packages,
            **({} if self._key is None else {"code": self._key.content["code"]}),
            "hardware": machine.hardware(),
            "total_evaluation_time_seconds": self._earlier_seconds + time.perf_counter() - self._clock,
            "command": self._command,
            "artifacts": {} if self._output is None else dict(self._output.files.artifacts),
        }
        try:
            return ResultsDocument.of(document)
        except ValidationError as error:  # a plugin's metric or a mistake of ours: what no reader would take
            raise TtmbenchError(f"the results document is not as its schema says: {describe(error)}") from None

    def _per_task(self) -> dict[str, Record]:
        """The keys with an entry for each task, the tasks in the order of the run; some keys only where they are."""
        collections = self.model_info.get("trained_on") or ()
        finetuning = self.model_info.get("finetuned")
        now = {name: _entries(result, collections, finetuning) for name, result in self.results.items()}
        for name, result in self.results.items():
            if name in self._used:
                now[name]["efficiency"] = {**result.rates(), **self._used[name]}
        known = {**self._earlier, **now}
        order = [*self._tasks, *(name for name in known if name not in self._tasks)]
        by_key: dict[str, Record] = {
            key: {name: known[name][key] for name in order if name in known and key in known[name]}
            for key in keys_by_task()
        }
        return {key: entries for key, entries in by_key.items() if entries or key not in _RARE}


def _entries(result: TaskResult, trained_on: Sequence[str], finetuning: Record | None) -> Record:
    """The document's entries of one task, by key."""
    entries, spec = as_entries(result.numbers), result.spec
    seen = [name for name in spec.images_from if name in trained_on]
    counts, coverage = result.counts(), result.data.source.get("coverage")
    notes = list(result.notes)
    if counts.get("clusters", result.n_groups) < result.n_groups:
        notes.append(clusters_note(result.n_groups, counts["clusters"]))
    if seen:
        notes.append(f"the model was trained on images of {', '.join(seen)}, which this task uses")
    notes += fits_note(finetuning, spec.task)
    if coverage is not None and coverage["missing"]:
        notes.append(
            f"the images of {coverage['here']} of {coverage['rows']} groups are here; the others are skipped, so "
            "numbers compare only with those of the same groups (datasets, coverage)"
        )
    this, *others = dict.fromkeys(map(_words, (machine.hardware(), *(result.from_store or {}).get("hardware", ()))))
    if others:
        notes.append(f"raw scores from the cache were computed with {' and '.join(others)}, and this run has {this}")
    only_some_have = {"tag_means": result.tag_means, **result.records()}
    if isinstance(result, Scored):
        only_some_have |= {"breakdowns": result.breakdowns, "truncated": result.truncated}
        only_some_have["also"] = {name: other.record() for name, other in result.elsewhere.items()}
    only_some_have |= {"seen_in_training": seen, "undecided": result.undecided, "notes": notes}
    return {
        **entries,
        "tracks": entries["tracks"] if finetuning is None else supervised_tracks(entries["tracks"]),
        **{key: value for key, value in only_some_have.items() if value},
        "configs": spec.model_dump(mode="json"),
        "versions": spec.version,
        "n-shot": 0,
        "n-samples": counts,
        "higher_is_better": {metric.name: metric.higher_is_better for metric in result.metrics},
        "task_hashes": result.data.fingerprint,
        "datasets": _dataset(result),
        "timing": result.seconds,
    }


def _with_earlier(used: Record, earlier: Mapping[str, object]) -> Record:
    """Usage including that of resumed runs: counts added, lists joined, the rest as it is now."""
    total = dict(used)
    for name, before in earlier.items():
        now = used.get(name)
        if name in _COUNTS and isinstance(before, int | float):
            total[name] = before + (now or 0)
        elif isinstance(before, list) and isinstance(now, list):
            total[name] = [*before, *(item for item in now if item not in before)]
    return total


def _words(hardware: Mapping[str, object]) -> str:
    """Hardware, which may round differently than other."""
    parts = (hardware.get(name) for name in ("cpu_capability", "machine", "accelerator"))
    return " ".join(str(part) for part in parts if part is not None)


def _dataset(result: TaskResult) -> Record:
    spec, data = result.spec, result.data
    return {
        "source": {key: value for key, value in data.source.items() if key != "coverage"},
        **({"coverage": data.source["coverage"]} if "coverage" in data.source else {}),
        "revision": data.source.get("revision"),
        "fingerprint": data.fingerprint,
        "n_groups": result.n_groups,
        "shape": result.shape,
        **({"true_captions": spec.group.true_captions} if spec.group.true_captions > 1 else {}),
        "license": spec.license,
        **({"groups_sha256": groups_digest(data.groups)} if data.groups else {}),
        **({"from_store": result.from_store} if result.from_store else {}),
    }
