"""Lists, checks and prunes the cache. Only files with the cache's own names are touched."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from ttmbench._version import __version__
from ttmbench.cache.entry import PIXELS, PREPARED, SCORES, SCORING_VERSION, DamagedError, Header, read_entry
from ttmbench.errors import TtmbenchError

DAY = 24 * 60 * 60
LOCK = ".lock"
TEMPORARY = "temporary"
_LEFT_BEHIND = 60 * 60  # seconds after which a temporary file belongs to a run that was killed
_HEX, _KEY, _SHA = "[0-9a-f]", "(?P<key>[0-9a-f]{32})", "(?P<sha>[0-9a-f]{64})"
_BEFORE = "pictures"  # where prepared images lay before; nothing reads them any more
KINDS = {  # kind of file -> where such files lie and what they are called, as a regular expression
    SCORES: rf"{SCORES}/{_KEY}/{_SHA}\.safetensors",
    "blocks": rf"{SCORES}/{_KEY}/{_SHA}\.blocks/(?P<side>[a-z]+)-(?P<block>\d{{6}})\.safetensors",
    PIXELS: rf"{PIXELS}/(?P<task>[A-Za-z0-9_-]+)-(?P<key>[0-9a-f]{{16}})\.safetensors",
    PREPARED: rf"{PREPARED}/{_KEY}/[0-9a-f]{{2}}/{_SHA}\.safetensors",
    TEMPORARY: rf"(?:{SCORES}|{PIXELS}|{PREPARED})/(?:[0-9a-f./]+(?:blocks/)?)?\.[A-Za-z0-9_.-]+\.tmp"
    rf"|{_BEFORE}/{_HEX}{{32}}/{_HEX}{{2}}/{_HEX}{{64}}\.safetensors",
}
FOLDERS = (SCORES, PIXELS, PREPARED, _BEFORE)


@dataclass(frozen=True)
class Item:
    """Files of the cache that belong together."""

    kind: str  # of `KINDS`; ``blocks`` are of an unfinished run, ``temporary`` files of one that was killed
    name: str  # beginning of the key
    model: str  # whose scores; empty for the others
    task: str  # whose scores or images; empty where unknown
    task_version: int | None  # of the task; None where unknown
    n_groups: int | None  # of the scores; None for the others
    bytes: int  # of all files
    used: float  # when it was written or used last, seconds since 1970
    damaged: str | None  # why a file cannot be used; None if all can
    outdated: str | None  # the version that wrote it, whose keys this one never looks up; None if this one may use it
    files: tuple[Path, ...]  # their paths


def list_items(folder: Path) -> list[Item]:
    """Content of the cache by kind, task and model, images and blocks together; TtmbenchError if it cannot be read."""
    return together(_described(folder))


def read_items(folder: Path, progress: Callable[[Sequence[Path]], Iterable[Path]] = lambda files: files) -> list[Item]:
    """One item for every file of the cache, each read whole: path, header and digest are checked.

    ``progress`` wraps the files. TtmbenchError if the folder cannot be read.
    """
    files = {path: (kind, match) for kind, path, match in _files(folder) if kind != TEMPORARY}
    return [_item(*files[path], path, *_read(*files[path], path)) for path in progress(list(files))]


def prune(
    folder: Path,
    *,
    wanted: Callable[[Item], bool],
    damaged: bool = False,
    outdated: bool = False,
    max_size: int | None = None,
    dry_run: bool = False,
) -> list[Item]:
    """Removes files that ``wanted``, asked of each alone, allows (would remove, with ``dry_run``); returns them.

    Only those that cannot be used (``damaged``), or of other versions of ttmbench (``outdated``); those used least
    recently, until the whole cache has ``max_size`` bytes. TtmbenchError if another process is cleaning up, or a file
    cannot be removed.
    """
    items = _described(folder, thorough=damaged)
    chosen = [
        item
        for item in items
        if wanted(item) and (not damaged or item.damaged is not None) and (not outdated or item.outdated is not None)
    ]
    if max_size is not None:
        chosen = _beyond(chosen, max_size - sum(item.bytes for item in items) + sum(item.bytes for item in chosen))
    if not dry_run and chosen:
        try:
            with FileLock(folder / LOCK, timeout=10):
                for item in chosen:
                    item.files[0].unlink(missing_ok=True)
                _drop_empty(folder)
        except Timeout:
            raise TtmbenchError(f"another process is removing files from {folder}; try again") from None
        except OSError as error:
            raise TtmbenchError(f"{error.filename or folder} cannot be removed: {error.strerror or error}") from None
    return together(chosen)


def together(items: Iterable[Item]) -> list[Item]:
    """Items as the user counts them: images of one preprocessing are one, and so are blocks of one run."""
    merged: dict[tuple[str, ...], Item] = {}
    for item in items:
        group = (item.kind, str(item.files[0]))
        if item.kind == PREPARED:
            group = (item.kind, item.name)
        elif item.kind == "blocks":
            group = (item.kind, str(item.files[0].parent))
        earlier = merged.get(group)
        merged[group] = item
        if earlier is not None:
            merged[group] = replace(
                earlier,
                bytes=earlier.bytes + item.bytes,
                used=max(earlier.used, item.used),
                damaged=earlier.damaged or item.damaged,
                outdated=earlier.outdated or item.outdated,
                files=earlier.files + item.files,
            )
    order = list(KINDS)
    return sorted(merged.values(), key=lambda item: (order.index(item.kind), item.task, item.model, item.name))


def _files(folder: Path) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
    """Files with a name of the cache: kind, path and the parts of the name. Links are not followed."""

    def cannot(error: OSError) -> None:
        raise TtmbenchError(f"{error.filename} cannot be read: {error.strerror or error}") from None

    old = time.time() - _LEFT_BEHIND
    for kind in FOLDERS:
        if not (folder / kind).is_dir() or (folder / kind).is_symlink():
            continue
        for parent, _, names in os.walk(folder / kind, onerror=cannot):
            for name in sorted(names):
                path = Path(parent) / name
                inside = path.relative_to(folder).as_posix()
                for which, pattern in KINDS.items():
                    match = re.fullmatch(pattern, inside)
                    if match and not path.is_symlink() and (which != TEMPORARY or path.stat().st_mtime < old):
                        yield which, path, match.groupdict()


def _described(folder: Path, thorough: bool = False) -> list[Item]:
    """One item a file, by its header; unless ``thorough``, one prepared image of each key stands for all."""
    items = []
    of_key: dict[str, Header] = {}
    for kind, path, match in _files(folder):
        key = match.get("key", "")
        if kind == PREPARED and key in of_key and not thorough:
            about, damaged = of_key[key], None
        else:
            about, damaged = _read(kind, match, path)
        if kind == PREPARED and about:
            of_key.setdefault(key, about)
        items.append(_item(kind, match, path, about, damaged))
    return items


def _item(kind: str, match: Mapping[str, str], path: Path, about: Header, damaged: str | None) -> Item:
    try:
        stat = path.stat()
        size, used = stat.st_size, stat.st_mtime
    except OSError:  # removed meanwhile
        size, used = 0, 0.0
    return Item(
        kind=kind,
        name=match.get("key", path.name)[:12],
        model=str(about.get("model_name", "")),
        task=str(about.get("task", match.get("task", ""))),
        task_version=about.get("task_version"),
        n_groups=about.get("n_groups"),
        bytes=size,
        used=used,
        damaged=damaged,
        outdated=_outdated(kind, about) if about else None,
        files=(path,),
    )


def _outdated(kind: str, about: Header) -> str | None:
    """The version that wrote a file, if its key has another version than this one (digests of pixels have none)."""
    version, code = about.get("ttmbench"), about.get("score_code")
    if code == SCORING_VERSION and (version == __version__ or kind == PIXELS):
        return None
    return "written before files said by which version" if version is None else f"of ttmbench {version}, scoring {code}"


def _read(kind: str, match: Mapping[str, str], path: Path) -> tuple[Header, str | None]:
    """A file's header, and why it cannot be used (None if it can, or was removed meanwhile)."""
    if kind == TEMPORARY:
        return {}, "left behind"
    try:
        about = read_entry(path, lambda about, arrays: about)
    except FileNotFoundError:
        return {}, None
    except DamagedError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"cannot be read: {error.strerror or error}"
    description: Header = {
        "key": str(about.get("key"))[:32],
        "sha": about.get("data_sha256", about.get("file")),
    }
    description |= {"side": about.get("side"), "block": f"{about.get('block', '')!s:0>6}"}
    if kind == PIXELS:
        description = {"key": match["key"], "task": match["task"]}
    singular = {SCORES: "scores", "blocks": "block", PREPARED: "image", PIXELS: "pixels"}[kind]
    right = about.get("kind") == singular and all(description[name] == value for name, value in match.items())
    return about, None if right else "it belongs to another place"


def _beyond(items: Sequence[Item], room: int) -> list[Item]:
    """Those that do not fit into the room, if the most recently used are kept first."""
    gone = []
    for item in sorted(items, key=lambda item: item.used, reverse=True):
        room -= item.bytes
        if room < 0:
            gone.append(item)
    return gone


def _drop_empty(folder: Path) -> None:
    """Removes the cache's empty folders, from the bottom up."""
    for kind in FOLDERS:
        for parent, _, _ in () if (folder / kind).is_symlink() else os.walk(folder / kind, topdown=False):
            with suppress(OSError):
                Path(parent).rmdir()
