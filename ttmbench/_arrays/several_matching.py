"""The global assignment where every image is given several captions: each stands in as many rows of the problem."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ttmbench.types import GlobalMatching


def match_several(scores: Float[np.ndarray, "images captions"], each: int) -> GlobalMatching:
    """Gives every image so many captions that the total score of all pairs is largest.

    Args:
        scores: logits [images, captions], finite float64.
        each: captions of an image, at least 2.

    Returns:
        GlobalMatching with captions and scores [images, each], captions in rising order, and tie [images]: whether an
        assignment with the same total gives the image another set of captions.

    Raises:
        ValueError: there are not so many captions.
    """
    if len(scores) * each > scores.shape[1]:
        raise ValueError(f"{each} captions for each of {len(scores)} images are more than {scores.shape[1]}")
    rows = np.repeat(scores, each, axis=0)
    _, columns = linear_sum_assignment(rows, maximize=True)
    given = np.sort(np.asarray(columns, dtype=np.int64).reshape(-1, each), axis=1)
    tie = np.asarray(_could_differ(rows, given.reshape(-1), each).reshape(-1, each).any(axis=1))
    return GlobalMatching(captions=given, scores=np.take_along_axis(scores, given, axis=1), tie=tie)


def _could_differ(
    scores: Float[np.ndarray, "rows captions"], columns: Int[np.ndarray, " rows"], each: int
) -> Bool[np.ndarray, " rows"]:
    """Which rows could have a caption of another image, or one that nobody has, at no cost to the total.

    As in `ttmbench.matching.match_global`: an edge from row r to row q is what r loses by taking the caption of q, one
    more node holds captions that are left over, and what lies on a cycle of edges without reduced cost is ambiguous.
    """
    rows, captions = scores.shape
    own = scores[np.arange(rows), columns]
    loss = np.zeros((rows + 1, rows + 1))
    loss[:rows, :rows] = own[:, None] - scores[:, columns]
    unused = np.setdiff1d(np.arange(captions), columns)
    loss[:rows, rows] = own - scores[:, unused].max(axis=1) if len(unused) else np.inf
    spread = float(scores.max()) - float(scores.min())
    tolerance = max(1e-12 * spread, 4 * np.finfo(np.float64).eps * float(np.abs(scores).max()))
    distance = np.zeros(rows + 1)
    for _ in range(rows + 1):
        shorter = np.minimum(distance, (distance[:, None] + loss).min(axis=0))
        if np.all(distance - shorter <= tolerance):
            break
        distance = shorter
    tight = (distance[:, None] + loss - distance[None, :]) <= tolerance * captions
    # What rows of one image exchange changes nothing. Cycles through such an edge are found without it, too: the row
    # before it has the same scores, so it takes the caption that follows at the same cost.
    image = np.append(np.arange(rows) // each, -1)
    tight[image[:, None] == image] = False
    _, component = connected_components(csr_matrix(tight), directed=True, connection="strong")
    return (np.bincount(component)[component] > 1)[:rows]
