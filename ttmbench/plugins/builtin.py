"""The built-in plugin: what ships with the package, through the hooks that third parties use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from ttmbench import metrics, schedules
from ttmbench.hookspecs import hookimpl
from ttmbench.results.ranks import RANK_METRICS
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
    """The kinds in `ttmbench.data.sources`, which stands above the plugins: by name, as plugins name their readers."""
    return import_module("ttmbench.data.sources").SOURCES


@hookimpl
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """`METRICS` of `ttmbench.metrics`, and those of ranks."""
    return (*metrics.METRICS, *RANK_METRICS)


@hookimpl
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """`SCHEDULES` of `ttmbench.schedules`."""
    return schedules.SCHEDULES
