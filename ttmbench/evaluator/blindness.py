"""What the numbers of a scorer that never sees the picture say of a task: how much its captions alone give away."""

from __future__ import annotations

from ttmbench.results.labels import RAW
from ttmbench.results.summary import Summary
from ttmbench.types import GroupShape


def blind_note(shape: GroupShape, summary: Summary) -> str:
    """One sentence for the table.

    With one image per group, a blind scorer's number beside chance is what language alone gives. With several, every
    image has the same scores: only one of them can prefer its own caption, and images and matchings tie.

    Args:
        shape: of the groups.
        summary: of the raw scores.

    Returns:
        The sentence.
    """
    if shape.images > 1:
        return (
            f"the scorer never sees a picture: in {shape} groups all images get equal scores, so text, image and group "
            "score and group match are 0 by construction; a task of this shape cannot be solved by its captions alone"
        )
    value, chance = summary.results.get(f"text_score,{RAW}"), summary.chance.get("text_score")
    if value is None or chance is None:
        value, chance = summary.results.get(f"group_match,{RAW}"), summary.chance.get("group_match")
    if value is None or chance is None:
        return "the scorer never sees a picture"
    return (
        f"the scorer never sees a picture, and is right in {100 * value:.2f} % of the groups, "
        f"{100 * (value - chance):+.2f} points from chance: so much do the captions alone give away"
    )
