"""The page on the architecture says what is: its layers are the contract, and a run walks as it says."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from support.checkout import blocks

from ttmbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def walk() -> list[tuple[str, str]]:
    """(file, function) of every step."""
    text = PAGE.read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. `([\w/]+\.py)` `([\w.]+)`: ", text, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    return [(file, name) for _, file, name in steps]


def defined(path: Path) -> set[str]:
    """Names of functions and classes, those inside a class with its name."""
    found = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


def test_every_step_of_the_walk_exists():
    assert len(walk()) > 20
    for file, name in walk():
        assert name in defined(ROOT / file), (file, name)


def test_a_run_visits_the_steps_in_their_order(tmp_path, capsys):
    steps = walk()
    wanted = {(str(ROOT / file), name) for file, name in steps}
    visited: list[tuple[str, str]] = []
    seen: dict[int, CodeType] = {}  # millions of calls of a few thousand functions

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or id(frame.f_code) in seen:
            return
        seen[id(frame.f_code)] = frame.f_code
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, and no body of a class
            name = frame.f_code.co_qualname.removesuffix(".__init__")
            step = (str(Path(frame.f_code.co_filename).resolve()), name)
            if step in wanted and step not in visited:
                visited.append(step)

    command = re.search(r"What `ttmbench ([^`]+)` does", PAGE.read_text(encoding="utf-8"))
    assert command
    small = ["--limit", "8", "--ttm_args", "iterations=1,epochs=1", "--device", "auto", "--use_cache", "off"]
    sys.setprofile(note)
    try:
        code = main([*command[1].split(), *small, "--output_path", str(tmp_path / "run.json")])
    finally:
        sys.setprofile(None)
    assert code == 0, capsys.readouterr().err
    assert [(str(Path(file).resolve().relative_to(ROOT)), name) for file, name in visited] == steps


def test_every_package_is_in_the_table():
    named = set(re.findall(r"^\| `([\w/]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    folders = {f"ttmbench/{path.parent.name}" for path in (ROOT / "ttmbench").glob("*/__init__.py")}
    folders -= {f"ttmbench/{name}" for name in ("model_adapters", "tasks")}
    assert named == folders | {"model_adapters", "tasks"}


def test_the_layers_are_those_of_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (one["layers"] for one in contracts["contracts"] if one["type"] == "layers")
    ((_, shown),) = blocks(PAGE, "text")
    assert shown.splitlines() == [row.replace("ttmbench.", "") for row in layers if "__main__" not in row]
