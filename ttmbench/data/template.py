"""A new task to start from: a commented task file, a file of groups and images, ready to run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from ttmbench._util.files import new_folder
from ttmbench.errors import UsageError

EXAMPLES = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TEMPLATE = """\
task: "{name}"  # the name; equal to the name of this file
version: 1                     # raise it whenever the numbers of the task can change
description: Two images and two captions that exchange their colours.
# reference: https://...       # the paper or page
license: CC0-1.0               # of the images and captions
tag: [mine, group_2x2]         # --tasks selects by these too
source:
  kind: folder                 # rows in a file beside images; other kinds are in docs/task-file.md
  path: groups.jsonl           # one group per line; .json, .csv and .tsv work too
  images: images               # folder that the names of images start from
group:
  shape: [2, 2]                # images and captions in each group; [1, 2] is one image and two captions
  n_groups: {count}                  # number of groups; data of another size is an error
  id: id                       # column with the group's ID
  images: [image_0, image_1]   # columns with the names of images
  captions: [caption_0, caption_1]  # columns with captions; the i-th is correct for the i-th image
  # tags: [kind]               # columns to report results by
metrics: [text_score, image_score, group_score, group_match, individual_match]
# `ttmbench ls metrics` lists all; groups of one image have no image_score
"""


def new_task(name: str, folder: Path) -> list[str]:
    """Writes a new folder with a task that validates and runs; returns the next commands.

    UsageError if the name is invalid, the folder is not empty, or it cannot be written.
    """
    if not _NAME.fullmatch(name) or name.endswith((".yaml", ".yml")):
        raise UsageError(
            f"a task name must have letters, digits, '_', '.' and '-', and begin with a letter or digit, got '{name}'"
        )
    new_folder(folder, lambda made: _write(name, made))
    file = folder / f"{name}.yaml"
    return [
        shlex.join(["ttmbench", "validate", str(file)]),
        shlex.join(["ttmbench", "--model", "tiny-clip", "--tasks", str(file)]),
        shlex.join(["ttmbench", "--model", "tiny-clip", "--tasks", name, "--include_path", str(folder), "--ttm"]),
    ]


def _write(name: str, folder: Path) -> None:
    from ttmbench.data.rendered.scenes import make_groups, render

    (folder / "images").mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(_TEMPLATE.format(name=name, count=EXAMPLES), encoding="utf-8")
    lines = []
    for number, group in enumerate(make_groups("color", EXAMPLES, seed=0), start=1):
        row: dict[str, str] = {"id": f"g{number}"}
        for side, (scene, caption) in enumerate(zip(group.scenes, group.captions, strict=True)):
            image = f"g{number}_{side}.png"
            render(scene).save(folder / "images" / image)
            row |= {f"image_{side}": image, f"caption_{side}": caption}
        lines.append(json.dumps(row) + "\n")
    (folder / "groups.jsonl").write_text("".join(lines), encoding="utf-8")
