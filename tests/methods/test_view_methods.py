"""Methods that choose among views (zero, vte, mta) against their steps in plain loops, and ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, rebuilt, view_task

from ttmbench.errors import UsageError
from ttmbench.methods.losses import confident
from ttmbench.methods.mta import bandwidths, mode, mta
from ttmbench.methods.views import views_in_groups
from ttmbench.methods.vte import vte
from ttmbench.methods.zero import zero

SHAPES = [(2, 2), (3, 3), (1, 4), (2, 5), (3, 2)]


def steps_of_zero(logits, share):
    """Kept views and votes of one image, from logits float64 [V, n] without ties."""
    entropies = []
    for view in logits:
        answers = np.exp(view - view.max())
        answers /= answers.sum()
        entropies.append(-sum(answer * np.log(answer) for answer in answers))
    kept = sorted(range(len(logits)), key=lambda view: entropies[view])[: int(len(logits) * share)]
    votes = np.zeros(logits.shape[1])
    for view in kept:
        votes[np.argmax(logits[view])] += 1
    return kept, votes, np.mean([logits[view] for view in kept], axis=0)


@pytest.mark.parametrize(("images", "captions"), SHAPES)
def test_kept_views_and_votes_are_those_of_the_published_steps(images, captions):
    task = view_task(3, images, captions)
    scores, votes_alone = zero(task), zero(task, as_published=True)
    assert scores.shape == task.scores.shape and scores.dtype == torch.float32
    for number, (_, _, logits) in enumerate(views_in_groups(task, 64, 0.5, False)):
        for image in range(images):
            kept, votes, mean = steps_of_zero(logits[image].double().numpy(), 0.3)
            assert len(kept) == 19 and confident(logits[image], 0.3).tolist() == kept
            assert votes_alone[number, image].tolist() == votes.tolist()
            expected = votes + mean / (2 * (1 + float(logits.abs().max())))
            np.testing.assert_allclose(scores[number, image], expected, atol=1e-5)


def test_captions_that_tie_in_a_view_share_its_vote():
    task = view_task(1, 1, 3)
    rows = (task.image_rows, task.caption_rows, task._views)
    twin = rebuilt(task.scores, task.all_images, task.all_captions[[0, 0, 2]], *rows)
    votes = zero(twin, as_published=True)[0, 0]
    assert votes[0] == votes[1] and votes.sum() == 19
    assert zero(twin)[0, 0, 0] == zero(twin)[0, 0, 1]


def test_one_caption_and_no_images_are_refused():
    with pytest.raises(UsageError, match="the groups have one caption"):
        zero(view_task(3, 2, 1))
    task = view_task()
    without = rebuilt(task.scores, task.all_images, task.all_captions, task.image_rows, task.caption_rows, None)
    with pytest.raises(UsageError, match="no images to make them of"):
        zero(without)


def steps_of_vte(views, captions, share, normalise):
    """Scores of one image with each caption, float64."""
    entropies = []
    for view in views:
        logits = SCALE * captions @ view + BIAS
        answers = np.exp(logits - logits.max())
        answers /= answers.sum()
        entropies.append(-sum(answer * np.log(answer) for answer in answers))
    kept = sorted(range(len(views)), key=lambda view: entropies[view])[: max(1, int(len(views) * share))]
    mean = sum(views[view] for view in kept) / len(kept)
    if normalise:
        mean = mean / np.sqrt((mean**2).sum())
    return SCALE * captions @ mean + BIAS


@pytest.mark.parametrize(("images", "captions"), [(2, 2), (3, 3), (1, 4), (3, 2)])
@pytest.mark.parametrize(("share", "normalise"), [(0.1, False), (0.1, True), (1.0, False)])
def test_scores_are_those_of_the_published_steps(images, captions, share, normalise):
    task = view_task(3, images, captions)
    scores, views = vte(task, share=share, normalise=normalise), task.views(64, 0.5, False).double().numpy()
    assert scores.shape == task.scores.shape and scores.dtype == torch.float32
    for group in range(3):
        texts = task.captions[group].double().numpy()
        for image, row in enumerate(task.image_rows[group].tolist()):
            expected = steps_of_vte(views[row], texts, share, normalise)
            np.testing.assert_allclose(scores[group, image], expected, atol=1e-5)


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


@pytest.mark.parametrize(("images", "captions"), [(1, 4), (3, 2)])
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
