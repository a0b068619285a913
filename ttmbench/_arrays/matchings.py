"""How many matchings a group has, and one of them as files of samples have it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ttmbench._annotations import Int


def count_matchings(images: int, captions: int, true_captions: int = 1) -> int:
    """How many ways there are to give each of m images t of k captions, and no caption twice: k! / (t!^m (k - m t)!).

    Where there are more images than captions, each caption is given an image in place of that.

    >>> count_matchings(2, 2), count_matchings(1, 4), count_matchings(1, 3, true_captions=2), count_matchings(2, 1)
    (2, 4, 3, 2)
    """
    images, captions = (images, captions) if images <= captions else (captions, images)
    return math.perm(captions, images * true_captions) // math.factorial(true_captions) ** images


def given_captions(captions: Int[np.ndarray, "images ..."]) -> list[Any]:
    """What each image of a group is given, for JSON: a caption, a list of several, or None.

    >>> given_captions(np.array([1, 0])), given_captions(np.array([-1, 0])), given_captions(np.array([[0, 2]]))
    ([1, 0], [None, 0], [[0, 2]])
    """
    return [None if one == -1 else one for one in captions.tolist()]
