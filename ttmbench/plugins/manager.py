"""Finds plugins and asks them what they bring. A fresh manager per call; nothing is kept in the module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from ttmbench import hookspecs
from ttmbench._util.escape import one_line
from ttmbench._util.foreign import error_line
from ttmbench.errors import UsageError
from ttmbench.plugins import builtin as builtin_plugin

BUILTIN = "ttmbench"


@dataclass(frozen=True)
class BrokenPlugin:
    """An installed plugin that could not be imported, and why."""

    name: str
    target: str
    reason: str


@dataclass(frozen=True)
class Plugins:
    """Loaded plugins and those that failed to load."""

    manager: pluggy.PluginManager
    broken: tuple[BrokenPlugin, ...]

    @property
    def names(self) -> list[str]:
        """Names of the loaded plugins, the built-in one first."""
        loaded = [name for name, _ in self.manager.list_name_plugin()]
        return sorted(loaded, key=lambda name: (name != BUILTIN, name))

    def collect(self, hook: str, key: Callable[[Any], Iterable[str]]) -> dict[str, tuple[Any, str]]:
        """What all plugins register through a hook, by name, each with the plugin it comes from.

        Args:
            hook: name of a registering hook.
            key: item -> the names it takes.

        Returns:
            name -> (item, plugin name).

        Raises:
            UsageError: two plugins take one name, or a plugin's hook raises; the plugins are named.
        """
        found: dict[str, tuple[Any, str]] = {}
        for plugin, items in self.each(hook):
            for item in items:
                for name in _names_of(item, key, plugin, hook):
                    if name in found:
                        raise UsageError(
                            f"plugins '{found[name][1]}' and '{plugin}' both register '{name}' through {hook}; "
                            "uninstall one, or rename what it registers"
                        )
                    found[name] = (item, plugin)
        return found

    def each(self, hook: str) -> list[tuple[str, list[Any]]]:
        """What each plugin returns from a registering hook: (plugin name, items), the built-in plugin first."""
        results = []
        implementations = self._implementations(hook)
        for implementation in sorted(implementations, key=lambda one: self.names.index(one.plugin_name)):
            name = implementation.plugin_name
            try:
                items: Any = implementation.function()
                results.append((name, list(items)))
            except UsageError:
                raise
            except (Exception, SystemExit) as error:
                raise UsageError(f"plugin '{name}' failed in {hook}: {error_line(error)}") from error
        return results

    def listens(self, hook: str) -> bool:
        """Whether any plugin implements a hook: what is computed for listeners alone can be left out."""
        return bool(self._implementations(hook))

    def notify(self, hook: str, **values: Any) -> None:
        """Tells every plugin of an event. A plugin that fails is warned about; it never ends a run."""
        for implementation in self._implementations(hook):
            try:
                implementation.function(*(values[name] for name in implementation.argnames))
            except (Exception, SystemExit) as error:
                warnings.warn(
                    f"plugin '{implementation.plugin_name}' failed in {hook}: {error_line(error)}", stacklevel=2
                )

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        return list(caller.get_hookimpls())


def load_plugins(extra: Iterable[tuple[str, Any]] = ()) -> Plugins:
    """Loads the built-in plugin and every installed one (entry-point group ``ttmbench``).

    Args:
        extra: more plugins, as (name, object), for tests and notebooks.

    Returns:
        The plugins; those that fail to import are listed as broken.

    Raises:
        UsageError: a plugin implements a hook that does not exist, or two plugins share a name.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    broken: list[BrokenPlugin] = []
    _register(manager, BUILTIN, builtin_plugin)
    for point in sorted(entry_points(group=hookspecs.PROJECT), key=lambda point: point.name):
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            broken.append(BrokenPlugin(_label(point), point.value, error_line(error)))
            continue
        _register(manager, _label(point), plugin)
    for name, plugin in extra:
        _register(manager, name, plugin)
    return Plugins(manager, tuple(broken))


def _names_of(item: Any, key: Callable[[Any], Iterable[str]], plugin: str, hook: str) -> list[str]:
    try:
        names = list(key(item))
    except Exception:
        names = []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"plugin '{plugin}' returned {one_line(_repr(item), 80)} from {hook}, which is nothing to register"
        )
    return names


def _repr(item: Any) -> str:
    try:
        return repr(item)
    except Exception:
        return type(item).__name__


def _register(manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except (ValueError, pluggy.PluginValidationError) as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UsageError(f"plugin '{name}' does not fit: {one_line(last)}") from error
    except Exception as error:  # pluggy looks at every attribute of a plugin
        raise UsageError(f"plugin '{name}' does not fit: {error_line(error)}") from error


def _label(point: EntryPoint) -> str:
    """The distribution's name; with the entry point's behind it where they differ."""
    if point.dist is None or point.dist.name == point.name:
        return point.name
    return f"{point.dist.name}:{point.name}"
