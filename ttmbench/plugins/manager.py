"""Loads plugins and validates what they register.

Errors in an installed plugin are recorded, and everything else continues to work. Errors in a plugin that a program
passes as an argument are raised, since that program can fix them.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from typing import Any

import pluggy
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as dataclass_of_pydantic

from ttmbench import hookspecs
from ttmbench._util.console import one_line
from ttmbench._util.third_party_errors import describe, error_line, error_with_place, place_of_function
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.plugins import builtin as builtin_plugin
from ttmbench.results.labels import COLUMNS
from ttmbench.types import (
    AdapterSpec,
    MethodPart,
    MethodSpec,
    MetricSpec,
    ScheduleSpec,
    SourceSpec,
)

BUILTIN = "ttmbench"
_KINDS: dict[str, tuple[type[Any], ...]] = {
    "ttmbench_register_adapters": (AdapterSpec,),
    "ttmbench_register_sources": (SourceSpec,),
    "ttmbench_register_metrics": (MetricSpec,),
    "ttmbench_register_schedules": (ScheduleSpec,),
    "ttmbench_register_methods": (MethodSpec, MethodPart),
}
"""Hook -> specification that it registers; folders of tasks have none."""

_NAMES = {
    AdapterSpec: (r"[A-Za-z0-9][A-Za-z0-9._+:/-]*", "letters, digits and . _ + : / -"),
    SourceSpec: (r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and . _ -"),
    MetricSpec: (r"[A-Za-z0-9_]+", "letters, digits and _"),
    ScheduleSpec: (r"[A-Za-z0-9_]+", "letters, digits and _"),
    MethodSpec: (r"[A-Za-z0-9_]+", "letters, digits and _"),
    MethodPart: (r"[A-Za-z0-9_]+", "letters, digits and _"),
}
_CHECKED = {kind: dataclass_of_pydantic(kind, frozen=True, config=ConfigDict(strict=True)) for kind in _NAMES}
_TARGET = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_TAKEN_ENDINGS = ("_stderr", "_seed_std")  # suffixes of keys that results add to each metric


@dataclass(frozen=True)
class BrokenPlugin:
    """An installed plugin that fails at least in part; ``target`` is the value of its entry point."""

    name: str
    target: str
    reason: str
    imported: bool = True

    def __str__(self) -> str:
        return f"plugin '{self.name}' {'' if self.imported else 'could not be imported: '}{self.reason}"


@dataclass(frozen=True)
class Plugins:
    """Loaded plugins.

    Attributes:
        manager: of pluggy.
        broken: errors of installed plugins; grows while registering hooks are called.
        installed: plugin name -> target of its entry point.
    """

    manager: pluggy.PluginManager
    broken: list[BrokenPlugin] = field(default_factory=list)
    installed: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the loaded plugins, built-in first."""
        loaded = [name for name, _ in self.manager.list_name_plugin()]
        return sorted(loaded, key=lambda name: (name != BUILTIN, name))

    def _refuse(self, plugin: str, reason: str) -> None:
        """Records an error of an installed plugin; raises it as UsageError for one that a program passed."""
        broken = BrokenPlugin(plugin, self.installed.get(plugin, ""), reason)
        if plugin not in self.installed:
            raise UsageError(str(broken))
        if broken not in self.broken:
            self.broken.append(broken)

    def collect(self, hook: str, entries: Callable[[Any], Iterable[tuple[str, Any]]]) -> dict[str, tuple[Any, str]]:
        """Collects the named ``entries`` of all items that plugins register through a hook, each with its plugin.

        Invalid items are skipped. If two entries have the same name, only a built-in one is accepted. UsageError for an
        error in a plugin that a program passed.
        """
        registered: dict[str, tuple[Any, str]] = {}
        doubled: set[str] = set()
        for plugin, items in self._each(hook):
            for item in items:
                problem = problem_of(item, hook, plugin == BUILTIN)
                if problem is not None:
                    self._refuse(plugin, f"in {hook}{self._place(plugin, hook)}: {problem}")
                    continue
                marks = isinstance(item, MetricSpec) and plugin != BUILTIN
                for name, entry in entries(replace(item, plugin=plugin) if marks else item):
                    first = registered.setdefault(name, (entry, plugin))
                    if first[0] is not entry and self._both(first[1], plugin, f"register '{name}' through {hook}"):
                        doubled.add(name)
        return {name: entry for name, entry in registered.items() if name not in doubled}

    def _both(self, first: str, second: str, what: str) -> bool:
        """Records a name conflict of two plugins; returns whether both are rejected, because neither is built in."""
        if not {first, second} <= {BUILTIN, *self.installed}:
            raise UsageError(
                f"plugins '{first}' and '{second}' both {what}; uninstall one, or rename what it registers"
            )
        for plugin, other in ((first, second), (second, first)):
            if plugin != BUILTIN:
                self._refuse(plugin, f"and '{other}' both {what}; uninstall one, or rename what it registers")
        return first != BUILTIN

    def _each(self, hook: str) -> list[tuple[str, list[Any]]]:
        """Yields (plugin name, items) from a registering hook of each plugin, the built-in plugin first."""
        results = []
        implementations = self._implementations(hook)
        for implementation in sorted(implementations, key=lambda impl: self.names.index(impl.plugin_name)):
            name = implementation.plugin_name
            try:
                with redirect_stdout(sys.stderr):  # since stdout may be JSON
                    returned: Any = implementation.function()
                    items = list(returned)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # any exception of third-party code
                self._refuse(name, f"failed in {hook}: {error_with_place(error)}")
                continue
            results.append((name, items))
        return results

    def _place(self, plugin: str, hook: str) -> str:
        """File and line of a plugin's registering hook, for messages."""
        places = [
            place_of_function(impl.function) for impl in self._implementations(hook) if impl.plugin_name == plugin
        ]
        return f" ({places[0]})" if places and places[0] else ""

    def listens(self, hook: str) -> bool:
        """Whether any plugin implements a hook."""
        return bool(self._implementations(hook))

    def notify(self, hook: str, **values: object) -> None:
        """Calls a hook of every plugin; failures are warnings and never end a run."""
        for implementation in self._implementations(hook):
            try:
                implementation.function(*(values[name] for name in implementation.argnames))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # any exception of third-party code
                failed = f"plugin '{implementation.plugin_name}' failed in {hook}: {error_with_place(error)}"
                warnings.warn(failed, stacklevel=2)

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        return list(caller.get_hookimpls())


def load_plugins(extra: Iterable[tuple[str, object]] = ()) -> Plugins:
    """Loads the built-in plugin, every installed one (entry-point group ``ttmbench``) and ``extra`` (name, object).

    Installed ones that fail are listed as broken. UsageError if one of ``extra`` implements a hook that does not exist,
    or has the name of another.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(manager)
    _register(manager, BUILTIN, builtin_plugin)
    for point in sorted(entry_points(group=hookspecs.PROJECT), key=lambda point: point.name):
        name = _label(point)
        try:
            with redirect_stdout(sys.stderr):
                plugin = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception of third-party code
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


def _register(manager: pluggy.PluginManager, name: str, plugin: object) -> None:
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except (ValueError, pluggy.PluginValidationError) as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UsageError(f"plugin '{name}' does not fit: {one_line(last)}") from error
    except Exception as error:  # pluggy reads every attribute of a plugin, whose code may raise
        raise UsageError(f"plugin '{name}' does not fit: {error_line(error)}") from error


def _label(point: EntryPoint) -> str:
    """Name of the distribution, followed by the entry point's name if they differ."""
    if point.dist is None or point.dist.name == point.name:
        return point.name
    return f"{point.dist.name}:{point.name}"


def problem_of(item: object, hook: str, is_built_in: bool = False) -> str | None:
    """The first error in an item that a plugin registers; None if it is valid.

    Only built-in methods may use labels and names of result columns.
    """
    if hook == "ttmbench_register_task_dirs":
        is_folder = isinstance(item, Traversable) and item.is_dir()
        return None if is_folder else f"must be a Path to a folder of tasks, got {item!r:.200}"
    kind = next((candidate for candidate in _KINDS[hook] if isinstance(item, candidate)), None)
    if kind is None:
        taken = "s and ".join(candidate.__name__ for candidate in _KINDS[hook])
        return f"{type(item).__name__} cannot be registered here; expected {taken}s of ttmbench"
    values = {field.name: getattr(item, field.name) for field in fields(kind)}
    try:
        _CHECKED[kind](**values)
    except ValidationError as error:
        problem: str | None = describe(error)
    else:
        problem = _wrong_name(kind, values) or _wrong_use(item, is_built_in)
    return None if problem is None else f"{kind.__name__} {values.get('name', values.get('kind'))!r}: {problem}"


def _wrong_name(kind: type[Any], values: Mapping[str, Any]) -> str | None:
    key = "kind" if kind is SourceSpec else "name"
    form, allowed = _NAMES[kind]
    for what, name in ((key, values[key]), *(("alias", alias) for alias in values.get("aliases", ()))):
        if not re.fullmatch(form, name):
            return f"a {what} is made of {allowed}, got {name!r}"
    if kind is MetricSpec and values["name"].endswith(_TAKEN_ENDINGS):
        return f"a name cannot end in {' or '.join(_TAKEN_ENDINGS)}, which results add to every metric"
    targets = {"target": values.get("target", "a:b"), "needs": values["needs"] if kind is SourceSpec else ""}
    for what, target in targets.items():
        if (what, target) != ("needs", "") and not _TARGET.fullmatch(target):
            return f"{what} should be 'module:callable', got {target!r}"
    return None


def _wrong_use(item: object, is_built_in: bool) -> str | None:
    """What the types of a specification do not say."""
    if isinstance(item, MetricSpec) and item.track in ("forced_choice", "supervised"):
        return f"track '{item.track}' is that of models, not of metrics"
    if isinstance(item, AdapterSpec):
        try:
            TTMConfig().with_changes(dict(item.ttm_defaults), "ttm_defaults")
        except UsageError as error:
            return str(error)
    if not isinstance(item, MethodSpec):
        return None
    if not item.needs:
        return "needs should name what the method gets, such as scores"
    if (item.reset is not None) != ("gradients" in item.needs):
        return f"reset is for a method that needs gradients, and such a method has one; got {item.reset!r}"
    if not is_built_in and {"labels", "random_labels"} & set(item.needs):
        return "a method of a plugin gets no labels, not even random ones"
    if not is_built_in and any(item.name.lower() in (column.filter, column.name.lower()) for column in COLUMNS):
        return f"'{item.name}' is the name of a column that ttmbench has"
    return None
