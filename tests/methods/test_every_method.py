"""What holds of every method that ships and reads no labels, whichever that is; more is in its contract."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pytest
import torch
from support.method_tasks import orders
from support.rewrites import FILE
from support.stand_in_gpu import stand_in_gpu
from support.training_tasks import WORDS, GivenViews, images, load

import ttmbench
from ttmbench._arrays import fewer_first
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.matching import match_groups
from ttmbench.methods import rlcf
from ttmbench.methods.audit import is_clear
from ttmbench.methods.runner import MethodRun
from ttmbench.methods.settings import arguments, checked_settings, recorded
from ttmbench.metrics import group_match, group_score
from ttmbench.plugins.method_functions import METHODS
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.types import GroupShape, MethodSpec

LABELS = {"labels", "random_labels"}
# TTM has its own protocol, and tests/ttm.
UNLABELLED = [one for one in METHODS if not LABELS & set(one.needs) and not one.needs_model]
FUNCTIONS = [spec for spec in UNLABELLED if not spec.trains]
TRAINING = [spec for spec in UNLABELLED if spec.trains]
# Of every method that has such a setting; several batches, too.
FEWER = {"views": 5, "k": 3, "images": 4, "wrappers": ("{}", "a photo of {}"), "rewrites": FILE, "captions": 4}
FASTER = {"watt": {"rounds": 1}, "rlcf": {"steps": 2}}
SEED = 1


def named(specs):
    return pytest.mark.parametrize("spec", specs, ids=[spec.name for spec in specs])


@pytest.fixture(scope="module")
def adapter(tiny_hf_clip):
    return load(tiny_hf_clip)


@functools.cache
def inputs(adapter, n_images: int, n_captions: int):
    return adapter.prepare_images(images(n_images)), adapter.prepare_captions(WORDS[:n_captions])


def staged(adapter, shape, order=None) -> PreparedTask:
    """Random images and captions; ``order`` is the captions' in each group."""
    groups, m, n = shape
    image_rows, caption_rows = np.arange(groups * m).reshape(groups, m), np.arange(groups * n).reshape(groups, n)
    if order is not None:
        caption_rows = np.take_along_axis(caption_rows, order.numpy(), axis=1)
    prepared = Prepared(*inputs(adapter, groups * m, groups * n), Rows(image_rows, caption_rows))
    return PreparedTask(adapter, prepared, 1, is_global=False, all_pairs=False)


def run(spec: MethodSpec, adapter, shape, order=None, settings: Mapping[str, Any] | None = None):
    """Scores by the method, float32 [groups, images, captions]; it gets views where it says that it needs them."""
    stage = staged(adapter, shape, order)
    views = (lambda seed, cost: GivenViews(task.encoded.images.features)) if "views" in spec.needs else None
    texts = WORDS[: shape[0] * shape[2]]
    given = {"registry": build_registry(), "settings": TTMConfig()}
    task = MethodRun(stage.score(), GroupShape(*shape[1:]), (), [SEED], stage=stage, views=views, texts=texts, **given)
    few = {argument.name: FEWER[argument.name] for argument in arguments(spec) if argument.name in FEWER}
    (scores,) = task.column(spec, {**few, **FASTER.get(spec.name, {}), **(settings or {})}).scores
    return torch.from_numpy(scores.groups)


def assert_alike(spec: MethodSpec, scores: torch.Tensor, expected: torch.Tensor) -> None:
    """The same but for rounding; training amplifies it as no formula knows, so of these every clear matching."""
    if not spec.trains:
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
        return
    matching, other = (match_groups(fewer_first(each.numpy())) for each in (expected, scores))
    clear = is_clear(matching)
    assert clear.any()
    np.testing.assert_array_equal(other.captions[clear], matching.captions[clear])


@functools.cache
def usual(name: str, adapter, shape):
    """`run` with the settings that are tested, once for all tests."""
    return run(next(spec for spec in METHODS if spec.name == name), adapter, shape)


@named(UNLABELLED)
def test_a_constant_scorer_is_never_correct(spec, adapter, monkeypatch):
    """Also with features that differ: what the model says of pairs is all that may tell them apart.

    Of 2x2 groups `check_method` says so (test_contract.py), as of captions in another order and of a group alone.
    """
    monkeypatch.setattr(adapter, "logits", lambda images, captions: 0 * (images @ captions.T) + 3, raising=False)
    scores = run(spec, adapter, (4, 2, 3)).numpy()
    assert not group_score(scores).any() and not group_match(scores).any()


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        pytest.param(
            *(spec, shape),
            id=f"{spec.name}-{shape}",
            marks=[pytest.mark.slow] if spec.trains and shape in ((4, 3, 2), (4, 1, 3)) else [],
        )
        for spec in UNLABELLED
        for shape in ((4, 2, 3), (4, 3, 2), (4, 1, 3), (4, 2, 1))
    ],
)
def test_other_shapes_are_scored_or_refused_in_one_line(spec, shape, adapter):
    order = orders(shape[0], shape[2], 1)
    try:
        expected = run(spec, adapter, shape).gather(2, order[:, None].expand(-1, shape[1], -1))
    except UsageError as refused:
        assert "\n" not in str(refused)
        return
    assert_alike(spec, run(spec, adapter, shape, order), expected)


@named(TRAINING)
def test_the_first_scores_are_the_models_own_exactly_where_a_method_says_so(spec, adapter, monkeypatch):
    """Two groups are one batch of the smallest size, which is scored before or after the model is trained on it."""
    monkeypatch.setattr(rlcf, "clip_score", torch.inner)  # a random model's rewards may all be 0
    own = torch.from_numpy(staged(adapter, (2, 2, 2)).score().groups)
    unchanged = torch.allclose(run(spec, adapter, (2, 2, 2)), own, atol=1e-5, rtol=1e-5)
    assert unchanged == spec.scores_before_update


@named(METHODS)
def test_stated_settings_are_arguments(spec):
    known = {argument.name: argument.is_required for argument in arguments(spec)}  # refuses others
    assert {*spec.settings, *spec.sources} <= set(known)
    assert recorded(checked_settings(spec, {name: FEWER[name] for name in known if known[name]})).keys() <= set(known)


def other_values(argument) -> list[Any]:
    """Values that might be allowed in place of a default."""
    default, annotation = argument.default, argument.annotation
    plain = get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    given = {"references": ["task"], "train": ["norm"], "wrappers": [("{}", "the {}")]}
    if argument.name in given:
        return given[argument.name]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [1, 2, 5, 2 * default]
    if isinstance(default, float):
        return [default / 2, 2 * default, default / 10, 10 * default, 0.1, 1.0]
    return [value for value in get_args(plain) if value != default]


# Of those that train on a stream, test_online_methods.py tests the same.
OPTIONS = [
    (spec, one) for spec in UNLABELLED if spec.reset != "never" for one in arguments(spec) if one.name != "reward"
]


@pytest.mark.parametrize(
    ("spec", "argument"),
    [
        pytest.param(spec, one, id=f"{spec.name}.{one.name}", marks=[pytest.mark.slow] if spec.trains else [])
        for spec, one in OPTIONS
    ],
)
def test_every_option_changes_the_scores(spec, argument, adapter, monkeypatch):
    monkeypatch.setattr(rlcf, "clip_score", torch.inner)  # a random model's rewards may all be 0
    few = {"steps": 2} if argument.name == "weight_decay" else {}  # a shift of zero does not decay
    shape = (3, 3, 3) if argument.name.startswith("k_") else (4, 2, 2)  # of two choices there are no fewer
    expected = run(spec, adapter, shape, settings=few) if spec.trains else usual(spec.name, adapter, shape)

    def changes(value) -> bool:
        try:
            return not torch.equal(run(spec, adapter, shape, settings={**few, argument.name: value}), expected)
        except UsageError:  # not allowed, alone or with the other settings
            return False

    assert any(map(changes, other_values(argument)))


def test_methods_compute_where_the_model_is(tiny_hf_clip):
    """The stand-in multiplies no vector by a matrix, as ``mta`` does. The others that train: test_rlcf.py."""
    names = [*(spec.name for spec in FUNCTIONS if spec.name != "mta"), "watt"]
    args = {"watt": {"wrappers": ["{}", "a photo of {}"], "images": 2, "rounds": 1}}
    settings = {"methods": names, "method_args": args, "limit": 4, "bootstrap_iters": 0}
    settings["model_args"] = {"pretrained": str(tiny_hf_clip)}
    here = ttmbench.simple_evaluate("hf", "shapes_color", device="cpu", **settings).document
    with stand_in_gpu():
        there = ttmbench.simple_evaluate("hf", "shapes_color", device="cuda", **settings).document
    assert there["results"] == here["results"] and list(there["methods"]["shapes_color"]) == names
