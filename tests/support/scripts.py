"""Programs of `scripts/` as modules of a test."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from support.pages import ROOT


def load_script(name: str) -> ModuleType:
    """A program by its path below `scripts/`, without its ending; loaded anew each time, and known to nobody else."""
    spec = importlib.util.spec_from_file_location(f"script_{name.replace('/', '_')}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
