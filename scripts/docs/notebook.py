"""Writes docs/quickstart.ipynb: its cells stand here, their outputs are what they print now.

``python scripts/docs/notebook.py write`` runs the cells in an empty folder and writes the notebook.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "quickstart.ipynb"
END = "-- end of cell --"

CELLS = [
    (
        "markdown",
        """# ttmbench in ten minutes

How well does a vision-language model compose, and what does it gain from test-time matching (TTM)? Everything here runs
on a processor, without a download: the model and the task ship with the package. Their numbers show the method at work
and say nothing about photographs.""",
    ),
    ("code", 'import ttmbench\n\nprint(ttmbench.list_models("tiny*"), ttmbench.list_tasks("shapes_*"))'),
    (
        "markdown",
        """## What is a group?

A task consists of groups of m images and k captions. Caption *i* is true for image *i*, and false for the others. Here
is a group of our own, of two images and two captions, as a task in memory:""",
    ),
    (
        "code",
        """from PIL import Image, ImageDraw


def circle_and_square(circle, square):
    image = Image.new("RGB", (48, 48), "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((4, 12, 22, 30), fill=circle)
    draw.rectangle((27, 14, 43, 30), fill=square)
    return image


task = ttmbench.Task.from_groups(
    images=[[circle_and_square("red", "blue"), circle_and_square("blue", "red")]],
    captions=[["a red circle and a blue square", "a blue circle and a red square"]],
    name="one_group",
)
result = ttmbench.simple_evaluate("tiny-clip", task, use_cache="off", device="cpu")
print(task)
print(result.scores["one_group"]["none"][0].groups.round(2))  # [groups, images, captions], logits""",
    ),
    (
        "markdown",
        """## Raw scores

The **group score** asks that every image prefers its own caption and every caption its own image. Random scores reach
1/6 on groups of 2x2. The **group match** (SimpleMatch) asks that the true matching of images and captions has the
largest total score. Random scores reach 1/2. All comparisons are strict: a tie is never correct.""",
    ),
    (
        "code",
        """raw = ttmbench.simple_evaluate("tiny-clip", "shapes_color", limit=40, use_cache="off", device="cpu")
for metric in ("text_score", "image_score", "group_score", "group_match"):
    value = raw.results["shapes_color"][f"{metric},none"]
    print(f"{metric:12} {100 * value:5.1f} %   chance {100 * raw['chance']['shapes_color'][metric]:.1f} %")""",
    ),
    (
        "markdown",
        """## SimpleMatch on your own scores

Metrics are functions of arrays `[groups, images, captions]`. In the first group below every comparison is right. In the
second one the first image prefers the wrong caption, and the true matching still has the larger total.""",
    ),
    (
        "code",
        """import numpy as np

scores = np.array([[[2.0, 1.0], [0.0, 3.0]], [[1.0, 1.5], [0.0, 2.0]]])
print("group score", ttmbench.metrics.group_score(scores))
print("group match", ttmbench.metrics.group_match(scores))
print("margins", ttmbench.matching.match_groups(scores).margin)
print(ttmbench.score(scores))""",
    ),
    (
        "markdown",
        """## Test-time matching

TTM takes the matchings with the largest margins as pseudo-labels, finetunes the model on them, matches again with a
lower threshold, and so on. It reads no label: captions are shuffled inside every group before it looks.""",
    ),
    (
        "code",
        """adapted = ttmbench.simple_evaluate(
    "tiny-clip",
    "shapes_color",
    limit=40,
    ttm={"iterations": 3, "epochs": 5},
    use_cache="off",
    device="cpu",
)
print(adapted)
for step in adapted["ttm"]["shapes_color"]["iterations"]:
    print(f"iteration {step['iteration']}: {step['selected']} of {step['candidates']} groups selected")""",
    ),
    (
        "markdown",
        """Forty groups are few: the interval of the difference, over groups, says how few. Every number is a row of a
table, and `compare` sets TTM beside the model as it was, group by group.""",
    ),
    (
        "code",
        """(row,) = ttmbench.compare(adapted, metrics=["group_match"])
print(f"{100 * row['difference']:+.1f} points, 95 % interval", [round(100 * end, 1) for end in row["ci"]])
frame = adapted.to_frame()
print(frame[frame.metric.isin(["group_score", "group_match"])][["metric", "method", "value", "chance"]])""",
    ),
    (
        "markdown",
        """Next: [concepts](concepts.md), [from Python](python.md), [the command line](command-line.md),
[a task of your own](add-a-task.md), [a model of your own](add-an-adapter.md).""",
    ),
]


def notebook() -> dict[str, Any]:
    """The notebook with outputs: what each cell prints, in one namespace of a process of its own."""
    printed = iter(_outputs([source for kind, source in CELLS if kind == "code"]))
    cells, count = [], 0
    for number, (kind, source) in enumerate(CELLS):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": _lines(source)}
        if kind == "code":
            count += 1
            output = {"name": "stdout", "output_type": "stream", "text": _lines(next(printed))}
            cell |= {"execution_count": count, "outputs": [output]}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _outputs(programs: list[str]) -> list[str]:
    program = f"\nprint({END!r})\n".join(programs)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE, encoding="utf-8", check=True
        )
    return done.stdout.split(f"{END}\n")


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit(__doc__)
    NOTEBOOK.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
