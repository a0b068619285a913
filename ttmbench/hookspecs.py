"""Everything a plugin can do. Built-ins enter by the same hooks; each has a test and a line in docs/hooks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pluggy

from ttmbench._annotations import Traversable
from ttmbench.types import (
    AdapterSpec,
    IterationRecord,
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
    """Model adapters, by name."""
    return ()


@hookspec
def ttmbench_register_task_dirs() -> Iterable[Traversable]:
    """Folders of task YAMLs."""
    return ()


@hookspec
def ttmbench_register_sources() -> Iterable[SourceSpec]:
    """Readers of raw data into groups, by the ``kind`` that task files name."""
    return ()


@hookspec
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """Metrics, by the name that task files list."""
    return ()


@hookspec
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """Threshold schedules of TTM."""
    return ()


@hookspec
def ttmbench_register_methods() -> Iterable[MethodSpec | MethodPart]:
    """Test-time methods, by name, and parts of TTM, by kind and name."""
    return ()


@hookspec
def ttmbench_run_started(config: Mapping[str, Any]) -> None:
    """A run begins; ``config`` is its configuration as the results file has it."""


@hookspec
def ttmbench_task_scored(
    task: str, filter: str, results: Mapping[str, float | None], tracks: Mapping[str, Track]
) -> None:
    """A task has metrics for a filter (``none``, ``simple_match``, ``ttm``); ``tracks`` says what each belongs to."""


@hookspec
def ttmbench_iteration_finished(task: str, record: IterationRecord) -> None:
    """TTM finished an iteration on a task."""


@hookspec
def ttmbench_run_finished(result: Mapping[str, Any], run_dir: Path | None) -> None:
    """A run ended, well or not; ``result`` is the results document, ``run_dir`` where it was written, if it was."""
