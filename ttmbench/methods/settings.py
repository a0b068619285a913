"""x"""

from __future__ import annotations
import inspect
from collections.abc import Mapping
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import load_target
from ttmbench.types import MethodSpec


def checked_settings(spec: MethodSpec, given: Mapping[str, object]) -> dict[str, object]:
    """x"""
    known = {
        n: p.default
        for n, p in inspect.signature(load_target(spec.target)).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
    for n in given:
        if n not in known:
            raise UsageError(f"--method_args {spec.name}.{n}: unknown argument; known: {', '.join(known)}")
    return {**known, **spec.settings, **given}
