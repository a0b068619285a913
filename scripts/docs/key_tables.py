"""Tables of keys on the site: those of task files, from their models, and of results, from their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from page_parts import table
from pydantic import BaseModel
from schema import attributes_of, results_schema

from ttmbench.data.paths import Origin
from ttmbench.data.task_file import ClassSpec, GroupSpec, TaskSpec
from ttmbench.data.video import Video
from ttmbench.results.summary import TagMean

TASK_FILE = {
    "task": TaskSpec,
    "group": GroupSpec,
    "classes": ClassSpec,
    "means": TagMean,
    "video": Video,
    "get": Origin,
}
HARNESS = (  # keys that lm-evaluation-harness has by the same name
    *("results", "groups", "group_subtasks", "configs", "versions", "n-shot", "n-samples", "higher_is_better"),
    *("task_hashes", "config", "model_name", "date", "git_hash", "total_evaluation_time_seconds"),
)
RESULTS = """# Keys of results documents

This page lists every key of a results document. [Results format](../../../docs/results-format.md) explains
files, samples and scores.

Keys with * have the same name in lm-evaluation-harness.
"""


def with_tables(text: str) -> str:
    """The page docs/task-file.md with a table in place of every ``<!-- NAME keys -->``."""
    for name, model in TASK_FILE.items():
        before, mark, after = text.partition(f"<!-- {name} keys -->")
        if not mark:
            raise ValueError(f"task-file.md has no place for the keys of {name}")
        text = f"{before}{_of_model(model)}{after}"
    return text


def _of_model(model: type[BaseModel]) -> str:
    """One line for each key, required ones first."""
    described = attributes_of(model)
    rows = []
    for name, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        meaning = described[field.alias or name].rstrip(".").replace("``", "`")
        if field.is_required():
            meaning += " (required)"
        elif field.default not in (None, "", False) and field.get_default(call_default_factory=True):
            meaning += f" (default: {_shown(field.default)})"
        rows.append((f"`{field.alias or name}`", meaning))
    return table(("key", "meaning"), rows)


def _shown(default: object) -> str:
    return ", ".join(f'`"{part}"`' for part in default) if isinstance(default, list) else f"`{default}`"


def results_page() -> str:
    """The page of results documents: a table of the top-level keys, and one for each kind of record in them."""
    schema = results_schema()
    lines = [RESULTS, _of_schema(schema, starred=HARNESS), ""]
    for name, record in schema["$defs"].items():
        lines += [f"## {name}", "", _text(record.get("description", "")), "", _of_schema(record), ""]
    return "\n".join(lines)


def _of_schema(schema: Mapping[str, Any], starred: tuple[str, ...] = ()) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for key, value in schema.get("properties", {}).items():
        named = f"`{key}`" + (" *" if key in starred else "") + ("" if key in required else " (optional)")
        rows.append((named, _type(value), _text(value.get("description", "-"))))
    return table(("key", "type", "meaning"), rows)


def _type(value: Mapping[str, Any]) -> str:
    """A JSON type in words, with links to the sections of records."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "const" in value:
        return f"`{value['const']!r}`".replace("'", '"')
    if "enum" in value:
        return " or ".join(f"`{one}`" for one in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"name → {_type(value['additionalProperties'])}"
    return str(value.get("type", "any"))


def _text(words: str) -> str:
    return words.replace("->", "→").replace("{", "&#123;")
