"""A model in its training loop: data are read, and inputs prepared, once for all evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import torch

from ttmbench._util.console import each_note_once
from ttmbench.config import RunOptions, make_run_config
from ttmbench.data.loader import load_task_data
from ttmbench.data.memory import Task
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import as_adapter, checked
from ttmbench.evaluator.determinism import arithmetic_of
from ttmbench.evaluator.evaluate import resolve
from ttmbench.evaluator.public_api import named_tasks
from ttmbench.evaluator.score_task import Run, plan_task, score
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

    The groups of all tasks are read when it is made. Prepared images and tokens stay in memory for the model of the
    last call, so that from its second call on an evaluation takes little more than the model's forward pass. Of models
    of transformers and open_clip a prepared image of 224x224 pixels takes 150 kB, 100,000 of them 15 GB, and with a
    transform of one's own four times as much; ``limit`` bounds that.

    A call computes in evaluation mode, without gradients and without the score cache. Afterwards each module is in the
    mode in which it came; device, gradients and random numbers are untouched.

    Args:
        tasks: names, tags, globs, files, and tasks in memory; all with groups.
        preprocess: for a model that is not an adapter: the ``processor`` of a model of transformers, or open_clip's
            ``(preprocess, tokenizer)``, where ``preprocess`` is the transform for validation.
        plugins: further ones, each (name, object).
        options: ``limit``, ``samples``, ``task_args``, ``include_path``, ``data_dir``, ``offline``, ``batch_size``,
            ``dtype``, ``interval``, ``bootstrap_iters`` and ``seed`` as for `ttmbench.simple_evaluate`.

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
        self._config = make_run_config({**settings, "model": "model", "tasks": names, "use_cache": "off"})
        self._chosen = resolve(self._config, plugins=plugins, in_memory=in_memory, is_registered=False)
        config, chosen = self._config, self._chosen
        for name, task in chosen.tasks.items():
            if task.spec.kind != "groups":
                raise UsageError(f"task '{name}' is of kind {task.spec.kind} and has no groups; omit it")
        self._loaded = {
            name: load_task_data(chosen.registry, task, config.limit, config.offline, config.data_dir, chosen.samples)
            for name, task in chosen.tasks.items()
        }
        self._preprocess, self.numbers = preprocess, list[Number]()
        # the model of the last call, where it was, and what scores it
        self._of: tuple[object, torch.device | None] = (None, None)
        self._adapter: Model

    def __call__(self, model: object) -> dict[str, float]:
        """Evaluates an adapter, or a model of transformers or open_clip itself (not one that is wrapped for training).

        Returns:
            ``task/metric`` -> fraction, as what logs a training takes it; ``task/mean/metric`` for means over tags.
            Undefined metrics are omitted.

        Raises:
            UsageError: a model that has no scores, or does not go with ``preprocess``.
            DataError: an image cannot be read.
            TtmbenchError: the model gave unusable scores.
        """
        numbers: list[Number] = []
        with each_note_once(), arithmetic_of(self._config), torch.no_grad():
            whole = model if isinstance(model, torch.nn.Module) else self._taken(model).torch_module
            with _as_it_was(whole):
                self._taken(model)
                for layer, kind in self._replaced:
                    layer.__class__ = kind
                if whole is not None:
                    whole.eval()
                for name, (plan, run, inputs) in self._kept.items():
                    result = score(plan, run, inputs).summarised(run.resampling)
                    numbers += result.numbers
                    for mean, of in result.tag_means.items():
                        numbers += from_entries(f"{name}{SLASH}{mean}", of["numbers"], of["ci"])
        self.numbers = numbers
        return {f"{one.task}/{one.metric}": one.value for one in numbers if one.value is not None}

    def _taken(self, model: object) -> Model:
        """The model as an adapter, with inputs of its own unless it is that of the last call."""
        module = model if isinstance(model, torch.nn.Module) else None
        where = None if module is None else next((one.device for one in module.parameters()), None)
        if self._of[0] is model and self._of[1] == where:
            return self._adapter
        layers = [] if module is None else [(layer, type(layer)) for layer in module.modules()]
        given, processor, name = model, self._preprocess, type(model).__name__
        if isinstance(processor, tuple | list):
            given, processor = (model, *processor), None
        placed: dict[str, str | bool] = {"device": "auto", "dtype": self._config.dtype, "compile": False}
        adapter = checked(f"model {name}", as_adapter(given, processor, placed))
        self._replaced = [(layer, type(layer)) for layer, kind in layers if type(layer) is not kind]  # on a CPU
        config, chosen = self._config.model_copy(update={"model": name}), self._chosen
        run, self._kept = Run.of(chosen.registry, config, adapter), {}
        holds = isinstance(adapter, DualEncoder) or (isinstance(adapter, PairScorer) and adapter.prepares)
        for name, task in chosen.tasks.items():
            of_task, loaded = run.on(task.spec), self._loaded[name]
            plan = replace(plan_task(of_task, task), in_memory=holds)
            self._kept[name] = plan, of_task, Inputs(loaded.groups, loaded.source)
        self._adapter, self._of = adapter, (model, where)
        return adapter


@contextmanager
def _as_it_was(model: torch.nn.Module | None) -> Iterator[None]:
    """Afterwards, modules have the modes and classes that they had, and torch draws the numbers that it would have."""
    layers = [] if model is None else [(layer, layer.training, type(layer)) for layer in model.modules()]
    devices = {one.device for one in ([] if model is None else model.parameters()) if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for layer, training, kind in layers:
            layer.training, layer.__class__ = training, kind
