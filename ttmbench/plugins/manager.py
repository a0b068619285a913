"""Finds plugins and asks them what they bring. A fresh manager per call; nothing is kept in the module.

What is wrong with an installed plugin is taken down beside it, and everything else works. What is wrong with a plugin
that a program passes along is an error, since that program can mend it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any

import pluggy

from ttmbench import hookspecs
from ttmbench._util.escape import one_line
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.third_party_errors import error_line, error_with_place, place_of_function
from ttmbench.errors import UsageError
from ttmbench.plugins import builtin as builtin_plugin
from ttmbench.plugins.specs import problem_of
from ttmbench.types import MetricSpec

BUILTIN = "ttmbench"


@dataclass(frozen=True)
class BrokenPlugin:
    """An installed plugin of which something does not work.

    Attributes:
        name: of the plugin.
        target: what its entry point names.
        reason: what is wrong, with file and line where they are known.
        imported: whether it could be imported at all; then what is right of it is there.
    """

    name: str
    target: str
    reason: str
    imported: bool = True

    def __str__(self) -> str:
        return f"plugin '{self.name}' {'' if self.imported else 'could not be imported: '}{self.reason}"


@dataclass(frozen=True)
class Plugins:
    """Loaded plugins, and what is wrong with those that are installed.

    Attributes:
        manager: of pluggy.
        broken: grows while plugins are asked what they bring.
        installed: plugin name -> what its entry point names; for those that were found installed.
    """

    manager: pluggy.PluginManager
    broken: list[BrokenPlugin] = field(default_factory=list)
    installed: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the loaded plugins, the built-in one first."""
        loaded = [name for name, _ in self.manager.list_name_plugin()]
        return sorted(loaded, key=lambda name: (name != BUILTIN, name))

    def refuse(self, plugin: str, reason: str) -> None:
        """Takes down what is wrong with an installed plugin; UsageError for one that was passed along by a program."""
        broken = BrokenPlugin(plugin, self.installed.get(plugin, ""), reason)
        if plugin not in self.installed:
            raise UsageError(str(broken))
        if broken not in self.broken:
            self.broken.append(broken)

    def collect(self, hook: str, key: Callable[[Any], Iterable[str]]) -> dict[str, tuple[Any, str]]:
        """What all plugins register through a hook, by name, each with the plugin it comes from.

        What is no specification, or takes a name that another plugin has, is left out and taken down in ``broken``. Of
        two that take one name the built-in plugin keeps it; else nobody has it.

        Args:
            hook: name of a registering hook.
            key: item -> the names it takes.

        Returns:
            name -> (item, plugin name).

        Raises:
            UsageError: something is wrong with a plugin that was passed along by a program.
        """
        found: dict[str, tuple[Any, str]] = {}
        doubled: set[str] = set()
        for plugin, items in self.each(hook):
            for item in items:
                problem = problem_of(item, hook)
                if problem is not None:
                    self.refuse(plugin, f"in {hook}{self._place(plugin, hook)}: {problem}")
                    continue
                kept = replace(item, plugin=plugin) if isinstance(item, MetricSpec) and plugin != BUILTIN else item
                for name in key(item):
                    first = found.setdefault(name, (kept, plugin))
                    if first[0] is not kept and self.both(first[1], plugin, f"register '{name}' through {hook}"):
                        doubled.add(name)
        return {name: one for name, one in found.items() if name not in doubled}

    def both(self, first: str, second: str, what: str) -> bool:
        """Takes down that two plugins do the same; whether nobody is to have it: the built-in plugin keeps what it has.

        Raises:
            UsageError: one of them was passed along by a program.
        """
        if not {first, second} <= {BUILTIN, *self.installed}:
            raise UsageError(
                f"plugins '{first}' and '{second}' both {what}; uninstall one, or rename what it registers"
            )
        for one, other in ((first, second), (second, first)):
            if one != BUILTIN:
                self.refuse(one, f"and '{other}' both {what}; uninstall one, or rename what it registers")
        return first != BUILTIN

    def each(self, hook: str) -> list[tuple[str, list[Any]]]:
        """What each plugin returns from a registering hook: (plugin name, items), the built-in plugin first."""
        results = []
        most = limit("plugin_items")
        implementations = self._implementations(hook)
        for implementation in sorted(implementations, key=lambda one: self.names.index(one.plugin_name)):
            name = implementation.plugin_name
            try:
                with _code_of(name, "asked what it registers"):
                    returned: Any = implementation.function()
                    items = list(islice(returned, most + 1))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever another's code raises
                self.refuse(name, f"failed in {hook}: {error_with_place(error)}")
                continue
            if len(items) > most:
                place = self._place(name, hook)
                self.refuse(name, f"returns more than {most} items from {hook}{place}; {raised_by('plugin_items')}")
                continue
            results.append((name, items))
        return results

    def _place(self, plugin: str, hook: str) -> str:
        """Where a plugin's registering hook stands, as a message says it."""
        places = [place_of_function(one.function) for one in self._implementations(hook) if one.plugin_name == plugin]
        return f" ({places[0]})" if places and places[0] else ""

    def listens(self, hook: str) -> bool:
        """Whether any plugin implements a hook: what is computed for listeners alone can be left out."""
        return bool(self._implementations(hook))

    def notify(self, hook: str, **values: Any) -> None:
        """Tells every plugin of an event. A plugin that fails is warned about; it never ends a run."""
        for implementation in self._implementations(hook):
            try:
                implementation.function(*(values[name] for name in implementation.argnames))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever another's code raises
                failed = f"plugin '{implementation.plugin_name}' failed in {hook}: {error_with_place(error)}"
                warnings.warn(failed, stacklevel=2)

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        return list(caller.get_hookimpls())


def load_plugins(extra: Iterable[tuple[str, Any]] = ()) -> Plugins:
    """Loads the built-in plugin and every installed one (entry-point group ``ttmbench``).

    Args:
        extra: more plugins, as (name, object), for tests and notebooks.

    Returns:
        The plugins; installed ones that cannot be imported, or do not fit, are listed as broken.

    Raises:
        UsageError: one of ``extra`` implements a hook that does not exist, or has the name of another.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(manager)
    _register(manager, BUILTIN, builtin_plugin)
    for point in sorted(entry_points(group=hookspecs.PROJECT), key=lambda point: point.name):
        name = _label(point)
        try:
            with _code_of(name, "imported"):
                plugin = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever another's code raises
            plugins.broken.append(BrokenPlugin(name, point.value, error_with_place(error), imported=False))
            continue
        try:
            _register(manager, name, plugin)
        except UsageError as error:
            if manager.get_plugin(name) is plugin:
                manager.unregister(plugin, name)
            reason = str(error).removeprefix(f"plugin '{name}' ")
            plugins.broken.append(BrokenPlugin(name, point.value, reason))
        else:
            plugins.installed[name] = point.value
    for name, plugin in extra:
        _register(manager, name, plugin)
    return plugins


@contextmanager
def _code_of(plugin: str, doing: str) -> Iterator[None]:
    """Inside, what a plugin prints goes to stderr, since stdout may be JSON, and KeyboardInterrupt names the plugin."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"while plugin '{plugin}' was being {doing}") from error


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
