"""Whether a command that a page shows is made of words that exist: options, names, files, tests, targets, extras."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

from support.checkout import ROOT, blocks
from ttmbench.cli.parser import parse
from ttmbench.config import split_names
from ttmbench.data.task_file import select_tasks
from ttmbench.errors import TtmbenchError
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.tables import load_table

# Models that a page makes; tests/project/test_blocks.py runs them.
NEW_MODELS = {"add-an-adapter.md": {"color-counter", "two-towers"}}
NEW_METHODS = {"add-a-method.md": {"sharpened", "centred", "mean_teacher", "best_quarter"}}
MODULES = ("mkdocs", "pytest", "sglang.launch_server", "venv")
# Other programs, and commands of the shell: their words are not checked.
FOREIGN = (".", "cd", "docker", "eval", "export", "git", "llama-server", "mv", "ray", "uv", "vllm")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the `bash` blocks of a page, without variables that are set before it."""
    found = []
    for _, block in blocks(page, "bash"):
        for part in re.split(r"\n|&&", block.replace("\\\n", " ")):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            found += [words] if words else []
    return found


def problem(words: list[str], page: str = "") -> str | None:
    """The first word of a command that does not exist, with what it should be; None if all exist."""
    program, *rest = words
    if program == "ttmbench":
        return _problem_of_ttmbench(rest, page)
    if program in ("python", "python3"):
        if rest[0] == "-m":
            return None if rest[1] in MODULES else f"no module {rest[1]}"
        return None if (ROOT / rest[0]).is_file() else f"no file {rest[0]}"
    if program == "make":
        return next((f"no target {word}" for word in rest if word not in TARGETS), None)
    if program == "pip":
        named = [re.fullmatch(r"-.*|(?:ttmbench|\.)(?:\[([a-z,]+)\])?", word) for word in rest[1:]]
        extras = {extra for match in named if match and match[1] for extra in match[1].split(",")}
        return None if all(named) and extras <= set(EXTRAS) else f"not this package, or no such extra: {words}"
    return None if program in FOREIGN else f"no program {program} is known here"


def _problem_of_ttmbench(words: list[str], page: str) -> str | None:
    words = ["1" if word.startswith("$") else word for word in words]  # the value of a variable of the shell
    try:
        options = parse(words)
    except SystemExit:
        return "is not a command line"
    return next(_unknown_names(options, NEW_MODELS.get(page, set()), NEW_METHODS.get(page, set())), None)


def _unknown_names(options: argparse.Namespace, new_models: set[str], new_methods: set[str]) -> Iterator[str]:
    registry, given, command = build_registry(), vars(options), options.execute.__name__
    known, methods = set(registry.adapters) | new_models, set(registry.methods) | new_methods
    models = [given.get("model")] + (given.get("models") or [] if command == "doctor" else [])
    listed = given.get("tasks") or []
    tasks = [name for text in ([listed] if isinstance(listed, str) else listed) for name in text.split(",")]
    tasks += [name for text in given.get("names") or [] for name in text.split(",") if command == "download"]
    tasks += [given["task"]] if given.get("task") else []
    if command == "show" and given["name"] not in methods:
        (models if given["name"] in known else tasks).append(given["name"])
    if command == "validate":  # also of runs, which are files and folders
        tasks = [name for name in tasks if "/" not in name]
    asked = split_names(given.get("methods") or "")
    yield from (f"no method {name}" for name in asked if name not in methods)
    yield from (f"no model {name}" for name in models if name and name not in known)
    for check, name in [(lambda name: select_tasks(registry, [name]), name) for name in tasks] + (
        [(load_table, given["name"])] if command == "reproduce" and given["name"] else []
    ):
        try:
            None if name.endswith(".yaml") else check(name)
        except TtmbenchError as error:
            yield str(error)
