"""A model in its training loop: data are read, and inputs prepared, once for all evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import torch

from ttmbench.config import RunOptions, make_run_config
from ttmbench.data.loader import load_task_data
from ttmbench.data.memory import Task
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import as_adapter, checked
from ttmbench.evaluator.evaluate import resolve
from ttmbench.evaluator.public_api import named_tasks
from ttmbench.evaluator.score_task import Run, TaskPlan, plan_task, score
from ttmbench.model import DualEncoder, Model, PairScorer
from ttmbench.results.numbers import SLASH, Number, from_entries
from ttmbench.scoring.inputs import Inputs

OPTIONS = {
    *("limit", "samples", "task_args", "include_path", "data_dir", "offline"),
    *("batch_size", "dtype", "interval", "bootstrap_iters", "seed"),
}
"""Options of a run that apply to scoring a model as it is."""


class Evaluator:
    """Evaluates a model while it is trained: each call gives the numbers of `ttmbench.simple_evaluate`, to the digit.

    Groups are read once. Prepared images and tokens stay in memory for the model of the last call, so that from its
    second call on an evaluation takes little more than the forward pass. Of models of transformers and open_clip an
    image of 224x224 pixels takes 150 kB, 100,000 of them 15 GB; with a transform of one's own it may take four times as
    much. ``limit`` bounds that.

    A call computes in evaluation mode, without gradients and without the score cache. Afterwards each module is in the
    mode in which it came; device, gradients and torch's random numbers are untouched.

    Args:
        tasks: names, tags, globs, files, and tasks in memory; all with groups.
        preprocess: for a model that is not an adapter: the ``processor`` of a model of transformers, or open_clip's
            ``(preprocess, tokenizer)``, where ``preprocess`` is the transform for validation.
        plugins: further ones, each (name, object).
        options: of `ttmbench.simple_evaluate`, those that apply to a model as it is: ``limit``, ``dtype``, ...

    Attributes:
        numbers: those of the last call, with intervals and chance levels.

    Raises:
        UsageError: a wrong name or option, or a task without groups.
        DataError: data cannot be loaded.
    """

    def __init__(
        self,
        tasks: str | Task | Sequence[str | Task],
        *,
        preprocess: object = None,
        plugins: Sequence[tuple[str, Any]] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        if unfit := sorted(options.keys() - OPTIONS):
            raise UsageError(f"Evaluator has no option '{unfit[0]}'; it has {', '.join(sorted(OPTIONS))}")
        names, in_memory = named_tasks(tasks)
        settings = {name: value for name, value in options.items() if value is not None}
        config = make_run_config({**settings, "model": "model", "tasks": names, "use_cache": "off"})
        chosen = resolve(config, plugins=plugins, in_memory=in_memory, is_registered=False)
        for name, task in chosen.tasks.items():
            if task.spec.kind != "groups":
                raise UsageError(f"task '{name}' is of kind {task.spec.kind} and has no groups; omit it")
        how = config.limit, config.offline, config.data_dir, chosen.samples
        self._loaded = {name: load_task_data(chosen.registry, task, *how) for name, task in chosen.tasks.items()}
        self._config, self._chosen, self._preprocess = config, chosen, preprocess
        self._model: object = None  # that of the last call
        self._adapter: Model
        self.numbers: list[Number] = []

    def __call__(self, model: object) -> dict[str, float]:
        """Evaluates an adapter, or a model of transformers or open_clip itself (not one that is wrapped for training).

        Returns:
            ``task/metric`` -> fraction, for what logs the training; ``task/mean/metric`` for means over tags. Undefined
            metrics are omitted.

        Raises:
            UsageError: a model that has no scores, or does not go with ``preprocess``.
            DataError: an image cannot be read.
            TtmbenchError: the model gave unusable scores.
        """
        config, numbers = self._config, list[Number]()
        with config.arithmetic(), torch.no_grad():
            module = model if isinstance(model, torch.nn.Module) else self._taken(model).torch_module
            with _as_it_was(module):
                self._taken(model)
                if module is not None:
                    module.eval()
                for plan, run, inputs in self._tasks:
                    result = score(plan, run, inputs).summarised((config.bootstrap_iters, config.seed, config.interval))
                    numbers += result.numbers
                    for mean, of in result.tag_means.items():
                        numbers += from_entries(
                            f"{plan.spec.task}{SLASH}{mean}", {"results": of["numbers"], "ci": of["ci"]}
                        )
        self.numbers = numbers
        return {f"{one.task}/{one.metric}": one.value for one in numbers if one.value is not None}

    def _taken(self, model: object) -> Model:
        """The model as it is scored, with inputs of its own unless it is that of the last call."""
        if model is not None and self._model is model:
            return self._adapter
        self._model = None  # until all of it is there
        given, processor, name = model, self._preprocess, type(model).__name__
        if isinstance(processor, tuple | list):
            given, processor = (model, *processor), None
        placed: dict[str, str | bool] = {"device": "auto", "dtype": self._config.dtype, "compile": False}
        adapter = self._adapter = checked(f"model {name}", as_adapter(given, processor, placed))
        whole = Run.of(self._chosen.registry, self._config.model_copy(update={"model": name}), adapter)
        holds = isinstance(adapter, DualEncoder) or (isinstance(adapter, PairScorer) and adapter.prepares)
        self._tasks = list[tuple[TaskPlan, Run, Inputs]]()
        for task in self._chosen.tasks.values():
            run, loaded = whole.on(task.spec), self._loaded[task.spec.task]
            plan = replace(plan_task(run, task.spec), in_memory=holds)
            self._tasks.append((plan, run, Inputs(loaded.groups, loaded.source)))
        self._model = model
        return adapter


@contextmanager
def _as_it_was(model: torch.nn.Module | None) -> Iterator[None]:
    """Afterwards modules have the modes that they had, and torch draws the numbers that it would have drawn."""
    layers = [] if model is None else [(layer, layer.training) for layer in model.modules()]
    devices = {one.device for one in ([] if model is None else model.parameters()) if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for layer, training in layers:
            layer.training = training
