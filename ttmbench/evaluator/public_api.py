"""What programs use: runs, results read back and compared, metrics of scores, names of tasks and models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np

from ttmbench._annotations import ArrayLike
from ttmbench._util.console import warn
from ttmbench.config import RunConfig, RunOptions, is_address, make_run_config, refuse_address, split_names
from ttmbench.data.memory import Task
from ttmbench.data.task_file import all_tasks
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import as_adapter, checked, name_of_adapter
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.evaluate import evaluate, resolve
from ttmbench.evaluator.score_files import score_stored
from ttmbench.model import Model
from ttmbench.plugins.registry import build_registry
from ttmbench.results.comparison import adjust_for_several, compare_runs
from ttmbench.results.models import setting_in_sweep
from ttmbench.results.reader import ResultsFile, read_document, read_files
from ttmbench.stats import IntervalMethod
from ttmbench.types import Record


def simple_evaluate(
    model: str | Model | object,
    tasks: str | Task | Sequence[str | Task],
    *,
    processor: object | None = None,
    command: Sequence[str] = (),
    plugins: Sequence[tuple[str, Any]] = (),
    **options: Unpack[RunOptions],
) -> EvalResults:
    """Evaluates a model on tasks; `ttmbench.RunConfig` describes the options.

    Args:
        model: the name of a registered model, an adapter, a dual encoder of transformers with its ``processor``, or
            open_clip's ``(model, preprocess, tokenizer)``; with ``device="auto"`` objects of these libraries stay where
            they are. Its name in results (``model_name``) is by default an adapter's attribute of this name, else its
            class with a digest of its fingerprint.
        tasks: names, tags, globs, files, and tasks in memory.
        processor: tokenizer and image processor of a model of transformers.
        command: the command line, for the record.
        plugins: further ones, each (name, object).
        options: those of the command line. ``ttm`` may also be a `TTMConfig` or a mapping of its settings, and
            ``method_args`` nested: ``{"tent": {"lr": 1e-3}}``.

    Returns:
        The results. A failed task is listed under ``errors`` if ``on_error="continue"``.

    Raises:
        UsageError: a wrong name, option or file, or a baseline on other data.
        DataError: data or weights cannot be loaded, with ``on_error="raise"``.
        TtmbenchError: a task failed, with ``on_error="raise"``. Its ``results`` are those of the tasks before.
        AssertionNotMet: an assertion does not hold. Its ``results`` are the run's.
    """
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    placed = {name: settings.get(name, RunConfig.model_fields[name].default) for name in ("device", "dtype", "compile")}
    given = as_adapter(model, processor, placed)
    adapter = None if isinstance(given, str) else checked(f"model {type(model).__name__}", given)
    if adapter is not None:
        written = settings.get("output_path") is not None
        settings["model_name"] = settings.get("model_name") or name_of_adapter(adapter, written=written)
    settings["tasks"], in_memory = named_tasks(tasks)
    settings["model"] = given if adapter is None else type(adapter).__name__
    config = make_run_config(settings)
    chosen = resolve(config, plugins=plugins, in_memory=in_memory, is_registered=adapter is None)
    results = evaluate(config, chosen, adapter=adapter, command=command)
    try:
        results.typed.check(config.assertions)
    except BaseException as error:
        error.results = results  # type: ignore[attr-defined]
        raise
    return results


def named_tasks(tasks: str | Task | Sequence[str | Task]) -> tuple[list[str], list[Task]]:
    """The names of tasks, and those of them that are in memory, each once."""
    asked = split_names(tasks) if isinstance(tasks, str) else [tasks] if isinstance(tasks, Task) else list(tasks)
    in_memory = {id(task): task for task in asked if isinstance(task, Task)}
    return [task.name if isinstance(task, Task) else task for task in asked], list(in_memory.values())


PathLike: TypeAlias = str | os.PathLike[str]


def read_results(path: PathLike) -> list[EvalResults]:
    """Reads results documents; the values of single groups are read when first needed.

    Args:
        path: a results document, or a folder that is searched recursively; also an address (``s3://...``).

    Returns:
        The results in the order of their paths. In a folder, other files are skipped; results documents that cannot be
        read are named on stderr.

    Raises:
        DataError: the file is not a results document.
        UsageError: the folder holds none, or the path does not exist.
    """
    folder = _place(path)
    if not folder.is_dir():
        if not folder.exists():
            raise UsageError(f"{folder} does not exist; give a results document, or a folder of them")
        return [EvalResults(read_document(folder), path=folder, setting=setting_in_sweep(folder))]
    files, skipped = read_files([folder])
    for file, why in skipped.items():
        if "has no schema_version" not in why:
            warn(f"{file} is skipped: it {why}")
    if not files:
        raise UsageError(f"{folder} holds no results document")
    return [EvalResults(file.document, path=file.path, setting=file.called.setting) for file in files]


def compare(
    baseline: EvalResults | PathLike,
    other: EvalResults | PathLike | None = None,
    *,
    methods: tuple[str, str] | None = None,
    metrics: Sequence[str] | None = None,
    allow_different: bool = False,
    bootstrap_iters: int = 1000,
    seed: int = 0,
) -> list[Record]:
    """Compares two runs group by group, or the adapted model of a run with the unadapted one.

    Args:
        baseline: results, or the path of a results document whose run logged samples.
        other: the run to compare with it; by default the methods of the baseline are compared with each other.
        methods: compare this method of the baseline with that of the other, such as ``("none", "ttm")``.
        metrics: names; by default all that both runs have.
        allow_different: also compare tasks of another version or other data, by the group ids they share.
        bootstrap_iters: resamples of intervals and permutation tests.
        seed: of the resampling.

    Returns:
        One row per task, metric and method: ``baseline``, ``other`` and ``difference`` (fractions), ``ci``, ``p``,
        ``p_holm`` (adjusted over the tasks of these rows), ``holm_tests`` (how many), ``test``, ``groups``,
        ``clusters`` (of groups that share images; None if unknown, and ``clusters_unknown`` says why), and the ids of
        groups that were ``won`` and ``lost``.

    Raises:
        DataError: a file is missing or damaged, or a run has no values of groups.
        UsageError: the runs share no task, metric or method, or a task differs and that is not allowed.
    """
    before = _run(baseline)
    after = before if other is None else _run(other)
    rows = compare_runs(
        before,
        after,
        methods=methods,
        metrics=metrics or (),
        allow_different=allow_different,
        iterations=bootstrap_iters,
        seed=seed,
    )
    return list(adjust_for_several(rows))


def score(
    scores: ArrayLike | PathLike,
    task: str | Task | None = None,
    *,
    all_pairs: ArrayLike | None = None,
    model_name: str | None = None,
    include_path: Sequence[str] = (),
    logit_scale: float = 1.0,
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    choice: bool = False,
    metrics: Sequence[str] = (),
) -> EvalResults:
    """Computes every metric of given scores, without model or data.

    Args:
        scores: array [groups, images, captions] of logits, in which caption i is true for image i; or a file of scores
            or per-sample results as ``ttmbench score`` reads them; for a ranking task ranks, embeddings or a matrix.
        task: the task that the scores are of. Without it the results name the task ``scores``, with the shape of the
            array; embeddings need it.
        all_pairs: array [groups * images, groups * captions], for metrics across groups; with an array only.
        model_name: the model's name in results; by default ``scores``, or the name of the file.
        include_path: folders of further task files.
        logit_scale: factor on products of embeddings in a file.
        limit: number of the task's first groups that the scores are of.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        choice: whether the per-sample results of a file are of forced choices, and not of scores.
        metrics: further ones that are computed on request alone, such as ``text_ece``.

    Returns:
        The results; numbers have the method ``none``, ``choice``, or those of the file.

    Raises:
        UsageError: no such task, or a limit without one.
        DataError: the scores do not fit the task; the message names the group.

    >>> score([[[2.0, 1.0], [0.0, 3.0]]]).results["scores"]["group_match,none"]
    1.0
    """
    is_file = isinstance(scores, str | os.PathLike)
    return score_stored(
        [_place(scores, "scores")] if is_file else (np.asarray(scores), all_pairs),
        task,
        include_path=include_path,
        logit_scale=logit_scale,
        limit=limit,
        bootstrap_iters=bootstrap_iters,
        interval=interval,
        seed=seed,
        model_name=model_name,
        choice=choice,
        metrics=metrics,
    )


def list_tasks(*patterns: str, include_path: Sequence[str] = ()) -> list[str]:
    """Names of tasks, sorted; ``ttmbench.list_tasks("compositional", "shapes_*")`` takes tags, names and globs.

    Args:
        patterns: a task is listed if one of them matches; by default all.
        include_path: folders of further task files.
    """
    registry = build_registry(include_path)
    if not patterns:
        return sorted(registry.task_files)
    tasks = all_tasks(registry).items()
    return [
        name
        for name, task in tasks
        if any(pattern in task.spec.tag or fnmatchcase(name, pattern) for pattern in patterns)
    ]


def list_models(*patterns: str) -> list[str]:
    """Names of registered models, sorted, without their aliases; ``ttmbench.list_models("siglip*")`` takes globs.

    Args:
        patterns: a model is listed if its name matches one of them; by default all.
    """
    names = {spec.name for spec in build_registry().adapters.values()}
    return sorted(name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns))


def _run(source: EvalResults | PathLike) -> ResultsFile:
    """Results as they are compared; DataError if there are no values of groups."""
    if isinstance(source, EvalResults):
        results = source
    else:
        results, *others = read_results(source)
        if others:
            raise UsageError(f"{source} holds {1 + len(others)} results documents; name one of them")
    path = results.path or Path(results.model_name)
    if not results.task_groups:
        raise DataError(f"{path}: has no values of groups to compare (a samples file beside it); rerun it")
    return ResultsFile(path, results.typed, known_groups=results.task_groups)


def _place(given: object, what: str = "the path") -> Path:
    """A local path; results at an address are fetched with the files beside them."""
    if not is_address(given):
        return Path(str(given))
    from ttmbench._util.remote import fetched

    refuse_address(what, given, may_be_address=True)
    return fetched(given, what)
