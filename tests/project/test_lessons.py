"""The lessons run from top to bottom and print what they show."""

from __future__ import annotations

import os
import re

import pytest
from support import processes
from support.checkout import ROOT, load_script

PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem != "first-lesson"))
    for page in sorted((ROOT / "docs" / "lessons").glob("*.md"))
]
SHOWN_APART = re.compile(r"results_[\w.-]+\.json|[-+\d.]+|─+")
"""Dates and numbers, which may move in the last digit from machine to machine, and with them the width of a table."""


@pytest.fixture(scope="module")
def lessons():
    return load_script("docs/lessons")


def words(text):
    return " ".join(SHOWN_APART.sub("#", text).split())


@pytest.mark.parametrize("page", PAGES)
def test_a_lesson_runs_and_prints_what_it_shows(page, lessons, tmp_path):
    found = lessons.blocks(page)
    assert len(found) >= 5
    around = os.environ | {"MPLBACKEND": "Agg", "COLUMNS": lessons.WIDTH, "TTMBENCH_CACHE": str(tmp_path / ".cache")}
    program = lessons.program(found)
    done = processes.run(["-c", program], cwd=tmp_path, env=around, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-4000:]
    for block, now in zip(found, lessons.printed(done.stdout), strict=True):
        assert words(now) == words(block.output), "python scripts/docs/lessons.py writes outputs anew"
        if block.figure is not None:
            assert (tmp_path / block.figure[0].removeprefix(f"{page.stem}-")).is_file()
