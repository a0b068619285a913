"""Metrics of groups in which several captions are true for an image, as the benchmarks define them that have such."""

from __future__ import annotations

import numpy as np

from ttmbench._annotations import Bool, Float, Real
from ttmbench._arrays.scores import other_scores, own_scores, true_and_mixed


def original_accuracy(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """The first true caption of every image beats every wrong one, whatever becomes of the others (arXiv:2409.17958).

    Args:
        scores: logits [groups, images, captions].
        true_captions: that are true for each image; the first of them is the original one.

    Returns:
        bool [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> original_accuracy(np.array([[[3., 1., 2.]], [[1., 3., 2.]]]), true_captions=2).tolist()
    [True, False]
    """
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return (own[:, :, 0] > others.max(axis=2)).all(axis=1)


def original_accuracy_ties(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """Groups in which some image scores its first true caption and its best wrong one the same."""
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return (own[:, :, 0] == others.max(axis=2)).any(axis=1)


def brittleness(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Float[np.ndarray, " groups"]:
    """Share of a group's images with a wrong caption between two true ones (arXiv:2409.17958). Lower is better.

    For captions (c, p, n), two of them true: s(c) > s(n) > s(p) or s(p) > s(n) > s(c).

    Args:
        scores: logits [groups, images, captions].
        true_captions: that are true for each image.

    Returns:
        float [groups], fractions.

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> brittleness(np.array([[[3., 1., 2.]], [[1., 3., 2.]], [[3., 2., 1.]]]), true_captions=2).tolist()
    [1.0, 1.0, 0.0]
    """
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    low, high = own.min(axis=2, keepdims=True), own.max(axis=2, keepdims=True)
    return ((low < others) & (others < high)).any(axis=2).mean(axis=1)


def brittleness_ties(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """Groups in which a wrong caption scores the same as the best or the worst true one of an image."""
    own, others = own_scores(scores, true_captions), other_scores(scores, true_captions)
    low, high = own.min(axis=2, keepdims=True), own.max(axis=2, keepdims=True)
    return ((others == low) | (others == high)).any(axis=(1, 2))


def text_only_score(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> Bool[np.ndarray, " groups"]:
    """The true captions are more similar to each other than any of them to another one (arXiv:2406.11171, TOT).

    For captions (c, d, n), two of them true: sim(c, d) > sim(c, n) and sim(c, d) > sim(d, n). No image is used.

    Args:
        likeness: similarity of every two captions, symmetric.
        true_captions: that are true for the image, at least 2; the first ones.

    Returns:
        bool [groups].

    >>> text_only_score(np.array([[[1., .9, .5], [.9, 1., .8], [.5, .8, 1.]]]), true_captions=2).tolist()
    [True]
    """
    true, mixed = true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) > mixed.max(axis=1))


def text_only_ties(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> Bool[np.ndarray, " groups"]:
    """Groups in which the least similar true captions are as similar as a true and another one."""
    true, mixed = true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) == mixed.max(axis=1))
