"""Settings of a test-time method, read from its function, or TTM's settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel

from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.plugins.arguments import Argument, arguments_of, checked_arguments
from ttmbench.plugins.registry import load_target
from ttmbench.types import MethodSpec

_OPTION = "--method_args"


def checked_settings(spec: MethodSpec, given: Mapping[str, object]) -> dict[str, object]:
    """All settings of a method: the given values, else defaults; UsageError for an unknown or invalid setting."""
    if spec.is_ttm:
        return TTMConfig().with_changes({**spec.settings, **given}, f"{_OPTION} {spec.name}").model_dump()
    known, whose = arguments(spec), f"method '{spec.name}'"
    checked = checked_arguments(known, given, f"{_OPTION} {spec.name}", whose)
    return {
        argument.name: checked[argument.name]
        if argument.name in checked
        else argument.checked(argument.default, f"{whose}: the default of '{argument.name}'")
        for argument in known
    }


def arguments(spec: MethodSpec) -> list[Argument]:
    """The settings of a method in the order of its signature; UsageError if they cannot be read."""
    if spec.is_finetuning:
        from ttmbench.methods.finetuned import FinetuneConfig  # shown on its page only

        declared = list(_of_config(FinetuneConfig))
    else:
        declared = list(_of_config(TTMConfig)) if spec.is_ttm else _of_function(spec)
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


def _of_config(config: type[BaseModel]) -> Iterator[Argument]:
    for name, field in config.model_fields.items():
        if name != "part_args":  # given as KIND.KEY
            yield Argument(name, Annotated[field.annotation, field], field.default, field.is_required())
