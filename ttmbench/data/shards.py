"""Which parquet files of a repository hold one split, and which of them are missing: from names and the card alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHARD = re.compile(
    r"(?P<folder>(?:.*/)?)(?P<split>[^/]+?)-(?P<index>\d{5})-of-(?P<total>\d{5})(?P<rest>(?:-[0-9a-f]+)?\.parquet)"
)


def files_of_split(files: Sequence[str], card: Mapping[str, Any], split: str, name: str | None) -> list[str] | None:
    """The files or patterns that hold a split, where that is well determined.

    The card's ``configs`` decide where there are any. Without them, all tables have to be shards of splits by their
    names (``data/test-00000-of-00001.parquet``), in one folder.

    Args:
        files: of the repository.
        card: metadata of its README.
        split: wanted.
        name: configuration; None for the default one.

    Returns:
        Paths or patterns; None if any file may hold it.

    >>> names = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet", "images.zip"]
    >>> files_of_split(names, {}, "test", None)
    ['data/test-[0-9]*-of-[0-9]*.parquet']
    >>> files_of_split([*names, "data/more.parquet"], {}, "test", None) is None
    True
    """
    configs = card.get("configs")
    if isinstance(configs, list) and configs:
        return _of_configs([one for one in configs if isinstance(one, Mapping)], split, name)
    tables = [file for file in files if file.endswith(".parquet")]
    shards = [match for file in tables if (match := _SHARD.fullmatch(file))]
    if name is not None or len(shards) < len(tables) or len({shard["folder"] for shard in shards}) != 1:
        return None
    if not any(shard["split"] == split for shard in shards) or set("[]*?") & set(shards[0]["folder"] + split):
        return None
    # A pattern in place of the names: of a copy that lacks a shard it has to fit the whole set.
    return [f"{shards[0]['folder']}{split}-[0-9]*-of-[0-9]*.parquet"]


def _of_configs(configs: Sequence[Mapping[str, Any]], split: str, name: str | None) -> list[str] | None:
    named = [one for one in configs if one.get("config_name") == (name or "default")]
    default = [one for one in configs if one.get("default") is True] if name is None else []
    chosen = default or named or (list(configs) if name is None and len(configs) == 1 else [])
    entries = chosen[0].get("data_files") if len(chosen) == 1 and "data_dir" not in chosen[0] else None
    if isinstance(entries, Mapping):
        entries = [{"split": key, "path": value} for key, value in entries.items()]
    if not isinstance(entries, list):
        return None
    found: list[str] = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            return None
        if entry.get("split") == split:
            path = entry.get("path")
            found += [path] if isinstance(path, str) else list(path or ())
    return found if found and all(isinstance(one, str) for one in found) else None


def missing_shards(files: Iterable[str], split: str | None = None) -> list[str]:
    """Shards that are not there although others of the same set are, by name.

    Args:
        files: that are there.
        split: look at its shards alone.

    Returns:
        Their paths.

    >>> missing_shards(["data/test-00000-of-00002.parquet", "data/train-00000-of-00002.parquet"], "test")
    ['data/test-00001-of-00002.parquet']
    """
    sets: dict[tuple[str, str, int], dict[int, str]] = {}
    for file in files:
        match = _SHARD.fullmatch(file)
        if match and split in (None, match["split"]):
            key = (match["folder"], match["split"], int(match["total"]))
            sets.setdefault(key, {})[int(match["index"])] = match["rest"]
    return [
        f"{folder}{stem}-{index:05d}-of-{total:05d}.parquet"
        for (folder, stem, total), found in sets.items()
        for index in range(min(total, 10_000))
        if index not in found
    ]
