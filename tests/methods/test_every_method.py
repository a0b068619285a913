"""What holds of every method that ships and reads no labels, whichever that is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, get_args

import pytest
import torch
from support.method_tasks import orders
from support.training_tasks import load, scores_of, training_task

from ttmbench.errors import UsageError
from ttmbench.methods.settings import arguments, checked_settings
from ttmbench.methods.task import FeatureTask, ScoreTask, TrainingTask
from ttmbench.metrics import group_match, group_score
from ttmbench.plugins.methods import METHODS
from ttmbench.plugins.registry import load_target
from ttmbench.types import MethodSpec

LABELS = {"labels", "random_labels"}
# TTM has its own protocol, and tests/ttm.
UNLABELLED = [one for one in METHODS if not LABELS & set(one.needs) and not one.target.startswith("ttmbench.ttm.")]
EPISODIC = [
    spec for spec in UNLABELLED if spec.reset == "group" or (not spec.trains and spec.scope in ("row", "group"))
]
FUNCTIONS = [spec for spec in UNLABELLED if not spec.trains]
TRAINING = [spec for spec in UNLABELLED if spec.trains]
FEWER = {
    "views": 8,
    "k": 3,
    "images": 4,
    "wrappers": ("{}", "a photo of {}"),
}  # for every method that has such a setting; several batches, too

SHAPES = [(4, 2, 2), (4, 2, 3)]


def named(specs):
    return pytest.mark.parametrize("spec", specs, ids=[spec.name for spec in specs])


@pytest.fixture(scope="module")
def adapter(tiny_hf_clip):
    return load(tiny_hf_clip)


def needed(spec: MethodSpec, task: TrainingTask) -> ScoreTask:
    """The task as this method gets it: without what it does not say it needs."""
    if "views" not in spec.needs:
        task._views = None
    if spec.trains:
        return task
    if not spec.takes_features:
        return ScoreTask(task.scores, 0)
    return FeatureTask(
        task.scores,
        0,
        model=task._logits,
        images=task.all_images,
        captions=task.all_captions,
        image_rows=task.image_rows,
        caption_rows=task.caption_rows,
        views=task._views,
    )


def run(spec: MethodSpec, adapter, shape, order=None, only=None, settings: Mapping[str, Any] | None = None):
    """Scores by the method; ``order`` is that of the captions of each group, ``only`` are the groups that there are."""
    before = copy.deepcopy(adapter.model.state_dict())
    task = training_task(adapter, *shape, only=only, resets=spec.reset in ("group", "batch"))
    if order is not None:
        task.caption_rows = task.caption_rows.gather(1, order)
        task.scores = task.scores.gather(2, order[:, None].expand(-1, shape[1], -1))
    few = {argument.name: FEWER[argument.name] for argument in arguments(spec) if argument.name in FEWER}
    given = checked_settings(spec, {**few, **(settings or {})})
    try:
        found = load_target(spec.target)(needed(spec, task), **given)
        scores = scores_of(task, found) if spec.trains else found
    finally:
        adapter.model.load_state_dict(before)
    assert scores.shape == task.scores.shape and scores.dtype == torch.float32 and scores.isfinite().all()
    return scores


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", [1, 2])
@named(UNLABELLED)
def test_captions_in_another_order_give_the_scores_in_that_order(spec, seed, shape, adapter):
    order = orders(shape[0], shape[2], seed)
    expected = run(spec, adapter, shape).gather(2, order[:, None].expand(-1, shape[1], -1))
    torch.testing.assert_close(run(spec, adapter, shape, order), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@named(UNLABELLED)
def test_a_constant_scorer_is_never_correct(spec, shape, adapter, monkeypatch):
    """Also with features that differ: what the model says of pairs is all that may tell them apart."""
    monkeypatch.setattr(adapter, "logits", lambda images, captions: 0 * (images @ captions.T) + 3, raising=False)
    scores = run(spec, adapter, shape).numpy()
    assert not group_score(scores).any() and not group_match(scores).any()


@named(EPISODIC)
def test_an_episodic_method_gives_equal_bits_alone_and_after_another_group(spec, adapter):
    together = run(spec, adapter, (4, 2, 2))
    for group in range(4):
        assert torch.equal(run(spec, adapter, (4, 2, 2), only=[group])[0], together[group])


@named([spec for spec in UNLABELLED if not spec.order_dependent])
def test_groups_in_another_order_give_the_scores_in_that_order(spec, adapter):
    order = [2, 0, 3, 1]
    expected = run(spec, adapter, (4, 2, 2))[order]
    torch.testing.assert_close(run(spec, adapter, (4, 2, 2), only=order), expected, atol=1e-4, rtol=1e-4)


@named(TRAINING)
def test_the_first_scores_are_the_models_own_exactly_where_a_method_says_so(spec, adapter):
    """Two groups are one batch of the smallest size, which is scored before or after the model is trained on it."""
    own = training_task(adapter, 2, 2, 2).scores
    unchanged = torch.allclose(run(spec, adapter, (2, 2, 2)), own, atol=1e-5, rtol=1e-5)
    assert unchanged == spec.scores_before_update


@named(METHODS)
def test_stated_settings_are_arguments(spec):
    known = [argument.name for argument in arguments(spec)]  # refuses others
    assert {*spec.settings, *spec.sources} <= set(known)
    assert checked_settings(spec, {}).keys() == set(known)


def other_values(argument) -> list[Any]:
    """Values that might be allowed in place of a default."""
    default, annotation = argument.default, argument.annotation
    plain = get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [1, 2, 5, 2 * default]
    if isinstance(default, float):
        return [default / 2, 2 * default, default / 10, 10 * default, 0.1, 1.0]
    return [value for value in get_args(plain) if value != default]


OPTIONS = [(spec, argument) for spec in FUNCTIONS for argument in arguments(spec)]


@pytest.mark.parametrize(("spec", "argument"), OPTIONS, ids=[f"{spec.name}.{one.name}" for spec, one in OPTIONS])
def test_every_option_of_a_function_changes_its_scores(spec, argument, adapter):
    usual = run(spec, adapter, (4, 2, 2))

    def changes(value) -> bool:
        try:
            return not torch.equal(run(spec, adapter, (4, 2, 2), settings={argument.name: value}), usual)
        except UsageError:  # not allowed, alone or with the other settings
            return False

    assert any(map(changes, other_values(argument)))
