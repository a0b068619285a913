"""Whether a command that a page shows is made of words that exist: options, names, files, tests, targets, extras."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

from support.pages import ROOT, blocks
from ttmbench.cli.parser import build_parser, normalise
from ttmbench.data.catalog import select_tasks
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.tables import load_table

PYTHON = ("python", "python3")
# Models that a page makes; tests/project/test_blocks.py runs them.
NEW_MODELS = {"add-an-adapter.md": {"color-counter", "two-towers"}}
# Programs of others, and what the shell has itself: their words are not ours to know.
FOREIGN = (".", "cd", "docker", "eval", "export", "git", "llama-server", "mv", "ray", "vllm")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the `bash` blocks of a page, without variables that are set before it."""
    found = []
    for _, block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words = words[1:]
                found += [words] if words else []
    return found


def problem(words: list[str], page: str = "") -> str | None:
    """What is wrong with a command; None if nothing is."""
    if words[0] == "ttmbench":
        return problem_of_ours(words[1:], page)
    if words[0] in PYTHON:
        return problem_of_python(words[1:])
    if words[0] == "pip":
        return next(filter(None, map(problem_of_requirement, words[2:])), None)
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        return next((f"no target {word}" for word in words[1:] if word not in targets), None)
    return None if words[0] in FOREIGN else f"no program {words[0]} is known here"


def problem_of_python(words: list[str]) -> str | None:
    if words[:2] == ["-m", "pytest"]:
        return problem_of_tests(words[2:])
    if words[0] == "-m":
        return None if words[1] in ("mkdocs", "sglang.launch_server", "venv") else f"no module {words[1]}"
    path = ROOT / words[0]
    if not path.is_file():
        return f"no file {words[0]}"
    # An option may be a module's beside it, as those of the experiments with faults are.
    text = "".join(one.read_text(encoding="utf-8") for one in path.parent.glob("*.py"))
    said = [word for word in words[1:] if word.startswith("--") or (word.isalpha() and word.islower())]
    return next(
        (f"{words[0]} knows no {word}" for word in said if not re.search(rf"\b{re.escape(word.lstrip('-'))}\b", text)),
        None,
    )


def problem_of_tests(words: list[str]) -> str | None:
    """Of what pytest is given: files, names of tests, and expressions of which some word is in a name."""
    files = [word.partition("::")[::2] for word in words if word.startswith("tests/")]
    for file, name in files:
        if not (ROOT / file).exists():
            return f"no file {file}"
        if name and f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8"):
            return f"{file} has no {name}"
    if "-k" in words:
        paths = [
            path
            for file, _ in files
            for path in ([ROOT / file] if file.endswith(".py") else (ROOT / file).rglob("*.py"))
        ]
        names = re.findall(
            r"^def (test_\w+)", "".join(path.read_text(encoding="utf-8") for path in paths), re.MULTILINE
        )
        for word in words[words.index("-k") + 1].split(" or "):
            if not any(word in name for name in names):
                return f"no test is named {word}"
    return None


def problem_of_requirement(word: str) -> str | None:
    """Of what pip is told to install: an option, this package with extras, or a folder."""
    match = re.fullmatch(r"(?:ttmbench|\.)(?:\[([a-z,]+)\])?", word)
    if word.startswith("-"):
        return None
    if match is None:
        return f"{word} is not this package"
    return next((f"no extra {one}" for one in (match[1] or "").split(",") if one and one not in EXTRAS), None)


EXTRAS = PROJECT["optional-dependencies"]


def problem_of_ours(words: list[str], page: str) -> str | None:
    words = ["1" if word.startswith("$") else word for word in words]  # what a variable of the shell says
    try:
        options = build_parser(normalise(words)[0]).parse_args(normalise(words))
    except SystemExit:
        return "is no command line"
    return next(unknown_names(options, NEW_MODELS.get(page, set())), None)


def unknown_names(options: argparse.Namespace, new_models: set[str]) -> Iterator[str]:
    registry = build_registry()
    given = vars(options)
    known = set(registry.adapters) | {alias for spec, _ in registry.adapters.values() for alias in spec.aliases}
    command = options.execute.__name__
    models = [given.get("model")] + (given.get("models") or [] if command == "doctor" else [])
    tasks = given.get("tasks") or []
    tasks = tasks.split(",") if isinstance(tasks, str) else [part for word in tasks for part in word.split(",")]
    tasks += [part for word in given.get("names") or [] for part in word.split(",")] if command == "download" else []
    tasks += [given["task"]] if given.get("task") else []
    if command == "show":
        (models if given["name"] in known | new_models else tasks).append(given["name"])
    if command == "reproduce" and given["name"] and not given["name"].endswith(".yaml"):
        yield from () if table_exists(given["name"]) else (f"no table {given['name']}",)
    yield from (f"no model {name}" for name in models if name and name not in known | new_models)
    results = command == "validate"  # of runs, which are files and folders
    for name in tasks:
        try:
            select_tasks(registry, [name]) if not name.endswith(".yaml") and not (results and "/" in name) else None
        except Exception as error:
            yield str(error)


def table_exists(name: str) -> bool:
    try:
        return bool(load_table(name))
    except Exception:
        return False
