"""A task's data, read through its source and checked; and what it needs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ttmbench._util.digests import digests_of_modules
from ttmbench._util.files import file_digest
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.data.availability import DataLocation, DataNeed
from ttmbench.data.checks import check_groups
from ttmbench.data.origin import TagFile
from ttmbench.data.paths import below, given_data_folder, is_local
from ttmbench.data.task_file import COLUMN_KEYS, TaskFile
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
        data_dir: folder of files that users fetch themselves; see `ttmbench.data.paths.data_folder`.

    Returns:
        The groups in the source's order, and where they came from.

    Raises:
        DataError: data out of reach, or not what the task file says.
        UsageError: the source is unknown or its options are wrong.
    """
    spec = task.spec
    if task.groups is not None:
        return Loaded(list(task.groups[:limit]), {"kind": spec.source["kind"]})
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

    Returns:
        The places that have its data, in the order in which they are tried; and its files of further tags.

    Raises:
        UsageError: the source is unknown or its options are wrong.
    """
    from ttmbench.data.download.files import DataFile

    tags: list[DataNeed] = [DataFile(data_dir, tag.file, tag.get) for tag in task.spec.group.tag_files.values()]
    return _locations(registry, task.spec.source, _request(registry, task, data_dir)), tags


def _request(registry: Registry, task: TaskFile, data_dir: Path) -> SourceRequest:
    spec = task.spec
    columns = spec.group.model_dump(include=set(COLUMN_KEYS))
    if spec.group.label is not None:  # to sources, the label of an image stands in the place of its caption
        columns["captions"] = [spec.group.label]
    return SourceRequest(
        options={},
        columns=columns,
        shape=spec.shape if spec.kind == "groups" else GroupShape(1, 2),
        n_groups=spec.group.n_groups,
        folder=task.folder,
        data_dir=data_dir,
        kind=spec.kind,
        read=partial(_read_source, registry),
        locations=partial(_locations, registry),
    )


def _locations(registry: Registry, source: Mapping[str, object], request: SourceRequest) -> list[DataLocation]:
    """The places of one source mapping; sources that combine others come back here for each of them."""
    spec, request = _with_options(registry, source, request)
    if not spec.needs:
        return [DataLocation(f"source '{spec.kind}'", None)]
    locations: list[DataLocation] = load_target(spec.needs)(request)
    return locations


def _with_options(
    registry: Registry, source: Mapping[str, object], request: SourceRequest
) -> tuple[SourceSpec, SourceRequest]:
    """The reader of a source mapping, and the request with its options."""
    kind = source.get("kind")
    if not isinstance(kind, str):
        raise UsageError("every source needs a 'kind'")
    options = {key: value for key, value in source.items() if key != "kind"}
    return registry.get(registry.sources, kind, "source"), replace(request, options=options)


def _read_source(registry: Registry, source: Mapping[str, object], request: SourceRequest) -> Loaded:
    """Reads one source mapping; sources that combine others come back here for each of them."""
    spec, request = _with_options(registry, source, request)
    reader, plugin = load_target(spec.target), registry.sources[spec.kind][1]
    what = f"source '{spec.kind}' of plugin '{plugin}'"
    with foreign_errors(what, DataError):
        result = reader(request)
        loaded = result if isinstance(result, Loaded) else Loaded(list(result))
    groups = loaded.groups
    strange = [group for group in groups if not isinstance(group, Group)]
    if strange:
        raise DataError(f"{what} gave a {type(strange[0]).__name__} in place of a group")
    if plugin != BUILTIN:
        groups = _read_by_plugin(registry, spec.kind, groups)
    # A reader that names its kind has told everything; of others the options are told.
    return Loaded(groups, loaded.source if "kind" in loaded.source else {**source, **loaded.source})


def _read_by_plugin(registry: Registry, kind: str, groups: list[Group]) -> list[Group]:
    """Groups of a plugin's source, whose images state the code that reads them."""
    code = digests_of_modules(registry.modules_of(registry.sources, kind))
    reader = None if None in code.values() else ",".join(f"{name} {digest}" for name, digest in code.items())
    return [replace(group, images=tuple(replace(image, reader=reader) for image in group.images)) for group in groups]


def add_tags(loaded: Loaded, constant: Mapping[str, str], tag_files: Mapping[str, TagFile], data_dir: Path) -> Loaded:
    """Adds tags to every group: the same for all, and those of files in the data folder by the groups' ids.

    A file is a JSON object, group id -> tag or list of tags; one that is not there adds nothing. The record names each
    with its digest, or None if it was not there. DataError if a file is not what it should be.
    """
    if not constant and not tag_files:
        return loaded
    groups = [replace(group, tags={**constant, **group.tags}) for group in loaded.groups]
    record: dict[str, object] = {}
    for tag, stated in tag_files.items():
        file = below(data_dir, stated.file, "group.tag_files")
        record[tag] = {"file": stated.file, "sha256": file_digest(file)} if file.is_file() else None
        if file.is_file():
            tags = _tags_in(file)
            groups = [replace(group, tags={**group.tags, tag: tags.get(group.group_id, "")}) for group in groups]
    return Loaded(groups, {**loaded.source, **({"tag_files": record} if record else {})})


def _tags_in(file: Path) -> dict[str, str]:
    """Group id -> tags joined by a comma; the empty string for none."""
    from ttmbench.data.row_files import read_json

    content = read_json(file, str(file))
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected an object of group ids, got {type(content).__name__}")
    tags = {}
    for group_id, value in content.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in values):
            raise DataError(f"{file}: the tags of group {group_id} are no texts: {value!r:.80}")
        tags[group_id] = ", ".join(values)
    return tags
