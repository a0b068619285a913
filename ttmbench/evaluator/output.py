"""What a run has found: the document, the files that it is written to, and what an earlier run left there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from glob import escape
from gzip import GzipFile
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import filelock
from pydantic import ValidationError

from ttmbench._util import machine
from ttmbench._util.console import one_line, warn
from ttmbench._util.file_io import (
    OWN,
    Unreadable,
    digests_of_modules,
    file_digest,
    json_digest,
    modules_of,
    read_json,
    safe_name,
    take_lock,
    to_json,
    write_atomically,
)
from ttmbench._util.third_party_errors import describe, error_line, phase, phase_of
from ttmbench.config import RunConfig, TTMConfig, is_address
from ttmbench.data.task_file import TaskFile, all_tasks
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import finetuned, finetuning_shown, model_info
from ttmbench.evaluator.eval_results import Baseline, EvalResults, Scored, TaskResult
from ttmbench.model import Model, overrides
from ttmbench.plugins.registry import BUILTIN, Registry, Table
from ttmbench.results.document import SCHEMA_VERSION, ResultsDocument, keys_by_task
from ttmbench.results.numbers import CHOICE, TRACK_ORDER, as_entries, supervised_tracks
from ttmbench.results.reader import TaskGroups, read_document, stored_groups
from ttmbench.results.summary import aggregates, clusters_note, shared_images_note
from ttmbench.types import Group, Record

if TYPE_CHECKING:
    from ttmbench._util.remote import RemoteFolder

# What neither changes a number nor asks for another file.
INDIFFERENT = frozenset(
    {
        *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
        *("use_cache", "baseline", "track", "track_args", "model_name", "device"),
        "deterministic",  # which adds what bits depend on, where it is on
    }
)


@dataclass(frozen=True)
class ConfigKey:
    """A digest of everything that makes two commands the same but for the model's weights and the data."""

    content: Record  # what the digest is of, for JSON
    sha256: str  # hexadecimal

    @classmethod
    def of(
        cls,
        registry: Registry,
        config: RunConfig,
        tasks: Mapping[str, TaskFile],
        settings: Mapping[str, TTMConfig],
        also: Mapping[str, TaskFile],
        adapter: Model | None = None,
    ) -> ConfigKey:
        """The key of a run on ``tasks``, measured also on others; unique where the source of code cannot be read.

        Code is that of ttmbench, of an ``adapter`` given as an object, and of every package that registered something
        that settings or tasks name.
        """
        content: Record = {
            "config": config.model_dump(mode="json", exclude={*INDIFFERENT, "also"}),
            "tasks": {name: task.spec.model_dump(mode="json") for name, task in tasks.items()},
            "settings": {name: of.model_dump(mode="json") for name, of in settings.items()},
            "packages": machine.packages(),
            "also": {name: task.spec.model_dump(mode="json") for name, task in also.items()},
        }
        content["config"] |= {"tasks": sorted(tasks), "seeds": config.run_seeds}
        if config.samples is not None:
            content["config"]["samples"] = file_digest(Path(config.samples))
        given = [value for value in (config.method_args | config.ttm_args).values() if isinstance(value, str)]
        files = [name for name in given if os.path.isfile(name)]  # noqa: PTH113 - which allows for long texts
        content["files"] = {name: file_digest(Path(name)) for name in files}
        if config.deterministic:
            content["deterministic"] = machine.conditions(config.batch_size)
        text, modules = json.dumps(content), set[str]()
        for table in (
            one for one in vars(registry).values() if isinstance(one, Table) and one is not registry.task_files
        ):
            for name, plugin in table.plugins.items():
                # A reward is written NAME:KEY=VALUE.
                if plugin != BUILTIN and re.search(f'"{re.escape(name.rpartition("=")[2])}[":]', text):
                    modules |= {*table.modules_of(name, registry.manager)}
        objects = [] if adapter is None else modules_of(adapter)
        code = content["code"] = digests_of_modules({OWN, *modules, *objects})
        content["once"] = uuid4().hex if None in code.values() else None
        return cls(content, json_digest(content))

    def changes_since(self, document: Record) -> str | None:
        """Which source or packages changed since a document of the same settings and tasks; None for other changes."""
        packages, code, stated = (document.get(name) or {} for name in ("packages", "code", "config"))
        asked = {
            key: value for key, value in self.content["config"].items() if key not in ("tasks", "seeds", "samples")
        }
        is_same = all(isinstance(one, Mapping) for one in (packages, code, stated)) and asked.items() <= stated.items()
        if not is_same or sorted(document.get("task_status", {})) != self.content["config"]["tasks"]:
            return None
        now, used = self.content["packages"], self.content["code"]
        changes = [
            f"the source of package {name} {'changed' if digest else 'cannot be read, so it may have changed'}"
            for name, digest in used.items()
            if digest is None or code.get(name) != digest
        ]
        changes += [
            f"{name} {packages.get(name)} became {now[name]}" for name in now if packages.get(name) != now[name]
        ]
        return " and ".join(changes) or None


@dataclass(frozen=True)
class DataNow:
    """Digests of a task's data as they are now."""

    fingerprint: str  # the data digest, or that of stored features
    groups: str | None = None  # of ids and tags; None where groups have none of their own


def groups_digest(groups: Sequence[Group]) -> str:
    """sha256 over ids and tags of groups in order: what breakdowns and samples are named by, and no model sees."""
    return json_digest([[group.group_id, sorted(group.tags.items())] for group in groups])


_KINDS = ("samples", "scores", "ranks", "iterations", "also_samples", "also_scores")
_ENDINGS = ("jsonl", "safetensors", "jsonl.gz")


def state_of(results: Path) -> Path:
    """Folder of what a run needs to resume; removed when it is done."""
    return results.parent / f".{results.stem}.state"


@dataclass
class OutputFiles:
    """The files of a run."""

    results: Path  # of the results document
    beside: str  # names of the other files, with ``{kind}`` and ``{task}`` to fill in
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> kind, task, sha256 and size

    @classmethod
    def of(cls, output_path: str, model: str, stamp: str) -> OutputFiles:
        """The files of an output path: a ``.json`` file, or a folder for ``<model>/results_<stamp>.json``."""
        target = Path(output_path)
        if target.suffix == ".json":
            stem = target.stem.replace("{", "{{").replace("}", "}}")
            return cls(target, f"{stem}_{{kind}}_{{task}}")
        return cls(target / safe_name(model) / f"results_{stamp}.json", f"{{kind}}_{{task}}_{stamp}")

    def write(
        self,
        kind: str,
        task: str,
        content: Callable[[Path], object] | Iterable[Record],
        other: str | None = None,
        packed: bool = False,
    ) -> None:
        """Writes a file of a task, or of another one (``other``) that its model was measured on.

        ``content`` are JSON lines (``samples``, ``iterations``), or what writes safetensors (``scores``, ``ranks``).
        """
        both = task if other is None else f"{task}@{other}"  # no task has an @ in its name
        ending = _ENDINGS[2 if packed else callable(content)]
        path = self.results.parent / f"{self.beside.format(kind=kind, task=both)}.{ending}"

        def write_lines(place: Path) -> None:
            import jsonlines

            assert not callable(content), "these are lines"
            with place.open("wb") as plain, GzipFile("", "wb", 6, plain, 0) if packed else plain as file:
                with TextIOWrapper(file, "utf-8", newline="\n") as text:
                    # json.dumps would make an encoder for each line
                    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
                    jsonlines.Writer(text, dumps=encode).write_all(content)

        write_atomically(path, content if callable(content) else write_lines)
        about = {"kind": kind, "task": task, "sha256": file_digest(path), "bytes": path.stat().st_size}
        self.artifacts[path.name] = about if other is None else {**about, "measured_on": other}


LOCK = "lock"
_STAMP = "%Y-%m-%dT%H-%M-%S.%f"

_COUNTS = ("requests", "answers", "answers_without_count", "prompt_tokens", "completion_tokens", "cost")
_RARE = (
    *(CHOICE, "undecided", "ranking", "truncated", "seen_in_training", "tag_means", "also", "methods"),
    "efficiency",
)


class Output:
    """Collects the results of a run and saves them as the results document while the run proceeds.

    Without an output path it saves nothing. The mean of a dataset is reported once all of its tasks are done. Stored
    scores have no ``key``, and ``settings`` in place of a run's.
    """

    def __init__(
        self,
        config: RunConfig,
        registry: Registry,
        tasks: Mapping[str, TaskFile],
        key: ConfigKey | None,
        command: Sequence[str] = (),
        settings: Record | None = None,
        clock: float | None = None,
    ) -> None:
        self._started, self._clock = datetime.now().astimezone(), clock or time.perf_counter()
        self.config: Record = config.model_dump(mode="json") if settings is None else settings
        self._tasks, self._local = list(tasks), config
        # plugins hear of models that are run
        self._notify: Callable[..., object] = registry.notify if settings is None else lambda *_, **__: None
        parents = sorted({task.spec.aggregate for task in tasks.values() if task.spec.aggregate})
        every = all_tasks(registry).items() if parents else ()
        self._datasets = {name: [part for part, of in every if of.spec.aggregate == name] for name in parents}
        self.key = None if key is None else key.sha256
        self._code = None if key is None else key.content["code"]
        self._model_name, self._date = config.model_name, self._started
        self._command = shlex.join(command).encode("utf-8", "replace").decode("utf-8")
        self._git_hash, self._packages = machine.git_hash(), machine.packages()
        self.results: dict[str, TaskResult] = {}
        self.errors: list[Record] = []
        self.model_info: Record = {}
        self.baseline: Record | None = None
        self._model: Model | None = None  # that reports its usage
        self._task: str | None = None  # under way
        self._unsaved = self._saving = 0.0  # seconds of work that no document has, and that writing the last one took
        self._states: list[Path] = []  # checkpoints of tasks that are done
        self._document: ResultsDocument  # as last saved
        self._whole: EvalResults | None = None  # of a run that is over
        self._earlier: dict[str, Record] = {}  # task -> its entries in the document of an earlier run
        self._earlier_seconds, self._earlier_usage = 0.0, Record()
        self._remote: RemoteFolder | None = None  # where the folder is put
        self._unsent: TtmbenchError | None = None  # why the address lacks what was written last; None if it has it
        self._was_put = self._is_finished = False
        self.files: OutputFiles | None = None  # where the run writes
        self.previous: ResultsDocument | None = None  # what an earlier run of the same command left; None if nothing
        if is_address(config.output_path):
            self._local, self._remote = _local(config, key)
        if self._local.output_path is not None:
            self.files, self.previous, self._lock = _claim(self._local, key, self._started)
        self._is_new = self.previous is None  # else the document is still an earlier run's

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Saves the document and notifies plugins at both ends; an error carries the results of the finished tasks.

        At the end the state goes if nothing is left to resume, and a local folder that was put to its address.
        """
        folder = None if self.files is None else self.files.results.parent
        try:
            self.save("running")
            self._notify("ttmbench_run_started", config=deepcopy(self.config))
            try:
                yield
                self.save("failed" if self.errors else "done")
            except BaseException as error:
                if not any(failed["task"] == self._task for failed in self.errors):
                    self._fail(None if self._task in self.results else self._task, error)
                status = "failed" if isinstance(error, Exception) else "interrupted"
                try:
                    self.save(status)
                except TtmbenchError as second:  # the first error is the one to raise
                    if phase_of(error, "run") != "save":
                        warn(str(second))
                    self._document = self.document(status)
                self._notify("ttmbench_run_finished", result=self._document.to_dict(), run_dir=folder)
                if self._document.results:
                    error.results = self.evaluated(is_whole=False)  # type: ignore[attr-defined]
                raise
            self._notify("ttmbench_run_finished", result=self._document.to_dict(), run_dir=folder)
            self._whole = self.evaluated()  # before a local folder goes
            if self._unsent is not None:
                self._unsent.results = self._whole
                raise self._unsent
        finally:
            files = self.files
            if files is not None:
                if self._is_finished or not _holds_something(state_of(files.results)):
                    with suppress(FileNotFoundError):
                        for inside in state_of(files.results).iterdir():
                            if inside.name != LOCK:
                                shutil.rmtree(inside, ignore_errors=True)
                    shutil.rmtree(state_of(files.results), ignore_errors=True)
                self._lock.release()
                if self._was_put and self._unsent is None and self._is_finished:
                    shutil.rmtree(files.results.parent, ignore_errors=True)
                    with suppress(OSError):
                        files.results.parent.parent.rmdir()

    def describe_model(self, model: Model, trained_on: Sequence[str] | None) -> None:
        """Records what the model states about itself; ``trained_on`` names image collections, None if unknown."""
        collections = None if trained_on is None else list(trained_on)
        self.model_info = {**model_info(model), "trained_on": collections}
        finetuning = finetuned(model)
        self._model = model if overrides(model, "usage") else None
        if finetuning is not None:
            self.model_info["finetuned"] = finetuning_shown(finetuning)

    def resume(self, data_of: Callable[[str], DataNow | None]) -> list[str]:
        """Takes over and returns those tasks that an earlier run finished, and whose files and data are as they were.

        ``data_of`` gives a task's data now, or None where they cannot be read. If the earlier run had another model,
        there are none, and other files are written; UsageError where the names of these are given.
        """
        previous, files, done = self.previous, self.files, list[str]()
        fingerprint = self.model_info["fingerprint"]
        if previous is not None and files is not None:
            before, is_stated = previous.model_info.fingerprint, "fingerprint" in previous.model_info.model_fields_set
            if is_stated and (not fingerprint or before != json.loads(json.dumps(fingerprint, default=str))):
                why = "states no fingerprint" if not fingerprint else "is not the one"
                if self._local.save_adapted is not None:  # whose models are of the other weights
                    raise UsageError(f"the model {why} of {files.results}; name new --output_path and --save_adapted")
                if Path(self._local.output_path or "").suffix == ".json":
                    instead = "name another --output_path, or replace it with --overwrite always"
                    raise UsageError(f"the model {why} of {files.results}; {instead}")
                warn(f"the model {why} of {files.results}; every task is run")
                self._lock.release()
                files = open_run_files(str(self._local.output_path), self._local.model_name, self._started)
                self.files, previous, self._lock = files, None, _lock(files)
        if previous is not None and files is not None:
            wanted = {"done", "failed"} if self._local.overwrite == "missing" else {"done"}
            tasks = {task for task, status in previous.task_status.items() if status in wanted}
            for name, about in previous.artifacts.items():
                path = files.results.parent / name
                if about.task in tasks and (not path.is_file() or file_digest(path) != about.sha256):
                    warn(f"{path} is missing or changed; task {about.task} is run again")
                    tasks.remove(about.task)
            for task in (task for task in previous.task_status if task in tasks):
                known = previous.task_hashes.get(task)
                # a task that failed may have no data: nothing of it is looked at
                data = None if known is None else data_of(task)
                groups = previous.datasets[task].groups_sha256 if task in previous.datasets else None
                if data is not None and (
                    data.fingerprint != known or (data.groups and groups not in (None, data.groups))
                ):
                    what = "data" if data.fingerprint != known else "ids or tags"
                    warn(f"the {what} of task {task} are not those of {files.results}; it is run again")
                else:
                    done.append(task)
            document = previous.to_dict()
            for task in done:
                self._earlier[task] = {
                    key: document[key][task] for key in keys_by_task() if task in document.get(key, {})
                }
            artifacts = document["artifacts"].items()
            files.artifacts |= {name: about for name, about in artifacts if about["task"] in done}
            self.errors.extend(error for error in document["errors"] if error["task"] in done)
            self._date = datetime.fromtimestamp(previous.date).astimezone()
            self._earlier_seconds = previous.total_evaluation_time_seconds
            self._earlier_usage = previous.model_info.usage
            left = len(previous.task_status) - len(done)
            how_far = f"{', '.join(done) or 'no task'} done, {left} left"
            how_far = how_far if left else "every task is done (--overwrite always runs them again)"
            warn(f"resuming {files.results}: {how_far}")
        self._is_new = True
        self.save("running")
        return done

    @contextmanager
    def task(self, name: str, state: Path | None, goes_on: bool) -> Iterator[None]:
        """Records how a task ends, and raises what ended it unless the run ``goes_on``.

        Its checkpoints in ``state`` are removed once a document with the task is saved.
        """
        self._task, began = name, time.perf_counter()
        try:
            yield
        except Exception as error:
            self._fail(name, error)
            if not goes_on:
                raise
            warn(f"task {name} failed: {self.errors[-1]['message']}")
        else:
            self._states += [] if state is None else [state]
        self._unsaved += time.perf_counter() - began
        # A document takes longer to write the more tasks it has: work that took less than that can wait for the next.
        if self._unsaved >= self._saving or self.errors:
            self.save("running")

    def _fail(self, task: str | None, error: BaseException) -> None:
        """Records a failure."""
        cause = error.__cause__ if type(error) is TtmbenchError and error.__cause__ is not None else error
        kind, message = type(cause).__name__, one_line(str(error))
        self.errors.append({"task": task, "stage": phase_of(error, "run"), "type": kind, "message": message})

    def compare_with(self, baseline: Baseline) -> None:
        """Adds the comparison with another run."""
        results = self.evaluated(self.document("done"))
        iterations, seed = self.config["bootstrap_iters"], self.config["seed"]
        self.baseline = baseline.entry(results.typed, results.task_groups, iterations, seed)

    def evaluated(self, document: ResultsDocument | None = None, is_whole: bool = True) -> EvalResults:
        """The results, by default as last saved; of a whole run with the sample values of resumed tasks."""
        if self._whole is not None:
            return self._whole
        document, files = document or self._document, self.files
        if files is None:
            return EvalResults(document, dict(self.results))
        groups: dict[str, TaskGroups] = {}
        if is_whole and any(task not in self.results for task in document.results):
            groups = stored_groups(files.results.parent, document)
        if self._remote is None:
            return EvalResults(document, dict(self.results), files.results, groups)
        return EvalResults(document, dict(self.results), None, groups, f"{self._remote.url}/{files.results.name}")

    def save(self, status: str) -> None:
        """Writes the document as it is now; an earlier run's is left alone until its tasks are taken over.

        Then puts the folder to its address, if it has one; only the first failure of that ends the run.
        """
        is_written = self.files is not None and self._is_new
        if status == "running" and not is_written:
            return
        began, document = time.perf_counter(), self.document(status)
        if self.files is not None and is_written:
            with phase("save"):
                text = to_json(document.to_dict())
                write_atomically(self.files.results, lambda path: path.write_text(text, encoding="utf-8"))
                self._is_finished = status == "done"
                try:
                    if self._remote is not None:
                        self._remote.put(self.files.results.parent)
                        self._was_put, self._unsent = True, None
                except DataError as error:
                    if not self._was_put:
                        raise UsageError(f"--output_path: {error}") from None
                    here = self.files.results.parent
                    self._unsent = TtmbenchError(f"{error}; the results are in {here}: the same command puts them")
                    warn(f"{error}; what is done is in {here}, and the run continues")
            while self._states:  # these tasks are done, so nothing resumes from their checkpoints
                shutil.rmtree(self._states.pop(), ignore_errors=True)
        self._unsaved, self._saving, self._document = 0.0, time.perf_counter() - began, document

    def _usage(self) -> Record:
        """What the model has used, with that of resumed runs: counts are added, lists joined, the rest is as it is now.

        A model that fails to report it does not end the run.
        """
        try:
            used = {} if self._model is None else dict(self._model.usage())
            json.dumps(used, allow_nan=False)
        except Exception as error:
            return {"error": error_line(error)}
        total = dict(used)
        for name, before in self._earlier_usage.items():
            now = used.get(name)
            if name in _COUNTS and isinstance(before, int | float):
                total[name] = before + (now or 0)
            elif isinstance(before, list) and isinstance(now, list):
                total[name] = [*before, *(item for item in now if item not in before)]
        return total

    def document(self, status: str) -> ResultsDocument:
        """The results document as it is now."""
        known = dict(self._earlier)
        for name, result in self.results.items():
            known[name] = _entries(result, self.model_info)
            if rates := result.rates():
                known[name]["efficiency"] = rates
        order = [name for name in dict.fromkeys([*self._tasks, *known]) if name in known]
        per_task = {key: {name: known[name][key] for name in order if key in known[name]} for key in keys_by_task()}
        per_task = {key: entries for key, entries in per_task.items() if entries or key not in _RARE}
        done, failed = per_task["results"], {error["task"] for error in self.errors}
        used = {track for tracks in per_task["tracks"].values() for track in tracks.values()}
        groups = aggregates(done, self._datasets)
        notes = {name: shared_images_note(per_task["configs"], self._datasets[name]) for name in groups}
        notes = {name: lines for name, lines in notes.items() if lines}
        document = {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "task_status": {
                name: "failed" if name in failed else "done" if name in done else "pending"
                for name in dict.fromkeys([*self._tasks, *done])
            },
            "track": next((track for track in reversed(TRACK_ORDER) if track in used), "zero_shot"),
            "groups": groups,
            "group_subtasks": {name: list(self._datasets[name]) for name in groups},
            **({"group_notes": notes} if notes else {}),
            **per_task,
            **({} if self.baseline is None else {"baseline": self.baseline}),
            "errors": self.errors,
            "config": self.config,
            "run_key": self.key,
            "model_name": self._model_name,
            "model_info": {**self.model_info, **({} if self._model is None else {"usage": self._usage()})},
            "date": self._date.timestamp(),
            "git_hash": self._git_hash,
            "packages": self._packages,
            **({} if self._code is None else {"code": self._code}),
            "hardware": machine.hardware(),
            "total_evaluation_time_seconds": self._earlier_seconds + time.perf_counter() - self._clock,
            "command": self._command,
            "artifacts": {} if self.files is None else dict(self.files.artifacts),
        }
        try:
            return ResultsDocument.model_validate(document, strict=False)
        except ValidationError as error:  # a plugin's metric or a mistake of ours: what no reader would take
            raise TtmbenchError(f"the results document is not as its schema says: {describe(error)}") from None


def _entries(result: TaskResult, model_info: Record) -> Record:
    """The document's entries of one task, by key."""
    entries, spec, data, finetuning = as_entries(result.numbers), result.spec, result.data, model_info.get("finetuned")
    seen = [name for name in spec.images_from if name in (model_info.get("trained_on") or ())]
    counts, coverage = result.counts(), data.source.get("coverage")
    notes = list(result.notes)
    if counts.get("clusters", result.n_groups) < result.n_groups:
        notes.append(clusters_note(result.n_groups, counts["clusters"]))
    if seen:
        notes.append(f"the model was trained on images of {', '.join(seen)}, which this task uses")
    if any(entry["task"] == spec.task for entry in (finetuning or {}).get("tasks", ())):
        notes.append(f"the model was finetuned on groups of {spec.task}: the numbers say how well it fits them")
    if coverage is not None and coverage["missing"]:
        notes.append(
            f"the images of {coverage['here']} of {coverage['rows']} groups are here; the others are skipped, so "
            "numbers compare only with those of the same groups (datasets, coverage)"
        )
    # what rounds differently than other hardware
    computers = (machine.hardware(), *(result.from_store or {}).get("hardware", ()))
    parts = [[of.get(name) for name in ("cpu_capability", "machine", "accelerator")] for of in computers]
    this, *others = dict.fromkeys(" ".join(str(part) for part in of if part is not None) for of in parts)
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
        "task_hashes": data.fingerprint,
        "datasets": {
            "source": {key: value for key, value in data.source.items() if key != "coverage"},
            **({} if coverage is None else {"coverage": coverage}),
            "revision": data.source.get("revision"),
            "fingerprint": data.fingerprint,
            "n_groups": result.n_groups,
            "shape": result.shape,
            **({"true_captions": spec.group.true_captions} if spec.group.true_captions > 1 else {}),
            "license": spec.license,
            **({"groups_sha256": groups_digest(data.groups)} if data.groups else {}),
            **({"from_store": result.from_store} if result.from_store else {}),
        },
        "timing": result.seconds,
    }


def _claim(
    config: RunConfig, key: ConfigKey | None, started: datetime
) -> tuple[OutputFiles, ResultsDocument | None, filelock.BaseFileLock]:
    """Chooses the files of a run, checks that they can be written, and locks them; also what an earlier run left.

    UsageError for a folder that cannot be written to or that another run writes to, for a file that ``overwrite``
    protects, and for one that is not a results document.
    """
    assert config.output_path is not None, "the run has an output path"
    files = open_run_files(config.output_path, config.model_name, started)
    single = Path(config.output_path).suffix == ".json"
    if not single and key is not None and config.overwrite != "always":
        earlier = _earlier(files.results.parent, key, config.model_name)
        if earlier is not None:
            files = OutputFiles(earlier, f"{{kind}}_{{task}}_{earlier.stem.removeprefix('results_')}")
    lock, document = _lock(files), None
    try:
        previous = None if config.overwrite == "always" else _document(files.results, strict=single)
        if key is None and previous is not None and previous.get("run_key") is None:
            previous = None  # stored scores, which are read again
        if previous is not None and config.overwrite == "never":
            raise UsageError(
                f"{files.results} holds results already (status {previous.get('status')}) and --overwrite never leaves "
                "them as they are; name another --output_path"
            )
        if config.overwrite == "always":
            shutil.rmtree(state_of(files.results) / "tasks", ignore_errors=True)
        if previous is not None:
            if key is None or previous.get("run_key") != key.sha256:
                changed = key and key.changes_since(previous)
                raise UsageError(
                    f"{files.results} holds another run ({changed or 'other settings or tasks'}); name another "
                    "--output_path, or replace it with --overwrite always"
                )
            document = read_document(files.results)
    except BaseException as error:
        if not _holds_something(state_of(files.results)):
            shutil.rmtree(state_of(files.results), ignore_errors=True)
        lock.release()
        if isinstance(error, DataError):
            raise UsageError(f"cannot resume from {error}; --overwrite always runs every task") from None
        raise
    stem = escape(files.beside.replace("{kind}", "\0").replace("{task}", "\1"))
    beside = [stem.replace("\0", kind).replace("\1", "*") for kind in _KINDS]
    names = (escape(files.results.name), *(f"{pattern}.{ending}" for pattern in beside for ending in _ENDINGS))
    for stray in list(files.results.parent.glob(".*.tmp")):  # of a run that was killed while it wrote one of them
        if any(fnmatchcase(stray.name, f".{name}.*.tmp") for name in names):
            stray.unlink(missing_ok=True)
    return files, document, lock


def _local(config: RunConfig, key: ConfigKey | None) -> tuple[RunConfig, RemoteFolder]:
    """The run as it writes to a local folder, which stays until it is put to the address, and the place of that folder.

    What an earlier run left at the address is copied, unless it is still here.
    """
    from platformdirs import user_cache_path

    from ttmbench._util.remote import RemoteFolder  # with fsspec, for addresses alone

    address = str(config.output_path)
    local = user_cache_path("ttmbench", appauthor=False) / "unsent" / json_digest([address, key and key.sha256])[:32]
    place, _, name = address.rpartition("/") if address.endswith(".json") else (address.rstrip("/"), "", "")
    remote = RemoteFolder(address, "--output_path")
    remote = RemoteFolder(place if name else f"{place}/{safe_name(config.model_name)}", "--output_path")
    own = OutputFiles.of(str(local / name), config.model_name, "").results.parent
    try:
        if not own.exists():
            remote.get(own, Path(name).stem)
    except DataError as error:
        raise UsageError(f"--output_path: {error}") from None
    return config.model_copy(update={"output_path": str(local / name)}), remote


def open_run_files(output_path: str, model: str, started: datetime) -> OutputFiles:
    """Chooses unused file names, even if the clock repeats, and makes sure that they can be written; else UsageError.

    A ``.json`` file may exist.
    """
    while True:
        files = OutputFiles.of(output_path, model, started.strftime(_STAMP))
        if Path(output_path).suffix == ".json" or not files.results.exists():
            break
        started += timedelta(microseconds=1)
    try:
        files.results.parent.mkdir(parents=True, exist_ok=True)
        if files.results.is_dir():
            raise IsADirectoryError(f"{files.results} is a folder")
        with tempfile.TemporaryFile(dir=files.results.parent):
            return files
    except OSError as error:
        raise UsageError(f"--output_path {output_path} cannot be written to: {error.strerror or error}") from None


def _earlier(folder: Path, key: ConfigKey, model: str) -> Path | None:
    """The newest document of the same command and name; without one, reports the newest that only code sets apart."""
    others = []
    for path in sorted(folder.glob("results_*.json"), reverse=True):
        document = _document(path, strict=False)
        if document is None or document.get("model_name") != model:
            continue
        if document.get("run_key") == key.sha256:
            return path
        others.append((path, document))
    for path, document in others:
        if changed := key.changes_since(document):
            warn(f"{changed} since {path.name}: running again")
            break
    return None


def _document(path: Path, strict: bool) -> Record | None:
    """A results document; None if there is none. With ``strict``, UsageError for any other file."""
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except Unreadable:
        content = None
    if isinstance(content, dict) and "schema_version" in content and "results" in content:
        return content
    if strict:
        raise UsageError(
            f"{path} exists and is not a results document of ttmbench; name another --output_path, or replace it with "
            "--overwrite always"
        )
    return None


def _lock(files: OutputFiles) -> filelock.BaseFileLock:
    try:
        state_of(files.results).mkdir(parents=True, exist_ok=True)
        for folder, folders, names in os.walk(state_of(files.results)):
            for path in (Path(folder), *(Path(folder) / name for name in (*folders, *names))):
                if path.is_symlink():  # what it leads to is not to be removed
                    raise UsageError(f"{path} is a link, which no run makes or follows; remove it")
        return take_lock(state_of(files.results) / LOCK)
    except filelock.Timeout:
        raise UsageError(
            f"another run is writing to {files.results}; wait until it is done, or name another --output_path"
        ) from None
    except OSError as error:
        raise UsageError(f"{state_of(files.results)} cannot be written to: {error.strerror or error}") from None


def _holds_something(state: Path) -> bool:
    return any(path.is_file() and path.name != LOCK for path in state.rglob("*"))
