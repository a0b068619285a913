"""A model of two linear layers and tasks of random numbers, on which TTM takes milliseconds."""

from __future__ import annotations

import numpy as np
import torch

from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.scoring.prepare import PreparedTask


class Towers(torch.nn.Module):
    """Two linear layers, dropout in training, and what each batch held."""

    trains_in_parts = True

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.image, self.caption = torch.nn.Linear(4, 5), torch.nn.Linear(4, 5)
        self.drop, self.seen = torch.nn.Dropout(dropout), []

    def prepare_images(self, images): ...

    def prepare_captions(self, captions): ...

    def encode_images(self, prepared):
        return self.image(prepared).detach()

    def encode_captions(self, prepared):
        return self.caption(prepared).detach()

    def logits(self, images, captions):
        return (images @ captions.T).detach()

    def train_images(self, prepared):
        return self.drop(self.image(prepared))

    def train_captions(self, prepared):
        return self.caption(prepared)

    def loss_of(self, images, captions):
        scores, own = images @ captions.T, torch.arange(len(images))
        return torch.nn.functional.cross_entropy(scores, own)

    def matching_loss(self, images, captions):
        self.seen.append(len(images))
        return self.loss_of(self.train_images(images), self.train_captions(captions))


def stage_of(groups, images=2, captions=2, is_global=False, model=None, size=64, enlarged=None) -> PreparedTask:
    rng = np.random.default_rng(1)
    sides = [torch.from_numpy(rng.normal(size=(groups * each, 4)).astype(np.float32)) for each in (images, captions)]
    rows = Rows(*(np.arange(groups * each).reshape(groups, each) for each in (images, captions)))
    prepared = Prepared(*sides, rows, enlarged)
    return PreparedTask(model or Towers(), prepared, size, is_global, is_global)
