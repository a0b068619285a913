"""A run as a Python program asks for it: the command line's options as keywords, a model by name or as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ttmbench._util.option_values import split_names
from ttmbench.config import RunConfig, TTMConfig, make_run_config
from ttmbench.data.memory import Task
from ttmbench.evaluator.adapters import as_adapter, check_scores, name_of_adapter
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.run import run
from ttmbench.results.assertions import check_assertions
from ttmbench.scoring.capabilities import Model


def simple_evaluate(
    model: str | Model | object,
    tasks: str | Task | Sequence[str | Task],
    *,
    processor: object | None = None,
    model_name: str | None = None,
    model_args: Mapping[str, Any] | str = {},
    task_args: Mapping[str, Any] = {},
    include_path: Sequence[str] = (),
    ttm: bool | TTMConfig | Mapping[str, Any] | None = False,
    ttm_args: Mapping[str, Any] = {},
    ttm_preset: Literal["auto", "paper"] = "auto",
    methods: str | Sequence[str] = (),
    method_args: Mapping[str, Any] = {},
    simple_match: bool = False,
    oracle: bool = False,
    ttm_controls: Sequence[Literal["placebo", "shuffle"]] = (),
    ttm_holdout: float | None = None,
    ttm_also: str | Sequence[str] = (),
    audit_labels: bool = False,
    save_adapted: str | None = None,
    rerank: Mapping[str, Any] = {},
    seeds: Sequence[int] | None = None,
    limit: int | float | None = None,
    samples: str | None = None,
    batch_size: int | Literal["auto"] = 64,
    device: str = "auto",
    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32",
    compile: bool = False,
    deterministic: bool = False,
    output_path: str | None = None,
    log_samples: bool = False,
    save_scores: bool = False,
    use_cache: str | None = None,
    offline: bool = False,
    data_dir: str | None = None,
    overwrite: Literal["never", "failed", "missing", "always"] = "failed",
    on_error: Literal["raise", "continue"] = "raise",
    assertions: Sequence[str] = (),
    baseline: str | None = None,
    track: Sequence[Literal["wandb", "trackio", "tensorboard"]] = (),
    track_args: Mapping[str, Any] = {},
    bootstrap_iters: int = 1000,
    interval: Literal["wilson", "percentile", "bca"] = "wilson",
    seed: int = 0,
    trust_remote_code: bool = False,
    command: Sequence[str] = (),
    plugins: Sequence[tuple[str, Any]] = (),
) -> EvalResults:
    """Evaluates a model on tasks; the arguments are the command line's options, explained at `ttmbench.RunConfig`.

    Args:
        model: name of a registered model, or an adapter; a dual encoder of transformers with its ``processor``, or
            open_clip's ``(model, preprocess, tokenizer)``.
        tasks: names, tags, globs or files of tasks, and tasks in memory; a string may list several by commas.
        processor: of a model of transformers that is given as an object: its tokenizer and image processor.
        model_name: the model's name in results. By default an adapter's own attribute ``model_name``; else its class
            with a digest of its fingerprint, so that two checkpoints of one class are two models.
        model_args: arguments of a registered model, also as one string: ``"pretrained=...,weights=safetensors"``.
        task_args: changes to the tasks' sources.
        include_path: folders of further task files.
        ttm: adapt by TTM; a `TTMConfig` or a mapping also says how.
        ttm_args: settings of TTM that win over every other.
        ttm_preset: ``paper`` takes the task's preset for this model, and four seeds.
        methods: further test-time methods, by name.
        method_args: their settings: ``{"tent": {"lr": 1e-3}}`` or ``{"tent.lr": 1e-3}``.
        simple_match: run SimpleMatch's overfitting step.
        oracle: also run TTM with an oracle's selection, which reads labels.
        ttm_controls: also run TTM with other pseudo-labels.
        ttm_holdout: also hold out this fraction of groups from adaptation and score it.
        ttm_also: other tasks to measure each adapted model on: names, tags or globs.
        audit_labels: fail if TTM's selection depends on the order of captions.
        save_adapted: a new folder for the adapted model.
        rerank: in retrieval by a pair scorer: ``model`` ranks all candidates, its best ``k`` are reranked.
        seeds: of TTM and SimpleMatch.
        limit: use the first groups only: a number, or below 1 a fraction of them.
        samples: a JSON file listing the group ids to use.
        batch_size: images, captions or pairs scored at a time.
        device: ``auto`` or what torch calls it; of registered models and of a library's objects, which ``auto`` leaves
            where they are, as are the next two.
        dtype: compute dtype.
        compile: run the model through ``torch.compile``.
        deterministic: the same bits every time on one machine.
        output_path: a folder, or a ``.json`` file.
        log_samples: also write one line per group.
        save_scores: also write the score arrays.
        use_cache: folder of cached scores, or ``off``.
        offline: use local files only.
        data_dir: folder of data files.
        overwrite: what to do with an earlier run of the same command.
        on_error: stop at the first failed task, or continue with the next.
        assertions: conditions on results.
        baseline: a results document to compare with.
        track: trackers that log the run.
        track_args: their settings.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of everything that ``seeds`` does not govern.
        trust_remote_code: run code from a model repository on the Hub.
        command: the command line, for the record.
        plugins: further plugins, as (name, object).

    Returns:
        The results. A failed task is listed under ``errors`` if ``on_error="continue"``.

    Raises:
        UsageError: a wrong name, option or file, or a baseline on other data.
        DataError: data or weights cannot be loaded, with ``on_error="raise"``.
        TtmbenchError: a task failed, with ``on_error="raise"``. Its ``results`` are those of the tasks before.
        AssertionNotMet: an assertion does not hold. Its ``results`` are the run's.
    """
    options = {name: value for name, value in locals().items() if name in RunConfig.model_fields}
    settings: dict[str, str | bool] = {"device": device, "dtype": dtype, "compile": compile}
    given = as_adapter(model, processor, settings)
    adapter = None if isinstance(given, str) else check_scores(f"model {type(model).__name__}", given)
    if adapter is not None:
        options["model"] = type(adapter).__name__
        options["model_name"] = model_name or name_of_adapter(adapter, written=output_path is not None)
    elif model_name is None:
        del options["model_name"]
    if isinstance(ttm, TTMConfig):
        options["ttm_args"] = {**ttm.model_dump(exclude_unset=True), **ttm_args}
    elif isinstance(ttm, Mapping):
        options["ttm_args"] = {**ttm, **ttm_args}
    options["ttm"] = ttm not in (False, None)
    asked = [tasks] if isinstance(tasks, str | Task) else list(tasks)
    named = [task.name if isinstance(task, Task) else task for task in asked]
    options["ttm_also"] = split_names(ttm_also) if isinstance(ttm_also, str) else list(ttm_also)
    options["methods"] = split_names(methods) if isinstance(methods, str) else list(methods)
    options["tasks"] = split_names(tasks) if isinstance(tasks, str) else named
    in_memory = list({id(task): task for task in asked if isinstance(task, Task)}.values())
    config = make_run_config(options)
    results = run(config, adapter=adapter, command=command, plugins=plugins, in_memory=in_memory)
    try:
        results.typed.check_baseline()
        check_assertions(config.assertions, results.typed)
    except BaseException as error:
        error.results = results  # type: ignore[attr-defined]
        raise
    return results
