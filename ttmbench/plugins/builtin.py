"""The built-in plugin: registers the package's models, tasks, metrics and methods through the public hooks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

from ttmbench.hookspecs import hookimpl
from ttmbench.metrics import METRICS
from ttmbench.plugins.methods import METHODS
from ttmbench.plugins.parts import PARTS
from ttmbench.results.ranks import RANK_METRICS
from ttmbench.schedules import SCHEDULES
from ttmbench.types import AdapterSpec, MethodPart, MethodSpec, MetricSpec, ScheduleSpec, SourceSpec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SOURCES = (  # kind, module, summary
    ("rendered", "rendered", "scenes drawn from a seed; no download"),
    ("folder", "files", "a JSONL, JSON, CSV or TSV file of groups and an image folder"),
    ("annotations", "files", "a file and images in the data folder"),
    ("huggingface", "huggingface", "a dataset of the Hugging Face hub"),
    ("hub_files", "files", "loose files of a Hub repository"),
    ("webdataset", "webdataset", "tar shards of images with texts, from the Hub"),
    ("first_of", "combined", "the first available of several sources"),
    ("random_foils", "combined", "pairs of another source with randomly drawn distractors"),
    ("class_folders", "files", "a folder of images for each class, in the data folder"),
    ("whatsup", "whatsup", "WhatsUp's photographs, alone or in pairs"),
)


@hookimpl
def ttmbench_register_adapters() -> Iterable[AdapterSpec]:
    """The names in `ttmbench.model_adapters.catalog`."""
    from ttmbench.model_adapters import catalog

    return catalog.adapters()


@hookimpl
def ttmbench_register_task_dirs() -> Iterable[Traversable]:
    """The tasks folder."""
    return [files("ttmbench.tasks")]


@hookimpl
def ttmbench_register_sources() -> Iterable[SourceSpec]:
    """The readers of `ttmbench.data.sources`, by import path, because that package is a higher layer."""
    package = "ttmbench.data.sources"
    return [
        SourceSpec(kind, f"{package}.{module}:read_{kind}", summary, needs=f"{package}.{module}:locate_{kind}")
        for kind, module, summary in _SOURCES
    ]


@hookimpl
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """`METRICS` of `ttmbench.metrics`, and those of ranks."""
    return (*METRICS, *RANK_METRICS)


@hookimpl
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """`SCHEDULES` of `ttmbench.schedules`."""
    return SCHEDULES


@hookimpl
def ttmbench_register_methods() -> Iterable[MethodSpec | MethodPart]:
    """`METHODS` of `ttmbench.plugins.methods`, with targets in `ttmbench.methods`, and the parts of TTM."""
    return (*METHODS, *PARTS)
