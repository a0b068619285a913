"""Arguments of methods and of parts of TTM, read from signatures: names, allowed values, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ttmbench.errors import UsageError


@dataclass(frozen=True)
class Argument:
    """A setting of a method or of a part of TTM: its type, its default, and the paper or code of the default."""

    name: str
    annotation: Any
    default: Any = None
    is_required: bool = False
    source: str = ""

    @property
    def allowed(self) -> str:
        """A description of the allowed values.

        >>> from typing import Annotated, Literal
        >>> from pydantic import Field
        >>> Argument("lr", Annotated[float, Field(gt=0, le=1)]).allowed
        'a number > 0 and <= 1'
        >>> Argument("filter", Literal["eta", "sar"] | None).allowed
        'eta or sar or none'
        """
        return _in_words(self._adapter.json_schema())

    def checked(self, value: object, origin: str) -> Any:
        """The validated value; UsageError, with a message that begins with ``origin``, if it is not allowed."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            from_validator = first["type"] == "value_error"  # use its message
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


def arguments_of(function: Callable[..., Any], parameters: Iterable[inspect.Parameter], target: str) -> list[Argument]:
    """Reads the given parameters of a function as arguments; UsageError if their annotations cannot be evaluated.

    Annotations of other parameters and of the result are not evaluated.
    """
    named = {parameter.name: parameter for parameter in parameters}
    empty = inspect.Parameter.empty
    try:
        written = SimpleNamespace(__annotations__={name: one.annotation for name, one in named.items()})
        hints = get_type_hints(written, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise UsageError(f"{target}: the annotations of its settings cannot be read: {error}") from None
    return [
        Argument(
            name,
            Any if one.annotation is empty else hints[name],
            None if one.default is empty else one.default,
            one.default is empty,
        )
        for name, one in named.items()
    ]


def checked_arguments(
    known: Sequence[Argument], given: Mapping[str, object], option: str, whose: str
) -> dict[str, Any]:
    """The given values, validated; UsageError for an unknown, invalid or missing argument.

    ``option`` is the text before ``NAME=VALUE`` on the command line, ``whose`` the method or part, for messages.
    """
    by_name = {argument.name: argument for argument in known}
    for unknown in (name for name in given if name not in by_name):
        raise UsageError(f"{option}{unknown}: unknown argument; known: {', '.join(by_name) or 'none'}")
    for argument in known:
        if argument.is_required and argument.name not in given:
            raise UsageError(f"{whose} needs {option}{argument.name}=VALUE: {argument.allowed}")
    return {name: by_name[name].checked(value, f"{option}{name}") for name, value in given.items()}


_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {
    **{"number": "a number", "integer": "a whole number", "boolean": "true or false", "string": "a text"},
    "object": "names with values (NAME.KEY=VALUE)",
}


def _in_words(schema: Mapping[str, Any]) -> str:
    """A description of a JSON schema."""
    if schema.get("description"):
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
