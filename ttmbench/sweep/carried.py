"""What of the driver's machine goes along to workers that may not see its files: task files, samples, local plugins.

It lies in one folder while a cluster takes it over. Data and weights never travel: they are at hand on a node, or not.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import invalidate_caches
from importlib.metadata import Distribution, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path

from ttmbench._util.console import warn
from ttmbench.config import RunConfig
from ttmbench.evaluator.unit import Cell, Unit
from ttmbench.hookspecs import PROJECT
from ttmbench.plugins.registry import ENDINGS

MOST = 100_000_000  # bytes of one folder that travels
_FILES, _PLUGINS = "files", "plugins"


@dataclass(frozen=True)
class Carried:
    """What goes along.

    Attributes:
        paths: a path as configurations have it -> where it lies below the folder that travels.
        plugins: distributions that bring plugins -> version.
        sent: those of them that travel.
    """

    paths: Mapping[str, str]
    plugins: Mapping[str, str]
    sent: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to travel."""
        return not self.paths and not self.sent


def gather(cells: Iterable[Cell], into: Path) -> Carried:
    """Copies what goes along into a folder.

    Args:
        cells: of the sweep.
        into: an empty folder.

    Returns:
        What is there. A folder that is too large for it is left out, which is said.
    """
    paths: dict[str, str] = {}
    for given in dict.fromkeys(path for cell in cells for path in _paths_of(cell.config)):
        source, place = Path(given), f"{_FILES}/{len(paths)}"
        if source.is_dir():
            size = sum(one.stat().st_size for one in source.rglob("*") if one.is_file())
            if size > MOST:
                warn(f"{given} has {size / 1e6:.0f} MB and is not sent to workers; put it where their nodes see it")
                continue
            shutil.copytree(source, into / place / source.name)
        elif source.is_file():
            (into / place).mkdir(parents=True)
            # A task file may include its neighbours.
            beside = (one for one in source.parent.iterdir() if one.suffix in ENDINGS and one.is_file())
            for one in {source, *(beside if source.suffix in ENDINGS else ())}:
                shutil.copy(one, into / place / one.name)
        else:
            continue
        paths[given] = f"{place}/{source.name}"
    plugins = plugin_versions()
    sent = tuple(name for name in plugins if _copy_plugin(name, into / _PLUGINS))
    return Carried(paths, plugins, sent)


def relocated(unit: Unit, places: Mapping[str, str]) -> Unit:
    """A unit whose configuration names what it reads by where it lies here."""
    config = unit.cell.config
    if not any(path in places for path in _paths_of(config)):
        return unit
    changed = config.model_copy(
        update={
            "include_path": [places.get(one, one) for one in config.include_path],
            "tasks": [places.get(one, one) for one in config.tasks],
            "samples": None if config.samples is None else places.get(config.samples, config.samples),
        }
    )
    return replace(unit, cell=replace(unit.cell, config=changed))


def plugin_versions() -> dict[str, str]:
    """Distributions that bring plugins of ttmbench, with their versions."""
    points = entry_points(group=PROJECT)
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def missing_plugins(carried: Carried, folder: Path) -> Iterator[str]:
    """Makes plugins that came along usable where they are not installed.

    Args:
        carried: what the driver has.
        folder: where it lies here.

    Yields:
        What is not as the driver has it, a line each.
    """
    if set(carried.sent) - set(plugin_versions()):
        sys.path.append(str(folder / _PLUGINS))  # after all others: what is installed here wins
        invalidate_caches()
    here = plugin_versions()
    for name, version in carried.plugins.items():
        if name not in here:
            yield f"the plugin {name} {version} is not installed there"
        elif here[name] != version:
            yield f"it has the plugin {name} {here[name]}, and {version} is asked for"


def _paths_of(config: RunConfig) -> list[str]:
    """What a run reads beside data and weights."""
    samples = [] if config.samples is None else [config.samples]
    return [*config.include_path, *samples, *(one for one in config.tasks if one.endswith(ENDINGS))]


def _copy_plugin(name: str, into: Path) -> bool:
    """Copies the package or module of a plugin, and what names it a plugin; whether that could be done."""
    found = next((one for one in distributions(name=name)), None)
    points = [] if found is None else [one for one in found.entry_points if one.group == PROJECT]
    sources = [_source(one.value.partition(":")[0].partition(".")[0]) for one in points]
    if found is None or not points or None in sources:
        return False
    into.mkdir(parents=True, exist_ok=True)
    for source in {one for one in sources if one is not None}:
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, into / source.name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, into / source.name)
    _write_metadata(found, into)
    return True


def _source(module: str) -> Path | None:
    """The folder of a package, or the file of a module; None for what is neither."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path.parent if path.name == "__init__.py" else path if path.suffix == ".py" else None


def _write_metadata(found: Distribution, into: Path) -> None:
    about = into / f"{found.name.replace('-', '_')}-{found.version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {found.name}\nVersion: {found.version}\n", "utf-8")
    lines = [f"{one.name} = {one.value}" for one in found.entry_points if one.group == PROJECT]
    (about / "entry_points.txt").write_text("\n".join([f"[{PROJECT}]", *lines, ""]), "utf-8")
