"""Draws the layers of the package into docs/images/architecture.svg, from the import contract in pyproject.toml.

python scripts/docs/architecture.py write    # after the contract changed
python scripts/docs/architecture.py check    # fails if the drawing is not what the contract says
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
DRAWING = ROOT / "docs" / "images" / "architecture.svg"

ABOUT = {
    "__main__": "python -m ttmbench",
    "cli": "a module a command, with its options",
    "reproduce": "published tables beside runs",
    "sweep": "many runs on many workers",
    "evaluator": "runs: a model meets tasks",
    "report": "what people read, and exports",
    "testing": "an adapter's contract, as a test",
    "cache": "raw scores kept between runs",
    "ttm": "Algorithm 1, variants, training",
    "data": "from a task file to groups",
    "scoring": "alone calls a model to score",
    "plugins": "names, and who brings them",
    "hookspecs": "what a plugin can do",
    "results": "the document, and its numbers",
    "config": "settings of a run and of TTM",
    "_util": "files, texts, images, the terminal",
    "metrics": "what is counted in a group",
    "matching": "who belongs to whom",
    "chance": "expected values",
    "schedules": "thresholds of TTM",
    "stats": "intervals, gains",
    "_arrays": "checks, and which pairs are true",
    "protocols": "what an adapter is",
    "types": "what flows through a run",
    "errors": "what can go wrong",
    "_annotations": "names of what is slow to import",
}
BESIDE = (
    ("model_adapters", "a catalogue of names, a module a kind of model", "knows protocols, types, errors and _util"),
    ("tasks", "a YAML file a task", "read by data"),
)
WIDTH, HEIGHT, GAP, LEFT, TOP = 860, 44, 10, 20, 50


def layers() -> list[list[str]]:
    """The rows of the contract, from the top down, without the name of the package."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (rows,) = (one["layers"] for one in contracts["contracts"] if one["type"] == "layers")
    return [[name.strip().removeprefix("ttmbench.") for name in row.split("|")] for row in rows]


def drawing() -> str:
    """The SVG: a row a layer; packages are filled, modules are not."""
    rows = [row for row in layers() if row != ["__main__"]]
    bottom = TOP + len(rows) * (HEIGHT + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * LEFT}" height="{bottom + HEIGHT + 62}" '
        f'viewBox="0 0 {WIDTH + 2 * LEFT} {bottom + HEIGHT + 62}" font-family="sans-serif" role="img">',
        "<title>The layers of ttmbench: what stands above imports what stands below</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(
            LEFT, 30, "Imports run downwards alone; what stands side by side does not know each other.", 14, "#333333"
        ),
    ]
    for index, row in enumerate(rows):
        lines += _row(TOP + index * (HEIGHT + GAP), [(name, ABOUT[name], _is_package(name)) for name in row])
    lines.append(_text(LEFT, bottom + 18, "Beside the package, in folders of their own:", 14, "#333333"))
    lines += _row(bottom + 30, [(name, f"{about}; {knows}", True) for name, about, knows in BESIDE], beside=True)
    return "\n".join([*lines, "</svg>", ""])


def _row(top: int, boxes: list[tuple[str, str, bool]], beside: bool = False) -> list[str]:
    shares = [2, 1] if beside else [1] * len(boxes)
    free = WIDTH - GAP * (len(boxes) - 1)
    lines, left = [], float(LEFT)
    for (name, about, filled), share in zip(boxes, shares, strict=True):
        width = free * share / sum(shares)
        fill = "#f3e9d2" if beside else "#dbe7f5" if filled else "#ffffff"
        lines.append(
            f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="5" fill="{fill}" stroke="#4a6785"/>'
        )
        lines.append(_text(left + 10, top + 18, name, 14, "#10283f", bold=True))
        lines.append(_text(left + 10, top + 35, about, 12, "#333333"))
        left += width + GAP
    return lines


def _text(x: float, y: float, words: str, size: int, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{weight}>{escape(words)}</text>'


def _is_package(name: str) -> bool:
    return (ROOT / "ttmbench" / name).is_dir()


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("write", "check"))
    action = parser.parse_args().action
    if action == "write":
        DRAWING.write_text(drawing(), encoding="utf-8")
        return 0
    if not DRAWING.is_file() or DRAWING.read_text(encoding="utf-8") != drawing():
        print(f"{DRAWING.relative_to(ROOT)} is not what the contract says: scripts/docs/architecture.py write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
