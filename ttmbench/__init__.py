"""ttmbench: evaluates vision-language models on compositional image-text matching, with Test-Time Matching (TTM).

The public API is the names below and the modules ``types``, ``model``, ``errors``, ``config``, ``hookspecs``,
``metrics``, ``matching``, ``chance``, ``schedules``, ``stats`` and ``testing``; other modules may change at any time.
Each name is imported when it is first used, so that importing the package loads no large library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ttmbench._version import __version__ as __version__

if TYPE_CHECKING:
    from ttmbench import chance as chance
    from ttmbench import config as config
    from ttmbench import errors as errors
    from ttmbench import hookspecs as hookspecs
    from ttmbench import matching as matching
    from ttmbench import metrics as metrics
    from ttmbench import model as model
    from ttmbench import schedules as schedules
    from ttmbench import stats as stats
    from ttmbench import testing as testing
    from ttmbench import types as types
    from ttmbench.config import RunConfig as RunConfig
    from ttmbench.config import TTMConfig as TTMConfig
    from ttmbench.data.availability import DataLocation as DataLocation
    from ttmbench.data.availability import DataNeed as DataNeed
    from ttmbench.data.memory import Task as Task
    from ttmbench.errors import AssertionNotMet as AssertionNotMet
    from ttmbench.errors import DataError as DataError
    from ttmbench.errors import DivergedError as DivergedError
    from ttmbench.errors import NotRestoredError as NotRestoredError
    from ttmbench.errors import OutOfReachError as OutOfReachError
    from ttmbench.errors import TtmbenchError as TtmbenchError
    from ttmbench.errors import UsageError as UsageError
    from ttmbench.evaluator.eval_results import EvalResults as EvalResults
    from ttmbench.evaluator.public_api import compare as compare
    from ttmbench.evaluator.public_api import list_models as list_models
    from ttmbench.evaluator.public_api import list_tasks as list_tasks
    from ttmbench.evaluator.public_api import read_results as read_results
    from ttmbench.evaluator.public_api import score as score
    from ttmbench.evaluator.public_api import simple_evaluate as simple_evaluate
    from ttmbench.evaluator.training_loop import Evaluator as Evaluator
    from ttmbench.hookspecs import hookimpl as hookimpl
    from ttmbench.methods.features import FeatureTask as FeatureTask
    from ttmbench.methods.features import ScoreTask as ScoreTask
    from ttmbench.methods.model_task import ModelTask as ModelTask
    from ttmbench.methods.model_task import PseudoLabels as PseudoLabels
    from ttmbench.methods.model_task import Round as Round
    from ttmbench.methods.model_task import Selection as Selection
    from ttmbench.methods.task import MethodStep as MethodStep
    from ttmbench.methods.task import TrainingTask as TrainingTask
    from ttmbench.methods.training import LabelledBatch as LabelledBatch
    from ttmbench.model import ChoiceModel as ChoiceModel
    from ttmbench.model import ChoiceQuestion as ChoiceQuestion
    from ttmbench.model import ChoiceStyle as ChoiceStyle
    from ttmbench.model import DualEncoder as DualEncoder
    from ttmbench.model import Model as Model
    from ttmbench.model import PairScorer as PairScorer
    from ttmbench.model import StoredFeatures as StoredFeatures
    from ttmbench.model import UndecidedPairs as UndecidedPairs
    from ttmbench.results.document import IterationRecord as IterationRecord
    from ttmbench.types import AdapterSpec as AdapterSpec
    from ttmbench.types import Group as Group
    from ttmbench.types import GroupShape as GroupShape
    from ttmbench.types import ImageRef as ImageRef
    from ttmbench.types import Loaded as Loaded
    from ttmbench.types import MethodPart as MethodPart
    from ttmbench.types import MethodSpec as MethodSpec
    from ttmbench.types import MetricSpec as MetricSpec
    from ttmbench.types import ModelCard as ModelCard
    from ttmbench.types import ModelFiles as ModelFiles
    from ttmbench.types import ScheduleSpec as ScheduleSpec
    from ttmbench.types import Scores as Scores
    from ttmbench.types import SourceRequest as SourceRequest
    from ttmbench.types import SourceSpec as SourceSpec

_HOME = {
    "config": ("RunConfig", "TTMConfig"),
    "data.availability": ("DataLocation", "DataNeed"),
    "data.memory": ("Task",),
    "errors": (
        *("AssertionNotMet", "DataError", "DivergedError", "NotRestoredError", "OutOfReachError", "TtmbenchError"),
        "UsageError",
    ),
    "evaluator.public_api": ("compare", "list_models", "list_tasks", "read_results", "score", "simple_evaluate"),
    "evaluator.eval_results": ("EvalResults",),
    "evaluator.training_loop": ("Evaluator",),
    "hookspecs": ("hookimpl",),
    "methods.features": ("FeatureTask", "ScoreTask"),
    "methods.task": ("MethodStep", "TrainingTask"),
    "model": (
        *("ChoiceModel", "ChoiceQuestion", "ChoiceStyle", "DualEncoder", "Model", "PairScorer", "StoredFeatures"),
        "UndecidedPairs",
    ),
    "methods.training": ("LabelledBatch",),
    "methods.model_task": ("ModelTask", "PseudoLabels", "Round", "Selection"),
    "results.document": ("IterationRecord",),
    "types": (
        *("AdapterSpec", "Group", "GroupShape", "ImageRef", "Loaded", "MethodPart", "MethodSpec"),
        *("MetricSpec", "ModelCard", "ModelFiles", "ScheduleSpec", "Scores", "SourceRequest", "SourceSpec"),
    ),
}
_MODULE_OF = {name: f"ttmbench.{module}" for module, names in _HOME.items() for name in names}
_MODULES = (
    *("chance", "config", "errors", "hookspecs", "matching", "metrics", "model", "schedules", "stats", "testing"),
    "types",
)

__all__ = sorted([*_MODULES, *_MODULE_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ttmbench.{name}")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'ttmbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
