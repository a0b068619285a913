"""From the plan of a task to its raw scores: data read, prepared for the model, and scored once; or asked in words."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NoReturn, cast

from ttmbench._util.option_values import groups_of
from ttmbench._util.third_party_errors import phase
from ttmbench.cache.scores import TaskCache
from ttmbench.config import RunConfig
from ttmbench.data.loader import check_count, load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.plan import Run, TaskPlan, way_of
from ttmbench.evaluator.run_key import DataNow, groups_digest
from ttmbench.evaluator.stored_ranks import stored_pool
from ttmbench.evaluator.task_result import Answered, Data, Scored
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import ChoiceStyle
from ttmbench.results.clusters import clusters_of
from ttmbench.results.labels import RAW
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.batches import BlockStore, Share
from ttmbench.scoring.capabilities import Trained
from ttmbench.scoring.debiasing import Likelihoods, declared_prior, likelihoods
from ttmbench.scoring.dual_encoder import Features, Side, caption_pairs, encode_side, encode_tokens, score_features
from ttmbench.scoring.fingerprint import Fingerprint, distinct_captions, distinct_images
from ttmbench.scoring.forced_choice.arrays import choice_values, unread_notes
from ttmbench.scoring.forced_choice.ask import Given, ask_choices
from ttmbench.scoring.forced_choice.prompts import image_prompt, text_prompt
from ttmbench.scoring.inputs import DECODED, ImageRows, Prepared, images_on_device, rows_of
from ttmbench.scoring.pairs import PairTable, score_task_pairs
from ttmbench.scoring.prepare import PreparedTask, check_captions, prepare, refusal_notes, stored, usable_scores
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, Record, Scores


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
        return DataNow(stored_pool(can.stored_features, task.spec, limit)[2])
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
