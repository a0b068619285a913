"""Tasks as test-time methods see them, with random features, and views that are noise around them."""

from __future__ import annotations

import numpy as np
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
    image_rows: torch.Tensor | None = None,
    caption_rows: torch.Tensor | None = None,
) -> FeatureTask:
    """Groups of items of their own, or of the given rows."""
    generator = torch.Generator().manual_seed(0)
    if image_rows is None:
        image_rows = torch.arange(groups * images).reshape(groups, images)
    if caption_rows is None:
        caption_rows = torch.arange(groups * captions).reshape(groups, captions)
    all_images = units(generator, int(image_rows.max()) + 1, 8)
    all_captions = units(generator, int(caption_rows.max()) + 1, 8)
    scores = torch.stack(
        [logits(*group) for group in zip(all_images[image_rows], all_captions[caption_rows], strict=True)]
    )
    return rebuilt(scores, all_images, all_captions, image_rows, caption_rows, None)


def score_task(groups: int = 6, images: int = 2, captions: int = 2, *, spread: float = 2.0) -> ScoreTask:
    """Normal scores."""
    generator = torch.Generator().manual_seed(0)
    return ScoreTask(spread * torch.randn(groups, images, captions, generator=generator), 0)


def orders(groups: int, captions: int, seed: int) -> torch.Tensor:
    """A random order of the captions of each group, int64 [groups, captions]."""
    return torch.rand(groups, captions, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)


def unit(values) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(np.asarray(values, dtype=np.float32)), dim=-1)


def view_task(groups=4, images=2, captions=2, dim=12, spread=0.3, seed=0) -> FeatureTask:
    """A task in which every image and caption occurs once; the number of views, crop_scale and flip change its views.

    Views of a group's images do not depend on how many groups there are.
    """
    rng = np.random.default_rng(seed)
    plain = unit(rng.normal(size=(groups * images, dim)))
    texts = unit(rng.normal(size=(groups * captions, dim)))

    def views(count, crop_scale, flip):
        made = [plain[:, None]]
        for row in range(len(plain)):
            noise = np.random.default_rng([seed, row, int(100 * crop_scale), flip]).normal(size=(count - 1, dim))
            made.append(unit(plain[row].numpy() + spread * noise))
        return torch.cat([made[0], torch.stack(made[1:])], dim=1)

    image_rows = torch.arange(groups * images).reshape(groups, images)
    caption_rows = torch.arange(groups * captions).reshape(groups, captions)
    scores = torch.stack([logits(plain[i], texts[j]) for i, j in zip(image_rows, caption_rows, strict=True)])
    return rebuilt(scores, plain, texts, image_rows, caption_rows, views)


def rebuilt(scores, images, captions, image_rows, caption_rows, views) -> FeatureTask:
    return FeatureTask(
        scores,
        0,
        model=logits,
        images=images,
        captions=captions,
        image_rows=image_rows,
        caption_rows=caption_rows,
        views=views,
    )
