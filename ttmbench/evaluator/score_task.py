"""From a task to its raw scores: asks what the model can do, reads and prepares data, and scores or asks in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, cast

import torch

from ttmbench._util.option_values import groups_of
from ttmbench._util.third_party_errors import phase
from ttmbench.cache.scores import ScoreCache, TaskCache
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.loader import check_count, load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.resume import DataNow, groups_digest
from ttmbench.evaluator.stored_ranks import stored_pool
from ttmbench.evaluator.task_result import Answered, Data, Scored
from ttmbench.model import ChoiceStyle, Debiasable, TrainableInParts
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.clusters import clusters_of
from ttmbench.results.labels import RAW, SIMPLE_MATCH, TTM
from ttmbench.results.summary import MethodScores, Resampling
from ttmbench.scoring.batches import BatchSizer, BlockStore, Share, device_of
from ttmbench.scoring.capabilities import Capabilities, Model, Trained
from ttmbench.scoring.debiasing import Likelihoods, declared_prior, likelihoods, prior_for
from ttmbench.scoring.dual_encoder import Features, Side, caption_pairs, encode_side, encode_tokens, score_features
from ttmbench.scoring.fingerprint import Fingerprint, distinct_captions, distinct_images
from ttmbench.scoring.forced_choice.arrays import choice_values, unread_notes
from ttmbench.scoring.forced_choice.ask import Given, ask_choices
from ttmbench.scoring.forced_choice.prompts import image_prompt, text_prompt
from ttmbench.scoring.inputs import DECODED, ImageRows, Prepared, images_on_device, rows_of
from ttmbench.scoring.pairs import PairTable, score_task_pairs
from ttmbench.scoring.prepare import PreparedTask, check_captions, prepare, refusal_notes, stored, usable_scores
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, MetricSpec, Record, Scores

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
    key: str = ""  # digest of the command (`ttmbench.evaluator.resume.RunKey`); checkpoints are for it alone
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


def score_task(plan: TaskPlan, run: Run) -> Scored:
    """Reads a task's data and scores it, or takes cached scores; no metrics yet.

    Raises DataError for unreachable or wrong data, TtmbenchError for unusable scores, UsageError for a model without
    scores.
    """
    if plan.way == "choices":
        raise UsageError(f"model {run.config.model} answers in words and has no scores; only `run` can evaluate it")
    task = _Scoring(plan, run)
    if plan.way == "stored_features":
        scores = task.stored_features()
    elif plan.way == "pairs":
        scores = task.pairs()
    else:
        scores = task.prepared() if plan.needs_inputs else task.streamed()
    task.lap("score")
    with phase("score"):
        raw = usable_scores(run.capabilities.may_refuse, scores, task.groups)
        adapter = run.capabilities.dual_encoder
        if adapter is not None and any(metric.scope == "captions" for metric in plan.metrics):
            features = None if task.features is None else task.features.captions
            raw = replace(raw, caption_pairs=caption_pairs(adapter, task.groups, run.sizer, features))
    return Scored(
        spec=plan.spec,
        metrics=plan.metrics,
        data=task.data(),
        columns=[MethodScores(RAW, [raw])],
        stage=task.stage,
        parts=task.parts,
        notes=refusal_notes(scores, task.groups),
        from_store=task.keep(task.parts or raw),
        seconds=task.seconds,
    )


class _Scoring:
    """A task while it is scored: its data, its cache, and the time of each step."""

    def __init__(self, plan: TaskPlan, run: Run) -> None:
        self._plan, self._run, self._clock = plan, run, time.perf_counter()
        self.seconds: dict[str, float] = {}  # step -> wall time
        self.features: Prepared | None = None  # precomputed, in place of images and captions
        self.stage: PreparedTask | None = None  # the prepared inputs, where they are held in memory
        self.parts: Likelihoods | None = None  # of scores that are debiased
        with phase("load"):
            if plan.way == "stored_features":
                self.features, self._digest = _stored(run, plan.spec)
                groups = _nameless_groups(len(self.features.rows.images), plan.spec.shape)
                loaded = Loaded(groups, {"kind": "stored_features"})
            else:
                loaded = load_data(run.registry, run.config, plan.task, run.samples)
                check_captions(run.capabilities.refuses_captions, loaded.groups)
            self.groups, self._source = loaded.groups, loaded.source
            self.lap("load")
            cached_in = run.cache if self.features is None else None
            debiasing = None if plan.prior is None else declared_prior(plan.prior)
            about = {"all_pairs": plan.all_pairs, "debiasing": debiasing}
            self.cache = TaskCache(cached_in, run.capabilities, plan.spec, self.groups, about)
            self.kept: Scores | Likelihoods | None = None  # what the cache has

    def data(self) -> Data:
        """The data, once all of them have been opened."""
        known = self.cache.data
        if self.features is not None:
            return Data(self.groups, self._source, self._digest)
        return Data(self.groups, self._source, known.hexdigest(), clusters_of(self.groups, known.content_of))

    def lap(self, step: str, waited: float | None = None) -> None:
        """Counts the time since the last step; or ``waited`` seconds of the step that is under way."""
        now = time.perf_counter()
        self.seconds[step] = now - self._clock if waited is None else waited
        self._clock = now if waited is None else self._clock + waited

    def stored_features(self) -> Scores:
        """Scores of features from a file: nothing is left to prepare."""
        assert self.features is not None, "features are loaded in place of groups"
        self.stage = self._in_memory(self.features)
        with phase("score"):
            return self.stage.score()

    def prepared(self) -> Scores:
        """Scores of inputs that are prepared once and held in memory, where the test-time stage takes them."""
        adapter = self._run.capabilities.preparing
        assert adapter is not None, "the plan says so"
        with phase("prepare"):  # it recognises the data too, so it comes before the look into the cache
            inputs, _ = prepare(adapter, self.groups, DECODED, self._plan.enlarge, self.cache.data)
        self.lap("prepare")
        self.stage = self._in_memory(inputs)
        self._find()
        with phase("score"):
            cached = self._cached()
            return self.stage.score(self.cache.blocks) if cached is None else cached

    def streamed(self) -> Scores:
        """Scores of a dual encoder that is not adapted: images are prepared, encoded in batches, and dropped."""
        cache, adapter, sizer = self.cache, self._run.capabilities.dual_encoder, self._run.sizer
        assert adapter is not None, "pair scorers are not streamed so"
        recognised = cache.may_have  # encoding opens every image, so nothing is looked at before without need
        if recognised:
            self._look_up()
        with phase("score"):
            if self.kept is None:
                images = ImageRows(adapter, list(distinct_images(self.groups)), cache.data)
                encoded = encode_side(adapter, "images", images.parts, len(images), sizer)
                self.lap("prepare", images.seconds)
                if not recognised:
                    self._find()
            cached = self._cached()
            if cached is not None:
                return cached
            rows, tokens = rows_of(self.groups), adapter.prepare_captions(distinct_captions(self.groups))
            captions = Side(encode_tokens(adapter, tokens, sizer), rows.captions)
            return score_features(adapter, Features(Side(encoded, rows.images), captions), self._plan.all_pairs)

    def pairs(self) -> Scores:
        """Scores pair by pair, each image opened when its pairs come; log P(t) is taken off if the model has one."""
        self._look_up()
        plan, blocks = self._plan, self.cache.blocks
        with phase("score"):
            cached = self._cached()
            if cached is not None:
                return cached
            table = self._pairs(blocks)
            if plan.prior is None:
                return table.scores(plan.all_pairs)
            return self._of(likelihoods(plan.prior, self.groups, table, plan.all_pairs))

    def share(self, part: int, of: int) -> None:
        """Scores a part of the pairs, which stays in the cache."""
        self._find()
        if self.kept is None and self.cache.blocks is not None:
            with phase("score"):
                self._pairs(Share(self.cache.blocks, part, of))

    def _look_up(self) -> None:
        if self.cache.on:
            self._find()
            self.lap("look_up")

    def _find(self) -> None:
        """Looks for scores of these data in the cache, which recognises them."""
        groups, shape = len(self.groups), self._plan.spec.shape
        images, captions = shape.images, shape.captions
        expected: dict[str, tuple[int, ...]] = {"groups": (groups, images, captions)}
        if self._plan.all_pairs:
            expected["all_pairs"] = (groups * images, groups * captions)
        if self._plan.prior is not None:
            expected["prior"] = (groups, captions)
        arrays = self.cache.find(expected)
        if arrays is not None:
            scores = Scores(arrays["groups"], arrays.get("all_pairs"))
            self.kept = Likelihoods(scores, arrays["prior"]) if "prior" in arrays else scores

    def keep(self, scores: Scores | Likelihoods) -> Record | None:
        """Caches raw scores or both parts of debiased ones, if they are new; returns what an earlier run cached."""
        raw, prior = (scores.conditional, scores.prior) if isinstance(scores, Likelihoods) else (scores, None)
        arrays = {"groups": raw.groups, "all_pairs": raw.all_pairs, "prior": prior}
        present = {name: array for name, array in arrays.items() if array is not None}
        return self.cache.keep(present, self._run.config.model_name)

    def _cached(self) -> Scores | None:
        return None if self.kept is None else self._of(self.kept)

    def _of(self, scores: Scores | Likelihoods) -> Scores:
        """Raw scores, or debiased ones, whose parts are kept."""
        if isinstance(scores, Scores):
            return scores
        assert self._plan.prior is not None, "log P(t) is taken off these"
        self.parts = scores
        return scores.debiased(self._plan.prior.alpha)

    def _pairs(self, blocks: BlockStore | None) -> PairTable:
        plan, run, cache = self._plan, self._run, self.cache
        every = plan.all_pairs or (plan.prior is not None and plan.prior.prior == "test_images")
        return score_task_pairs(run.capabilities, self.groups, run.sizer, every, cache.data, blocks)

    def _in_memory(self, inputs: Prepared) -> PreparedTask:
        adapter = cast(Trained, self._run.adapter)  # features of others are only scored
        inputs = images_on_device(adapter, inputs)  # for every pass and seed
        return PreparedTask(adapter, inputs, self._run.sizer, self._plan.spec.is_global, self._plan.all_pairs)


def ask_task(plan: TaskPlan, run: Run) -> Answered:
    """Asks a task's forced choices; errors as for `ttmbench.evaluator.task.run_task`."""
    config, clock = run.config, time.perf_counter()
    adapter = run.capabilities.choice_scorer
    assert adapter is not None, "the plan says so"
    loaded = load_data(run.registry, config, plan.task, run.samples)
    groups, started = loaded.groups, time.perf_counter()
    check_captions(run.capabilities.refuses_captions, groups)
    answered = ask_choices(run.capabilities, groups, run.sizer, config.seed, plan.frames)
    seconds = {"load": started - clock, "score": time.perf_counter() - started}
    orders = 1 if adapter.choice_style.order == "random" else 2
    record = {**_questions(plan, adapter.choice_style, orders, config.seed), "unread": []}
    answers: list[list[Record]] = [[] for _ in groups]
    for reply in answered.given:
        asked = reply.asked
        answers[asked.group].append(
            {
                "question": _name(reply),
                "order": list(asked.order),
                "prompt": asked.prompt,
                "answer": reply.answer,
                "chosen": reply.chosen,
                "right": reply.right,
            }
        )
        if reply.chosen is None:
            unread = {"group_id": groups[asked.group].group_id, "question": _name(reply), "answer": reply.answer}
            record["unread"].append(unread)
    notes = unread_notes([(row["group_id"], row["question"], row["answer"]) for row in record["unread"]])
    if run.registry.adapts(config):
        notes.append(
            f"model {config.model} answers in words and has no scores, so it can be neither matched nor adapted"
        )
    if config.save_scores:
        notes.append("forced choices have no scores, so --save_scores wrote none; --log_samples writes the answers")
    return Answered(
        spec=plan.spec,
        metrics=[run.registry.metric(name) for name in choice_values(answered.choices)],
        data=Data(groups, loaded.source, answered.fingerprint, answered.clusters),
        notes=notes,
        seconds=seconds,
        choices=answered.choices,
        record=record,
        answers=answers,
    )


def _questions(plan: TaskPlan, style: ChoiceStyle, orders: int, seed: int) -> Record:
    """The results document's record of the questions."""
    shape = plan.spec.shape
    prompts = {} if shape.more_images else {"text": text_prompt(["{caption}"] * shape.captions, plan.frames)}
    if shape.images > 1:
        prompts["image"] = image_prompt("{caption}", shape.images, plan.frames)
    return {
        "asked": list(prompts),
        "orders": orders,
        "order": style.order,
        "seed": seed,
        "side_by_side": style.side_by_side,
        "prompts": prompts,
    }


def _name(reply: Given) -> str:
    """The question, counted from 1: which caption fits image 1, which image fits caption 2."""
    return f"{'image' if reply.asked.side == 'text' else 'caption'} {reply.asked.subject + 1}"


def score_share(plan: TaskPlan, run: Run, part: int, of: int) -> None:
    """Scores part ``part`` (from 0) of ``of`` of a task's pairs into the cache."""
    _Scoring(plan, run).share(part, of)


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


def _stored(run: Run, spec: TaskSpec) -> tuple[Prepared, str]:
    limit, adapter = feature_limit(run, spec, "groups"), run.capabilities.stored_features
    assert adapter is not None, "the plan says so"
    prepared, fingerprint = stored(adapter, spec.shape, limit)
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


def data_now(run: Run, task: TaskFile) -> DataNow:
    """Digests of the data that `score_task` would read now, without calling the model; DataError as there."""
    can, config = run.capabilities, run.config
    if can.stored_features is not None and task.spec.kind != "groups":
        limit = groups_of(config.limit, task.spec.group.n_groups)
        return DataNow(stored_pool(can.stored_features, task.spec, limit)[-1])
    if way_of(can) == "stored_features":
        return DataNow(_stored(run, task.spec)[1])
    groups = load_data(run.registry, config, task, run.samples).groups
    fingerprint = Fingerprint(groups)
    fingerprint.add_remaining()
    return DataNow(fingerprint.hexdigest(), groups_digest(groups))


def load_data(registry: Registry, config: RunConfig, task: TaskFile, samples: set[str] | None) -> Loaded:
    """The groups that a run uses of a task, and where they came from; DataError if one in ``samples`` is missing."""
    limit = groups_of(config.limit, task.spec.group.n_groups) if samples is None else None
    loaded = load_task_data(registry, task, limit, config.offline, config.data_dir)
    groups = loaded.groups if samples is None else [group for group in loaded.groups if group.group_id in samples]
    absent = (samples or set()) - {group.group_id for group in groups}
    if absent:
        raise DataError(f"task '{task.spec.task}' has no group {min(absent)} (--samples {config.samples})")
    return replace(loaded, groups=groups[: groups_of(config.limit, len(groups)) if limit is None else limit])
