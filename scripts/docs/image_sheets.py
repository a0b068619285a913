"""Draw the images of docs/builtin.md: a sheet of every rendered task, and the styles side by side.

    python scripts/docs/image_sheets.py

What is shown comes from a seed that no published result uses, so that nobody looks at a test set.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ttmbench.data.rendered.scenes import KINDS, STYLES, Scene, SceneGroup, make_groups, render

SEED = 1000
N_GROUPS = 6
N_COLUMNS = 3
# Inches.
CELL = 3.6
IMAGE = 1.5
GAP = 0.15
LINE = 0.2


def put_image(figure: Figure, scene: Scene, left: float, top: float) -> None:
    """An image whose upper left corner is so many inches from that of the figure."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 1 - (top + IMAGE) / height, IMAGE / width, IMAGE / height))
    axes.imshow(render(scene), interpolation="nearest")
    axes.set_axis_off()


def put_text(figure: Figure, words: str, center: float, middle: float, color: str = "black") -> None:
    """Text centred so many inches from the upper left corner of the figure."""
    width, height = figure.get_size_inches()
    figure.text(center / width, 1 - middle / height, words, ha="center", va="center", fontsize=9, color=color)


def put_group(figure: Figure, group: SceneGroup, left: float, top: float) -> None:
    """Images side by side, captions below them; a number says which image a caption is true for."""
    n_scenes = len(group.scenes)
    start = left + (CELL - n_scenes * IMAGE - (n_scenes - 1) * GAP) / 2
    for index, scene in enumerate(group.scenes):
        x = start + index * (IMAGE + GAP)
        put_image(figure, scene, x, top)
        if n_scenes > 1:
            put_text(figure, str(index + 1), x + IMAGE / 2, top - 0.1)
    for index, caption in enumerate(group.captions):
        words = f"{index + 1}: {caption}" if n_scenes > 1 else caption
        color = "black" if index < n_scenes else "0.55"
        put_text(figure, words, left + CELL / 2, top + IMAGE + LINE * (index + 0.8), color)


def draw_task(kind: str) -> Figure:
    """A few groups of a kind."""
    groups = make_groups(kind, N_GROUPS, SEED)
    row_height = IMAGE + LINE * len(groups[0].captions) + 0.5
    figure = plt.figure(figsize=(N_COLUMNS * CELL, N_GROUPS // N_COLUMNS * row_height))
    for index, group in enumerate(groups):
        row, column = divmod(index, N_COLUMNS)
        put_group(figure, group, column * CELL, row * row_height + 0.25)
    return figure


def draw_styles(n_scenes: int = 6) -> Figure:
    """The same scenes in every style, a style a row."""
    label = 0.9
    figure = plt.figure(figsize=(label + n_scenes * (IMAGE + GAP), len(STYLES) * (IMAGE + GAP)))
    for row, style in enumerate(STYLES):
        top = row * (IMAGE + GAP) + GAP / 2
        put_text(figure, style, label / 2, top + IMAGE / 2)
        scenes = [
            group.scenes[0] for kind in ("color", "place") for group in make_groups(kind, n_scenes // 2, SEED, style)
        ]
        for column, scene in enumerate(scenes):
            put_image(figure, scene, label + column * (IMAGE + GAP), top)
    return figure


def main() -> None:
    """Write all sheets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder (default: docs/images)")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    figures = {f"shapes_{kind}": draw_task(kind) for kind in KINDS} | {"styles": draw_styles()}
    for name, figure in figures.items():
        # No date and no version inside, so that the same images give the same file.
        figure.savefig(out / f"{name}.png", dpi=100, facecolor="white", metadata={"Software": None})
        print(out / f"{name}.png")


if __name__ == "__main__":
    main()
