"""Draws the images of the rendered tasks, with the same bytes on every platform.

Images have pinned digests, so nothing here may depend on a library's version or on the CPU: random numbers are
`RandomState.random_sample` only, whose stream numpy has frozen; geometry is integer arithmetic, with sines rounded to
integers first; colours use elementwise IEEE additions and multiplications, which have one correct result.
"""

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

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


def _half_planes(u: Ints, v: Ints, degrees: tuple[int, ...], distance: int) -> Ints:
    """In how many half planes each point lies; a half plane faces each direction at one distance from the centre."""
    inside = np.zeros(u.shape, dtype=np.int64)
    for degree in degrees:
        sine, cosine = _trig(degree)
        inside += u * cosine + v * sine <= distance * _ONE
    return inside


def _circle(u: Ints, v: Ints, x: int, y: int, radius: int) -> Mask:
    return (u - x) * (u - x) + (v - y) * (v - y) <= radius * radius


def _heart(u: Ints, v: Ints) -> Mask:
    lobes = _circle(u, v, -430, -330, 520) | _circle(u, v, 430, -330, 520)
    tip = (np.abs(u) * 10 + (v - 940) * 8 <= 0) & (v >= -60)
    return lobes | tip


SHAPES: dict[str, Callable[[Ints, Ints], Mask]] = {
    "circle": lambda u, v: _circle(u, v, 0, 0, 920),
    "square": lambda u, v: (np.abs(u) <= 810) & (np.abs(v) <= 810),
    "triangle": lambda u, v: _half_planes(u, v - 150, (90, 210, 330), 560) == 3,
    # A point of a pentagram is inside at least four of its five lines.
    "star": lambda u, v: _half_planes(u, v - 60, (270, 342, 54, 126, 198), 325) >= 4,
    "cross": lambda u, v: (np.minimum(np.abs(u), np.abs(v)) <= 300) & (np.maximum(np.abs(u), np.abs(v)) <= 940),
    "ring": lambda u, v: _circle(u, v, 0, 0, 960) & ~_circle(u, v, 0, 0, 520),
    "heart": _heart,
    "moon": lambda u, v: _circle(u, v, 0, 0, 960) & ~_circle(u, v, 480, 0, 760),
}
"""The shapes by name: which points are inside, in coordinates where a thing reaches from -1024 to 1024."""


@dataclass(frozen=True)
class _Canvas:
    """An image being painted, and the random stream of its scene."""

    rng: np.random.RandomState
    pixels: Floats

    def paint(self, thing: Thing, degrees: int, color: tuple[float, float, float], stripe: int = 0) -> None:
        """Blend a shape in, or only its stripes when their width (of 1024) is given."""
        # Only the window around the thing is worked on; a thing never reaches further than 1.5 radii.
        reach = thing.radius * 3 // 2
        left, right = (max(0, (thing.x - reach) // UNIT), min(SIZE, (thing.x + reach) // UNIT + 1))
        top, bottom = (max(0, (thing.y - reach) // UNIT), min(SIZE, (thing.y + reach) // UNIT + 1))
        if left >= right or top >= bottom:
            return
        x = _samples(left, right)[None, :] - thing.x
        y = _samples(top, bottom)[:, None] - thing.y
        sine, cosine = _trig(degrees)
        u = (x * cosine + y * sine) // thing.radius
        v = (y * cosine - x * sine) // thing.radius
        inside = SHAPES[thing.shape](u, v)
        if stripe:
            inside &= (u // stripe) % 2 == 0
        counts = inside.reshape(bottom - top, _SAMPLES, right - left, _SAMPLES).sum(axis=(1, 3))
        covered = counts[:, :, None] / float(_SAMPLES * _SAMPLES)
        window = self.pixels[top:bottom, left:right]
        window += covered * (np.array(color) - window)


def _samples(first: int, last: int) -> Ints:
    """Positions of the sample points of the pixels from first up to last, in units."""
    points = np.arange(first * _SAMPLES, last * _SAMPLES, dtype=np.int64)
    return (points * 2 + 1) * UNIT // (2 * _SAMPLES)


def _between(rng: np.random.RandomState, bounds: tuple[float, float]) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * float(rng.random_sample())


def _pick(rng: np.random.RandomState, names: tuple[str, ...]) -> str:
    return names[int(rng.random_sample() * len(names))]


def _background(rng: np.random.RandomState, style: Style) -> Floats:
    """A background of the style: its colour, and a pattern that lightens or darkens it."""
    value = _between(rng, style.lightness)
    saturation = _between(rng, (0.0, style.tint))
    base = np.array(colorsys.hsv_to_rgb(float(rng.random_sample()), saturation, value))
    kind = _pick(rng, style.backgrounds)
    sine, cosine = _trig(int(rng.random_sample() * 360))
    strength = style.contrast * (0.4 + 0.6 * float(rng.random_sample()))
    positions = np.arange(SIZE, dtype=np.int64) * 2 - SIZE + 1
    along = positions[None, :] * cosine + positions[:, None] * sine
    pattern: Floats = np.zeros((SIZE, SIZE))
    if kind == "cloud":
        pattern = _cloud(rng) - 0.5
    elif kind == "gradient":
        pattern = along / float(2 * SIZE * _ONE)
    elif kind == "stripes":
        width = (3 + int(rng.random_sample() * 5)) * 2 * _ONE
        pattern = (along // width % 2).astype(np.float64) - 0.5
    return base[None, None, :] + strength * pattern[:, :, None]


def _cloud(rng: np.random.RandomState) -> Floats:
    """Smooth noise in [0, 1]: a 7x7 grid of random values, interpolated linearly."""
    grid = rng.random_sample((7, 7))
    steps = np.arange(SIZE)
    cell, part = steps // 8, (steps % 8) / 8.0
    rows = grid[cell] * (1.0 - part)[:, None] + grid[cell + 1] * part[:, None]
    return rows[:, cell] * (1.0 - part)[None, :] + rows[:, cell + 1] * part[None, :]


def _add_specks(canvas: _Canvas, style: Style) -> None:
    rng = canvas.rng
    for _ in range(int(rng.random_sample() * (style.specks + 1))):
        x, y = (int(rng.random_sample() * SIZE * UNIT) for _ in range(2))
        color = colorsys.hsv_to_rgb(float(rng.random_sample()), _between(rng, (0.0, 0.5)), _between(rng, (0.3, 0.7)))
        radius = UNIT + int(rng.random_sample() * (style.speck_radius - 1) * UNIT)
        canvas.paint(Thing("circle", "", x, y, radius), 0, color)


def _add_thing(canvas: _Canvas, thing: Thing, style: Style) -> None:
    rng = canvas.rng
    jitter = _between(rng, (-style.hue_jitter, style.hue_jitter))
    hue = ((HUES[thing.color] + style.hue_shift + jitter) % 360.0) / 360.0
    saturation, value = _between(rng, style.saturation), _between(rng, style.value)
    degrees = int(_between(rng, (-style.rotation, style.rotation)))
    color = colorsys.hsv_to_rgb(hue, saturation, value)
    surface = _pick(rng, style.surfaces)
    if surface == "bordered":
        canvas.paint(thing, degrees, (0.05, 0.05, 0.05))
        thing = Thing(thing.shape, thing.color, thing.x, thing.y, thing.radius * 13 // 16)
    canvas.paint(thing, degrees, color)
    if surface == "striped":
        canvas.paint(thing, degrees, colorsys.hsv_to_rgb(hue, saturation, value * 0.6), stripe=300)


def render(scene: Scene) -> Image.Image:
    """An RGB image of 48x48 pixels of a scene, about which nothing else decides."""
    style = STYLES[scene.style]
    rng = np.random.RandomState(scene.seed)
    canvas = _Canvas(rng, _background(rng, style))
    _add_specks(canvas, style)
    for thing in scene.things:
        _add_thing(canvas, thing, style)
    pixels: Floats = canvas.pixels + style.noise * (rng.random_sample((SIZE, SIZE, 3)) - 0.5) * 2.0
    pixels = np.clip(pixels * np.array(style.cast), 0.0, 1.0)
    return Image.fromarray(np.floor(pixels * 255.0 + 0.5).astype(np.uint8))
