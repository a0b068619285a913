"""ttmbench: how well does a vision-language model compose, and what does it gain from test-time matching?

Importing this package loads nothing heavy; names below are imported when first used. They are what programs and
plugins import, with the public modules (``types``, ``protocols``, ``errors``, ``config``, ``hookspecs``, ``metrics``,
``matching``, ``chance``, ``schedules``, ``stats``, ``testing``); other modules may change at any time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ttmbench._version import __version__

if TYPE_CHECKING:
    from ttmbench import (
        chance,
        config,
        errors,
        hookspecs,
        matching,
        metrics,
        protocols,
        schedules,
        stats,
        testing,
        types,
    )
    from ttmbench.config import RunConfig, TTMConfig
    from ttmbench.data.availability import DataLocation
    from ttmbench.data.availability import DataNeed as DataNeed
    from ttmbench.data.memory import Task
    from ttmbench.errors import AssertionNotMet, DataError, DivergedError, OutOfReachError, TtmbenchError, UsageError
    from ttmbench.evaluator.eval_results import EvalResults
    from ttmbench.evaluator.public_api import compare, list_models, list_tasks, read_results, score
    from ttmbench.evaluator.simple_evaluate import simple_evaluate
    from ttmbench.hookspecs import hookimpl
    from ttmbench.protocols import (
        Adapter,
        Augmentable,
        Blind,
        Bounding,
        ChoiceQuestion,
        ChoiceScorer,
        ChoiceStyle,
        Debiasable,
        DualEncoder,
        ManyAtOnce,
        MayRefuse,
        NoisePrior,
        PairScorer,
        PairTrainable,
        PreparedPairScorer,
        Reporting,
        Savable,
        StoredFeatures,
        Trainable,
        TrainableInParts,
        Truncating,
    )
    from ttmbench.types import (
        AdapterSpec,
        Group,
        GroupShape,
        ImageRef,
        IterationRecord,
        Loaded,
        MetricSpec,
        ModelCard,
        ModelFiles,
        ScheduleSpec,
        Scores,
        SourceRequest,
        SourceSpec,
    )

_HOME = {
    "config": ("RunConfig", "TTMConfig"),
    "data.availability": ("DataLocation", "DataNeed"),
    "data.memory": ("Task",),
    "errors": ("AssertionNotMet", "DataError", "DivergedError", "OutOfReachError", "TtmbenchError", "UsageError"),
    "evaluator.public_api": ("compare", "list_models", "list_tasks", "read_results", "score"),
    "evaluator.eval_results": ("EvalResults",),
    "evaluator.simple_evaluate": ("simple_evaluate",),
    "hookspecs": ("hookimpl",),
    "protocols": (
        *("Adapter", "Augmentable", "Blind", "Bounding", "ChoiceQuestion", "ChoiceScorer", "ChoiceStyle", "Debiasable"),
        *("DualEncoder", "ManyAtOnce", "MayRefuse", "PairScorer", "PairTrainable", "PreparedPairScorer", "Reporting"),
        *("NoisePrior", "PreparesInThreads", "Savable", "StoredFeatures", "Trainable", "TrainableInParts"),
        "Truncating",
    ),
    "types": (
        *("AdapterSpec", "Group", "GroupShape", "ImageRef", "IterationRecord", "MetricSpec", "ModelCard", "ModelFiles"),
        *("Loaded", "ScheduleSpec", "Scores", "SourceRequest", "SourceSpec"),
    ),
}
_MODULE_OF = {name: f"ttmbench.{module}" for module, names in _HOME.items() for name in names}
_MODULES = (
    *("chance", "config", "errors", "hookspecs", "matching", "metrics", "protocols", "schedules", "stats", "testing"),
    "types",
)

__all__ = [
    "Adapter",
    "AdapterSpec",
    "AssertionNotMet",
    "Augmentable",
    "Blind",
    "Bounding",
    "ChoiceQuestion",
    "ChoiceScorer",
    "ChoiceStyle",
    "DataError",
    "DataLocation",
    "DataNeed",
    "Debiasable",
    "DivergedError",
    "DualEncoder",
    "EvalResults",
    "Group",
    "GroupShape",
    "ImageRef",
    "IterationRecord",
    "Loaded",
    "ManyAtOnce",
    "MayRefuse",
    "MetricSpec",
    "ModelCard",
    "ModelFiles",
    "NoisePrior",
    "OutOfReachError",
    "PairScorer",
    "PairTrainable",
    "PreparedPairScorer",
    "PreparesInThreads",
    "Reporting",
    "RunConfig",
    "Savable",
    "ScheduleSpec",
    "Scores",
    "SourceRequest",
    "SourceSpec",
    "StoredFeatures",
    "TTMConfig",
    "Task",
    "Trainable",
    "TrainableInParts",
    "Truncating",
    "TtmbenchError",
    "UsageError",
    "__version__",
    "chance",
    "compare",
    "config",
    "errors",
    "hookimpl",
    "hookspecs",
    "list_models",
    "list_tasks",
    "matching",
    "metrics",
    "protocols",
    "read_results",
    "schedules",
    "score",
    "simple_evaluate",
    "stats",
    "testing",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ttmbench.{name}")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'ttmbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
