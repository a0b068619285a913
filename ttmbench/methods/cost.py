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
        view_seconds: wall time of making and encoding its views.
        shared_seconds: of these, time that an earlier method of the run had spent.
    """

    image_rows: int = 0
    caption_rows: int = 0
    image_rows_backward: int = 0
    caption_rows_backward: int = 0
    optimizer_steps: int = 0
    views: int = 0
    reward_rows: int = 0
    view_seconds: float = 0.0
    shared_seconds: float = 0.0

    def count(self, **more: float) -> None:
        """Adds to the counts that are named."""
        for name, number in more.items():
            setattr(self, name, getattr(self, name) + number)

    def count_backward(self, side: str, features: torch.Tensor) -> None:
        """Counts the rows of features of ``images`` or ``captions`` when, and if, their gradient is computed."""
        if features.requires_grad:
            rows, name = len(features), f"{side[:-1]}_rows_backward"
            features.register_hook(lambda _: self.count(**{name: rows}))  # type: ignore[no-untyped-call]

    def record(self, images: int, captions: int, seconds: float) -> dict[str, float]:
        """For results, of a method that took so many ``seconds``, to which shared ones are added.

        ``tower_passes`` are in units of encoding every image, or every caption, of the task once. A backward pass
        counts twice a forward pass.
        """
        passes = (self.image_rows + 2 * self.image_rows_backward) / images
        passes += (self.caption_rows + 2 * self.caption_rows_backward) / captions
        counts = asdict(self)
        seconds += counts.pop("shared_seconds")
        return {**counts, "tower_passes": passes, "seconds": seconds}
