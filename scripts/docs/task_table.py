"""Writes the table of all tasks into docs/tasks.md, from the task files.

python scripts/docs/task_table.py write    # after a task file changed
python scripts/docs/task_table.py check    # fails if the page's table is not what the task files say
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from page_table import write_or_check

from ttmbench.data.catalog import all_tasks
from ttmbench.data.task_file import TaskSpec

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tasks.md"
HEAD = [
    *("task", "groups", "shape", "chance: group score", "chance: group match", "images needed", "source", "licence"),
    *("gated", "known how", "fetched by", "in the data folder", "known label errors"),
]


def table() -> str:
    """The Markdown table, one line a task."""
    from ttmbench.plugins.registry import build_registry

    registry = build_registry()
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for name, file in all_tasks(registry).items():
        spec = file.spec
        chances = []
        for metric in ("group_score", "group_match"):
            chance = registry.metric(metric).chance if spec.kind == "groups" else None
            value = chance(spec.shape.images, spec.shape.captions) if chance else None
            chances.append("-" if value is None else f"{100 * value:.2f}")
        cells = [
            f"`{name}`",
            "-" if spec.group.n_groups is None else str(spec.group.n_groups),
            f"{spec.shape}, global" if spec.is_global else _shape(spec),
            *chances,
            spec.images_needed or "-",
            ", else ".join(_places(spec.source)),
            spec.license,
            "yes" if spec.gated else "no",
            ", ".join(f"{fact}: {how}" for fact, how in spec.evidence.items()) or "-",
            "-" if spec.source["kind"] == "rendered" else f"`ttmbench download {name}`",
            ", ".join(f"`{path}`" for path in _files(spec.source, spec.group.tag_files)) or "-",
            spec.label_errors or "-",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _shape(spec: TaskSpec) -> str:
    return spec.extent if spec.kind == "groups" else f"{spec.extent}, {spec.kind}"


def _places(source: Mapping[str, Any]) -> Iterator[str]:
    """Where the data come from, in the order in which the places are tried."""
    if "of" in source:
        for one in source["of"]:
            yield from _places(one)
    elif source["kind"] in ("huggingface", "hub_files", "webdataset"):
        path, revision = source["path"], source.get("revision")
        pinned = f"at `{revision[:7]}`" if revision else "not pinned"
        yield f"[{path}](https://huggingface.co/datasets/{path}) ({pinned})"
    elif source["kind"] == "rendered":
        yield "[rendered](builtin.md)"
    else:
        yield "the data folder"


def _files(source: Mapping[str, Any], tag_files: Mapping[str, Any]) -> list[str]:
    """What a user may put into the data folder."""
    files: list[str] = []
    for one in source.get("of", [source]):
        if one["kind"] == "class_folders":
            files.append(one["path"])
        if one["kind"] == "annotations":
            files += one["get"] if "get" in one else [one["file"], one["images"]]
    return files + [one.file for one in tag_files.values()]


if __name__ == "__main__":
    write_or_check(PAGE, "tasks", table, __doc__ or "")
