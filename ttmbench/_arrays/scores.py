"""Arrays of scores: checked before anything is computed; scores of true pairs, numbers of matchings, a few metrics.

``true_captions`` is how many captions t are true for each image; its own are columns i t to (i + 1) t - 1.
"""

from __future__ import annotations

import math

import numpy as np

from ttmbench._annotations import Bool, Float, Int, Real

_LARGEST_WHOLE = 2**53  # beyond it float64 skips whole numbers
_LARGEST = 1e30  # no logit is larger, and sums of such numbers would leave the range of floats


def check_scores(scores: np.ndarray) -> np.ndarray:
    """The scores as floats, checked: finite, [groups, images, captions], at least 2 images or captions.

    ValueError for another shape, or a score that is NaN or infinite (the group is named).
    """
    floats = as_floats(scores)
    if floats.ndim != 3:
        raise ValueError(f"scores must have 3 axes (groups, images, captions), got shape {floats.shape}")
    _, images, captions = floats.shape
    if min(images, captions) < 1 or max(images, captions) < 2:
        raise ValueError(f"a group needs at least 2 images or 2 captions, got {images}x{captions}")
    finite = np.isfinite(floats).all(axis=(1, 2))
    if not finite.all():
        raise ValueError(f"group {int(np.argmin(finite))} holds a score that is NaN or infinite")
    return floats


def as_floats(scores: np.ndarray) -> np.ndarray:
    """Numbers as floats: whole ones become float64.

    ValueError unless they are numbers, whole ones within 2**53, and no larger than any logit.
    """
    array = np.asarray(scores)
    if array.dtype.kind in "iub":
        if array.size and max(abs(int(array.min())), abs(int(array.max()))) > _LARGEST_WHOLE:
            raise ValueError(f"whole numbers beyond 2**53 ({array.dtype}) are not exact in float64; scale the scores")
        return array.astype(np.float64)
    if array.dtype.kind != "f":
        raise ValueError(f"scores must be numbers, got an array of {array.dtype}")
    if bool((np.isfinite(array) & (np.abs(array) > _LARGEST)).any()):
        raise ValueError(f"a score is larger than any logit ({_LARGEST:g}); scale the scores")
    return array


def more_images(scores: np.ndarray) -> bool:
    """Whether groups have more images than captions, so that captions choose among images."""
    return bool(scores.ndim == 3 and scores.shape[1] > scores.shape[2])


def fewer_first(scores: np.ndarray) -> np.ndarray:
    """Scores [groups, the fewer, the more]: with more images than captions, captions choose images."""
    return scores.swapaxes(1, 2) if more_images(scores) else scores


def count_matchings(images: int, captions: int, true_captions: int = 1) -> int:
    """Number of ways to give each of m images t of k captions, no caption twice: k! / (t!^m (k - m t)!).

    With more images than captions, each caption is given an image instead.

    >>> count_matchings(2, 2), count_matchings(1, 4), count_matchings(1, 3, true_captions=2), count_matchings(2, 1)
    (2, 4, 3, 2)
    """
    images, captions = (images, captions) if images <= captions else (captions, images)
    return math.perm(captions, images * true_captions) // math.factorial(true_captions) ** images


def given_captions(captions: Int[np.ndarray, "images ..."]) -> list[int | list[int] | None]:
    """What each image of a group is given, for JSON: a caption, a list of several, or None.

    >>> given_captions(np.array([1, 0])), given_captions(np.array([-1, 0])), given_captions(np.array([[0, 2]]))
    ([1, 0], [None, 0], [[0, 2]])
    """
    return [None if caption == -1 else caption for caption in captions.tolist()]


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
    """For every image: the scores of its own captions."""
    scores = check_scores(scores)
    is_own(scores, true_captions)  # or it is undefined
    images = np.arange(scores.shape[1])[:, None]
    return scores[:, images, images * true_captions + np.arange(true_captions)]


def other_scores(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> Float[np.ndarray, "groups images captions"]:
    """For every image: the scores of the captions that are not its own, and -inf in the places of its own."""
    return np.where(is_own(scores, true_captions), -np.inf, check_scores(scores))


def rows_of(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> tuple[Float[np.ndarray, "groups images"], Float[np.ndarray, "groups images"]]:
    """For every image: the score of its own caption (the worst of several), and the best of the others."""
    return own_scores(scores, true_captions).min(axis=2), other_scores(scores, true_captions).max(axis=2)


def columns_of(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int
) -> tuple[Float[np.ndarray, "groups true"], Float[np.ndarray, "groups true"]]:
    """For every caption that is true for an image: the score of that image, and the best of the others."""
    if more_images(scores) and true_captions == 1:
        return rows_of(fewer_first(scores), 1)
    positives, negatives = own_scores(scores, true_captions), other_scores(scores, true_captions)
    if positives.shape[1] < 2:
        raise ValueError("the image score is undefined for groups with one image")
    true = positives.shape[1] * true_captions
    return positives.reshape(len(positives), true), negatives[:, :, :true].max(axis=1)


def true_and_mixed(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> tuple[Real[np.ndarray, "groups true_pairs"], Real[np.ndarray, "groups mixed_pairs"]]:
    """Similarities of pairs of true captions, and of pairs of a true and another caption."""
    if likeness.ndim != 3 or likeness.shape[1] != likeness.shape[2] or not 1 < true_captions < likeness.shape[2]:
        raise ValueError(f"{true_captions} true captions, of at least 2, do not fit into {list(likeness.shape)}")
    first, second = np.triu_indices(true_captions, 1)
    return likeness[:, first, second], likeness[:, :true_captions, true_captions:].reshape(len(likeness), -1)


# --- metrics of groups in which several captions are true for an image, as their benchmarks define them --------------


def original_accuracy(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """The first correct caption of every image scores above every incorrect one (arXiv:2409.17958).

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
    positives, negatives = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return (positives[:, :, 0] > negatives.max(axis=2)).all(axis=1)


def original_accuracy_ties(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """Groups in which some image gives the first of its captions and the best incorrect caption the same score."""
    positives, negatives = own_scores(scores, true_captions), other_scores(scores, true_captions)
    return (positives[:, :, 0] == negatives.max(axis=2)).any(axis=1)


def brittleness(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Float[np.ndarray, " groups"]:
    """Fraction of a group's images with an incorrect caption between two correct ones (arXiv:2409.17958).

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
    positives, negatives = own_scores(scores, true_captions), other_scores(scores, true_captions)
    low, high = positives.min(axis=2, keepdims=True), positives.max(axis=2, keepdims=True)
    return ((low < negatives) & (negatives < high)).any(axis=2).mean(axis=1)


def brittleness_ties(
    scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1
) -> Bool[np.ndarray, " groups"]:
    """Groups in which a wrong caption scores the same as the best or the worst true one of an image."""
    positives, negatives = own_scores(scores, true_captions), other_scores(scores, true_captions)
    low, high = positives.min(axis=2, keepdims=True), positives.max(axis=2, keepdims=True)
    return ((negatives == low) | (negatives == high)).any(axis=(1, 2))


def text_only_score(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> Bool[np.ndarray, " groups"]:
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
    true, mixed = true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) > mixed.max(axis=1))


def text_only_ties(
    likeness: Real[np.ndarray, "groups captions captions"], true_captions: int
) -> Bool[np.ndarray, " groups"]:
    """Groups in which the least similar true captions are as similar as a true and another one."""
    true, mixed = true_and_mixed(likeness, true_captions)
    return np.asarray(true.min(axis=1) == mixed.max(axis=1))


def chosen_positions(scores: Real[np.ndarray, "groups rows options"]) -> list[float]:
    """Share of rows whose largest score stands at each position; of equal ones the first counts.

    >>> chosen_positions(np.array([[[2., 1.], [3., 4.]], [[5., 1.], [2., 1.]]]))
    [0.75, 0.25]
    """
    chosen = np.bincount(scores.argmax(axis=2).reshape(-1), minlength=scores.shape[2])
    return [float(share) for share in chosen / scores[..., 0].size]
