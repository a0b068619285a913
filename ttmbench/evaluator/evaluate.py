"""A run: names become a registry, tasks and settings; then each task is scored, and the document is kept up to date."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ttmbench._util import machine
from ttmbench._util.console import SAID, progress_bar, warn
from ttmbench._util.file_io import Unreadable, digests_of_modules, file_digest, json_digest, modules_of, read_json
from ttmbench._util.third_party import error_line, foreign_errors, phase
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.loader import reach_data
from ttmbench.data.memory import Task
from ttmbench.data.paths import data_folder
from ttmbench.data.task_file import TaskFile, select_tasks, take_in
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.adapters import (
    finetuned,
    finetuning_shown,
    make_adapter,
    model_info,
    needs_data,
    remarks,
    trained_on,
)
from ttmbench.evaluator.eval_results import Baseline, EvalResults, Scored, TaskResult
from ttmbench.evaluator.output import ConfigKey, Output, state_of
from ttmbench.methods.settings import task_settings
from ttmbench.model import ChoiceModel, DualEncoder, Model, PairScorer, overrides
from ttmbench.plugins.registry import Registry, build_registry, unknown
from ttmbench.plugins.trackers import make_trackers
from ttmbench.results.document import check_names
from ttmbench.results.numbers import CHOICE, RAW, SLASH
from ttmbench.results.summary import breakdowns
from ttmbench.types import Record

if TYPE_CHECKING:
    from ttmbench.evaluator.one_task import Methods
    from ttmbench.evaluator.score_task import Run

# What neither changes a number nor asks for another file.
INDIFFERENT = frozenset(
    {
        *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
        *("use_cache", "baseline", "track", "track_args", "model_name", "device"),
        "deterministic",  # which adds what bits depend on, where it is on
    }
)


@dataclass(frozen=True)
class Chosen:
    """What the names of a configuration stand for, looked up before anything heavy is imported."""

    registry: Registry  # where they were looked up
    tasks: Mapping[str, TaskFile]  # name -> task, in the order asked for
    settings: Mapping[str, TTMConfig]  # name of a task -> TTM's settings for it
    also: Mapping[str, TaskFile]  # other tasks on which each adapted model is measured
    samples: set[str] | None = None  # ids of the groups to use; None for all
    baseline: Baseline | None = None  # the run to compare with
    in_memory: Sequence[Task] = ()  # the tasks that are not files
    plugins: Sequence[tuple[str, Any]] = ()  # those that were given as objects
    is_registered: bool = True  # whether the model is one that has a name here; else it was given as an object

    def key(self, config: RunConfig, adapter: Model | None = None) -> ConfigKey:
        """What makes the run the same as another; ``adapter`` counts where it was given as an object.

        Code is that of ttmbench, of such an adapter, and of every package that registered something. Where it cannot be
        read, the key is unique.
        """
        registry, also = self.registry, dict(self.also)
        if any("references" in self.registry.methods[name].needs for name in config.methods):
            from ttmbench.evaluator.one_task import reference_tasks  # its code needs torch

            also |= reference_tasks(registry, config)
        asked = config.model_dump(mode="json", exclude={*INDIFFERENT, "also", "samples"})
        given = [value for value in (config.method_args | config.ttm_args).values() if isinstance(value, str)]
        files = [name for name in given if os.path.isfile(name)]  # noqa: PTH113 - which allows for long texts
        objects = [] if adapter is None or self.is_registered else modules_of(adapter)
        code = digests_of_modules({*registry.modules, *objects})
        settings = self.settings.items() if registry.adapts(config) else ()
        content: Record = {
            "config": {**asked, "tasks": sorted(self.tasks), "seeds": config.run_seeds},
            "samples": None if config.samples is None else file_digest(Path(config.samples)),
            "tasks": {name: task.spec.model_dump(mode="json") for name, task in self.tasks.items()},
            "also": {name: task.spec.model_dump(mode="json") for name, task in also.items()},
            "settings": {name: of.model_dump(mode="json") for name, of in settings},
            "packages": machine.packages(),
            "files": {name: file_digest(Path(name)) for name in files},
            "deterministic": machine.conditions(config.batch_size) if config.deterministic else None,
            "code": code,
            "once": uuid4().hex if None in code.values() else None,
        }
        return ConfigKey(content, json_digest(content))


def resolve(
    config: RunConfig,
    *,
    plugins: Sequence[tuple[str, Any]] = (),
    in_memory: Sequence[Task] = (),
    is_registered: bool = True,
) -> Chosen:
    """Looks up the model, the tasks and their settings without loading anything; UsageError for a wrong one."""
    if config.data_dir is not None:
        data_folder(config.data_dir, is_read=True)
    registry = build_registry(
        config.include_path, [*plugins, *(make_trackers(config) if config.track or config.track_args else ())]
    )
    if is_registered and config.model not in registry.adapters:
        table = registry.adapters
        raise UsageError(unknown("model", config.model, table, table.broken, config.tasks, config.offline))
    given = take_in(registry, in_memory) if in_memory else {}
    tasks = tasks_named(registry, config, config.tasks, given)
    settings = dict.fromkeys(tasks, TTMConfig())
    if config.methods:
        settings = {name: task_settings(registry, config, task.spec) for name, task in tasks.items()}
    for spec in (task.spec for task in tasks.values() if config.rerank):
        if spec.kind != "retrieval":
            raise UsageError(f"task '{spec.task}' is of kind {spec.kind}: --rerank is for retrieval; omit it")
    if not registry.adapts(config) and (config.ttm_args or config.ttm_preset != "auto"):
        option = "--ttm_args" if config.ttm_args else "--ttm_preset"
        raise UsageError(f"{option} is for test-time training, so it needs --ttm, or a variant of it in --methods")
    if config.assertions:
        check_names(config.assertions, metrics_by_task(tasks), [RAW, *config.methods, CHOICE])
    also = tasks_named(registry, config, config.also, given)
    if len(also) == 1 and set(also) == set(tasks):
        raise UsageError(f"--also names no task but {next(iter(also))}, which is adapted to; name another")
    baseline = None if config.baseline is None else Baseline.read(Path(config.baseline), tasks)
    samples = read_samples(config.samples) if config.samples else None
    if config.methods:  # last, since their settings are those of code that needs torch
        from ttmbench.evaluator.one_task import check_methods

        check_methods(registry, config, tasks, settings)
    return Chosen(registry, tasks, settings, also, samples, baseline, in_memory, plugins, is_registered)


def evaluate(
    config: RunConfig, chosen: Chosen, *, adapter: Model | None = None, command: Sequence[str] = ()
) -> EvalResults:
    """Runs a configuration with names from `resolve`, of a model made by name or of the ``adapter`` that is given."""
    from ttmbench.evaluator.score_task import Run, data_now  # imports torch

    SAID.clear()
    with config.arithmetic(), ExitStack() as stack:
        key, tasks, registry = chosen.key(config, adapter), chosen.tasks, chosen.registry
        output = stack.enter_context(Output(config, registry, tasks, key, command).recording())
        earlier = {} if output.previous is None else output.previous.task_status
        left = [name for name in tasks if earlier.get(name) != "done"]
        methods = None
        if config.methods:
            from ttmbench.evaluator.one_task import Methods, check_folder, check_methods

            methods = Methods(len(tasks) == len(config.run_seeds) == 1, chosen.also, run_task)
            if config.save_adapted is not None:
                check_folder(config, is_resumed=output.previous is not None)
        asked, document = config, output.path
        if "," in config.device:
            from ttmbench.evaluator.devices import divided

            objects = {"a model": adapter, "a task": chosen.in_memory, "a plugin": chosen.plugins}
            asked, document = stack.enter_context(divided(config, left, objects, key.sha256, output.path))
        if adapter is None and config.on_error == "raise" and needs_data(registry, config.model):
            for name in left:  # before weights are loaded, which may take minutes
                with output.task(name, None, goes_on=False), phase("load"):
                    reach_data(registry, tasks[name], config)
        with phase("model"):
            model = adapter or make_adapter(registry, config.model, config.model_args, config, True)
            output.model, finetuning = model, finetuned(model)
            output.model_info = model_info(model) | ({"finetuned": finetuning_shown(finetuning)} if finetuning else {})
            output.model_info["trained_on"] = trained_on(registry, config.model, config.model_args, model)
        if config.methods:
            check_methods(registry, config, tasks, chosen.settings, model)
        for remark in remarks(model):
            warn(remark)
        run = Run.of(registry, asked, model, adapter is None, key=key.sha256, samples=chosen.samples)
        done = output.resume(lambda name: data_now(run, tasks[name]))
        document = output.path or document  # another one than before, if an earlier run had another model
        for name, task in progress_bar(len(tasks), "tasks", "tasks", tasks.items()):
            if name in done:
                continue
            state = None if document is None else state_of(document) / "tasks" / name
            with output.task(name, state, goes_on=config.on_error != "raise"):
                with foreign_errors(f"task '{name}' with model '{config.model}'"):
                    output.add(run_task(run, task, chosen.settings[name], methods, state))
        if chosen.baseline is not None:
            output.compare_with(chosen.baseline)
    return output.evaluated


def run_task(
    run: Run,
    task: TaskFile,
    settings: TTMConfig | None = None,
    methods: Methods | None = None,
    state: Path | None = None,
) -> TaskResult:
    """Scores a task and applies methods, with TTM's ``settings`` on it; the model is restored afterwards.

    Without ``settings``, where an adapted model is only measured, plugins hear of nothing. The failure of a method
    becomes part of the result; errors before it are those of `ttmbench.evaluator.score_task.score`.
    """
    from ttmbench.evaluator.score_task import ask, blind_note, notify_scored, plan_task, score, undecided

    run = run.on(task.spec)
    model, config, notes = run.model, run.config, list[str]()
    model.notes()  # those of a task that failed are not this one's
    scorer = model if isinstance(model, PairScorer) else None
    if scorer is not None:
        scorer.take_undecided()
    listeners = () if settings is None else run.registry.manager.hook.ttmbench_task_scored.get_hookimpls()
    result: TaskResult
    if task.spec.kind != "groups":
        from ttmbench.evaluator.ranking_task import rank_task

        result = rank_task(run, task)
    else:
        specs, skipped = ([], []) if methods is None else methods.defined_on(run, task.spec)
        plan, clock = plan_task(run, task.spec, specs, settings), time.perf_counter()
        inputs = run.load(task)
        loading = time.perf_counter() - clock
        if isinstance(model, ChoiceModel) and scorer is None and not isinstance(model, DualEncoder):
            result = ask(plan, run, model, inputs)
        else:
            result = score(plan, run, inputs)
            notes = [*inputs.notes, *skipped]
        result = replace(result, seconds={"load": loading, **result.seconds})
    found, said = (None, []) if scorer is None else undecided(scorer, result.data.groups)
    notes = [*result.notes, *said, *model.notes(), *notes]
    result = replace(result, notes=notes, undecided=found)
    if isinstance(result, Scored):
        if listeners:
            notify_scored(run, result, result.columns[0])
        if methods is not None and settings is not None:
            result = methods.applied_to(run, result, specs, settings, state)
        by_tag = breakdowns(result.data.groups, result.scores, result.metrics, result.spec.means)
        result = replace(result, breakdowns=by_tag, stage=None, parts=None)  # prepared inputs are not needed any more
    result = result.summarised((config.bootstrap_iters, config.seed, config.interval))
    if isinstance(result, Scored):
        blind = [blind_note(result)] if scorer is not None and scorer.blind else []
        return replace(result, notes=[*result.notes, *blind])
    if listeners:
        notify_scored(run, result)
    return result


def run_part() -> None:
    """Does the part of a run on one device that ``sys.argv`` describes, and exits with the reason if it cannot."""
    from ttmbench.evaluator.devices import do_part
    from ttmbench.evaluator.one_task import Methods
    from ttmbench.evaluator.score_task import Run

    settings, left, key, document, folder, part, of = json.loads(sys.argv[1])
    config = RunConfig.model_validate(settings)
    try:
        with config.arithmetic():
            chosen = resolve(config)
            model = make_adapter(chosen.registry, config.model, config.model_args, config)
            if overrides(model, "usage"):
                raise UsageError(f"model {config.model} asks a server, whose requests are made side by side already")
            run = Run.of(chosen.registry, config, model, True, key=key, samples=chosen.samples)
            methods = Methods(False, {}, run_task)
            for name in left:
                state = state_of(Path(document)) / "tasks" / name
                with foreign_errors(f"task '{name}' with model '{config.model}'"):
                    scored = Path(folder) / f"{name}.scored"
                    do_part(run, methods, chosen.tasks[name], chosen.settings[name], state, scored, (part, of))
    except Exception as error:
        warn(str(error) if isinstance(error, TtmbenchError) else error_line(error))
        sys.exit(1)


def tasks_named(
    registry: Registry, config: RunConfig, words: Sequence[str], in_memory: Mapping[str, TaskFile] = {}
) -> dict[str, TaskFile]:
    """The tasks that names, tags, globs and files stand for, each once, with the run's changes to their sources."""
    tasks: dict[str, TaskFile] = {}
    for word in words:
        for name, task in ({word: in_memory[word]} if word in in_memory else select_tasks(registry, [word])).items():
            changed = task.with_source(config.task_args) if config.task_args else task
            tasks.setdefault(name, changed.with_metrics(registry, config.metrics) if config.metrics else changed)
    return tasks


def metrics_by_task(tasks: Mapping[str, TaskFile]) -> dict[str, list[str]]:
    """Task, and each mean over values of its tags -> metrics that there will be numbers of."""
    metrics: dict[str, list[str]] = {}
    for name, task in tasks.items():
        known = list(task.spec.metrics)
        metrics |= {name: known, **{f"{name}{SLASH}{mean}": known for mean in task.spec.means}}
    return metrics


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
