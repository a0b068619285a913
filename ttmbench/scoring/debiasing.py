"""Debiasing of generative scores: log P(t|i) - alpha log P(t) (arXiv:2306.01879, Eq. 7 and 9), as arrays.

An alpha chosen on the groups that it is reported on has read their labels. So a tuned number scores each half of the
groups with the alpha that is best on the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model import PairScorer
from ttmbench.results.summary import metric_chance, metric_values
from ttmbench.scoring.pairs import PairTable
from ttmbench.types import MetricSpec, Record, Scores

STEPS = 200  # of alpha between 0 and 1


@dataclass(frozen=True)
class Likelihoods:
    """Both parts of a debiased score, in nats per token."""

    conditional: Scores  # log P(t|i)
    prior: np.ndarray  # log P(t) of every caption, float32 [groups, captions]

    def debiased(self, alpha: float) -> Scores:
        """Scores log P(t|i) - alpha log P(t) (Eq. 7): raw at alpha = 0; alpha = 1 gives the mutual information.

        A caption loses the same amount with every image. So comparisons of images for one caption, and of matchings
        that use every caption of a group, do not depend on alpha.
        """
        taken = np.float32(alpha) * self.prior
        pairs = self.conditional.all_pairs
        return Scores(
            self.conditional.groups - taken[:, None, :], None if pairs is None else pairs - taken.reshape(-1)[None, :]
        )


@dataclass(frozen=True)
class Prior:
    """A model's log P(t) on a task."""

    model: PairScorer
    noise_images: int | None  # the model's own number, else the task's

    @property
    def declared(self) -> dict[str, object]:
        """What debiased scores depend on beside the model's own fingerprint."""
        return {"alpha": self.model.alpha, "prior": self.model.prior, "noise_images": self.noise_images}


def prior_for(model: PairScorer, noise_images: int | None, always: bool = False) -> Prior | None:
    """Log P(t) on a task that asks for this many noise images.

    None where nothing is subtracted (alpha = 0), unless log P(t) is ``always`` wanted.
    """
    if not model.debiases or (model.alpha == 0 and not always):
        return None
    of_task = noise_images if model.prior == "noise" else None
    return Prior(model, of_task if model.noise_images is None else model.noise_images)


def likelihoods(prior: Prior, captions: Sequence[str], table: PairTable, all_pairs: bool) -> Likelihoods:
    """Both parts of a debiased score; P(t) is computed once per distinct caption, which are the ``captions``.

    ``table`` is log P(t|i), of every image with every caption if P(t) is the mean over the task's images. TtmbenchError
    if the model gives no usable log P(t).
    """
    every = table.every.astype(np.float64) if prior.model.prior == "test_images" else None
    values = _log_priors(prior, captions, every)
    return Likelihoods(table.scores(all_pairs), values[table.rows.captions])


def debias(prior: Prior, values: np.ndarray, captions: Sequence[str], wanted: np.ndarray, n_images: int) -> np.ndarray:
    """Subtracts alpha log P(t) from scores of listed pairs, float32 [pairs].

    ``values`` are log P(t|i), ``wanted`` the rows of images and of (distinct) captions, int [pairs, 2]. P(t) as a mean
    over the task's ``n_images`` needs every pair, else UsageError.
    """
    table = None
    if prior.model.prior == "test_images":
        if len(wanted) < n_images * len(captions):
            raise UsageError(
                "prior=test_images is a mean over all images of every caption, and of chosen candidates not all are "
                "scored; use prior=noise"
            )
        table = np.empty((n_images, len(captions)))
        table[tuple(wanted.T)] = values
    debiased: np.ndarray = values - np.float32(prior.model.alpha) * _log_priors(prior, captions, table)[wanted[:, 1]]
    return debiased


def _log_priors(prior: Prior, captions: Sequence[str], table: np.ndarray | None) -> np.ndarray:
    """Log P(t) of captions, float32 [captions]; ``table`` is log P(t|i) of every image where P(t) is their mean."""
    if table is not None:
        # Eq. 13 with the test images as the sample; the mean is one of probabilities, not of logarithms.
        values = logsumexp(table, axis=0) - np.log(len(table))
    else:
        counts = () if prior.noise_images is None else (prior.noise_images,)
        values = np.asarray(prior.model.log_priors(captions, *counts))
    if values.shape != (len(captions),) or not np.isfinite(values).all():
        raise TtmbenchError(f"log P(t) of {len(captions)} captions has shape {values.shape} or is not finite")
    return values.astype(np.float32)


def sweep(parts: Likelihoods, metrics: Sequence[MetricSpec], tuned: str, seed: int) -> Record:
    """Metrics as functions of alpha, and what tuning on other groups gives.

    Args:
        parts: log P(t|i) and log P(t) of a task.
        metrics: that the curves show.
        tuned: name of the one that alpha is tuned for.
        seed: splits the groups into halves.

    Returns:
        ``alpha``; ``rows``, for each metric its values, chance, and whether it changes; and ``held_out`` (null for a
        task of one group): the alpha that is best on each half (the smallest of equals), the metric with each half
        scored by the other's alpha, and with alpha 0 and 1 throughout.
    """
    alphas = np.linspace(0, 1, STEPS + 1)
    rows: list[Record] = []
    table: np.ndarray | None = None
    for metric in metrics:
        values = [metric_values(metric, parts.debiased(alpha)) for alpha in alphas.tolist()]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        means = [float(value.mean()) for value in known]
        row: Record = {"name": metric.name, "value": means[0], "value_1": means[-1], "values": means}
        row |= {"chance": metric_chance(metric, parts.conditional), "depends_on_alpha": max(means) > min(means)}
        rows.append(row)
        if metric.name == tuned:
            table = np.stack(known)
    return {
        "alpha": alphas.tolist(),
        "rows": rows,
        "tuned_for": tuned,
        "held_out": None if table is None or table.shape[1] < 2 else _held_out(alphas, table, seed),
    }


def _held_out(alphas: np.ndarray, table: np.ndarray, seed: int) -> dict[str, object]:
    """Tunes on each half of the groups and scores the other; ``table`` is the metric [alphas, groups]."""
    order = np.random.default_rng([seed, 5]).permutation(table.shape[1])
    halves = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    chosen = [int(table[:, half].mean(axis=1).argmax()) for half in halves]
    values = np.empty(table.shape[1])
    values[halves[0]], values[halves[1]] = table[chosen[1], halves[0]], table[chosen[0], halves[1]]
    return {
        "alphas": [float(alphas[index]) for index in chosen],
        "groups": [len(half) for half in halves],
        "value": float(values.mean()),
        "alpha_0": float(table[0].mean()),
        "alpha_1": float(table[-1].mean()),
    }
