"""Tasks as test-time methods see them, with random features."""

from __future__ import annotations

import torch

from ttmbench.methods.features import FeatureTask, ScoreTask

SCALE, BIAS = 20.0, -3.0


def units(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Random unit vectors."""
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def logits(images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """Of a model like SigLIP: with a temperature and a bias."""
    return SCALE * images @ captions.T + BIAS


def feature_task(
    groups: int = 6,
    images: int = 2,
    captions: int = 2,
    *,
    seed: int = 0,
    size: int = 8,
    same: bool = False,
    order: torch.Tensor | None = None,
    image_rows: torch.Tensor | None = None,
    caption_rows: torch.Tensor | None = None,
) -> FeatureTask:
    """Groups of items of their own, or of the given rows; with ``same`` all items have one feature.

    ``order`` is that of the captions of each group, [groups, captions].
    """
    generator = torch.Generator().manual_seed(seed)
    if image_rows is None:
        image_rows = torch.arange(groups * images).reshape(groups, images)
    if caption_rows is None:
        caption_rows = torch.arange(groups * captions).reshape(groups, captions)
    all_images = units(generator, int(image_rows.max()) + 1, size)
    all_captions = units(generator, int(caption_rows.max()) + 1, size)
    if same:
        all_images = all_captions = all_images[:1].expand(len(all_images) + len(all_captions), -1)
    if order is not None:
        caption_rows = caption_rows.gather(1, order)
    scores = torch.stack(
        [logits(*group) for group in zip(all_images[image_rows], all_captions[caption_rows], strict=True)]
    )
    return FeatureTask(
        scores,
        seed,
        model=logits,
        images=all_images,
        captions=all_captions,
        image_rows=image_rows,
        caption_rows=caption_rows,
    )


def score_task(groups: int = 6, images: int = 2, captions: int = 2, *, seed: int = 0, spread: float = 2.0) -> ScoreTask:
    """Normal scores."""
    generator = torch.Generator().manual_seed(seed)
    return ScoreTask(spread * torch.randn(groups, images, captions, generator=generator), seed)


def orders(groups: int, captions: int, seed: int) -> torch.Tensor:
    """A random order of the captions of each group, int64 [groups, captions]."""
    return torch.rand(groups, captions, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
