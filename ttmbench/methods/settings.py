"""Settings of a test-time method, read from its function, or TTM's settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from ttmbench.config import DEFAULT_LEARNING_RATE, PART_KINDS, RunConfig, TTMConfig, with_rate_note
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.plugins.arguments import Argument, arguments_of, checked_arguments
from ttmbench.plugins.registry import Registry, load_target
from ttmbench.types import MethodSpec

if TYPE_CHECKING:
    from ttmbench.methods.model_task import Parts

Settings = TTMConfig | dict[str, Any]
"""All settings of a method: TTM's where it takes them, else those of its function by name."""


def checked_settings(
    spec: MethodSpec, given: Mapping[str, object], of_run: TTMConfig | None = None, option: str = ""
) -> Settings:
    """All settings of a method: the given values (by ``option``), else defaults, which are those ``of_run`` for TTM's.

    UsageError for an unknown or invalid setting.
    """
    option = option or f"--method_args {spec.name}."
    if spec.takes_ttm_args:
        return (of_run or TTMConfig()).with_changes({**spec.settings, **given}, option.rstrip("."))
    known, whose = arguments(spec), f"method '{spec.name}'"
    checked = checked_arguments(known, given, option, whose)
    others = [argument for argument in known if argument.name not in checked]
    checked |= {one.name: one.checked(one.default, f"{whose}: the default of '{one.name}'") for one in others}
    return {argument.name: checked[argument.name] for argument in known}


def recorded(settings: Settings) -> dict[str, Any]:
    """Settings as the record of a method has them."""
    if not isinstance(settings, TTMConfig):
        return settings
    return {**settings.model_dump(mode="json"), "lr": settings.lr or DEFAULT_LEARNING_RATE, "train": settings.train}


def arguments(spec: MethodSpec) -> list[Argument]:
    """The settings of a method in the order of its signature; UsageError if they cannot be read."""
    declared = list(_of_ttm()) if spec.takes_ttm_args else _of_function(spec)
    names = [argument.name for argument in declared]
    for stated in (*spec.settings, *spec.sources):
        if stated not in names:
            raise UsageError(f"method '{spec.name}' states a setting '{stated}', which {spec.target} does not take")
    return [
        replace(
            argument,
            default=spec.settings.get(argument.name, argument.default),
            is_required=argument.is_required and argument.name not in spec.settings,
            source=spec.sources.get(argument.name, ""),
        )
        for argument in declared
    ]


def _of_function(spec: MethodSpec) -> list[Argument]:
    """The settings of a method's function: all parameters but the first, which is the task."""
    function = inspect.unwrap(load_target(spec.target))
    if not inspect.isfunction(function) or not inspect.signature(function).parameters:
        raise UsageError(f"{spec.target} must be a function that takes a task and its settings")
    settings = list(inspect.signature(function).parameters.values())[1:]
    for parameter in settings:
        if (
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
            or parameter.annotation is parameter.empty
        ):
            raise UsageError(
                f"{spec.target}: '{parameter}' is not a setting that can be read; a method takes the task, "
                "and settings by name with an annotation, such as lr: float = 1e-3"
            )
    return arguments_of(function, settings, spec.target)


def _of_ttm() -> Iterator[Argument]:
    for name, field in TTMConfig.model_fields.items():
        if name != "part_args":  # given as KIND.KEY
            yield Argument(name, Annotated[field.annotation, field], field.default, field.is_required())


def task_settings(registry: Registry, config: RunConfig, spec: TaskSpec) -> TTMConfig:
    """Package defaults, the model's, the task's, the paper's preset if asked for, and what the user says."""
    settings, adapts = TTMConfig(), registry.adapts(config)
    name = config.model
    if name in registry.adapters:
        name = registry.adapters[name].name  # an alias has the presets of its model
        settings = settings.with_changes(dict(registry.adapters[name].ttm_defaults), f"defaults of model {name}")
    settings = settings.with_changes(spec.ttm.get("defaults", {}), f"task {spec.task}: ttm.defaults")
    if adapts and config.ttm_preset == "paper":
        preset = spec.ttm.get(name)
        if preset is None:
            known = ", ".join(model for model in spec.ttm if model != "defaults") or "none"
            raise UsageError(
                f"task '{spec.task}' has no paper preset for model '{name}' (it has: {known}); use --ttm_preset auto"
            )
        settings = settings.with_changes(with_rate_note(preset), f"task {spec.task}: ttm.{name}")
    settings = settings.with_changes(dict(config.ttm_args), "--ttm_args")
    registry.schedules[settings.schedule]
    if adapts and spec.kind == "groups":
        settings.by_share(spec.is_global)
        if settings.ties == "include" and not spec.is_global:
            raise UsageError(
                f"task '{spec.task}' is matched inside groups, where a tied matching is never a pseudo-label; "
                "ties=include is for tasks that are matched globally (--ttm_args)"
            )
    return settings


def load_parts(registry: Registry, settings: TTMConfig) -> Parts:
    """Loads the parts that settings name, with their arguments; UsageError for an unknown part or argument."""
    from ttmbench.methods.parts import load_part  # these import torch, which a run without methods does not need
    from ttmbench.methods.ttm import DEFAULT_PARTS

    default, args = {kind: TTMConfig.model_fields[kind].default for kind in PART_KINDS}, settings.part_args
    given = {kind: args.get(kind, {}) for kind in default if kind in args or getattr(settings, kind) != default[kind]}
    loaded = {kind: load_part(registry.part(kind, getattr(settings, kind)), of) for kind, of in given.items()}
    return replace(DEFAULT_PARTS, **loaded)


def usual_rate(registry: Registry, config: RunConfig, spec: TaskSpec) -> float:
    """The learning rate of TTM where the user gives none: the preset's, the task's, the model's or the package's."""
    others = {name: value for name, value in config.ttm_args.items() if name != "lr"}
    lr = task_settings(registry, config.model_copy(update={"ttm_args": others}), spec).lr
    return DEFAULT_LEARNING_RATE if lr is None else lr
