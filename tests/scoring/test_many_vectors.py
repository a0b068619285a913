"""Late interaction: many vectors for a caption, padded with zero rows, and what needs one vector refuses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.model import DualEncoder
from ttmbench.testing import check_adapter


class Late(DualEncoder):
    """A vector for each of four columns of an image and for each word; each word counts its best column."""

    vectors = "many"

    def fingerprint(self):
        return "late"

    def prepare_images(self, images):
        return torch.stack([torch.tensor(np.asarray(image.resize((4, 1)))[0] / 255.0).float() for image in images])

    def prepare_captions(self, captions):
        return [[float(sum(map(ord, word)) % 97) for word in caption.split()] for caption in captions]

    def encode_images(self, prepared):
        return prepared

    def encode_captions(self, prepared):
        rows = [torch.tensor([[one, one % 7, one % 5] for one in words]) / 97 for words in prepared]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # to the longest of this batch alone

    def logits(self, images, captions):
        return torch.einsum("iqd,ctd->icqt", images, captions).amax(dim=2).sum(dim=-1)


def test_captions_of_other_lengths_are_padded_across_batches():
    assert "batch size changes no score" in check_adapter(Late())
    settings = {"limit": 6, "bootstrap_iters": 0, "device": "cpu"}
    first, second = (
        ttmbench.simple_evaluate(Late(), "shapes_replace", batch_size=size, **settings).scores["shapes_replace"]
        for size in (1, 64)
    )
    scores = first["none"][0].groups
    np.testing.assert_allclose(scores, second["none"][0].groups, rtol=1e-6)
    assert np.ptp(scores, axis=2).min() > 1e-3, "captions matter"


@pytest.mark.parametrize(("task", "methods"), [("shapes_color", "dn"), ("shapes_order", None), ("shapes_naming", None)])
def test_what_needs_one_vector_is_refused(task, methods):
    with pytest.raises(UsageError, match=r"one vector|many vectors"):
        ttmbench.simple_evaluate(Late(), task, methods=methods, limit=3, bootstrap_iters=0)
