"""Draws the picture of the README: one group, its scores before and after TTM, light and dark.

    python scripts/docs/readme_picture.py    # writes docs/images/group.svg and group_dark.svg

The group is color-0-0081 of ``shapes_color``, drawn without the noise of the task. Its scores are those of tiny-clip,
before and after ``--ttm --seeds 0,1,2,3`` (the first seed), as ``--log_samples`` writes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ttmbench.metrics import group_match, group_score

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
NUMBER = 81
CAPTIONS = ("a red star and a blue circle", "a blue star and a red circle")
BEFORE = ((10.7, 2.3), (11.2, 4.7))
AFTER = ((20.6, 11.1), (12.7, 19.2))
SCHEMES = {
    "": {
        **{"text": "#1f2328", "soft": "#59636e", "tile": "#eceff2", "cell": "#f6f8fa", "good": "#0550ae"},
        **{"bad": "#9a3412", "red": "#d1242f", "blue": "#2f6fde"},
    },
    "_dark": {
        **{"text": "#f0f6fc", "soft": "#a5b0bb", "tile": "#262d36", "cell": "#1b2129", "good": "#79c0ff"},
        **{"bad": "#ffab70", "red": "#ff6b61", "blue": "#58a6ff"},
    },
}
STAR = " ".join(
    f"{radius * np.sin(at * np.pi / 5):.1f},{-radius * np.cos(at * np.pi / 5):.1f}"
    for at, radius in enumerate((16, 7) * 5)
)
WIDTH, HEIGHT = 360, 446


def text(x: float, y: float, words: str, color: str, size: int = 14, extra: str = "") -> str:
    """A line of text; ``extra`` has further attributes."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" {extra}>{words}</text>'


def tile(y: int, row: int, colors: dict[str, str]) -> list[str]:
    """The drawing of one image, with the colours of its caption and its objects in other places than in the other."""
    words = CAPTIONS[row].split()
    star, circle = colors[words[1]], colors[words[5]]
    (x1, y1), (x2, y2) = (((30, 21), (66, 44)), ((64, 22), (28, 43)))[row]
    return [
        f'<rect x="2" y="{y}" width="92" height="64" rx="6" fill="{colors["tile"]}"/>',
        f'<polygon points="{STAR}" transform="translate({x1 + 2} {y + y1})" fill="{star}"/>',
        f'<circle cx="{x2 + 2}" cy="{y + y2}" r="13" fill="{circle}"/>',
    ]


def grid(y: int, scores: tuple[tuple[float, ...], ...], colors: dict[str, str]) -> list[str]:
    """Two images in rows, and their scores; the highest-scoring matching, which is the correct one, has a frame."""
    drawn = []
    for row, values in enumerate(scores):
        top = y + 70 * row
        drawn += tile(top, row, colors)
        for column, value in enumerate(values):
            x, matched = 104 + 128 * column, row == column
            frame = f'stroke="{colors["good"]}" stroke-width="3"' if matched else ""
            drawn.append(
                f'<rect x="{x}" y="{top + 2}" width="122" height="60" rx="6" fill="{colors["cell"]}" {frame}/>'
            )
            weight = 'text-anchor="middle"' + (' font-weight="700"' if matched else "")
            drawn.append(text(x + 61, top + 39, f"{value:.1f}", colors["text"], 20, weight))
    return drawn


def verdict(y: int, name: str, why: str, correct: bool, colors: dict[str, str]) -> str:
    """A metric, whether the group counts, and why."""
    color = colors["good" if correct else "bad"]
    return text(2, y, f'<tspan font-weight="700">{"✓" if correct else "✗"} {name}</tspan> {why}', color)


def picture(colors: dict[str, str]) -> str:
    """The SVG; ValueError if the scores are not an example of what it says."""
    counts = [
        bool(metric(np.array([scores]))[0]) for scores in (BEFORE, AFTER) for metric in (group_score, group_match)
    ]
    if counts != [False, True, True, True]:
        raise ValueError("the scores have to be wrong by group score and correct by group match, then correct by both")
    drawn = [text(2, 30, "tiny-clip", colors["soft"])]
    for column, caption in enumerate(CAPTIONS):
        first, _, second = caption.partition(" and ")
        for line, words in enumerate((f"“{first}", f"and {second}”")):
            drawn.append(text(165 + 128 * column, 16 + 18 * line, words, colors["text"], 14, 'text-anchor="middle"'))
    drawn += grid(44, BEFORE, colors)
    (a, b), (c, d) = BEFORE
    drawn.append(verdict(200, "group score", f"image 2: {c} &gt; {d}", False, colors))
    drawn.append(verdict(221, "group match", f"{a} + {d} &gt; {b} + {c}", True, colors))
    drawn.append(text(2, 252, "↓ TTM: train on such matchings, iterate", colors["text"], 15, 'font-weight="700"'))
    drawn += grid(264, AFTER, colors)
    drawn.append(verdict(420, "group score", "every image and caption correct", True, colors))
    drawn.append(verdict(441, "group match", "the same matching, by far", True, colors))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
            *drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    for ending, scheme in SCHEMES.items():
        (IMAGES / f"group{ending}.svg").write_text(picture(scheme), encoding="utf-8")
