"""The ensemble of confident views against its steps in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, view_task

from ttmbench.methods.vte import vte


def steps(views, captions, share, normalise):
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
            np.testing.assert_allclose(scores[group, image], steps(views[row], texts, share, normalise), atol=1e-5)


def test_one_view_gives_the_scores_of_the_model():
    task = view_task(3, 2, 3)
    torch.testing.assert_close(vte(task, views=1), task.scores, atol=1e-5, rtol=0)
