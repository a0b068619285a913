"""A package of one's own, to start from: an adapter or a plugin that works as it is, and its test."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

from ttmbench._util.files import new_folder
from ttmbench.errors import UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
dependencies = ["ttmbench"]

[project.entry-points.ttmbench]  # ttmbench finds the package by this
{module} = "{module}.plugin"

[tool.setuptools]
packages = ["{module}"]
package-data = {{ {module} = ["tasks/*.yaml"] }}
"""
_ADAPTER_PLUGIN = """\
from ttmbench import AdapterSpec, hookimpl


@hookimpl
def ttmbench_register_adapters():
    # "module:callable" is imported when the model is asked for, so this file imports nothing heavy.
    return [AdapterSpec(name="{name}", target="{module}.adapter:Adapter", summary="says here what it is")]
"""
_ADAPTER = """\
import numpy as np

COLORS = {{"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}}


class Adapter:
    def __init__(self, sharpness=8.0):  # --model_args sharpness=4
        self.sharpness = sharpness

    def fingerprint(self):
        # All that changes a score: raw scores are kept for later runs by it.
        return {{"model": "{name}", "version": 1, "sharpness": self.sharpness}}

    def score_pairs(self, images, captions):
        # Image i (upright, RGB, of Pillow) with caption i: float32 [pairs], larger is a better fit.
        pairs = zip(images, captions, strict=True)
        return np.array([self._score(image, caption) for image, caption in pairs], dtype=np.float32)

    def _score(self, image, caption):
        # Your model goes here; this one looks for the colours that the caption names.
        pixels = np.asarray(image.resize((16, 16)), dtype=np.float64).reshape(-1, 3) / 255
        colors = [COLORS[word] for word in caption.split() if word in COLORS]
        return sum(np.exp(-self.sharpness * ((pixels - color) ** 2).sum(axis=1)).mean() for color in colors)
"""
_ADAPTER_TEST = """\
from {module}.adapter import Adapter

from ttmbench.testing import check_adapter


def test_the_adapter_keeps_the_contract():
    check_adapter(Adapter())
"""
_PLUGIN = """\
from pathlib import Path

import numpy as np

from ttmbench import MetricSpec, ScheduleSpec, hookimpl
from ttmbench.matching import match_groups


@hookimpl
def ttmbench_register_task_dirs():
    return [Path(__file__).parent / "tasks"]


def clear_match(scores):
    # Scores [groups, images, captions] -> bool [groups]: the matching is right, by one logit at least.
    matching = match_groups(scores)
    return (matching.captions == np.arange(scores.shape[1])).all(axis=1) & (matching.margin >= 1.0)


@hookimpl
def ttmbench_register_metrics():
    return [MetricSpec("{module}_clear_match", clear_match, track="matching", summary="right, and clearly so")]


def halving(tau_start, tau_end, iterations):
    # One threshold an iteration.
    return tau_end + (tau_start - tau_end) / 2.0 ** np.arange(iterations)


@hookimpl
def ttmbench_register_schedules():
    return [ScheduleSpec("{module}_halving", halving, summary="the distance to tau_end halves")]


@hookimpl
def ttmbench_run_finished(result, run_dir):
    print("{name}:", result["status"], run_dir)
"""
_PLUGIN_TASK = """\
task: {module}_colors
version: 1
description: Drawn shapes that exchange their colours.
source: {{kind: rendered, scene: color, seed: 7}}
group: {{shape: [2, 2], n_groups: 50}}
metrics: [group_score, group_match, {module}_clear_match]
"""
_PLUGIN_TEST = """\
from {module} import plugin

from ttmbench.matching import match_groups


def test_a_match_is_clear_from_one_logit_on():
    import numpy as np

    scores = np.array([[[2.0, 0.0], [0.0, 2.0]], [[0.1, 0.0], [0.0, 0.1]], [[0.0, 2.0], [2.0, 0.0]]])
    assert match_groups(scores).margin.tolist() == [4.0, 0.2, 4.0]
    assert plugin.clear_match(scores).tolist() == [True, False, False]


def test_thresholds_halve():
    assert plugin.halving(2.0, 0.0, 3).tolist() == [2.0, 1.0, 0.5]
"""
_FILES = {
    "adapter": {"plugin.py": _ADAPTER_PLUGIN, "adapter.py": _ADAPTER},
    "plugin": {"plugin.py": _PLUGIN, "tasks/{module}_colors.yaml": _PLUGIN_TASK},
}
_TESTS = {"adapter": _ADAPTER_TEST, "plugin": _PLUGIN_TEST}


def new_package(what: str, name: str, folder: Path) -> list[str]:
    """Writes a folder with an ``adapter`` or a ``plugin`` that works once it is installed; returns what to run next.

    UsageError if the name cannot be that of a package or is taken, or the folder is not empty or cannot be written.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise UsageError(
            f"'{name}' is no name of a package: letters, digits, '_' and '-', a letter first, and no word of Python's"
        )
    if find_spec(module) is not None:
        raise UsageError(f"'{module}' is the name of a module that is here already; choose another")

    def write(made: Path) -> None:
        files = {f"{module}/{path}": text for path, text in _FILES[what].items()}
        files |= {"pyproject.toml": _PROJECT, f"{module}/__init__.py": "", f"test_{module}.py": _TESTS[what]}
        for path, text in files.items():
            place = made / path.format(module=module)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.format(name=name, module=module), encoding="utf-8")

    new_folder(folder, write)
    run = ["--model", name, "--tasks", "shapes_replace"]
    if what == "plugin":
        run = ["--model", "tiny-clip", "--tasks", f"{module}_colors"]
    return [
        shlex.join(["pip", "install", "-e", str(folder)]),
        shlex.join(["python", "-m", "pytest", str(folder)]),
        shlex.join(["ttmbench", *run]),
    ]
