"""The registry: models, task files, sources, metrics, schedules and test-time methods by name."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.console import warn
from ttmbench._util.digests import modules_of
from ttmbench._util.text import read_yaml
from ttmbench._util.third_party_errors import error_with_place, place_of
from ttmbench.config import RunConfig
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.manager import BUILTIN, Plugins, load_plugins
from ttmbench.types import (
    AdapterSpec,
    GroupShape,
    MethodPart,
    MethodSpec,
    MetricSpec,
    ModelFiles,
    PartKind,
    ScheduleSpec,
    SourceSpec,
)

ENDINGS = (".yaml", ".yml")
MOST_NAMES = 40  # that an error lists
WEIGHTS_ARE_NAMED_BY = ("pretrained", "model", "path")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_OPEN_CLIP_HUB = re.compile(r"(?:laion|timm|apple|UCSC-VLAA|QuanSun)/", re.IGNORECASE)
_KINDS = (  # part of a Hub id -> name of the adapter
    (r"flan-?t5", "vqascore"),
    (r"blip-itm", "blip-itm"),
    (r"blip2-itm", "blip2-itm"),
    (r"blip-image-captioning|blip2-opt|blip2-flan", "visualgpt"),
    (r"clip|siglip", "hf"),
)


@dataclass(frozen=True)
class Registry:
    """Everything that plugins registered, by name, with the plugin of each entry."""

    plugins: Plugins
    adapters: Mapping[str, tuple[AdapterSpec, str]]
    task_files: Mapping[str, tuple[Traversable, str]]
    sources: Mapping[str, tuple[SourceSpec, str]]
    metrics: Mapping[str, tuple[MetricSpec, str]]
    schedules: Mapping[str, tuple[ScheduleSpec, str]]
    methods: Mapping[str, tuple[MethodSpec, str]]
    parts: Mapping[str, tuple[MethodPart, str]]  # keys are KIND=NAME

    def adapter(self, name: str) -> AdapterSpec:
        """Returns a model by name or alias; UsageError with options that run it, or similar names, if unknown."""
        if name not in self.adapters:
            options = options_for(name, [spec for spec, _ in self.adapters.values()])
            if options is not None:
                raise UsageError(f"unknown model '{name}'; run it with: {options}{self._broken}")
        return self.get(self.adapters, name, "model")

    def metric(self, name: str) -> MetricSpec:
        """Returns a metric by name; UsageError with similar names if unknown."""
        return self.get(self.metrics, name, "metric")

    def schedule(self, name: str) -> ScheduleSpec:
        """Returns a threshold schedule by name; UsageError with similar names if unknown."""
        return self.get(self.schedules, name, "schedule")

    def method(self, name: str) -> MethodSpec:
        """Returns a test-time method by name; UsageError with similar names if unknown."""
        return self.get(self.methods, name, "method")

    def trained(self, methods: Iterable[str]) -> list[MethodSpec]:
        """Selects the test-time methods that train the model, seed by seed."""
        return [spec for spec in map(self.method, methods) if spec.trains]

    def adapts(self, config: RunConfig) -> bool:
        """Whether a run adapts the model by TTM or a variant of it."""
        return bool(config.own_columns) or any(self.method(name).is_ttm for name in config.methods)

    def part(self, kind: PartKind, name: str) -> MethodPart:
        """Returns a part of TTM by kind and name; UsageError with similar names if unknown."""
        of_kind = {entry[0].name: entry for entry in self.parts.values() if entry[0].kind == kind}
        return self.get(of_kind, name, kind)

    def get(self, table: Mapping[str, tuple[Any, str]], name: str, what: str) -> Any:
        """Returns an entry of a table by name; UsageError with similar names if unknown."""
        if name not in table:
            raise UsageError(self.unknown(what, name, list(table)))
        return table[name][0]

    def modules_of(self, table: Mapping[str, tuple[Any, str]], name: str) -> list[str]:
        """The modules that define an entry of a table and its plugin; none for built-in or unknown names."""
        spec, plugin = table.get(name, (None, BUILTIN))
        if plugin == BUILTIN:
            return []
        values = [getattr(spec, field.name) for field in fields(spec)]
        functions = [module for value in values if callable(value) for module in modules_of(value)]
        targets = [value.partition(":")[0] for value in (getattr(spec, "target", ""),) if value]
        return [*modules_of(self.plugins.manager.get_plugin(plugin)), *functions, *targets]

    def unknown(self, what: str, name: str, known: Iterable[str]) -> str:
        """Returns the message for an unknown name: similar names, or all, or a command; and broken plugins."""
        if what.startswith("task") and (why := _why_not_here(name)) is not None:
            return f"there is no task '{name}': {why}"
        names = sorted(set(known))
        of_family = [one for one in names if one.startswith(f"{name}-")][:3]
        near = " or ".join(map(repr, of_family or get_close_matches(name, names, n=2, cutoff=0.6)))
        kinds = re.findall("task|model|method|metric", what) if len(names) > MOST_NAMES else []
        listed = " or ".join(f"`ttmbench ls {kind}s`" for kind in kinds)
        hint = f"did you mean {near}?" if near else f"{listed} lists them" if listed else f"known: {', '.join(names)}"
        return f"unknown {what} '{name}'{self._broken}; {hint}"

    @property
    def _broken(self) -> str:
        """Text that lists broken plugins, which might define an unknown name."""
        return "".join(f" ({plugin})" for plugin in self.plugins.broken)


def build_registry(
    include_paths: Sequence[str | Path] = (), extra: Iterable[tuple[str, object]] = (), quiet: bool = False
) -> Registry:
    """Collects what all plugins register, including ``extra`` (name, object), and task files of other folders.

    Errors in an installed plugin are listed in ``plugins.broken``, and printed unless ``quiet``. UsageError for errors
    in ``extra`` plugins and folders, and for two tasks with the same name.
    """
    plugins = load_plugins(extra)
    files: dict[str, tuple[Traversable, str]] = plugins.collect("ttmbench_register_task_dirs", _tasks_in)
    for include in include_paths:
        if not Path(include).is_dir():
            raise UsageError(f"--include_path {include} is not a folder")
        for name, entry in _tasks_in(Path(include)):
            if name in files:
                raise UsageError(f"task '{name}' is defined by both '{files[name][1]}' and '{include}'; rename one")
            files[name] = (entry, str(include))
    methods = plugins.collect(
        "ttmbench_register_methods",
        lambda spec: [(f"{spec.kind}={spec.name}" if isinstance(spec, MethodPart) else spec.name, spec)],
    )
    registry = Registry(
        plugins=plugins,
        adapters=plugins.collect(
            "ttmbench_register_adapters", lambda spec: [(name, spec) for name in (spec.name, *spec.aliases)]
        ),
        task_files=files,
        sources=plugins.collect("ttmbench_register_sources", lambda spec: [(spec.kind, spec)]),
        metrics=plugins.collect("ttmbench_register_metrics", lambda spec: [(spec.name, spec)]),
        schedules=plugins.collect("ttmbench_register_schedules", lambda spec: [(spec.name, spec)]),
        methods={key: entry for key, entry in methods.items() if isinstance(entry[0], MethodSpec)},
        parts={key: entry for key, entry in methods.items() if isinstance(entry[0], MethodPart)},
    )
    for broken in () if quiet else plugins.broken:
        warn(f"{broken}; everything else works")
    return registry


def _tasks_in(folder: Traversable) -> list[tuple[str, Traversable]]:
    entries = [entry for entry in folder.iterdir() if entry.name.endswith(ENDINGS) and not entry.name.startswith("_")]
    return [(entry.name.rsplit(".", 1)[0], entry) for entry in entries]


def _why_not_here(name: str) -> str | None:
    """The reason why a known dataset has no task; None for other names."""
    entries = read_yaml(files("ttmbench.tasks") / "_not_here.yaml")
    spelled = re.sub(r"[\W_]+", "_", name.lower())
    return next((entry["why"] for entry in entries if spelled in entry["names"]), None)


def load_target(target: str, needs: Sequence[str] = ()) -> Any:
    """Imports ``"module:callable"``; UsageError, with the packages to install, if that fails."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise UsageError(f"'{target}' is not module:callable")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        install = f"; pip install {shlex.join(needs)}" if needs else ""
        where = place_of(error)
        raise UsageError(f"{target} cannot be imported: {error}{f' ({where})' if where else ''}{install}") from error
    except AttributeError as error:
        raise UsageError(f"{target} does not exist: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target} cannot be imported: {error_with_place(error)}") from error


def options_for(name: str, specs: Iterable[AdapterSpec]) -> str | None:
    """Options that run a model given by Hub id or folder, names of ``specs`` with its weights first; else None.

    >>> options_for("llava-hf/llava-1.5-7b-hf", [])
    '--model vqascore --model_args pretrained=llava-hf/llava-1.5-7b-hf'
    """
    registered = [
        spec.name
        for spec in specs
        if any(str(spec.model_args.get(key, "")).casefold() == name.casefold() for key in WEIGHTS_ARE_NAMED_BY)
    ]
    if registered:
        return " or ".join(f"--model {registered_name}" for registered_name in dict.fromkeys(registered))
    if ("/" in name or "\\" in name) and Path(name).is_dir():
        return f"--model hf --model_args pretrained={name}"
    if not _HUB_ID.fullmatch(name):
        return None
    if _OPEN_CLIP_HUB.match(name):
        return f"--model open_clip --model_args model=hf-hub:{name}"
    kind = next((kind for sign, kind in _KINDS if re.search(sign, name, re.IGNORECASE)), "vqascore")
    return f"--model {kind} --model_args pretrained={name}"


def arguments_of(spec: AdapterSpec, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Model arguments: the user's override the defaults; with other weights the default revision is dropped.

    DataError if the model cannot be loaded, or if the user has to download its weights file and pass its path.

    >>> spec = AdapterSpec("x", "m:load", model_args={"pretrained": "a/b", "revision": "c0ffee"})
    >>> arguments_of(spec, {"pretrained": "./mine"})
    {'pretrained': './mine'}
    """
    fixed = dict(spec.model_args)
    if any(model_args.get(name, fixed.get(name)) != fixed.get(name) for name in WEIGHTS_ARE_NAMED_BY):
        fixed.pop("revision", None)
    card = spec.card
    if card is not None and card.refused:
        raise DataError(f"{spec.name} cannot be loaded: {card.refused}")
    if card is not None and card.page and "pretrained" not in model_args:
        raise DataError(f"{spec.name}: download {card.weights} from {card.page} and give --model_args pretrained=FILE")
    return {**fixed, **model_args}


def locate_files(spec: AdapterSpec, model_args: Mapping[str, Any], offline: bool) -> list[ModelFiles] | None:
    """Locates the weights of a model, and downloads them unless ``offline``; None if they are not known.

    The adapter's module may define ``locate`` next to ``load``: it takes the arguments that name weights, and
    ``offline``. DataError if weights are unavailable or incomplete; UsageError for an invalid argument.
    """
    module, _, _ = spec.target.partition(":")
    load_target(spec.target, spec.needs)
    locate = getattr(import_module(module), "locate", None)
    if locate is None:
        return None
    parameters = inspect.signature(locate).parameters
    arguments = {**arguments_of(spec, model_args), "offline": offline}
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if any(name not in arguments for name in needed):
        return None
    files: list[ModelFiles] = locate(**{name: value for name, value in arguments.items() if name in parameters})
    return files


def metric_for(metric: MetricSpec, shape: GroupShape) -> MetricSpec:
    """Binds a metric to the number of true captions of a shape; if unsupported, it is defined for no group."""
    true = shape.true_captions
    if true == 1 and metric.several_true != "only":
        return metric
    if true == 1 or metric.several_true == "undefined":
        return replace(metric, defined=_never)
    return replace(
        metric,
        compute=_told(metric.compute, metric, shape),
        ties=None if metric.ties is None else _told(metric.ties, metric, shape),
        chance=None if metric.chance is None else partial(metric.chance, true_captions=true),
        defined=partial(metric.defined, true_captions=true),
    )


def _told(function: Callable[..., np.ndarray], metric: MetricSpec, shape: GroupShape) -> Callable[..., np.ndarray]:
    """Binds a function of scores to the number of true captions, and a global metric also to the truth."""
    bound = partial(function, true_captions=shape.true_captions)
    if metric.scope != "global":
        return bound
    return lambda pairs, truth: bound(pairs, shape.truth(len(pairs) // shape.images))


def _never(images: int, captions: int) -> bool:
    return False
