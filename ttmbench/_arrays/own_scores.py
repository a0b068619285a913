"""Which scores of a group are of true pairs, and the best of the others, for each image and for each caption.

``true_captions`` is how many captions t are true for each image; its own are columns i t to (i + 1) t - 1.
"""

from __future__ import annotations

import numpy as np

from ttmbench._annotations import Bool, Float, Real
from ttmbench._arrays.checked import check_scores, fewer_first, more_images


def is_square(scores: np.ndarray, true_captions: int) -> bool:
    """Whether every caption is true for some image."""
    return bool(scores.shape[1] * true_captions == scores.shape[2])


def is_own(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> Bool[np.ndarray, "images captions"]:
    """Which captions are true for which image; ValueError if there are not so many captions."""
    _, images, captions = scores.shape
    if images > captions:
        raise ValueError(f"in a {images}x{captions} group some images have no caption, so this is undefined")
    if true_captions < 1 or images * true_captions > captions:
        raise ValueError(f"{true_captions} true captions for each image do not fit into a {images}x{captions} group")
    return np.arange(captions) // true_captions == np.arange(images)[:, None]


def own_scores(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> Float[np.ndarray, "groups images true"]:
    """For every image the scores of its own captions."""
    scores = check_scores(scores)
    is_own(scores, true_captions)  # refuses a shape with too few captions
    images = np.arange(scores.shape[1])[:, None]
    return scores[:, images, images * true_captions + np.arange(true_captions)]


def other_scores(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> Float[np.ndarray, "groups images captions"]:
    """For every image the scores of the other captions, with -inf in the places of its own."""
    scores = check_scores(scores)
    return np.where(is_own(scores, true_captions), -np.inf, scores)


def range_and_others(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "groups images captions"]]:
    """For every image: the worst and the best of its own captions [groups, images, 1], and the others."""
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return own.min(axis=2)[:, :, None], own.max(axis=2)[:, :, None], others


def rows_of(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> tuple[Float[np.ndarray, "groups images"], Float[np.ndarray, "groups images"]]:
    """For every image: the score of its own caption (the worst of several), and the best of the others."""
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return own.min(axis=2), others.max(axis=2)


def columns_of(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> tuple[Float[np.ndarray, "groups true"], Float[np.ndarray, "groups true"]]:
    """For every caption that is true for an image: the score of that image, and the best of the others."""
    if more_images(scores) and true_captions == 1:
        return rows_of(fewer_first(scores), 1)
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    if own.shape[1] < 2:
        raise ValueError("the image score is undefined for groups with one image")
    true = own.shape[1] * true_captions
    return own.reshape(len(own), true), others[:, :, :true].max(axis=1)


def true_and_mixed(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> tuple[Real[np.ndarray, "groups true_pairs"], Real[np.ndarray, "groups mixed_pairs"]]:
    """Of how alike captions are: pairs of true captions, and pairs of a true one and another."""
    if likeness.ndim != 3 or likeness.shape[1] != likeness.shape[2] or not 1 < true_captions < likeness.shape[2]:
        raise ValueError(f"{true_captions} true captions, of at least 2, do not fit into {list(likeness.shape)}")
    first, second = np.triu_indices(true_captions, 1)
    return likeness[:, first, second], likeness[:, :true_captions, true_captions:].reshape(len(likeness), -1)
