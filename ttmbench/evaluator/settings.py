"""What a configuration means: its tasks, the settings of each, samples, cache, and what adapters are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.file_io import Unreadable, read_json
from ttmbench.config import DEFAULT_LEARNING_RATE, RunConfig, TTMConfig, with_rate_note
from ttmbench.data.memory import Task
from ttmbench.data.paths import cache_folder, data_folder
from ttmbench.data.task_file import TaskFile, TaskSpec, all_tasks, select_tasks, take_in
from ttmbench.errors import UsageError
from ttmbench.evaluator.resume import RunKey
from ttmbench.model import DualEncoder, Model, PairScorer
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.plugins.trackers import make_trackers
from ttmbench.results.document import check_names, parse_assertion
from ttmbench.results.numbers import CHOICE, RAW, SLASH
from ttmbench.types import Record

if TYPE_CHECKING:
    from ttmbench.evaluator.cache import ScoreCache


@dataclass(frozen=True)
class Chosen:
    """What the names of a configuration stand for, looked up before anything heavy is imported."""

    registry: Registry  # where they were looked up
    tasks: Mapping[str, TaskFile]  # name -> task, in the order asked for
    settings: Mapping[str, TTMConfig]  # name of a task -> TTM's settings for it
    also: Mapping[str, TaskFile]  # other tasks on which each adapted model is measured
    in_memory: Sequence[Task] = ()  # the tasks that are not files
    plugins: Sequence[tuple[str, Any]] = ()  # those that were given as objects
    is_registered: bool = True  # whether the model is one that has a name here; else it was given as an object

    def key(self, config: RunConfig, adapter: Model | None = None) -> RunKey:
        """What makes the run the same as another; ``adapter`` counts where it was given as an object."""
        unregistered, others = None if self.is_registered else adapter, dict(self.also)
        if config.methods:
            from ttmbench.evaluator.methods import reference_tasks  # its code needs torch

            others |= reference_tasks(self.registry, config)
        settings = self.settings if self.registry.adapts(config) else {}
        return RunKey.of(self.registry, config, self.tasks, settings, others, unregistered)


def resolve(
    config: RunConfig,
    *,
    plugins: Sequence[tuple[str, Any]] = (),
    in_memory: Sequence[Task] = (),
    is_registered: bool = True,
) -> Chosen:
    """Looks up the model, the tasks and their settings without loading anything; UsageError for a wrong one."""
    for assertion in config.assertions:
        parse_assertion(assertion)
    if config.data_dir is not None:
        data_folder(config.data_dir, is_read=True)
    registry = build_registry(
        config.include_path, [*plugins, *(make_trackers(config) if config.track or config.track_args else ())]
    )
    if is_registered:
        registry.adapters[config.model]
    given = take_in(registry, in_memory)
    tasks = tasks_named(registry, config, config.tasks, given)
    settings = {name: task_settings(registry, config, task.spec) for name, task in tasks.items()}
    if not registry.adapts(config) and (config.ttm_args or config.ttm_preset != "auto"):
        option = "--ttm_args" if config.ttm_args else "--ttm_preset"
        raise UsageError(f"{option} is for test-time training, so it needs --ttm, or a variant of it in --methods")
    if config.methods:
        from ttmbench.evaluator.methods import check_methods  # their code needs torch, which other runs wait for later

        check_methods(registry, config, tasks)
    if config.assertions:
        check_names(config.assertions, metrics_by_task(tasks), filters_of(config))
    also = tasks_named(registry, config, config.also, given)
    if len(also) == 1 and set(also) == set(tasks):
        raise UsageError(f"--also names no task but {next(iter(also))}, which is adapted to; name another")
    return Chosen(registry, tasks, settings, also, in_memory, plugins, is_registered)


def tasks_named(
    registry: Registry,
    config: RunConfig,
    words: Sequence[str],
    in_memory: Mapping[str, TaskFile] = {},
) -> dict[str, TaskFile]:
    """The tasks that names, tags, globs and files stand for, each once, with the run's changes to their sources."""
    tasks: dict[str, TaskFile] = {}
    for word in words:
        for name, task in ({word: in_memory[word]} if word in in_memory else select_tasks(registry, [word])).items():
            tasks.setdefault(name, task.with_source(config.task_args))
    return tasks


def metrics_by_task(tasks: Mapping[str, TaskFile]) -> dict[str, list[str]]:
    """Task, and each mean over values of its tags -> metrics that there will be numbers of."""
    metrics: dict[str, list[str]] = {}
    for name, task in tasks.items():
        known = list(task.spec.metrics)
        metrics |= {name: known, **{f"{name}{SLASH}{mean}": known for mean in task.spec.means}}
    return metrics


def filters_of(config: RunConfig, model: Model | None = None) -> list[str]:
    """The filters that a run's numbers can have; of a model that is loaded, those that it can give."""
    if not (model is None or isinstance(model, DualEncoder | PairScorer)):
        return [CHOICE]
    return [RAW, *config.methods, *([CHOICE] if model is None else [])]


def cache_of(config: RunConfig) -> ScoreCache | None:
    """The cache of a run's raw scores; where bits count, what they depend on is part of its keys."""
    from ttmbench.evaluator.cache import ScoreCache
    from ttmbench.evaluator.determinism import conditions

    folder, exact = cache_folder(config.use_cache), conditions(config.batch_size) if config.deterministic else None
    return None if folder is None else ScoreCache(folder, exact)


def plan(config: RunConfig) -> Record:
    """What `run` would do, checked as far as names and settings go: for ``--dry_run``."""
    chosen = resolve(config)
    if config.baseline is not None:
        from ttmbench.evaluator.eval_results import Baseline

        Baseline.read(Path(config.baseline), chosen.tasks)
    steps: Record = {"model": config.model, "tasks": {}}
    for name, task in chosen.tasks.items():
        spec = task.spec
        steps["tasks"][name] = {"source": spec.source, "group": spec.group.model_dump(), "metrics": spec.metrics}
        if config.methods:
            from ttmbench.evaluator.methods import planned_settings

            specs = map(chosen.registry.methods.__getitem__, config.methods)
            planned = {spec.name: planned_settings(config, spec, chosen.settings[name]) for spec in specs}
            steps["tasks"][name]["methods"] = planned
    if config.methods:
        steps["seeds"] = config.run_seeds
    if chosen.also:
        steps["also"] = list(chosen.also)
    return steps


def datasets_of(registry: Registry, chosen: Mapping[str, TaskFile]) -> dict[str, list[str]]:
    """Every registered subset of the datasets that chosen tasks are subsets of."""
    names = {task.spec.aggregate for task in chosen.values() if task.spec.aggregate}
    if not names:
        return {}
    datasets: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for name, task in all_tasks(registry).items():
        if task.spec.aggregate in datasets:
            datasets[task.spec.aggregate].append(name)
    return datasets


def task_settings(registry: Registry, config: RunConfig, spec: TaskSpec) -> TTMConfig:
    """Package defaults, the model's, the task's, the paper's preset if asked for, and what the user says."""
    if config.rerank and spec.kind != "retrieval":
        raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: --rerank is for retrieval; omit it")
    settings, adapts = TTMConfig(), registry.adapts(config)
    name = config.model
    if name in registry.adapters:
        name = registry.adapters[name].name  # an alias has the presets of its model
        settings = settings.with_changes(dict(registry.adapters[name].ttm_defaults), f"defaults of model {name}")
    settings = settings.with_changes(spec.ttm.get("defaults", {}), f"task {spec.task}: ttm.defaults")
    if adapts and config.ttm_preset == "paper":
        preset = spec.ttm.get(name)
        if preset is None:
            known = ", ".join(model for model in spec.ttm if model != "defaults") or "none"
            raise UsageError(
                f"task '{spec.task}' has no paper preset for model '{name}' (it has: {known}); use --ttm_preset auto"
            )
        settings = settings.with_changes(with_rate_note(preset), f"task {spec.task}: ttm.{name}")
    settings = settings.with_changes(dict(config.ttm_args), "--ttm_args")
    registry.schedules[settings.schedule]
    if adapts and spec.kind == "groups":
        settings.by_share(spec.is_global)
        if settings.other_parts:
            from ttmbench.methods.parts import check_parts  # imports torch, which the defaults need later

            check_parts(registry, settings, spec.shape, spec.is_global)
        if settings.ties == "include" and not spec.is_global:
            raise UsageError(
                f"task '{spec.task}' is matched inside groups, where a tied matching is never a pseudo-label; "
                "ties=include is for tasks that are matched globally (--ttm_args)"
            )
    return settings


def usual_rate(registry: Registry, config: RunConfig, spec: TaskSpec) -> float:
    """The learning rate of TTM where the user gives none: the preset's, the task's, the model's or the package's."""
    others = {name: value for name, value in config.ttm_args.items() if name != "lr"}
    lr = task_settings(registry, config.model_copy(update={"ttm_args": others}), spec).lr
    return DEFAULT_LEARNING_RATE if lr is None else lr


def read_samples(path: str) -> set[str]:
    """The group ids of a ``--samples`` file; UsageError if it holds no list of them."""
    try:
        content = read_json(Path(path))
    except Unreadable as error:
        raise UsageError(f"--samples {path}: {error}") from None
    if not isinstance(content, list) or not content:
        raise UsageError(f"--samples {path}: must hold a JSON list of group ids")
    wrong = [entry for entry in content if isinstance(entry, bool) or not isinstance(entry, str | int)]
    if wrong:
        raise UsageError(f"--samples {path}: group ids must be strings or integers, got {wrong[0]!r:.80}")
    return {str(entry) for entry in content}
