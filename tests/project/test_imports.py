"""What `make lint` does not hold of the structure: adapters, dangerous readers and circles."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from support.checkout import ROOT


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    """Of the whole tree, which is walked once."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def imports(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module}
    return found


def test_adapters_know_models_and_never_tasks():
    """They lie beside the package, where the contract of the layers does not see them."""
    allowed = ("ttmbench.protocols", "ttmbench.errors", "ttmbench.types", "ttmbench._util", "ttmbench.model_adapters")
    for path in (ROOT / "model_adapters").rglob("*.py"):
        own = {name for name in imports(path) if name.split(".")[0] == "ttmbench"}
        assert all(name.startswith(allowed) for name in own), path.name


def test_nothing_reads_a_pickle_or_unsafe_yaml():
    for folder in ("ttmbench", "model_adapters", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "pickle" not in {name.split(".")[0] for name in imports(path)}, path.name
            for call in (node for node in nodes(path) if isinstance(node, ast.Call)):
                called = ast.unparse(call.func)
                if called == "torch.load":  # of weights the tensors alone, and of rows that are prepared plain values
                    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
                    assert path.name in ("pickled_weights.py", "prepare.py"), path.name
                    assert options.get("weights_only") == "True", path.name
                assert "safe_globals" not in called or path.name == "pickled_weights.py", path.name
                assert called not in ("eval", "exec", "yaml.unsafe_load", "yaml.full_load"), path.name
            assert "allow_pickle=True" not in text, path.name


def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name; that of a folder ends in `__init__`."""
    found = {}
    for folder, package in (("ttmbench", "ttmbench"), ("model_adapters", "ttmbench.model_adapters")):
        for path in (ROOT / folder).rglob("*.py"):
            found[".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])] = path
    return found


def imported(path: Path, known: set[str]) -> set[str]:
    """The modules that a file imports, those inside functions and for type checkers alone included.

    That Python runs a folder's `__init__` before a file in it is not an import of that file's.
    """
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            names |= {
                submodule if {submodule, f"{submodule}.__init__"} & known else node.module
                for submodule in (f"{node.module}.{alias.name}" for alias in node.names)
            }
    return {name if name in known else f"{name}.__init__" for name in names} & known


def test_nothing_imports_itself_by_way_of_others():
    """Neither files nor packages, at any depth, whatever kind of import."""
    known = modules()
    edges = [(name, other) for name, path in known.items() for other in imported(path, set(known)) - {name}]
    assert len(known) > 200 and len(edges) > 2 * len(known), "imports were read"
    inside = defaultdict(lambda: defaultdict(set))  # package -> file or package in it -> those that it imports
    for start, end in edges:
        here, there = start.split("."), end.split(".")
        common = next(depth for depth, (one, other) in enumerate(zip(here, there, strict=False)) if one != other)
        inside[".".join(here[:common])][here[common]].add(there[common])
    for imports_inside in inside.values():
        TopologicalSorter(imports_inside).prepare()  # raises CycleError, which names the circle
