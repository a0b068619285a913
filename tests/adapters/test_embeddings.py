"""Stored features as a model: what it reads, what it refuses, and that SimpleMatch's step turns matchings to scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ttmbench import simple_evaluate
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.score_files import score_stored
from ttmbench.model_adapters import embeddings


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def features(groups=400, dimension=512, seed=0, signal=0.05):
    """Two images and two captions a group that differ in little, with a gap between the two modalities."""
    rng = np.random.RandomState(seed)
    image_mean, caption_mean = unit(rng.randn(dimension)), unit(rng.randn(dimension))
    scene = rng.randn(groups, 1, dimension)
    detail, scene = unit(rng.randn(groups, 2, dimension)), unit(scene)
    images = image_mean + 0.8 * scene + 0.7 * unit(rng.randn(groups, 2, dimension)) + signal * detail
    captions = caption_mean + 0.8 * scene + 0.25 * unit(rng.randn(groups, 2, dimension)) + signal * detail
    return {
        "img": unit(images).reshape(-1, dimension).astype(np.float32),
        "cap": unit(captions).reshape(-1, dimension).astype(np.float32),
    }


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "features.npz"
    np.savez(path, **features())
    return path


def evaluate(path, **settings):
    arguments = {"path": str(path), **settings.pop("args", {})}
    return simple_evaluate("embeddings", "winoground", model_args=arguments, bootstrap_iters=0, **settings)


def test_overfitting_turns_the_group_match_into_the_group_score(file):
    numbers = evaluate(file, methods=["overfit"]).results["winoground"]
    assert numbers["group_score,none"] < 0.10
    assert numbers["group_match,none"] > 0.55
    assert numbers["group_score,overfit"] == pytest.approx(numbers["group_match,none"], abs=0.03)
    stored = score_stored([file], "winoground", logit_scale=100.0, bootstrap_iters=0)["results"]["winoground"]
    raw = {key: value for key, value in numbers.items() if key.endswith(",none")}
    assert raw.items() <= stored.items(), "as the score command has them"


def test_scores_are_scaled_cosines_of_features_of_any_norm(tmp_path):
    arrays = features(groups=400, dimension=16)
    np.savez(tmp_path / "long.npz", img=arrays["img"] * 7, cap=arrays["cap"] * 0.1, logit_scale=12.0, logit_bias=-3.0)
    scores = evaluate(tmp_path / "long.npz").scores["winoground"]["none"][0].groups
    left, right = arrays["img"].reshape(400, 2, 16), arrays["cap"].reshape(400, 2, 16)
    assert np.allclose(scores, 12 * np.einsum("gid,gcd->gic", left, right) - 3, atol=1e-4)
    run = evaluate(tmp_path / "long.npz", args={"logit_scale": 1.0, "logit_bias": 0.0})
    default = run.scores["winoground"]["none"][0]
    assert np.allclose(default.groups, np.einsum("gid,gcd->gic", left, right), atol=1e-5)


def test_an_adapted_model_is_saved_as_features_that_score_the_same(file, tmp_path):
    run = evaluate(file, ttm={"iterations": 2, "epochs": 2}, save_adapted=str(tmp_path / "adapted"))
    again = evaluate(tmp_path / "adapted")
    found, expected = again.scores["winoground"]["none"][0].groups, run.scores["winoground"]["ttm"][0].groups
    assert not np.allclose(expected, run.scores["winoground"]["none"][0].groups, atol=1e-2)
    assert np.allclose(found, expected, atol=1e-4)


def test_sigmoid_loss_where_there_is_a_bias(file):
    plain = embeddings.load(path=str(file), device="cpu")
    biased = embeddings.load(path=str(file), logit_bias=-10.0, device="cpu")
    some = torch.arange(6)
    with torch.no_grad():
        losses = [float(m.matching_loss(m.stored_images()[some], m.stored_captions()[some])) for m in (plain, biased)]
    logits = 100 * plain.stored_images()[some] @ plain.stored_captions()[some].T
    entropy = torch.nn.functional.cross_entropy
    softmax = (entropy(logits, some) + entropy(logits.T, some)) / 2
    signs = 2 * torch.eye(6) - 1
    assert losses[0] == pytest.approx(float(softmax), abs=1e-4)
    assert losses[1] == pytest.approx(float(-torch.nn.functional.logsigmoid(signs * (logits - 10)).sum() / 6), abs=1e-4)


def test_another_number_of_groups_is_one_clear_error(tmp_path):
    np.savez(tmp_path / "few.npz", **features(groups=10, dimension=8))
    with pytest.raises(DataError, match="10 groups, but task 'winoground'"):
        evaluate(tmp_path / "few.npz")
    assert evaluate(tmp_path / "few.npz", limit=4)["n-samples"]["winoground"]["effective"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img": None}, "no array 'img'"),
        ({"cap": np.zeros((800, 16), np.float32)}, "row 0 of 'cap' is zero"),
        ({"cap": np.ones((800, 9), np.float32)}, "dimension 16, 'cap' has 9"),
        ({"cap": np.ones((799, 16), np.float32)}, "799 captions must make whole groups of 2x2"),
        ({"img": np.ones((800, 4, 4), np.float32)}, r"must be floats \[rows, d\]"),
        ({"img": np.ones((800, 16), np.int64)}, r"must be floats \[rows, d\]"),
        ({"logit_scale": np.ones(3)}, "one finite number"),
    ],
)
def test_what_is_no_file_of_features_is_refused(tmp_path, change, message):
    arrays = {**features(dimension=16), **change}
    np.savez(tmp_path / "x.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError, match=message):
        evaluate(tmp_path / "x.npz")


def test_wrong_settings(file, tmp_path):
    with pytest.raises(UsageError, match="positive"):
        evaluate(file, args={"logit_scale": 0})
    with pytest.raises(UsageError, match="--samples"):
        (tmp_path / "ids.json").write_text('["3"]')
        evaluate(file, samples=str(tmp_path / "ids.json"))
