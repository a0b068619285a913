"""The built-in plugin: what ships with the package, through the hooks that third parties use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from ttmbench import chance, metrics, schedules
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
    """The kinds in `ttmbench.data.sources`, which stands above the plugins: by name, as plugins name their readers."""
    return import_module("ttmbench.data.sources").SOURCES


@hookimpl
def ttmbench_register_metrics() -> Iterable[MetricSpec]:
    """The metrics in `ttmbench.metrics` with their chance levels."""
    return [
        MetricSpec(
            "text_score",
            metrics.text_score,
            "every image prefers its own caption",
            metrics.text_score_ties,
            chance.text_score,
        ),
        MetricSpec(
            "image_score",
            metrics.image_score,
            "every caption prefers its own image",
            metrics.image_score_ties,
            chance.image_score,
            defined=lambda images, captions: images > 1,
        ),
        MetricSpec(
            "group_score",
            metrics.group_score,
            "text and image score both hold (rectangular groups: text score)",
            metrics.group_score_ties,
            chance.group_score,
        ),
        MetricSpec(
            "group_match",
            metrics.group_match,
            "the true matching has the largest total score (SimpleMatch)",
            metrics.group_match_ties,
            chance.group_match,
            track="matching",
        ),
        MetricSpec(
            "individual_match",
            metrics.individual_match,
            "share of images whose own caption is their best",
            metrics.text_score_ties,
            chance.individual_match,
        ),
        MetricSpec(
            "global_assignment_accuracy",
            metrics.global_assignment_accuracy,
            "share of images that one assignment over all pairs gives their own caption",
            metrics.global_assignment_ties,
            chance.global_assignment_accuracy,
            scope="global",
            track="matching",
        ),
    ]


@hookimpl
def ttmbench_register_schedules() -> Iterable[ScheduleSpec]:
    """The schedules in `ttmbench.schedules`."""
    return [
        ScheduleSpec("linear", schedules.linear, "equal steps from tau_start down to tau_end"),
        ScheduleSpec("cosine", schedules.cosine, "half a cosine from tau_start down to tau_end"),
        ScheduleSpec("constant", schedules.constant, "tau_start throughout (ablation)"),
        ScheduleSpec("ascending", schedules.ascending, "linear, from tau_end up to tau_start (ablation)"),
    ]
