"""Further tags of groups from files in the data folder: a JSON object, group id -> tag or list of tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttmbench._util.files import file_digest
from ttmbench.data.loading import below
from ttmbench.data.origin import TagFile
from ttmbench.data.row_files import read_json
from ttmbench.errors import DataError
from ttmbench.types import Group, Loaded


def add_tags(loaded: Loaded, constant: Mapping[str, str], tag_files: Mapping[str, TagFile], data_dir: Path) -> Loaded:
    """Adds tags to every group.

    Args:
        loaded: a task's data.
        constant: tag -> value, the same for all groups.
        tag_files: tag -> file in the data folder. A file that is not there adds nothing.
        data_dir: the data folder.

    Returns:
        The data with tags; the record names each file with its digest, or None if it was not there.

    Raises:
        DataError: a file is not what it should be.
    """
    if not constant and not tag_files:
        return loaded
    groups = [replace(group, tags={**constant, **group.tags}) for group in loaded.groups]
    record: dict[str, Any] = {}
    for tag, one in tag_files.items():
        file = below(data_dir, one.file, "group.tag_files")
        record[tag] = {"file": one.file, "sha256": file_digest(file)} if file.is_file() else None
        if file.is_file():
            groups = list(_tagged(groups, tag, _read(file)))
    return Loaded(groups, {**loaded.source, **({"tag_files": record} if record else {})})


def _read(file: Path) -> dict[str, str]:
    """Group id -> tags joined by a comma; the empty string for none."""
    content = read_json(file, str(file))
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected an object of group ids, got {type(content).__name__}")
    tags = {}
    for group_id, value in content.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in values):
            raise DataError(f"{file}: the tags of group {group_id} are no texts: {value!r:.80}")
        tags[group_id] = ", ".join(values)
    return tags


def _tagged(groups: Iterable[Group], tag: str, tags: Mapping[str, str]) -> Iterable[Group]:
    for group in groups:
        yield replace(group, tags={**group.tags, tag: tags.get(group.group_id, "")})
