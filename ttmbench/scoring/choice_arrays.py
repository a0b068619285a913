"""Forced choice as arrays: which questions were answered correctly, the metrics that follow, and their chance.

A model that names an option has no scores: it is asked which caption fits each image, and which image fits each
caption (ColorSwap, arXiv:2402.04492, section 3.2). These metrics are not comparable with those of score arrays, where
one score per pair serves both directions, and have another chance (Table 2 there: 25, 25 and 6.25 percent for 2x2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ttmbench._annotations import Bool

SHOWN, LENGTH = 5, 60  # answers in a note, and characters of each


@dataclass(frozen=True)
class Choices:
    """Which questions of each group were answered correctly; a side that was not asked is None."""

    text: Bool[np.ndarray, "groups images"] | None  # for each image, whether its own caption was chosen
    image: Bool[np.ndarray, "groups images"] | None  # for each caption that is true for an image

    def __len__(self) -> int:
        """Number of groups."""
        sides = [side for side in (self.text, self.image) if side is not None]
        return len(sides[0]) if sides else 0


def choice_values(choices: Choices) -> dict[str, np.ndarray]:
    """``text_score``, ``image_score`` and ``group_score``, bool [groups]: all questions of a side, or of both, correct.

    A metric whose questions were not asked is omitted.

    >>> both = Choices(np.array([[True, True], [True, False]]), np.array([[True, True], [True, True]]))
    >>> {name: value.tolist() for name, value in choice_values(both).items()}
    {'text_score': [True, False], 'image_score': [True, True], 'group_score': [True, False]}
    """
    values: dict[str, np.ndarray] = {}
    if choices.text is not None:
        values["text_score"] = np.asarray(choices.text.all(axis=1))
    if choices.image is not None:
        values["image_score"] = np.asarray(choices.image.all(axis=1))
    if len(values) == 2:
        values["group_score"] = values["text_score"] & values["image_score"]
    return values


def choice_chance(images: int, captions: int, orders: int = 1) -> Mapping[str, float | None]:
    """Chance of each metric if every question is answered at random, independently; None where there is no choice.

    Args:
        images: per group.
        captions: per group.
        orders: how often each question is asked, with its options in another order each time; all must be correct.

    Raises:
        ValueError: no such group.

    >>> dict(choice_chance(2, 2))
    {'text_score': 0.25, 'image_score': 0.25, 'group_score': 0.0625}
    >>> choice_chance(1, 2)
    {'text_score': 0.5, 'image_score': None, 'group_score': None}
    """
    if min(images, captions, orders) < 1 or max(images, captions) < 2:
        raise ValueError(f"a group needs at least 2 images or 2 captions, got {images}x{captions}")
    if images > captions:
        return {"text_score": None, "image_score": 1 / images ** (captions * orders), "group_score": None}
    questions = images * orders
    text = 1 / captions**questions
    if images == 1:
        return {"text_score": text, "image_score": None, "group_score": None}
    image = 1 / images**questions
    return {"text_score": text, "image_score": image, "group_score": text * image}


def unread_notes(unread: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """A sentence on the answers that choose no option: (group id, question, answer or None if refused)."""
    if not unread:
        return []
    shown = [f"group {group}, {question}: {_short(answer)}" for group, question, answer in unread[:SHOWN]]
    rest = f"; {len(unread) - SHOWN} more are listed under 'choice' in the results" if len(unread) > SHOWN else ""
    return [f"{len(unread)} answers choose no option and count as wrong: {'; '.join(shown)}{rest}"]


def _short(answer: str | None) -> str:
    if answer is None:
        return "refused"
    words = " ".join(answer.split())
    return repr(words if len(words) <= LENGTH else words[: LENGTH - 3] + "...")
