"""Files between a driver and workers that have no folder in common: by path below the sweep's folder, as bytes.

A cell's own folder travels, with the state of its seeds, and the raw scores that its units put into the cache. These
lie in the driver's folder under ``.sweep/cache/<number of the cell>`` until the cell is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from ttmbench._util.files import replace_file
from ttmbench.cache.location import SCORES
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.resume import LOCK
from ttmbench.evaluator.unit import Cell


def files_of(root: Path, cell: Cell) -> dict[str, bytes]:
    """What earlier units of a cell have left in the driver's folder: for a worker that does not see it."""
    places = (root / cell.folder, root / _cache_of(cell))
    return {path.relative_to(root).as_posix(): path.read_bytes() for place in places for path in _files(place)}


def take_in(root: Path, cell: Cell, files: Mapping[str, bytes], over: bool) -> None:
    """Puts what a unit has written into the driver's folder.

    Args:
        root: the driver's folder.
        cell: of the unit.
        files: of its result.
        over: the cell is: what it kept to go on from is let go.

    Raises:
        TtmbenchError: a path leads elsewhere, or a file cannot be written.
    """
    put_files(root, cell, files, None)
    if over:
        shutil.rmtree(root / _cache_of(cell), ignore_errors=True)
        for state in (root / cell.folder).glob(".*.state"):
            shutil.rmtree(state, ignore_errors=True)


def put_files(root: Path, cell: Cell, files: Mapping[str, bytes], cache: Path | None) -> None:
    """Writes files of a cell below a folder, its raw scores into the cache where there is one.

    Raises:
        TtmbenchError: a path leads elsewhere, or a file cannot be written.
    """
    for name, content in files.items():
        path = _place(root, cell, name, cache)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda target, content=content: target.write_bytes(content), to_disk=True)  # type: ignore[misc]
        except OSError as error:
            raise TtmbenchError(f"{path} cannot be written: {error.strerror or error}") from None


class Changes:
    """Files of a cell and of the cache that are new or changed since this was made.

    Args:
        root: the worker's folder.
        cell: of the unit.
        cache: of raw scores; None for none that travels.
    """

    def __init__(self, root: Path, cell: Cell, cache: Path | None) -> None:
        self._root, self._cell, self._cache = root, cell, cache
        self._before = self._stamps()

    def found(self) -> dict[str, bytes]:
        """Path below the driver's folder -> content."""
        changed = {
            name: path for name, (path, stamp) in self._stamps().items() if self._before.get(name) != (path, stamp)
        }
        return {name: path.read_bytes() for name, path in changed.items() if path.exists()}

    def _stamps(self) -> dict[str, tuple[Path, tuple[int, int]]]:
        found = {path.relative_to(self._root).as_posix(): path for path in _files(self._root / self._cell.folder)}
        if self._cache is not None:
            kept, place = self._cache / SCORES, _cache_of(self._cell)
            found |= {f"{place}/{SCORES}/{path.relative_to(kept).as_posix()}": path for path in _files(kept)}
        stamps = {}
        for name, path in found.items():
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            stamps[name] = (path, (about.st_mtime_ns, about.st_size))
        return stamps


def _cache_of(cell: Cell) -> str:
    return f"{OWN}/cache/{cell.number}"


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != LOCK and path.suffix != ".tmp":
            yield path


def _place(root: Path, cell: Cell, name: str, cache: Path | None) -> Path:
    """Where a file goes; never outside the cell's own two folders."""
    parts, kept = PurePosixPath(name).parts, PurePosixPath(_cache_of(cell)).parts
    own = PurePosixPath(cell.folder).parts
    inside = parts[: len(own)] == own or parts[: len(kept)] == kept
    if not inside or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name or ":" in name:
        raise TtmbenchError(f"a worker sent a file {name!r:.200}, which is none of cell {cell.folder}")
    if cache is not None and parts[: len(kept)] == kept:
        return cache.joinpath(*parts[len(kept) :])
    return root.joinpath(*parts)
