"""Kills at random moments lose nothing: a small dose of what `faults.py kills` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    """A small dose of what docs/reliability.md shows for 200 kills."""
    counts = tmp_path / "counts.json"
    command = [sys.executable, str(FOLDER / "faults.py"), "kills", "--kills", "5", "--json", str(counts)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(counts.read_text(encoding="utf-8"))
    # A plugin is told of an iteration once it is saved: each kill can come between the two, and it is told of no other.
    assert found["kills"] == 5 and found["iterations"] >= 18 - found["kills"]
    assert found["units_done_twice"] == found["numbers_that_differ"] == found["unreadable_files"] == 0
