"""Inverted softmax against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, feature_task

from ttmbench.errors import UsageError
from ttmbench.methods.dis import dis


def published(task, beta, references):
    """ln of exp(beta c_ij) / sum over the bank of exp(beta c_rj), all rows, in the unit of logits."""
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()
    found = np.empty(task.scores.shape)
    for g, (seen, said) in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        bank = [one for row, one in enumerate(images) if references == "task" or row not in seen]
        for i, image in enumerate(seen):
            for j, caption in enumerate(said):
                total = sum(math.exp(beta * float(one @ captions[caption])) for one in bank)
                share = math.exp(beta * float(images[image] @ captions[caption])) / total
                found[g, i, j] = SCALE / beta * math.log(share) + BIAS
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("beta", [20, 3])
@pytest.mark.parametrize("shape", [(6, 2, 2), (5, 1, 3)])
def test_published_steps_on_all_rows(shape, beta, references):
    task = feature_task(*shape)
    found = dis(task, beta=beta, direction="i2t", references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published(task, beta, references), atol=1e-5)


def test_the_other_direction_is_that_of_the_task_with_images_and_captions_exchanged():
    task, turned = feature_task(), feature_task()
    turned.all_images, turned.all_captions = task.all_captions, task.all_images
    turned.scores = task.scores.mT
    torch.testing.assert_close(dis(task, direction="t2i"), dis(turned, direction="i2t").mT)
    one_side = dis(task, direction="i2t") + dis(task, direction="t2i") - task.scores
    torch.testing.assert_close(dis(task), one_side, atol=1e-5, rtol=0)


def test_a_bank_of_one_image_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"^references=others needs at least two reference images, .* only 1: .*task$"):
        dis(feature_task(2, 1, 3))
