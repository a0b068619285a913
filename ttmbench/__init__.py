"""ttmbench: how well does a vision-language model compose, and what does it gain from test-time matching?

Importing this package loads nothing heavy; names below are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ttmbench._version import __version__

if TYPE_CHECKING:
    from ttmbench import chance, matching, metrics, schedules, stats, testing
    from ttmbench.config import TTMConfig
    from ttmbench.evaluator import EvalResults, simple_evaluate
    from ttmbench.hookspecs import hookimpl
    from ttmbench.types import (
        AdapterSpec,
        Group,
        ImageRef,
        MetricSpec,
        ScheduleSpec,
        SourceRequest,
        SourceSpec,
    )

_HOME = {
    "EvalResults": "ttmbench.evaluator",
    "simple_evaluate": "ttmbench.evaluator",
    "hookimpl": "ttmbench.hookspecs",
    "TTMConfig": "ttmbench.config",
    "AdapterSpec": "ttmbench.types",
    "Group": "ttmbench.types",
    "ImageRef": "ttmbench.types",
    "MetricSpec": "ttmbench.types",
    "ScheduleSpec": "ttmbench.types",
    "SourceRequest": "ttmbench.types",
    "SourceSpec": "ttmbench.types",
}
_MODULES = ("chance", "matching", "metrics", "schedules", "stats", "testing")

__all__ = [
    "AdapterSpec",
    "EvalResults",
    "Group",
    "ImageRef",
    "MetricSpec",
    "ScheduleSpec",
    "SourceRequest",
    "SourceSpec",
    "TTMConfig",
    "__version__",
    "chance",
    "hookimpl",
    "matching",
    "metrics",
    "schedules",
    "simple_evaluate",
    "stats",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ttmbench.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ttmbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
