"""Writes the JSON Schema of results documents from `ttmbench.results.document`: ``make schema``."""

from __future__ import annotations

import json
from pathlib import Path

from ttmbench.results.document import json_schema

TARGET = Path(__file__).resolve().parents[2] / "ttmbench" / "results" / "schemas" / "results-1.0.json"


def text() -> str:
    """The file's content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
