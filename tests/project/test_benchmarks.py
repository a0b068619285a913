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


def test_both_versions_give_the_same_numbers(tmp_path):
    report = run("ttm.py", tmp_path / "x.json", "--batch", "3", "--images", "jpeg", "--threads", "1", "--repeats", "1")
    report = report["fp32"]
    same = report["same_numbers"]
    assert same["selected_equal"] and same["pseudo_labels_equal"] and same["group_match_equal"]
    assert same["threshold_difference"] < 1e-4 and same["loss_difference"] < 1e-4
    assert set(report["seconds"]["package"]) == {"prepare", "score", "train", "total"}


ON_THE_STAND_IN = """
import runpy, sys
sys.path[:0] = [{support!r}, {benchmarks!r}]
from support.stand_in_gpu import stand_in_gpu
sys.argv = ["accelerator.py", *{options!r}]
with stand_in_gpu():
    runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_the_accelerator_benchmark_runs_on_a_stand_in_and_a_cpu(tmp_path):
    options = ["--width", "64", "--batch", "3", "--matrix", "64"]
    there = [*SMALL, *options, "--device", "cuda", "--dtypes", "fp32", "--output", str(tmp_path / "gpu.json")]
    places = {"support": str(FOLDER.parent / "tests"), "benchmarks": str(FOLDER)}
    program = ON_THE_STAND_IN.format(**places, options=there, script=str(FOLDER / "accelerator.py"))
    done = processes.run(["-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    reports = {
        "fp32": json.loads((tmp_path / "gpu.json").read_text()),
        "bf16": run("accelerator.py", tmp_path / "cpu.json", *options, "--device", "cpu", "--dtypes", "bf16"),
    }
    assert reports["fp32"]["device"] == "stand-in" and reports["bf16"]["device"] == "CPU"
    ran = {dtype: report["runs"][dtype] for dtype, report in reports.items()}
    for one in ran.values():
        # 1 and then all 4 groups are selected, of 2 images, in 2 epochs each.
        assert one["trained_images"] == 2 * 2 * (1 + 4)
        assert one["flops_per_trained_image"] > 1e8 and one["peak_flops"] > 1e7
    first = [ran[dtype]["first_and_last_loss"][0][0] for dtype in ("fp32", "bf16")]
    assert first[0] == pytest.approx(first[1], rel=0.02)


def test_the_store_changes_no_score(tmp_path):
    report = run("score.py", tmp_path / "x.json", "--threads", "1", small=("--groups", "4", "--layers", "1"))
    assert report["same_scores"] and set(report["ratios"].values()) and min(report["ratios"].values()) > 0
    assert set(report["seconds"]) == {"warming up", "off", "first", "again"}
