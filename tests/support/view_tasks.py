"""Tasks whose images have views that were not made of images: random unit features around one for each image."""

from __future__ import annotations

import numpy as np
import torch

from ttmbench.methods.features import FeatureTask

SCALE, BIAS = 20.0, -3.0


def logits(images, captions):
    return SCALE * images @ captions.T + BIAS


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
