"""Listed pairs: the same scores however a model takes images, blocks kept, refusals, and log P(t) taken off."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import logsumexp
from support.small_models import MemoryBlocks

from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model import PairScorer
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.debiasing import debias, prior_for
from ttmbench.scoring.inputs import Inputs
from ttmbench.scoring.pairs import LOWEST, score_ranked_pairs
from ttmbench.types import Group, ImageRef

CAPTIONS = ["a", "bb a", "ccc", "dd"]


class Plain(PairScorer):
    """Opens images as their pairs come."""

    def __init__(self) -> None:
        self.pairs = 0

    def fingerprint(self):
        return "plain"

    def score_pairs(self, images, captions):
        self.pairs += len(captions)
        return np.array(
            [image.getpixel((0, 0))[0] + 100 * len(one) for image, one in zip(images, captions, strict=True)]
        )


class Prepared(Plain):
    """Encodes each image once."""

    def prepare_images(self, images):
        return torch.tensor([[image.getpixel((0, 0))[0]] for image in images])

    def prepare_captions(self, captions):
        return torch.tensor([[len(one)] for one in captions])

    def encode_images(self, prepared):
        return prepared

    def score_prepared(self, images, captions):
        self.pairs += len(images)
        return (images[:, 0] + 100 * captions[:, 0]).numpy()


class Many(Plain):
    """Is handed more pairs than images are open."""

    pairs_at_once = 3


def some_inputs(count: int) -> Inputs:
    def reference(number: int) -> ImageRef:
        return ImageRef(f"i{number}", lambda: Image.new("RGB", (2, 2), (number, 0, 0)))

    inputs = Inputs([Group(str(number), (reference(number),), ("x",)) for number in range(count)])
    inputs.captions = CAPTIONS
    return inputs


WANTED = np.array([[0, 1], [0, 3], [1, 0], [3, 0], [3, 1], [3, 2]])
EXPECTED = [400, 200, 101, 103, 403, 303]


@pytest.mark.parametrize("kind", [Plain, Prepared, Many])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_every_kind_of_model_scores_the_pairs_that_are_asked_for(kind, batch, monkeypatch):
    monkeypatch.setattr("ttmbench.scoring.pairs.PAIRS", 2)
    inputs, model, kept = some_inputs(5), kind(), MemoryBlocks()
    found = score_ranked_pairs(model, inputs, WANTED, BatchSizer(batch), blocks=kept)
    assert found.tolist() == EXPECTED and model.pairs == 6
    assert sorted(kept) == [0, 1, 2]
    assert inputs.digest()  # image 4 has no pair, and belongs to the data
    again = kind()
    found = score_ranked_pairs(again, some_inputs(5), WANTED, BatchSizer(batch), blocks=kept)
    assert found.tolist() == EXPECTED and again.pairs == 0


def test_a_pair_without_a_score_is_named_or_ranks_last():
    class Refusing(Plain):
        def score_pairs(self, images, captions):
            return np.array([np.nan if one == "ccc" else 1.0 for one in captions])

    model, arguments = Refusing(), (some_inputs(4), WANTED, BatchSizer(64))
    with pytest.raises(TtmbenchError, match="no score for image i3 with caption 'ccc'"):
        score_ranked_pairs(model, *arguments)
    model.refusals_are_wrong = True
    assert score_ranked_pairs(model, *arguments)[-1] == LOWEST


class Generative(Prepared):
    """Has log P(t) from noise, or from the test images."""

    def __init__(self, prior: str, alpha: float) -> None:
        super().__init__()
        self.prior, self.alpha = prior, alpha

    def log_priors(self, captions, noise_images=None):
        return np.array([-float(len(one)) for one in captions], np.float32)


def test_log_p_of_the_caption_is_taken_off():
    values = np.arange(6, dtype=np.float32)
    found = debias(prior_for(Generative("noise", 0.5), None), values, CAPTIONS, WANTED, 5)
    assert found.tolist() == [value + 0.5 * len(CAPTIONS[one]) for value, one in zip(values, WANTED[:, 1], strict=True)]
    assert prior_for(Generative("noise", 0.0), None) is prior_for(Plain(), 3) is None


def test_a_mean_over_all_images_needs_every_pair():
    model = prior_for(Generative("test_images", 1.0), None)
    with pytest.raises(UsageError, match="of chosen candidates not all are scored; use prior=noise"):
        debias(model, np.zeros(6, np.float32), CAPTIONS, WANTED, 5)
    every = np.indices((3, 4)).reshape(2, -1).T
    values = np.random.default_rng(0).normal(size=12).astype(np.float32)
    table = values.reshape(3, 4) - (logsumexp(values.reshape(3, 4).astype(np.float64), axis=0) - np.log(3))
    assert np.allclose(debias(model, values, CAPTIONS, every, 3), table.reshape(-1), atol=1e-6)
