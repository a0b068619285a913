"""Writes the JSON Schemas of results documents and of task files, which docstrings describe (``Attributes``)."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ttmbench.data.paths import Origin, TagFile
from ttmbench.data.rows import Condition, PathPart, Pick
from ttmbench.data.task_file import ClassSpec, GroupSpec, TaskSpec
from ttmbench.results.document import ResultsDocument
from ttmbench.results.summary import TagMean

FOLDER = Path(__file__).resolve().parents[2] / "ttmbench" / "results" / "schemas"
DESCRIBED = (ClassSpec, GroupSpec, TagMean, Condition, Pick, PathPart, TagFile, Origin)

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


def results_schema() -> dict[str, Any]:
    """The JSON Schema of a results document."""
    made = ResultsDocument.model_json_schema(schema_generator=_Schema)
    definitions = made.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ttmbench-results-1.0",
        "title": "ttmbench results",
        **_plain(made),
        "$defs": {name: _plain(definition) for name, definition in definitions.items()},
    }


class _Schema(GenerateJsonSchema):
    """pydantic's, but keys that do not fit a mapping's pattern are refused and not passed over."""

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        """A mapping: what its keys and its values are."""
        keys = self.generate_inner(schema["keys_schema"])
        values = self.generate_inner(schema["values_schema"])
        keys = {key: value for key, value in keys.items() if key != "type"}
        return {
            "type": "object",
            **({"propertyNames": keys} if keys else {}),
            **({"additionalProperties": values} if values else {}),
        }


def _plain(value: Any, named: bool = False) -> Any:
    """A schema without the names and defaults of Python's side; ``named``: its keys are names of keys."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if named:
        return {key: _plain(item) for key, item in value.items()}
    schema = {key: item for key, item in value.items() if key not in ("title", "default")}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    return {key: _plain(item, named=key == "properties") for key, item in schema.items()}


def texts() -> dict[str, str]:
    """File name -> content."""
    task = describe_properties(TaskSpec, DESCRIBED)
    schemas = {
        "results-1.0.json": results_schema(),
        "task-1.0.json": {"$schema": "https://json-schema.org/draft/2020-12/schema", **task},
    }
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
