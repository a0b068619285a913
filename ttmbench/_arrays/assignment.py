"""The global assignment, and which images it could serve otherwise. An image of several captions has as many rows.

An edge from row r to row q is what r loses by taking the caption of q. At the optimum no cycle of such edges is
negative, so a row could have another caption exactly where it lies on a cycle of edges without reduced cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ttmbench._annotations import Bool, Float, Int, Real
from ttmbench.types import GlobalMatching

_PART = 250_000  # numbers of a large array that are worked on at a time: they stay in a core's cache
_EDGES = 20_000_000  # that a sparse matrix holds in some hundred megabytes
_PIVOTS = 20


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

    Each round looks only at the rows whose distance changed in the last one.
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
        if len(here) < len(changed):  # the node of captions that are left over gives one up for nothing
            np.minimum(shorter, distance[rows], out=shorter)
        if np.all(distance - shorter <= tolerance):
            break
        changed = np.flatnonzero(shorter < distance)
        distance = shorter
    return distance


def _on_cycles(edges: Bool[np.ndarray, "nodes nodes"]) -> Bool[np.ndarray, " nodes"]:
    """Which nodes lie on a cycle of a graph without loops; ``edges`` is overwritten.

    Equal scores make millions of edges, which take ten times their memory in a sparse matrix. So while there are that
    many, the component of a node with many of them is found here and removed, a few times.
    """
    on_cycle = np.zeros(len(edges), dtype=bool)
    for _ in range(_PIVOTS):
        degree = edges.sum(axis=1)
        if degree.sum() <= _EDGES:
            break
        pivot = int((degree * edges.sum(axis=0)).argmax())
        component = _reached(edges, pivot) & _reached(edges.T, pivot)
        on_cycle |= component & (component.sum() > 1)
        edges[component], edges[:, component] = False, False
    _, component = connected_components(csr_matrix(edges), directed=True, connection="strong")
    return on_cycle | (np.bincount(component)[component] > 1)


def _reached(edges: Bool[np.ndarray, "nodes nodes"], start: int) -> Bool[np.ndarray, " nodes"]:
    """The nodes that can be reached from one, itself among them."""
    seen = np.zeros(len(edges), dtype=bool)
    seen[start] = True
    front = np.array([start])
    while len(front) and not seen.all():
        new = np.zeros(len(edges), dtype=bool)
        for part in _parts(len(front), len(edges)):
            new |= edges[front[part]].any(axis=0)
        new &= ~seen
        seen |= new
        front = np.flatnonzero(new)
    return seen


def _parts(rows: int, columns: int) -> Iterator[slice]:
    """Cuts the rows of a large array into parts that need little memory each."""
    step = max(1, _PART // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
