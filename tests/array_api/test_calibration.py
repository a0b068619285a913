"""Calibration errors against loops, and as a metric that is asked for."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttmbench import score, simple_evaluate
from ttmbench.cli import main
from ttmbench.metrics import calibration_error, reliability

SHAPES = [(2, 2), (1, 4), (2, 3), (3, 3)]
BOTH = ["text_ece", "image_ece"]


def drawn(shape, seed, groups=40):
    return np.random.default_rng(seed).normal(0, 2, (groups, *shape)).round(1)  # rounded: some tie


def naive(scores, side):
    """Guo et al. 2017, equation 3, choice by choice."""
    bins = [[] for _ in range(15)]
    for group in scores.tolist():
        images, captions = len(group), len(group[0])
        for i in range(images):
            row = group[i] if side == "text" else [group[j][i] for j in range(images)]
            weights = [math.exp(value - max(row)) for value in row]  # so that ties are exactly 1/n, on a bin's edge
            confidence = max(weights) / sum(weights)
            right = all(row[i] > row[j] for j in range(captions if side == "text" else images) if j != i)
            place = next(m for m in range(15) if confidence <= (m + 1) / 15 or m == 14)
            bins[place].append((confidence, right))
    total = sum(map(len, bins))
    gaps = [abs(sum(r for _, r in b) / len(b) - sum(c for c, _ in b) / len(b)) * len(b) for b in bins if b]
    return sum(gaps) / total


@given(st.sampled_from(SHAPES), st.integers(0, 10_000))
def test_errors_equal_a_naive_loop_in_any_order(shape, seed):
    scores, rng = drawn(shape, seed), np.random.default_rng(seed)
    images = rng.permutation(shape[0])
    moved = scores[:, images][:, :, [*images, *rng.permutation(np.arange(*shape))]]
    for side in ("text", "image") if shape[0] > 1 else ("text",):
        assert calibration_error(scores, side) == pytest.approx(naive(scores, side), abs=1e-12)
        assert calibration_error(moved, side) == pytest.approx(naive(scores, side), abs=1e-12)


def test_calibrated_scores_have_no_error_and_sharp_ones_do():
    rng, logits = np.random.default_rng(0), np.random.default_rng(1).normal(0, 2, (100_000, 1, 2))
    chances = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(axis=1, keepdims=True)
    swapped = rng.random(len(logits)) > chances[:, 0]  # the true caption is drawn as the model believes
    logits[swapped] = logits[swapped][:, :, ::-1]
    share, accuracy, confidence = reliability(logits).T
    assert np.nansum(share) == pytest.approx(1) and np.isnan(accuracy[:7]).all(), "the larger of two is at least 1/2"
    assert calibration_error(logits) < 0.01 and np.nanmax(np.abs(accuracy - confidence)) < 0.03
    assert calibration_error(5 * logits) > 0.1


def test_a_constant_scorer_is_as_wrong_as_it_is_confident():
    for images, captions in SHAPES:
        assert calibration_error(np.full((3, images, captions), 7.0)) == pytest.approx(1 / captions)
    for scores, side in ((np.zeros((3, 1, 2)), "image"), (np.zeros((3, 2, 1)), "text")):
        with pytest.raises(ValueError):
            calibration_error(scores, side)


def test_a_run_has_them_on_request(tmp_path, capsys):
    words = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "24", "--methods", "ttm,zero"]
    words += ["--seeds", "0,1", "--ttm_args", "iterations=1,epochs=2", "--save_scores", "-o", str(tmp_path)]
    assert main([*words, "--metrics", ",".join(BOTH)]) == 0
    (file,) = tmp_path.rglob("results_*.json")
    document = json.loads(file.read_text())
    numbers, (saved,) = document["results"]["shapes_color"], tmp_path.rglob("scores_*.safetensors")
    scores = score(saved, "shapes_color", limit=24, metrics=BOTH)
    arrays = scores.scores["shapes_color"]
    for metric, side in zip(BOTH, ("text", "image"), strict=True):
        each = [calibration_error(seed.groups, side) for seed in arrays["ttm"]]
        assert numbers[f"{metric},none"] == pytest.approx(calibration_error(arrays["none"][0].groups, side))
        assert numbers[f"{metric},ttm"] == pytest.approx(np.mean(each))
        assert numbers[f"{metric}_seed_std,ttm"] == pytest.approx(np.std(each, ddof=1))
        assert numbers[f"{metric},zero"] is None and scores.results["shapes_color"][f"{metric},zero"] is None
        assert numbers[f"{metric},none"] == scores.results["shapes_color"][f"{metric},none"]
        assert document["ci"]["shapes_color"][f"{metric},none"] is None
    assert not any("_ece" in key for key in score(saved, "shapes_color", limit=24).results["shapes_color"])
    capsys.readouterr()
    assert main(["validate", str(file)]) == 0 and main(["report", str(file), "-o", str(tmp_path / "r.html")]) == 0


def test_the_analysis_has_the_points_of_the_curve(tmp_path):
    words = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "24", "-o", str(tmp_path)]
    assert main(["analyze", "calibration", *words, "--methods", "dn,zero"]) == 0
    (file,) = tmp_path.rglob("calibration_*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [(row["name"], row["metric"]) for row in rows] == [(n, m) for m in BOTH for n in ("raw", "dn")]
    for row in rows:
        share, accuracy, confidence = map(np.array, row["bins"].values())
        assert share @ np.abs(accuracy - confidence) == pytest.approx(row["value"])
        assert share @ (confidence - accuracy) == pytest.approx(row["mean"] - row["right"])


def test_scores_that_are_no_logits_are_refused(tmp_path, capsys):
    rows = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "cosines.npz", img=rows, cap=rows)
    words = ["--model", "embeddings", "--tasks", "winoground", "--limit", "2", "--metrics", "text_ece"]
    file = ["-a", f"path={tmp_path / 'cosines.npz'}"]
    stored = ["score", str(tmp_path / "cosines.npz"), "--task", "winoground", "--limit", "2", "--metrics", "text_ece"]
    for command, option in ((words + file, "logit_scale=X"), (stored, "--logit_scale X")):
        assert main(command) == 2
        said = capsys.readouterr().err.strip()
        assert "'text_ece' needs logits" in said and option in said and "\n" not in said
    args = {"path": str(tmp_path / "cosines.npz"), "logit_scale": 100.0}
    scaled = simple_evaluate("embeddings", "winoground", limit=2, metrics="text_ece", model_args=args)
    assert scaled.results["winoground"]["text_ece,none"] == pytest.approx(0, abs=1e-6)
    assert main([*stored, "--logit_scale", "100"]) == 0
    assert main(["--model", "tiny-clip", "--tasks", "shapes_color", "--metrics", "ece"]) == 2
    assert "text_ece" in capsys.readouterr().err
