"""Distribution normalisation against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, feature_task

from ttmbench.errors import UsageError
from ttmbench.methods.dn import dn

SHARED = torch.tensor([[0, 1], [1, 2], [3, 3], [4, 5]])  # an item in two groups, and one twice in a group


def published(task, strength, references):
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()
    found = np.empty(task.scores.shape)
    for g, own in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        means = []
        for features, rows in zip((images, captions), own, strict=True):
            left_out = rows if references == "others" else []
            means.append(np.mean([one for row, one in enumerate(features) if row not in left_out], axis=0))
        for i, image in enumerate(own[0]):
            for j, caption in enumerate(own[1]):
                v, t = images[image] - strength * means[0], captions[caption] - strength * means[1]
                found[g, i, j] = SCALE * float(v @ t) + BIAS
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("strength", [0.25, 0.5])
@pytest.mark.parametrize("shape", [(6, 2, 2), (4, 1, 3), (4, 3, 2), (4, 2, 1)])
def test_published_steps(shape, strength, references):
    task = feature_task(*shape)
    found = dn(task, strength=strength, references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published(task, strength, references), atol=1e-5)


def test_items_that_are_shared_or_twice_in_a_group_are_left_out_once():
    task = feature_task(image_rows=SHARED, caption_rows=SHARED.flip(1))
    np.testing.assert_allclose(dn(task), published(task, 0.25, "others"), atol=1e-5)


def test_strength_0_gives_the_scores_of_the_model():
    task = feature_task()
    torch.testing.assert_close(dn(task, strength=0), task.scores, atol=1e-5, rtol=0)


def test_too_few_references_are_refused_in_one_line():
    with pytest.raises(UsageError, match=r"^references=others needs at least two reference images, .* only 0: .*task$"):
        dn(feature_task(groups=1))
    with pytest.raises(UsageError, match=r"^references=task .* only 1: give a larger task$"):
        dn(feature_task(groups=1, images=1), references="task")


def test_models_with_several_vectors_for_an_item_are_refused():
    task = feature_task()
    task.all_images = task.all_images[:, None].expand(-1, 3, -1)
    with pytest.raises(UsageError, match="one vector for each item, and this model has several for its images"):
        dn(task)
