"""One of each kind of addition, made in a copy of the package where CONTRIBUTING says, and there for the user."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support import processes

ROOT = Path(__file__).resolve().parents[2]

METRIC = '''

def mean_margin(scores: Real[np.ndarray, "groups images captions"]) -> Bool[np.ndarray, " groups"]:
    """True captions score higher than the others on the whole."""
    own, other = rows_of(scores, 1)
    return np.asarray(own.mean(axis=1) > other.mean(axis=1))


METRICS += (MetricSpec("mean_margin", mean_margin, "own captions win on the whole", None, chance.mean_margin),)
'''

CHANCE = '''

def mean_margin(images: int, captions: int) -> float:
    """By symmetry, for one other caption."""
    _check(images, captions, 1)
    return 0.5
'''

SOURCE = '''"""Three groups of plain squares."""

from collections.abc import Iterator

from PIL import Image

from ttmbench.data.availability import DataLocation
from ttmbench.types import Group, ImageRef, SourceRequest


def locate_squares(request: SourceRequest) -> list[DataLocation]:
    """Nothing is needed."""
    return [DataLocation("drawn here", ())]


def read_squares(request: SourceRequest) -> Iterator[Group]:
    """Red and blue, green and blue, black and white."""
    for pair in (("red", "blue"), ("green", "blue"), ("black", "white")):
        images = (ImageRef(name, lambda name=name: Image.new("RGB", (32, 32), name)) for name in pair)
        yield Group("-".join(pair), tuple(images), tuple(f"a {name} square" for name in pair))
'''

EXPORTER = '''"""One line a run."""


def export_names(runs, target, source_url):
    """The names of the models."""
    return {target: "".join(f"model {run.document.model_name}\\n" for run in runs)}, {}
'''

TASK = """\
task: squares
version: 1
description: plain squares
source: {kind: squares}
group: {shape: [2, 2], n_groups: 3}
metrics: [group_match, mean_margin]
"""

# A row of CONTRIBUTING's table -> file -> (text before which something goes, None for the end; and what goes there).
ADDITIONS: dict[str, dict[str, tuple[str | None, str]]] = {
    "a metric": {"ttmbench/metrics.py": (None, METRIC), "ttmbench/chance.py": (None, CHANCE)},
    "a data source": {
        "ttmbench/data/sources/squares.py": (None, SOURCE),
        "ttmbench/plugins/builtin.py": ('    ("folder", ', '    ("squares", "squares", "plain squares"),\n'),
    },
    "a named model": {
        "model_adapters/named_models.json": (
            '{"name": "siglip-b16", ',
            '{"name": "tiny-too", "kind": "tiny_clip", "summary": "another", "model_args": {"training_seed": 0}},\n',
        )
    },
    "an export format": {
        "ttmbench/report/export/names.py": (None, EXPORTER),
        "ttmbench/report/export/__init__.py": (
            '    Exporter("csv",',
            '    Exporter("names", "ttmbench.report.export.names:export_names"),\n',
        ),
    },
}

PROGRAM = """
import sys
from pathlib import Path
import ttmbench
from ttmbench.cli import main
here = Path(sys.argv[1])
assert Path(ttmbench.__file__).is_relative_to(here), ttmbench.__file__
run = ["--model", "tiny-too", "--tasks", "squares", "--include_path", str(here / "mine"), "--use_cache", "off"]
for words in (
    ["ls", "metrics"],
    ["ls", "models"],
    ["export", "--help"],
    [*run, "--device", "cpu", "--output_path", str(here / "run.json")],
    ["export", str(here / "run.json"), "--to", "names"],
):
    print("$", *words[:2], flush=True)
    code = main(words)
    assert code == 0, (words, code)
"""


@pytest.fixture
def copy(tmp_path) -> Path:
    """The package as an installed one lies: tasks and adapters inside."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ttmbench", tmp_path / "ttmbench", ignore=unwanted)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "squares.yaml").write_text(TASK, encoding="utf-8")
    return tmp_path


def named(row: str) -> list[str]:
    """The files and folders of code that a row of CONTRIBUTING's table names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (cell,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", text, flags=re.MULTILINE)
    return [word for word in re.findall(r"`([\w./]+)`", cell) if word.startswith(("ttmbench/", "model_adapters/"))]


def add(copy: Path, file: str, before: str | None, what: str) -> None:
    path = copy / file if file.startswith("ttmbench/") else copy / "ttmbench" / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if before is not None:
        assert text.count(before) == 1, (file, before)
    place = len(text) if before is None else text.index(before)
    path.write_text(text[:place] + what + text[place:], encoding="utf-8")


def test_one_of_each_is_added_where_the_table_says(copy):
    for row, files in ADDITIONS.items():
        places = named(row)
        for file in files:
            assert any(file == place or (place.endswith("/") and file.startswith(place)) for place in places), (
                row,
                file,
            )
        assert all(any(file.startswith(place) for file in files) for place in places), (
            row,
            "names more than is needed",
        )
        assert len(files) <= 2, row
        for file, (before, what) in files.items():
            add(copy, file, before, what)
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    done = processes.run(["-c", PROGRAM, copy], capture_output=True, text=True, env=environment, cwd=copy)
    assert done.returncode == 0, done.stderr[-2000:]
    metrics, models, formats, table, exported = re.split(r"^\$ .*\n", done.stdout, flags=re.MULTILINE)[1:]
    assert re.search(r"^mean_margin .*own captions win on the whole", metrics, flags=re.MULTILINE)
    assert re.search(r"^tiny-too .*another", models, flags=re.MULTILINE)
    assert "names" in formats.partition("--to")[2]
    assert re.search(r"squares .*\n?(.*\n)*.*mean_margin", table)
    assert exported == "model tiny-too\n"
