"""Runs a test-time method on a task for every seed.

Captions are shuffled by seed before the method sees them, and its scores are mapped back to the task's order. An
interrupted training method resumes, and the model is restored afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

from ttmbench._arrays import chosen_positions
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.config import read_references
from ttmbench.errors import DivergedError, TtmbenchError, UsageError
from ttmbench.methods.audit import audit_labels, held_out_record
from ttmbench.methods.checkpoint import AFTER_SEED, AfterSeed, SeedCheckpoint, SeedProgress, TaskCheckpoint
from ttmbench.methods.features import (
    FeatureTask,
    Logits,
    ReferenceSet,
    RewardModel,
    ScoreTask,
    ViewSource,
    scale_and_bias,
)
from ttmbench.methods.parameters import low_rank_removed, trained_record
from ttmbench.methods.settings import checked_settings
from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.methods.training import Cost, Original, set_random_state
from ttmbench.model import Batch, DualEncoder
from ttmbench.plugins.registry import load_target
from ttmbench.results.summary import MethodScores, held_out, metric_chance, metric_values
from ttmbench.scoring.dual_encoder import Features, PreparedTask, encode
from ttmbench.scoring.inputs import Prepared, Rows, subset, take
from ttmbench.types import GroupShape, MethodSpec, MetricSpec, Record, Scores


def checked_scores(given: object, shape: tuple[int, ...], spec: MethodSpec, plugin: str = "") -> np.ndarray:
    """Converts a method's scores to float32; TtmbenchError unless there is a finite number for each pair."""
    name = name_of(spec, plugin)
    if not isinstance(given, torch.Tensor) or tuple(given.shape) != shape:
        what = f"a tensor of shape {list(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
        raise TtmbenchError(f"{name} gave {what}; scores of shape {list(shape)} are expected")
    scores = given.detach().float().cpu().numpy()
    wrong = ~np.isfinite(scores).all(axis=(1, 2))
    if wrong.any():
        raise TtmbenchError(
            f"{name} must give every pair a finite score, and gave {int(wrong.sum())} of {len(scores)} groups one that "
            "is NaN or infinite; fix the method, or remove it from --methods"
        )
    return scores


def each_step(turns: Iterator[MethodStep], spec: MethodSpec, plugin: str) -> Iterator[MethodStep]:
    """Yields the validated steps of a method; gradients are enabled only inside the method."""
    name = name_of(spec, plugin)
    if not isinstance(turns, Iterator):
        raise TtmbenchError(f"{name} needs gradients, so it yields a MethodStep for each turn; it gave {turns!r:.60}")
    while True:
        with named(spec, plugin), torch.enable_grad():
            step = next(turns, None)
        if step is None:
            return
        if not isinstance(step, MethodStep):
            raise TtmbenchError(f"{name} yielded {step!r:.60}; a MethodStep is expected (batch.step)")
        if not torch.isfinite(step.scores).all():
            raise DivergedError(f"{name}: the scores became NaN or infinite", None)
        yield step


def name_of(spec: MethodSpec, plugin: str) -> str:
    """Name of a method in messages."""
    return f"method '{spec.name}'" + (f" of plugin '{plugin}'" if plugin else "")


@contextmanager
def named(spec: MethodSpec, plugin: str) -> Iterator[None]:
    """Prefixes errors raised inside with the method's name."""
    try:
        with foreign_errors(name_of(spec, plugin)):
            yield
    except UsageError as error:
        raise UsageError(f"{name_of(spec, plugin)}: {error}") from None


@contextmanager
def frozen_again(adapter: Any) -> Iterator[None]:
    """Restores ``requires_grad`` of all parameters afterwards, and clears gradients."""
    before = [(parameter, parameter.requires_grad) for parameter in adapter.parameters()]
    try:
        yield
    finally:
        for parameter, needs_gradient in before:
            parameter.requires_grad_(needs_gradient)
            parameter.grad = None


@dataclass(frozen=True)
class SeenRows:
    """The images or captions of a task after the shuffle inside its groups.

    A task numbers its distinct captions in order of appearance, so the smallest number of a group would be its first
    caption, which is the caption of the first image. Here they are numbered by appearance after the shuffle.

    Attributes:
        order: the task's number of each distinct item, int [distinct].
        rows: number of each item, int [groups, items of a group].
    """

    order: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> SeenRows:
        """From the task's numbers, shuffled inside groups.

        >>> seen = SeenRows.of(np.array([[5, 3], [3, 7]]))
        >>> seen.order.tolist(), seen.rows.tolist()
        ([5, 3, 7], [[0, 1], [1, 2]])
        """
        distinct, first, number = np.unique(rows, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return cls(distinct[order], np.argsort(order)[number].reshape(rows.shape))

    def features(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the task's distinct items [distinct, ...] in this order."""
        return features if self._is_the_tasks else features[torch.from_numpy(self.order).to(features.device)]

    def prepared(self, batch: Batch) -> Batch:
        """The task's prepared items in this order."""
        return batch if self._is_the_tasks else take(batch, self.order)

    def texts(self, texts: Sequence[str]) -> list[str]:
        """The task's distinct captions in this order."""
        return [texts[row] for row in self.order]

    @property
    def _is_the_tasks(self) -> bool:
        return bool((self.order == np.arange(len(self.order))).all())


EVERY = 20.0  # seconds between two checkpoints, so that short turns are not spent on files


@dataclass
class MethodProgress:
    """Progress of a method.

    Attributes:
        scores: [groups, images, captions], in the shuffled order; NaN where no turn has scored a group yet.
        turns: number of finished turns.
        updates: number of turns in which parameters were trained.
        losses: losses of the turns that report one.
        notes, cost: of the turns so far.
        seconds: wall time spent in earlier processes.
        trained: name of each parameter that was trained -> how many numbers it has.
    """

    scores: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    turns: int = 0
    updates: int = 0
    losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0
    trained: Mapping[str, int] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, kept: SeedProgress, shape: tuple[int, ...]) -> MethodProgress:
        """The stored progress, or an empty one for a task of this shape."""
        scores = kept.final if kept.state is None else kept.state.scores
        if scores is None:
            return cls(torch.full(shape, torch.nan))
        return cls(torch.from_numpy(scores.groups), **{**kept.about, "cost": Cost(**kept.about["cost"])})

    @property
    def mean_loss(self) -> float | None:
        """Mean loss over the turns that report one; None if no turn does."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def add(self, step: MethodStep, task: TrainingTask, checkpoint: SeedCheckpoint) -> None:
        """Record a turn, and store the state after it if the last checkpoint is old enough."""
        self.scores[step.groups] = step.scores.float().cpu()
        self.trained = {name: parameter.numel() for name, parameter in task.trained.items()}
        self.turns += 1
        self.updates += step.updated
        if step.loss is not None:
            self.losses.append(step.loss)
        if checkpoint.is_due(EVERY):
            checkpoint.keep(None, task.snapshot(Scores(self.scores.numpy())), self.about(task))

    def resume(self, task: TrainingTask, kept: SeedProgress) -> None:
        """Restore a task from stored progress, if there is any."""
        if kept.state is not None:
            task.notes, task.cost = [*self.notes], self.cost
            set_random_state(kept.state.random, task.adapter)

    def about(self, task: TrainingTask) -> dict[str, Any]:
        """What a checkpoint stores in addition to scores and state."""
        values = {name: getattr(self, name) for name in ("turns", "updates", "losses", "trained")}
        seconds = self.seconds + time.perf_counter() - self.began
        return {**values, "notes": task.notes, "cost": asdict(task.cost), "seconds": seconds}


WIDTH = 16  # of random features
DRAWS = {"scores": 20_000, "features": 2_000, "views": 1_000}  # groups
_DIRECTIONS = f"unit vectors in independent random directions of {WIDTH} dimensions, scored by the model"
DISTRIBUTIONS = {"scores": "independent N(0, 1) logits", "features": _DIRECTIONS, "views": _DIRECTIONS}
"""Descriptions of the random inputs that replace a task's scores or features."""


@dataclass(frozen=True)
class Chance:
    """Chance levels, and how they were estimated.

    Attributes:
        values: metric -> mean over random groups, a fraction; None where it is undefined.
        distribution: description of the random numbers.
        draws: number of random groups.
    """

    values: Mapping[str, float | None]
    distribution: str
    draws: int


def chance_of(
    spec: MethodSpec,
    method: Callable[[ScoreTask], torch.Tensor],
    shape: GroupShape,
    metrics: Sequence[MetricSpec],
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    references: Mapping[str, ReferenceSet] | None = None,
) -> Chance:
    """Runs a method on random groups of a shape.

    A method that needs scores gets independent N(0, 1) logits. A method that needs features or views gets unit vectors
    in independent random directions, which ``model`` scores; its references from other tasks are replaced likewise.
    """
    kind = "views" if "views" in spec.needs else "features" if spec.takes_features else "scores"
    draws, generator = DRAWS[kind], torch.Generator().manual_seed(0)
    images, captions = shape.images, shape.captions
    if kind == "scores":
        exchanged = shape.more_images
        size = (draws, captions, images) if exchanged else (draws, images, captions)
        task = ScoreTask(torch.randn(size, generator=generator), 0)
        output = method(task)
        if exchanged:
            output, task.scores = output.transpose(1, 2), task.scores.transpose(1, 2)
    else:
        task = _random_task(draws, shape, generator, model, references or {})
        output = method(task)
    scores = Scores(output.detach().float().cpu().numpy())
    return Chance(_means(metrics, scores, Scores(task.scores.cpu().numpy())), DISTRIBUTIONS[kind], draws)


def _means(metrics: Sequence[MetricSpec], scores: Scores, raw: Scores) -> dict[str, float | None]:
    """Mean of each metric, with the metrics of the raw scores, whose expectations are known, as control variates.

    A metric that the method does not change in any group thus gets exactly its raw chance level.
    """
    in_groups = [metric for metric in metrics if metric.scope == "group"]
    known = [(metric_values(metric, raw), metric_chance(metric, raw)) for metric in in_groups]
    controls = [values - chance for values, chance in known if values is not None and chance is not None]
    design = np.stack([np.ones(len(scores.groups)), *controls], axis=1)
    means: dict[str, float | None] = {}
    for metric in in_groups:
        values = metric_values(metric, scores)
        mean = None if values is None else float(np.linalg.lstsq(design, values, rcond=None)[0][0])
        means[metric.name] = None if mean is None else round(min(1.0, max(0.0, mean)), 6)
    return means


def _random_task(
    draws: int,
    shape: GroupShape,
    generator: torch.Generator,
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    references: Mapping[str, ReferenceSet],
) -> FeatureTask:
    def directions(*size: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(*size, WIDTH, generator=generator), dim=-1)

    images, captions = directions(draws * shape.images), directions(draws * shape.captions)

    def views(count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        others = directions(len(images), count - 1)
        return torch.cat([images[:, None], others], dim=1)

    task = FeatureTask(
        torch.empty(0),
        0,
        model=model,
        images=images,
        captions=captions,
        image_rows=torch.arange(len(images)).reshape(draws, -1),
        caption_rows=torch.arange(len(captions)).reshape(draws, -1),
        views=views,
        references={
            name: ReferenceSet(directions(len(there.images)), directions(len(there.captions)), there.record)
            for name, there in references.items()
        },
    )
    task.scores = task.logits(task.images, task.captions)
    return task


@dataclass(frozen=True)
class MethodRun:
    """A task, a model and the inputs that all test-time methods share."""

    raw: Scores  # scores of the model as it is
    shape: GroupShape
    metrics: Sequence[MetricSpec]
    seeds: Sequence[int]
    items: tuple[int, int] = (1, 1)  # distinct images and captions
    stage: PreparedTask | None = None  # model and prepared inputs; None for methods that need scores alone
    views: Callable[[int, Cost], ViewSource] | None = None  # seed and counts -> views; None without images
    checkpoint: TaskCheckpoint = field(default_factory=TaskCheckpoint)
    texts: Sequence[str] = ()  # of distinct captions in the order of rows; none where features are stored
    audit: bool = False  # run every seed again with permuted captions
    holdout: float | None = None  # also train on some groups and score this fraction of held-out groups
    clusters: np.ndarray | None = None  # of the groups, int [groups]; equal where they share an image
    seed: int = 0  # seed of the held-out split, shared by all seeds
    references: Callable[[str], ReferenceSet] | None = None  # name in a setting -> references from another task
    rewards: Callable[[str], RewardModel] | None = None  # name in a setting -> another model

    def column(
        self,
        spec: MethodSpec,
        given: Mapping[str, object],
        plugin: str = "",
        after: AfterSeed = AFTER_SEED,
    ) -> MethodScores:
        """Runs the method with every seed; returns its scores, chance levels and record.

        Args:
            spec: the method.
            given: the user's settings.
            plugin: plugin that registered it, for messages.
            after: step after each trained seed.

        Raises:
            UsageError: a wrong setting, or a task that the method is not defined for.
            TtmbenchError: the method gave no finite score for some pair, or an array of another shape.
        """
        settings = checked_settings(spec, given)
        seeds = self.seeds if spec.is_random else self.seeds[:1]  # all seeds of a deterministic method are equal
        runs = [self.seed_run(spec, settings, seed, plugin, after=after) for seed in seeds]
        chance = None
        if not spec.trains:
            with named(spec, plugin), torch.no_grad():
                chance = chance_of(
                    *(spec, partial(load_target(spec.target), **settings), self.shape, self.metrics),
                    *(self._logits(spec), self._references(spec, settings)),
                )
        return MethodScores(
            spec.name,
            [run.scores for run in runs],
            {
                **self._record(spec, settings, seeds, runs, chance),
                **self._checks(spec, settings, plugin, dict(zip(seeds, runs, strict=True))),
            },
            chance=None if chance is None else chance.values,
            track=spec.track,
        )

    def positions(self, spec: MethodSpec, scores: np.ndarray, seed: int) -> list[float]:
        """Fraction of rows that choose each position, in the order in which the method sees the group."""
        is_turned = self.shape.more_images
        shuffled = np.take_along_axis(scores, self.order(seed), axis=1 if is_turned else 2)
        shuffled = shuffled.transpose(0, 2, 1) if is_turned and not spec.takes_features else shuffled
        return chosen_positions(shuffled)

    def seed_run(
        self,
        spec: MethodSpec,
        settings: Record,
        seed: int,
        plugin: str = "",
        order: np.ndarray | None = None,
        after: AfterSeed = AFTER_SEED,
    ) -> SeedRun:
        """Runs one seed of a method.

        Args:
            spec: the method.
            settings: all of its settings.
            seed: seed of the shuffle, the views and the stream.
            plugin: plugin that registered it, for messages.
            order: order of the captions (`order`), replacing the shuffle by the seed; such a run is not stored.
            after: step after the training.
        """
        clock, is_turned = time.perf_counter(), self.shape.more_images
        # checkpoints are valid only for the seed's order
        checkpoint = self.checkpoint if order is None else TaskCheckpoint()
        order = self.order(seed) if order is None else order
        scores = np.take_along_axis(self.raw.groups, order, axis=1 if is_turned else 2)
        # Where there are more images than captions, captions choose: a method of scores gets images and captions
        # exchanged.
        exchanged = is_turned and not spec.takes_features
        shuffled = torch.from_numpy(scores.transpose(0, 2, 1).copy() if exchanged else scores)
        cost, target = Cost(), load_target(spec.target)
        cost.count(image_rows=self.items[0], caption_rows=self.items[1])  # scores and features of the model as it is
        if not spec.takes_features:
            task = ScoreTask(shuffled, seed)
            result, progress = self._called(lambda: target(task, **settings), spec, plugin), MethodProgress()
        else:
            seen = self._seen(order)
            references = self._references(spec, settings)
            for there in references.values():
                cost.count(image_rows=len(there.images), caption_rows=len(there.captions))
            rewards = self._rewards(spec, settings)
            cost.count(reward_rows=sum(model.rows for model in rewards.values()))
            task = self._feature_task(
                shuffled, seed, seen, cost, references, _shuffled(rewards, order, 1 if is_turned else 2)
            )
            if spec.trains:
                result, progress, task = self._trained(
                    *(spec, target, settings, seed, plugin, task, seen, checkpoint, after)
                )
            else:
                result, progress = self._called(lambda: target(task, **settings), spec, plugin), MethodProgress()
        values = checked_scores(result, tuple(shuffled.shape), spec, plugin)
        if exchanged:
            values = values.transpose(0, 2, 1)
        back = np.argsort(order, axis=1 if is_turned else 2)
        groups = np.ascontiguousarray(np.take_along_axis(values, back, axis=1 if is_turned else 2))
        return SeedRun(
            Scores(groups, caption_pairs=self.raw.caption_pairs),
            progress,
            task.cost if isinstance(task, FeatureTask) else cost,  # includes the counts of an interrupted run
            self.positions(spec, groups, seed),
            list(task.notes),
            progress.seconds + time.perf_counter() - clock,
        )

    def order(self, seed: int, draw: int = 0) -> np.ndarray:
        """The caption at each shuffled position of every group; with more images than captions, the image."""
        groups, images, captions = self.raw.groups.shape
        axis = np.arange(images if self.shape.more_images else captions)
        order = np.random.default_rng([seed, draw]).permuted(np.broadcast_to(axis, (groups, len(axis))), axis=1)
        return order[:, :, None] if self.shape.more_images else order[:, None, :]

    @cached_property
    def encoded(self) -> Features:
        """Features of the original model, computed once for all methods."""
        assert self.stage is not None and isinstance(self.stage.adapter, DualEncoder), "asked for before"
        with torch.no_grad():
            encoded = encode(self.stage.adapter, self.stage.prepared, self.stage.batch_size)
        return Features(*(replace(side, features=side.features.clone()) for side in (encoded.images, encoded.captions)))

    def _logits(self, spec: MethodSpec) -> Logits:
        """Scores of features of any dimension with the model's temperature and bias."""
        if not spec.takes_features:
            return lambda images, captions: images @ captions.T
        assert self.stage is not None and isinstance(self.stage.adapter, DualEncoder), "asked for before"
        scale, bias = (
            number.cpu() for number in scale_and_bias(self.stage.adapter.logits, self.encoded.images.features)
        )
        return lambda images, captions: images @ captions.T * scale + bias

    def _seen(self, order: np.ndarray) -> tuple[SeenRows, SeenRows]:
        """Images and captions after the shuffle."""
        encoded = self.encoded
        images, captions = encoded.images.rows, encoded.captions.rows
        if self.shape.more_images:
            return SeenRows.of(np.take_along_axis(images, order[:, :, 0], axis=1)), SeenRows.of(captions)
        return SeenRows.of(images), SeenRows.of(np.take_along_axis(captions, order[:, 0], axis=1))

    def _references(self, spec: MethodSpec, settings: Record) -> dict[str, ReferenceSet]:
        """Features of the references from another task, if the settings name one, by the original model."""
        name = settings.get("references") if "references" in spec.needs else None
        if self.references is None or not isinstance(name, str) or read_references(name) is None:
            return {}
        return {name: self.references(name)}

    def _rewards(self, spec: MethodSpec, settings: Record) -> dict[str, RewardModel]:
        """The reward model that the settings name, unless it is the model itself."""
        name = settings.get("reward") if "reward_model" in spec.needs else None
        if self.rewards is None or not isinstance(name, str) or name == "self":
            return {}
        return {name: self.rewards(name)}

    def _feature_task(
        self,
        scores: torch.Tensor,
        seed: int,
        seen: tuple[SeenRows, SeenRows],
        cost: Cost,
        references: Mapping[str, ReferenceSet],
        rewards: Mapping[str, RewardModel],
    ) -> FeatureTask:
        encoded, (images, captions) = self.encoded, seen
        views = None if self.views is None else self.views(seed, cost)
        assert self.stage is not None, "features are of a prepared task"
        return FeatureTask(
            scores,
            seed,
            model=cast("DualEncoder", self.stage.adapter).logits,
            images=images.features(encoded.images.features),
            captions=captions.features(encoded.captions.features),
            image_rows=torch.from_numpy(images.rows),
            caption_rows=torch.from_numpy(captions.rows),
            views=None if views is None else lambda *settings: images.features(views(*settings)),
            cost=cost,
            references=references,
            rewards=rewards,
        )

    def _trained(
        self,
        spec: MethodSpec,
        target: Callable[..., Any],
        settings: Record,
        seed: int,
        plugin: str,
        task: FeatureTask,
        seen: tuple[SeenRows, SeenRows],
        checkpoints: TaskCheckpoint,
        after: AfterSeed,
    ) -> tuple[torch.Tensor, MethodProgress, FeatureTask]:
        """Runs the turns of a training method, with checkpoints, and restores the model."""
        assert self.stage is not None, "features are of a prepared task"
        rewards = {name: model.scores for name, model in task._rewards.items()}
        checkpoint = checkpoints.seed(spec.name, seed, self.raw, rewards)
        kept = checkpoint.read(partial(after.is_done, seed))
        progress = MethodProgress.of(kept, tuple(task.scores.shape))
        if kept.final is not None:
            task.cost, task.notes = progress.cost, [*progress.notes]
            return progress.scores, progress, task
        adapter, (images, captions) = cast("Any", self.stage.adapter), seen
        inputs = self.stage.prepared
        torch.manual_seed(seed)
        with frozen_again(adapter), Original(self.stage).adapted(), low_rank_removed(adapter):
            training = TrainingTask(
                task,
                seed,
                adapter=adapter,
                prepared=Prepared(
                    images.prepared(inputs.images), captions.prepared(inputs.captions), Rows(images.rows, captions.rows)
                ),
                resets=spec.reset in ("group", "batch"),
                resume=kept.state,
                texts=captions.texts(self.texts) if self.texts else (),
                clusters=None if self.clusters is None else self.clusters.tolist(),
            )
            progress.resume(training, kept)
            turns: Iterator[MethodStep] = self._called(lambda: target(training, **settings), spec, plugin)
            for step in each_step(turns, spec, plugin):
                progress.add(step, training, checkpoint)
            after.do(seed, {"settings": settings})
        checkpoint.finish(Scores(progress.scores.numpy()), 0, progress.about(training))
        task.notes, task.cost = training.notes, training.cost
        return progress.scores, progress, training

    def _called(self, call: Callable[[], Any], spec: MethodSpec, plugin: str) -> Any:
        with named(spec, plugin), torch.enable_grad() if spec.trains else torch.no_grad():
            return call()

    def _record(
        self, spec: MethodSpec, settings: Record, seeds: Sequence[int], runs: Sequence[SeedRun], chance: Chance | None
    ) -> Record:
        """Record for results: the method, and the run of each seed."""
        parameters = runs[0].progress.trained
        references = [there.record for there in self._references(spec, settings).values()]
        rewards = [model.record for model in self._rewards(spec, settings).values()]
        return {
            "settings": settings,
            **spec.declared,
            "seeds": list(seeds),
            "turns": runs[0].progress.turns,
            "updates": runs[0].progress.updates,
            "loss": [run.progress.mean_loss for run in runs],
            "trained": trained_record(settings.get("train"), parameters) if parameters else None,
            "cost": [run.cost.record(*self.items, run.seconds) for run in runs],
            "chance": None if chance is None else {"distribution": chance.distribution, "draws": chance.draws},
            "positions": np.mean([run.positions for run in runs], axis=0).tolist(),
            "notes": list(dict.fromkeys(note for run in runs for note in run.notes)),
            **({"references": references[0]} if references else {}),
            **({"reward_model": rewards[0]} if rewards else {}),
        }

    def _checks(self, spec: MethodSpec, settings: Record, plugin: str, runs: Mapping[int, SeedRun]) -> Record:
        """The label audit and held-out groups, if requested and if the method ends with a trained model."""
        checks: Record = {}
        if self.audit:
            checks["audit_labels"] = audit_labels(
                spec.name,
                {seed: run.scores for seed, run in runs.items()},
                lambda seed: self.seed_run(spec, settings, seed, plugin, order=self.order(seed, 4)).scores,
            )
        if self.holdout is not None and spec.leaves_model:
            checks["holdout"] = self._held_out(spec, settings, plugin, list(runs))
        return checks

    def _held_out(self, spec: MethodSpec, settings: Record, plugin: str, seeds: Sequence[int]) -> Record:
        """Trains on some groups, and scores the others, which share no image with them, before and after."""
        assert self.stage is not None and self.holdout is not None, "asked for, of a method that trains"
        inputs = self.stage.prepared
        clusters = np.arange(len(self.raw.groups)) if self.clusters is None else self.clusters
        is_held = held_out(clusters, self.holdout, self.seed)
        held, used = np.flatnonzero(is_held), np.flatnonzero(~is_held)
        apart, stage = (replace(self.stage, prepared=subset(inputs, groups)) for groups in (held, used))
        texts = [self.texts[row] for row in np.unique(inputs.rows.captions[used])] if self.texts else ()
        together = None if self.clusters is None else self.clusters[used]
        part = replace(
            self,
            stage=stage,
            raw=stage.score(),
            checkpoint=TaskCheckpoint(),
            views=None,
            texts=texts,
            clusters=together,
        )
        if self.rewards is not None:
            rewards = self.rewards
            part = replace(part, rewards=lambda name: _of_groups(rewards(name), used))
        before, after = apart.score(), list[Scores]()
        for seed in seeds:
            part.seed_run(spec, settings, seed, plugin, after=AfterSeed(lambda *_: after.append(apart.score())))
        return held_out_record(self.holdout, len(used), clusters[held], self.metrics, before, after)


def _shuffled(rewards: Mapping[str, RewardModel], order: np.ndarray, axis: int) -> dict[str, RewardModel]:
    """Scores of reward models with the captions, or images, of each group in an order."""
    there = torch.from_numpy(order)
    return {name: replace(model, scores=model.scores.take_along_dim(there, axis)) for name, model in rewards.items()}


def _of_groups(model: RewardModel, groups: np.ndarray) -> RewardModel:
    return replace(model, scores=model.scores[torch.from_numpy(groups)])


@dataclass(frozen=True)
class SeedRun:
    """Result of a method for one seed."""

    scores: Scores
    progress: MethodProgress
    cost: Cost
    positions: list[float]  # fraction of rows that choose each shuffled position
    notes: list[str]
    seconds: float
