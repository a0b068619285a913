"""Scores of listed pairs, by models that see image and caption together: all pairs of a small pool, or chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.protocols import Debiasable
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import BlockStore
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import prior_for
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.image_rows import ImageRows, PreparedImages
from ttmbench.scoring.pairs import score_opened
from ttmbench.scoring.prepared_pairs import score_wanted, streamed
from ttmbench.types import ImageRef

LOWEST = np.float32(-1e30)  # below every logit


def score_listed(
    model: Capabilities,
    images: Sequence[tuple[str, ImageRef]],
    captions: Sequence[str],
    wanted: np.ndarray,
    batch_sizer: BatchSizer,
    fingerprint: Fingerprint,
    kept: PreparedImages | None = None,
    blocks: BlockStore | None = None,
) -> np.ndarray:
    """Scores pairs, each image opened when its pairs come.

    Args:
        model: a `PairScorer`.
        images: distinct ones, with a group that has each.
        captions: distinct ones.
        wanted: rows of images and captions, int [pairs, 2], image by image in the order of rows.
        batch_sizer: pairs given to the model at a time.
        fingerprint: takes the images in.
        kept: where prepared images are kept, if anywhere.
        blocks: where finished blocks of scores are kept, if anywhere.

    Returns:
        float32 [pairs]. A pair that the model refuses has the lowest score if its refusals count as wrong.

    Raises:
        DataError: an image cannot be read.
        TtmbenchError: the model did not return one finite score a pair.
    """
    adapter = model.prepared_pair_scorer
    if adapter is not None:
        inputs = streamed(ImageRows(adapter, images, fingerprint, kept))
        values = score_wanted(adapter, inputs, adapter.prepare_captions(captions), wanted, batch_sizer, blocks)
    else:
        pairs = [(images[image][1].name, captions[caption]) for image, caption in wanted.tolist()]
        values = score_opened(model, pairs, batch_sizer, fingerprint.opener(), blocks)
    fingerprint.add_remaining()
    finite = np.isfinite(values)
    if not finite.all() and not (model.may_refuse is not None and model.may_refuse.refusals_are_wrong):
        image, caption = wanted[int(np.argmin(finite))]
        raise TtmbenchError(
            f"the model gave no score for image {images[image][1].name} with caption {captions[caption]!r:.80}"
        )
    return np.where(finite, values, LOWEST)


def debiasing_of(adapter: Debiasable | None, noise_images: int | None) -> dict[str, Any] | None:
    """What ranks depend on where log P(t) is taken off; None where it is not."""
    if adapter is None or adapter.alpha == 0:
        return None
    prior = prior_for(adapter, noise_images)
    return {"alpha": adapter.alpha, "prior": prior.prior, "noise_images": getattr(prior, "noise_images", None)}


def debias(
    adapter: Debiasable | None,
    values: np.ndarray,
    captions: Sequence[str],
    wanted: np.ndarray,
    noise_images: int | None,
    n_images: int,
) -> np.ndarray:
    """Takes alpha log P(t) off generative scores; scores of other models stay what they are.

    Args:
        adapter: the model; None for one without log P(t).
        values: log P(t|i), or any other score, float32 [pairs].
        captions: distinct ones.
        wanted: rows of images and captions, int [pairs, 2].
        noise_images: from how many noise images P(t) is taken, where neither model nor user says.
        n_images: of the task; P(t) as a mean over them needs every pair.

    Returns:
        float32 [pairs].

    Raises:
        UsageError: P(t) is to be the mean over all images, and not every image was scored with every caption.
        TtmbenchError: the model gives no usable log P(t).
    """
    if adapter is None or adapter.alpha == 0:
        return values
    prior = prior_for(adapter, noise_images)
    if prior.prior == "test_images":
        if len(wanted) < n_images * len(captions):
            raise UsageError(
                "prior=test_images is a mean over all images of every caption, and of chosen candidates not all are "
                "scored; use prior=noise"
            )
        table = np.empty((n_images, len(captions)))
        table[tuple(wanted.T)] = values
        taken = logsumexp(table, axis=0) - np.log(n_images)
    else:
        taken = np.asarray(prior.log_priors(captions))
    if taken.shape != (len(captions),) or not np.isfinite(taken).all():
        raise TtmbenchError(f"log P(t) of {len(captions)} captions has shape {taken.shape} or is not finite")
    debiased: np.ndarray = values - np.float32(adapter.alpha) * taken.astype(np.float32)[wanted[:, 1]]
    return debiased
