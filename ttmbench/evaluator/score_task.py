"""From a task to its raw scores: asks what the model can do, reads and prepares data, and scores or asks in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import phase
from ttmbench.config import RunConfig, TTMConfig, groups_of
from ttmbench.data.loader import check_count, load_task_data
from ttmbench.data.paths import cache_folder
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.determinism import conditions
from ttmbench.evaluator.output import DataNow, groups_digest
from ttmbench.evaluator.score_cache import ScoreCache, TaskCache
from ttmbench.evaluator.stored_ranks import stored_pool
from ttmbench.evaluator.task_result import Answered, Data, Scored
from ttmbench.model import ChoiceModel, DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.numbers import RAW
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.choice_arrays import choice_values, unread_notes
from ttmbench.scoring.debiasing import Likelihoods, Prior, likelihoods, prior_for
from ttmbench.scoring.dual_encoder import PreparedTask, caption_pairs, encode, score_features
from ttmbench.scoring.forced_choice import ask_choices, choices_of, image_prompt, text_prompt
from ttmbench.scoring.inputs import DECODED, Inputs, check_captions, images_on_device, prepare, stored, usable_scores
from ttmbench.scoring.pairs import PairTable, pair_table
from ttmbench.types import MetricSpec, Record, Scores

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What the tasks of a run share."""

    registry: Registry  # metrics, sources and hooks
    config: RunConfig  # what was asked for
    model: Model  # as the task takes it
    sizer: BatchSizer  # how much the model takes at a time, learnt from one task to the next
    cache: ScoreCache | None = None  # of raw scores; None for a run without one
    key: str = ""  # digest of the command (`ttmbench.evaluator.output.ConfigKey`); checkpoints are for it alone
    samples: set[str] | None = None  # ids of the groups to use; None for all
    helpers: dict[tuple[str, str], Any] = field(default_factory=dict)  # see `once`
    loaded: Model | None = None  # the model as it takes images, where the task has videos

    @classmethod
    def of(
        cls,
        registry: Registry,
        config: RunConfig,
        model: Model,
        key: str = "",
        samples: set[str] | None = None,
        as_loaded: bool = False,
    ) -> Run:
        """A run with its cache; ``as_loaded``: nothing has touched the model's weights since they were loaded."""
        folder, exact = cache_folder(config.use_cache), conditions(config.batch_size) if config.deterministic else None
        cache = None if folder is None else ScoreCache(folder, exact, model if as_loaded else None)
        sizer = BatchSizer.for_run(config.batch_size, model.device, config.deterministic)
        return cls(registry, config, model, sizer, cache, key, samples)

    def once(self, stage: str, name: str, make: Callable[[], T]) -> T:
        """What a method needs beside the model, made in a stage of the run where it does not have it yet."""
        if (stage, name) not in self.helpers:
            with phase(stage):
                self.helpers[stage, name] = make()
        made: T = self.helpers[stage, name]
        return made

    @property
    def left_models(self) -> list[str]:
        """The methods that leave a trained model."""
        config = self.config
        return [name for name in config.methods if self.registry.methods[name].leaves_model]

    def on(self, spec: TaskSpec) -> Run:
        """The run with the model as it takes a task's images or videos; UsageError if it takes no videos."""
        model = loaded = self.model if self.loaded is None else self.loaded  # a task before may have given it videos
        if spec.video is not None:
            from ttmbench.scoring.videos import on_videos

            model = on_videos(model, spec.task, spec.video.frames, spec.video.pooling)
        return self if model is self.model else replace(self, model=model, loaded=loaded)

    def load(self, task: TaskFile) -> Inputs:
        """The groups that the run uses of a task, or features from a file; errors as of `load_task_data`."""
        config = self.config
        with phase("load"):
            if isinstance(self.model, StoredFeatures) and task.spec.kind == "groups":
                limit = feature_limit(self, task.spec, "groups")
                inputs = stored(self.model, task.spec.shape, limit)
                if limit is None or len(inputs.groups) < limit:
                    check_count(task.spec, len(inputs.groups), "the file of features")
                return inputs
            loaded = load_task_data(self.registry, task, config.limit, config.offline, config.data_dir, self.samples)
            return Inputs(loaded.groups, loaded.source)


@dataclass(frozen=True)
class TaskPlan:
    """One task of a run, as this model can do it."""

    task: TaskFile  # the task file
    metrics: list[MetricSpec]  # to compute
    all_pairs: bool  # whether every image meets every caption
    adapts: bool  # whether the run adapts the model to the task
    in_memory: bool  # whether inputs are prepared once and held, for the test-time stage or to be scored again
    prior: Prior | None  # where log P(t) comes from; None if it is not taken off
    enlarge: float | None  # also keep the images so many times as large, for augmentation

    @property
    def frames(self) -> int:
        """How many frames of each video a model sees; 1 for images."""
        return 1 if self.task.spec.video is None else self.task.spec.video.frames


def plan_task(
    run: Run,
    task: TaskFile,
    settings: TTMConfig | None = None,
    *,
    with_parts: bool = False,
) -> TaskPlan:
    """Decides what is done with a task; UsageError for an unknown metric, or training that it has no pairs for.

    ``settings`` is None if nothing is trained; ``with_parts`` keeps log P(t|i) and log P(t) apart whatever the model's
    alpha.
    """
    model, config, spec = run.model, run.config, task.spec
    metrics = [metric_for(run.registry.metrics[name], spec.shape) for name in dict.fromkeys(spec.metrics)]
    adapts = run.registry.adapts(config) and model.trainable and spec.shape.true_captions == 1
    if adapts and settings is not None and spec.is_global and not isinstance(model, DualEncoder):
        raise UsageError(
            f"model {config.model} learns which pairs inside a group match, and task '{spec.task}' is matched "
            "globally, without groups; use a task inside groups, or omit the test-time stage"
        )
    if adapts and settings is not None:
        check_training(model, config, settings)
        if spec.video is not None and not (isinstance(model, DualEncoder) and model.gives_gradients):
            raise UsageError(
                f"task '{spec.task}' has videos, whose pooled features model {config.model} cannot be trained on (it "
                "has no train_images and train_captions); omit the test-time stage"
            )
    has_scores, is_encoder = isinstance(model, DualEncoder | PairScorer), isinstance(model, DualEncoder)
    if not has_scores and spec.shape.true_captions > 1:
        raise UsageError(
            f"model {config.model} chooses one caption, and in task '{spec.task}' {spec.shape.true_captions} captions "
            "are true for an image; omit the task"
        )
    takes_features = is_encoder and any(run.registry.methods[name].takes_features for name in config.methods)
    prior = None
    if isinstance(model, PairScorer) and not is_encoder and not adapts:
        prior = prior_for(model, spec.noise_images, with_parts)
    return TaskPlan(
        task=task,
        metrics=metrics,
        all_pairs=spec.is_global or any(metric.scope == "global" for metric in metrics),
        adapts=adapts,
        in_memory=has_scores and (adapts or takes_features),
        prior=prior,
        enlarge=settings.augment_scale if adapts and settings is not None and settings.augment else None,
    )


def check_training(model: Model, config: RunConfig, settings: TTMConfig) -> None:
    """UsageError if TTM cannot train what the settings name, or not by their loss."""
    if model.trainable:
        trained = list(model.parameters())
        if settings.train != "all":
            from ttmbench.methods.parameters import is_added, low_rank_removed, parameters_of  # used for this alone

            with low_rank_removed(model):
                trained = list(parameters_of(model, settings.train).values())
            if config.save_adapted is not None and is_added(settings.train):
                raise UsageError(f"--save_adapted cannot save what train={settings.train} adds; train a set of weights")
        device = model.device
        if device.type == "cuda":  # a gradient and AdamW's two means of each parameter
            need, free = 3 * sum(parameter.nbytes for parameter in trained), torch.cuda.mem_get_info(device)[0]
            if need > free:
                raise UsageError(
                    f"training needs {need / 1e9:.0f} GB of memory for gradients and the optimizer, and {device} has "
                    f"{free / 1e9:.0f} GB free; train fewer parameters: --ttm_args train=norm or train=lora:16, or for "
                    "chat models --model_args lora=16,weights_dtype=bf16"
                )
    if settings.loss == "own":
        return
    why = None
    if not (isinstance(model, DualEncoder) and model.gives_gradients):
        why = f"model {config.model} does not give (it has no train_images and train_captions)"
    elif config.dtype == "fp16":
        why = "underflow in fp16; use --dtype bf16 or fp32"
    if why is not None:
        raise UsageError(f"loss={settings.loss} (--ttm_args) needs features with gradients, which {why}")


def score(plan: TaskPlan, run: Run, inputs: Inputs) -> Scored:
    """Scores a task by the model, or takes cached scores; no metrics yet. Inputs that are held are prepared once.

    Raises DataError for images that cannot be read, TtmbenchError for unusable scores, UsageError for a model without
    scores.
    """
    model, spec, seconds, parts, clock = run.model, plan.task.spec, dict[str, float](), None, time.perf_counter()
    if not isinstance(model, DualEncoder | PairScorer):
        raise UsageError(f"model {run.config.model} answers in words and has no scores; only `run` can evaluate it")
    if inputs.prepared is None:
        with phase("load"):
            check_captions(model, inputs)
    cache, expected = _cache(plan, run, inputs)
    if plan.in_memory and inputs.prepared is None:
        with phase("prepare"):  # it recognises the data too, so it comes before the look into the cache
            prepared, _ = prepare(model, inputs, DECODED, plan.enlarge)
            inputs.prepared = images_on_device(model, prepared) if run.config.methods else prepared
        seconds["prepare"], clock = time.perf_counter() - clock, time.perf_counter()
    # Encoding opens every image, so no image is opened before for a cache that has nothing of this model and task.
    is_known = inputs.prepared is not None or not isinstance(model, DualEncoder) or cache.may_have
    found = cache.find(expected) if is_known else None
    if inputs.prepared is None and is_known and cache.on:
        seconds["look_up"], clock = time.perf_counter() - clock, time.perf_counter()
    with phase("score"):
        if found is not None:
            scores = Scores(found["groups"], found.get("all_pairs"))
            parts = Likelihoods(scores, found["prior"]) if "prior" in found else None
        elif isinstance(model, DualEncoder):
            # Inputs that are not held are prepared, encoded in batches, and dropped.
            scores = score_features(model, encode(model, inputs.prepared or inputs, run.sizer), plan.all_pairs)
            if inputs.prepared is None:
                seconds["prepare"], clock = inputs.waited, clock + inputs.waited
            if not is_known:
                cache.find(expected)  # which recognises the data
        else:
            table = _score_pairs(plan, run, model, inputs, cache)
            parts = None if plan.prior is None else likelihoods(plan.prior, inputs.captions, table, plan.all_pairs)
            scores = table.scores(plan.all_pairs) if parts is None else parts.conditional
        if parts is not None and plan.prior is not None:
            scores = parts.debiased(plan.prior.model.alpha)
        seconds["score"] = time.perf_counter() - clock
        raw, notes = usable_scores(model, scores, inputs.groups)
        if isinstance(model, DualEncoder) and any(metric.scope == "captions" for metric in plan.metrics):
            stored = inputs.prepared.captions if isinstance(model, StoredFeatures) and inputs.prepared else None
            raw = replace(raw, caption_pairs=caption_pairs(model, inputs.groups, run.sizer, stored))
    kept, prior = (raw, None) if parts is None else (parts.conditional, parts.prior)
    arrays = {"groups": kept.groups, "all_pairs": kept.all_pairs, "prior": prior}
    stage = None
    if inputs.prepared is not None:
        stage = PreparedTask(model, inputs.prepared, run.sizer, spec.is_global, plan.all_pairs)
    return Scored(
        spec=spec,
        metrics=plan.metrics,
        data=Data.of(inputs),
        columns=[MethodScores(RAW, [raw])],
        stage=stage,
        parts=parts,
        truncated=inputs.truncated,
        notes=notes,
        from_store=cache.keep(arrays, run.config.model_name),
        seconds=seconds,
    )


def _cache(plan: TaskPlan, run: Run, inputs: Inputs) -> tuple[TaskCache, dict[str, tuple[int, ...]]]:
    """The cache of a task's scores, and what it has of them: name -> shape."""
    shape, groups = plan.task.spec.shape, len(inputs.groups)
    expected: dict[str, tuple[int, ...]] = {"groups": (groups, shape.images, shape.captions)}
    if plan.all_pairs:
        expected["all_pairs"] = (groups * shape.images, groups * shape.captions)
    if plan.prior is not None:
        expected["prior"] = (groups, shape.captions)
    settings = {"all_pairs": plan.all_pairs, "debiasing": None if plan.prior is None else plan.prior.declared}
    used = None if isinstance(run.model, StoredFeatures) else run.cache
    return TaskCache(used, run.model, plan.task.spec, inputs, settings), expected


def _score_pairs(plan: TaskPlan, run: Run, model: PairScorer, inputs: Inputs, cache: TaskCache) -> PairTable:
    every = plan.all_pairs or (plan.prior is not None and plan.prior.model.prior == "test_images")
    return pair_table(model, inputs.prepared or inputs, run.sizer, every, cache.blocks)


def ask(plan: TaskPlan, run: Run, model: ChoiceModel, inputs: Inputs) -> Answered:
    """Asks a task's forced choices; errors as for `ttmbench.evaluator.one_task.run_task`."""
    config, spec, style, clock = run.config, plan.task.spec, model.choice_style, time.perf_counter()
    groups = inputs.groups
    check_captions(model, inputs)
    given = ask_choices(model, inputs, run.sizer, config.seed, plan.frames)
    choices, seconds = choices_of(given, len(groups), spec.shape), {"score": time.perf_counter() - clock}
    answers: list[list[Record]] = [[] for _ in groups]
    unread: list[tuple[str, str, str | None]] = []
    for reply in given:
        asked = reply.asked
        # counted from 1: which caption fits image 1, which image fits caption 2
        question = f"{'image' if asked.side == 'text' else 'caption'} {asked.subject + 1}"
        line = {"question": question, "order": list(asked.order), "prompt": asked.prompt, "answer": reply.answer}
        answers[asked.group].append({**line, "chosen": reply.chosen, "right": reply.right})
        if reply.chosen is None:
            unread.append((groups[asked.group].group_id, question, reply.answer))
    notes = unread_notes(unread)
    if config.methods:
        notes.append(
            f"model {config.model} answers in words and has no scores, so it can be neither matched nor adapted"
        )
    if config.save_scores:
        notes.append("forced choices have no scores, so --save_scores wrote none; --log_samples writes the answers")
    prompts = {} if spec.shape.more_images else {"text": text_prompt(["{caption}"] * spec.shape.captions, plan.frames)}
    if spec.shape.images > 1:
        prompts["image"] = image_prompt("{caption}", spec.shape.images, plan.frames)
    return Answered(
        spec=spec,
        metrics=[run.registry.metrics[name] for name in choice_values(choices)],
        data=Data.of(inputs),
        notes=notes,
        seconds=seconds,
        choices=choices,
        record={
            "asked": list(prompts),
            "orders": 1 if style.order == "random" else 2,
            "order": style.order,
            "seed": config.seed,
            "side_by_side": style.side_by_side,
            "prompts": prompts,
            "unread": [dict(zip(("group_id", "question", "answer"), row, strict=True)) for row in unread],
        },
        answers=answers,
    )


def score_share(plan: TaskPlan, run: Run, part: int, of: int) -> None:
    """Scores part ``part`` (from 0) of ``of`` of a task's pairs into the cache."""
    if isinstance(run.model, PairScorer):
        inputs = run.load(plan.task)
        check_captions(run.model, inputs)
        cache, expected = _cache(plan, run, inputs)
        cache.share = slice(part, None, of)
        if cache.find(expected) is None and cache.blocks is not None:
            with phase("score"):
                _score_pairs(plan, run, run.model, inputs, cache)


def feature_limit(run: Run, spec: TaskSpec, unit: str) -> int | None:
    """How many groups or images (``unit``) of precomputed features are used; None for all. UsageError for ids."""
    config = run.config
    if config.samples is not None:
        raise UsageError(f"--samples names {unit} by id, and stored features have none; use --limit")
    limit = groups_of(config.limit, spec.group.n_groups)
    if limit is None and config.limit is not None:
        raise UsageError(
            f"--limit {config.limit}: task '{spec.task}' does not state its number of {unit}, which a fraction needs"
        )
    return limit


def data_now(run: Run, task: TaskFile) -> DataNow | None:
    """Digests of a task's data as they are now, without calling the model; None, with a warning, if out of reach."""
    model, config = run.model, run.config
    try:
        if isinstance(model, StoredFeatures) and task.spec.kind != "groups":
            limit = groups_of(config.limit, task.spec.group.n_groups)
            return DataNow(stored_pool(model, task.spec, limit)[-1])
        inputs = run.load(task)
        return DataNow(inputs.digest(), None if isinstance(model, StoredFeatures) else groups_digest(inputs.groups))
    except DataError as error:
        warn(f"the numbers of task {task.spec.task} stay, but its data cannot be looked at: {error}")
        return None
