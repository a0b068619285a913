"""Runs of tasks in which two captions are true for an image: numbers, files, and what is not done."""

from __future__ import annotations

import json
from textwrap import dedent

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import ttmbench
from ttmbench import metrics
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError

COLORS = ["red", "green", "blue", "yellow", "white", "black"]


def task(name: str = "triples", **more: object) -> ttmbench.Task:
    images = [[Image.new("RGB", (32, 32), color)] for color in COLORS]
    captions = [[f"a {c} square", f"a square that is {c}", f"a {COLORS[at - 1]} square"] for at, c in enumerate(COLORS)]
    return ttmbench.Task.from_groups(images, captions, name=name, true_captions=2, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triples")
    names = ["text_score", "group_match", "original_accuracy", "augmented_accuracy", "brittleness", "text_only_score"]
    results = ttmbench.simple_evaluate(
        model="tiny-clip",
        tasks=[task(metrics=names)],
        use_cache="off",
        output_path=str(folder),
        log_samples=True,
        save_scores=True,
    )
    files = {path.name.split("_")[0]: path for path in folder.rglob("*") if path.is_file()}
    return results, files


def test_numbers_are_those_of_the_scores(run):
    results, files = run
    numbers, document = results.results["triples"], results.document
    scores = np.array([json.loads(line)["scores"] for line in files["samples"].read_text("utf-8").splitlines()])
    assert scores.shape == (6, 1, 3)
    matchings = [json.loads(line)["matching"] for line in files["samples"].read_text("utf-8").splitlines()]
    assert all(len(matching) == 1 and len(matching[0]) == 2 for matching in matchings)
    for name in ("text_score", "group_match", "original_accuracy", "brittleness"):
        assert numbers[f"{name},none"] == pytest.approx(getattr(metrics, name)(scores, true_captions=2).mean()), name
    assert numbers["augmented_accuracy,none"] == numbers["text_score,none"]
    assert document["chance"]["triples"]["brittleness"] == pytest.approx(1 / 3)
    assert document["datasets"]["triples"]["true_captions"] == 2


def test_nothing_is_adapted_to_several_true_captions():
    with pytest.raises(UsageError, match="2 captions are true for each image"):
        ttmbench.simple_evaluate("tiny-clip", [task(metrics=["text_score"])], ttm=True)


def test_what_is_kept_is_scored_again_to_the_same_numbers(run):
    results, files = run
    again = ttmbench.score(files["scores"], bootstrap_iters=0)
    for key, value in results.results["triples"].items():
        if "_stderr" not in key:
            assert again.results["scores"][key] == value, key
    assert again.document["datasets"]["scores"]["true_captions"] == 2


def test_embeddings_have_every_metric(tmp_path):
    rng = np.random.default_rng(0)
    image, caption = (rng.normal(size=(count, 8)).astype(np.float32) for count in (5, 15))
    image /= np.linalg.norm(image, axis=1, keepdims=True)
    caption /= np.linalg.norm(caption, axis=1, keepdims=True)
    save_file({"img": image, "cap": caption}, tmp_path / "e.safetensors")
    found = ttmbench.score(tmp_path / "e.safetensors", "sugarcrepe_pp_swap_obj", limit=5, bootstrap_iters=0)
    exact = caption.astype(np.float64).reshape(5, 3, 8)
    exact /= np.linalg.norm(exact, axis=2, keepdims=True)
    right = metrics.text_only_score(exact @ exact.transpose(0, 2, 1), 2)
    assert found.results["sugarcrepe_pp_swap_obj"]["text_only_score,none"] == right.mean()
    scores = (image[:, None] @ exact.astype(np.float32).transpose(0, 2, 1)).reshape(5, 1, 3)
    assert found.results["sugarcrepe_pp_swap_obj"]["text_score,none"] == metrics.text_score(scores, 2).mean()


def test_a_metric_that_knows_one_true_caption_is_not_taken_for_more(tmp_path):
    scores = np.random.default_rng(0).normal(size=(4, 1, 3))
    plain = ttmbench.score(scores, bootstrap_iters=0).results["scores"]
    assert "brittleness,none" not in plain and "text_only_score,none" not in plain
    folder = tmp_path / "mine"
    folder.mkdir()
    text = """
        task: mine
        version: 1
        source: {kind: folder, path: rows.jsonl}
        group: {shape: [1, 3], images: [a], captions: c}
        metrics: [brittleness]
    """
    (folder / "mine.yaml").write_text(dedent(text), encoding="utf-8")
    assert main(["validate", str(folder / "mine.yaml"), "--schema_only"]) == DataError.exit_code


def test_what_chooses_one_caption_or_adapts_refuses(capsys):
    with pytest.raises(UsageError, match="true for the one image"):
        ttmbench.Task.from_groups([[Image.new("RGB", (8, 8))]], [["a", "b"]], name="x", true_captions=2)
    assert main(["analyze", "oracle", "--model", "tiny-clip", "--tasks", "sugarcrepe_pp_swap_obj"]) != 0
    assert "2 captions are true for each image" in capsys.readouterr().err
