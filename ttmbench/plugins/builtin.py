"""The built-in plugin: what ships with the package, through the hooks that third parties use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

from ttmbench import metrics, schedules
from ttmbench.hookspecs import hookimpl
from ttmbench.types import AdapterSpec, MetricSpec, ScheduleSpec, SourceSpec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


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
    """The readers in `ttmbench.data`."""
    return [
        SourceSpec(kind, f"ttmbench.data.{target}", summary, needs=f"ttmbench.data.locations:of_{kind}")
        for kind, target, summary in (
            ("rendered", "sources.folder:read_rendered", "scenes drawn from a seed; no download"),
            ("folder", "sources.folder:read_folder", "a JSONL, JSON or CSV file of groups and an image folder"),
            ("annotations", "sources.annotations:read_annotations", "a file and images in the data folder"),
            ("huggingface", "sources.huggingface:read_huggingface", "a dataset of the Hugging Face hub"),
            ("hub_files", "sources.huggingface:read_hub_files", "loose files of a repository of the hub"),
            ("first_of", "sources.first_of:read_first_of", "the first of several sources that is at hand"),
            ("whatsup", "sources.whatsup:read_whatsup", "WhatsUp's photographs, alone or in pairs"),
        )
    ]


@hookimpl
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """`METRICS` of `ttmbench.metrics`."""
    return metrics.METRICS


@hookimpl
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """`SCHEDULES` of `ttmbench.schedules`."""
    return schedules.SCHEDULES
