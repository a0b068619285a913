"""Small doses of experiments whose full outcomes are in tests/evidence/faults.md, with seeds drawn anew each time."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cuts
import flips
import pytest


def test_no_flipped_bit_of_a_checkpoint_is_read():
    seed = secrets.randbelow(2**31)
    found = flips.flip(300, seed)
    assert found == {"header": 300, "header_accepted": 0, "tensors": 30, "tensors_accepted": 0}, f"seed {seed}"


def test_no_cut_download_is_called_whole():
    seed = secrets.randbelow(2**31)
    found = cuts.fetch_all(60, seed)
    assert found["wrong"] == 0 and found["fetched"] > 30, f"seed {seed}: {found}"


RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra 'ray')")
KILLED = ["kills --kills 5", "sweeps --kills 4", pytest.param("sweeps --kills 4 --executor ray", marks=RAY)]


@pytest.mark.slow
@pytest.mark.parametrize("words", KILLED)
def test_kills_lose_nothing(words, tmp_path):
    counts, faults = tmp_path / "counts.json", Path(__file__).with_name("faults.py")
    command = [sys.executable, str(faults), *words.split(), "--json", str(counts)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TTMBENCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(counts.read_text(encoding="utf-8"))
    assert found["kills"] == int(words.split()[2]) and found["units_done_twice"] == found["numbers_that_differ"] == 0
    # A plugin is told of an iteration once it is saved: each kill can come between the two, and it is told of no other.
    assert words != KILLED[0] or found["iterations"] >= 18 - found["kills"]
