"""What annotations of public names stand for can be asked at run time, as tools of others do, and costs no start-up."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import ttmbench

MODULES = [name for name in ttmbench.__all__ if inspect.ismodule(getattr(ttmbench, name))]


def annotated(owner: Any) -> Iterator[tuple[str, Any]]:
    """Classes and functions of a module, methods and properties among them."""
    for name in getattr(owner, "__all__", None) or [name for name in vars(owner) if not name.startswith("_")]:
        value = getattr(owner, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("ttmbench"):
            continue
        yield name, value
        for inner, one in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(one, "fget", None) or getattr(one, "__func__", one)
            if inspect.isfunction(function):
                yield f"{name}.{inner}", function


@pytest.mark.parametrize("module", ["ttmbench", *(f"ttmbench.{name}" for name in MODULES)])
def test_every_public_name_says_what_its_annotations_are(module):
    found = list(annotated(importlib.import_module(module)))
    assert found
    for name, one in found:
        hints = typing.get_type_hints(one, include_extras=True)
        left = [hint for hint in hints.values() if "ForwardRef" in repr(hint)]
        assert not left, (name, left)


def test_a_tool_that_asks_imports_what_it_asks_for_and_nothing_before():
    program = (
        "import sys, typing; from ttmbench import model, types\n"
        "heavy = {'torch', 'PIL', 'jaxtyping', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), typing.get_type_hints(types.Scores)['groups'].__name__)\n"
        "typing.get_type_hints(model.PairScorer.score_pairs); print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] ndarray", "['PIL']"]
