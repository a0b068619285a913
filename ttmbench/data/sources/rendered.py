"""Scenes drawn from a seed, which need no download. Images are drawn when they are opened.

Groups are of seven kinds after published benchmarks, from eight shapes and eight colours:

- `color` (2x2, ColorSwap): two objects, and the same two with their colours exchanged;
- `spatial` (1x4, WhatsUp): two objects, and the four relations they could be in;
- `replace` (1x2, SugarCrepe): a caption, and the same one with one word replaced;
- `place` (2x2, WhatsUp's directional variants): one object at two opposite sides of the image;
- `describe` (retrieval, COCO): an image of two objects, and two captions that both say what it shows;
- `name` (classification, ImageNet): an image of one object, whose name of 64 is the caption;
- `order` (2x2, videos): two objects that enter and leave the image, one before the other.

Images have pinned digests, so nothing here may depend on a library's version or on the CPU: random numbers are
`RandomState.random_sample` only, whose stream numpy has frozen; geometry is integer arithmetic, with sines rounded to
integers first; colours use elementwise IEEE additions and multiplications, which have one correct result.
"""

from __future__ import annotations

import colorsys
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from ttmbench._util.file_io import limit
from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.data.video import Video, open_clip
from ttmbench.errors import UsageError
from ttmbench.types import Group, ImageRef, SourceRequest

SIZE = 48
"""Side of an image in pixels."""
UNIT = 64
"""Lengths inside a `Scene` are integers in units of 1/64 pixel."""

_SAMPLES = 3  # sample points per pixel along each axis
_ONE = 1024  # fixed point one of sines and of coordinates inside a shape

HUES: dict[str, int] = {
    "red": 0,
    "orange": 30,
    "yellow": 56,
    "green": 120,
    "cyan": 182,
    "blue": 225,
    "purple": 275,
    "pink": 325,
}
"""The colours by name, as hues in degrees."""


@dataclass(frozen=True)
class Style:
    """Ranges from which the appearance of an image is drawn."""

    backgrounds: tuple[str, ...]  # patterns to choose from: "plain", "gradient", "cloud", "stripes"
    lightness: tuple[float, float]  # darkest and lightest background, in [0, 1]
    saturation: tuple[float, float]  # range of the saturation of objects
    value: tuple[float, float]  # range of the brightness of objects
    tint: float  # largest saturation of the background
    hue_jitter: int  # largest extra shift of one object's hue, in degrees
    rotation: int  # largest rotation of an object, in degrees
    contrast: float = 0.0  # strength of the background's pattern
    noise: float = 0.0  # amplitude of the noise of every pixel
    surfaces: tuple[str, ...] = ("flat",)  # surfaces of objects to choose from: "flat", "striped", "bordered"
    hue_shift: int = 0  # degrees added to every hue
    specks: int = 0  # largest number of round distractors without much colour
    speck_radius: int = 0  # their largest radius, in pixels
    cast: tuple[float, float, float] = (1.0, 1.0, 1.0)  # factors of red, green and blue


STYLES: dict[str, Style] = {
    "clean": Style(("plain",), (0.9, 1.0), (0.85, 1.0), (0.85, 1.0), tint=0.05, hue_jitter=4, rotation=5),
    "light": Style(
        ("plain", "gradient"),
        lightness=(0.8, 1.0),
        saturation=(0.78, 1.0),
        value=(0.78, 1.0),
        tint=0.1,
        hue_jitter=6,
        rotation=10,
        contrast=0.1,
        noise=0.02,
    ),
    "mid": Style(
        ("plain", "gradient"),
        lightness=(0.55, 1.0),
        saturation=(0.7, 1.0),
        value=(0.7, 1.0),
        tint=0.15,
        hue_jitter=8,
        rotation=15,
        contrast=0.2,
        noise=0.04,
    ),
    "hue": Style(
        ("gradient", "cloud", "stripes"),
        lightness=(0.15, 0.35),
        saturation=(0.5, 0.8),
        value=(0.5, 0.85),
        tint=0.3,
        hue_jitter=8,
        rotation=35,
        contrast=0.5,
        noise=0.08,
        surfaces=("striped", "bordered"),
        hue_shift=16,
        specks=8,
        speck_radius=4,
        cast=(0.75, 0.88, 1.0),
    ),
}
"""Styles by name: "clean", "light" and "mid" are for training, "hue" is the shift that the tasks test."""


@dataclass(frozen=True)
class Thing:
    """One object of a scene; centre and radius are in units of 1/64 pixel."""

    shape: str
    color: str
    x: int
    y: int
    radius: int


@dataclass(frozen=True)
class Scene:
    """Everything one image is made of; equal scenes give equal bytes."""

    things: tuple[Thing, ...]  # the objects, in no meaningful order
    style: str  # a key of `STYLES`
    seed: int  # the seed of the image's own noise, rotations and background, below 2**32


Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def _trig(degrees: int) -> tuple[int, int]:
    """Sine and cosine in fixed point: rounding hides the last bit, in which maths libraries differ."""
    angle = math.radians(degrees)
    return round(math.sin(angle) * _ONE), round(math.cos(angle) * _ONE)


SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "moon")
# Of shapes with straight sides: the directions that these face, the centre's shift down, and its distance to a side. A
# point of the shape is inside at least so many of the sides, of a pentagram's five at least four.
_SIDES = {"triangle": ((90, 210, 330), 150, 560, 3), "star": ((270, 342, 54, 126, 198), 60, 325, 4)}


def _inside(shape: str, u: Ints, v: Ints) -> Mask:
    """Which points are inside a shape, in coordinates where a thing reaches from -1024 to 1024."""
    square, across, along = u * u + v * v, np.abs(u), np.abs(v)
    match shape:
        case "circle":
            return square <= 920**2
        case "square":
            return np.maximum(across, along) <= 810
        case "cross":
            return (np.minimum(across, along) <= 300) & (np.maximum(across, along) <= 940)
        case "ring":
            return (square <= 960**2) & (square > 520**2)
        case "moon":
            return (square <= 960**2) & ((u - 480) ** 2 + v * v > 760**2)
        case "heart":
            lobes, tip = (across - 430) ** 2 + (v + 330) ** 2 <= 520**2, across * 10 + (v - 940) * 8 <= 0
            return lobes | (tip & (v >= -60))
    directions, down, distance, least = _SIDES[shape]
    sides = [u * cosine + (v - down) * sine <= distance * _ONE for sine, cosine in map(_trig, directions)]
    return np.sum(sides, axis=0) >= least


def _paint(pixels: Floats, thing: Thing, degrees: int, color: tuple[float, float, float], stripe: int = 0) -> None:
    """Blends a shape into an image, or only its stripes when their width (of 1024) is given."""
    # Only the window around the thing is worked on; a thing never reaches further than 1.5 radii.
    reach = thing.radius * 3 // 2
    left, right = (max(0, (thing.x - reach) // UNIT), min(SIZE, (thing.x + reach) // UNIT + 1))
    top, bottom = (max(0, (thing.y - reach) // UNIT), min(SIZE, (thing.y + reach) // UNIT + 1))
    if left >= right or top >= bottom:
        return
    # Positions of the sample points of the pixels of the window, in units.
    columns = np.arange(left * _SAMPLES, right * _SAMPLES, dtype=np.int64)
    rows = np.arange(top * _SAMPLES, bottom * _SAMPLES, dtype=np.int64)
    x = ((columns * 2 + 1) * UNIT // (2 * _SAMPLES))[None, :] - thing.x
    y = ((rows * 2 + 1) * UNIT // (2 * _SAMPLES))[:, None] - thing.y
    sine, cosine = _trig(degrees)
    u = (x * cosine + y * sine) // thing.radius
    v = (y * cosine - x * sine) // thing.radius
    inside = _inside(thing.shape, u, v)
    if stripe:
        inside &= (u // stripe) % 2 == 0
    counts = inside.reshape(bottom - top, _SAMPLES, right - left, _SAMPLES).sum(axis=(1, 3))
    covered = counts[:, :, None] / float(_SAMPLES * _SAMPLES)
    window = pixels[top:bottom, left:right]
    window += covered * (np.array(color) - window)


def _between(rng: np.random.RandomState, bounds: tuple[float, float]) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * float(rng.random_sample())


def below(rng: np.random.RandomState, bound: int, least: int = 0) -> int:
    """A random integer in [least, bound), the same on every platform."""
    return least + int(rng.random_sample() * (bound - least))


def pick(rng: np.random.RandomState, items: Iterable[str]) -> str:
    """One of several texts."""
    listed = tuple(items)
    return listed[below(rng, len(listed))]


def render(scene: Scene) -> Image.Image:
    """An RGB image of 48x48 pixels of a scene, about which nothing else decides."""
    style = STYLES[scene.style]
    rng = np.random.RandomState(scene.seed)
    lightness, saturation = _between(rng, style.lightness), _between(rng, (0.0, style.tint))
    base = np.array(colorsys.hsv_to_rgb(float(rng.random_sample()), saturation, lightness))
    kind = pick(rng, style.backgrounds)
    sine, cosine = _trig(int(rng.random_sample() * 360))
    strength = style.contrast * (0.4 + 0.6 * float(rng.random_sample()))
    positions = np.arange(SIZE, dtype=np.int64) * 2 - SIZE + 1
    along = positions[None, :] * cosine + positions[:, None] * sine
    pattern: Floats = np.zeros((SIZE, SIZE))  # lightens or darkens the background's colour
    if kind == "cloud":
        grid, steps = rng.random_sample((7, 7)), np.arange(SIZE)  # smooth noise in [0, 1], interpolated linearly
        cell, part = steps // 8, (steps % 8) / 8.0
        rows = grid[cell] * (1.0 - part)[:, None] + grid[cell + 1] * part[:, None]
        pattern = rows[:, cell] * (1.0 - part)[None, :] + rows[:, cell + 1] * part[None, :] - 0.5
    elif kind == "gradient":
        pattern = along / float(2 * SIZE * _ONE)
    elif kind == "stripes":
        width = (3 + below(rng, 5)) * 2 * _ONE
        pattern = (along // width % 2).astype(np.float64) - 0.5
    pixels = base[None, None, :] + strength * pattern[:, :, None]
    for _ in range(below(rng, style.specks + 1)):
        x, y = (below(rng, SIZE * UNIT) for _ in range(2))
        color = colorsys.hsv_to_rgb(float(rng.random_sample()), _between(rng, (0.0, 0.5)), _between(rng, (0.3, 0.7)))
        radius = below(rng, style.speck_radius * UNIT, UNIT)
        _paint(pixels, Thing("circle", "", x, y, radius), 0, color)
    for thing in scene.things:
        jitter = _between(rng, (-style.hue_jitter, style.hue_jitter))
        hue = ((HUES[thing.color] + style.hue_shift + jitter) % 360.0) / 360.0
        saturation, value = _between(rng, style.saturation), _between(rng, style.value)
        degrees = int(_between(rng, (-style.rotation, style.rotation)))
        surface = pick(rng, style.surfaces)
        inner = thing
        if surface == "bordered":
            _paint(pixels, thing, degrees, (0.05, 0.05, 0.05))
            inner = replace(thing, radius=thing.radius * 13 // 16)
        _paint(pixels, inner, degrees, colorsys.hsv_to_rgb(hue, saturation, value))
        if surface == "striped":
            _paint(pixels, inner, degrees, colorsys.hsv_to_rgb(hue, saturation, value * 0.6), stripe=300)
    pixels = pixels + style.noise * (rng.random_sample((SIZE, SIZE, 3)) - 0.5) * 2.0
    pixels = np.clip(pixels * np.array(style.cast), 0.0, 1.0)
    return Image.fromarray(np.floor(pixels * 255.0 + 0.5).astype(np.uint8))


COLORS: tuple[str, ...] = tuple(HUES)

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
        return f"{'an' if self.color == 'orange' else 'a'} {self.color} {self.shape}"


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


def random_stream(*names: object) -> np.random.RandomState:
    """A random stream for a tuple of names, the same on every platform."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    stream = np.random.RandomState(np.random.MT19937(0))  # ten times as fast as with a seed of the system's
    stream.seed(np.frombuffer(digest, dtype=">u4").astype(np.int64))
    return stream


def _thing(look: Look, relation: str, across: int, along: int, radius: int) -> Thing:
    """A thing at a distance from the side that the relation names, and at a position along that side."""
    far = SIZE * UNIT - across
    x, y = {"left": (across, along), "right": (far, along), "above": (along, across), "below": (along, far)}[relation]
    return Thing(look.shape, look.color, x, y, radius)


def draw_two(rng: np.random.RandomState, looks: tuple[Look, Look], relation: str, style: str) -> Scene:
    """A scene of two objects that do not touch; ``relation``: where the first is, seen from the second."""
    middle, things = below(rng, 33 * UNIT, 16 * UNIT), []
    for look, side in zip(looks, (relation, OPPOSITE[relation]), strict=True):
        across, along = below(rng, 13 * UNIT, 11 * UNIT), middle + below(rng, 5 * UNIT, -4 * UNIT)
        things.append(_thing(look, side, across, along, below(rng, 11 * UNIT, 8 * UNIT)))
    return Scene(tuple(things), style, below(rng, 2**32))


def draw_one(rng: np.random.RandomState, look: Look, place: str, style: str) -> Scene:
    """A scene of one object at a side of the image: a key of `RELATIONS`."""
    thing = _thing(
        look, place, below(rng, 14 * UNIT, 11 * UNIT), below(rng, 35 * UNIT, 14 * UNIT), below(rng, 11 * UNIT, 8 * UNIT)
    )
    return Scene((thing,), style, below(rng, 2**32))


def _axis(relation: str) -> dict[str, str]:
    return {"axis": "left-right" if relation in ("left", "right") else "top-bottom"}


def random_looks(rng: np.random.RandomState) -> tuple[Look, Look]:
    """Two looks that differ in colour and in shape."""
    drawn = []
    for names in (SHAPES, COLORS):
        first, second = below(rng, len(names)), below(rng, len(names) - 1)
        drawn.append((names[first], names[second + (second >= first)]))
    shapes, colors = drawn
    return Look(colors[0], shapes[0]), Look(colors[1], shapes[1])


def _color_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    first, second = random_looks(rng)
    pairs = [(first, second), (Look(second.color, first.shape), Look(first.color, second.shape))]
    both = ((first.shape, second.shape), (first.color, second.color))
    shapes, colors = ("+".join(sorted(names)) for names in both)
    return SceneGroup(
        group_id,
        scenes=tuple(draw_two(rng, looks, pick(rng, RELATIONS), style) for looks in pairs),
        captions=tuple(f"{looks[0]} and {looks[1]}" for looks in pairs),
        tags={"shapes": shapes, "colors": colors},
    )


def _spatial_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), pick(rng, RELATIONS)
    order = (relation, *(other for other in RELATIONS if other != relation))
    captions = tuple(f"{looks[0]} {RELATIONS[name]} {looks[1]}" for name in order)
    return SceneGroup(group_id, (draw_two(rng, looks, relation, style),), captions, {"relation": relation})


def _replace_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks = random_looks(rng)
    which, replaced = below(rng, 2), pick(rng, ("color", "shape"))
    # The new word is none of the two in the image: a swapped attribute is the other kind of task.
    words = COLORS if replaced == "color" else SHAPES
    unused = [word for word in words if word not in [getattr(look, replaced) for look in looks]]
    false = list(looks)
    false[which] = replace(looks[which], **{replaced: pick(rng, unused)})
    captions = tuple(f"{pair[0]} and {pair[1]}" for pair in (looks, false))
    return SceneGroup(group_id, (draw_two(rng, looks, pick(rng, RELATIONS), style),), captions, {"replaced": replaced})


def _place_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    look, first = Look(pick(rng, COLORS), pick(rng, SHAPES)), pick(rng, RELATIONS)
    places = (first, OPPOSITE[first])
    scenes = tuple(draw_one(rng, look, side, style) for side in places)
    return SceneGroup(group_id, scenes, tuple(f"{look} {PLACES[side]}" for side in places), _axis(first))


def _described_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), pick(rng, RELATIONS)
    captions = (
        f"{looks[0]} {RELATIONS[relation]} {looks[1]}",
        f"{looks[1]} {RELATIONS[OPPOSITE[relation]]} {looks[0]}",
    )
    return SceneGroup(group_id, (draw_two(rng, looks, relation, style),), captions, _axis(relation))


def _named_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    look = Look(pick(rng, COLORS), pick(rng, SHAPES))
    return SceneGroup(
        group_id, (draw_one(rng, look, pick(rng, RELATIONS), style),), (str(look),), {"color": look.color}
    )


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
    only where a kind has few ("place" has 128 sets of captions, "name" 64), and then with other images.
    """
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
    """The first groups of a seed, each with its own random stream.

    Each clip of a group is, but for its appearance, the other one played backwards: both show each object alone, and
    both objects, for the same number of frames. So what a model knows of single frames tells nothing about which enters
    first.
    """
    return [
        _clip_group(random_stream("clips", seed, index), f"{CLIPS}-{seed}-{index:04d}", style)
        for index in range(n_groups)
    ]


def _clip_group(rng: np.random.RandomState, group_id: str, style: str) -> SceneGroup:
    looks, relation = random_looks(rng), pick(rng, ("left", "right"))
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


class RenderedOptions(BaseModel):
    """Options of ``kind: rendered``: what is drawn, from which seed, in which style."""

    model_config = ConfigDict(extra="forbid")
    scene: Literal["color", "spatial", "replace", "place", "describe", "name", "order"]
    seed: int = 0
    style: Literal["clean", "light", "mid", "hue"] = "hue"
    video: Video | None = None


def read_rendered(request: SourceRequest) -> Iterable[Group]:
    """Scenes drawn from a seed, the same on every machine."""
    options = read_options(RenderedOptions, request)
    if request.n_groups is None or request.n_groups > (most := limit("rendered_groups")):
        raise UsageError(f"a rendered task needs 'group.n_groups' of at most {most}, got {request.n_groups}")
    if (options.video is None) == (options.scene == CLIPS):
        raise UsageError(f"source.video: scene {CLIPS} needs it, and other scenes are images")
    wanted, video = min(request.n_groups, request.limit or request.n_groups), options.video
    draw = render if video is None else partial(_render_clip, video)
    how = (wanted, options.seed, options.style)
    for group in make_groups(options.scene, *how) if video is None else make_clips(*how):
        names = [f"{group.group_id}/{index}" for index in range(len(group.scenes))]
        images = [ImageRef(name, partial(draw, scene)) for name, scene in zip(names, group.scenes, strict=True)]
        yield Group(group.group_id, tuple(images), group.captions, group.tags)


def _render_clip(video: Video, frames: Sequence[Scene]) -> Image.Image:
    """The sampled frames of a clip."""
    return open_clip(len(frames), lambda position: render(frames[position]), video)


def locate_rendered(request: SourceRequest) -> list[DataLocation]:
    """Scenes are drawn: nothing is needed."""
    return [DataLocation("drawn on this machine", ())]
