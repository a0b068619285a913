"""Metrics of a score array. Caption i is true for image i; every comparison is strict, so a tie is never correct.

The one exception says so in its name: `text_score_ties_right` is a published rule, to be stated beside the strict one.

All functions take logits [groups, images, captions] with images <= captions and return one value per group, except
`global_assignment_accuracy`, which takes one matrix over all images and captions. ``*_ties`` tell in which groups a
comparison that the metric makes is an equality. Equation and section numbers are those of arXiv:2510.07632.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from ttmbench import chance
from ttmbench.matching import check_scores, match_global, match_groups
from ttmbench.types import MetricSpec


def text_score(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Every image prefers its own caption: s[i,i] > max of s[i,j] over j != i, for all i (Winoground, Eq. 1 there).

    Args:
        scores: logits [groups, images, captions].

    Returns:
        bool [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> text_score(np.array([[[2., 1.], [3., 4.]], [[1., 1.], [1., 1.]]])).tolist()
    [True, False]
    """
    own, other = _rows(scores)
    return np.asarray((own > other).all(axis=1))


def text_score_ties(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Groups in which some image scores its own caption and its best other caption the same; see `text_score`."""
    own, other = _rows(scores)
    return (own == other).any(axis=1)


def text_score_ties_right(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """As `text_score`, but an equality counts as right: s[i,i] >= max of s[i,j] over j != i, for all i.

    This is what an argmax gives that takes the first of equals where the true caption is the first, as the published
    numbers of ARO's order tasks do. A constant scorer is always right by it: state it beside the text score only.

    Args:
        scores: logits [groups, images, captions].

    Returns:
        bool [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> text_score_ties_right(np.array([[[2., 1.]], [[1., 1.]], [[1., 2.]]])).tolist()
    [True, True, False]
    """
    own, other = _rows(scores)
    return np.asarray((own >= other).all(axis=1))


def image_score(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Every caption prefers its own image: s[i,i] > max of s[j,i] over j != i, for all i (Winoground, Eq. 2 there).

    Args:
        scores: logits [groups, images, captions], at least two images: with one image there is nothing to prefer.

    Returns:
        bool [groups].

    Raises:
        ValueError: one image per group, wrong shape, or a score that is not finite.

    >>> image_score(np.array([[[2., 1.], [3., 4.]], [[3., 1.], [2., 4.]]])).tolist()
    [False, True]
    """
    own, other = _columns(scores)
    return np.asarray((own > other).all(axis=1))


def image_score_ties(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Groups in which some caption scores its own image and its best other image the same; see `image_score`."""
    own, other = _columns(scores)
    return (own == other).any(axis=1)


def group_score(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Square groups: text score and image score both hold (Eq. 1). Rectangular groups: rows only (section A.2).

    Args:
        scores: logits [groups, images, captions].

    Returns:
        bool [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> group_score(np.array([[[3., 1.], [2., 4.]], [[2., 1.], [3., 4.]]])).tolist()
    [True, False]
    >>> group_score(np.array([[[3., 1., 2.]]])).tolist()
    [True]
    """
    rows = text_score(scores)
    return rows & image_score(scores) if _is_square(scores) else rows


def group_score_ties(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Groups in which one of the comparisons of `group_score` is an equality."""
    rows = text_score_ties(scores)
    return rows | image_score_ties(scores) if _is_square(scores) else rows


def group_match(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """The true matching beats every other one in total score, strictly (section 3.1; injective matchings: A.2).

    Args:
        scores: logits [groups, images, captions].

    Returns:
        bool [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> group_match(np.array([[[2., 1.], [3., 4.]], [[1., 1.], [1., 1.]], [[1., 9.], [9., 1.]]])).tolist()
    [True, False, False]
    """
    matching = match_groups(scores)
    return (matching.captions == np.arange(scores.shape[1])).all(axis=1) & ~matching.tie


def group_match_ties(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """Groups in which several matchings share the best total; see `group_match`."""
    return match_groups(scores).tie


def individual_match(scores: Real[np.ndarray, "groups images captions"]) -> Float[np.ndarray, " groups"]:
    """Share of a group's images whose own caption is the strict maximum of their row (Fig. 4 left).

    Args:
        scores: logits [groups, images, captions].

    Returns:
        float [groups], fractions.

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> individual_match(np.array([[[2., 1.], [4., 3.]]])).tolist()
    [0.5]
    """
    own, other = _rows(scores)
    return (own > other).mean(axis=1)


def global_assignment_accuracy(
    scores: Real[np.ndarray, "images captions"], truth: Int[np.ndarray, " images"] | None = None
) -> Bool[np.ndarray, " images"]:
    """Images that the best single assignment over all images and captions gives their own caption (Eq. 2).

    An image counts only if every assignment with the best total agrees on its caption.

    Args:
        scores: logits [images, captions], images <= captions.
        truth: index of each image's own caption; by default caption i for image i.

    Returns:
        bool [images]; the metric is its mean.

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> global_assignment_accuracy(np.array([[3., 2.], [3., 0.]])).tolist()
    [False, False]
    >>> global_assignment_accuracy(np.ones((2, 2))).tolist()
    [False, False]
    """
    own = np.arange(scores.shape[0]) if truth is None else truth
    matching = match_global(scores)
    return (matching.captions == own) & ~matching.tie


def global_assignment_ties(
    scores: Real[np.ndarray, "images captions"], truth: Int[np.ndarray, " images"] | None = None
) -> Bool[np.ndarray, " images"]:
    """Images to which equally good assignments give different captions; see `global_assignment_accuracy`."""
    return match_global(scores).tie


def _is_square(scores: np.ndarray) -> bool:
    return scores.shape[1] == scores.shape[2]


def _rows(
    scores: Real[np.ndarray, "groups images captions"],
) -> tuple[Float[np.ndarray, "groups images"], Float[np.ndarray, "groups images"]]:
    """For every image: the score of its own caption, and the best of the others."""
    scores = check_scores(scores)
    index = np.arange(scores.shape[1])
    others = scores.copy()
    others[:, index, index] = -np.inf
    return scores[:, index, index], others.max(axis=2)


def _columns(
    scores: Real[np.ndarray, "groups images captions"],
) -> tuple[Float[np.ndarray, "groups images"], Float[np.ndarray, "groups images"]]:
    """For every caption that is true for an image: the score of that image, and the best of the others."""
    scores = check_scores(scores)
    images = scores.shape[1]
    if images < 2:
        raise ValueError("the image score is undefined for groups with one image")
    index = np.arange(images)
    others = scores[:, :, :images].copy()
    others[:, index, index] = -np.inf
    return scores[:, index, index], others.max(axis=1)


METRICS = (
    MetricSpec(
        "text_score",
        text_score,
        "every image prefers its own caption",
        text_score_ties,
        chance.text_score,
    ),
    MetricSpec(
        "text_score_ties_right",
        text_score_ties_right,
        "as the text score, but ties count as right: the published rule of ARO's order tasks",
        text_score_ties,
        chance.text_score,
    ),
    MetricSpec(
        "image_score",
        image_score,
        "every caption prefers its own image",
        image_score_ties,
        chance.image_score,
        defined=lambda images, captions: images > 1,
    ),
    MetricSpec(
        "group_score",
        group_score,
        "text and image score both hold (rectangular groups: text score)",
        group_score_ties,
        chance.group_score,
    ),
    MetricSpec(
        "group_match",
        group_match,
        "the true matching has the largest total score (SimpleMatch)",
        group_match_ties,
        chance.group_match,
        track="matching",
    ),
    MetricSpec(
        "individual_match",
        individual_match,
        "share of images whose own caption is their best",
        text_score_ties,
        chance.individual_match,
    ),
    MetricSpec(
        "global_assignment_accuracy",
        global_assignment_accuracy,
        "share of images that one assignment over all pairs gives their own caption",
        global_assignment_ties,
        chance.global_assignment_accuracy,
        scope="global",
        track="matching",
    ),
)
"""What `ttmbench ls metrics` lists and task files may name, each with its ties and its chance level."""
