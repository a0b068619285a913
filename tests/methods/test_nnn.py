"""Nearest-neighbour normalisation against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.method_tasks import SCALE, feature_task

from ttmbench.errors import UsageError
from ttmbench.methods import references as references_module
from ttmbench.methods.nnn import nnn

SHARED = torch.tensor([[0, 1], [1, 2], [3, 3], [4, 5]])  # an item in two groups, and one twice in a group


def published(task, weight, k, direction, references):
    images, captions = task.all_images.double().numpy(), task.all_captions.double().numpy()

    def bias(item, queries, own):
        left_out = own if references == "others" else []
        near = sorted((float(item @ one) for row, one in enumerate(queries) if row not in left_out), reverse=True)
        return weight * np.mean(near[: min(k, len(near))])

    found = task.scores.double().numpy()
    for g, (seen, said) in enumerate(zip(task.image_rows.tolist(), task.caption_rows.tolist(), strict=True)):
        for i, image in enumerate(seen):
            for j, caption in enumerate(said):
                if direction != "t2i":
                    found[g, i, j] -= SCALE * bias(captions[caption], images, seen)
                if direction != "i2t":
                    found[g, i, j] -= SCALE * bias(images[image], captions, said)
    return found


@pytest.mark.parametrize("references", ["task", "others"])
@pytest.mark.parametrize("direction", ["i2t", "t2i", "both"])
@pytest.mark.parametrize("k", [1, 3, 128])
@pytest.mark.parametrize("shape", [(6, 2, 2), (4, 2, 3), (4, 3, 2)])
def test_published_steps(shape, k, direction, references):
    task = feature_task(*shape)
    found = nnn(task, k=k, direction=direction, references=references)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, published(task, 0.75, k, direction, references), atol=1e-5)


def test_items_that_are_shared_or_twice_in_a_group_are_left_out_once():
    task = feature_task(image_rows=SHARED, caption_rows=SHARED.flip(1))
    np.testing.assert_allclose(nnn(task, k=5), published(task, 0.75, 5, "both", "others"), atol=1e-5)


@pytest.mark.parametrize("references", ["task", "others"])
def test_pieces_change_nothing(monkeypatch, references):
    whole = nnn(feature_task(), references=references)
    monkeypatch.setattr(references_module, "_AT_ONCE", 30)
    torch.testing.assert_close(nnn(feature_task(), references=references), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("images", "captions", "left"), [(1, 3, "i2t"), (3, 1, "t2i")])
def test_a_side_with_one_item_is_dropped_and_this_is_noted(images, captions, left):
    task = feature_task(5, images, captions)
    assert torch.equal(nnn(task), nnn(feature_task(5, images, captions), direction=left))
    other = "t2i" if left == "i2t" else "i2t"
    assert task.notes == [f"direction {other} is dropped: there is one item to choose from"]
    with pytest.raises(UsageError, match=f"^direction={other} needs groups of at least two .* to choose from, not"):
        nnn(task, direction=other)


def test_captions_of_every_group_are_measured_by_the_images_of_others():
    """As in classification, where no group has captions of its own."""
    task = feature_task(5, 1, 4, caption_rows=torch.arange(4).expand(5, 4))
    np.testing.assert_allclose(nnn(task, k=2), published(task, 0.75, 2, "i2t", "others"), atol=1e-5)
