"""The site's page of the keys of results documents, made from their JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ttmbench.results.document import json_schema

HARNESS = (  # keys that lm-evaluation-harness has by the same name
    *("results", "groups", "group_subtasks", "configs", "versions", "n-shot", "n-samples", "higher_is_better"),
    *("task_hashes", "config", "model_name", "date", "git_hash", "total_evaluation_time_seconds"),
)
HEAD = ("| key | type | checked | meaning |", "|---|---|---|---|")


INTRO = """# Keys of results documents

This page lists every key of a results document. [Results format](../../../docs/results-format.md) explains
files, samples and scores.

*checked* says how `ttmbench validate` treats a key of a [submission](../../../docs/leaderboard.md): `recomputed`
from command, data and scores, `recorded` (type, range and consistency) or `free`. Keys with * are named as in
lm-evaluation-harness.
"""


def page() -> str:
    """Markdown: a table of the top-level keys, and one for each kind of record in them."""
    schema = json_schema()
    lines = [INTRO, *HEAD, *_rows(schema, starred=HARNESS), ""]
    for name, record in schema["$defs"].items():
        lines += [f"## {name}", "", _text(record.get("description", "")), "", *HEAD, *_rows(record), ""]
    return "\n".join(lines)


def _rows(schema: Mapping[str, Any], starred: tuple[str, ...] = ()) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for key, value in schema.get("properties", {}).items():
        named = f"`{key}`" + (" *" if key in starred else "") + ("" if key in required else " (optional)")
        yield f"| {named} | {_type(value)} | {value.get('check', '-')} | {_text(value.get('description', '-'))} |"


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
    return re.sub(r"(?<!\\)\|", r"\\|", words.replace("->", "→").replace("{", "&#123;"))
