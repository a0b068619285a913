"""Arrays of scores as functions get them, checked before anything is computed."""

from __future__ import annotations

import numpy as np

_LARGEST_WHOLE = 2**53  # beyond it float64 skips whole numbers
_LARGEST = 1e30  # no logit is larger, and sums of such numbers would leave the range of floats


def check_scores(scores: np.ndarray) -> np.ndarray:
    """The scores as floats, checked: finite, [groups, images, captions], at least 2 images or captions.

    Args:
        scores: an array of numbers.

    Returns:
        The same array; whole numbers become float64.

    Raises:
        ValueError: another shape, or a score that is not a finite number (the group is named).
    """
    floats = as_floats(scores)
    if floats.ndim != 3:
        raise ValueError(f"scores must have 3 axes (groups, images, captions), got shape {floats.shape}")
    _, images, captions = floats.shape
    if min(images, captions) < 1 or max(images, captions) < 2:
        raise ValueError(f"a group needs images and captions, of one of them at least 2, got {images}x{captions}")
    finite = np.isfinite(floats).all(axis=(1, 2))
    if not finite.all():
        raise ValueError(f"group {int(np.argmin(finite))} holds a score that is not a finite number")
    return floats


def as_floats(scores: np.ndarray) -> np.ndarray:
    """Numbers as floats: whole ones become float64.

    Raises:
        ValueError: what is no number, or no float tells apart from its neighbours, or is larger than any logit.
    """
    array = np.asarray(scores)
    if array.dtype.kind in "iub":
        if array.size and max(abs(int(array.min())), abs(int(array.max()))) > _LARGEST_WHOLE:
            raise ValueError(f"whole numbers beyond 2**53 ({array.dtype}) are no exact float64; scale the scores")
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
    """Scores [groups, what chooses, what it chooses from]: with more images than captions, captions choose."""
    return scores.swapaxes(1, 2) if more_images(scores) else scores
