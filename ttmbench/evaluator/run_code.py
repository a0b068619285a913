"""The packages whose code decides a run's numbers: ttmbench, and those of the plugins and objects that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ttmbench._util.digests import OWN, Digests, digests_of_modules, digests_of_object
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.plugins.registry import Registry
from ttmbench.scoring.capabilities import Model


def code_of(
    registry: Registry,
    config: RunConfig,
    tasks: Sequence[TaskFile],
    settings: Mapping[str, TTMConfig],
    adapter: Model | None = None,
) -> Digests:
    """The source of ttmbench and of every package that gives the run a model, a source, a metric or a schedule.

    Args:
        registry: where names are looked up.
        config: the run.
        tasks: its tasks, and the others that adapted models are measured on.
        settings: of the test-time stage, by task.
        adapter: a model that was given as an object.

    Returns:
        Package -> digest; None for code that cannot be read: a run of such code is never resumed.
    """
    names: list[tuple[Mapping[str, Any], Any]]
    names = [(registry.adapters, one) for one in (config.model, config.rerank.get("model"))]
    for task in tasks:
        names += [(registry.sources, kind) for kind in _kinds(task.spec.source)]
        names += [(registry.metrics, metric) for metric in task.spec.metrics]
    if config.adapts:
        names += [(registry.schedules, one.schedule) for one in settings.values()]
    modules = {module for table, name in names for module in registry.modules_of(table, name)}
    objects = {} if adapter is None else digests_of_object(adapter)
    return dict(sorted({**digests_of_modules({OWN, *modules}), **objects}.items()))


def _kinds(source: Any) -> Iterator[str]:
    """The kinds of readers that a source mapping names; sources that combine others list these in it."""
    if isinstance(source, Mapping):
        if isinstance(source.get("kind"), str):
            yield source["kind"]
        for value in source.values():
            yield from _kinds(value)
    elif isinstance(source, list):
        for value in source:
            yield from _kinds(value)
