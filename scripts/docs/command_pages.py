"""Pages of the site that come from the program itself: the options of each command, and the arguments of each model."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from page_parts import table

from ttmbench.cli import main
from ttmbench.cli.parser import COMMANDS
from ttmbench.config import RunConfig

if TYPE_CHECKING:
    from ttmbench import AdapterSpec

FOLDER = "commands"
BEHIND = "---\nsearch:\n  boost: 0.5\n---\n"  # guides come first in the search
ARGUMENTS = "model-arguments.md"
# Command -> the page that explains it; command-line.md has the others.
GUIDES = {
    **dict.fromkeys(("finetune", "analyze"), "finetune.md"),
    **dict.fromkeys(("leaderboard", "submit"), "leaderboard.md"),
    **{"run": "running.md", "sweep": "sweep.md", "report": "report.md"},
    **{"export": "exports.md", "reproduce": "reproduce.md", "cache": "cache.md", "new": "add-a-task.md"},
    "score": "stored-scores.md",
    "compare": "compare.md",
}
_CELLS = re.compile(r"^\|[^|]*\|", flags=re.MULTILINE)


def command_pages() -> dict[str, str]:
    """One page for each command, with what ``--help`` prints: place on the site -> Markdown."""
    return {f"{FOLDER}/{name}.md": _page(name) for name in COMMANDS}


def _page(name: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), patch.dict(os.environ, COLUMNS="100"):
        main([name, "--help"])
    guide = GUIDES.get(name, "command-line.md")
    about = f"{COMMANDS[name]}. See also [the guide](../{guide})."
    return f"{BEHIND}# ttmbench {name}\n\n{about}\n\n```text\n{printed.getvalue()}```\n"


def arguments_page() -> str:
    """The page with the arguments of every kind of model, as ``ttmbench show`` lists them."""
    from ttmbench.plugins.registry import build_registry, load_target

    lines = [
        f"{BEHIND}# Model arguments",
        "",
        "This page lists the arguments of `--model_args` for each kind of model.",
        "",
    ]
    kinds: dict[str, list[AdapterSpec]] = {}
    models = build_registry().adapters
    for spec in {spec.name: spec for name, spec in models.items() if models.plugins[name] == "ttmbench"}.values():
        if spec.options is not None:
            kinds.setdefault(spec.options, []).append(spec)
    for target, specs in kinds.items():
        title = specs[0].target.partition(":")[0].rpartition(".")[2]
        names = ", ".join(f"`{spec.name}`" for spec in specs[:8])
        more = f" and {len(specs) - 8} [others](models.md)" if len(specs) > 8 else ""
        lines += [f"## {title}", "", f"Names: {names}{more}.", ""]
        rows = [
            (f"`{name}`", _shown(about["default"]) if "default" in about else "required", _text(str(about["meaning"])))
            for name, about in load_target(target).described().items()
        ]
        lines += [table(("argument", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def _shown(default: object) -> str:
    text = str(default).lower() if default is None or isinstance(default, bool) else str(default)
    return f"`{text}`" if text else "none"


def options_table() -> str:
    """The options of a run, as `RunConfig` describes them."""
    rows = []
    for name, field in RunConfig.model_fields.items():
        extra: Any = field.json_schema_extra
        long = () if any(flag.startswith("--") for flag in extra["flags"]) else (f"--{name}",)
        meaning = re.sub(r"(, \.\.\.)?\n", ". ", str(field.description))
        if isinstance(field.default, str | int) and field.default is not False and "default" not in meaning:
            meaning += f" (default: `{field.default}`)"
        rows.append((", ".join(f"`{flag}`" for flag in (*long, *extra["flags"])), meaning))
    return table(("option", "meaning"), rows)


def with_options(text: str) -> str:
    """The page on the command line with a table of options, and names in its tables linked to their pages."""
    text = text.replace("<!-- options -->", options_table())

    def linked(row: re.Match[str]) -> str:
        return re.sub(r"`([a-z]+)`", lambda name: _link(name[1]) or name[0], row[0])

    return _CELLS.sub(linked, text)


def _link(name: str) -> str | None:
    return f"[`{name}`]({FOLDER}/{name}.md)" if name in COMMANDS else None


def _text(text: str) -> str:
    """Text for a cell of a table: what looks like HTML or emphasis outside of code stays text."""
    parts = text.replace("``", "`").split("`")
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"([*_])", r"\\\1", parts[at].replace("<", "&lt;"))
    return "`".join(parts)
