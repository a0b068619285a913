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


def some_groups(task: FeatureTask, chosen) -> FeatureTask:
    """The task with these groups alone."""
    rows = torch.tensor(chosen)
    parts = task.scores[rows], task.all_images, task.all_captions, task.image_rows[rows], task.caption_rows[rows]
    return rebuilt(*parts, task._views)


def doubled(task: FeatureTask) -> FeatureTask:
    """The task in float64."""
    parts = task.scores.double(), task.all_images.double(), task.all_captions.double()
    return rebuilt(*parts, task.image_rows, task.caption_rows, lambda *settings: task._views(*settings).double())


def turned_captions(task: FeatureTask) -> FeatureTask:
    """The task with the captions of every group in reverse order."""
    parts = task.scores.flip(2), task.all_images, task.all_captions, task.image_rows, task.caption_rows.flip(1)
    return rebuilt(*parts, task._views)


def constant_task(groups=3, images=2, captions=2) -> FeatureTask:
    """A task whose images are all the same, and so are its captions: a scorer that knows nothing."""
    task = view_task(groups, images, captions)
    one_image, one_caption = task.all_images[:1], task.all_captions[:1]
    rows = torch.zeros_like(task.image_rows), torch.zeros_like(task.caption_rows)
    scores = torch.full_like(task.scores, float(logits(one_image, one_caption)))
    return rebuilt(scores, one_image, one_caption, *rows, lambda count, *_: one_image[:, None].expand(-1, count, -1))
