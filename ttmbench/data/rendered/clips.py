"""Clips of the rendered tasks: two objects that enter and leave the image, one before the other.

Each clip of a group is, but for its appearance, the other one played backwards: both show each object alone, and both
objects, for the same number of frames. So what a model knows of single frames tells nothing about which enters first.

The rules of `ttmbench.data.rendered.drawing` about determinism hold here too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ttmbench.data.rendered.drawing import SIZE, STYLES, UNIT, Scene, Thing
from ttmbench.data.rendered.scenes import RELATIONS, below, draw_two, random_looks, random_stream

KIND = "order"
"""The scene's name in task files."""
FRAMES = 24
_ENTERS, _LEAVES = (2, 8), (15, 21)  # frame in which the first and the second object begin to enter, have left
_MOVES = 4  # frames from outside to an object's place
_OUTSIDE = -24 * UNIT  # beyond an object's largest extent


@dataclass(frozen=True)
class ClipGroup:
    """Clips, each its frames in order, and as many captions; caption i is true for clip i."""

    group_id: str
    clips: tuple[tuple[Scene, ...], ...]
    captions: tuple[str, ...]
    tags: dict[str, str]


def make_clips(n_groups: int, seed: int, style: str = "hue") -> list[ClipGroup]:
    """The first groups of a seed, each with its own random stream; ValueError for an unknown style."""
    if style not in STYLES:
        raise ValueError(f"style '{style}' is unknown; known: {', '.join(STYLES)}")
    return [
        _group(random_stream("clips", seed, index), f"{KIND}-{seed}-{index:04d}", style) for index in range(n_groups)
    ]


def _group(rng: np.random.RandomState, group_id: str, style: str) -> ClipGroup:
    looks, relation = random_looks(rng), ("left", "right")[below(rng, 2)]
    place = draw_two(rng, looks, relation, style)
    clips = []
    for order in ((0, 1), (1, 0)):
        scene = replace(place, seed=below(rng, 2**32))
        clips.append(tuple(_frame(scene, order, position) for position in range(FRAMES)))
    captions = tuple(f"{first} enters before {second}" for first, second in (looks, looks[::-1]))
    return ClipGroup(group_id, tuple(clips), captions, {"first": RELATIONS[relation].removesuffix(" of")})


def _frame(scene: Scene, order: tuple[int, int], position: int) -> Scene:
    """The scene at a frame: ``order`` has when each object comes, 0 or 1."""
    return replace(scene, things=tuple(_moved(*item, position) for item in zip(scene.things, order, strict=True)))


def _moved(thing: Thing, turn: int, position: int) -> Thing:
    """An object at a frame: at its place, on the way, or outside, on the side that it is nearer to."""
    inside = min(position - _ENTERS[turn], _LEAVES[turn] - position, _MOVES)  # of so many frames
    outside = _OUTSIDE if thing.x < SIZE * UNIT // 2 else SIZE * UNIT - _OUTSIDE
    return replace(thing, x=outside + (thing.x - outside) * max(0, inside) // _MOVES)
