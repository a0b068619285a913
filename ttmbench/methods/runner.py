"""Runs a test-time method on a task for every seed.

Captions are shuffled by seed before the method sees them, and its scores are mapped back to the task's order. An
interrupted training method resumes, and the model is restored afterwards.

Each method and seed has one checkpoint file: its finished iterations, the training state after the last turn, and, once
the seed is finished, its final scores. The file has a digest; one that is damaged or of another run is never used.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.file_io import load_sealed, replace_sealed, separated, tensors_digest
from ttmbench._util.third_party import foreign_errors
from ttmbench.config import TTMConfig, read_references
from ttmbench.errors import DivergedError, TtmbenchError, UsageError
from ttmbench.methods.audit import compare_matchings, compare_selections, held_out_record
from ttmbench.methods.features import (
    FeatureTask,
    Logits,
    ReferenceSet,
    RewardModel,
    ScoreTask,
    ViewSource,
    scale_and_bias,
)
from ttmbench.methods.model_task import ModelTask, true_captions
from ttmbench.methods.settings import Settings, checked_settings, load_parts, recorded
from ttmbench.methods.task import MethodStep, TrainingTask
from ttmbench.methods.training import Cost, Iteration, TrainingState, restored
from ttmbench.model import DualEncoder
from ttmbench.plugins.registry import BUILTIN, Registry, load_target
from ttmbench.results.document import IterationRecord, MethodCost
from ttmbench.results.summary import MethodScores, held_out, metric_chance, metric_mean, metric_values
from ttmbench.scoring.dual_encoder import Features, PreparedTask, encode
from ttmbench.scoring.inputs import Prepared, Rows, subset, take
from ttmbench.types import GroupShape, MethodSpec, MetricSpec, Record, Scores

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, Any]
Left = Mapping[str, tuple[Tensors, Metadata]]
"""What is made of a trained model while it is there, by name: tensors and JSON values, stored with the seed."""
AfterSeed = Callable[[int, Record], Left | None]
"""Makes it, of a seed and the record of its run."""
_FORMAT = 5  # version of the files; other versions are not read
_MAX_SAVING = 0.1  # largest fraction of the time spent on writing files
_PARTS = ("model", "random", "extra")
_STEP_ARRAYS = ("captions", "selected", "tie")
_STEP_VALUES = ("iteration", "threshold", "loss", "learning_rate", "seconds")


@dataclass
class SeedRun:
    """What a method has done with one seed, in this process and in those that were stopped."""

    # in the task's order once it is finished; before, in the shuffled order, of groups that had a turn
    scores: Scores | None = None
    steps: list[Iteration] = field(default_factory=list)  # of a method that trains the whole model
    is_finished: bool = False
    turns: int = 0  # that are over
    updates: int = 0  # turns in which parameters were trained
    losses: list[float] = field(default_factory=list)  # of the turns that report one
    notes: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0  # wall time
    trained: Mapping[str, int] = field(default_factory=dict)  # name of a parameter -> how many numbers it has
    left: Left = field(default_factory=dict)  # what was made of the trained model


@dataclass
class SeedCheckpoint:
    """The checkpoint file of one method and seed; ``start`` says what it is valid for. Stored nowhere without a path.

    ``warn`` is called if it cannot be written, and the run continues without checkpoints.
    """

    path: Path | None
    start: str
    warn: Callable[[str], None]
    _writer: threading.Thread | None = None
    _saved: float = field(default_factory=time.monotonic)
    _took: float = 0.0  # seconds of writing the last state

    def read(self) -> tuple[SeedRun, TrainingState | None]:
        """An earlier run of the seed, and its state unless it had finished; a new one if its file cannot be used."""
        if self.path is not None and self.path.exists():
            try:
                return self._read(self.path)
            except Exception as error:
                warn(f"cannot resume from {self.path}: {error}; its seed starts again")
        return SeedRun(), None

    def _read(self, path: Path) -> tuple[SeedRun, TrainingState | None]:
        tensors, about = load_sealed(path)
        if about.get("start") != self.start:
            raise ValueError("it was written for another method, seed, scores, data or settings, or by another version")
        run = SeedRun(**{**about["run"], "cost": Cost(about["run"]["cost"])})
        run.scores = scores_of(tensors) if "scores.groups" in tensors else None
        for values in about["steps"]:
            of_step = _inside(tensors, f"step.{values['iteration']}.")
            arrays = {name: of_step[name].numpy() for name in _STEP_ARRAYS}
            known: Metadata = {**values, **arrays, "loss": tuple(values["loss"])}
            run.steps.append(Iteration(**known, scores=scores_of(of_step)))
        if run.is_finished:
            left = enumerate(about["left"].items())
            run.left = {name: (_inside(tensors, f"left.{number}."), values) for number, (name, values) in left}
            return run, None
        optimizers: list[Metadata] = [{"state": {}, "param_groups": groups} for groups in about["optimizers"]]
        for key, tensor in _inside(tensors, "optimizer.").items():
            number, parameter, name = key.split(".", 2)
            optimizers[int(number)]["state"].setdefault(int(parameter), {})[name] = tensor
        parts = {part: _inside(tensors, f"{part}.") for part in _PARTS}
        return run, TrainingState(run.turns, optimizers=optimizers, steps=run.steps, **parts)

    def is_due(self, seconds: float = 0.0) -> bool:
        """Whether the last state is this many seconds old, and writing would take at most a tenth of the time."""
        return time.monotonic() - self._saved >= max(seconds, self._took / _MAX_SAVING)

    def keep(self, run: SeedRun, state: TrainingState | None = None) -> None:
        """Replaces the file by the run as it is now, with the state after its last turn unless it is finished.

        Weights on an accelerator are copied at once and written in the background, since a file of some hundred
        megabytes takes seconds. Until the new file is complete, the previous one is valid.
        """
        self.finish_writing()
        if self.path is None:
            return
        began, path, groups = time.monotonic(), self.path, []
        tensors = {} if run.scores is None else score_tensors(run.scores)
        for step in run.steps:
            of_step = {name: torch.from_numpy(np.array(getattr(step, name))) for name in _STEP_ARRAYS}
            of_step |= score_tensors(step.scores)
            tensors |= {f"step.{step.iteration}.{name}": tensor for name, tensor in of_step.items()}
        if state is not None:
            tensors |= {f"{part}.{name}": of for part in _PARTS for name, of in getattr(state, part).items()}
            groups = [optimizer.get("param_groups") for optimizer in state.optimizers]
            for number, optimizer in enumerate(state.optimizers):
                for parameter, values in optimizer["state"].items():
                    known = {name: torch.as_tensor(value) for name, value in values.items() if value is not None}
                    tensors |= {f"optimizer.{number}.{parameter}.{name}": value for name, value in known.items()}
        for number, (made, _) in enumerate(run.left.values()):
            tensors |= {f"left.{number}.{name}": of for name, of in made.items()}
        about = {name: deepcopy(of) for name, of in vars(run).items() if name not in ("scores", "steps", "left")}
        left = {name: values for name, (_, values) in run.left.items()}
        steps = [{name: getattr(step, name) for name in _STEP_VALUES} for step in run.steps]
        card = {"run": about, "steps": steps, "left": left, "optimizers": groups, "start": self.start}
        apart = separated(tensors)

        def put() -> None:
            why = replace_sealed(path, apart, card)
            if why is not None:
                self.warn(why)
                self.path = None

        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            self._writer = threading.Thread(target=put, name=f"writes {path.name}")
            self._writer.start()
        else:
            put()
        self._saved = time.monotonic()
        self._took = self._saved - began

    def finish_writing(self) -> None:
        """Waits until the last state is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None


def _inside(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass
class TaskCheckpoint:
    """Checkpoints of one task, valid for its data and run; stores nothing without a folder."""

    folder: Path | None = None
    data: str = ""  # digest
    run: str = ""  # key of the run
    _warned: bool = False

    def seed(self, method: str, seed: int, raw: Scores, more: Tensors | None = None) -> SeedCheckpoint:
        """The checkpoint of one method and seed, valid for the raw scores and other given inputs."""
        if self.folder is None or self._warned:
            return SeedCheckpoint(None, "", self._warn)
        digest = tensors_digest(score_tensors(raw) | (more or {}))
        start = f"{_FORMAT}:{method}:{seed}:{self.run}:{self.data}:{digest}"  # a file that was moved is not used
        return SeedCheckpoint(self.folder / method / f"seed_{seed}.safetensors", start, self._warn)

    def _warn(self, why: str) -> None:
        if not self._warned:
            warn(f"{why}; the run continues, but an interrupted run would resume from an earlier point")
        self._warned = True


_ARRAYS = ("groups", "all_pairs", "caption_pairs")


def score_tensors(scores: Scores) -> Tensors:
    """Converts score arrays to the tensors of a file; `scores_of` reads them."""
    arrays = {name: getattr(scores, name) for name in _ARRAYS}
    return {f"scores.{name}": torch.from_numpy(np.array(of)) for name, of in arrays.items() if of is not None}


def scores_of(tensors: Tensors) -> Scores:
    """The score arrays that `score_tensors` wrote."""
    known = (tensors.get(f"scores.{name}") for name in _ARRAYS)
    return Scores(*(None if tensor is None else tensor.numpy() for tensor in known))  # type: ignore[arg-type]


def checked_scores(given: object, shape: torch.Size, name: str) -> np.ndarray:
    """Converts a method's scores to float32; TtmbenchError unless there is a finite number for each pair."""
    if not isinstance(given, torch.Tensor) or given.shape != shape:
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


def each_step(
    task: object, settings: Settings, spec: MethodSpec, registry: Registry
) -> Iterator[MethodStep | Iteration]:
    """Yields the validated steps of a method; gradients are enabled only inside the method."""
    kind = Iteration if spec.takes_ttm_args else MethodStep
    expected = "what task.train returns" if spec.takes_ttm_args else "a MethodStep (batch.step)"
    with named(spec, registry) as name:
        with torch.enable_grad():
            turns = load_target(spec.target)(task, **({} if isinstance(settings, TTMConfig) else settings))
        if not isinstance(turns, Iterator):
            raise TtmbenchError(f"{name} needs gradients, so it yields {expected} for each turn; it gave {turns!r:.60}")
        while True:
            with torch.enable_grad():
                step = next(turns, None)
            if step is None:
                return
            if not isinstance(step, kind):
                raise TtmbenchError(f"{name} yielded {step!r:.60}; {expected} is expected")
            if isinstance(step, MethodStep) and not torch.isfinite(step.scores).all():
                raise DivergedError(f"{name}: the scores became NaN or infinite", None)
            yield step


@contextmanager
def named(spec: MethodSpec, registry: Registry) -> Iterator[str]:
    """Gives the method's name for messages, and prefixes errors raised inside with it."""
    plugin = registry.methods.plugins.get(spec.name, BUILTIN)
    name = f"method '{spec.name}'" + ("" if plugin == BUILTIN else f" of plugin '{plugin}'")
    try:
        with foreign_errors(name):
            yield name
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def seen_rows(rows: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray]:
    """A task's number of each distinct item after the shuffle inside groups [distinct], and new numbers, like ``rows``.

    A slice stands for the task's own order, in which nothing has to be copied. A task numbers its distinct captions in
    order of appearance, so the smallest number of a group would be its first caption, which is the caption of the first
    image. Here they are numbered by appearance after the shuffle.

    >>> order, numbers = seen_rows(np.array([[5, 3], [3, 7]]))
    >>> order.tolist(), numbers.tolist()
    ([5, 3, 7], [[0, 1], [1, 2]])
    """
    distinct, first, number = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    is_the_tasks = np.array_equal(distinct[order], np.arange(len(order)))
    return slice(None) if is_the_tasks else distinct[order], np.argsort(order)[number].reshape(rows.shape)


EVERY = 20.0  # seconds between two checkpoints of turns on some groups, so that short ones are not spent on files
WIDTH = 16  # of random features
DRAWS = {"scores": 20_000, "features": 2_000, "views": 1_000}  # groups
_DIRECTIONS = f"unit vectors in independent random directions of {WIDTH} dimensions, scored by the model"
DISTRIBUTIONS = {"scores": "independent N(0, 1) logits", "features": _DIRECTIONS, "views": _DIRECTIONS}
"""Descriptions of the random inputs that replace a task's scores or features."""


def chance_of(
    spec: MethodSpec,
    method: Callable[[ScoreTask], torch.Tensor],
    shape: GroupShape,
    metrics: Sequence[MetricSpec],
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    references: Mapping[str, ReferenceSet] | None = None,
) -> tuple[dict[str, float | None], Record]:
    """Runs a method on random groups of a shape.

    A method that needs scores gets independent N(0, 1) logits. A method that needs features or views gets unit vectors
    in independent random directions, which ``model`` scores; its references from other tasks are replaced likewise.
    Returns metric -> mean over the groups, a fraction or None where undefined, and how it was estimated, for results.
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
    scores, raw = (Scores(each.detach().float().cpu().numpy()) for each in (output, task.scores))
    # Metrics of the raw scores, whose expectations are known, are control variates: a metric that the method does not
    # change in any group gets exactly its raw chance level.
    in_groups = [metric for metric in metrics if metric.scope == "group"]
    known = [(metric_values(metric, raw), metric_chance(metric, raw)) for metric in in_groups]
    controls = [values - chance for values, chance in known if values is not None and chance is not None]
    design = np.stack([np.ones(len(scores.groups)), *controls], axis=1)
    means: dict[str, float | None] = {}
    for metric in in_groups:
        values = metric_values(metric, scores)
        mean = None if values is None else float(np.linalg.lstsq(design, values, rcond=None)[0][0])
        means[metric.name] = None if mean is None else round(min(1.0, max(0.0, mean)), 6)
    return means, {"distribution": DISTRIBUTIONS[kind], "draws": draws}


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
    registry: Registry  # schedules and parts of TTM
    settings: TTMConfig  # those of TTM on the task, which methods that take them change
    stage: PreparedTask | None = None  # model and prepared inputs; None for methods that need scores alone
    restores: bool = True  # the model, after each seed that trains it
    items: tuple[int, int] = (1, 1)  # distinct images and captions
    is_global: bool = False  # whether all images and captions of the task are matched
    views: Callable[[int, Cost], ViewSource] | None = None  # seed and counts -> views; None without images
    checkpoint: TaskCheckpoint = field(default_factory=TaskCheckpoint)
    texts: Sequence[str] = ()  # of distinct captions in the order of rows; none where features are stored
    audit: bool = False  # run every seed again with permuted captions
    holdout: float | None = None  # also train on some groups and score this fraction of held-out groups
    clusters: np.ndarray | None = None  # of the groups, int [groups]; equal where they share an image
    seed: int = 0  # seed of the held-out split, shared by all seeds
    references: Callable[[str], ReferenceSet] | None = None  # name in a setting -> references from another task
    rewards: Callable[[str], RewardModel] | None = None  # name in a setting -> another model
    # called with the method and each iteration
    iterated: Callable[[str, IterationRecord], object] = lambda method, record: None
    divided: bool = False  # whether processes on other devices ran the seeds; their iterations are reported here

    def column(self, spec: MethodSpec, given: Mapping[str, object], after: AfterSeed = lambda *_: None) -> MethodScores:
        """Runs the method with every seed and the user's settings; returns its scores, chance levels and record.

        UsageError for a wrong setting, or a task that the method is not defined for; TtmbenchError if it gave no finite
        score for some pair.
        """
        settings = checked_settings(spec, given, self.settings)
        stated = recorded(settings)
        # all seeds of a method without random draws are equal
        seeds = self.seeds if spec.trains or "views" in spec.needs else self.seeds[:1]
        runs = {seed: self.seed_run(spec, settings, seed, after) for seed in seeds}
        chance, estimated = (None, None) if spec.trains else self._chance(spec, stated)
        record = self._record(spec, stated, runs, estimated)
        if self.audit and not {"labels", "random_labels"} & {*spec.needs}:
            record["audit_labels"] = self._audit(spec, settings, runs)
        if self.holdout is not None and spec.reset == "never":
            record["holdout"] = self._held_out(spec, settings, seeds)
        are_logits = spec.gives_logits and self.raw.are_logits
        return MethodScores(
            spec.name,
            [replace(run.scores, are_logits=are_logits) for run in runs.values() if run.scores is not None],
            record,
            iterations=[[step.scores for step in run.steps[:-1]] for run in runs.values() if run.steps],
            chance=chance,
            track=spec.track,
            left=[run.left for run in runs.values()],
        )

    def seed_run(
        self,
        spec: MethodSpec,
        settings: Settings,
        seed: int,
        after: AfterSeed = lambda *_: None,
        held: Callable[[], Scores] | None = None,
    ) -> SeedRun:
        """Runs one seed of a method with all of its settings; a method that trains resumes, and the model is restored.

        ``held`` gives the final scores of the adapted model, on held-out groups, in place of the method's.
        """
        if not spec.trains:
            return self._scored_run(spec, recorded(settings), seed)
        clock = time.perf_counter()
        rewards = self._others(spec, recorded(settings))[1] if "reward_model" in spec.needs else {}
        inputs = {name: model.scores for name, model in rewards.items()}
        checkpoint = self.checkpoint.seed(f"{spec.name}_held_out" if held else spec.name, seed, self.raw, inputs)
        run, state = checkpoint.read()
        for iteration in run.steps if self.divided else ():
            self.iterated(spec.name, self.iteration_record(iteration, seed))
        if run.is_finished:
            return run
        assert self.stage is not None, "what is trained was prepared"
        with restored(self.stage) if self.restores else nullcontext():
            task: ModelTask | TrainingTask
            if spec.needs_model:
                ttm = settings if isinstance(settings, TTMConfig) else self.settings
                parts = load_parts(self.registry, ttm)
                schedule, reads = self.registry.schedules[ttm.schedule], "labels" in spec.needs
                task = ModelTask(self.stage, self.raw, ttm, seed, schedule, parts, with_labels=reads, resume=state)
            else:
                task = self._training_task(spec, recorded(settings), seed, state)
            if state is None:
                run.notes, run.cost = task.notes, task.cost
            task.notes, task.cost = run.notes, run.cost
            scores = np.full(self.raw.groups.shape, np.nan, np.float32) if run.scores is None else run.scores.groups
            for step in each_step(task, settings, spec, self.registry):
                run.turns += 1
                run.seconds += time.perf_counter() - clock
                clock = time.perf_counter()
                if isinstance(step, Iteration):
                    run.steps.append(step)
                    run.losses += step.loss
                    run.updates += bool(step.loss)
                    checkpoint.keep(run, task.snapshot())
                    self.iterated(spec.name, self.iteration_record(step, seed))
                    continue
                run.losses += [] if step.loss is None else [step.loss]
                run.updates += step.updated
                scores[step.groups] = step.scores.float().cpu()
                if checkpoint.is_due(EVERY):
                    run.scores = Scores(scores)
                    checkpoint.keep(run, task.snapshot())
            run.trained = {name: parameter.numel() for name, parameter in task.trained.items()}
            if isinstance(task, ModelTask):
                task.finish()
            if run.steps:
                run.scores = run.steps[-1].scores
            else:
                with named(spec, self.registry) as name:
                    given = torch.from_numpy(scores)
                    run.scores = self._in_task_order(spec, given, given.shape, seed, name)
            run.left = after(seed, {"settings": recorded(settings)}) or {}
            run.scores = run.scores if held is None else held()
        run.seconds += time.perf_counter() - clock
        run.is_finished = True
        checkpoint.keep(run)
        return run

    def _scored_run(self, spec: MethodSpec, settings: Record, seed: int) -> SeedRun:
        """One seed of a method that trains nothing."""
        clock, cost = time.perf_counter(), Cost()
        task = self._scored_task(spec, settings, seed, cost)
        with named(spec, self.registry) as name, torch.no_grad():
            given = load_target(spec.target)(task, **settings)
            scores = self._in_task_order(spec, given, task.scores.shape, seed, name)
        return SeedRun(scores, notes=task.notes, cost=cost, seconds=time.perf_counter() - clock)

    def _chance(self, spec: MethodSpec, settings: Record) -> tuple[dict[str, float | None], Record]:
        """Chance levels of a method that trains nothing, and how they were estimated."""
        with named(spec, self.registry), torch.no_grad():
            method, references = partial(load_target(spec.target), **settings), self._others(spec, settings)[0]
            return chance_of(spec, method, self.shape, self.metrics, self._logits(spec), references)

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

    @property
    def _axis(self) -> int:
        """Axis of scores along which items are shuffled: captions, or images where there are more of them."""
        return 1 if self.shape.more_images else 2

    def _in_task_order(self, spec: MethodSpec, given: object, shape: torch.Size, seed: int, name: str) -> Scores:
        """What a method gave, checked, in the task's order."""
        scores = checked_scores(given, shape, name)
        if self.shape.more_images and not spec.takes_features:
            scores = scores.transpose(0, 2, 1)
        back = np.argsort(self.order(seed), axis=self._axis)
        groups = np.ascontiguousarray(np.take_along_axis(scores, back, axis=self._axis))
        return Scores(groups, caption_pairs=self.raw.caption_pairs)

    def _logits(self, spec: MethodSpec) -> Logits:
        """Scores of features of any dimension with the model's temperature and bias."""
        if not spec.takes_features:
            return lambda images, captions: images @ captions.T
        assert self.stage is not None and isinstance(self.stage.adapter, DualEncoder), "asked for before"
        scale, bias = (
            number.cpu() for number in scale_and_bias(self.stage.adapter.logits, self.encoded.images.features)
        )
        return lambda images, captions: images @ captions.T * scale + bias

    def _others(self, spec: MethodSpec, settings: Record) -> tuple[dict[str, ReferenceSet], dict[str, RewardModel]]:
        """References from another task, with features by the original model, and a reward model, if settings name any.

        A reward model that is the model itself is none.
        """
        references, rewards = dict[str, ReferenceSet](), dict[str, RewardModel]()
        task, model = str(settings.get("references", "task")), str(settings.get("reward", "self"))
        if "references" in spec.needs and self.references is not None and read_references(task):
            references[task] = self.references(task)
        if "reward_model" in spec.needs and self.rewards is not None and model != "self":
            rewards[model] = self.rewards(model)
        return references, rewards

    def _seen(self, seed: int) -> list[tuple[np.ndarray | slice, np.ndarray]]:
        """Images and captions after the shuffle."""
        images, captions, order = self.encoded.images.rows, self.encoded.captions.rows, self.order(seed)
        if self.shape.more_images:
            images = np.take_along_axis(images, order[:, :, 0], axis=1)
        else:
            captions = np.take_along_axis(captions, order[:, 0], axis=1)
        return [seen_rows(images), seen_rows(captions)]

    def _scored_task(self, spec: MethodSpec, settings: Record, seed: int, cost: Cost) -> ScoreTask:
        """The task of a method that trains nothing; with features if it needs any."""
        cost.update(image_rows=self.items[0], caption_rows=self.items[1])  # scores and features of the model as it is
        scores = torch.from_numpy(np.take_along_axis(self.raw.groups, self.order(seed), axis=self._axis))
        if not spec.takes_features:  # where there are more images than captions, captions choose
            return ScoreTask(scores.transpose(1, 2).contiguous() if self.shape.more_images else scores, seed)
        assert self.stage is not None, "features are of a prepared task"
        references, rewards = self._others(spec, settings)
        for there in references.values():
            cost.update(image_rows=len(there.images), caption_rows=len(there.captions))
        cost.update(reward_rows=sum(model.rows for model in rewards.values()))
        encoded, ((images, image_rows), (captions, caption_rows)) = self.encoded, self._seen(seed)
        views, order = None if self.views is None else self.views(seed, cost), torch.from_numpy(self.order(seed))
        return FeatureTask(
            scores,
            seed,
            model=cast("DualEncoder", self.stage.adapter).logits,
            images=encoded.images.features[images].clone(),
            captions=encoded.captions.features[captions].clone(),
            image_rows=torch.from_numpy(image_rows),
            caption_rows=torch.from_numpy(caption_rows),
            views=None if views is None else lambda *settings: views(*settings)[images],
            cost=cost,
            references={
                name: replace(there, images=there.images.clone(), captions=there.captions.clone())
                for name, there in references.items()
            },
            rewards={
                name: replace(model, scores=model.scores.take_along_dim(order, self._axis))
                for name, model in rewards.items()
            },
        )

    def _training_task(
        self, spec: MethodSpec, settings: Record, seed: int, resume: TrainingState | None
    ) -> TrainingTask:
        """The task of a method that trains on features, which goes on from a state."""
        assert self.stage is not None, "what is trained was prepared"
        features = cast("FeatureTask", self._scored_task(spec, settings, seed, Cost()))
        inputs, ((images, image_rows), (captions, caption_rows)) = self.stage.prepared, self._seen(seed)
        prepared, texts = (take(inputs.images, images), take(inputs.captions, captions)), list(self.texts)
        return TrainingTask(
            features,
            seed,
            adapter=cast("Any", self.stage.adapter),
            prepared=Prepared(*prepared, Rows(image_rows, caption_rows)),
            resets=spec.reset in ("group", "batch"),
            resume=resume,
            texts=cast("list[str]", take(texts, captions)) if texts else (),
            clusters=None if self.clusters is None else self.clusters.tolist(),
        )

    def _record(self, spec: MethodSpec, settings: Record, runs: Mapping[int, SeedRun], chance: Record | None) -> Record:
        """Record for results: the method, and the run of each seed; here iterations meet the labels."""
        every = [*runs.values()]
        names = hashlib.sha256("\n".join(sorted(every[0].trained)).encode()).hexdigest()
        count = sum(every[0].trained.values())
        trained = {"train": settings.get("train"), "parameters": count, "names_sha256": names}
        declared = ("reference", "scope", "reset", "order_dependent", "assumes_matching", "scores_before_update")
        steps = [(step, seed) for seed, run in runs.items() for step in run.steps]
        others: Record = {}
        if {"references", "reward_model"} & {*spec.needs}:
            references, rewards = self._others(spec, settings)
            for reference in references.values():
                others["references"] = reference.record
            for reward in rewards.values():
                others["reward_model"] = reward.record
        return {
            **{name: getattr(spec, name) for name in declared},
            "settings": settings,
            "needs": list(spec.needs),
            "seeds": list(runs),
            "turns": every[0].turns,
            "updates": every[0].updates,
            "loss": [fmean(run.losses) if run.losses else None for run in every],
            "trained": trained if count else None,
            "cost": [self._cost(run) for run in every],
            "chance": chance,
            "notes": list(dict.fromkeys(note for run in every for note in run.notes)),
            **others,
            **({"iterations": [self.iteration_record(*step).model_dump() for step in steps]} if steps else {}),
        }

    def _cost(self, run: SeedRun) -> Record:
        """Counts of a seed for results, with encoder passes in units of encoding every image, or caption, once."""
        counts, (images, captions) = run.cost, self.items
        passes = (counts["image_rows"] + 2 * counts["image_rows_backward"]) / images
        passes += (counts["caption_rows"] + 2 * counts["caption_rows_backward"]) / captions
        derived = {"encoder_passes": passes, "seconds": run.seconds + counts["shared_seconds"]}
        return {name: counts[name] for name in MethodCost.model_fields} | derived

    def iteration_record(self, step: Iteration, seed: int) -> IterationRecord:
        """An iteration with what the labels say of it, for the report."""
        is_correct = (step.captions == true_captions(self.raw, self.is_global)).all(axis=1)
        count = int(step.selected.sum())
        return IterationRecord(
            seed=seed,
            iteration=step.iteration,
            threshold=step.threshold,
            selected=count,
            candidates=len(step.selected),
            coverage=count / len(step.selected),
            tied=int(step.tie.sum()),
            pseudo_label_accuracy=int(is_correct[step.selected].sum()) / count if count else None,
            loss=list(step.loss),
            learning_rate=step.learning_rate,
            metrics={metric.name: metric_mean(metric, step.scores) for metric in self.metrics},
            seconds=step.seconds,
        )

    def _audit(self, spec: MethodSpec, settings: Settings, runs: Mapping[int, SeedRun]) -> Record:
        """Runs every seed again on the task with the captions of every group in another order."""
        compared = every = 0
        for seed, run in runs.items():
            order = self.order(seed, 4)
            again = self._permuted(order).seed_run(spec, settings, seed)
            assert run.scores is not None and again.scores is not None, "both have run"
            if run.steps:
                there = order.reshape(len(order), -1)
                compared += compare_selections(spec.name, seed, run.steps, again.steps, there, self.is_global)
                every += len(run.steps[-1].selected)
            else:
                back = np.argsort(order, axis=self._axis)
                groups = np.take_along_axis(again.scores.groups, back, axis=self._axis)
                compared += compare_matchings(spec.name, seed, run.scores.groups, groups)
                every += len(groups)
        return {"passed": True, "compared": compared, "of": every}

    def _permuted(self, order: np.ndarray) -> MethodRun:
        """The run with the captions of every group in an order; with more images than captions, the images."""
        raw = Scores(np.take_along_axis(self.raw.groups, order, axis=self._axis), caption_pairs=self.raw.caption_pairs)
        stage = self.stage
        if stage is not None:
            rows, each = stage.prepared.rows, order.reshape(len(order), -1)
            if self.shape.more_images:
                rows = Rows(np.take_along_axis(rows.images, each, axis=1), rows.captions)
            else:
                rows = Rows(rows.images, np.take_along_axis(rows.captions, each, axis=1))
            stage = replace(stage, prepared=replace(stage.prepared, rows=rows))
            raw = stage.score()
        there = torch.from_numpy(order)
        rewards = self._rewards_of(lambda scores: scores.take_along_dim(there, self._axis))
        return replace(
            self, stage=stage, raw=raw, rewards=rewards, checkpoint=TaskCheckpoint(), iterated=lambda *_: None
        )

    def _rewards_of(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[str], RewardModel] | None:
        """Reward models with their scores changed."""
        rewards = self.rewards
        return None if rewards is None else lambda name: replace(rewards(name), scores=change(rewards(name).scores))

    def _held_out(self, spec: MethodSpec, settings: Settings, seeds: Sequence[int]) -> Record:
        """Trains on some groups, and scores the others, which share no image with them, before and after."""
        assert self.stage is not None and self.holdout is not None, "asked for, of a method that trains"
        inputs = self.stage.prepared
        clusters = np.arange(len(self.raw.groups)) if self.clusters is None else self.clusters
        is_held = held_out(clusters, self.holdout, self.seed)
        held, used = np.flatnonzero(is_held), np.flatnonzero(~is_held)
        apart, stage = (replace(self.stage, prepared=subset(inputs, groups)) for groups in (held, used))
        kept = torch.from_numpy(used)
        part = replace(
            self,
            stage=stage,
            raw=stage.score(),
            views=None,
            texts=[self.texts[row] for row in np.unique(inputs.rows.captions[used])] if self.texts else (),
            clusters=None if self.clusters is None else self.clusters[used],
            rewards=self._rewards_of(lambda scores: scores[kept]),
            iterated=lambda *_: None,
        )
        before = apart.score()
        after = [part.seed_run(spec, settings, seed, held=apart.score).scores for seed in seeds]
        scored = [scores for scores in after if scores is not None]
        return held_out_record(self.holdout, len(used), clusters[held], self.metrics, before, scored)
