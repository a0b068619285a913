"""From a task to its raw scores: asks what the model can do, reads and prepares data, and scores or asks in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeVar

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
from ttmbench.results.summary import MethodScores, Resampling
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.choice_arrays import choice_values, unread_notes
from ttmbench.scoring.debiasing import Likelihoods, Prior, likelihoods, prior_for
from ttmbench.scoring.dual_encoder import Features, PreparedTask, Side, caption_pairs, encode_side, score_features
from ttmbench.scoring.forced_choice import ask_choices, image_prompt, text_prompt
from ttmbench.scoring.inputs import (
    DECODED,
    Fingerprint,
    ImageRows,
    Prepared,
    check_captions,
    distinct_captions,
    distinct_images,
    images_on_device,
    prepare,
    rows_of,
    stored,
    usable_scores,
)
from ttmbench.scoring.pairs import PairTable, score_task_pairs
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, MetricSpec, Record, Scores

T = TypeVar("T")
Way = Literal["choices", "stored_features", "prepared", "pairs"]
"""How a model meets a task: it answers in words; its features lie in a file; inputs are prepared once, in memory, for a
dual encoder or a model that is adapted; or images are opened as their pairs come."""


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
    helpers: dict[str, Any] = field(default_factory=dict)  # what methods need beside the model, by name, made once
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

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What a method needs beside the model, made where the run does not have it yet."""
        if key not in self.helpers:
            self.helpers[key] = make()
        made: T = self.helpers[key]
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

    def load(self, task: TaskFile) -> Loaded:
        """The groups that the run uses of a task, and where they came from; errors as of `load_task_data`."""
        config = self.config
        return load_task_data(self.registry, task, config.limit, config.offline, config.data_dir, self.samples)

    @property
    def resampling(self) -> Resampling:
        """How intervals are made."""
        return self.config.bootstrap_iters, self.config.seed, self.config.interval


@dataclass(frozen=True)
class TaskPlan:
    """One task of a run, as this model can do it."""

    task: TaskFile  # the task file
    metrics: list[MetricSpec]  # to compute
    all_pairs: bool  # whether every image meets every caption
    way: Way  # how the model meets the task
    adapts: bool  # whether the run adapts the model to the task
    needs_inputs: bool  # whether prepared inputs are wanted even if the scores are there: for the test-time stage
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
    way: Way = "choices"
    if isinstance(model, DualEncoder):
        way = "stored_features" if isinstance(model, StoredFeatures) else "prepared"
    elif isinstance(model, PairScorer):
        way = "prepared" if adapts else "pairs"
    prior = None
    if isinstance(model, PairScorer) and way == "pairs":
        prior = prior_for(model, spec.noise_images, with_parts)
    if way == "choices" and spec.shape.true_captions > 1:
        raise UsageError(
            f"model {config.model} chooses one caption, and in task '{spec.task}' {spec.shape.true_captions} captions "
            "are true for an image; omit the task"
        )
    return TaskPlan(
        task=task,
        metrics=metrics,
        all_pairs=spec.is_global or any(metric.scope == "global" for metric in metrics),
        way=way,
        adapts=adapts,
        needs_inputs=adapts or any(run.registry.methods[name].takes_features for name in config.methods),
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


def score_task(plan: TaskPlan, run: Run) -> Scored:
    """Reads a task's data and scores it, or takes cached scores; no metrics yet.

    Raises DataError for unreachable or wrong data, TtmbenchError for unusable scores, UsageError for a model without
    scores.
    """
    model, clock, stage, parts = run.model, _Clock(), None, None
    if not isinstance(model, DualEncoder | PairScorer):
        raise UsageError(f"model {run.config.model} answers in words and has no scores; only `run` can evaluate it")
    loaded, inputs, digest, cache = _load(plan, run)
    groups, captions = loaded.groups, None if inputs is None else inputs.captions
    clock.lap("load")
    if plan.way == "prepared" and plan.needs_inputs:
        with phase("prepare"):  # it recognises the data too, so it comes before the look into the cache
            inputs, _ = prepare(model, groups, DECODED, plan.enlarge, cache.data)
        clock.lap("prepare")
    if inputs is not None:  # held in memory for every pass and seed; of features from a file, all that there is
        inputs = images_on_device(model, inputs)
        stage = PreparedTask(model, inputs, run.sizer, plan.task.spec.is_global, plan.all_pairs)
    expected = _arrays(plan, len(groups))
    # Encoding opens every image, so no image is opened before for a cache that has nothing of this model and task.
    is_known = stage is not None or plan.way == "pairs" or cache.may_have
    found = cache.find(expected) if is_known else None
    if stage is None and is_known and cache.on:
        clock.lap("look_up")
    with phase("score"):
        if found is not None:
            scores = Scores(found["groups"], found.get("all_pairs"))
            parts = Likelihoods(scores, found["prior"]) if "prior" in found else None
        elif stage is not None:
            scores = stage.score(cache.blocks)
        elif isinstance(model, DualEncoder):
            scores = _score_streamed(plan, run, model, groups, cache, clock)
            if not is_known:
                cache.find(expected)  # which recognises the data
        else:
            table = _score_pairs(plan, run, model, groups, cache)
            parts = None if plan.prior is None else likelihoods(plan.prior, groups, table, plan.all_pairs)
            scores = table.scores(plan.all_pairs) if parts is None else parts.conditional
        if parts is not None:
            assert plan.prior is not None, "log P(t) is taken off these"
            scores = parts.debiased(plan.prior.model.alpha)
    clock.lap("score")
    with phase("score"):
        raw, notes = usable_scores(model, scores, groups)
        if isinstance(model, DualEncoder) and any(metric.scope == "captions" for metric in plan.metrics):
            raw = replace(raw, caption_pairs=caption_pairs(model, groups, run.sizer, captions))
    data = Data(groups, loaded.source, digest) if digest else Data.of_groups(loaded, cache.data)
    kept, prior = (raw, None) if parts is None else (parts.conditional, parts.prior)
    return Scored(
        spec=plan.task.spec,
        metrics=plan.metrics,
        data=data,
        columns=[MethodScores(RAW, [raw])],
        stage=stage,
        parts=parts,
        notes=notes,
        from_store=cache.keep(
            {"groups": kept.groups, "all_pairs": kept.all_pairs, "prior": prior}, run.config.model_name
        ),
        seconds=clock.seconds,
    )


@dataclass
class _Clock:
    """The time of each step of a task."""

    seconds: dict[str, float] = field(default_factory=dict)  # step -> wall time
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, step: str, waited: float | None = None) -> None:
        """Counts the time since the last step; or ``waited`` seconds of the step that is under way."""
        now = time.perf_counter() if waited is None else self._last + waited
        self.seconds[step], self._last = now - self._last, now


def _load(plan: TaskPlan, run: Run) -> tuple[Loaded, Prepared | None, str, TaskCache]:
    """A task's groups and the cache of its scores; of features from a file the features in place of images, too.

    The digest is that of the features, which are not cached; of groups it is empty, and the cache makes it.
    """
    with phase("load"):
        features, digest = None, ""
        if isinstance(run.model, StoredFeatures):
            features, digest = _stored(run, run.model, plan.task.spec)
            loaded = Loaded(
                _nameless_groups(len(features.rows.images), plan.task.spec.shape), {"kind": "stored_features"}
            )
        else:
            loaded = run.load(plan.task)
            check_captions(run.model, loaded.groups)
        debiasing = None if plan.prior is None else plan.prior.declared
        settings = {"all_pairs": plan.all_pairs, "debiasing": debiasing}
        cached_in = run.cache if features is None else None
        return loaded, features, digest, TaskCache(cached_in, run.model, plan.task.spec, loaded.groups, settings)


def _arrays(plan: TaskPlan, groups: int) -> dict[str, tuple[int, ...]]:
    """What the cache has of a task's scores: name -> shape."""
    images, captions = plan.task.spec.shape.images, plan.task.spec.shape.captions
    expected: dict[str, tuple[int, ...]] = {"groups": (groups, images, captions)}
    if plan.all_pairs:
        expected["all_pairs"] = (groups * images, groups * captions)
    if plan.prior is not None:
        expected["prior"] = (groups, captions)
    return expected


def _score_pairs(
    plan: TaskPlan,
    run: Run,
    model: PairScorer,
    groups: Sequence[Group],
    cache: TaskCache,
) -> PairTable:
    """Scores pair by pair, each image opened when its pairs come."""
    every = plan.all_pairs or (plan.prior is not None and plan.prior.model.prior == "test_images")
    return score_task_pairs(model, groups, run.sizer, every, cache.data, cache.blocks)


def _score_streamed(
    plan: TaskPlan, run: Run, model: DualEncoder, groups: Sequence[Group], cache: TaskCache, clock: _Clock
) -> Scores:
    """Scores of a dual encoder that is not adapted: images are prepared, encoded in batches, and dropped."""
    rows = rows_of(groups)
    images = ImageRows(model, list(distinct_images(groups)), cache.data)
    encoded = encode_side(model, "images", images, run.sizer)
    clock.lap("prepare", images.seconds)
    captions = encode_side(model, "captions", model.prepare_captions(distinct_captions(groups)), run.sizer)
    return score_features(model, Features(Side(encoded, rows.images), Side(captions, rows.captions)), plan.all_pairs)


def ask_task(plan: TaskPlan, run: Run, model: ChoiceModel) -> Answered:
    """Asks a task's forced choices; errors as for `ttmbench.evaluator.one_task.run_task`."""
    config, spec, style, clock = run.config, plan.task.spec, model.choice_style, time.perf_counter()
    loaded = run.load(plan.task)
    groups, started = loaded.groups, time.perf_counter()
    check_captions(model, groups)
    answered = ask_choices(model, groups, run.sizer, config.seed, plan.frames)
    seconds = {"load": started - clock, "score": time.perf_counter() - started}
    answers: list[list[Record]] = [[] for _ in groups]
    unread: list[tuple[str, str, str | None]] = []
    for reply in answered.given:
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
        metrics=[run.registry.metrics[name] for name in choice_values(answered.choices)],
        data=Data(groups, loaded.source, answered.fingerprint, answered.clusters),
        notes=notes,
        seconds=seconds,
        choices=answered.choices,
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
    loaded, _, _, cache = _load(plan, run)
    cache.share = slice(part, None, of)
    if not isinstance(run.model, PairScorer):
        return
    if cache.find(_arrays(plan, len(loaded.groups))) is None and cache.blocks is not None:
        with phase("score"):
            _score_pairs(plan, run, run.model, loaded.groups, cache)


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


def _stored(run: Run, model: StoredFeatures, spec: TaskSpec) -> tuple[Prepared, str]:
    limit = feature_limit(run, spec, "groups")
    prepared, fingerprint = stored(model, spec.shape, limit)
    count = len(prepared.rows.images)
    if limit is None or count < limit:
        check_count(spec, count, "the file of features")
    return prepared, fingerprint


def _nameless_groups(count: int, shape: GroupShape) -> list[Group]:
    """Groups of which only the features are at hand: they go by number."""

    def no_image() -> NoReturn:
        raise DataError("the model reads stored features; there is no image to open")

    return [
        Group(
            group_id=str(group),
            images=tuple(ImageRef(f"{group}/image {index}", no_image) for index in range(shape.images)),
            captions=tuple(f"{group}/caption {index}" for index in range(shape.captions)),
        )
        for group in range(count)
    ]


def data_now(run: Run, task: TaskFile) -> DataNow | None:
    """Digests of a task's data as they are now, without calling the model; None, with a warning, if out of reach."""
    model, config = run.model, run.config
    try:
        if isinstance(model, StoredFeatures) and task.spec.kind != "groups":
            limit = groups_of(config.limit, task.spec.group.n_groups)
            return DataNow(stored_pool(model, task.spec, limit)[-1])
        if isinstance(model, StoredFeatures):
            return DataNow(_stored(run, model, task.spec)[1])
        groups = run.load(task).groups
        fingerprint = Fingerprint(groups)
        fingerprint.add_remaining()
        return DataNow(fingerprint.hexdigest(), groups_digest(groups))
    except DataError as error:
        warn(f"the numbers of task {task.spec.task} stay, but its data cannot be looked at: {error}")
        return None
