"""The benchmarks run, and the two versions that they time give the same numbers. No time is asserted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import processes

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = ["--groups", "4", "--layers", "1", "--iterations", "2", "--epochs", "2"]


def run(script: str, output: Path, *options: str, small: tuple[str, ...] = tuple(SMALL)) -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [FOLDER / script, *small, *options, "--output", output]
    done = processes.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(output.read_text())


@pytest.mark.slow
def test_both_versions_give_the_same_numbers(tmp_path):
    report = run("ttm.py", tmp_path / "x.json", "--batch", "3", "--images", "jpeg", "--threads", "1", "--repeats", "1")
    report = report["fp32"]
    same = report["same_numbers"]
    assert same["selected_equal"] and same["pseudo_labels_equal"] and same["group_match_equal"]
    assert same["threshold_difference"] < 1e-4 and same["loss_difference"] < 1e-4
    assert set(report["seconds"]["package"]) == {"prepare", "score", "train", "total"}


@pytest.mark.slow
def test_the_store_changes_no_score(tmp_path):
    report = run("score.py", tmp_path / "x.json", "--threads", "1", small=("--groups", "4", "--layers", "1"))
    assert report["same_scores"] and set(report["ratios"].values()) and min(report["ratios"].values()) > 0
    assert set(report["seconds"]) == {"warming up", "off", "first", "again"} and report["call"] > 1
