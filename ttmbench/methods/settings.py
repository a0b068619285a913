"""Settings of a test-time method, read from the signature of its function: names, allowed values and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ttmbench._util.third_party_errors import first_error
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import load_target
from ttmbench.types import MethodSpec

_OPTION = "--method_args"
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {"number": "a number", "integer": "a whole number", "boolean": "true or false", "string": "a text"}


@dataclass(frozen=True)
class MethodArgument:
    """A setting of a method.

    Attributes:
        name: as ``--method_args METHOD.NAME=VALUE`` takes it.
        annotation: what pydantic checks a value against.
        default: used if no value is given: of the specification, else of the function.
        is_required: whether there is no default.
        source: where the default is from, if the specification says so.
    """

    name: str
    annotation: Any
    default: Any = None
    is_required: bool = False
    source: str = ""

    @property
    def allowed(self) -> str:
        """The allowed values in words.

        >>> from typing import Annotated, Literal
        >>> from pydantic import Field
        >>> MethodArgument("lr", Annotated[float, Field(gt=0, le=1)]).allowed
        'a number > 0 and <= 1'
        >>> MethodArgument("filter", Literal["eta", "sar"] | None).allowed
        'eta or sar or none'
        """
        return _in_words(self._adapter.json_schema())

    def checked(self, value: object, origin: str) -> Any:
        """The value as the method gets it; UsageError, which ``origin`` begins, for a value that is not allowed."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = first_error(error)
            from_validator = first["type"] == "value_error"  # raised by a validator of the annotation, which knows best
            why = first["msg"].removeprefix("Value error, ") if from_validator else f"must be {self.allowed}"
            shown = repr(value)
            raise UsageError(f"{origin}: {why}, got {shown if len(shown) <= 80 else shown[:77] + '...'}") from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.annotation, config=ConfigDict(allow_inf_nan=False))
        except PydanticUserError:
            raise UsageError(
                f"setting '{self.name}': pydantic cannot check values of {self.annotation!r}; use numbers, texts, "
                "true or false, Literal, tuples and lists of these, or None"
            ) from None


def checked_settings(spec: MethodSpec, given: Mapping[str, object]) -> dict[str, object]:
    """All settings of a method with the given ones in place of defaults; UsageError for an unknown or wrong one."""
    if spec.is_ttm:
        return TTMConfig().with_changes({**spec.settings, **given}, f"{_OPTION} {spec.name}").model_dump()
    known = {argument.name: argument for argument in arguments(spec)}
    names = ", ".join(known) or "none"
    for unknown in (name for name in given if name not in known):
        raise UsageError(f"{_OPTION} {spec.name}.{unknown}: unknown argument; known: {names}")
    checked: dict[str, object] = {}
    for name, argument in known.items():
        if name in given:
            checked[name] = argument.checked(given[name], f"{_OPTION} {spec.name}.{name}")
        elif argument.is_required:
            raise UsageError(f"method '{spec.name}' needs {_OPTION} {spec.name}.{name}=VALUE: {argument.allowed}")
        else:
            checked[name] = argument.checked(argument.default, f"method '{spec.name}': the default of '{name}'")
    return checked


def arguments(spec: MethodSpec) -> list[MethodArgument]:
    """The settings of a method in the order of its signature; UsageError if its function cannot be read."""
    declared = [
        MethodArgument(name, annotation, spec.settings.get(name, default), required, spec.sources.get(name, ""))
        for name, annotation, default, required in (_of_config() if spec.is_ttm else _of_function(spec))
    ]
    names = [argument.name for argument in declared]
    for stated in (*spec.settings, *spec.sources):
        if stated not in names:
            raise UsageError(f"method '{spec.name}' states a setting '{stated}', which {spec.target} does not take")
    return declared


def _of_function(spec: MethodSpec) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, annotation, default and whether there is none, of each setting of a method's function."""
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
    annotations = _annotations(function, {parameter.name: parameter.annotation for parameter in settings}, spec.target)
    for parameter in settings:
        has_default = parameter.default is not parameter.empty
        is_required = not has_default and parameter.name not in spec.settings
        yield parameter.name, annotations[parameter.name], parameter.default if has_default else None, is_required


def _annotations(function: FunctionType, written: dict[str, Any], target: str) -> dict[str, Any]:
    """The annotations of settings, evaluated; those of the task and of the result may be for type checkers alone."""
    try:
        settings = SimpleNamespace(__annotations__=written)
        return get_type_hints(settings, globalns=function.__globals__, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise UsageError(f"{target}: the annotations of its settings cannot be read: {error}") from None


def _of_config() -> Iterator[tuple[str, Any, Any, bool]]:
    for name, field in TTMConfig.model_fields.items():
        if name == "part_args":  # given as KIND.KEY
            continue
        yield name, Annotated[field.annotation, field], field.default, field.is_required()


def _in_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "description" in schema:
        return str(schema["description"])
    if "const" in schema or "enum" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    if "anyOf" in schema:
        return " or ".join(_in_words(branch) for branch in schema["anyOf"])
    kind = schema.get("type")
    if kind == "null":
        return "none"
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"a list of {', '.join(dict.fromkeys(map(_in_words, items)))}"
    bounds = " and ".join(f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema)
    return " ".join(filter(None, (_TYPES.get(str(kind), "a value"), bounds)))
