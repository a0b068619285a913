"""A task's data, read through its source and checked; and what it needs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ttmbench._util.digests import digests_of_modules
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.data.availability import DataLocation, DataNeed
from ttmbench.data.checks import check_groups
from ttmbench.data.loading import LoadRequest, given_data_folder, is_local
from ttmbench.data.memory import Task
from ttmbench.data.tags import add_tags
from ttmbench.data.task_file import COLUMN_KEYS, TaskFile, TaskSpec
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.plugins.manager import BUILTIN
from ttmbench.plugins.registry import Registry, load_target
from ttmbench.types import Group, GroupShape, Loaded, SourceRequest, SourceSpec


def load_task_data(
    registry: Registry,
    task: TaskFile,
    limit: int | None = None,
    offline: bool = False,
    data_dir: str | Path | None = None,
) -> Loaded:
    """Reads a task's data through its source and checks number and shape.

    Args:
        registry: where sources are looked up.
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
    if isinstance(task, Task):
        return task.load(limit)
    spec = task.spec
    folder = given_data_folder(data_dir)
    request = replace(_request(registry, task, folder), limit=limit, offline=offline)
    try:
        loaded = _read_source(registry, spec.source, request)
    except OutOfReachError as error:
        page = f"https://huggingface.co/datasets/{spec.source.get('path')}"
        text = str(error)
        if not ("gated" in text or "ttmbench download" in text or is_local(str(spec.source.get("path")))):
            text += f"; `ttmbench download {spec.task}` fetches what it can"
        if spec.gated and "path" in spec.source and page not in text:
            text += f". It is gated: before the first run accept its terms at {page} and set HF_TOKEN"
        raise OutOfReachError(text) from error
    loaded = add_tags(loaded, spec.group.constant_tags, spec.group.tag_files, folder)
    check_groups(spec, loaded.groups, limit, left_out(loaded.source))
    return loaded


def left_out(source: Mapping[str, Any]) -> int:
    """How many groups a source knows and does not give, because their images are not there."""
    coverage = source.get("coverage")
    return len(coverage["missing"]) if coverage else 0


def load_groups(
    registry: Registry,
    task: TaskFile,
    limit: int | None = None,
    offline: bool = False,
    data_dir: str | Path | None = None,
) -> list[Group]:
    """The groups of `load_task_data` alone; arguments and errors are the same."""
    return load_task_data(registry, task, limit, offline, data_dir).groups


def data_locations(registry: Registry, task: TaskFile, data_dir: Path) -> tuple[list[DataLocation], list[DataNeed]]:
    """What a task needs on this machine; nothing is fetched.

    Args:
        registry: where sources are looked up.
        task: the task.
        data_dir: the data folder, which may not exist.

    Returns:
        The places that have its data, in the order in which they are tried; and its files of further tags.

    Raises:
        UsageError: the source is unknown or its options are wrong.
    """
    from ttmbench.data.download.files import DataFile

    tags: list[DataNeed] = [DataFile(data_dir, one.file, one.get) for one in task.spec.group.tag_files.values()]
    return _source_places(registry, task.spec.source, _request(registry, task, data_dir)), tags


def _request(registry: Registry, task: TaskFile, data_dir: Path) -> LoadRequest:
    spec = task.spec
    return LoadRequest(
        options={},
        columns=_columns(spec),
        shape=spec.shape if spec.kind == "groups" else GroupShape(1, 2),
        n_groups=spec.group.n_groups,
        folder=task.folder,
        data_dir=data_dir,
        kind=spec.kind,
        read=partial(_read_source, registry),
        places=partial(_source_places, registry),
    )


def _columns(spec: TaskSpec) -> dict[str, Any]:
    """Columns as sources know them; the label of an image stands in the place of its caption."""
    columns = spec.group.model_dump(include=set(COLUMN_KEYS))
    return columns if spec.group.label is None else {**columns, "captions": [spec.group.label]}


def _source_places(registry: Registry, source: Mapping[str, Any], request: SourceRequest) -> list[DataLocation]:
    """The places of one source mapping; sources that combine others come back here for each of them."""
    spec, options = _source(registry, source)
    if not spec.needs:
        return [DataLocation(f"source '{spec.kind}'", None)]
    places: list[DataLocation] = load_target(spec.needs)(replace(request, options=options))
    return places


def _source(registry: Registry, source: Mapping[str, Any]) -> tuple[SourceSpec, dict[str, Any]]:
    """The reader of a source mapping, and its options."""
    kind = source.get("kind")
    if not isinstance(kind, str):
        raise UsageError("every source needs a 'kind'")
    return registry.get(registry.sources, kind, "source"), {key: source[key] for key in source if key != "kind"}


def _read_source(registry: Registry, source: Mapping[str, Any], request: SourceRequest) -> Loaded:
    """Reads one source mapping; sources that combine others come back here for each of them."""
    spec, options = _source(registry, source)
    reader, plugin = load_target(spec.target), registry.sources[spec.kind][1]
    with foreign_errors(f"source '{spec.kind}' of plugin '{plugin}'", DataError):
        result = reader(replace(request, options=options))
        loaded = result if isinstance(result, Loaded) else Loaded(list(result))
    strange = [one for one in loaded.groups if not isinstance(one, Group)]
    if strange:
        raise DataError(
            f"source '{spec.kind}' of plugin '{plugin}' gave a {type(strange[0]).__name__} in place of a group"
        )
    if plugin != BUILTIN:
        loaded = Loaded(_read_by_plugin(registry, spec.kind, loaded.groups), loaded.source)
    # A reader that names its kind has told everything; of others the options are told.
    record = loaded.source if "kind" in loaded.source else {**source, **loaded.source}
    return Loaded(loaded.groups, record)


def _read_by_plugin(registry: Registry, kind: str, groups: list[Group]) -> list[Group]:
    """Groups of a plugin's source, whose images state the code that reads them."""
    code = digests_of_modules(registry.modules_of(registry.sources, kind))
    reader = None if None in code.values() else ",".join(f"{name} {digest}" for name, digest in code.items())
    return [replace(group, images=tuple(replace(image, reader=reader) for image in group.images)) for group in groups]
