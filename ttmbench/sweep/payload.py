"""Files that travel between the driver and workers that may not see its folder.

To every worker: task files, samples and local plugins, in one folder. To and from a worker without a common folder
also the cell's folder, with the state of its seeds, and raw scores of the cache, which the driver holds in
``.sweep/cache/<number of the cell>`` until the cell is over. Data and weights never travel.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import invalidate_caches
from importlib.metadata import distributions, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from ttmbench._util.console import warn
from ttmbench._util.files import replace_file
from ttmbench.cache.folder import SCORES
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.resume import LOCK
from ttmbench.evaluator.unit import Cell, Unit
from ttmbench.hookspecs import PROJECT
from ttmbench.plugins.registry import ENDINGS

MOST = 100_000_000  # bytes of a folder that travels
_PLUGINS = "plugins"


@dataclass(frozen=True)
class Payload:
    """What travels to every worker.

    Attributes:
        paths: a path as configurations have it -> its place below the folder that travels.
        plugins: distributions that bring plugins -> version.
        sent: those of them that travel.
    """

    paths: Mapping[str, str]
    plugins: Mapping[str, str]
    sent: tuple[str, ...]


def gather(cells: Iterable[Cell], into: Path) -> Payload:
    """Copies what travels to every worker into an empty folder; a folder that is too large is skipped and reported."""
    paths: dict[str, str] = {}
    for original in dict.fromkeys(path for cell in cells for path in _paths_of(cell.config)):
        source, target = Path(original), f"files/{len(paths)}"
        if source.is_dir():
            size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
            if size > MOST:
                warn(f"{original} has {size / 1e6:.0f} MB and is not sent to workers; put it where their nodes see it")
                continue
            shutil.copytree(source, into / target / source.name)
        elif source.is_file():
            (into / target).mkdir(parents=True)
            # A task file may include its neighbours.
            beside = [path for path in source.parent.iterdir() if path.suffix in ENDINGS and path.is_file()]
            for path in {source, *(beside if source.suffix in ENDINGS else ())}:
                shutil.copy(path, into / target / path.name)
        else:
            continue
        paths[original] = f"{target}/{source.name}"
    plugins = _plugin_versions()
    return Payload(paths, plugins, tuple(name for name in plugins if _copy_plugin(name, into / _PLUGINS)))


def relocated(unit: Unit, here: Mapping[str, str]) -> Unit:
    """The unit with the paths of this machine in its configuration."""
    config = unit.cell.config
    changed = config.model_copy(
        update={
            "include_path": [here.get(path, path) for path in config.include_path],
            "tasks": [here.get(path, path) for path in config.tasks],
            "samples": None if config.samples is None else here.get(config.samples, config.samples),
        }
    )
    return replace(unit, cell=replace(unit.cell, config=changed))


def missing_plugins(payload: Payload, folder: Path) -> Iterator[str]:
    """Makes plugins that travelled in ``folder`` usable; yields a line for each that is not as the driver has it."""
    if set(payload.sent) - set(_plugin_versions()):
        sys.path.append(str(folder / _PLUGINS))  # after all others: what is installed here wins
        invalidate_caches()
    here = _plugin_versions()
    for name, version in payload.plugins.items():
        if name not in here:
            yield f"the plugin {name} {version} is not installed there"
        elif here[name] != version:
            yield f"it has the plugin {name} {here[name]}, the driver has {version}"


def files_of(root: Path, cell: Cell) -> dict[str, bytes]:
    """Files that earlier units of a cell left in the driver's folder: path below it -> content."""
    folders = (root / cell.folder, root / _cache_of(cell))
    return {path.relative_to(root).as_posix(): path.read_bytes() for folder in folders for path in _files(folder)}


def take_in(root: Path, cell: Cell, files: Mapping[str, bytes], over: bool) -> None:
    """Writes the files of a unit to the driver's folder; if the cell is over, removes what it would resume from.

    Raises:
        TtmbenchError: a path leads elsewhere, or a file cannot be written.
    """
    put_files(root, cell, files, None)
    if over:
        for folder in (root / _cache_of(cell), *(root / cell.folder).glob(".*.state")):
            shutil.rmtree(folder, ignore_errors=True)


def put_files(root: Path, cell: Cell, files: Mapping[str, bytes], cache: Path | None) -> None:
    """Writes files of a cell below a folder, its raw scores into the cache if there is one; errors as for `take_in`."""
    for name, content in files.items():
        path = _target(root, cell, name, cache)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, partial(Path.write_bytes, data=content), to_disk=True)
        except OSError as error:
            raise TtmbenchError(f"{path} cannot be written: {error.strerror or error}") from None


Stamp = tuple[Path, int, int]
"""A file, when it was changed, and its size."""


def stamps(root: Path, cell: Cell, cache: Path | None) -> dict[str, Stamp]:
    """The files of a cell below a worker's folder, and of the cache of raw scores: path below the driver's -> stamp."""
    paths = {path.relative_to(root).as_posix(): path for path in _files(root / cell.folder)}
    if cache is not None:
        scores, target = cache / SCORES, _cache_of(cell)
        paths |= {f"{target}/{SCORES}/{path.relative_to(scores).as_posix()}": path for path in _files(scores)}
    stamps = {}
    for name, path in paths.items():
        with suppress(FileNotFoundError):
            about = path.stat()
            stamps[name] = (path, about.st_mtime_ns, about.st_size)
    return stamps


def changed(before: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> dict[str, bytes]:
    """The content of files that are new or changed, by their path below the driver's folder."""
    return {name: stamp[0].read_bytes() for name, stamp in now.items() if before.get(name) != stamp}


def _cache_of(cell: Cell) -> str:
    return f"{OWN}/cache/{cell.number}"


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != LOCK and path.suffix != ".tmp":
            yield path


def _target(root: Path, cell: Cell, name: str, cache: Path | None) -> Path:
    """The path of a file, never outside the cell's own two folders."""
    path, scores = PurePosixPath(name), PurePosixPath(_cache_of(cell))
    is_score = path.is_relative_to(scores)
    inside = is_score or path.is_relative_to(cell.folder)
    if not inside or ".." in path.parts or path.is_absolute() or "\\" in name or ":" in name:
        raise TtmbenchError(f"a worker sent a file {name!r:.200}, which does not belong to cell {cell.folder}")
    return root / path if cache is None or not is_score else cache / path.relative_to(scores)


def _paths_of(config: RunConfig) -> list[str]:
    """What a run reads beside data and weights."""
    samples = [] if config.samples is None else [config.samples]
    return [*config.include_path, *samples, *(task for task in config.tasks if task.endswith(ENDINGS))]


def _plugin_versions() -> dict[str, str]:
    """Distributions that bring plugins of ttmbench, with their versions."""
    points = entry_points(group=PROJECT)
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def _copy_plugin(name: str, into: Path) -> bool:
    """Copies the modules and the metadata of a plugin; False if a module has no files."""
    distribution = next(iter(distributions(name=name)))
    points = distribution.entry_points.select(group=PROJECT)
    sources = [_source(module) for module in {re.split(r"[:.]", point.value)[0] for point in points}]
    if not sources or None in sources:
        return False
    into.mkdir(parents=True, exist_ok=True)
    for source in filter(None, sources):
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, into / source.name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, into / source.name)
    about = into / f"{distribution.name.replace('-', '_')}-{distribution.version}.dist-info"
    about.mkdir(exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {distribution.name}\nVersion: {distribution.version}\n"
    (about / "METADATA").write_text(head, "utf-8")
    lines = [f"{point.name} = {point.value}" for point in points]
    (about / "entry_points.txt").write_text("\n".join([f"[{PROJECT}]", *lines, ""]), "utf-8")
    return True


def _source(module: str) -> Path | None:
    """The folder of a package, or the file of a module; None for any other."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path.parent if path.name == "__init__.py" else path if path.suffix == ".py" else None
