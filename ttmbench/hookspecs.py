"""The hooks of a plugin; built-in models, tasks and methods use the same hooks (described in docs/hooks.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pluggy

from ttmbench._annotations import Traversable
from ttmbench.results.document import IterationRecord
from ttmbench.types import (
    AdapterSpec,
    MethodPart,
    MethodSpec,
    MetricSpec,
    ScheduleSpec,
    SourceSpec,
    Track,
)

PROJECT = "ttmbench"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def ttmbench_register_adapters() -> Iterable[AdapterSpec]:
    """Returns model adapters: `AdapterSpec`s."""
    return ()


@hookspec
def ttmbench_register_task_dirs() -> Iterable[Traversable]:
    """Returns folders of task files (YAML)."""
    return ()


@hookspec
def ttmbench_register_sources() -> Iterable[SourceSpec]:
    """Returns readers of raw data: `SourceSpec`s; ``kind`` is the key that task files use."""
    return ()


@hookspec
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """Returns metrics: `MetricSpec`s, which task files list by name."""
    return ()


@hookspec
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """Returns threshold schedules of TTM: `ScheduleSpec`s."""
    return ()


@hookspec
def ttmbench_register_methods() -> Iterable[MethodSpec | MethodPart]:
    """Returns test-time methods (`MethodSpec`) and parts of TTM (`MethodPart`)."""
    return ()


@hookspec
def ttmbench_run_started(config: Mapping[str, Any]) -> None:
    """Called when a run begins; ``config`` is the run's configuration as in the results file."""


@hookspec
def ttmbench_task_scored(
    task: str, method: str, results: Mapping[str, float | None], tracks: Mapping[str, Track]
) -> None:
    """Called when a task has metrics for a method (``none``, ``ttm``, ``tent``), each with its track."""


@hookspec
def ttmbench_iteration_finished(task: str, method: str, record: IterationRecord) -> None:
    """Called after every iteration of TTM, of a variant or of a control on a task."""


@hookspec
def ttmbench_run_finished(result: Mapping[str, Any], run_dir: Path | None) -> None:
    """Called when a run ends, also after errors, with the results document and its folder (None if not written)."""
