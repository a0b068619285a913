"""The task object of a training method: parameters, optimisers and batches, without labels.

Captions are shuffled by seed inside each group, so a method cannot know which caption is true; the framework maps its
scores back to the task's order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.parameters import is_temperature, parameters_of, trained_towers
from ttmbench.methods.training import TrainingState, random_state, set_random_state
from ttmbench.model import Batch as PreparedBatch
from ttmbench.model import DualEncoder
from ttmbench.scoring.inputs import Prepared, take

# Types of method settings, with their allowed values.
Clusters = Literal["together", "scattered"]
"""Whether groups that share an image are in one batch, or are scattered at random."""
ResetEvery = Annotated[int, Field(ge=1)] | None
"""Number of batches after which the model is reset; None for never."""


def batches_of(groups: int, size: int, seed: int, clusters: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Positions of the groups of each batch, int64, in an order drawn by seed.

    Without clusters of groups that share images, every batch but the last has ``size`` groups. With clusters, all
    groups of a cluster are in the batch of its first group, and a batch ends where the next cluster would exceed its
    size. A larger cluster is a separate batch. Clusters of one group each have no effect.

    >>> [batch.tolist() for batch in batches_of(5, 2, 0)]
    [[4, 0], [1, 3], [2]]
    >>> [batch.tolist() for batch in batches_of(5, 2, 0, clusters=[7, 8, 7, 9, 9])]
    [[4, 3], [0, 2], [1]]
    """
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed))
    if clusters is None:
        return list(torch.split(order, size))
    members: dict[int, list[int]] = {}
    for group in order.tolist():
        members.setdefault(int(clusters[group]), []).append(group)
    batches: list[list[int]] = []
    for cluster in members.values():
        if not batches or len(batches[-1]) + len(cluster) > size:
            batches.append([])
        batches[-1] += cluster
    return [torch.tensor(batch) for batch in batches]


Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class MethodStep:
    """One turn of a training method: new scores of some groups.

    Attributes:
        groups: positions, int64 [some groups]; if a group appears again, the later scores replace the earlier ones.
        scores: [some groups, images, captions].
        loss: of the last update; None for none.
        updated: whether any parameter was trained.
    """

    groups: torch.Tensor
    scores: torch.Tensor
    loss: float | None = None
    updated: bool = True


class TrainingTask(FeatureTask):
    """A task with a model that the method can train.

    A method is a generator: it selects parameters (`train`) and registers an optimiser (`optimizer`) once, iterates
    over `stream` or `iterations`, and yields a `MethodStep` for each turn of that loop. Everything else that it carries
    from turn to turn has to be in ``state``: an interrupted run resumes after the last finished turn. A method that
    selects no parameters trains other tensors, which it creates in each turn.

    Attributes:
        state: name -> tensor; preserved between turns.
        trained: name -> parameter, of those that `train` selected.
    """

    def __init__(
        self,
        features: FeatureTask,
        seed: int,
        *,
        adapter: DualEncoder,
        prepared: Prepared,
        resets: bool = False,
        resume: TrainingState | None = None,
        texts: Sequence[str] = (),
        clusters: Sequence[int] | None = None,
    ) -> None:
        vars(self).update(vars(features))
        self.adapter, self._prepared, self._resets = adapter, prepared, resets
        self._seed, self._resume, self._texts, self._clusters = seed, resume, texts, clusters
        self._turns = 0 if resume is None else resume.turns
        self.state: dict[str, torch.Tensor] = {} if resume is None else dict(resume.extra)
        self.trained: dict[str, torch.nn.Parameter] = {}
        self._original: dict[str, torch.Tensor] = {}
        self._optimizers: list[tuple[Optimizer, dict[str, object]]] = []
        self._begun = False
        torch.manual_seed(seed)
        if resume is not None:
            set_random_state(resume.random, adapter)
        # until `train` selects some: a method may train only tensors that it creates
        for parameter in adapter.parameters():
            parameter.requires_grad_(False)

    def train(self, which: str, temperature: bool = True) -> list[torch.nn.Parameter]:
        """The parameters that ``train=`` names (`ttmbench.methods.parameters.Train`); all others are frozen.

        With ``temperature=False`` the temperature and the bias of the logits stay frozen too, for losses that decrease
        as logits grow.
        """
        parameters = parameters_of(self.adapter, which)
        self.trained = {name: tensor for name, tensor in parameters.items() if temperature or not is_temperature(name)}
        for parameter in self.adapter.parameters():
            parameter.requires_grad_(False)
        for parameter in self.trained.values():
            parameter.requires_grad_(True)
        self._original = self._copied()
        if self._resume is not None:
            self._load(self._resume.model)
        return list(self.trained.values())

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Registers an optimiser: its steps are counted, it is reset with the model, and its state is in checkpoints.

        An optimiser that is created inside a turn, for variables of that turn, is only counted.
        """
        optimizer.register_step_post_hook(lambda *_: self.cost.update(optimizer_steps=1))
        if self._begun:  # created for this turn only
            return optimizer
        self._optimizers.append((optimizer, copy.deepcopy(optimizer.state_dict())))
        if self._resume is not None:
            optimizer.load_state_dict(dict(self._resume.optimizers[len(self._optimizers) - 1]))
        return optimizer

    def views(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        """Views encoded by the original model, also after training or resuming."""
        now = self._copied()
        self._load(self._original)
        try:
            return super().views(count, crop_scale, flip)
        finally:
            self._load(now)

    def reset(self, keep: Sequence[str] = ()) -> None:
        """Resets the parameters, optimisers and ``state`` to their start, except keys of ``state`` in ``keep``."""
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
        """Yields the groups in an order drawn by seed, in batches of this many images (at least one group).

        Groups that share an image are in one batch, unless ``clusters`` is ``scattered``. After every ``reset_every``
        batches the model, its optimisers and ``state`` (except keys in ``keep``) are reset. For a method that is
        registered with ``reset``, they are reset before each batch, and clusters do not matter.
        """
        turns = self.batches(images, clusters)
        size, largest = max(1, images // self.scores.shape[1]), max(map(len, turns), default=0)
        if largest > size:
            self.notes.append(
                f"groups that share images stay in one batch, so one has {largest} groups; others at most {size}"
            )
        yield from self._each(turns, reset_every, keep)

    def iterations(self, count: int) -> Iterator[Batch]:
        """Yields the whole task this many times."""
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
        """Features of distinct images by the current model, [rows, d]; with gradients where they are enabled."""
        return self._encode("images", rows)

    def encode_captions(self, rows: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        """Features of distinct captions by the current model, [rows, d]; with gradients where they are enabled.

        ``shift`` [k, `caption_width`] is added to the embeddings of each caption's first k tokens; dropout is off.
        """
        return self._encode("captions", rows, shift)

    @property
    def caption_width(self) -> int:
        """Dimension of a token's embedding; UsageError if the model's token embeddings cannot be shifted."""
        width = self.adapter.caption_width
        if width is None:
            raise UsageError("the method shifts the embeddings of captions' tokens, but the model does not expose them")
        return width

    @property
    def caption_texts(self) -> Sequence[str]:
        """Each distinct caption, in the order of ``all_captions``; UsageError if the task has only features."""
        if not self._texts:
            raise UsageError("the method needs the texts of captions, but the task has only their features")
        return self._texts

    def encode_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Features of any texts by the current model, [texts, d]; with gradients where they are enabled."""
        return self._features("captions", self.adapter.prepare_captions(texts))

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.trained.items()}

    def snapshot(self) -> TrainingState:
        """Everything that the next turn depends on; the tensors are copies."""
        parameters = self._copied()
        state = {name: tensor.detach().clone() for name, tensor in self.state.items()}
        optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer, _ in self._optimizers]
        return TrainingState(self._turns, parameters, optimizers, random_state(self.adapter), state)

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
            features = self.adapter.encode_shifted_captions(inputs, shift)
        elif torch.is_grad_enabled():
            adapter = self.adapter
            features = (adapter.train_images if side == "images" else adapter.train_captions)(inputs)
        else:
            features = (self.adapter.encode_images if side == "images" else self.adapter.encode_captions)(inputs)
        counted, rows = f"{side[:-1]}_rows", len(features)
        self.cost[counted] += rows
        if features.requires_grad:  # counts when, and if, the gradient is computed
            features.register_hook(lambda _: self.cost.update({f"{counted}_backward": rows}))  # type: ignore[no-untyped-call]
        return features


@dataclass(frozen=True)
class Batch:
    """Some groups of a task that a method trains on."""

    task: TrainingTask
    groups: torch.Tensor  # positions, int64

    @property
    def image_rows(self) -> torch.Tensor:
        """Row of each image among the distinct images, int64 [groups, images]."""
        return self.task.image_rows[self.groups]

    @property
    def caption_rows(self) -> torch.Tensor:
        """Row of each caption among the distinct captions, int64 [groups, captions]."""
        return self.task.caption_rows[self.groups]

    def images(self) -> torch.Tensor:
        """Features of the images by the current model, [groups, images, d]."""
        return self.task.encode_images(self.image_rows)

    def captions(self) -> torch.Tensor:
        """Features of the captions by the current model, [groups, captions, d]."""
        return self.task.encode_captions(self.caption_rows)

    def features(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of images and captions by the current model; a tower without trained parameters is not run again."""
        of_images, of_captions = trained_towers(self.task.adapter, self.task.trained)
        images = self.images() if of_images else self.task.images[self.groups]
        return images, self.captions() if of_captions else self.task.captions[self.groups]

    def logits(self) -> torch.Tensor:
        """Scores by the current model, [groups, images, captions]."""
        return self.task.logits(*self.features())

    def step(self, scores: torch.Tensor, loss: torch.Tensor | None = None, updated: bool = True) -> MethodStep:
        """Creates the result of this turn: new scores of these groups, [groups, images, captions]."""
        return MethodStep(self.groups, scores.detach(), None if loss is None else float(loss.detach()), updated)
