"""What generative scores have in common: the mean log-likelihood of a caption's tokens, and P(t) from noise images.

VisualGPTScore is Eq. 12 of arXiv:2306.01879, here in logarithms; P(t) is the mean of it over images (Eq. 13), which may
be Gaussian noise (section 4 and appendix B).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.options import VisualGptOptions
from ttmbench.model_adapters._shared.pair_model import PairModel, save_parts
from ttmbench.types import ModelFiles

NOISE_IMAGES = 3  # most benchmarks in appendix B; for Winoground it has 100, which the task's file says
AT_ONCE = 64  # captions per pass over a noise image
_OF_PRIOR = ("alpha", "prior", "noise_images", "noise_mean", "noise_std", "noise_seed")


class CaptionModel(PairModel):
    """A model that writes captions, as an adapter; subclasses know one architecture."""

    def __init__(
        self, model: torch.nn.Module, parts: Sequence[Any], asked: VisualGptOptions, files: ModelFiles | None = None
    ) -> None:
        super().__init__(model, asked, files)
        self.parts, self.prompt, self.end_token = parts, asked.prompt, asked.end_token
        names = ("processor",) if len(parts) == 1 else ("tokenizer", "image_processor")
        self._declared_parts = describe_model(model, self.device, **dict(zip(names, parts, strict=True)))
        self.asked = asked
        self.alpha, self.prior, self.noise_images = float(asked.alpha), asked.prior, asked.noise_images
        self._priors: dict[tuple[int, str], float] = {}
        self._noise: list[Any] = []
        self._source = torch.Generator().manual_seed(asked.noise_seed)

    def fingerprint(self) -> Mapping[str, Any]:
        """As for every pair model, the prompt, and how P(t) is taken off."""
        return {
            **super().fingerprint(),
            "score": "mean log-likelihood of the caption's tokens",
            "prompt": self.declared_prompt(),
            "end_token": self.end_token,
            "weights": str(self.model.dtype).removeprefix("torch."),
            **self._declared_parts,
            **{name: getattr(self.asked, name) for name in _OF_PRIOR},
            "noise_images": self.noise_images or f"of the task, else {NOISE_IMAGES}",
        }

    def save_pretrained(self, folder: Path) -> None:
        """Weights and preprocessing, as ``from_pretrained`` loads them."""
        save_parts(folder, self.model, *self.parts)

    def prepare_captions(self, captions: Sequence[str]) -> list[str]:
        """The captions: their tokens may depend on the image's prompt."""
        return list(captions)

    def encode_images(self, prepared: Any) -> Any:
        """What the vision encoder gives, one row per image, on the device."""
        self.model.eval()
        with self.arithmetic():
            return self._see(prepared)

    def score_prepared(self, images: Any, captions: Any) -> np.ndarray:
        """VisualGPTScore (Eq. 12) in logarithms: log P(t|i) per token, float32 [pairs]. No P(t) is taken off here."""
        with self.arithmetic():
            logits, targets, rows = self._next_tokens(images, captions)
        tokens = logits.float().log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
        total = torch.zeros(len(captions), device=tokens.device).index_add(0, rows, tokens)
        scores: np.ndarray = (total / torch.bincount(rows, minlength=len(captions))).cpu().numpy()
        return scores

    def log_priors(self, captions: Sequence[str], noise_images: int | None = None) -> np.ndarray:
        """Gives log P(t): the mean of P(t|i) over noise images (Eq. 13), once a caption; float32 [captions]."""
        count = self.noise_images or noise_images or NOISE_IMAGES
        new = [caption for caption in dict.fromkeys(captions) if (count, caption) not in self._priors]
        if new:
            with torch.inference_mode():
                found = np.stack([self._given(noise, new) for noise in self._noise_images(count)])
            means = np.logaddexp.reduce(found, axis=0) - np.log(count)
            self._priors.update({(count, caption): mean for caption, mean in zip(new, means.tolist(), strict=True)})
        return np.array([self._priors[count, caption] for caption in captions], dtype=np.float32)

    def declared_prompt(self) -> str:
        """The text before the caption, for the record."""
        return self.prompt

    @abstractmethod
    def _see(self, prepared: Any) -> Any:
        """Prepared images -> what the decoder attends to."""

    @abstractmethod
    def _next_tokens(self, images: Any, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of every caption token [tokens, vocabulary], the tokens, and which pair each belongs to."""

    @abstractmethod
    def _with_pixels(self, prepared: Any, draw: Any) -> Any:
        """One prepared image with other pixels; ``draw`` makes them from a shape."""

    def _noise_images(self, count: int) -> list[Any]:
        """Encoded noise images: a larger number begins with those of a smaller one."""

        def draw(shape: Sequence[int]) -> torch.Tensor:
            noise = torch.randn(tuple(shape), generator=self._source)
            return noise * self.asked.noise_std + self.asked.noise_mean

        while len(self._noise) < count:
            blank = self.prepare_images([Image.new("RGB", (336, 336), (127, 127, 127))])
            self._noise.append(self.encode_images(self._with_pixels(blank, draw)))
        return self._noise[:count]

    def _given(self, image: Any, captions: Sequence[str]) -> np.ndarray:
        """Gives log P(t|i) of many captions for one encoded image, float64 [captions]."""
        parts = []
        for start in range(0, len(captions), AT_ONCE):
            some = list(captions[start : start + AT_ONCE])
            parts.append(self.score_prepared(_repeated(image, len(some)), some))
        return np.concatenate(parts).astype(np.float64)


def kept(ids: torch.Tensor, scored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which logits are asked for, of sequences whose next tokens are scored.

    Args:
        ids: tokens, int [pairs, tokens], padded on the right.
        scored: whether a token is one whose probability counts, bool of the same shape; never the first.

    Returns:
        Mask over positions whose logits predict them, bool [pairs, tokens - 1]; the tokens; and the pair of each.
    """
    mask = scored[:, 1:]
    return mask, ids[:, 1:][mask], mask.nonzero()[:, 0]


def _repeated(row: Any, count: int) -> Any:
    return row * count if isinstance(row, list) else row.expand(count, *row.shape[1:])
