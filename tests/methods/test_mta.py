"""MTA against its steps in plain loops: bandwidths, and weights and mode after every round."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, view_task

from ttmbench.errors import UsageError
from ttmbench.methods.mta import bandwidths, mode, mta

PUBLISHED = {"nearest": 18, "lambda_y": 0.2, "lambda_q": 4.0, "steps": 5}


def softmax(values):
    raised = np.exp(values - np.max(values))
    return raised / raised.sum()


def squared(first, second):
    return sum((one - other) ** 2 for one, other in zip(first, second, strict=True))


def plain_bandwidths(views, nearest):
    found = []
    for k in range(len(views)):
        others = sorted(squared(views[k], views[other]) for other in range(len(views)) if other != k)
        found.append(0.5 * sum(others[:nearest]) / nearest)
    return np.array(found)


def plain_rounds(views, answers, nearest, lambda_y, lambda_q, rounds, steps):
    """Mode and weights after each round, float64."""
    widths, count = plain_bandwidths(views, nearest), len(views)

    def kernel(at):
        return np.array([math.exp(-squared(views[k], at) / (2 * widths[k])) for k in range(count)])

    at, y, after = views[0], np.full(count, 1 / count), []
    for _ in range(rounds):
        dense = kernel(at)
        for _ in range(steps):
            before = y
            pull = [sum((answers[k] @ answers[other]) * y[other] for other in range(count)) for k in range(count)]
            y = softmax([(dense[k] + lambda_q * pull[k]) / lambda_y for k in range(count)])
            if math.sqrt(squared(y, before)) < 1e-6:
                break
        for _ in range(steps):
            before, dense = at, kernel(at)
            total = sum(dense[k] * y[k] * views[k] for k in range(count))
            at = total / math.sqrt((total**2).sum())
            if math.sqrt(squared(at, before)) < 1e-6:
                break
        after.append((at, y))
    return after


def views_and_answers(task, group=0, image=0, count=64):
    views = task.views(count, 0.5, False)[task.image_rows[group, image]]
    return views, task.logits(views, task.captions[group]).softmax(dim=-1)


@pytest.mark.parametrize(("captions", "spread"), [(2, 0.3), (4, 0.1), (3, 0.8)])
def test_bandwidths_weights_and_mode_after_each_round_are_those_of_the_published_steps(captions, spread):
    views, answers = views_and_answers(view_task(2, 2, captions, spread=spread))
    exact = views.double().numpy(), answers.double().numpy()
    np.testing.assert_allclose(bandwidths(views, 18), plain_bandwidths(exact[0], 18), rtol=1e-5)
    expected = plain_rounds(*exact, rounds=5, **PUBLISHED)
    for rounds in range(1, 6):
        at, y = mode(views, answers, rounds=rounds, **PUBLISHED)
        np.testing.assert_allclose(at, expected[rounds - 1][0], atol=2e-6)
        np.testing.assert_allclose(y, expected[rounds - 1][1], atol=2e-6)


@pytest.mark.parametrize(("images", "captions"), [(2, 2), (1, 4), (3, 2)])
def test_scores_are_logits_of_the_modes(images, captions):
    task = view_task(2, images, captions)
    scores = mta(task)
    assert scores.shape == task.scores.shape and scores.dtype == torch.float32
    for group in range(2):
        texts = task.captions[group].double().numpy()
        for image in range(images):
            views, answers = (part.double().numpy() for part in views_and_answers(task, group, image))
            at, _ = plain_rounds(views, answers, rounds=5, **PUBLISHED)[-1]
            np.testing.assert_allclose(scores[group, image], SCALE * texts @ at + BIAS, atol=SCALE * 2e-6)


def test_equal_views_have_their_own_feature_as_mode():
    views, answers = views_and_answers(view_task(), count=8)
    same = views[:1].expand(8, -1)
    at, y = mode(same, answers[:1].expand(8, -1), rounds=5, **{**PUBLISHED, "nearest": 2})
    torch.testing.assert_close(at, views[0])
    torch.testing.assert_close(y, torch.full((8,), 1 / 8))
    half = torch.cat([same[:4], views[1:5]])  # of some of them only
    assert all(bool(part.isfinite().all()) for part in mode(half, answers, rounds=5, **{**PUBLISHED, "nearest": 2}))


def test_a_mode_far_from_every_view_is_finite():
    views = torch.eye(8).repeat_interleave(2, dim=0) + 1e-4 * torch.eye(16)[:, :8]
    at, y = mode(torch.nn.functional.normalize(views, dim=1), torch.full((16, 2), 0.5), 1, 0.2, 4.0, 5, 5)
    assert bool(at.isfinite().all() and y.isfinite().all()) and float(at.norm()) == pytest.approx(1)


def test_too_few_views_and_one_caption_are_refused():
    with pytest.raises(UsageError, match=r"share=0\.3 needs at least 5 views, not 4"):
        mta(view_task(), views=4)
    assert mta(view_task(), views=5).shape == (4, 2, 2)
    with pytest.raises(UsageError, match="needs at least 11 views, not 10"):
        mta(view_task(), views=10, share=0.1)
    with pytest.raises(UsageError, match="the groups have one caption"):
        mta(view_task(3, 2, 1))
