"""Where a run writes, and what an earlier run of the same command left there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import filelock
import numpy as np

from ttmbench._util import machine
from ttmbench._util.console import show_as, warn
from ttmbench._util.digests import OWN, digests_of_modules, digests_of_object, json_digest
from ttmbench._util.file_io import Unreadable, file_digest, read_json, safe_name, take_lock, to_json, write_atomically
from ttmbench.config import PART_KINDS, RunConfig, TTMConfig, is_address
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model import Model
from ttmbench.plugins.registry import Registry, Table
from ttmbench.results.document import ResultsDocument
from ttmbench.results.ranks import Ranks
from ttmbench.results.reader import read_document
from ttmbench.results.stored_files import save_ranks, save_scores
from ttmbench.results.summary import MethodScores
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
class RunKey:
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
    ) -> RunKey:
        """The key of a run on ``tasks``, measured also on others; unique where the source of code cannot be read.

        Code is that of ttmbench and of every package with a model (``adapter``: one given as an object), source,
        metric, schedule or part.
        """
        names: list[tuple[Table[Any], Any]] = [
            (registry.adapters, model) for model in (config.model, config.rerank.get("model"))
        ]
        for task in (*tasks.values(), *also.values()):
            names += [(registry.sources, source["kind"]) for source in task.spec.sources]
            names += [(registry.metrics, metric) for metric in task.spec.metrics]
        names += [(registry.methods, name) for name in config.methods]
        rewards = [str(value).partition(":")[0] for key, value in config.method_args.items() if key.endswith(".reward")]
        names += [(registry.adapters, model) for model in rewards if model in registry.adapters]
        names += [(registry.schedules, ttm.schedule) for ttm in settings.values()]
        names += [(registry.parts, f"{kind}={getattr(ttm, kind)}") for ttm in settings.values() for kind in PART_KINDS]
        parts = {key.partition(".")[2]: value for key, value in config.method_args.items()}
        names += [(registry.parts, f"{kind}={name}") for kind, name in parts.items() if kind in PART_KINDS]
        modules = {module for table, name in names for module in table.modules_of(name, registry.manager)}
        objects = {} if adapter is None else digests_of_object(adapter)
        code = dict(sorted({**digests_of_modules({OWN, *modules}), **objects}.items()))
        bits: Record = {"once": uuid4().hex} if None in code.values() else {}
        if config.deterministic:
            from ttmbench.evaluator.determinism import conditions  # imports torch, which `ttmbench score` does without

            bits["deterministic"] = conditions(config.batch_size)
        others = {name: task.spec.model_dump(mode="json") for name, task in also.items()}
        asked = config.model_dump(mode="json", exclude={*INDIFFERENT, "also"})
        content = {
            "config": {**asked, "tasks": sorted(tasks), "seeds": config.run_seeds},
            "tasks": {name: task.spec.model_dump(mode="json") for name, task in tasks.items()},
            "settings": {name: of.model_dump(mode="json") for name, of in settings.items()},
            "packages": machine.packages(),
            **({"also": others} if others else {}),
            **bits,
            "code": code,
        }
        if config.samples is not None:
            content["config"]["samples"] = hashlib.sha256(Path(config.samples).read_bytes()).hexdigest()
        return cls(content, json_digest(content))

    def changes_since(self, document: Record) -> str | None:
        """Which source or packages changed since a document of the same settings and tasks; None for other changes."""
        packages, code, stated = (document.get(name) or {} for name in ("packages", "code", "config"))
        now, asked = self.content["packages"], self.content["config"]
        settings = [name for name in asked if name not in ("tasks", "seeds", "samples")]
        same = all(isinstance(one, Mapping) for one in (packages, code, stated))
        if not same or any(stated.get(name) != asked[name] for name in settings):
            return None
        if sorted(document.get("task_status", {})) != asked["tasks"]:
            return None
        used = self.content["code"]
        unread = [name for name in sorted(used) if used[name] is None and code.get(name, "") is None]
        edited = _differing(code, used)
        changes = [f"the source of {' and '.join(unread)} cannot be read, so it may have changed"] if unread else []
        changes += (
            [f"the source of package{'s' if edited[1:] else ''} {' and '.join(edited)} changed"] if edited else []
        )
        changes += [f"{name} {packages.get(name)} became {now.get(name)}" for name in _differing(packages, now)]
        return " and ".join(changes) or None


def _differing(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]


@dataclass(frozen=True)
class DataNow:
    """Digests of a task's data as they are now."""

    fingerprint: str  # the data digest, or that of stored features
    groups: str | None = None  # of ids and tags; None where groups have none of their own


def groups_digest(groups: Sequence[Group]) -> str:
    """sha256 over ids and tags of groups in order: what breakdowns and samples are named by, and no model sees."""
    named = [[group.group_id, sorted(group.tags.items())] for group in groups]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


_KINDS = ("samples", "scores", "ranks", "ttm", "also_samples", "also_scores")
_ENDINGS = ("jsonl", "safetensors")


@dataclass
class RunFiles:
    """The files of a run."""

    results: Path  # of the results document
    beside: str  # names of the other files, with ``{kind}`` and ``{task}`` to fill in
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> kind, task, sha256 and size
    finished: bool = False  # whether the document says that nothing is left to do

    @classmethod
    def of(cls, output_path: str, model: str, stamp: str) -> RunFiles:
        """The files of an output path: a ``.json`` file, or a folder for ``<model>/results_<stamp>.json``."""
        target = Path(output_path)
        if target.suffix == ".json":
            stem = target.stem.replace("{", "{{").replace("}", "}}")
            return cls(target, f"{stem}_{{kind}}_{{task}}")
        return cls(target / safe_name(model) / f"results_{stamp}.json", f"{{kind}}_{{task}}_{stamp}")

    @property
    def folder(self) -> Path:
        """The folder of the results document."""
        return self.results.parent

    @property
    def state(self) -> Path:
        """Folder of what a run needs to resume; removed when it is done."""
        return self.folder / f".{self.results.stem}.state"

    def write_results(self, document: Mapping[str, object]) -> None:
        """Replaces the results document in one step."""
        write_atomically(self.results, lambda path: path.write_text(to_json(document), encoding="utf-8"))
        self.finished = document.get("status") == "done"

    def write_lines(
        self, kind: str, task: str, lines: Iterable[Mapping[str, object]], other: str | None = None
    ) -> None:
        """Writes JSON lines (``samples``, ``ttm``) of a task, or of another one that its model was measured on."""
        import jsonlines

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="\n") as file:
                jsonlines.Writer(file, dumps=partial(json.dumps, ensure_ascii=False, allow_nan=False)).write_all(lines)

        self._write(kind, task, "jsonl", write, other)

    def write_scores(
        self, task: str, columns: Sequence[MethodScores], metadata: Mapping[str, str], other: str | None = None
    ) -> None:
        """Writes the score arrays of a task, or of another one that its model was measured on."""
        kind = "scores" if other is None else "also_scores"
        scores = {column.name: column.scores for column in columns}
        iterations = {column.name: column.iterations for column in columns}
        self._write(kind, task, "safetensors", lambda path: save_scores(path, scores, metadata, iterations), other)

    def write_ranks(
        self,
        task: str,
        ranks: Mapping[str, Ranks],
        of_query: Mapping[str, np.ndarray],
        metadata: Mapping[str, str],
        clusters: np.ndarray | None = None,
    ) -> None:
        """Writes the ranks of a task's queries, as ``ttmbench score`` reads them."""
        self._write("ranks", task, "safetensors", lambda path: save_ranks(path, ranks, of_query, metadata, clusters))

    def _write(
        self, kind: str, task: str, ending: str, write: Callable[[Path], object], other: str | None = None
    ) -> None:
        both = task if other is None else f"{task}@{other}"  # no task has an @ in its name
        path = self.folder / f"{self.beside.format(kind=kind, task=both)}.{ending}"
        write_atomically(path, write)
        about = {"kind": kind, "task": task, "sha256": file_digest(path), "bytes": path.stat().st_size}
        self.artifacts[path.name] = about if other is None else {**about, "measured_on": other}


LOCK = "lock"
_STAMP = "%Y-%m-%dT%H-%M-%S.%f"


@dataclass
class RunDirectory:
    """The files of a run, locked against other writers."""

    files: RunFiles  # where the run writes
    previous: ResultsDocument | None  # the document that an earlier run of the same command left; None if there is none
    _lock: filelock.BaseFileLock
    _config: RunConfig
    _started: datetime
    _remote: RemoteFolder | None = None  # where the folder is put
    unsent: TtmbenchError | None = None  # why the address lacks what was written last; None if it lacks nothing
    _was_put: bool = False

    @property
    def results(self) -> tuple[Path | None, str | None]:
        """The document's path, or its address."""
        path = self.files.results
        return (path, None) if self._remote is None else (None, f"{self._remote.url}/{path.name}")

    def put(self) -> None:
        """Puts the folder to its address, if it has one; only the first failure ends the run."""
        if self._remote is None:
            return
        try:
            self._remote.put(self.files.folder)
        except DataError as error:
            if not self._was_put:
                raise UsageError(f"--output_path: {error}") from None
            self.unsent = TtmbenchError(f"{error}; the results are in {self.files.folder}: the same command puts them")
            warn(f"{error}; what is done is in {self.files.folder}, and the run continues")
        else:
            self._was_put, self.unsent = True, None

    def keep_completed(
        self, fingerprint: Mapping[str, object], data_of: Callable[[str], DataNow | None] = lambda task: None
    ) -> list[str]:
        """The finished tasks of the earlier run; none, and its files are left aside, if that run had another model."""
        previous = self.previous
        if previous is None:
            return []
        before = previous.model_info.get("fingerprint")
        if before is not None and (not fingerprint or before != json.loads(json.dumps(fingerprint, default=str))):
            why = "states no fingerprint" if not fingerprint else "is not the one"
            warn(f"the model {why} of {self.files.results}; every task is run")
            self._leave(previous)
            return []
        wanted = {"done", "failed"} if self._config.overwrite == "missing" else {"done"}
        tasks = [task for task, status in previous.task_status.items() if status in wanted]
        done = [task for task in tasks if self._intact(previous, task) and self._same_data(previous, task, data_of)]
        for name, about in previous.artifacts.items():
            if about.task in done:
                self.files.artifacts[name] = about.model_dump(mode="json", exclude_unset=True)
        left = len(previous.task_status) - len(done)
        how_far = f"{', '.join(done) or 'no task'} done, {left} left"
        how_far = how_far if left else "every task is done (--overwrite always runs them again)"
        warn(f"resuming {self.files.results}: {how_far}")
        return done

    def _leave(self, previous: ResultsDocument) -> None:
        """Moves what the earlier run left aside: it is of another model."""
        folder = Path(self._config.save_adapted or "")
        if self._config.save_adapted is not None and folder.is_dir() and any(folder.iterdir()):
            aside = folder.with_name(f"{folder.name}.{_stamp(previous.date)}")
            folder.rename(aside)
            folder.mkdir()
            warn(f"{folder} held models that were adapted from other weights; moved to {aside}")
        if Path(self._config.output_path or "").suffix == ".json":
            _move_aside(self.files, previous.to_dict())
            files = self.files
        else:
            files = open_run_files(str(self._config.output_path), self._config.model_name, self._started)
        self._lock.release()
        self.files, self.previous, self._lock = files, None, _lock(files)

    def _intact(self, previous: ResultsDocument, task: str) -> bool:
        """Whether the files that a task left are unchanged."""
        for name, about in previous.artifacts.items():
            path = self.files.folder / name
            if about.task == task and (not path.is_file() or file_digest(path) != about.sha256):
                warn(f"{path} is missing or changed; task {task} is run again")
                return False
        return True

    def _same_data(self, previous: ResultsDocument, task: str, data_of: Callable[[str], DataNow | None]) -> bool:
        """Whether the data of a task are those that its numbers are of, as far as they can be read."""
        before = previous.task_hashes.get(task)
        groups = previous.datasets[task].groups_sha256 if task in previous.datasets else None
        now = None if before is None else data_of(task)
        if now is None or (now.fingerprint == before and (now.groups is None or groups in (None, now.groups))):
            return True
        what = "data" if now.fingerprint != before else "ids or tags"
        warn(f"the {what} of task {task} are not those of {self.files.results}; it is run again")
        return False


@contextmanager
def open_output(config: RunConfig, key: RunKey, started: datetime) -> Iterator[RunDirectory]:
    """Chooses the files of a run, checks that they can be written, and locks them until the context is left.

    Then the state goes if nothing is left to resume. UsageError for a folder that cannot be written to or that another
    run writes to, for a file that ``overwrite`` protects, and for one that is not a results document.
    """
    remote = None
    if is_address(config.output_path):
        config, remote = _local(config, key)
    assert config.output_path is not None, "the run has an output path"
    files = open_run_files(config.output_path, config.model_name, started)
    single = Path(config.output_path).suffix == ".json"
    if not single:
        earlier = None if config.overwrite == "always" else _earlier(files.folder, key, config.model_name)
        if earlier is not None:
            files = RunFiles(earlier, f"{{kind}}_{{task}}_{earlier.stem.removeprefix('results_')}")
    lock = _lock(files)
    document = None
    try:
        previous = _document(files.results, strict=single and config.overwrite != "always")
        if previous is not None and config.overwrite not in ("always", "never"):
            document = _sound(files.results)
            previous = None if document is None else previous
        if previous is not None and config.overwrite == "never":
            raise UsageError(
                f"{files.results} holds results already (status {previous.get('status')}) and --overwrite never leaves "
                "them as they are; name another --output_path"
            )
        if previous is not None and _aside(files, previous).results.exists():  # a kill came between two moves
            _move_aside(files, previous)
            previous = None
        same = previous is not None and previous.get("run_key") == key.sha256
        if config.overwrite == "always":
            shutil.rmtree(files.state / "tasks", ignore_errors=True)
            previous = None
        elif previous is not None and not same:
            _report_changes(key, previous, files.results)
            _move_aside(files, previous)
            lock.release()
            lock, previous = _lock(files), None
    except BaseException:
        lock.release()
        raise
    stem = escape(files.beside.replace("{kind}", "\0").replace("{task}", "\1"))
    beside = [stem.replace("\0", kind).replace("\1", "*") for kind in _KINDS]
    names = (escape(files.results.name), *(f"{pattern}.{ending}" for pattern in beside for ending in _ENDINGS))
    for stray in list(files.folder.glob(".*.tmp")):  # of a run that was killed while it wrote one of them
        if any(fnmatchcase(stray.name, f".{name}.*.tmp") for name in names):
            stray.unlink(missing_ok=True)
    output = RunDirectory(files, None if previous is None else document, lock, config, started, remote)
    try:
        yield output
    finally:
        files = output.files
        if files.finished or not _holds_something(files.state):
            with suppress(FileNotFoundError):
                for inside in files.state.iterdir():
                    if inside.name != LOCK:
                        shutil.rmtree(inside, ignore_errors=True)
            shutil.rmtree(files.state, ignore_errors=True)
        output._lock.release()
        if remote is not None and output._was_put and output.unsent is None and files.finished:
            shutil.rmtree(files.folder, ignore_errors=True)
            with suppress(OSError):
                files.folder.parent.rmdir()


def _local(config: RunConfig, key: RunKey) -> tuple[RunConfig, RemoteFolder]:
    """The run as it writes to a local folder, which stays until it is put to the address, and the place of that folder.

    What an earlier run left at the address is copied, unless it is still here.
    """
    from platformdirs import user_cache_path

    from ttmbench._util.remote import RemoteFolder  # with fsspec, for addresses alone

    address = str(config.output_path)
    local = user_cache_path("ttmbench", appauthor=False) / "unsent" / json_digest([address, key.sha256])[:32]
    place, _, name = address.rpartition("/") if address.endswith(".json") else (address.rstrip("/"), "", "")
    remote = RemoteFolder(address, "--output_path")
    remote = RemoteFolder(place if name else f"{place}/{safe_name(config.model_name)}", "--output_path")
    own = RunFiles.of(str(local / name), config.model_name, "").folder
    show_as(str(own), remote.url)
    try:
        if not own.exists():
            remote.get(own, Path(name).stem)
    except DataError as error:
        raise UsageError(f"--output_path: {error}") from None
    return config.model_copy(update={"output_path": str(local / name)}), remote


def archive_existing(files: RunFiles) -> None:
    """Moves a run's document aside whose name is about to be written; UsageError for any other file."""
    document = _document(files.results, strict=True)
    if document is not None and document.get("run_key") is not None:
        _move_aside(files, document)


def open_run_files(output_path: str, model: str, started: datetime) -> RunFiles:
    """Chooses unused file names, even if the clock repeats, and makes sure that they can be written; else UsageError.

    A ``.json`` file may exist.
    """
    while True:
        files = RunFiles.of(output_path, model, started.strftime(_STAMP))
        if Path(output_path).suffix == ".json" or not files.results.exists():
            break
        started += timedelta(microseconds=1)
    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        if files.results.is_dir():
            raise IsADirectoryError(f"{files.results} is a folder")
        with tempfile.TemporaryFile(dir=files.folder):
            return files
    except OSError as error:
        raise UsageError(f"--output_path {output_path} cannot be written to: {error.strerror or error}") from None


def _earlier(folder: Path, key: RunKey, model: str) -> Path | None:
    """The newest document of the same command and name; without one, reports the newest that only code sets apart."""
    others = []
    for path in sorted(folder.glob("results_*.json"), reverse=True):
        document = _document(path, strict=False)
        if document is None or document.get("model_name") != model:
            continue
        if document.get("run_key") == key.sha256:
            return path
        others.append((path, document))
    any(_report_changes(key, document, path) for path, document in others)
    return None


def _report_changes(key: RunKey, document: Record, path: Path) -> bool:
    """Says why a document of the same command is not resumed, if it is one."""
    changed = key.changes_since(document)
    if changed is not None:
        warn(f"{changed} since {path.name}: running again")
    return changed is not None


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


def _sound(path: Path) -> ResultsDocument | None:
    """The document if it can be resumed; else None, after a warning, and the file gets another name."""
    try:
        return read_document(path)
    except DataError as error:
        aside = path.with_name(f"{path.stem}.damaged-{file_digest(path)[:8]}.json")
        path.replace(aside)
        why = str(error).removeprefix(f"{path}: ")
        warn(f"cannot resume from {path}: {why}; moved to {aside.name}, and every task is run")
        return None


def _lock(files: RunFiles) -> filelock.BaseFileLock:
    try:
        files.state.mkdir(parents=True, exist_ok=True)
        for folder, folders, names in os.walk(files.state):
            for path in (Path(folder), *(Path(folder) / name for name in (*folders, *names))):
                if path.is_symlink():  # what it leads to is not to be removed
                    raise UsageError(f"{path} is a link, which no run makes or follows; remove it")
        return take_lock(files.state / LOCK)
    except filelock.Timeout:
        raise UsageError(
            f"another run is writing to {files.results}; wait until it is done, or name another --output_path"
        ) from None
    except OSError as error:
        raise UsageError(f"{files.state} cannot be written to: {error.strerror or error}") from None


def _stamp(date: float) -> str:
    """A document's time, as names have it."""
    return datetime.fromtimestamp(date).strftime(_STAMP)


def _aside(files: RunFiles, document: Record) -> RunFiles:
    """Where another run's files go: its time is part of the name, so that nothing is overwritten."""
    stem = f"{files.results.stem}.{_stamp(float(document.get('date', 0.0)))}"
    return RunFiles.of(str(files.results.with_name(f"{stem}.json")), "", "")


def _move_aside(files: RunFiles, document: Record) -> None:
    """Renames another run's files by its time; first the document, so that `open_output` can finish after a kill."""
    aside = _aside(files, document)
    stems = files.results.stem, aside.results.stem
    moves = {name: Path(name).name.replace(*stems, 1) for name in document.get("artifacts", {})}
    artifacts = {moves[name]: about for name, about in document.get("artifacts", {}).items()}
    aside.write_results({**document, "artifacts": artifacts})
    for name, moved in moves.items():
        path = files.folder / Path(name).name
        if path.is_file():
            path.replace(aside.folder / moved)
    if _holds_something(files.state):
        aside.state.mkdir(exist_ok=True)
        for inside in files.state.iterdir():
            if inside.name != LOCK and not (aside.state / inside.name).exists():
                inside.rename(aside.state / inside.name)
    files.results.unlink(missing_ok=True)
    warn(f"{files.results} held another run; moved to {aside.results.name}")


def _holds_something(state: Path) -> bool:
    return any(path.is_file() and path.name != LOCK for path in state.rglob("*"))
