"""The tables of keys on the page docs/task-file.md of the site, from the models of task files."""

from __future__ import annotations

from pydantic import BaseModel

from ttmbench._util.attribute_docs import attributes_of
from ttmbench.data.paths import Origin
from ttmbench.data.task_file import ClassSpec, GroupSpec, TaskSpec
from ttmbench.data.video import Video
from ttmbench.results.tag_means import TagMean

TABLES = {
    "task": TaskSpec,
    "group": GroupSpec,
    "classes": ClassSpec,
    "means": TagMean,
    "video": Video,
    "get": Origin,
}


def with_tables(text: str) -> str:
    """The page with a table in place of every ``<!-- NAME keys -->``."""
    for name, model in TABLES.items():
        before, mark, after = text.partition(f"<!-- {name} keys -->")
        if not mark:
            raise ValueError(f"task-file.md has no place for the keys of {name}")
        text = f"{before}{table(model)}{after}"
    return text


def table(model: type[BaseModel]) -> str:
    """One line for each key, required ones first."""
    described = attributes_of(model)
    lines = []
    for name, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        meaning = described[field.alias or name].rstrip(".").replace("``", "`").replace("|", "\\|")
        if field.is_required():
            meaning += " (required)"
        elif field.default not in (None, "", False) and field.get_default(call_default_factory=True):
            meaning += f" (default: {_shown(field.default)})"
        lines.append(f"| `{field.alias or name}` | {meaning} |")
    return "\n".join(["| key | meaning |", "|---|---|", *lines])


def _shown(default: object) -> str:
    return ", ".join(f'`"{part}"`' for part in default) if isinstance(default, list) else f"`{default}`"
