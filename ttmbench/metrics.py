"""Metrics of a score array. Caption i is true for image i; every comparison is strict, so a tie is never correct.

`text_score_ties_right` alone counts a tie as correct: a published rule, to be reported with the strict text score.
Equation and section numbers of TTM refer to arXiv:2510.07632.

All functions take ``scores``, finite logits [groups, images, captions], and ``true_captions``, the number t of captions
that are true for each image (`ttmbench.types.GroupShape`). With t > 1, columns i t to (i + 1) t - 1 are the captions
of image i, and each of them has to score higher than every other caption. Functions return one value per group, bool
unless the docstring says otherwise, and raise a ValueError for a wrong shape or a score that is not finite. A
``*_ties`` function returns the groups in which a comparison of the metric is an equality.

With more images than captions, some images have no caption. Metrics in which an image selects a caption are then
undefined (a ValueError); defined are the image score, the group score and the group match, where each caption selects
an image (t = 1).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

import ttmbench.chance as chance
from ttmbench._annotations import Bool, Float, Int, Real
from ttmbench._arrays import check_scores, fewer_first, more_images
from ttmbench.matching import match_global, match_groups
from ttmbench.types import MetricSpec

Logits = Real[np.ndarray, "groups images captions"]
Verdicts = Bool[np.ndarray, " groups"]
Fractions = Float[np.ndarray, " groups"]


def _own_and_others(
    scores: Logits, true_captions: int
) -> tuple[Float[np.ndarray, "groups images true"], Float[np.ndarray, "groups images captions"]]:
    """For every image: the scores of its own captions, and all scores with -inf in the places of its own."""
    scores = check_scores(scores)
    groups, images, captions = scores.shape
    if images > captions:
        raise ValueError(f"in a {images}x{captions} group some images have no caption, so this is undefined")
    if true_captions < 1 or images * true_captions > captions:
        raise ValueError(f"{true_captions} true captions for each image do not fit into a {images}x{captions} group")
    own = np.arange(captions) // true_captions == np.arange(images)[:, None]
    return scores[:, own].reshape(groups, images, true_captions), np.where(own, -np.inf, scores)


def _rows(
    scores: Logits, true_captions: int
) -> tuple[Float[np.ndarray, "groups images"], Float[np.ndarray, "groups images"]]:
    """For every image: the score of its own caption (the worst of several), and the best of the others."""
    positives, negatives = _own_and_others(scores, true_captions)
    return positives.min(axis=2), negatives.max(axis=2)


def _columns(
    scores: Logits, true_captions: int
) -> tuple[Float[np.ndarray, "groups true"], Float[np.ndarray, "groups true"]]:
    """For every caption that is true for an image: the score of that image, and the best of the others."""
    if more_images(scores) and true_captions == 1:
        return _rows(fewer_first(scores), 1)
    positives, negatives = _own_and_others(scores, true_captions)
    if positives.shape[1] < 2:
        raise ValueError("the image score is undefined for groups with one image")
    positives = positives.reshape(len(positives), -1)
    return positives, negatives[:, :, : positives.shape[1]].max(axis=1)


def _true_and_mixed(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> tuple[Real[np.ndarray, "groups true_pairs"], Real[np.ndarray, "groups mixed_pairs"]]:
    """Similarities of pairs of true captions, and of pairs of a true and another caption."""
    if likeness.ndim != 3 or likeness.shape[1] != likeness.shape[2] or not 1 < true_captions < likeness.shape[2]:
        raise ValueError(f"{true_captions} true captions, of at least 2, do not fit into {list(likeness.shape)}")
    first, second = np.triu_indices(true_captions, 1)
    return likeness[:, first, second], likeness[:, :true_captions, true_captions:].reshape(len(likeness), -1)


def text_score(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Every image scores its own caption highest: s[i,i] > max of s[i,j] over j != i, for all i (Winoground, Eq. 1).

    >>> text_score(np.array([[[2., 1.], [3., 4.]], [[1., 1.], [1., 1.]]])).tolist()
    [True, False]
    """
    positive, negative = _rows(scores, true_captions)
    return np.asarray((positive > negative).all(axis=1))


def text_score_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which some image scores its own caption and its best other caption the same; see `text_score`."""
    positive, negative = _rows(scores, true_captions)
    return (positive == negative).any(axis=1)


def text_score_ties_right(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Like text_score, but an equality counts as correct: s[i,i] >= max of s[i,j] over j != i, for all i.

    ARO's published order tasks follow this rule: the correct caption is the first, and an argmax returns the first of
    equal scores. A constant scorer is then always correct, so report this metric together with the text score only.

    >>> text_score_ties_right(np.array([[[2., 1.]], [[1., 1.]], [[1., 2.]]])).tolist()
    [True, True, False]
    """
    positive, negative = _rows(scores, true_captions)
    return np.asarray((positive >= negative).all(axis=1))


def image_score(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Every caption scores its own image highest: s[i,i] > max of s[j,i] over j != i, for all i (Winoground, Eq. 2).

    Raises a ValueError for groups of one image, which leave nothing to choose from.

    >>> image_score(np.array([[[2., 1.], [3., 4.]], [[3., 1.], [2., 4.]]])).tolist()
    [False, True]
    """
    positive, negative = _columns(scores, true_captions)
    return np.asarray((positive > negative).all(axis=1))


def image_score_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which some caption scores its own image and its best other image the same; see `image_score`."""
    positive, negative = _columns(scores, true_captions)
    return (positive == negative).any(axis=1)


def group_score(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Square groups: text and image score both hold (TTM, Eq. 1). Others: rows only (TTM, section A.2).

    With more images than captions: columns only (section A.2 with images and captions exchanged).

    >>> group_score(np.array([[[3., 1.], [2., 4.]], [[2., 1.], [3., 4.]]])).tolist()
    [True, False]
    >>> group_score(np.array([[[3., 1., 2.]]])).tolist()
    [True]
    """
    if more_images(scores):
        return image_score(scores, true_captions)
    rows = text_score(scores, true_captions)
    square = scores.shape[1] * true_captions == scores.shape[2]
    return rows & image_score(scores, true_captions) if square else rows


def group_score_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which one of the comparisons of `group_score` is an equality."""
    if more_images(scores):
        return image_score_ties(scores, true_captions)
    rows = text_score_ties(scores, true_captions)
    square = scores.shape[1] * true_captions == scores.shape[2]
    return rows | image_score_ties(scores, true_captions) if square else rows


def group_match(scores: Logits, true_captions: int = 1) -> Verdicts:
    """The sum of s[i,i] is larger than that of every other injective matching (TTM, sections 3.1 and A.2).

    >>> group_match(np.array([[[2., 1.], [3., 4.]], [[1., 1.], [1., 1.]], [[1., 9.], [9., 1.]]])).tolist()
    [True, False, False]
    """
    scores = fewer_first(scores) if true_captions == 1 else scores
    matching = match_groups(scores, true_captions)
    truth = np.arange(scores.shape[1] * true_captions)
    return (matching.captions.reshape(len(scores), -1) == truth).all(axis=1) & ~matching.tie


def group_match_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which several matchings share the best total; see `group_match`."""
    return match_groups(scores, true_captions).tie


def individual_match(scores: Logits, true_captions: int = 1) -> Fractions:
    """Fraction of a group's images whose own caption is the strict maximum of their row (TTM, Fig. 4 left).

    Returns fractions, float [groups].

    >>> individual_match(np.array([[[2., 1.], [4., 3.]]])).tolist()
    [0.5]
    """
    positive, negative = _rows(scores, true_captions)
    return (positive > negative).mean(axis=1)


def image_accuracy(scores: Logits, true_captions: int = 1) -> Fractions:
    """Fraction of a group's captions whose own image is the strict maximum of their column (arXiv:2312.00081).

    Distractors are not counted. Returns fractions, float [groups]; ValueError for groups of
    one image.

    >>> image_accuracy(np.array([[[2., 1.], [4., 3.]]])).tolist()
    [0.5]
    """
    positive, negative = _columns(scores, true_captions)
    return (positive > negative).mean(axis=1)


def reliability(scores: Logits, side: Literal["text", "image"] = "text", bins: int = 15) -> Float[np.ndarray, "bins 3"]:
    """Points of a reliability curve of the caption that each image chooses, or the ``image`` that each caption chooses.

    Confidence is the chosen one's probability, by a softmax over the group; right is as in `individual_match` and
    `image_accuracy`. Returns, for each bin (m - 1)/bins < confidence <= m/bins, its share of the choices, the fraction
    of them that is right, and their mean confidence (Guo et al. 2017, arXiv:1706.04599, section 2: acc and conf); the
    last two are NaN for an empty bin. ValueError for a side with nothing to choose.
    """
    rows = scores if side == "text" else scores[:, :, : scores.shape[1]].swapaxes(1, 2)  # without distractors
    if rows.shape[2] < 2:
        raise ValueError(f"a side of {rows.shape[2]} {side} leaves nothing to choose")
    positive, negative = _rows(rows, 1)
    below = rows.astype(np.float64) - rows.max(axis=2, keepdims=True)
    right, confidence = (positive > negative).ravel(), (1 / np.exp(below).sum(axis=2)).ravel()
    which = np.searchsorted(np.arange(1, bins) / bins, confidence)
    count, *sums = (np.bincount(which, of, bins) for of in (None, right, confidence))
    return np.stack([count / len(which), *(np.where(count, of, np.nan) / np.maximum(count, 1) for of in sums)], axis=1)


def calibration_error(scores: Logits, side: Literal["text", "image"] = "text", bins: int = 15) -> float:
    """Expected calibration error: sum over bins of share |acc - conf| (Guo et al. 2017, Eq. 3), as in `reliability`.

    Scores have to be logits with the model's own scale, which changes the error.

    >>> round(calibration_error(np.array([[[2.0, 0.0], [0.0, 2.0]]])), 4), calibration_error(np.zeros((3, 2, 2)))
    (0.1192, 0.5)
    """
    share, accuracy, confidence = reliability(scores, side, bins).T
    return float(np.nansum(share * np.abs(accuracy - confidence)))


def global_assignment_accuracy(
    scores: Real[np.ndarray, "images captions"],
    truth: Int[np.ndarray, "images ..."] | None = None,
    true_captions: int = 1,
) -> Bool[np.ndarray, " images"]:
    """Whether the best assignment over all images and captions gives an image its captions (TTM, Eq. 2).

    An image counts only if every assignment with the best total agrees on its captions.

    Args:
        scores: logits [images, captions], images <= captions.
        truth: index of each image's own caption, or captions; by default caption i for image i.
        true_captions: how many captions are true for each image, and assigned to it.

    Returns:
        bool [images]; the metric is its mean.

    >>> global_assignment_accuracy(np.array([[3., 2.], [3., 0.]])).tolist()
    [False, False]
    >>> global_assignment_accuracy(np.ones((2, 2))).tolist()
    [False, False]
    """
    images = len(scores)
    true_columns = np.arange(images * true_captions) if truth is None else truth
    matching = match_global(scores, true_captions)
    right = matching.captions.reshape(images, -1) == np.sort(true_columns.reshape(images, -1), axis=1)
    return right.all(axis=1) & ~matching.tie


def global_assignment_ties(
    scores: Real[np.ndarray, "images captions"],
    truth: Int[np.ndarray, "images ..."] | None = None,
    true_captions: int = 1,
) -> Bool[np.ndarray, " images"]:
    """Images to which equally good assignments give different captions; see `global_assignment_accuracy`."""
    return match_global(scores, true_captions).tie


def original_accuracy(scores: Logits, true_captions: int = 1) -> Verdicts:
    """The first correct caption of every image scores above every incorrect one (arXiv:2409.17958).

    >>> original_accuracy(np.array([[[3., 1., 2.]], [[1., 3., 2.]]]), true_captions=2).tolist()
    [True, False]
    """
    positives, negatives = _own_and_others(scores, true_captions)
    return (positives[:, :, 0] > negatives.max(axis=2)).all(axis=1)


def original_accuracy_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which some image gives the first of its captions and the best incorrect caption the same score."""
    positives, negatives = _own_and_others(scores, true_captions)
    return (positives[:, :, 0] == negatives.max(axis=2)).any(axis=1)


def brittleness(scores: Logits, true_captions: int = 1) -> Fractions:
    """Fraction of a group's images with an incorrect caption between two correct ones (arXiv:2409.17958).

    For captions (c, p, n), two of them true: s(c) > s(n) > s(p) or s(p) > s(n) > s(c).

    >>> brittleness(np.array([[[3., 1., 2.]], [[1., 3., 2.]], [[3., 2., 1.]]]), true_captions=2).tolist()
    [1.0, 1.0, 0.0]
    """
    positives, negatives = _own_and_others(scores, true_captions)
    low, high = positives.min(axis=2, keepdims=True), positives.max(axis=2, keepdims=True)
    return ((low < negatives) & (negatives < high)).any(axis=2).mean(axis=1)


def brittleness_ties(scores: Logits, true_captions: int = 1) -> Verdicts:
    """Groups in which a wrong caption scores the same as the best or the worst true one of an image."""
    positives, negatives = _own_and_others(scores, true_captions)
    low, high = positives.min(axis=2, keepdims=True), positives.max(axis=2, keepdims=True)
    return ((negatives == low) | (negatives == high)).any(axis=(1, 2))


def text_only_score(likeness: Real[np.ndarray, "groups captions captions"], true_captions: int) -> Verdicts:
    """The correct captions are more similar to each other than any of them to another one (arXiv:2406.11171, TOT).

    For captions (c, d, n), two of them true: sim(c, d) > sim(c, n) and sim(c, d) > sim(d, n). No image is used.

    Args:
        likeness: similarity of every two captions, symmetric.
        true_captions: that are true for the image, at least 2; the first ones.

    Returns:
        bool [groups].

    >>> text_only_score(np.array([[[1., .9, .5], [.9, 1., .8], [.5, .8, 1.]]]), true_captions=2).tolist()
    [True]
    """
    true, mixed = _true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) > mixed.max(axis=1))


def text_only_ties(likeness: Real[np.ndarray, "groups captions captions"], true_captions: int) -> Verdicts:
    """Groups in which the least similar true captions are as similar as a true and another one."""
    true, mixed = _true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) == mixed.max(axis=1))


def _always(images: int, captions: int, true_captions: int = 1) -> bool:
    return True


_metric = partial(MetricSpec, several_true="defined")
_metric_of_several = partial(MetricSpec, several_true="only")
_of_logits = partial(MetricSpec, scope="task", needs_logits=True, higher_is_better=False)
METRICS = (
    _metric("text_score", text_score, "every image scores its own caption highest", text_score_ties, chance.text_score),
    _metric(
        "text_score_ties_right",
        text_score_ties_right,
        "text_score with ties counted as correct: the published rule of ARO's order tasks and others",
        text_score_ties,
        chance.text_score,
    ),
    _metric(
        "image_score",
        image_score,
        "every caption scores its own image highest",
        image_score_ties,
        chance.image_score,
        defined=lambda images, captions, true_captions=1: images > 1,
    ),
    _metric(
        "group_score",
        group_score,
        "text_score and image_score both hold; if not square, that of the side with fewer items",
        group_score_ties,
        chance.group_score,
        defined=_always,
    ),
    _metric(
        "group_match",
        group_match,
        "the correct matching has the highest total score (SimpleMatch)",
        group_match_ties,
        chance.group_match,
        track="matching",
        defined=_always,
    ),
    _metric(
        "individual_match",
        individual_match,
        "fraction of images that score their own caption highest",
        text_score_ties,
        chance.individual_match,
    ),
    _metric(
        "text_accuracy",
        individual_match,
        "individual_match by its name for single queries",
        text_score_ties,
        chance.individual_match,
    ),
    _metric(
        "image_accuracy",
        image_accuracy,
        "fraction of captions that score their own image highest",
        image_score_ties,
        chance.image_accuracy,
        defined=lambda images, captions, true_captions=1: images > 1,
    ),
    _metric(
        "global_assignment_accuracy",
        global_assignment_accuracy,
        "fraction of images that the best assignment over the whole task gives their own caption",
        global_assignment_ties,
        chance.global_assignment_accuracy,
        scope="global",
        track="matching",
    ),
    _of_logits("text_ece", calibration_error, "calibration error of the caption that each image chooses (on request)"),
    _of_logits(
        "image_ece",
        partial(calibration_error, side="image"),
        "calibration error of the image that each caption chooses (on request)",
        defined=lambda images, captions, true_captions=1: images > 1,
    ),
    _metric_of_several(
        "original_accuracy",
        original_accuracy,
        "the first of several correct captions scores above every incorrect one",
        original_accuracy_ties,
        chance.original_accuracy,
    ),
    _metric_of_several(
        "augmented_accuracy",
        text_score,
        "all correct captions score above every incorrect one (text_score, as Hard Positives names it)",
        text_score_ties,
        chance.text_score,
    ),
    _metric_of_several(
        "brittleness",
        brittleness,
        "fraction of images with an incorrect caption between two correct ones; lower is better",
        brittleness_ties,
        chance.brittleness,
        higher_is_better=False,
    ),
    _metric_of_several(
        "text_only_score",
        text_only_score,
        "correct captions are closer to each other than to an incorrect one; text only (TOT of SugarCrepe++)",
        text_only_ties,
        chance.text_only_score,
        defined=lambda images, captions, true_captions=1: images == 1,
        scope="captions",
    ),
)
"""What `ttmbench ls metrics` lists and task files may name, each with its ties and its chance level."""
