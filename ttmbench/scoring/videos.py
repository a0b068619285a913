"""Dual encoders on videos: each frame is encoded as an image, and a video's features are the mean over its frames.

A model with pooled features is the same model: it has all other methods of its class, and shares its weights, so what
trains, saves or restores them needs to know nothing of frames. A prepared video is one row, [frames, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench._util.images import frames_of
from ttmbench.errors import UsageError
from ttmbench.model import Batch, ChoiceModel, DualEncoder, Model, PairScorer, Prepared, StoredFeatures, overrides

if TYPE_CHECKING:
    from PIL.Image import Image

AFTER, BEFORE = "after_normalization", "before_normalization"


def on_videos(model: Model, name: str, frames: int, pooling: str) -> Model:
    """A model as it takes videos of so many frames; UsageError if it cannot.

    A dual encoder pools features. A model that chooses answers, or that says so (``shows_frames``), is given the frames
    of a video. What ignores images or reads stored features is taken as it is.
    """
    if isinstance(model, StoredFeatures) or (isinstance(model, PairScorer) and model.blind):
        return model
    if isinstance(model, DualEncoder | PairScorer) and model.shows_frames:
        if model.shows_frames is not True and model.shows_frames != frames:
            raise UsageError(
                f"the model takes videos of {model.shows_frames} frames, and task '{name}' has {frames}; add "
                f"--task_args video.frames={model.shows_frames}"
            )
        shown = copy(model)
        shown.frames = frames
        return shown
    if isinstance(model, DualEncoder):
        if model.vectors == "many":
            raise UsageError(f"the items of task '{name}' are videos, and the model has many vectors for a frame")
        if pooling == BEFORE and not overrides(model, "features_before_normalization"):
            raise UsageError(
                f"video.pooling={BEFORE}: the model gives no features before they are normalised; use {AFTER}"
            )
        kind: Any = type(model)
        named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        pooled: Any = object.__new__(type(kind.__name__, (_OverFrames, kind), named))
        vars(pooled).update(vars(model), on_images=model, frames=frames, pooling=pooling)
        model = pooled
        return model
    if isinstance(model, ChoiceModel):
        if model.choice_style.side_by_side:
            raise UsageError(f"side_by_side joins images, and the items of task '{name}' are videos; omit it")
        return model
    raise UsageError(
        f"the items of task '{name}' are videos, and this model scores a caption with one image; use a dual encoder or "
        "a chat model (`ttmbench ls models`), or set shows_frames = True in a class that takes several images"
    )


class _OverFrames:
    """Methods in place of a dual encoder's own; ``on_images`` is the model as it was."""

    on_images: DualEncoder
    frames: int
    pooling: str

    def fingerprint(self) -> Mapping[str, Any] | str:
        """The model's own, and how frames are pooled: which they are is known from the pixels."""
        own = self.on_images.fingerprint()  # scores of a model without one are not cached
        if isinstance(own, str):
            return own and f"{own} {self.pooling}"
        return {**own, "pooling": self.pooling} if own else own

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """One row a video, [frames, ...]."""
        return self._rows(self.on_images.prepare_images(self._frames(images)))

    def encode_images(self, prepared: Prepared) -> torch.Tensor:
        """Features of videos, as long as those of frames."""
        return self._pooled(prepared, self.on_images.encode_images, training=False)

    # What it is able to do as on images, where the methods are its own.
    trainable = property(lambda self: self.on_images.trainable)
    gives_gradients = property(lambda self: self.on_images.gives_gradients)
    augments = property(lambda self: self.on_images.augments)

    def train_images(self, prepared: Prepared) -> torch.Tensor:
        """As `encode_images`, with gradients, which reach every frame."""
        return self._pooled(prepared, self.on_images.train_images, training=True)

    def matching_loss(self, images: Prepared, captions: Prepared) -> torch.Tensor:
        """The model's own loss of pooled features."""
        return self.on_images.loss_of(self.train_images(images), self.on_images.train_captions(captions))

    def _pooled(self, prepared: Prepared, encode: Callable[[Prepared], torch.Tensor], training: bool) -> torch.Tensor:
        """Frames are encoded position by position, so that a batch has as many rows as of images."""
        if self.pooling == BEFORE:
            encode = partial(self.on_images.features_before_normalization, training=training)
        features = torch.stack([encode(_at(prepared, position)) for position in range(self.frames)], dim=1)
        mean = features.mean(dim=1)
        if self.pooling == BEFORE:
            return mean / mean.norm(dim=-1, keepdim=True)
        return mean * (features.norm(dim=-1, keepdim=True).mean(dim=1) / mean.norm(dim=-1, keepdim=True))

    def _frames(self, videos: Sequence[Image]) -> list[Image]:
        return [frame for video in videos for frame in frames_of(video)]

    def _rows(self, frames: Batch) -> Batch:
        """Prepared frames as rows of videos."""
        if isinstance(frames, list):
            return [frames[start : start + self.frames] for start in range(0, len(frames), self.frames)]
        if isinstance(frames, Mapping):
            return {name: tensor.reshape(-1, self.frames, *tensor.shape[1:]) for name, tensor in frames.items()}
        return frames.reshape(-1, self.frames, *frames.shape[1:])

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> Batch:
        """One row a video, [frames, ...]."""
        return self._rows(self.on_images.prepare_enlarged(self._frames(images), scale))

    def crop(self, enlarged: Batch, corners: np.ndarray) -> Batch:
        """The same window of every frame of a video."""
        cropped = [self.on_images.crop(_at(enlarged, position), corners) for position in range(self.frames)]
        if isinstance(cropped[0], Mapping):
            return {name: torch.stack([part[name] for part in cropped], dim=1) for name in cropped[0]}
        if isinstance(cropped[0], list):
            return [list(frames) for frames in zip(*cropped, strict=True)]
        return torch.stack(cropped, dim=1)


def _at(prepared: Prepared, position: int) -> Batch:
    """One frame of each prepared video."""
    if isinstance(prepared, list):
        return [frames[position] for frames in prepared]
    if isinstance(prepared, Mapping):
        return {name: tensor[:, position] for name, tensor in prepared.items()}
    return prepared[:, position]
