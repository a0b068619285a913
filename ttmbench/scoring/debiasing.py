"""Debiasing of generative scores: log P(t|i) - alpha log P(t) (arXiv:2306.01879, Eq. 7 and 9), as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.special import logsumexp

from ttmbench.errors import TtmbenchError
from ttmbench.protocols import Debiasable, NoisePrior
from ttmbench.scoring.inputs import distinct_captions
from ttmbench.scoring.prepared_pairs import PairTable
from ttmbench.types import Group, Scores


@dataclass(frozen=True)
class Likelihoods:
    """What debiasing puts together, in nats per token.

    Attributes:
        conditional: log P(t|i).
        prior: log P(t) of every caption, float32 [groups, captions].
    """

    conditional: Scores
    prior: np.ndarray

    def debiased(self, alpha: float) -> Scores:
        """Takes alpha log P(t) off log P(t|i) (Eq. 7): nothing at alpha = 0; alpha = 1 gives the mutual information.

        A caption loses the same amount with every image. So what compares images for one caption, and what compares
        matchings that use every caption of a group, does not depend on alpha.
        """
        taken = np.float32(alpha) * self.prior
        pairs = self.conditional.all_pairs
        return Scores(
            self.conditional.groups - taken[:, None, :], None if pairs is None else pairs - taken.reshape(-1)[None, :]
        )


class NoiseOfTask:
    """A model's log P(t) from as many noise images as a task asks for: a `Debiasable` that has no number of its own.

    Args:
        model: with noise images.
        noise_images: how many the task asks for.
    """

    def __init__(self, model: NoisePrior, noise_images: int) -> None:
        self.alpha, self.prior = model.alpha, model.prior
        self.noise_images, self._model = noise_images, model

    def log_priors(self, captions: Sequence[str]) -> np.ndarray:
        """Log P(t) of captions: float32 [captions]."""
        return self._model.log_priors(captions, self.noise_images)


def prior_for(model: Debiasable, noise_images: int | None) -> Debiasable:
    """What gives log P(t) on a task that asks for this many noise images; the model itself where it has a number."""
    if noise_images is None or model.prior != "noise":
        return model
    takes = isinstance(model, NoisePrior) and model.noise_images is None
    return NoiseOfTask(cast(NoisePrior, model), noise_images) if takes else model


def likelihoods(adapter: Debiasable, groups: Sequence[Group], table: PairTable, all_pairs: bool) -> Likelihoods:
    """Both parts of a debiased score; P(t) is computed once per distinct caption.

    Args:
        adapter: the model; its ``prior`` says where P(t) comes from.
        groups: of the task.
        table: log P(t|i); of every image with every caption if P(t) is the mean over the task's images.
        all_pairs: keep the scores of all pairs.

    Returns:
        The parts.

    Raises:
        TtmbenchError: the model gives no usable log P(t).
    """
    captions = distinct_captions(groups)
    if adapter.prior == "test_images":
        # Eq. 13 with the test images as the sample; the mean is one of probabilities, not of logarithms.
        prior = logsumexp(table.every.astype(np.float64), axis=0) - np.log(len(table.every))
    else:
        prior = np.asarray(adapter.log_priors(captions))
    if prior.shape != (len(captions),) or not np.isfinite(prior).all():
        raise TtmbenchError(f"log P(t) of {len(captions)} captions has shape {prior.shape} or is not finite")
    return Likelihoods(table.scores(all_pairs), prior.astype(np.float32)[table.rows.captions])
