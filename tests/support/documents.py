"""A results document as far as readers need one: every required key, and each task in every map that is by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmbench.results.files import schema

BY_TASK = ("tracks", "ci", "chance", "ties", "configs", "higher_is_better", "datasets")


def whole_document(results: Mapping[str, Mapping[str, float]], **changes: Any) -> dict[str, Any]:
    """A document with these results, changed as said."""
    return {
        **{key: {} for key in schema("results")["required"]},
        **{key: {task: {} for task in results} for key in BY_TASK},
        "schema_version": "1.0",
        "status": "done",
        "track": "zero_shot",
        "results": dict(results),
        "versions": dict.fromkeys(results, 1),
        "n-samples": {task: {"original": 2, "effective": 2} for task in results},
        "task_hashes": dict.fromkeys(results, "ab"),
        "errors": [],
        "git_hash": None,
        "model_name": "clip",
        "date": 1.7e9,
        "total_evaluation_time_seconds": 0.0,
        "command": "",
        **changes,
    }
