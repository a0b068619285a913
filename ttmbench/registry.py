"""Names to things: models, tasks, sources, metrics and schedules of all plugins, with "did you mean"."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench.blame import blaming, said
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins import Plugins, load_plugins
from ttmbench.taskfile import TaskFile, load_task
from ttmbench.types import AdapterSpec, Group, MetricSpec, ScheduleSpec, SourceRequest, SourceSpec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from ttmbench.data.loading import Loaded, LoadRequest
    from ttmbench.data.places import Need, Place

ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Registry:
    """Everything that can be asked for by name, each with the plugin it comes from."""

    plugins: Plugins
    adapters: Mapping[str, tuple[AdapterSpec, str]]
    task_files: Mapping[str, tuple[Traversable, str]]
    sources: Mapping[str, tuple[SourceSpec, str]]
    metrics: Mapping[str, tuple[MetricSpec, str]]
    schedules: Mapping[str, tuple[ScheduleSpec, str]]

    def adapter(self, name: str) -> AdapterSpec:
        """A model by name or alias; UsageError with near names otherwise."""
        return self._get(self.adapters, name, "model")

    def metric(self, name: str) -> MetricSpec:
        """A metric by name; UsageError with near names otherwise."""
        return self._get(self.metrics, name, "metric")

    def schedule(self, name: str) -> ScheduleSpec:
        """A threshold schedule by name; UsageError with near names otherwise."""
        return self._get(self.schedules, name, "schedule")

    def task(self, name: str) -> TaskFile:
        """A task by name, or by the path of its file.

        Raises:
            UsageError: no such task, or its file is wrong.
        """
        if name.endswith(ENDINGS) and (name not in self.task_files):
            path = Path(name)
            if not path.is_file():
                raise UsageError(f"task file {name} does not exist")
            return self._checked(load_task(path))
        return self._checked(load_task(self._get(self.task_files, name, "task")))

    def all_tasks(self) -> dict[str, TaskFile]:
        """Every registered task by name, sorted; UsageError naming file and key if one is wrong."""
        return {name: self.task(name) for name in sorted(self.task_files)}

    def is_named(self, word: str) -> bool:
        """Whether a word names one task or task file; if not, it is a tag or a glob."""
        return word in self.task_files or word.endswith(ENDINGS)

    def select_tasks(self, patterns: Sequence[str]) -> dict[str, TaskFile]:
        """Tasks by name, tag, glob or file, each once, in the order asked for.

        Args:
            patterns: what ``--tasks`` lists.

        Returns:
            name -> task.

        Raises:
            UsageError: a pattern that fits nothing, with near names; or a wrong file.
        """
        chosen: dict[str, TaskFile] = {}
        for pattern in patterns:
            if self.is_named(pattern):
                task = self.task(pattern)
                chosen.setdefault(task.spec.task, task)
                continue
            everything = self.all_tasks()
            fitting = [
                name for name, task in everything.items() if pattern in task.spec.tag or fnmatchcase(name, pattern)
            ]
            if not fitting:
                tags = {tag for task in everything.values() for tag in task.spec.tag}
                raise UsageError(self._unknown("task", pattern, [*everything, *tags]))
            for name in fitting:
                chosen.setdefault(name, everything[name])
        return chosen

    def load(
        self, task: TaskFile, limit: int | None = None, offline: bool = False, data_dir: str | Path | None = None
    ) -> Loaded:
        """Reads a task's data through its source and checks number and shape.

        Args:
            task: the task.
            limit: read no more groups than this.
            offline: never touch the network.
            data_dir: folder of files that users fetch themselves; see `ttmbench.data.loading.data_folder`.

        Returns:
            The groups in the source's order, and where they came from.

        Raises:
            DataError: data out of reach, or not what the task file says.
            UsageError: the source is unknown or its options are wrong.
        """
        from ttmbench.checks import check_groups
        from ttmbench.data.loading import OutOfReachError, given_data_folder
        from ttmbench.data.tagfiles import add_tags

        spec = task.spec
        folder = given_data_folder(data_dir)
        request = replace(self._request(task, folder), limit=limit, offline=offline)
        try:
            loaded = self._read_source(spec.source, request)
        except OutOfReachError as error:
            page = f"https://huggingface.co/datasets/{spec.source.get('path')}"
            text = str(error)
            if not ("gated" in text or "ttmbench download" in text):
                text += f"; `ttmbench download {spec.task}` fetches what it can"
            if spec.gated and "path" in spec.source and page not in text:
                text += f". It is gated: before the first run accept its terms at {page} and set HF_TOKEN"
            raise OutOfReachError(text) from error
        loaded = add_tags(loaded, spec.group.constant_tags, spec.group.tag_files, folder)
        check_groups(spec, loaded.groups, limit)
        return loaded

    def load_groups(
        self, task: TaskFile, limit: int | None = None, offline: bool = False, data_dir: str | Path | None = None
    ) -> list[Group]:
        """The groups of `load` alone; arguments and errors are the same."""
        return self.load(task, limit, offline, data_dir).groups

    def places(self, task: TaskFile, data_dir: Path) -> tuple[list[Place], list[Need]]:
        """What a task needs on this machine; nothing is fetched.

        Args:
            task: the task.
            data_dir: the data folder, which may not exist.

        Returns:
            The places that have its data, in the order in which they are tried; and its files of further tags.

        Raises:
            UsageError: the source is unknown or its options are wrong.
        """
        from ttmbench.download.files import DataFile

        tags: list[Need] = [DataFile(data_dir, one.file, one.get) for one in task.spec.group.tag_files.values()]
        return self._source_places(task.spec.source, self._request(task, data_dir)), tags

    def _request(self, task: TaskFile, data_dir: Path) -> LoadRequest:
        from ttmbench.data.loading import LoadRequest

        spec = task.spec
        return LoadRequest(
            options={},
            columns=spec.group.model_dump(include={"id", "images", "captions", "tags"}),
            shape=spec.shape,
            n_groups=spec.group.n_groups,
            folder=task.folder,
            data_dir=data_dir,
            read=self._read_source,
            places=self._source_places,
        )

    def _source_places(self, source: Mapping[str, Any], request: SourceRequest) -> list[Place]:
        """The places of one source mapping; sources that combine others come back here for each of them."""
        from ttmbench.data.places import Place

        spec, options = self._source(source)
        if not spec.needs:
            return [Place(f"source '{spec.kind}'", None)]
        places: list[Place] = load_target(spec.needs)(replace(request, options=options))
        return places

    def _source(self, source: Mapping[str, Any]) -> tuple[SourceSpec, dict[str, Any]]:
        """The reader of a source mapping, and its options."""
        kind = source.get("kind")
        if not isinstance(kind, str):
            raise UsageError("every source needs a 'kind'")
        return self._get(self.sources, kind, "source"), {key: source[key] for key in source if key != "kind"}

    def _read_source(self, source: Mapping[str, Any], request: SourceRequest) -> Loaded:
        """Reads one source mapping; sources that combine others come back here for each of them."""
        from ttmbench.data.loading import Loaded

        spec, options = self._source(source)
        reader, plugin = load_target(spec.target), self.sources[spec.kind][1]
        with blaming(f"source '{spec.kind}' of plugin '{plugin}'", DataError):
            result = reader(replace(request, options=options))
            loaded = result if isinstance(result, Loaded) else Loaded(list(result))
        strange = [one for one in loaded.groups if not isinstance(one, Group)]
        if strange:
            raise DataError(
                f"source '{spec.kind}' of plugin '{plugin}' gave a {type(strange[0]).__name__} in place of a group"
            )
        # A reader that names its kind has told everything; of others the options are told.
        record = loaded.source if "kind" in loaded.source else {**source, **loaded.source}
        return Loaded(loaded.groups, record)

    def _checked(self, task: TaskFile) -> TaskFile:
        spec = task.spec
        for metric in spec.metrics:
            self._get(self.metrics, metric, f"task {spec.task}: metric")
        for kind in _kinds(spec.source):
            self._get(self.sources, kind, f"task {spec.task}: source kind")
        for settings in spec.ttm.values():
            if "schedule" in settings:
                self._get(self.schedules, settings["schedule"], f"task {spec.task}: schedule")
        return task

    def _get(self, table: Mapping[str, tuple[Any, str]], name: str, what: str) -> Any:
        if name not in table:
            raise UsageError(self._unknown(what, name, list(table)))
        return table[name][0]

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> str:
        names = sorted(set(known))
        near = get_close_matches(name, names, n=2, cutoff=0.6)
        if near:
            hint = f"did you mean {' or '.join(repr(one) for one in near)}?"
        else:
            hint = f"known: {', '.join(names)}"
        broken = "".join(
            f" (plugin '{plugin.name}' could not be imported: {plugin.reason})" for plugin in self.plugins.broken
        )
        return f"unknown {what} '{name}'; {hint}{broken}"


def build_registry(include_paths: Sequence[str | Path] = (), extra: Iterable[tuple[str, Any]] = ()) -> Registry:
    """Collects what all plugins bring, and the task files of further folders.

    Args:
        include_paths: folders of task YAMLs.
        extra: more plugins, as (name, object).

    Returns:
        The registry.

    Raises:
        UsageError: a plugin or a folder is wrong, or two things take one name.
    """
    plugins = load_plugins(extra)
    files: dict[str, tuple[Traversable, str]] = {}
    folders = [(plugin, folder) for plugin, dirs in plugins.each("ttmbench_register_task_dirs") for folder in dirs]
    for plugin, folder in folders:
        if not hasattr(folder, "iterdir") or not folder.is_dir():
            shown = f"'{folder}'" if isinstance(folder, str | Path) else type(folder).__name__
            raise UsageError(f"plugin '{plugin}' registered {shown} as a folder of tasks, which is no Path to a folder")
    for include in include_paths:
        if not Path(include).is_dir():
            raise UsageError(f"--include_path {include} is no folder")
        folders.append((str(include), Path(include)))
    for origin, folder in folders:
        for entry in folder.iterdir():
            if not entry.name.endswith(ENDINGS) or entry.name.startswith("_"):
                continue
            name = entry.name.rsplit(".", 1)[0]
            if name in files:
                raise UsageError(f"task '{name}' is defined by both '{files[name][1]}' and '{origin}'; rename one")
            files[name] = (entry, origin)
    return Registry(
        plugins=plugins,
        adapters=plugins.collect("ttmbench_register_adapters", lambda spec: (spec.name, *spec.aliases)),
        task_files=files,
        sources=plugins.collect("ttmbench_register_sources", lambda spec: (spec.kind,)),
        metrics=plugins.collect("ttmbench_register_metrics", lambda spec: (spec.name,)),
        schedules=plugins.collect("ttmbench_register_schedules", lambda spec: (spec.name,)),
    )


def _kinds(source: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of a source and of those that it combines."""
    if isinstance(source.get("kind"), str):
        yield source["kind"]
    inner = source.get("of")
    for one in inner if isinstance(inner, list) else ():
        if isinstance(one, dict):
            yield from _kinds(one)


def load_target(target: str, needs: Sequence[str] = ()) -> Any:
    """Imports ``"module:callable"``.

    Args:
        target: where it is.
        needs: what to install if the import fails.

    Returns:
        The callable.

    Raises:
        UsageError: it cannot be imported; the message says what to install.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise UsageError(f"'{target}' is not module:callable")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        install = f"; pip install {shlex.join(needs)}" if needs else ""
        raise UsageError(f"{target} cannot be imported: {error}{install}") from error
    except AttributeError as error:
        raise UsageError(f"{target} does not exist: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target} cannot be imported: {said(error)}") from error
