"""What a run has found: the document, the files that it is written to, and what an earlier run left there."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
from pydantic import ValidationError

from ttmbench._util import machine
from ttmbench._util.console import one_line, warn
from ttmbench._util.file_io import (
    file_digest,
    json_digest,
    safe_name,
    take_lock,
    to_json,
    write_atomically,
    write_lines,
)
from ttmbench._util.third_party import describe, error_line, phase, phase_of
from ttmbench.config import RunConfig, is_address
from ttmbench.data.task_file import TaskFile, all_tasks
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.eval_results import Baseline, EvalResults, Ranked, Scored, TaskResult, sample_lines
from ttmbench.model import Model, overrides
from ttmbench.plugins.registry import Registry
from ttmbench.results.document import SCHEMA_VERSION, ResultsDocument, keys_by_task
from ttmbench.results.numbers import CHOICE, TRACK_ORDER, as_entries, supervised_tracks
from ttmbench.results.reader import TaskGroups, read_document, stored_groups
from ttmbench.results.summary import aggregates, clusters_note, shared_images_note
from ttmbench.types import Group, Record

if TYPE_CHECKING:
    from ttmbench._util.remote import RemoteFolder

LOCK = "lock"
_COUNTS = ("requests", "answers", "answers_without_count", "prompt_tokens", "completion_tokens", "cost", "refused")
_RARE = (CHOICE, "undecided", "ranking", "truncated", "seen_in_training", "tag_means", "also", "methods")
_LOGGED = {"captions", "images", "answers", "matching", "margin", "tie"}  # in samples with ``log_samples`` alone


@dataclass(frozen=True)
class ConfigKey:
    """A digest of everything that makes two commands the same but for the model's weights and the data."""

    content: Record  # what the digest is of, for JSON
    sha256: str  # hexadecimal

    def changes_since(self, document: ResultsDocument) -> tuple[list[str], list[str]]:
        """What differs from an earlier document: options, and versions of packages and digests of source code."""
        stated = document.config | {"tasks": sorted(document.task_status)}
        shared = {name: self.content["config"][name] for name in ("seed", "ttm_preset")}  # which seeds may follow from
        stated["seeds"] = RunConfig.model_construct(**document.config | shared).run_seeds
        options = [f"--{name}" for name, asked in self.content["config"].items() if asked != stated.get(name)]
        specs = self.content["tasks"].items()
        options += [f"task file of {name}" for name, spec in specs if document.configs.get(name, spec) != spec]
        code = [
            f"the source of package {name} {'changed' if digest else 'cannot be read, so it may have changed'}"
            for name, digest in self.content["code"].items()
            if digest is None or document.code.get(name) != digest
        ]
        for name, version in self.content["packages"].items():
            if (before := document.packages.get(name)) != version:
                code.append(f"{name} {before} became {version}")
        return options, code


@dataclass(frozen=True)
class DataNow:
    """Digests of a task's data as they are now."""

    fingerprint: str  # the data digest, or that of stored features
    groups: str | None = None  # of ids and tags; None where groups have none of their own


def groups_digest(groups: Sequence[Group]) -> str:
    """sha256 over ids and tags of groups in order: what breakdowns and samples are named by, and no model sees."""
    return json_digest([[group.group_id, sorted(group.tags.items())] for group in groups])


def state_of(results: Path) -> Path:
    """Folder of what a run needs to resume; removed when it is done."""
    return results.parent / f".{results.stem}.state"


def results_file(output_path: str, model: str, stamp: str) -> Path:
    """The results document of an output path: itself if it is a ``.json`` file, else one in the model's folder."""
    target = Path(output_path)
    return target if target.suffix == ".json" else target / safe_name(model) / f"results_{stamp}.json"


class Output:
    """Collects the results of a run and saves them as the results document while the run proceeds.

    Without an output path it saves nothing. The mean of a dataset is reported once all of its tasks are done. Stored
    scores have no ``key``, and ``settings`` in place of a run's.
    """

    path: Path | None = None  # of the results document
    previous: ResultsDocument | None = None  # what an earlier run of the same command left; None if nothing
    evaluated: EvalResults  # what came out, once the run is over
    baseline: Record | None = None
    model: Model | None = None  # which may report its usage
    _task: str | None = None  # under way
    _document: ResultsDocument  # as last saved
    _remote: RemoteFolder | None = None  # where the folder is put
    _unsent: TtmbenchError | None = None  # why the address lacks what was written last; None if it has it
    _was_put = _is_finished = False

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
        started, self._clock = datetime.now().astimezone(), clock or time.perf_counter()
        self._stamp = f"{started:%Y-%m-%dT%H-%M-%S.%f}"
        self._tasks, self._config, self._key = list(tasks), config, key
        # plugins hear of models that are run
        self._notify: Callable[..., object] = registry.notify if settings is None else lambda *_, **__: None
        parents = {task.spec.aggregate for task in tasks.values() if task.spec.aggregate}
        every = all_tasks(registry).items() if parents else ()
        self._datasets = {name: [one for one, of in every if of.spec.aggregate == name] for name in sorted(parents)}
        self._header: Record = {
            "config": config.model_dump(mode="json") if settings is None else settings,
            "run_key": None if key is None else key.sha256,
            "model_name": config.model_name,
            "date": started.timestamp(),
            "git_hash": machine.git_hash(),
            "packages": machine.packages(),
            **({} if key is None else {"code": key.content["code"]}),
            "command": shlex.join(command).encode("utf-8", "replace").decode("utf-8"),
        }
        self.results: dict[str, TaskResult] = {}
        self.errors: list[Record] = []
        self.artifacts: dict[str, Record] = {}  # name -> kind, task, sha256 and size
        self.model_info: Record = {}
        self._entries: dict[str, Record] = {}  # task -> its entries in the document
        if config.output_path is not None:
            self._open(config.output_path)
        self._is_new = self.previous is None  # else the document is still an earlier run's

    def _open(self, output_path: str) -> None:
        """Chooses the results file, locks it, and reads what an earlier run of the same command left.

        UsageError for a folder that cannot be written to or that another run writes to, and for a
        file that ``overwrite`` protects or that is another run's or no results document.
        """
        model, key, replaces = self._config.model_name, self._key, self._config.overwrite == "always"
        if is_address(output_path):
            output_path = self._fetch(output_path)
        self.path = results_file(output_path, model, self._stamp)
        self._is_file = self.path == Path(output_path)
        documents = () if self._is_file or replaces else sorted(self.path.parent.glob("results_*.json"), reverse=True)
        if documents and key is not None:
            self.path = _newest(documents, model, key) or self.path
        self._lock = _locked(self.path)
        try:
            if replaces:
                shutil.rmtree(state_of(self.path) / "tasks", ignore_errors=True)
            elif self.path.exists():
                self.previous = self._read_earlier(self.path)
        except UsageError:
            self._close()
            raise

    def _read_earlier(self, path: Path) -> ResultsDocument | None:
        """The document of an earlier run of the same command; None of stored scores, which are read again."""
        instead, key = "name another --output_path, or replace it with --overwrite always", self._key
        try:
            document = read_document(path)
        except DataError as error:
            raise UsageError(f"cannot resume from {error}; {instead}") from None
        if key is None and document.run_key is None:
            return None
        if self._config.overwrite == "never":
            raise UsageError(
                f"{path} holds results already (status {document.status}) and --overwrite never leaves them as they "
                "are; name another --output_path"
            )
        if key is None or document.run_key != key.sha256:
            options, code = ([], []) if key is None else key.changes_since(document)
            differs = f"other {', '.join(options)}" if options else " and ".join(code) or "other settings or files"
            raise UsageError(f"{path} holds another run ({differs}); {instead}")
        return document

    def _fetch(self, address: str) -> str:
        """The local path of a run that writes to an address, with what an earlier run left there, unless it is here."""
        from platformdirs import user_cache_path

        from ttmbench._util.remote import RemoteFolder  # with fsspec, for addresses alone

        name_of_run = json_digest([address, self._key and self._key.sha256])[:32]
        local = user_cache_path("ttmbench", appauthor=False) / "unsent" / name_of_run
        place, _, name = address.rpartition("/") if address.endswith(".json") else (address.rstrip("/"), "", "")
        RemoteFolder(address, "--output_path")  # refuses a wrong address by its whole
        model = self._config.model_name
        remote = self._remote = RemoteFolder(place if name else f"{place}/{safe_name(model)}", "--output_path")
        own = results_file(str(local / name), model, self._stamp).parent
        try:
            if not own.exists():
                remote.get(own, Path(name).stem)
        except DataError as error:
            raise UsageError(f"--output_path: {error}") from None
        return str(local / name)

    def _put(self, remote: RemoteFolder, folder: Path) -> None:
        """Copies the folder to its address; only the first failure ends the run."""
        try:
            remote.put(folder)
            self._was_put, self._unsent = True, None
        except DataError as error:
            if not self._was_put:
                raise UsageError(f"--output_path: {error}") from None
            self._unsent = TtmbenchError(f"{error}; the results are in {folder}: the same command puts them")
            warn(f"{error}; what is done is in {folder}, and the run continues")

    def _close(self) -> None:
        """Frees the results file; nothing that no run resumes from is left beside it."""
        if self.path is None:
            return
        state, folder = state_of(self.path), self.path.parent
        if self._is_finished or not any(state.rglob("*.safetensors")):
            for inside in (state / "tasks", state):  # last the lock
                shutil.rmtree(inside, ignore_errors=True)
        self._lock.release()
        if self._was_put and self._unsent is None and self._is_finished:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()

    @contextmanager
    def recording(self) -> Iterator[Output]:
        """Saves the document and notifies plugins at both ends; an error carries the results of the finished tasks."""
        try:
            self.save("running")
            self._notify("ttmbench_run_started", config=deepcopy(self._header["config"]))
            yield self
            self.save("failed" if self.errors else "done")
            self.evaluated = self._evaluated()
        except BaseException as error:
            if not any(failed["task"] == self._task for failed in self.errors):
                self._fail(self._task, error)
            try:
                self.save("failed" if isinstance(error, Exception) else "interrupted")
            except TtmbenchError as second:  # the first error is the one to raise
                if phase_of(error, "run") != "save":
                    warn(str(second))
            if self._document.results:
                error.results = self._evaluated(is_whole=False)  # type: ignore[attr-defined]
            raise
        finally:
            folder = None if self.path is None else self.path.parent
            self._notify("ttmbench_run_finished", result=self._document.to_dict(), run_dir=folder)
            self._close()
        if self._unsent is not None:
            self._unsent.results = self.evaluated
            raise self._unsent

    def resume(self, data_of: Callable[[str], DataNow | None]) -> list[str]:
        """Takes over and returns those tasks that an earlier run finished, and whose files and data are as they were.

        ``data_of`` gives a task's data now, or None where they cannot be read. If the earlier run had another model,
        there are none, and another file is written; UsageError where its name is given.
        """
        before = None if self.previous is None else self.previous.model_info
        fingerprint, done = self.model_info["fingerprint"], list[str]()
        is_other = before is not None and (not fingerprint or before.fingerprint != fingerprint)
        if before is not None and is_other and "fingerprint" in before.model_fields_set:
            self._begin_anew(fingerprint)
        elif self.previous is not None:
            done = self._take_over(self.previous, data_of)
        self._is_new = True
        self.save("running")
        return done

    def _begin_anew(self, fingerprint: object) -> None:
        """Leaves an earlier run of another model alone, and writes another file; UsageError where its name is given."""
        assert self.path is not None, "an earlier run was found there"
        why = f"the model {'is not the one' if fingerprint else 'states no fingerprint, so it may not be that'}"
        if self._config.save_adapted is not None:  # whose models are of the other weights
            raise UsageError(f"{why} of {self.path}; name new --output_path and --save_adapted")
        if self._is_file:
            raise UsageError(f"{why} of {self.path}; name another --output_path, or replace it with --overwrite always")
        warn(f"{why} of {self.path}; every task is run")
        self._close()
        self.path = results_file(str(self.path.parent.parent), self._config.model_name, self._stamp)
        self.previous, self._lock = None, _locked(self.path)

    def _take_over(self, previous: ResultsDocument, data_of: Callable[[str], DataNow | None]) -> list[str]:
        """As `resume`, from an earlier run of the same model."""
        wanted = {"done", "failed"} if self._config.overwrite == "missing" else {"done"}
        done, document = list[str](), previous.to_dict()
        for task in (name for name, status in previous.task_status.items() if status in wanted):
            if (why := self._why_not_the_same(previous, task, data_of)) is not None:
                warn(why)
                continue
            done.append(task)
            self._entries[task] = {key: document[key][task] for key in keys_by_task() if task in document.get(key, {})}
        self.artifacts |= {name: about for name, about in document["artifacts"].items() if about["task"] in done}
        self.errors += [error for error in document["errors"] if error["task"] in done]
        self._header["date"], left = previous.date, len(previous.task_status) - len(done)
        how_far = f"{', '.join(done) or 'no task'} done, {left} left"
        warn(f"resuming {self.path}: {how_far if left else 'every task is done (--overwrite always runs them again)'}")
        return done

    def _why_not_the_same(
        self, previous: ResultsDocument, task: str, data_of: Callable[[str], DataNow | None]
    ) -> str | None:
        """Why a task is run again: a file or its data changed; of one that failed before its data were read, none."""
        assert self.path is not None, "an earlier run was found there"
        for name, about in previous.artifacts.items():
            path = self.path.with_name(name)
            if about.task == task and (not path.is_file() or file_digest(path) != about.sha256):
                return f"{path} is missing or changed; task {task} is run again"
        data = data_of(task) if task in previous.task_hashes else None
        if data is None:
            return None
        groups, what = previous.datasets[task].groups_sha256, None
        if data.fingerprint != previous.task_hashes[task]:
            what = "data"
        elif data.groups and groups not in (None, data.groups):
            what = "ids or tags"
        return what and f"the {what} of task {task} are not those of {self.path}; it is run again"

    @contextmanager
    def task(self, name: str, state: Path | None, goes_on: bool) -> Iterator[None]:
        """Records how a task ends, and raises what ended it unless the run ``goes_on``.

        Its checkpoints in ``state`` are removed once a document with the task is saved.
        """
        self._task = name
        try:
            yield
        except Exception as error:
            self._fail(name, error)
            if not goes_on:
                raise
            warn(f"task {name} failed: {self.errors[-1]['message']}")
            state = None
        self._task = None
        self.save("running")
        if state is not None:
            shutil.rmtree(state, ignore_errors=True)

    def _fail(self, task: str | None, error: BaseException) -> None:
        """Records a failure."""
        cause = error.__cause__ if type(error) is TtmbenchError and error.__cause__ is not None else error
        kind, message = type(cause).__name__, one_line(str(error))
        self.errors.append({"task": task, "stage": phase_of(error, "run"), "type": kind, "message": message})

    def add(self, result: TaskResult) -> None:
        """Takes the result of a task and writes its files: samples, iterations of methods, and scores if asked for.

        Raises the failure of a method; then no file is written.
        """
        task, config = result.spec.task, self._config
        self.results[task], self._entries[task] = result, _entries(result, self.model_info)
        scored = result if isinstance(result, Scored) else None
        if scored is not None and scored.failure is not None:
            raise scored.failure
        if self.path is None:
            return
        # Else samples have ids, scores, metrics and tags alone, and are packed.
        is_text = self._key is None or config.log_samples
        columns, elsewhere = ((), {}) if scored is None else (scored.columns, scored.elsewhere)
        files: list[tuple[str, str | None, Iterable[Record] | Callable[[Path], object]]] = []
        others = [(name, other.result) for name, other in elsewhere.items() if isinstance(other.result, Scored)]
        for other, one in (None, result), *others:
            also, adapted_on = ("", None) if other is None else ("also_", task)
            if one.data.groups or not isinstance(one, Ranked) or one.units is not None:  # single queries are known
                lines = sample_lines(one, None if self._key is None else config.run_seeds)
                if not is_text:
                    lines = ({key: value for key, value in line.items() if key not in _LOGGED} for line in lines)
                files.append((f"{also}samples", other, lines))
            if config.save_scores and one.stored_as is not None:
                save = partial(one.save, config=config, adapted_on=adapted_on)
                files.append((f"{also}{one.stored_as}", other, save))
        # Times stay in the results document, so that the same run writes the same lines.
        steps = [{"method": one.name, **step} for one in columns for step in one.record.get("iterations", ())]
        if steps:
            lines = ({key: value for key, value in step.items() if key != "seconds"} for step in steps)
            files.append(("iterations", None, lines))
        stem, stamp = self.path.stem, self.path.stem.removeprefix("results_")
        for kind, other, content in files:
            both = task if other is None else f"{task}@{other}"  # no task has an @ in its name
            packed = kind.endswith("samples") and not is_text
            ending = "safetensors" if callable(content) else "jsonl.gz" if packed else "jsonl"
            name = f"{stem}_{kind}_{both}" if self._is_file else f"{kind}_{both}_{stamp}"
            path = self.path.with_name(f"{name}.{ending}")
            write = content if callable(content) else partial(write_lines, content, packed=packed)
            with phase("save"):
                write_atomically(path, write)
            about = {"kind": kind, "task": task, "sha256": file_digest(path), "bytes": path.stat().st_size}
            self.artifacts[path.name] = about if other is None else {**about, "measured_on": other}

    def compare_with(self, baseline: Baseline) -> None:
        """Adds the comparison with another run."""
        results, config = self._evaluated(), self._config
        self.baseline = baseline.entry(results.typed, results.task_groups, config.bootstrap_iters, config.seed)

    def _evaluated(self, is_whole: bool = True) -> EvalResults:
        """The results as last saved; of a whole run with the sample values of resumed tasks."""
        document, path, groups = self._document, self.path, dict[str, TaskGroups]()
        if is_whole and path is not None and any(task not in self.results for task in document.results):
            groups = stored_groups(path.parent, document)
        address = None if self._remote is None or path is None else f"{self._remote.url}/{path.name}"
        return EvalResults(document, dict(self.results), path if address is None else None, groups, address)

    def save(self, status: str) -> None:
        """Makes the document as it is now and writes it, but for one of an earlier run whose tasks are not taken over.

        TtmbenchError if it does not follow its schema.
        """
        names = [name for name in dict.fromkeys([*self._tasks, *self._entries]) if name in self._entries]
        per_task = {
            key: {name: self._entries[name][key] for name in names if key in self._entries[name]}
            for key in keys_by_task()
        }
        done, failed = per_task["results"], {error["task"] for error in self.errors}
        used = {track for tracks in per_task["tracks"].values() for track in tracks.values()}
        groups = aggregates(done, self._datasets) if self._datasets else {}
        notes = {name: shared_images_note(per_task["configs"], self._datasets[name]) for name in groups}
        earlier = 0.0 if self.previous is None else self.previous.total_evaluation_time_seconds
        reports = self.model is not None and overrides(self.model, "usage")
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
            **({"group_notes": shown} if (shown := {name: lines for name, lines in notes.items() if lines}) else {}),
            **{key: entries for key, entries in per_task.items() if entries or key not in _RARE},
            **({} if self.baseline is None else {"baseline": self.baseline}),
            "errors": self.errors,
            **self._header,
            "model_info": self.model_info | ({"usage": self._usage(self.model)} if reports else {}),
            "hardware": {**machine.hardware(), "peak_memory_bytes": machine.peak_memory()},
            "total_evaluation_time_seconds": earlier + time.perf_counter() - self._clock,
            "artifacts": self.artifacts,
        }
        with phase("save"):
            try:
                self._document = ResultsDocument.model_validate(document, strict=False)
            except ValidationError as error:  # a plugin's metric or a mistake of ours: what no reader would take
                raise TtmbenchError(f"the results document is not as its schema says: {describe(error)}") from None
            if self.path is not None and self._is_new:
                text = to_json(self._document.to_dict())
                write_atomically(self.path, lambda path: path.write_text(text, encoding="utf-8"))
                self._is_finished = status == "done"
                if self._remote is not None:
                    self._put(self._remote, self.path.parent)

    def _usage(self, model: Model | None) -> Record:
        """What the model has used, with that of resumed runs: counts are added, the rest is as it is now.

        A model that fails to report it does not end the run.
        """
        before = {} if self.previous is None else self.previous.model_info.usage
        try:
            used = {} if model is None else dict(model.usage())
            json.dumps(used, allow_nan=False)
            total = {name: before[name] + used[name] for name in _COUNTS if before.get(name) and used.get(name)}
            return used | total
        except Exception as error:
            return {"error": error_line(error)}


def _entries(result: TaskResult, model_info: Record) -> Record:
    """The document's entries of one task, by key."""
    entries, spec, data, finetuning = as_entries(result.numbers), result.spec, result.data, model_info.get("finetuned")
    seen = [name for name in spec.images_from if name in (model_info.get("trained_on") or ())]
    counts, coverage, notes = result.counts(), data.source.get("coverage"), list(result.notes)
    groups = counts["effective"]
    if counts.get("clusters", groups) < groups:
        notes.append(clusters_note(groups, counts["clusters"]))
    if seen:
        notes.append(f"the model was trained on images of {', '.join(seen)}, which this task uses")
    if any(entry["task"] == spec.task for entry in (finetuning or {}).get("tasks", ())):
        notes.append(f"the model was finetuned on groups of {spec.task}: the numbers say how well it fits them")
    if coverage is not None and coverage["missing"]:
        notes.append(
            f"the images of {coverage['here']} of {coverage['rows']} groups are here; the others are skipped, so "
            "numbers compare only with those of the same groups (datasets, coverage)"
        )
    dataset = {"coverage": coverage, "from_store": result.from_store}
    dataset |= {"true_captions": spec.group.true_captions} if spec.group.true_captions > 1 else {}
    dataset |= {"groups_sha256": groups_digest(data.groups)} if data.groups else {}
    only_some_have = {"tag_means": result.tag_means, "undecided": result.undecided, "seen_in_training": seen}
    return {
        **entries,
        "tracks": entries["tracks"] if finetuning is None else supervised_tracks(entries["tracks"]),
        **{key: value for key, value in {**only_some_have, "notes": notes, **result.records()}.items() if value},
        "configs": spec.model_dump(mode="json"),
        "versions": spec.version,
        "n-shot": 0,
        "n-samples": counts,
        "higher_is_better": {metric.name: metric.higher_is_better for metric in result.metrics},
        "task_hashes": data.fingerprint,
        "datasets": {
            "source": {key: value for key, value in data.source.items() if key != "coverage"},
            "revision": data.source.get("revision"),
            "fingerprint": data.fingerprint,
            "n_groups": groups,
            "shape": result.shape,
            "license": spec.license,
            **{key: value for key, value in dataset.items() if value},
        },
        "timing": result.seconds,
    }


def _newest(documents: Sequence[Path], model: str, key: ConfigKey) -> Path | None:
    """The first document of the same command and name; without one, reports the first that only code sets apart."""
    others = list[tuple[Path, list[str]]]()
    for path in documents:
        try:
            document = read_document(path)
        except DataError as error:
            warn(f"not resumed: {error}")
            continue
        if document.model_name == model and document.run_key == key.sha256:
            return path
        options, code = key.changes_since(document)
        others += [(path, code)] if document.model_name == model and code and not options else []
    for path, code in others[:1]:
        warn(f"{' and '.join(code)} since {path.name}: running again")
    return None


def _locked(results: Path) -> filelock.BaseFileLock:
    """The lock on a results file; UsageError if another run has it, or where nothing can be written."""
    state = state_of(results)
    try:
        if link := next((path for path in (state, *state.rglob("*")) if path.is_symlink()), None):
            raise UsageError(f"{link} is a link, which no run makes or follows; remove it")
        return take_lock(state / LOCK)
    except filelock.Timeout:
        raise UsageError(
            f"another run is writing to {results}; wait until it is done, or name another --output_path"
        ) from None
    except OSError as error:
        raise UsageError(f"--output_path {results} cannot be written to: {error.strerror or error}") from None
