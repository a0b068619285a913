"""Small tasks as training methods get them: random images, captions of few words, and views that are given."""

from __future__ import annotations

import copy
import functools

import numpy as np
import torch
from PIL import Image

from ttmbench.data.sources.rendered import COLORS, SHAPES
from ttmbench.methods.features import FeatureTask
from ttmbench.methods.task import TrainingTask
from ttmbench.scoring.inputs import Prepared, Rows

WORDS = [f"a {color} {shape}" for color in COLORS for shape in SHAPES]


def load(folder):
    """A model of the Hub's own format, on the CPU in float32; a copy of one that is read once a process."""
    return copy.deepcopy(_read(str(folder)))


@functools.cache
def _read(folder: str):
    from ttmbench.model_adapters import hf

    return hf.load(pretrained=folder, device="cpu", dtype="fp32")


def images(count: int, side: int = 32) -> list[Image.Image]:
    """Random pixels."""
    drawn = np.random.default_rng(5).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in drawn]


class GivenViews:
    """Views of each image: the plain one, and noise around it."""

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features

    def __call__(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        drawn = torch.randn(
            len(self.features), count, *self.features.shape[1:], generator=torch.Generator().manual_seed(3)
        )
        noise = 0.5 * (1 + crop_scale + flip)
        views = self.features[:, None] + noise * drawn / drawn.norm(dim=-1, keepdim=True)
        views[:, 0] = self.features
        return views / views.norm(dim=-1, keepdim=True)


def training_task(
    adapter,
    groups: int = 3,
    m: int = 2,
    n: int = 2,
    *,
    only: list[int] | None = None,
    resets: bool = True,
    seed: int = 0,
) -> TrainingTask:
    """A task of so many groups, every image and caption in one of them; ``only`` some of its groups."""
    texts = WORDS[: groups * n]
    prepared = Prepared(
        adapter.prepare_images(images(groups * m)),
        adapter.prepare_captions(texts),
        Rows(np.arange(groups * m).reshape(groups, m), np.arange(groups * n).reshape(groups, n)),
    )
    with torch.no_grad():
        # One by one, so that a group's features do not depend on what is encoded with them.
        one_by_one = [adapter.encode_images(adapter.prepare_images([image])) for image in images(groups * m)]
        all_images, all_captions = torch.cat(one_by_one), adapter.encode_captions(prepared.captions)
    rows = [torch.from_numpy(side)[only or slice(None)] for side in (prepared.rows.images, prepared.rows.captions)]
    scores = torch.stack([adapter.logits(all_images[i], all_captions[j]).detach() for i, j in zip(*rows, strict=True)])
    features = FeatureTask(
        scores,
        seed,
        model=adapter.logits,
        images=all_images,
        captions=all_captions,
        image_rows=rows[0],
        caption_rows=rows[1],
        views=GivenViews(all_images),
    )
    return TrainingTask(features, seed, adapter=adapter, prepared=prepared, resets=resets, texts=texts)


def scores_of(task: TrainingTask, steps) -> torch.Tensor:
    """The scores of all groups after the last turn."""
    scores = torch.full_like(task.scores, torch.nan)
    for step in steps:
        scores[step.groups] = step.scores
    return scores
