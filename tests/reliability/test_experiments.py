"""Small doses of experiments that docs/reliability.md shows in full, with seeds drawn anew each time."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import cuts
import flips
import pytest
import sweeps


def test_no_flipped_bit_of_a_checkpoint_is_read():
    seed = secrets.randbelow(2**31)
    found = flips.flip(300, seed)
    assert found == {"header": 300, "header_accepted": 0, "tensors": 30, "tensors_accepted": 0}, f"seed {seed}"


def test_no_cut_download_is_called_whole():
    seed = secrets.randbelow(2**31)
    found = cuts.fetch_all(60, seed)
    assert found["wrong"] == 0 and found["fetched"] > 30, f"seed {seed}: {found}"


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    counts, faults = tmp_path / "counts.json", Path(__file__).with_name("faults.py")
    command = [sys.executable, str(faults), "kills", "--kills", "5", "--json", str(counts)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(counts.read_text(encoding="utf-8"))
    # A plugin is told of an iteration once it is saved: each kill can come between the two, and it is told of no other.
    assert found["kills"] == 5 and found["iterations"] >= 18 - found["kills"]
    assert found["units_done_twice"] == found["numbers_that_differ"] == found["unreadable_files"] == 0


@pytest.mark.slow
def test_killed_drivers_and_workers_cost_a_sweep_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path))
    seed = secrets.randbelow(2**31)
    code = sweeps.main(argparse.Namespace(kills=4, executor="local", seed=seed, json=None))
    assert code == 0, capsys.readouterr().out
