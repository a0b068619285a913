"""Best matchings of images and captions, inside a group or over a whole dataset, and their margins.

Scores are logits; rows are images, columns are captions. A matching is injective: each image gets a different caption.
With more images than captions, each caption gets a different image, and the remaining images get none.
Inside a group, ties are found with exact sums: rounding neither creates nor removes a tie, and relabelling images or
captions does not change the result. The global assignment sums hundreds of scores; totals that differ by less than
1e-12 times the range of the scores times the number of captions count as tied.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np

from ttmbench._annotations import Float, Int, Real
from ttmbench._arrays import as_floats, assign, check_scores, count_matchings, fewer_first, more_images
from ttmbench.types import GlobalMatching, Matching

MAX_INJECTIONS = 1_000_000
_CHUNK = 4_000_000  # totals in memory at a time
_LATEST: dict[bytes, GlobalMatching] = {}  # digest of scores -> their assignment, of the last scores alone
_LIMB = 32  # bits


@lru_cache(maxsize=64)
def injections(images: int, captions: int, true_captions: int = 1) -> Int[np.ndarray, "injections images_true"]:
    """All injective matchings of ``images`` images to ``captions`` captions, the identity first.

    For m images, k >= m t captions and t captions for each image, int [k! / (t!^m (k - m t)!), m t], lexicographic:
    entries [p, i t] to [p, i t + t - 1] are the captions that matching p gives to image i, in rising order. ValueError
    for more than ``MAX_INJECTIONS`` of them.

    >>> injections(2, 2).tolist()
    [[0, 1], [1, 0]]
    >>> injections(1, 3).tolist()
    [[0], [1], [2]]
    >>> injections(1, 3, true_captions=2).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    count = count_matchings(images, captions, true_captions)
    if count > MAX_INJECTIONS:
        raise ValueError(
            f"a {images}x{captions} group has {count} matchings; at most {MAX_INJECTIONS} are enumerated. "
            "Use smaller groups or the global variant."
        )
    each = (
        permutations(range(captions), images) if true_captions == 1 else _sets(images, range(captions), true_captions)
    )
    table = np.array(list(each), dtype=np.int64)
    table.setflags(write=False)
    return table


def _sets(images: int, captions: Sequence[int], each: int) -> Iterator[tuple[int, ...]]:
    """All ways to give ``each`` captions to each image."""
    if images == 0:
        yield ()
        return
    for first in combinations(captions, each):
        for rest in _sets(images - 1, [caption for caption in captions if caption not in first], each):
            yield first + rest


def match_groups(scores: Real[np.ndarray, "groups images captions"], true_captions: int = 1) -> Matching:
    """Finds the matching with the largest total score in every group, and its margin.

    The margin is the best total minus the second-best total over all injective matchings (Algorithm 1, line 5 of
    arXiv:2510.07632); it needs no label.

    Args:
        scores: logits [groups, images, captions], finite, at least 2 images or captions.
        true_captions: how many captions are true for each image, and given to it; 1 with more images than captions.

    Returns:
        Matching: captions [groups, images] (with several true captions [groups, images, true], in rising order; -1 for
            an
        image without a caption), margin [groups] in logits, tie [groups].

    Raises:
        ValueError: wrong shape, or a score that is not finite (the group is named).

    >>> m = match_groups(np.array([[[1., 4.], [2., 3.]], [[1., 1.], [1., 1.]]]))
    >>> m.captions[0].tolist(), m.margin.tolist(), m.tie.tolist()
    ([1, 0], [2.0, 0.0], [False, True])
    """
    exact = check_scores(scores).astype(np.float64)
    groups, images, captions = exact.shape
    if more_images(exact) and true_captions == 1:
        chosen = match_groups(fewer_first(exact))
        assigned = np.full((groups, images), -1)
        np.put_along_axis(assigned, chosen.captions, np.arange(captions)[None, :], axis=1)
        return Matching(assigned, chosen.margin, chosen.tie)
    table = injections(images, captions, true_captions)
    best, margin = _best_of(exact, table)
    assigned = table[best] if true_captions == 1 else table[best].reshape(groups, images, true_captions)
    return Matching(captions=assigned, margin=margin, tie=margin == 0)


def _best_of(
    scores: Float[np.ndarray, "groups images captions"], table: Int[np.ndarray, "injections images_true"]
) -> tuple[Int[np.ndarray, " groups"], Float[np.ndarray, " groups"]]:
    """Index of the best matching of each group, and its margin; sums too close for float64 are compared exactly."""
    best, margin = np.empty(len(scores), dtype=np.int64), np.empty(len(scores))
    # The rounding error of one sum is below images * eps * sum|s|; anything within four of these is looked at again.
    doubt = 4 * table.shape[1] * np.finfo(np.float64).eps * np.abs(scores).sum(axis=(1, 2))
    step = max(1, _CHUNK // len(table))
    for start in range(0, len(scores), step):
        some = slice(start, start + step)
        totals = _totals(scores[some], table)
        best[some], top = totals.argmax(axis=1), totals.max(axis=1)
        others = totals.copy()
        np.put_along_axis(others, best[some, None], -np.inf, axis=1)
        margin[some] = top - others.max(axis=1)
        for at in np.flatnonzero(margin[some] <= doubt[some]):
            group = start + at
            close = np.flatnonzero(totals[at] >= top[at] - doubt[group])
            first, difference = _exact_best_and_margin(scores[group], table[close])
            best[group], margin[group] = close[first], _positive_float(difference)
    return best, margin


def match_global(scores: Real[np.ndarray, "images captions"], true_captions: int = 1) -> GlobalMatching:
    """Assigns a caption to every image so that the total score of all pairs is largest (Eq. 2).

    An image is tied if another assignment with the same total gives it another caption. These are the images whose edge
    lies on a cycle of edges with zero reduced cost, computed from the potentials of the optimum.

    The last result is cached by the content of the scores, since a metric and its ties need the same one.

    Args:
        scores: logits [images, captions], finite, images <= captions.
        true_captions: how many captions each image is given.

    Returns:
        GlobalMatching: captions, scores (logits) and tie, each [images], read-only; with several true captions the
            first
        two are [images, true], captions in rising order.

    Raises:
        ValueError: wrong shape, or a score that is not finite.

    >>> match_global(np.array([[3., 2., 0.], [3., 0., 0.]])).captions.tolist()
    [1, 0]
    >>> match_global(np.zeros((2, 2))).tie.tolist()
    [True, True]
    """
    scores = as_floats(scores)
    if scores.ndim != 2 or scores.shape[0] > scores.shape[1] or scores.shape[0] < 1:
        raise ValueError(f"scores must be [images, captions] with images <= captions, got shape {scores.shape}")
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise ValueError(f"image {row} has a score that is NaN or infinite")
    if len(scores) * true_captions > scores.shape[1]:
        raise ValueError(f"{true_captions} captions for each of {len(scores)} images are more than {scores.shape[1]}")
    content = hashlib.sha256(f"{scores.shape}{scores.dtype.str}{true_captions}".encode())
    content.update(np.ascontiguousarray(scores).data)
    key = content.digest()
    matching = _LATEST.get(key)
    if matching is None:
        matching = assign(scores, true_captions)
        _LATEST.clear()
        _LATEST[key] = matching
    return matching


def _totals(
    scores: Real[np.ndarray, "groups images captions"], table: Int[np.ndarray, "injections images_true"]
) -> Real[np.ndarray, "groups injections"]:
    per_image = table.shape[1] // scores.shape[1]
    total = scores[:, 0, table[:, 0]]
    for pair in range(1, table.shape[1]):
        total = total + scores[:, pair // per_image, table[:, pair]]
    return total


def _exact_best_and_margin(
    scores: Float[np.ndarray, "images captions"], table: Int[np.ndarray, "injections images_true"]
) -> tuple[int, Fraction]:
    """The first of the matchings with the largest exact total, and its lead over the best other matching.

    Floats, as multiples of a power of two, are cut into limbs of 32 bits, so that int64 totals are exact.
    """
    fractions, exponents = np.frexp(scores)
    whole = [int(number) for number in np.ravel(fractions * 2.0**53)]
    unit = min((int(e) for e, number in zip(np.ravel(exponents), whole, strict=True) if number), default=0)
    whole = [number << (int(e) - unit) if number else 0 for e, number in zip(np.ravel(exponents), whole, strict=True)]
    least = min(whole)  # every matching has as many terms, so this changes no difference
    limbs = max(1, -(-(max(whole) - least).bit_length() // _LIMB))
    mask = (1 << _LIMB) - 1
    digits = [[(number - least) >> (_LIMB * limb) & mask for number in whole] for limb in range(limbs)]
    sums = _totals(np.array(digits, dtype=np.int64).reshape(limbs, *scores.shape), table)
    for limb in range(limbs - 1):
        sums[limb + 1] += sums[limb] >> _LIMB
        sums[limb] &= mask
    first = _largest(sums, np.arange(len(table)))
    second = _largest(sums, np.delete(np.arange(len(table)), first))
    more = sum(int(sums[limb, first] - sums[limb, second]) << (_LIMB * limb) for limb in range(limbs))
    return first, Fraction(more) * Fraction(2) ** (unit - 53)


def _largest(sums: Int[np.ndarray, "limbs injections"], among: Int[np.ndarray, " some"]) -> int:
    """The first of some matchings with the largest sum; the last limb is the highest."""
    for row in sums[::-1]:
        values = row[among]
        among = among[values == values.max()]
    return int(among[0])


def _positive_float(value: Fraction) -> float:
    """The nearest float, but never 0 for a value that is not: the sign decides, the size only ranks."""
    return float(value) or (math.ulp(0.0) if value else 0.0)
