"""The context that the tasks of a run share, and the plan of each task: the model is asked here what it can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.task_result import Resampling
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.protocols import Debiasable, TrainableInParts
from ttmbench.results.labels import SIMPLE_MATCH, TTM
from ttmbench.scoring.batches import BatchSizer, device_of
from ttmbench.scoring.capabilities import Capabilities, Model
from ttmbench.scoring.debiasing import prior_for
from ttmbench.types import MetricSpec

Way = Literal["choices", "stored_features", "prepared", "pairs"]
"""How a model meets a task: it answers in words; its features lie in a file; inputs are prepared once, in memory, for a
dual encoder or a model that is adapted; or images are opened as their pairs come."""


@dataclass(frozen=True)
class Run:
    """What the tasks of a run share."""

    registry: Registry  # metrics, sources and hooks
    config: RunConfig  # what was asked for
    capabilities: Capabilities  # the model and what it can do
    cache: ScoreCache | None = None  # of raw scores; None for a run without one
    key: str = ""  # digest of the command (`ttmbench.evaluator.run_key.RunKey`); checkpoints are for it alone
    samples: set[str] | None = None  # ids of the groups to use; None for all
    _sizer: BatchSizer | None = None
    helpers: dict[str, Any] = field(default_factory=dict)  # what methods need beside the model, by name, made once

    def __post_init__(self) -> None:
        """Copies of a run (`dataclasses.replace`) learn the same batch size."""
        if self._sizer is None:
            sizer = BatchSizer.for_run(self.config.batch_size, self.adapter, self.config.deterministic)
            object.__setattr__(self, "_sizer", sizer)

    @property
    def adapter(self) -> Model:
        """The model."""
        return self.capabilities.adapter

    @property
    def left_models(self) -> list[str]:
        """What leaves a trained model, by the filter of its numbers: TTM, or SimpleMatch's step alone, and methods."""
        config = self.config
        first = [TTM] if config.ttm else [SIMPLE_MATCH] if config.simple_match else []
        return [*first, *(name for name in config.methods if self.registry.method(name).leaves_model)]

    @property
    def loaded(self) -> Model:
        """The model as it was loaded, where a task gives it videos."""
        return getattr(self.adapter, "on_images", self.adapter)

    def on(self, spec: TaskSpec) -> Run:
        """The run with the model as it takes a task's images or videos; UsageError if it takes no videos."""
        can = self.capabilities if self.loaded is self.adapter else Capabilities(self.loaded)
        if spec.video is not None:
            from ttmbench.scoring.videos import on_videos

            can = on_videos(can, spec.task, spec.video.frames, spec.video.pooling)
        return self if can is self.capabilities else replace(self, capabilities=can)

    @property
    def resampling(self) -> Resampling:
        """How intervals are made."""
        return self.config.bootstrap_iters, self.config.seed, self.config.interval

    @property
    def sizer(self) -> BatchSizer:
        """How much the model takes at a time, learnt from one task to the next."""
        assert self._sizer is not None, "made with the run"
        return self._sizer


@dataclass(frozen=True)
class TaskPlan:
    """One task of a run, as this model can do it."""

    task: TaskFile  # the task file
    metrics: list[MetricSpec]  # to compute
    all_pairs: bool  # whether every image meets every caption
    way: Way  # how the model meets the task
    adapts: bool  # whether the run adapts the model to the task
    needs_inputs: bool  # whether prepared inputs are wanted even if the scores are there: for the test-time stage
    prior: Debiasable | None  # where log P(t) comes from; None if it is not taken off
    enlarge: float | None  # also keep the images so many times as large, for augmentation

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return self.task.spec

    @property
    def frames(self) -> int:
        """How many frames of each video a model sees; 1 for images."""
        return 1 if self.spec.video is None else self.spec.video.frames


def plan_task(
    run: Run,
    task: TaskFile,
    settings: TTMConfig | None = None,
    *,
    extra_metrics: Sequence[str] = (),
    with_inputs: bool = False,
    with_parts: bool = False,
) -> TaskPlan:
    """Decides what is done with a task; UsageError for an unknown metric, or training that it has no pairs for.

    ``settings`` is None if nothing is trained; ``with_inputs`` prepares inputs even if nothing is adapted;
    ``with_parts`` keeps log P(t|i) and log P(t) apart whatever the model's alpha.
    """
    can, config, spec = run.capabilities, run.config, task.spec
    names = dict.fromkeys([*spec.metrics, *extra_metrics])
    metrics = [metric_for(run.registry.metric(name), spec.shape) for name in names]
    adapts = run.registry.adapts(config) and can.loss is not None and spec.shape.true_captions == 1
    if adapts and settings is not None and spec.is_global and can.loss == "matching":
        raise UsageError(
            f"model {config.model} learns which pairs inside a group match, and task '{spec.task}' is matched "
            "globally, without groups; use a task inside groups, or omit the test-time stage"
        )
    if adapts and settings is not None:
        check_training(can, config, settings)
        if spec.video is not None and not isinstance(can.adapter, TrainableInParts):
            raise UsageError(
                f"task '{spec.task}' has videos, whose pooled features model {config.model} cannot be trained on (it "
                "has no train_images and train_captions); omit the test-time stage"
            )
    way = way_of(can, adapts)
    if way == "choices" and spec.shape.true_captions > 1:
        raise UsageError(
            f"model {config.model} chooses one caption, and in task '{spec.task}' {spec.shape.true_captions} captions "
            "are true for an image; omit the task"
        )
    with_inputs = with_inputs or any(run.registry.method(name).takes_features for name in config.methods)
    return TaskPlan(
        task=task,
        metrics=metrics,
        all_pairs=spec.is_global or any(metric.scope == "global" for metric in metrics),
        way=way,
        adapts=adapts,
        needs_inputs=adapts or with_inputs,
        prior=prior_for(can.debiasable, spec.noise_images, with_parts) if way == "pairs" else None,
        enlarge=settings.augment_scale if adapts and settings is not None and settings.augment else None,
    )


def check_training(model: Capabilities, config: RunConfig, settings: TTMConfig) -> None:
    """UsageError if TTM cannot train what the settings name, or not by their loss."""
    if model.trained is not None:
        trained = list(model.trained.parameters())
        if settings.train != "all":
            from ttmbench.ttm.parameters import is_added, low_rank_removed, parameters_of  # used for this alone

            with low_rank_removed(model.trained):
                trained = list(parameters_of(model.trained, settings.train).values())
            if config.save_adapted is not None and is_added(settings.train):
                raise UsageError(f"--save_adapted cannot save what train={settings.train} adds; train a set of weights")
        _check_memory(trained, device_of(model.trained))
    if settings.loss == "own":
        return
    why = None
    if not isinstance(model.dual_encoder, TrainableInParts):
        why = f"model {config.model} does not give (it has no train_images and train_captions)"
    elif config.dtype == "fp16":
        why = "underflow in fp16; use --dtype bf16 or fp32"
    if why is not None:
        raise UsageError(f"loss={settings.loss} (--ttm_args) needs features with gradients, which {why}")


def _check_memory(trained: Sequence[torch.nn.Parameter], device: torch.device | None) -> None:
    """UsageError if a GPU has no room for the gradient and AdamW's two means of each parameter."""
    if device is None or device.type != "cuda":
        return
    need, free = 3 * sum(parameter.nbytes for parameter in trained), torch.cuda.mem_get_info(device)[0]
    if need > free:
        raise UsageError(
            f"training needs {need / 1e9:.0f} GB of memory for gradients and the optimizer, and {device} has "
            f"{free / 1e9:.0f} GB free; train fewer parameters: --ttm_args train=norm or train=lora:16, or for chat "
            "models --model_args lora=16,weights_dtype=bf16"
        )


def way_of(model: Capabilities, adapts: bool = False) -> Way:
    """How a model meets a task; ``adapts`` says whether it is trained on the way."""
    if model.scores == "choices":
        return "choices"
    if model.scores == "embeddings" and model.stored_features is not None:
        return "stored_features"
    return "prepared" if model.scores == "embeddings" or adapts else "pairs"
