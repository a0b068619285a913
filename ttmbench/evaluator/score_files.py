"""From files of stored scores, ranks or answers to results: the numbers of a paper checked without its model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ttmbench.data.catalog import find_task, is_named, select_tasks
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.settings import datasets_of
from ttmbench.evaluator.stored_ranks import stored_ranks
from ttmbench.evaluator.stored_scores import stored_answers, stored_scores
from ttmbench.evaluator.task_result import Resampling, TaskResult
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.scoring.forced_choice.stored_answers import is_answers
from ttmbench.stats import IntervalMethod
from ttmbench.types import Record


def score_files(
    paths: Sequence[Path],
    task: str | TaskFile | None,
    *,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
    model_name: str | None = None,
    choice: bool = False,
) -> EvalResults:
    """Computes every metric that stored scores, ranks or answers define; arguments and errors as for `ttmbench.score`.

    Several ``paths`` hold ranks, one file for each side, or ColorSwap's two files of answers. Parts of a task that tags
    name become further tasks. ``task`` may also be the tag of several tasks, of which the file has all rows.
    """
    started, clock, registry = datetime.now().astimezone(), time.perf_counter(), build_registry(include_path)
    files = _tasks(registry, task)
    specs: list[TaskSpec | None] = [file.spec for file in files]
    specs = specs or [None]
    spec = specs[0]
    if spec is not None and limit is not None and spec.group.n_groups is not None and limit >= spec.group.n_groups:
        limit = None  # the whole task
    names, tasks = [path.name for path in paths], list[TaskResult]()
    config: Record = {"scores": "+".join(names), "task": task}
    if spec is not None and spec.kind != "groups":
        tasks += [stored_ranks(paths, spec, registry, limit, logit_scale)]
    elif all(is_answers(path) for path in paths):
        if spec is None:
            raise UsageError(f"{paths[0]}: answers do not say the task that they are of; name it with --task")
        config = {"answers": names, "task": task}
        tasks += [stored_answers(paths, spec, registry, limit)]
    else:
        absent = [path for path in paths if not path.is_file()]
        if len(paths) > 1 and not absent:
            raise UsageError("scores are read from one file; two may hold ColorSwap's answers, or ranks with --task")
        if spec is None and limit is not None:
            raise UsageError("--limit says that scores are of a task's first groups; name the task with --task")
        for spec in specs:
            tasks += stored_scores((absent or paths)[0], spec, registry, limit, logit_scale, choice)
    config["task"] = task if isinstance(task, str) else tasks[0].spec.task
    config |= {} if "answers" in config else {"logit_scale": logit_scale}
    config |= {"limit": limit, "seed": seed, "bootstrap_iters": bootstrap_iters, "interval": interval}
    name = model_name or "+".join(path.stem for path in paths)
    datasets = datasets_of(registry, {file.spec.task: file for file in files})
    return evaluated(name, config, command, started, clock, tasks, (bootstrap_iters, seed, interval), datasets)


def _tasks(registry: Registry, task: str | TaskFile | None) -> list[TaskFile]:
    """The tasks that a word names: one, those of a tag, or none."""
    if task is None or isinstance(task, TaskFile):
        return [] if task is None else [task]
    if is_named(registry, task):
        return [find_task(registry, task)]
    files = list(select_tasks(registry, [task]).values())
    specs = [file.spec for file in files]
    if len(specs) > 1 and any(not spec.group.constant_tags or spec.kind != "groups" for spec in specs):
        raise UsageError(
            f"--task {task} names {len(specs)} tasks, and their task files do not say which rows of a file are whose; "
            f"name one of {', '.join(spec.task for spec in specs)}"
        )
    return files


def evaluated(
    name: str,
    config: Mapping[str, object],
    command: Sequence[str],
    started: datetime,
    clock: float,
    tasks: Sequence[TaskResult],
    resampling: Resampling,
    datasets: Mapping[str, Sequence[str]] | None = None,
) -> EvalResults:
    """Computes the numbers of stored tasks; ``clock`` is the start by ``time.perf_counter``."""
    record = RunRecord(name, config, command, started, datasets=datasets, clock=clock)
    for task in tasks:
        result = task.summarised(resampling)
        before, clock = clock, time.perf_counter()
        record.add(replace(result, seconds={"score": clock - before}))
    return record.evaluated(record.document("done"))
