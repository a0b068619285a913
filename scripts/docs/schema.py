"""Writes the JSON Schemas of results documents and of task files."""

from __future__ import annotations

import json
from pathlib import Path

from attribute_docs import describe_properties

from ttmbench.data.paths import Origin, TagFile
from ttmbench.data.rows import Condition, PathPart, Pick
from ttmbench.data.task_file import ClassSpec, GroupSpec, TaskSpec
from ttmbench.results.document import json_schema
from ttmbench.results.tag_means import TagMean

FOLDER = Path(__file__).resolve().parents[2] / "ttmbench" / "results" / "schemas"
DESCRIBED = (ClassSpec, GroupSpec, TagMean, Condition, Pick, PathPart, TagFile, Origin)


def texts() -> dict[str, str]:
    """File name -> content."""
    task = describe_properties(TaskSpec, DESCRIBED)
    schemas = {
        "results-1.0.json": json_schema(),
        "task-1.0.json": {"$schema": "https://json-schema.org/draft/2020-12/schema", **task},
    }
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
