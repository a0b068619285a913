"""What a method costs: rows through each tower, gradients, optimiser steps, views; counted at every call."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch


@dataclass
class Cost:
    """Counts of one method on one task and seed.

    Attributes:
        image_rows, caption_rows: through the towers, forward.
        image_rows_backward, caption_rows_backward: those whose gradient was computed.
        optimizer_steps: updates.
        views: images that were made of others and encoded.
        reward_rows: images and captions through a reward model.
    """

    image_rows: int = 0
    caption_rows: int = 0
    image_rows_backward: int = 0
    caption_rows_backward: int = 0
    optimizer_steps: int = 0
    views: int = 0
    reward_rows: int = 0

    def count(self, **more: int) -> None:
        """Adds to the counts that are named."""
        for name, number in more.items():
            setattr(self, name, getattr(self, name) + number)

    def count_backward(self, side: str, features: torch.Tensor) -> None:
        """Counts the rows of features of ``images`` or ``captions`` when, and if, their gradient is computed."""
        if features.requires_grad:
            rows, name = len(features), f"{side[:-1]}_rows_backward"
            features.register_hook(lambda _: self.count(**{name: rows}))  # type: ignore[no-untyped-call]

    def record(self, images: int, captions: int) -> dict[str, float]:
        """For results; ``tower_passes`` in units of encoding every image, or every caption, of the task once.

        A backward pass counts twice a forward pass.
        """
        passes = (self.image_rows + 2 * self.image_rows_backward) / images
        passes += (self.caption_rows + 2 * self.caption_rows_backward) / captions
        return {**asdict(self), "tower_passes": passes}
