"""Inputs of test-time methods that do not train: scores, features and views of a task, without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ttmbench.errors import UsageError
from ttmbench.methods.training import Cost
from ttmbench.types import Record

ViewSource = Callable[[int, float, bool], torch.Tensor]
"""(count, crop_scale, flip) -> features [distinct images, count, d] of the same views each time, first the plain image.
"""


@dataclass(frozen=True)
class ReferenceSet:
    """Distinct images and captions of another task, as references; their order does not reveal labels."""

    images: torch.Tensor  # features, float32 [distinct, d]
    captions: torch.Tensor  # likewise
    record: Record  # for results


@dataclass(frozen=True)
class RewardModel:
    """What another model says of the pairs of each group."""

    scores: torch.Tensor  # float32 [groups, images, captions]: cosines of a dual encoder, else the model's own scores
    are_cosines: bool  # which of these they are
    rows: int  # images and captions that it encoded, or saw in pairs
    note: str  # for readers of the method's numbers
    record: Record  # for results


class ScoreTask:
    """A task as a method sees it that needs its scores alone.

    Attributes:
        scores: of the model as it is, float32 [groups, images, captions], logits.
        generator: for random draws; seeded.
        notes: what a reader of the method's numbers should know; a method may add to them.
    """

    def __init__(self, scores: torch.Tensor, seed: int) -> None:
        self.scores = scores
        self.generator = torch.Generator().manual_seed(seed)
        self.notes: list[str] = []


class FeatureTask(ScoreTask):
    """A task with the features of a dual encoder, all float32 and on one device.

    Attributes:
        all_images, all_captions: of each distinct image and caption once, [distinct, d].
        image_rows, caption_rows: row of each among these, int64 [groups, images] and [groups, captions].
    """

    def __init__(
        self,
        scores: torch.Tensor,
        seed: int,
        *,
        model: Logits,
        images: torch.Tensor,
        captions: torch.Tensor,
        image_rows: torch.Tensor,
        caption_rows: torch.Tensor,
        views: ViewSource | None = None,
        cost: Cost | None = None,
        references: Mapping[str, ReferenceSet] | None = None,
        rewards: Mapping[str, RewardModel] | None = None,
    ) -> None:
        super().__init__(scores.to(images.device), seed)
        self._logits, self._views, self.cost = model, views, Cost() if cost is None else cost
        self._references, self._rewards = references or {}, rewards or {}
        self.all_images, self.all_captions = images, captions
        self.image_rows, self.caption_rows = image_rows.to(images.device), caption_rows.to(images.device)

    @property
    def images(self) -> torch.Tensor:
        """Features of the images of each group, [groups, images, d]."""
        return self.all_images[self.image_rows]

    @property
    def captions(self) -> torch.Tensor:
        """Features of the captions of each group, [groups, captions, d]."""
        return self.all_captions[self.caption_rows]

    def logits(self, images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        """Scores of every image with every caption, temperature and bias included.

        [a, d] and [b, d] give [a, b]; [groups, a, d] and [groups, b, d] give [groups, a, b], each group by itself, so
        that a group's scores do not depend on others.
        """
        if captions.ndim == 2:  # features of images may have one more axis
            return self._logits(images, captions)
        return torch.stack([self._logits(*group) for group in zip(images, captions, strict=True)])

    @property
    def bias(self) -> torch.Tensor:
        """What the model adds to every logit: the score of two zero vectors, a scalar; 0 for CLIP."""
        return scale_and_bias(self._logits, self.all_images)[1]

    @property
    def scale(self) -> torch.Tensor:
        """Factor of inner products in a logit (the inverse temperature), a scalar."""
        return scale_and_bias(self._logits, self.all_images)[0]

    def reference_set(self, name: str) -> ReferenceSet:
        """The features of another task that a setting ``references`` names; UsageError if they were not loaded."""
        if name not in self._references:
            raise UsageError(f"references={name} must be task, others or the name of a task that the run has loaded")
        return self._references[name]

    def reward_model(self, name: str) -> RewardModel:
        """The scores of the model that a setting ``reward`` names; UsageError if it was not loaded."""
        if name not in self._rewards:
            raise UsageError(f"reward={name} must be self or the name of a model that the run has loaded")
        return self._rewards[name]

    def views(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        """Features of so many views of each distinct image, [distinct images, count, d]; the first is the plain image.

        The others are crops of at least ``crop_scale`` of its area, mirrored half of the time with ``flip``.
        """
        if self._views is None:
            raise UsageError("the method needs views of images, and there are no images to make them of")
        return self._views(count, crop_scale, flip)


Logits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Features [a, d] and [b, d] -> logits [a, b]."""


def scale_and_bias(logits: Logits, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor of inner products in a logit and what is added to it, scalars; features [any, d] are like the model's.

    Both follow from the logits of two zero vectors and of two unit vectors.
    """
    probe = torch.zeros_like(features[:1])
    bias = logits(probe, probe)[0, 0].detach()
    probe[0, 0] = 1
    return logits(probe, probe)[0, 0].detach() - bias, bias
