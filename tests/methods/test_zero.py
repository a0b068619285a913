"""ZERO against its steps in plain loops, ties, and what every method that sees views must hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import rebuilt, view_task

from ttmbench.errors import UsageError
from ttmbench.methods.losses import confident
from ttmbench.methods.views import views_in_groups
from ttmbench.methods.zero import zero

SHAPES = [(2, 2), (3, 3), (1, 4), (2, 5), (3, 2)]


def steps(logits, share):
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
            kept, votes, mean = steps(logits[image].double().numpy(), 0.3)
            assert len(kept) == 19 and confident(logits[image], 0.3).tolist() == kept
            assert votes_alone[number, image].tolist() == votes.tolist()
            expected = votes + mean / (2 * (1 + float(logits.abs().max())))
            np.testing.assert_allclose(scores[number, image], expected, atol=1e-5)


def test_the_tie_break_orders_equal_votes_and_no_others():
    task = view_task(30, 3, 3, spread=0.6)
    scores, votes = zero(task), zero(task, as_published=True)
    for axis in (1, 2):
        more = votes.unsqueeze(axis) > votes.unsqueeze(axis + 1)
        assert (scores.unsqueeze(axis) > scores.unsqueeze(axis + 1))[more].all()
    equal = (votes[:, :, 0] == votes[:, :, 1]) & (votes[:, :, 0] > 0)
    assert equal.any() and (scores[:, :, 0] != scores[:, :, 1])[equal].all()


def test_captions_that_tie_in_a_view_share_its_vote():
    task = view_task(1, 1, 3)
    twin = rebuilt(
        task.scores, task.all_images, task.all_captions[[0, 0, 2]], task.image_rows, task.caption_rows, task._views
    )
    votes = zero(twin, as_published=True)[0, 0]
    assert votes[0] == votes[1] and votes.sum() == 19
    assert zero(twin)[0, 0, 0] == zero(twin)[0, 0, 1]


def test_in_pairs_of_captions_the_group_score_of_votes_is_their_text_score():
    votes = zero(view_task(40, 2, 2, spread=0.5), as_published=True)
    text = (votes[:, 0, 0] > votes[:, 0, 1]) & (votes[:, 1, 1] > votes[:, 1, 0])
    image = (votes[:, 0, 0] > votes[:, 1, 0]) & (votes[:, 1, 1] > votes[:, 0, 1])
    assert torch.equal(text, text & image) and 0 < text.sum() < len(text)


def test_one_view_is_kept_however_few_there_are():
    task = view_task()
    assert torch.equal(zero(task, views=1, share=0.1).argmax(2), task.scores.argmax(2))


def test_one_caption_and_no_images_are_refused():
    with pytest.raises(UsageError, match="the groups have one caption"):
        zero(view_task(3, 2, 1))
    task = view_task()
    without = rebuilt(task.scores, task.all_images, task.all_captions, task.image_rows, task.caption_rows, None)
    with pytest.raises(UsageError, match="no images to make them of"):
        zero(without)
