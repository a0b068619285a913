"""Expected value of each metric for i.i.d. continuous scores.

Proposition numbers are those of arXiv:2510.07632.

Arguments are the number of images (m) and captions (k) of a group, and the number of captions that are true for each
image (t, 1 by default). Functions return a fraction, or None where the metric is undefined. They raise a ValueError
unless 1 <= m * t <= k, except for metrics that are defined with more images than captions (t = 1): these return the
chance level of the group with images and captions exchanged.
"""

from __future__ import annotations

import math
from fractions import Fraction

from ttmbench._arrays import count_matchings


def text_score(images: int, captions: int, true_captions: int = 1) -> float:
    """In each row the t true captions have the largest scores, rows being independent: 1 / C(k, t)^m.

    >>> text_score(2, 2), text_score(1, 4), round(text_score(1, 3, true_captions=2), 4)
    (0.25, 0.25, 0.3333)
    """
    _check(images, captions, true_captions)
    return 1 / math.comb(captions, true_captions) ** images


def image_score(images: int, captions: int, true_captions: int = 1) -> float | None:
    """Each of the m * t true captions' columns has its maximum at its own image: 1 / m^(m t); None for one image.

    >>> image_score(2, 2), image_score(1, 4), image_score(2, 1)
    (0.25, None, 0.5)
    """
    if images > captions and true_captions == 1:
        return text_score(captions, images)
    _check(images, captions, true_captions)
    return None if images == 1 else 1 / images ** (images * true_captions)


def group_score(images: int, captions: int, true_captions: int = 1) -> float:
    """Square: (k-1)! / (2k-1)! (Proposition 1). Rectangular: 1 / C(k, t)^m (Proposition 3 for t = 1).

    With several true captions "square" means that every caption is true for an image; see `_square_group_score`.

    >>> round(group_score(2, 2), 4), group_score(1, 4), round(group_score(2, 4, true_captions=2), 6)
    (0.1667, 0.25, 0.017857)
    """
    if images > captions and true_captions == 1:
        return text_score(captions, images)
    _check(images, captions, true_captions)
    if images * true_captions < captions:
        return text_score(images, captions, true_captions)
    if true_captions == 1:
        return math.factorial(captions - 1) / math.factorial(2 * captions - 1)
    return float(_square_group_score(images, true_captions))


def group_match(images: int, captions: int, true_captions: int = 1) -> float:
    """One of the k! / (t!^m (k - m t)!) matchings, all equally likely (Propositions 2 and 4 for t = 1).

    >>> group_match(2, 2), group_match(1, 4), round(group_match(1, 3, true_captions=2), 4)
    (0.5, 0.25, 0.3333)
    """
    images, captions = sorted((images, captions)) if true_captions == 1 else (images, captions)
    _check(images, captions, true_captions)
    return 1 / count_matchings(images, captions, true_captions)


def individual_match(images: int, captions: int, true_captions: int = 1) -> float:
    """The t largest scores of a row are equally likely at every t of its k captions: 1 / C(k, t).

    >>> individual_match(2, 2)
    0.5
    """
    _check(images, captions, true_captions)
    return 1 / math.comb(captions, true_captions)


def image_accuracy(images: int, captions: int, true_captions: int = 1) -> float | None:
    """The largest score of a column is equally likely at each of the m images: 1 / m; None for one image.

    >>> image_accuracy(2, 2), image_accuracy(1, 4), image_accuracy(10, 1)
    (0.5, None, 0.1)
    """
    if images <= captions or true_captions > 1:
        _check(images, captions, true_captions)
    return None if images == 1 else 1 / images


def original_accuracy(images: int, captions: int, true_captions: int = 1) -> float:
    """The first of each image's true captions against the k - t captions that are not true for it: 1 / (k - t + 1)^m.

    >>> original_accuracy(1, 3, true_captions=2)
    0.5
    """
    _check(images, captions, true_captions)
    return 1 / (captions - true_captions + 1) ** images


def brittleness(images: int, captions: int, true_captions: int = 1) -> float:
    """Some wrong caption lies between true ones unless these are neighbours in the order: 1 - (k - t + 1) / C(k, t).

    >>> round(brittleness(1, 3, true_captions=2), 4)
    0.3333
    """
    _check(images, captions, true_captions)
    orders = math.comb(captions, true_captions)
    return (orders - (captions - true_captions + 1)) / orders


def text_only_score(images: int, captions: int, true_captions: int = 1) -> float | None:
    """All t (t - 1) / 2 pairs of true captions above all t (k - t) mixed ones; None for several images.

    >>> round(text_only_score(1, 3, true_captions=2), 4)
    0.3333
    """
    _check(images, captions, true_captions)
    true, mixed = true_captions * (true_captions - 1) // 2, true_captions * (captions - true_captions)
    return 1 / math.comb(true + mixed, true) if images == 1 and true else None


def global_assignment_accuracy(images: int, captions: int, true_captions: int = 1) -> float:
    """By symmetry each image is equally likely to be assigned every t of all the captions: 1 / C(captions, t).

    >>> global_assignment_accuracy(400, 400)
    0.0025
    """
    _check(images, captions, true_captions)
    return 1 / math.comb(captions, true_captions)


def _square_group_score(images: int, true_captions: int) -> Fraction:
    """Chance that the text score and the image score both hold, where all k = m t captions are true for some image.

    Any other pair (image j, caption c of image i) has to score below c with its own image and below j with each of its
    own captions. Given the true pairs in rising order, the other pairs are independent, and each has to be below the
    lowest of these true pairs. If a_p other pairs have the p-th true pair as their lowest, the chance of this order of
    the n = m t true pairs is

        1/n! * E[prod_p U_(p)^a_p] = prod_p 1 / (p + a_1 + ... + a_p),

    where U_(p) are the order statistics of n uniform numbers. The sum over orders needs two counts, which determine
    a_p: images with none of their pairs so far (``fresh``), and other pairs below so far (``below``).
    """
    pairs = images * true_captions
    ways = {(images, 0): Fraction(1)}
    for rank in range(1, pairs + 1):
        following: dict[tuple[int, int], Fraction] = {}
        for (fresh, below), chance in ways.items():
            begun = pairs - (rank - 1) - fresh * true_captions
            if begun:  # a further pair of an image that has one: its caption with each fresh image
                now = below + fresh
                key = (fresh, now)
                following[key] = following.get(key, Fraction(0)) + chance * begun / (rank + now)
            if fresh:  # the lowest pair of an image: also that image with the captions of the others that are above
                now = below + (fresh - 1) + (pairs - (rank - 1) - true_captions)
                key = (fresh - 1, now)
                following[key] = following.get(key, Fraction(0)) + chance * fresh * true_captions / (rank + now)
        ways = following
    return sum(ways.values(), Fraction(0))


def _check(images: int, captions: int, true_captions: int) -> None:
    if not 1 <= images <= captions or true_captions < 1 or images * true_captions > captions:
        several = f" with {true_captions} true captions for each image" if true_captions != 1 else ""
        raise ValueError(f"a group needs 1 <= images <= captions, got {images}x{captions}{several}")
