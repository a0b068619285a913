"""What `make lint` does not hold of the structure: adapters and dangerous readers."""

from __future__ import annotations

import ast
import functools
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
    allowed = ("ttmbench.model", "ttmbench.errors", "ttmbench.types", "ttmbench._util", "ttmbench.model_adapters")
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
                    assert path.name in ("pretrained.py", "rows.py"), path.name
                    assert options.get("weights_only") == "True", path.name
                assert "safe_globals" not in called or path.name == "pretrained.py", path.name
                assert called not in ("eval", "exec", "yaml.unsafe_load", "yaml.full_load"), path.name
            assert "allow_pickle=True" not in text, path.name
