"""Test-Time Matching: Algorithm 1 of arXiv:2510.07632, inside groups and over the whole dataset (section 3.2.1).

No code in this file has access to labels. Captions are shuffled by seed before the algorithm sees them; `Step.captions`
is mapped back for the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from tqdm import tqdm

from ttmbench._util.console import progress_bar
from ttmbench.config import TTMConfig
from ttmbench.errors import DivergedError, TtmbenchError, UsageError
from ttmbench.methods.parts import (
    DEFAULT_PARTS,
    Parts,
    PseudoLabelRule,
    PseudoLabels,
    Round,
    Selection,
    SelectionProposal,
    Supervision,
    algorithm1_selection,
    all_fit,
    candidates,
    eligible,
    first_threshold,
    in_order,
    matching,
    select,
)
from ttmbench.methods.training import (
    Step,
    TrainingPairs,
    TrainingState,
    batch_of,
    finetune,
    random_state,
    restore,
    resume_weights,
    set_random_state,
    trained_parameters,
)
from ttmbench.model import DualEncoder
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.types import ScheduleSpec, Scores

Choose = Callable[[int, Scores], tuple[float, PseudoLabels, Selection]]
"""(iteration, scores of the model before it) -> threshold, candidates, and the selection to train on."""

Stop = Callable[[Sequence[Step]], bool]
"""All iterations so far -> whether the run stops after them."""

Kept = Callable[[Step, TrainingState], object]
"""Called after every iteration, before it is yielded; the tensors are not copies and change with the next iteration."""


def adapt(
    stage: PreparedTask,
    scores: Scores,
    *,
    config: TTMConfig,
    schedule: ScheduleSpec,
    learning_rate: float,
    seed: int,
    supervision: Supervision = algorithm1_selection,
    parts: Parts = DEFAULT_PARTS,
    resume: TrainingState | None = None,
    keep: Kept | None = None,
) -> Iterator[Step]:
    """Runs TTM and yields every iteration; the model is trained in place, and the last iteration is the result.

    Args:
        stage: model and prepared inputs.
        scores: scores of the initial model, so that it is not scored again.
        config: hyperparameters.
        schedule: threshold schedule.
        learning_rate: at the start of the first iteration.
        seed: shuffles the captions and orders the batches.
        supervision: chooses what each iteration trains on; by default Algorithm 1.
        parts: parts that replace those of the paper.
        resume: state of an interrupted run with the same arguments; its iterations are not yielded again.
        keep: called with every iteration and the state after it, for checkpoints.

    Raises:
        TtmbenchError: no threshold can be chosen, or the loss is NaN or infinite.
    """
    blind = ShuffledTask(stage, seed)
    choose = selections(blind, scores, config, schedule, seed, supervision, parts)
    trainer = Trainer(stage, config, learning_rate, seed, blind.units, parts)
    rule = parts.stopping
    stop = None if rule is None else lambda steps: bool(rule([blind.round_of(step) for step in steps]))
    yield from _iterations(blind, trainer, choose, scores, f"TTM seed {seed}", stop, resume, keep)


def selections(
    blind: ShuffledTask,
    scores: Scores,
    config: TTMConfig,
    schedule: ScheduleSpec,
    seed: int,
    supervision: Supervision = algorithm1_selection,
    parts: Parts = DEFAULT_PARTS,
) -> Choose:
    """Returns the function that chooses what an iteration trains on; arguments and errors as for `adapt`."""
    first = blind.propose(scores, parts.pseudo_labels)
    by_share = config.by_share(blind.is_global)
    thresholds = np.asarray(
        schedule.compute(first_threshold(config, first, by_share), config.tau_end, config.iterations)
    )
    if thresholds.shape != (config.iterations,) or not np.isfinite(thresholds).all():
        raise TtmbenchError(
            f"schedule '{schedule.name}' gave thresholds of shape {list(thresholds.shape)} for {config.iterations} "
            "iterations; one finite number each is expected"
        )

    def choose(iteration: int, scores: Scores) -> tuple[float, PseudoLabels, Selection]:
        labels = first if iteration == 1 else blind.propose(scores, parts.pseudo_labels)
        threshold = float(thresholds[iteration - 1])
        chosen = parts.selection(labels, threshold, by_share, config.ties) & eligible(labels, config.ties)
        selection = Selection(labels.captions, chosen, labels.soft)
        rng = np.random.default_rng([seed, iteration, 2])
        return threshold, labels, supervision(blind.proposal(selection, labels.tie, rng))

    return choose


def overfit(
    stage: PreparedTask,
    scores: Scores,
    *,
    config: TTMConfig,
    learning_rate: float,
    seed: int,
    parts: Parts = DEFAULT_PARTS,
    resume: TrainingState | None = None,
    keep: Kept | None = None,
) -> Iterator[Step]:
    """SimpleMatch's second step (section 3.1): overfits to the matchings of the initial model.

    It trains on every unit without a tie (on every unit, if the settings include ties), and never recomputes the
    matchings. The budget and the restarts of the learning rate are TTM's; training ends early once every selected group
    satisfies the group score with its pseudo-label as the ground truth. Of ``parts``, only those of training apply.
    Arguments and errors as for `adapt`; yields one Step per restart, with threshold 0.
    """
    blind = ShuffledTask(stage, seed)
    labels = blind.propose(scores)
    fixed = Selection(labels.captions, select(labels, -math.inf, by_share=False, ties=config.ties))
    captions = blind.unshuffle(labels.captions)
    trainer = Trainer(stage, config, learning_rate, seed, blind.units, parts)

    def stop(steps: Sequence[Step]) -> bool:
        if not fixed.selected.any():
            return True
        return not stage.is_global and all_fit(steps[-1].scores.groups[fixed.selected], captions[fixed.selected])

    title = f"SimpleMatch seed {seed}"
    yield from _iterations(blind, trainer, lambda *_: (0.0, labels, fixed), scores, title, stop, resume, keep)


def _iterations(
    blind: ShuffledTask,
    trainer: Trainer,
    choose: Choose,
    scores: Scores,
    title: str,
    stop: Stop | None,
    resume: TrainingState | None,
    keep: Kept | None,
) -> Iterator[Step]:
    """Selects, trains and scores, iteration by iteration; ``scores`` are those of the initial model."""
    config, done, steps = trainer.config, 0, list[Step]()
    if resume is not None:
        trainer.resume(resume)
        done, steps = resume.iteration, list(resume.steps)
        scores = steps[-1].scores
    is_over = stop is not None and bool(steps) and stop(steps)
    with progress_bar(config.iterations * config.epochs, title, "epochs") as shown:
        shown.update(done * config.epochs)
        for iteration in range(done + 1, 1 if is_over else config.iterations + 1):
            started = time.perf_counter()
            threshold, labels, chosen = choose(iteration, scores)
            loss = trainer.train(iteration, blind.pairs(chosen, trainer.parts.loss is not None), shown)
            rate = trainer.rate(iteration)
            if loss:
                scores = trainer.score()
                if not np.isfinite(scores.groups).all():
                    raise DivergedError(f"after iteration {iteration} the model's scores are NaN or infinite", rate)
            seconds = time.perf_counter() - started
            captions = blind.unshuffle(chosen.captions)
            step = Step(iteration, threshold, captions, chosen.selected, labels.tie, loss, rate, scores, seconds)
            steps.append(step)
            if keep is not None:
                keep(step, replace(trainer.state(iteration, scores), steps=tuple(steps)))
            yield step
            if stop is not None and stop(steps):
                break
    trainer.finish()


class ShuffledTask:
    """A task with its captions shuffled by seed: inside every group, or among all captions in the global variant.

    With more images than captions, where each caption selects an image, the images are shuffled.
    """

    def __init__(self, stage: PreparedTask, seed: int) -> None:
        self._stage = stage
        self.is_global = stage.is_global
        rows = stage.prepared.rows
        self._captions_choose = rows.images.shape[1] > rows.captions.shape[1]
        self._choosing, self._options = (
            (rows.captions, rows.images) if self._captions_choose else (rows.images, rows.captions)
        )
        rng = np.random.default_rng([seed, 0])
        if stage.is_global:
            self._order = rng.permutation(self._options.size)
        else:
            each = np.arange(self._options.shape[1])
            self._order = rng.permuted(np.broadcast_to(each, self._options.shape), axis=1)

    @property
    def units(self) -> int:
        """Number of units: groups; images in the global variant."""
        rows = self._stage.prepared.rows
        return rows.images.size if self.is_global else len(rows.images)

    def propose(self, scores: Scores, rule: PseudoLabelRule = matching) -> PseudoLabels:
        """Pseudo-labels among shuffled captions: by default matchings (Algorithm 1, lines 4 and 5; globally Eq. 2)."""
        return candidates(scores, self.is_global, self._order, rule)

    def round_of(self, step: Step) -> Round:
        """Converts an iteration for a stopping rule: with shuffled captions."""
        back = np.argsort(self._order, axis=-1)
        captions = back[step.captions] if self.is_global else np.take_along_axis(back, step.captions, axis=1)
        return Round(step.selected, captions, step.loss, self.shuffled(step.scores))

    def shuffled(self, scores: Scores) -> np.ndarray:
        """Scores in the layout of `in_order`, with shuffled captions."""
        return in_order(scores, self.is_global, self._order)

    def proposal(self, choice: Selection, tie: np.ndarray, rng: np.random.Generator) -> SelectionProposal:
        """Algorithm 1's selection, as input of a supervision."""
        n_captions = int(self._order.shape[-1])
        return SelectionProposal(choice, self.unshuffle(choice.captions), tie, n_captions, self.is_global, rng)

    def unshuffle(self, captions: np.ndarray) -> np.ndarray:
        """A matching's captions by their positions in the task's original order."""
        if self.is_global:
            return np.asarray(self._order[captions])
        return np.take_along_axis(self._order, captions, axis=1)

    def pairs(self, choice: Selection, with_targets: bool = False) -> TrainingPairs:
        """Training pairs of the selected units, as rows of distinct images and captions; with soft labels if asked."""
        if with_targets and not self.is_global:
            return self._soft(choice)
        rows, chosen = self._stage.prepared.rows, self.unshuffle(choice.captions)
        if not isinstance(self._stage.adapter, DualEncoder):
            return self._all_inside(choice)
        if self.is_global:
            images, captions = rows.images.reshape(-1)[:, None], rows.captions.reshape(-1)[chosen]
        else:
            images, captions = self._sides(self._choosing, np.take_along_axis(self._options, chosen, axis=1))
        targets = np.ones((int(choice.selected.sum()), 1, 1), np.float32) if with_targets else None
        return TrainingPairs(images[choice.selected], captions[choice.selected], targets=targets)

    def _soft(self, choice: Selection) -> TrainingPairs:
        """All images and captions of the selected groups, in the shuffled order, with the soft label of each pair."""
        chosen = choice.selected
        options = np.take_along_axis(self._options, self._order, axis=1)[chosen]
        soft = choice.soft if choice.soft is not None else choice.captions[..., None] == np.arange(options.shape[1])
        targets = soft[chosen].astype(np.float32)
        images, captions = self._sides(self._choosing[chosen], options)
        return TrainingPairs(images, captions, targets=targets.swapaxes(1, 2) if self._captions_choose else targets)

    def _sides(self, choosing: np.ndarray, options: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(images, captions), from the side that selects and the side that is selected from."""
        return (options, choosing) if self._captions_choose else (choosing, options)

    def _all_inside(self, choice: Selection) -> TrainingPairs:
        """Every pair inside the selected groups, in the shuffled order, and whether the pseudo-label matches it."""
        if self.is_global:
            raise UsageError(
                "this model learns from pairs inside groups, which match or not, and the global variant has no groups; "
                "use a task that is matched inside groups"
            )
        chosen = choice.selected
        shuffled = np.take_along_axis(self._options, self._order, axis=1)[chosen]
        choosing = self._choosing[chosen]
        shape = (*choosing.shape, shuffled.shape[1])
        matched = choice.captions[chosen][:, :, None] == np.arange(shape[2])
        images, captions = self._sides(
            np.broadcast_to(choosing[:, :, None], shape).reshape(len(choosing), shape[1] * shape[2]),
            np.broadcast_to(shuffled[:, None, :], shape).reshape(len(choosing), shape[1] * shape[2]),
        )
        return TrainingPairs(images, captions, matched.reshape(images.shape))


class Trainer:
    """Optimiser, batch size, learning rate and teacher over the iterations of one run."""

    def __init__(
        self,
        stage: PreparedTask,
        config: TTMConfig,
        learning_rate: float,
        seed: int,
        units: int,
        parts: Parts = DEFAULT_PARTS,
        option: str = "--ttm_args",
    ) -> None:
        self._option = option  # that sets the learning rate, for messages
        self.stage, self.config, self._learning_rate, self._seed = stage, config, learning_rate, seed
        self.parts = parts
        rows = stage.prepared.rows
        images = min(rows.images.shape[1], rows.captions.shape[1])
        self._batch = batch_of(config, units, images, stage.is_global)
        self._trained = trained_parameters(stage.adapter, config.train)
        self._optimizer = parts.optimizer(self._trained, config)
        names = stage.adapter.state_dict().keys() if config.train != "all" else ()
        self._updates = {name: value for name, value in self._trained if names and name not in names}  # of low rank
        self._teacher = None if parts.teacher is None else self._copied()
        torch.manual_seed(seed)  # for adapters with dropout; nothing else here draws from torch

    def rate(self, iteration: int) -> float:
        """Learning rate at the start of an iteration: lr x restart^(t-1), t from 1 (section B.1)."""
        return self._learning_rate * self.config.lr_restart ** (iteration - 1)

    def state(self, iteration: int, scores: Scores | None = None) -> TrainingState:
        """Everything that the next iteration depends on; the tensors are not copied."""
        optimizers = [{"state": self._optimizer.state_dict()["state"]}] if self.config.keep_optimizer_state else []
        return TrainingState(
            *(iteration, scores, self._weights(), optimizers, random_state(self.stage.adapter), self._teacher or {})
        )

    def _weights(self) -> dict[str, torch.Tensor]:
        """Everything that training changes, by name; the tensors are not copied."""
        return {**self.stage.adapter.state_dict(), **{name: update.detach() for name, update in self._updates.items()}}

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._weights().items()}

    def _load(self, weights: Mapping[str, torch.Tensor], is_resumed: bool = False) -> None:
        """Weights as `_weights` gives them; TtmbenchError if the model of a resumed run does not load them."""
        tensors = {name: tensor for name, tensor in weights.items() if name not in self._updates}
        (resume_weights if is_resumed else restore)(self.stage.adapter, tensors)
        with torch.no_grad():
            for name, update in self._updates.items():
                update.copy_(weights[name])

    def resume(self, state: TrainingState) -> None:
        """Goes on from a state."""
        self._load(state.model, is_resumed=True)
        for optimizer in state.optimizers:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": dict(optimizer["state"]), "param_groups": groups})
        if self._teacher is not None:
            self._teacher = {name: tensor.to(self._teacher[name].device) for name, tensor in state.extra.items()}
        set_random_state(state.random, self.stage.adapter)

    def score(self) -> Scores:
        """Scores of the model, or of its teacher if there is one; the model is not changed."""
        if self._teacher is None:
            return self.stage.score()
        model = self._copied()
        self._load(self._teacher)
        scores = self.stage.score()
        self._load(model)
        return scores

    def finish(self) -> None:
        """The model becomes its teacher, if there is one: the run is over."""
        if self._teacher is not None:
            self._load(self._teacher)

    def _updated(self) -> None:
        if self._teacher is not None and self.parts.teacher is not None:
            self.parts.teacher(self._teacher, self._weights())

    def train(
        self,
        iteration: int,
        pairs: TrainingPairs,
        shown: tqdm[NoReturn],
        factor: Callable[[int, int], float] | None = None,
    ) -> tuple[float, ...]:
        """Mean loss of every epoch; empty, and the model untouched, if nothing was selected.

        ``factor`` is the learning-rate schedule, (step, steps) -> factor, in place of that of the parts.
        """
        if len(pairs.images) == 0:
            shown.update(self.config.epochs)
            return ()
        if not self.config.keep_optimizer_state and iteration > 1:
            self._optimizer = self.parts.optimizer(self._trained, self.config)

        def course(step: int, steps: int) -> float:
            return self.parts.lr_schedule(step, steps, self.config.lr_floor) if factor is None else factor(step, steps)

        def epoch_done(loss: float) -> None:
            which = f"iteration {iteration}/{self.config.iterations}, " if factor is None else ""
            shown.set_postfix_str(f"{which}loss {loss:.3f}")
            shown.update()

        return finetune(
            self.stage.adapter,
            self.stage.prepared,
            pairs,
            self._optimizer,
            config=self.config,
            learning_rate=self.rate(iteration),
            batch=self._batch,
            rng=np.random.default_rng([self._seed, iteration]),
            crop_rng=np.random.default_rng([self._seed, iteration, 1]),
            epoch_done=epoch_done,
            part_size=self.stage.batch_size,
            factor=course,
            loss=self.parts.loss,
            updated=self._updated,
            option=self._option,
        )
