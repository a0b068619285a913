"""One run: a model is evaluated on tasks, and the results document is kept up to date after each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from ttmbench._util.console import each_note_once, progress_bar, warn
from ttmbench._util.third_party_errors import foreign_errors, phase
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError
from ttmbench.evaluator.adapters import check_model, make_adapter, model_settings, remarks, trained_on
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.eval_results import Baseline, EvalResults, RunRecord, sample_lines
from ttmbench.evaluator.resume import DataNow, RunFiles, open_output
from ttmbench.evaluator.score_task import Run, data_now
from ttmbench.evaluator.settings import (
    Chosen,
    cache_of,
    datasets_of,
    filters_of,
    metrics_by_task,
    read_samples,
)
from ttmbench.evaluator.task import Methods, run_task
from ttmbench.evaluator.task_result import Ranked, Scored, TaskResult
from ttmbench.methods.variants import adapted_folders
from ttmbench.model import Model
from ttmbench.results.document import check_names
from ttmbench.results.numbers import TTM
from ttmbench.scoring.batches import BatchSizer


def run(config: RunConfig, chosen: Chosen, *, adapter: Model | None = None, command: Sequence[str] = ()) -> EvalResults:
    """Runs a configuration, whose names `resolve` has looked up; assertions are checked by the caller.

    ``adapter`` is a model that was given as an object.
    """
    with each_note_once(), arithmetic_of(config), ExitStack() as stack:
        baseline = None if config.baseline is None else Baseline.read(Path(config.baseline), chosen.tasks)
        samples = read_samples(config.samples) if config.samples else None
        started, key, cache = datetime.now().astimezone(), chosen.key(config, adapter), cache_of(config)
        output = None if config.output_path is None else stack.enter_context(open_output(config, key, started))
        results = None if output is None else output.files.results
        dumped, datasets = config.model_dump(mode="json"), datasets_of(chosen.registry, chosen.tasks)
        record = RunRecord(config.model_name, dumped, command, started, list(chosen.tasks), datasets, key, output)
        with record.recording(chosen.registry.notify):
            folders = adapted_folders(config, list(chosen.tasks), new=record.is_new)
            if "," in config.device:
                from ttmbench.evaluator.devices import divided

                before = None if output is None else output.previous
                left = [name for name in chosen.tasks if before is None or before.task_status.get(name) != "done"]
                cache, results = stack.enter_context(divided(config, chosen, adapter, key.sha256, left, results))
            model = _load_model(config, chosen, adapter, record)
            if cache is not None and adapter is None:
                cache.as_loaded = model
            sizer = BatchSizer.for_run(config.batch_size, model.device, config.deterministic)
            run = Run(chosen.registry, config, model, sizer, cache, key.sha256, samples)
            done = record.resume(lambda name: _data_now(run, chosen.tasks[name]))
            results = results if output is None else output.files.results  # resume may choose another document
            methods = Methods(run, folders, chosen.also)
            for name, task in progress_bar(len(chosen.tasks), "tasks", "tasks", chosen.tasks.items()):
                if name in done:
                    continue
                state = None if results is None else RunFiles(results, "").state / "tasks" / name
                with record.task(name, state, config.on_error == "raise"):
                    with foreign_errors(f"task '{name}' with model '{config.model}'"), naming_what_cannot():
                        result = run_task(run, task, chosen.settings[name], state, methods)
                        record.add(result)
                    if output is not None:
                        with phase("save"):
                            write_artifacts(output.files, config, result)
            if baseline is not None:
                record.compare_with(baseline)
        return record.evaluated()


def _load_model(config: RunConfig, chosen: Chosen, adapter: Model | None, record: RunRecord) -> Model:
    """The model, which the record describes; made by its name unless it was given as an object."""
    registry = chosen.registry
    with phase("model"):
        model = adapter or make_adapter(registry, config.model, config.model_args, model_settings(config, True))
        record.describe_model(model, trained_on(registry, config.model, config.model_args, model))
        if config.assertions:
            check_names(config.assertions, metrics_by_task(chosen.tasks), filters_of(config, model))
    check_model(config, model, registry.adapts(config))
    for remark in remarks(model):
        warn(remark)
    if config.methods:
        from ttmbench.evaluator.methods import check_methods

        check_methods(registry, config, chosen.tasks, model)
    return model


def _data_now(run: Run, task: TaskFile) -> DataNow | None:
    """A task's data as they are now; None, with a warning, if they are out of reach."""
    try:
        return data_now(run, task)
    except DataError as error:
        warn(f"the numbers of task {task.spec.task} stay, but its data cannot be looked at: {error}")
        return None


def write_artifacts(files: RunFiles, config: RunConfig, result: TaskResult) -> None:
    """Writes the files of a task: samples and scores if the run asks for them, and TTM's iterations."""
    task, data = result.spec.task, result.data
    if config.log_samples:
        files.write_lines("samples", task, sample_lines(result, config.run_seeds))
    if config.save_scores and isinstance(result, Ranked):
        about = {"task": task, "model": config.model_name, "data_sha256": data.fingerprint}
        clusters = data.clusters.groups if data.clusters is not None and data.shares_images else None
        files.write_ranks(task, result.ranks, result.of_query, about, clusters)
    if not isinstance(result, Scored):
        return
    if config.save_scores:
        files.write_scores(task, result.columns, _about_scores(config, result))
    for name, elsewhere in result.elsewhere.items():
        other = elsewhere.result
        if config.log_samples and isinstance(other, Scored):
            files.write_lines("also_samples", task, sample_lines(other, config.run_seeds), name)
        if config.save_scores and isinstance(other, Scored):
            files.write_scores(task, other.columns, {**_about_scores(config, other), "adapted_on": task}, name)
    for column in result.columns:
        if column.name == TTM:
            # Times stay in the results document, so that the same run writes the same lines.
            records = column.record["iterations"]
            lines = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
            files.write_lines("ttm", task, lines)


def _about_scores(config: RunConfig, result: Scored) -> dict[str, str]:
    spec, data, several = result.spec, result.data, result.spec.group.true_captions
    about = {
        "task": spec.task,
        "task_version": str(spec.version),
        "model": config.model_name,
        "seeds": json.dumps(config.run_seeds),
        "group_ids": json.dumps([group.group_id for group in data.groups]),
        **({"true_captions": str(several)} if several > 1 else {}),
        "data_sha256": data.fingerprint,
    }
    if data.clusters is not None and data.shares_images:
        about["clusters"] = json.dumps(data.clusters.groups.tolist())
        about["image_clusters"] = json.dumps(data.clusters.images.reshape(-1).tolist())
    return about
