"""What an adapter is: two capabilities and one option. An adapter knows its model, never a task.

Whoever writes one implements `PairScorer` (one method) or `DualEncoder`; with `Trainable` on top, TTM can adapt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    Batch: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor]
    """Prepared inputs: a tensor, or tensors by name, with one row per image or caption."""


@runtime_checkable
class Adapter(Protocol):
    """What every adapter states about itself."""

    def fingerprint(self) -> Mapping[str, Any] | str:
        """Everything that changes a score: weights digest or API model id, preprocessing, dtype, prompt."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A model that scores an image with a caption, one pair at a time (ITM heads, generative models, APIs)."""

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i.

        Args:
            images: upright RGB pictures.
            captions: as many captions.

        Returns:
            float32 [pairs], logits or log-odds; larger is a better fit.
        """
        ...


@runtime_checkable
class DualEncoder(Protocol):
    """A model with one tower for images and one for captions (CLIP, SigLIP, open_clip)."""

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """Preprocesses upright RGB pictures; runs once per picture. Returns one row per picture, on the CPU."""
        ...

    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """Tokenises captions; runs once, over all of a task's captions. Returns one row per caption, on the CPU."""
        ...

    def encode_images(self, prepared: Batch) -> torch.Tensor:
        """Prepared images -> float32 features [images, d], as the model's own loss takes them."""
        ...

    def encode_captions(self, prepared: Batch) -> torch.Tensor:
        """Prepared captions -> float32 features [captions, d], as the model's own loss takes them."""
        ...

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Every image against every caption: float32 [images, captions], temperature and bias included."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """The option that TTM needs: parameters, the model's own loss on matched pairs, and a state to go back to."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters that adaptation trains."""
        ...

    def matching_loss(self, images: Batch, captions: Batch) -> torch.Tensor:
        """The model's own contrastive loss on a flat batch, in which image i matches caption i. A scalar."""
        ...

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Everything that training changes."""
        ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:
        """Goes back to a state that ``state_dict`` gave."""
        ...
