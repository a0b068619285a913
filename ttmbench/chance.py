"""Chance levels: the expected value of each metric for i.i.d. continuous scores.

Proposition numbers are those of arXiv:2510.07632.

Arguments are the numbers of images (m) and captions (k) of a group; results are fractions. An argument outside
1 <= m <= k is a ValueError.
"""

from __future__ import annotations

import math


def text_score(images: int, captions: int) -> float:
    """Each row has its maximum at its own caption, rows being independent: 1 / k^m.

    >>> text_score(2, 2), text_score(1, 4)
    (0.25, 0.25)
    """
    _check(images, captions)
    return 1 / captions**images


def image_score(images: int, captions: int) -> float | None:
    """Each true caption's column has its maximum at its own image: 1 / m^m; None for one image, where it is undefined.

    >>> image_score(2, 2), image_score(1, 4)
    (0.25, None)
    """
    _check(images, captions)
    return None if images == 1 else 1 / images**images


def group_score(images: int, captions: int) -> float:
    """Square: (k-1)! / (2k-1)! (Proposition 1). Rectangular: 1 / k^m (Proposition 3).

    >>> round(group_score(2, 2), 4), group_score(1, 4)
    (0.1667, 0.25)
    """
    _check(images, captions)
    if images == captions:
        return math.factorial(captions - 1) / math.factorial(2 * captions - 1)
    return 1 / captions**images


def group_match(images: int, captions: int) -> float:
    """One of the k! / (k-m)! matchings, all equally likely (Propositions 2 and 4).

    >>> group_match(2, 2), group_match(1, 4)
    (0.5, 0.25)
    """
    _check(images, captions)
    return 1 / math.perm(captions, images)


def individual_match(images: int, captions: int) -> float:
    """A row's maximum is equally likely at each of its k captions: 1 / k.

    >>> individual_match(2, 2)
    0.5
    """
    _check(images, captions)
    return 1 / captions


def global_assignment_accuracy(images: int, captions: int) -> float:
    """By symmetry each image is equally likely to be assigned each of all the captions: 1 / (number of captions).

    >>> global_assignment_accuracy(400, 400)
    0.0025
    """
    _check(images, captions)
    return 1 / captions


def _check(images: int, captions: int) -> None:
    if not 1 <= images <= captions:
        raise ValueError(f"a group needs 1 <= images <= captions, got {images}x{captions}")
