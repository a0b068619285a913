"""The scripts of docs/examples run, print what they state, and are shown by a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes
from support.checkout import PAGES, ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.*"))
STATED = re.compile(r"^# prints: (.+)$", re.MULTILINE)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_prints_what_it_states(file, tmp_path):
    text = file.read_text(encoding="utf-8")
    stated = STATED.findall(text)
    assert stated and len(text.splitlines()) <= 40
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    how = {"cwd": tmp_path, "capture_output": True, "encoding": "utf-8"}
    how["env"] = {**os.environ, "PATH": path, "MPLBACKEND": "Agg", "TTMBENCH_CACHE": str(tmp_path / ".cache")}
    done = processes.run([file], **how) if file.suffix == ".py" else subprocess.run(["bash", "-eu", file], **how)
    assert done.returncode == 0, done.stderr[-4000:]
    for words in stated:
        assert words in done.stdout, (words, done.stdout[-4000:])


def test_every_example_is_shown_by_a_page():
    """Where a page has a link to one on a line of its own, the site shows the script below it."""
    links = re.compile(r"^\[.*\]\((?:\.\./)*(?:docs/)?examples/([\w.-]+)\)$", re.MULTILINE)
    shown = {name for page in PAGES for name in links.findall(page.read_text(encoding="utf-8"))}
    assert shown == {file.name for file in EXAMPLES}
