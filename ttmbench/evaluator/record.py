"""What a run learns, laid out as the results document, and the files that the document is written to."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from ttmbench._util import machine
from ttmbench._util.console import one_line, warn
from ttmbench._util.third_party_errors import describe, error_line, phase, phase_of
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.adapters import finetuned, finetuning_shown, fits_note, model_info
from ttmbench.evaluator.baseline import Baseline
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.resume import RunDirectory
from ttmbench.evaluator.run_key import DataNow, RunKey, groups_digest
from ttmbench.evaluator.task_result import Scored, TaskResult
from ttmbench.protocols import Reporting
from ttmbench.results.clusters import clusters_note
from ttmbench.results.document import ResultsDocument, keys_by_task
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.labels import CHOICE, TRACK_ORDER, supervised_tracks
from ttmbench.results.stored_runs import TaskGroups, stored_groups
from ttmbench.results.tag_means import aggregates, shared_images_note
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.types import Record

_COUNTS = ("requests", "answers", "answers_without_count", "prompt_tokens", "completion_tokens", "cost")
_RARE = (
    *(CHOICE, "undecided", "ranking", "truncated", "seen_in_training", "tag_means", "ttm_also", "methods"),
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
        self._reporting: Reporting | None = None
        self._earlier: dict[str, Record] = {}
        self._earlier_seconds = 0.0
        self._earlier_usage: Record = {}
        self.is_new = output is None or output.previous is None  # else the document is still an earlier run's
        self._task: str | None = None  # under way
        self._unsaved = self._saving = 0.0  # seconds of work that no document has, and that writing the last one took
        self._states: list[Path] = []  # checkpoints of tasks that are done
        self._document: ResultsDocument | None = None  # as last saved
        self._used: dict[str, Record] = {}  # task -> memory that it took

    def describe_model(self, model: Capabilities, trained_on: Sequence[str] | None) -> None:
        """Records what the model states about itself; ``trained_on`` names image collections, None if unknown."""
        collections = None if trained_on is None else list(trained_on)
        self.model_info = {**model_info(model), "trained_on": collections}
        finetuning, self._reporting = finetuned(model.adapter), model.reporting
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
                self.take_over(document, done)
                self.errors.extend(error for error in document["errors"] if error["task"] in done)
                self._date = datetime.fromtimestamp(previous.date).astimezone()
                self._earlier_seconds = previous.total_evaluation_time_seconds
                self._earlier_usage = previous.model_info.get("usage") or {}
            self.is_new = True
        self._save_running()
        return done

    def take_over(self, document: Record, tasks: Sequence[str]) -> None:
        """Takes what an earlier document has of some tasks."""
        for task in tasks:
            known = (key for key in keys_by_task() if task in document.get(key, {}))
            self._earlier[task] = {key: document[key][task] for key in known}

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
            with self._measured(name):
                yield
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

    @contextmanager
    def _measured(self, task: str) -> Iterator[None]:
        """Records the memory of a task."""
        machine.peak_memory(restart=True)
        try:
            yield
        finally:
            self._used[task] = machine.peak_memory()

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
            used = dict(self._reporting.usage()) if self._reporting else {}
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
            "model_info": {**self.model_info, **({"usage": self._usage()} if self._reporting else {})},
            "date": self._date.timestamp(),
            "git_hash": self._git_hash,
            "packages": self._packages,
            **({} if self._key is None else {"code": self._key.code}),
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
    summary, spec = result.summary, result.spec
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
    notes += _notes_on_hardware((result.from_store or {}).get("hardware", ()))
    only_some_have = {"tag_means": result.tag_means, **result.records()}
    if isinstance(result, Scored):
        only_some_have |= {"breakdowns": result.breakdowns, "truncated": result.truncated}
        only_some_have["ttm_also"] = {name: other.record() for name, other in result.elsewhere.items()}
    only_some_have |= {"seen_in_training": seen, "undecided": result.undecided, "notes": notes}
    return {
        "tracks": summary.tracks if finetuning is None else supervised_tracks(summary.tracks),
        "results": summary.results,
        "ci": summary.ci,
        "chance": summary.chance,
        "ties": summary.ties,
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


def _notes_on_hardware(earlier: Sequence[Mapping[str, object]]) -> list[str]:
    """Where an earlier run computed scores on other hardware, which may round differently."""

    def words(hardware: Mapping[str, object]) -> str:
        parts = (hardware.get(name) for name in ("cpu_capability", "machine", "accelerator"))
        return " ".join(str(part) for part in parts if part is not None)

    this = words(machine.hardware())
    others = dict.fromkeys(part for part in map(words, earlier) if part != this)
    if not others:
        return []
    return [f"raw scores from the cache were computed with {' and '.join(others)}, and this run has {this}"]


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
