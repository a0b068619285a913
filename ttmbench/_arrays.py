"""Arrays of scores, checked before anything is computed; numbers of matchings; and the global assignment.

An image of several captions has as many rows of the assignment. An edge from row r to row q is what r loses by taking
the caption of q. At the optimum no cycle of such edges is negative, so a row could have another caption exactly where
it lies on a cycle of edges without reduced cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ttmbench._annotations import Bool, Float, Int, Real
from ttmbench.types import GlobalMatching

_LARGEST_WHOLE = 2**53  # beyond it float64 skips whole numbers
_LARGEST = 1e30  # no logit is larger, and sums of such numbers would leave the range of floats
_PART = 250_000  # numbers of a large array that are worked on at a time: they stay in a core's cache


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


def assign(scores: Real[np.ndarray, "images captions"], each: int = 1) -> GlobalMatching:
    """Gives every image ``each`` captions so that the total score of all pairs is largest.

    Args:
        scores: logits, finite floats, at least ``each`` captions an image.
        each: captions of an image.

    Returns:
        GlobalMatching with captions, scores and tie, each [images], read-only; with several captions the first two are
        [images, each], captions ascending, and tie says whether an assignment with the same total gives the image
        another set of captions.
    """
    # The only copy: scipy takes negated float64 as they are, and what follows is computed in their place.
    cost = np.negative(scores if each == 1 else np.repeat(scores, each, axis=0), dtype=np.float64)
    from scipy.optimize import linear_sum_assignment  # slow to import, and not needed inside groups

    _, columns = linear_sum_assignment(cost)
    captions = np.sort(np.asarray(columns, dtype=np.int64).reshape(-1, each), axis=1)
    matched_scores = np.take_along_axis(scores, captions, axis=1).astype(np.float64)
    spread = float(scores.max()) - float(scores.min())
    largest = max(abs(float(scores.max())), abs(float(scores.min())))
    tolerance = max(1e-12 * spread, 4 * np.finfo(np.float64).eps * largest)
    tie = np.any(_ambiguous(cost, captions.reshape(-1), tolerance, each).reshape(-1, each), axis=1)
    if each == 1:
        captions, matched_scores = captions[:, 0], matched_scores[:, 0]
    matching = GlobalMatching(captions=captions, scores=matched_scores, tie=tie)
    for values in (matching.captions, matching.scores, matching.tie):
        values.flags.writeable = False
    return matching


def _ambiguous(
    cost: Float[np.ndarray, "rows captions"], columns: Int[np.ndarray, " rows"], tolerance: float, each: int
) -> Bool[np.ndarray, " rows"]:
    """Which rows could take a caption of another image, or an unused one, at no cost to the total.

    ``each`` rows in turn are of one image. ``cost`` is overwritten.
    """
    rows, captions = cost.shape
    loss = _losses(cost, columns)
    distance = _potentials(loss, rows, tolerance)
    # No cycle is negative at the optimum, so a cycle costs nothing exactly where all its edges are tight.
    tight = np.empty((len(distance), len(distance)), dtype=bool)
    for part in _parts(len(loss), len(distance)):
        edges = distance[part, None] + loss[part]
        edges -= distance
        tight[part] = edges <= tolerance * captions
    tight[rows:] = distance[rows:, None] - distance <= tolerance * captions
    # What rows of one image exchange changes nothing. Cycles through such an edge are found without it, too: the row
    # before it has the same scores, so it takes the caption that follows at the same cost.
    np.fill_diagonal(tight, False)
    for first in range(0, rows if each > 1 else 0, each):
        tight[first : first + each, first : first + each] = False
    return _on_cycles(tight)[:rows]


def _losses(
    cost: Float[np.ndarray, "rows captions"], columns: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows nodes"]:
    """What row r loses by taking the caption of row q, written over the costs.

    Unused captions are one more node: taking the best of them costs a row the difference. Its own row of zeros (it
    gives a caption up for nothing) is not stored.
    """
    rows, captions = cost.shape
    unused = np.setdiff1d(np.arange(captions), columns)
    for part in _parts(rows, captions):
        some = cost[part]
        assigned = some[np.arange(len(some)), columns[part]]
        best = some[:, unused].min(axis=1, initial=np.inf)
        some[:, :rows] = some[:, columns]
        if len(unused):
            some[:, rows] = best
        some -= assigned[:, None]
    return cost[:, : rows + bool(len(unused))]


def _potentials(loss: Float[np.ndarray, "rows nodes"], rows: int, tolerance: float) -> Float[np.ndarray, " nodes"]:
    """Shortest distances from a node outside, by Bellman and Ford; no cycle is negative, so they are potentials.

    Each round looks only at the rows whose distance changed in the last one. Captions that are left over stay at 0:
    giving one up gains nothing at the optimum.
    """
    distance = np.zeros(loss.shape[1])
    changed = np.arange(len(distance))
    for _ in range(rows + 1):
        shorter = distance.copy()
        here = changed[changed < rows]
        for part in _parts(len(here), len(distance)):
            some = loss[here[part]]
            some += distance[here[part], None]
            np.minimum(shorter, some.min(axis=0), out=shorter)
        if np.all(distance - shorter <= tolerance):
            break
        changed = np.flatnonzero(shorter < distance)
        distance = shorter
    return distance


def _on_cycles(edges: Bool[np.ndarray, "nodes nodes"]) -> Bool[np.ndarray, " nodes"]:
    """Which nodes lie on a cycle of a graph without loops."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    _, component = connected_components(csr_matrix(edges), directed=True, connection="strong")
    return np.bincount(component)[component] > 1


def _parts(rows: int, columns: int) -> Iterator[slice]:
    """Cuts the rows of a large array into parts that need little memory each."""
    step = max(1, _PART // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
