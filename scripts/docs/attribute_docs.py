"""Descriptions of a model's fields from the section ``Attributes`` of its docstring, for its JSON Schema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)


def attributes_of(model: type[BaseModel]) -> dict[str, str]:
    """Field -> its description, those of base classes included."""
    described: dict[str, str] = {}
    for base in reversed(model.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        described |= {name: " ".join(text.split()) for name, text in _ENTRY.findall(section)}
    return {field.alias or name: described.get(name, "") for name, field in model.model_fields.items()}


def describe_properties(model: type[BaseModel], inner: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """The JSON Schema of a model, whose properties, and those of the inner models, have descriptions."""
    schema = model.model_json_schema()
    for one in (model, *inner):
        part = schema if one is model else schema["$defs"][one.__name__]
        part["description"] = inspect.cleandoc(one.__doc__ or "").partition("\n")[0]
        for name, text in attributes_of(one).items():
            part["properties"][name]["description"] = text.replace("``", "`")
    return schema
