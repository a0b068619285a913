"""Every shipped task belongs to one benchmark, whose selection finds its tasks."""

from __future__ import annotations

import fnmatch

from ttmbench.data.benchmarks import benchmark_of, benchmarks
from ttmbench.data.task_file import all_tasks, select_tasks
from ttmbench.plugins.registry import build_registry


def test_every_task_belongs_to_one_benchmark():
    registry = build_registry()
    tasks = all_tasks(registry)
    for task in tasks:
        assert [one.name for one in benchmarks() if one.has(task)] == [benchmark_of(task).name], task
    for one in benchmarks():
        for task in select_tasks(registry, one.run.split(",")):
            assert one.has(task), (one.name, task)
        assert all(fnmatch.filter(tasks, pattern) for pattern in one.tasks), one.name
    assert benchmark_of("my_photos") is None
