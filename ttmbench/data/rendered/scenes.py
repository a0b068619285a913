"""Groups of the rendered tasks: seven kinds after published benchmarks, from eight shapes and eight colours.

- `color` (2x2, ColorSwap): two objects, and the same two with their colours exchanged;
- `spatial` (1x4, WhatsUp): two objects, and the four relations they could be in;
- `replace` (1x2, SugarCrepe): a caption, and the same one with one word replaced;
- `place` (2x2, WhatsUp's directional variants): one object at two opposite sides of the image;
- `describe` (retrieval, COCO): an image of two objects, and two captions that both say what it shows;
- `name` (classification, ImageNet): an image of one object, whose name of 64 is the caption;
- `order` (2x2, videos): two objects that enter and leave the image, one before the other.

The rules of `ttmbench.data.rendered.drawing` about determinism hold here too.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike

from ttmbench.data.rendered.drawing import HUES, SHAPES, SIZE, STYLES, UNIT, Scene, Thing
from ttmbench.data.rendered.drawing import render as render

COLORS: tuple[str, ...] = tuple(HUES)
_SHAPES = tuple(SHAPES)

RELATIONS: dict[str, str] = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
"""Where the first object is, seen from the second, and how a caption says it."""
PLACES: dict[str, str] = {
    "left": "on the left",
    "right": "on the right",
    "above": "at the top",
    "below": "at the bottom",
}
"""Where a single object is in the image, and how a caption says it."""
OPPOSITE: dict[str, str] = {"left": "right", "right": "left", "above": "below", "below": "above"}


@dataclass(frozen=True)
class Look:
    """A colour and a shape: what a caption calls an object."""

    color: str
    shape: str

    def __str__(self) -> str:
        """The words of a caption.

        >>> str(Look("red", "circle"))
        'a red circle'
        """
        article = "an" if self.color == "orange" else "a"
        return f"{article} {self.color} {self.shape}"


@dataclass(frozen=True)
class SceneGroup:
    """Scenes, or clips, each its frames in order, and at least as many captions.

    Caption i is true for scene i (`describe`: both for the one scene). ``group_id`` is unique within the kind and seed;
    ``tags`` are subsets, such as {"axis": "left-right"}.
    """

    group_id: str
    scenes: tuple[Any, ...]
    captions: tuple[str, ...]
    tags: dict[str, str]


class _NotSeeded(ISeedSequence):
    """Replaces numpy's gathering of a seed, which takes ten times as long as setting our own."""

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype)


def random_stream(*names: object) -> np.random.RandomState:
    """A random stream for a tuple of names, the same on every platform."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    stream = np.random.RandomState(np.random.MT19937(_NotSeeded()))  # type: ignore[arg-type]  # of numpy's stub
    stream.seed(np.frombuffer(digest, dtype=">u4").astype(np.int64))
    return stream


def below(rng: np.random.RandomState, bound: int) -> int:
    """A random integer in [0, bound), the same on every platform."""
    return int(rng.random_sample() * bound)


def _two_of(rng: np.random.RandomState, names: tuple[str, ...]) -> tuple[str, str]:
    first, second = below(rng, len(names)), below(rng, len(names) - 1)
    return names[first], names[second + (second >= first)]


def _pixels(rng: np.random.RandomState, low: int, high: int) -> int:
    """A random length of at least low and less than high pixels, in units."""
    return low * UNIT + below(rng, (high - low) * UNIT)


def _thing(look: Look, relation: str, across: int, along: int, radius: int) -> Thing:
    """A thing at a distance from the side that the relation names, and at a position along that side."""
    far = SIZE * UNIT - across
    x, y = {"left": (across, along), "right": (far, along), "above": (along, across), "below": (along, far)}[relation]
    return Thing(look.shape, look.color, x, y, radius)


def draw_two(rng: np.random.RandomState, looks: tuple[Look, Look], relation: str, style: str) -> Scene:
    """A scene of two objects that do not touch; ``relation``: where the first is, seen from the second."""
    middle = _pixels(rng, 16, 33)
    things = tuple(
        _thing(look, side, _pixels(rng, 11, 13), middle + _pixels(rng, -4, 5), _pixels(rng, 8, 11))
        for look, side in zip(looks, (relation, OPPOSITE[relation]), strict=True)
    )
    return Scene(things, style, below(rng, 2**32))


def draw_one(rng: np.random.RandomState, look: Look, place: str, style: str) -> Scene:
    """A scene of one object at a side of the image: a key of `RELATIONS`."""
    thing = _thing(look, place, _pixels(rng, 11, 14), _pixels(rng, 14, 35), _pixels(rng, 8, 11))
    return Scene((thing,), style, below(rng, 2**32))


def _any_relation(rng: np.random.RandomState) -> str:
    return tuple(RELATIONS)[below(rng, 4)]


def _any_look(rng: np.random.RandomState) -> Look:
    return Look(COLORS[below(rng, len(COLORS))], _SHAPES[below(rng, len(_SHAPES))])


def _axis(relation: str) -> dict[str, str]:
    return {"axis": "left-right" if relation in ("left", "right") else "top-bottom"}


def random_looks(rng: np.random.RandomState) -> tuple[Look, Look]:
    """Two looks that differ in colour and in shape."""
    shapes, colors = _two_of(rng, _SHAPES), _two_of(rng, COLORS)
    return Look(colors[0], shapes[0]), Look(colors[1], shapes[1])


def _color_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    first, second = random_looks(rng)
    pairs = [(first, second), (Look(second.color, first.shape), Look(first.color, second.shape))]
    return SceneGroup(
        group_id,
        scenes=tuple(draw_two(rng, looks, _any_relation(rng), style) for looks in pairs),
        captions=tuple(f"{looks[0]} and {looks[1]}" for looks in pairs),
        tags={
            "shapes": "+".join(sorted((first.shape, second.shape))),
            "colors": "+".join(sorted((first.color, second.color))),
        },
    )


def _spatial_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), _any_relation(rng)
    order = (relation, *(other for other in RELATIONS if other != relation))
    captions = tuple(f"{looks[0]} {RELATIONS[name]} {looks[1]}" for name in order)
    return SceneGroup(group_id, (draw_two(rng, looks, relation, style),), captions, {"relation": relation})


def _replace_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks = random_looks(rng)
    which, replaced = below(rng, 2), ("color", "shape")[below(rng, 2)]
    # The new word is none of the two in the image: a swapped attribute is the other kind of task.
    words = COLORS if replaced == "color" else _SHAPES
    unused = [word for word in words if word not in [getattr(look, replaced) for look in looks]]
    false = list(looks)
    false[which] = replace(looks[which], **{replaced: unused[below(rng, len(unused))]})
    captions = tuple(f"{pair[0]} and {pair[1]}" for pair in (looks, false))
    return SceneGroup(group_id, (draw_two(rng, looks, _any_relation(rng), style),), captions, {"replaced": replaced})


def _place_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    look, first = _any_look(rng), _any_relation(rng)
    places = (first, OPPOSITE[first])
    scenes = tuple(draw_one(rng, look, side, style) for side in places)
    return SceneGroup(group_id, scenes, tuple(f"{look} {PLACES[side]}" for side in places), _axis(first))


def _described_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), _any_relation(rng)
    captions = (
        f"{looks[0]} {RELATIONS[relation]} {looks[1]}",
        f"{looks[1]} {RELATIONS[OPPOSITE[relation]]} {looks[0]}",
    )
    return SceneGroup(group_id, (draw_two(rng, looks, relation, style),), captions, _axis(relation))


def _named_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    look = _any_look(rng)
    return SceneGroup(group_id, (draw_one(rng, look, _any_relation(rng), style),), (str(look),), {"color": look.color})


_ATTEMPTS = 20  # to find captions that no earlier group has

_MAKERS: dict[str, Callable[[np.random.RandomState, str, str], SceneGroup]] = {
    "color": _color_group,
    "spatial": _spatial_group,
    "replace": _replace_group,
    "place": _place_group,
    "describe": _described_group,
    "name": _named_group,
}
KINDS = tuple(_MAKERS)


def make_groups(kind: str, n_groups: int, seed: int, style: str = "hue") -> list[SceneGroup]:
    """The first groups of the rendered task of a kind and seed, each with its own random stream.

    Another style (a key of `STYLES`) gives the same layouts with another appearance. Groups differ: captions repeat
    only where a kind has few ("place" has 128 sets of captions, "name" 64), and then with other images. ValueError for
    an unknown kind or style.
    """
    for what, value, known in (("scene", kind, KINDS), ("style", style, STYLES)):
        if value not in known:
            raise ValueError(f"{what} '{value}' is unknown; known: {', '.join(known)}")
    seen: set[frozenset[str]] = set()
    groups = []
    for index in range(n_groups):
        group_id = f"{kind}-{seed}-{index:04d}"
        for attempt in range(_ATTEMPTS):
            group = _MAKERS[kind](random_stream("task", kind, seed, index, attempt), group_id, style)
            if frozenset(group.captions) not in seen:
                break
        seen.add(frozenset(group.captions))
        groups.append(group)
    return groups


CLIPS = "order"
"""The name of clips in task files, where others name a scene."""
FRAMES = 24
_ENTERS, _LEAVES = (2, 8), (15, 21)  # frame in which the first and the second object begin to enter, have left
_MOVES = 4  # frames from outside to an object's place
_OUTSIDE = -24 * UNIT  # beyond an object's largest extent


def make_clips(n_groups: int, seed: int, style: str = "hue") -> list[SceneGroup]:
    """The first groups of a seed, each with its own random stream; ValueError for an unknown style.

    Each clip of a group is, but for its appearance, the other one played backwards: both show each object alone, and
    both objects, for the same number of frames. So what a model knows of single frames tells nothing about which enters
    first.
    """
    if style not in STYLES:
        raise ValueError(f"style '{style}' is unknown; known: {', '.join(STYLES)}")
    return [
        _clip_group(random_stream("clips", seed, index), f"{CLIPS}-{seed}-{index:04d}", style)
        for index in range(n_groups)
    ]


def _clip_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), ("left", "right")[below(rng, 2)]
    place = draw_two(rng, looks, relation, style)
    clips = []
    for order in ((0, 1), (1, 0)):
        scene = replace(place, seed=below(rng, 2**32))
        things = list(zip(scene.things, order, strict=True))  # and when each comes, 0 or 1
        clips.append(tuple(replace(scene, things=tuple(_moved(*one, at) for one in things)) for at in range(FRAMES)))
    captions = tuple(f"{first} enters before {second}" for first, second in (looks, looks[::-1]))
    return SceneGroup(group_id, tuple(clips), captions, {"first": RELATIONS[relation].removesuffix(" of")})


def _moved(thing: Thing, turn: int, position: int) -> Thing:
    """An object at a frame: at its place, on the way, or outside, on the side that it is nearer to."""
    inside = min(position - _ENTERS[turn], _LEAVES[turn] - position, _MOVES)  # of so many frames
    outside = _OUTSIDE if thing.x < SIZE * UNIT // 2 else SIZE * UNIT - _OUTSIDE
    return replace(thing, x=outside + (thing.x - outside) * max(0, inside) // _MOVES)
