"""Names to what plugins registered: models, task files, sources, metrics and schedules, with "did you mean"."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.foreign import error_line
from ttmbench.errors import UsageError
from ttmbench.plugins.manager import Plugins, load_plugins
from ttmbench.plugins.suggestions import options_for
from ttmbench.types import AdapterSpec, MetricSpec, ScheduleSpec, SourceSpec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
        """A model by name or alias; UsageError with what would run it, or near names, otherwise."""
        if name not in self.adapters:
            options = options_for(name, [spec for spec, _ in self.adapters.values()])
            if options is not None:
                raise UsageError(f"unknown model '{name}'; it is run by: {options}")
        return self.get(self.adapters, name, "model")

    def metric(self, name: str) -> MetricSpec:
        """A metric by name; UsageError with near names otherwise."""
        return self.get(self.metrics, name, "metric")

    def schedule(self, name: str) -> ScheduleSpec:
        """A threshold schedule by name; UsageError with near names otherwise."""
        return self.get(self.schedules, name, "schedule")

    def get(self, table: Mapping[str, tuple[Any, str]], name: str, what: str) -> Any:
        """What a table has under a name; UsageError with near names otherwise."""
        if name not in table:
            raise UsageError(self.unknown(what, name, list(table)))
        return table[name][0]

    def unknown(self, what: str, name: str, known: Iterable[str]) -> str:
        """What to say of a name that nothing has: near names or all, and plugins that may have had it."""
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
        raise UsageError(f"{target} cannot be imported: {error_line(error)}") from error
