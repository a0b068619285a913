"""What a test-time method that trains gets of a task: parameters, optimisers and batches, without labels.

Captions stand in an order drawn by seed inside each group, so a method cannot know which one is true; the framework
puts its scores back into the task's own order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.stream import Clusters, batches_of
from ttmbench.protocols import Batch as PreparedBatch
from ttmbench.protocols import CaptionEmbeddings, TrainableInParts
from ttmbench.scoring.capabilities import TrainableDualEncoder
from ttmbench.scoring.inputs import Prepared, take
from ttmbench.ttm.finetune import random_state
from ttmbench.ttm.low_rank import parameters_of
from ttmbench.ttm.parameters import is_of_captions, is_of_images, is_temperature
from ttmbench.ttm.trainer import TrainingState
from ttmbench.types import Scores

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class MethodStep:
    """What a training method has done: new scores of some groups.

    Attributes:
        groups: positions, int64 [some groups]; a group that is given again has the later scores.
        scores: [some groups, images, captions].
        loss: of the last update; None for none.
        updated: whether anything was trained.
    """

    groups: torch.Tensor
    scores: torch.Tensor
    loss: float | None = None
    updated: bool = True


class TrainingTask(FeatureTask):
    """A task with a model that the method may train.

    A method is a generator: it asks for parameters (`train`) and an optimiser (`optimizer`) once, goes through
    `stream` or `iterations`, and yields a `MethodStep` for each turn of that loop. What it must remember from one turn
    to the next beside these stands in ``state``: a run that was stopped goes on at the turn after the last one.
    A method that asks for no parameters trains tensors of its own, which it makes anew in each turn.

    Attributes:
        state: name -> tensor; kept between turns.
        trained: names of the parameters that `train` chose.
    """

    def __init__(
        self,
        features: FeatureTask,
        seed: int,
        *,
        adapter: TrainableDualEncoder,
        prepared: Prepared,
        resets: bool = False,
        resume: TrainingState | None = None,
        texts: Sequence[str] = (),
        clusters: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            features.scores,
            seed,
            model=features._logits,
            images=features.all_images,
            captions=features.all_captions,
            image_rows=features.image_rows,
            caption_rows=features.caption_rows,
            views=features._views,
            cost=features.cost,
            references=features._references,
            rewards=features._rewards,
        )
        self.adapter, self._prepared, self._resets = adapter, prepared, resets
        self._seed, self._resume, self._texts, self._clusters = seed, resume, texts, clusters
        self._turns = 0 if resume is None else resume.iteration
        self.state: dict[str, torch.Tensor] = {} if resume is None else dict(resume.extra)
        self.trained: dict[str, torch.nn.Parameter] = {}
        self._original: dict[str, torch.Tensor] = {}
        self._optimizers: list[tuple[Optimizer, dict[str, object]]] = []
        self._begun = False
        for parameter in adapter.parameters():  # until `train` chooses some: a method may train its own tensors alone
            parameter.requires_grad_(False)

    def train(self, which: str, temperature: bool = True) -> list[torch.nn.Parameter]:
        """The parameters that ``train=`` names (`ttmbench.ttm.low_rank.Train`); all others are frozen.

        Without ``temperature`` that and the bias of the logits stay frozen too: for losses that fall as logits grow.
        """
        parameters = parameters_of(self.adapter, which)
        self.trained = {name: tensor for name, tensor in parameters.items() if temperature or not is_temperature(name)}
        for parameter in self.adapter.parameters():
            parameter.requires_grad_(False)
        for parameter in self.trained.values():
            parameter.requires_grad_(True)
        self._original = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        if self._resume is not None:
            self._load(self._resume.model)
        return list(self.trained.values())

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Takes charge of an optimiser: its steps are counted, it is reset with the model, and a stopped run resumes.

        Inside a turn, an optimiser of that turn's own variables is only counted.
        """
        optimizer.register_step_post_hook(lambda *_: self.cost.count(optimizer_steps=1))
        if self._begun:  # made for this turn alone
            return optimizer
        self._optimizers.append((optimizer, copy.deepcopy(optimizer.state_dict())))
        if self._resume is not None:
            optimizer.load_state_dict(dict(self._resume.optimizers[len(self._optimizers) - 1]))
        return optimizer

    def views(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        """As of every task: by the model as it came, also when a part of it has been trained (or resumed) since."""
        now = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        self._load(self._original)
        try:
            return super().views(count, crop_scale, flip)
        finally:
            self._load(now)

    def reset(self, keep: Sequence[str] = ()) -> None:
        """The parameters, optimisers and ``state`` as they were at the start; what ``keep`` names of that stays."""
        self._load(self._original)
        for optimizer, first in self._optimizers:
            optimizer.load_state_dict(copy.deepcopy(first))
        for name in self.state.keys() - set(keep):
            del self.state[name]

    def batches(self, images: int, clusters: Clusters = "together") -> list[torch.Tensor]:
        """The positions of the groups in each batch of `stream`."""
        together = self._clusters if clusters == "together" and not self._resets else None
        return batches_of(len(self.scores), max(1, images // self.scores.shape[1]), self._seed, together)

    def stream(
        self,
        *,
        images: int,
        clusters: Clusters = "together",
        reset_every: int | None = None,
        keep: Sequence[str] = (),
    ) -> Iterator[Batch]:
        """The groups in an order drawn by seed, in batches of so many images (of at least one group).

        Groups that share an image are met in one batch, unless they are to be ``scattered``. After ``reset_every``
        batches the model, its optimisers and ``state`` but for what ``keep`` names are reset. For a method that is
        registered with ``reset`` they are reset before each batch, wherever groups share images.
        """
        turns = self.batches(images, clusters)
        size, largest = max(1, images // self.scores.shape[1]), max(map(len, turns), default=0)
        if largest > size:
            self.notes.append(
                f"groups that share images stay in one batch, so one has {largest} groups; others at most {size}"
            )
        yield from self._each(turns, reset_every, keep)

    def iterations(self, count: int) -> Iterator[Batch]:
        """The whole task, so many times."""
        yield from self._each([torch.arange(len(self.scores))] * count)

    def _each(
        self, turns: Sequence[torch.Tensor], reset_every: int | None = None, keep: Sequence[str] = ()
    ) -> Iterator[Batch]:
        self._begun = True
        for groups in turns[self._turns :]:
            if self._resets or (reset_every and self._turns and self._turns % reset_every == 0):
                self.reset(keep=keep)
            self._turns += 1
            yield Batch(self, groups)

    def encode_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Features of distinct images as the model is now, [rows, d]; with gradients where they are enabled."""
        return self._encode("images", rows)

    def encode_captions(self, rows: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        """Features of distinct captions as the model is now, [rows, d]; with gradients where they are enabled.

        ``shift`` [k, `caption_width`] is added to the embeddings of each caption's first k tokens; dropout is off.
        """
        return self._encode("captions", rows, shift)

    @property
    def caption_width(self) -> int:
        """Dimension of a token's embedding; UsageError if the model's token embeddings cannot be shifted."""
        width = self.adapter.caption_width if isinstance(self.adapter, CaptionEmbeddings) else None
        if width is None:
            raise UsageError("the method shifts the embeddings of captions' tokens, but the model does not expose them")
        return width

    @property
    def caption_texts(self) -> Sequence[str]:
        """Each distinct caption, in the order of ``all_captions``; UsageError if the task has features alone."""
        if not self._texts:
            raise UsageError("the method needs the texts of captions, and the task has their features alone")
        return self._texts

    def encode_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Features of any texts as the model is now, [texts, d]; with gradients where they are enabled."""
        return self._features("captions", self.adapter.prepare_captions(texts))

    def snapshot(self, scores: Scores | None = None) -> TrainingState:
        """Everything that the next turn depends on; the tensors are copies, but for ``scores``, those so far."""
        parameters = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        state = {name: tensor.detach().clone() for name, tensor in self.state.items()}
        optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer, _ in self._optimizers]
        return TrainingState(self._turns, scores, parameters, optimizers, random_state(self.adapter), state)

    def _load(self, values: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(values[name])

    def _encode(self, side: str, rows: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        distinct, back = torch.unique(rows, return_inverse=True)
        inputs = take(self._prepared.images if side == "images" else self._prepared.captions, distinct.cpu().numpy())
        return self._features(side, inputs, shift)[back]

    def _features(self, side: str, inputs: PreparedBatch, shift: torch.Tensor | None = None) -> torch.Tensor:
        if shift is not None:
            assert isinstance(self.adapter, CaptionEmbeddings), "the width was asked for"
            features = self.adapter.encode_shifted_captions(inputs, shift)
        elif torch.is_grad_enabled():
            adapter = self.adapter
            assert isinstance(adapter, TrainableInParts), "the registry asks for it before a training method runs"
            features = (adapter.train_images if side == "images" else adapter.train_captions)(inputs)
        else:
            features = (self.adapter.encode_images if side == "images" else self.adapter.encode_captions)(inputs)
        self.cost.count_backward(side, features)
        self.cost.count(**{f"{side[:-1]}_rows": len(features)})
        return features


@dataclass(frozen=True)
class Batch:
    """Some groups of a task that a method trains on."""

    task: TrainingTask
    groups: torch.Tensor  # positions, int64

    @property
    def image_rows(self) -> torch.Tensor:
        """Which distinct image is where, int64 [groups, images]."""
        return self.task.image_rows[self.groups]

    @property
    def caption_rows(self) -> torch.Tensor:
        """Which distinct caption is where, int64 [groups, captions]."""
        return self.task.caption_rows[self.groups]

    def images(self) -> torch.Tensor:
        """Features of the images as the model is now, [groups, images, d]."""
        return self.task.encode_images(self.image_rows)

    def captions(self) -> torch.Tensor:
        """Features of the captions as the model is now, [groups, captions, d]."""
        return self.task.encode_captions(self.caption_rows)

    def features(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of images and captions as the model is now; a side without trained parameters is not encoded again."""
        trained = [name for name in self.task.trained if not is_temperature(name)]
        images = self.task.images[self.groups] if all(map(is_of_captions, trained)) else self.images()
        captions = self.task.captions[self.groups] if all(map(is_of_images, trained)) else self.captions()
        return images, captions

    def logits(self) -> torch.Tensor:
        """Scores as the model is now, [groups, images, captions]."""
        return self.task.logits(*self.features())

    def step(self, scores: torch.Tensor, loss: torch.Tensor | None = None, updated: bool = True) -> MethodStep:
        """The result of this turn: new scores of these groups, [groups, images, captions]."""
        return MethodStep(self.groups, scores.detach(), None if loss is None else float(loss.detach()), updated)
