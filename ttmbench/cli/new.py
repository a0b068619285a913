"""``ttmbench new task|adapter|method|plugin NAME``: a working template in a new directory."""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from ttmbench._util.console import echo
from ttmbench.errors import UsageError

_NEXT = {
    "task": "a task of three rendered groups. Put your images into {0}/images, write one line per group\n"
    "into {0}/groups.jsonl, and set n_groups in {0}/{1}.yaml. Then:",
    "adapter": "a package with a model adapter. Put your model into {0}/{2}/adapter.py. Then:",
    "method": "a package with a test-time method. Put your loss into {0}/{2}/method.py. Then:",
    "plugin": "a package with a task, a metric, a schedule and a hook. They are in {0}/{2}. Then:",
}
_PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
EXAMPLES = 3
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TASK = """\
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench new``."""
    parser.add_argument("what", choices=tuple(_NEXT), metavar="|".join(_NEXT), help="Kind of template")
    parser.add_argument("name", metavar="NAME", help="Letters, digits, '_', '.' and '-'; no '.' in a package name")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="New directory (default: NAME)")


def new(options: argparse.Namespace) -> int:
    """Write the template and print the next steps."""
    what, name, folder = options.what, options.name, Path(options.output_path or options.name)
    commands = _new_task(name, folder) if what == "task" else _new_package(what, name, folder)
    echo(f"{folder}: {_NEXT[what].format(folder, name, name.replace('-', '_'))}")
    for command in commands:
        echo(f"  {command}")
    return 0


def _new_task(name: str, folder: Path) -> list[str]:
    """Writes a new folder with a task that validates and runs; returns the next commands. UsageError if it cannot."""
    if not _TASK_NAME.fullmatch(name) or name.endswith((".yaml", ".yml")):
        raise UsageError(
            f"a task name must have letters, digits, '_', '.' and '-', and begin with a letter or digit, got '{name}'"
        )
    new_folder(folder, lambda made: _write_task(name, made))
    file = folder / f"{name}.yaml"
    return [
        shlex.join(["ttmbench", "validate", str(file)]),
        shlex.join(["ttmbench", "--model", "tiny-clip", "--tasks", str(file)]),
        shlex.join(["ttmbench", "--model", "tiny-clip", "--tasks", name, "--include_path", str(folder), "--ttm"]),
    ]


def _write_task(name: str, folder: Path) -> None:
    from ttmbench.data.sources.rendered import make_groups, render

    (folder / "images").mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(_TASK.format(name=name, count=EXAMPLES), encoding="utf-8")
    lines = []
    for number, group in enumerate(make_groups("color", EXAMPLES, seed=0), start=1):
        row: dict[str, str] = {"id": f"g{number}"}
        for side, (scene, caption) in enumerate(zip(group.scenes, group.captions, strict=True)):
            image = f"g{number}_{side}.png"
            render(scene).save(folder / "images" / image)
            row |= {f"image_{side}": image, f"caption_{side}": caption}
        lines.append(json.dumps(row) + "\n")
    (folder / "groups.jsonl").write_text("".join(lines), encoding="utf-8")


def _new_package(what: str, name: str, folder: Path) -> list[str]:
    """Writes a folder with an ``adapter``, ``method`` or ``plugin``; returns the next commands, or UsageError."""
    module = name.replace("-", "_")
    if not _PACKAGE_NAME.fullmatch(name) or keyword.iskeyword(module):
        raise UsageError(
            f"a package name must have letters, digits, '_' and '-', begin with a letter and be no keyword of Python, "
            f"got '{name}'"
        )
    if find_spec(module) is not None:
        raise UsageError(f"'{module}' is the name of an installed module; choose another")

    def write(made: Path) -> None:
        templates = files("ttmbench.plugins") / "templates"
        (made / module).mkdir(parents=True)
        (made / module / "__init__.py").touch()
        own = "colors.yaml" if what == "plugin" else f"{what}.py"
        places = {
            "pyproject.toml": "pyproject.toml",
            f"{what}_plugin.py": f"{module}/plugin.py",
            f"{what}_test.py": f"test_{module}.py",
            f"{what}_{own}": f"{module}/tasks/{module}_{own}" if what == "plugin" else f"{module}/{own}",
        }
        for template, path in places.items():
            text = Template((templates / f"{template}.txt").read_text(encoding="utf-8"))
            (made / path).parent.mkdir(exist_ok=True)
            (made / path).write_text(text.substitute(name=name, module=module), encoding="utf-8")

    new_folder(folder, write)
    run = {
        "adapter": ["--model", name, "--tasks", "shapes_replace"],
        "method": ["--model", "tiny-clip", "--tasks", "shapes_color", "--methods", module],
        "plugin": ["--model", "tiny-clip", "--tasks", f"{module}_colors"],
    }[what]
    return [
        shlex.join(["pip", "install", "-e", str(folder)]),
        shlex.join(["python", "-m", "pytest", str(folder)]),
        shlex.join(["ttmbench", *run]),
    ]


def new_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Lets ``write`` make and fill a folder atomically; UsageError if that fails, or it exists and is not empty."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --output_path names another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} already exists and is not empty; choose another folder with --output_path")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            write(made)
            if folder.is_dir():
                folder.rmdir()
            shutil.move(made, folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror or error})") from None
