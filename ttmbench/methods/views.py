"""Views of a task's images: random crops, encoded once for all methods with the same settings.

Views must not change which caption is correct. So crops cover at least half of the image unless a method's setting
overrides this, are mirrored only on request (mirroring exchanges left and right), and colours are never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field

from ttmbench._util.console import progress_bar
from ttmbench._util.images import resized
from ttmbench._util.third_party import phase
from ttmbench.errors import UsageError
from ttmbench.methods.features import FeatureTask, ScoreTask
from ttmbench.methods.losses import Direction, confident, directions
from ttmbench.methods.training import Cost
from ttmbench.model import DualEncoder
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.dual_encoder import encode_rows
from ttmbench.scoring.inputs import Inputs, concatenate, pixels_digest, tensors_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from ttmbench.model import Batch

# Types of method settings, with their allowed values.
ViewCount = Annotated[int, Field(ge=1)]
CropScale = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]

RATIOS = (3 / 4, 4 / 3)  # of a crop's width to its height
_TRIES = 10
KEPT_BYTES = 2 << 30  # bytes of features, beyond which the oldest are dropped and recomputed when needed
ViewSettings = tuple[int, int, float, bool]  # seed, count, crop_scale, flip


@dataclass
class Views:
    """Creates and encodes views of a task's images: a `ttmbench.methods.features.ViewSource`.

    The first view of an image is the plain image, preprocessed by the model. The others are random crops
    (`random_crop`), resized to the model's input size before preprocessing. A view depends on the image's pixels and
    the seed only, not on the task or the order of its images, and a smaller count gives the first views of a larger
    count. To make this exact to the last bit, the views of each image are encoded as a separate batch.
    """

    adapter: DualEncoder
    inputs: Inputs  # of the task
    seed: int  # of the crops
    batch_size: int | BatchSizer  # views encoded at a time
    cost: Cost = field(default_factory=Cost)  # of a method's views, also if they were created for another method
    # finished views by their settings, and the seconds that they took; shared by several objects
    made: dict[ViewSettings, tuple[torch.Tensor, float]] = field(default_factory=dict)
    _counted: set[ViewSettings] = field(default_factory=set)

    def __call__(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        """Features of ``count`` views of each image, the plain one included: float32 [images, count, d].

        A crop has at least the fraction ``crop_scale`` of the image's area, and is mirrored with probability one half
        if ``flip``. UsageError for an invalid count or area.
        """
        if count < 1 or not 0 < crop_scale <= 1:
            raise UsageError(
                f"views: at least one, of more than 0 and at most all of the area, not {count} and {crop_scale}"
            )
        key = (self.seed, count, crop_scale, flip)
        is_here = key in self.made
        if not is_here:
            clock = time.perf_counter()
            self.made[key] = self._encoded(count, crop_scale, flip), time.perf_counter() - clock
            while len(self.made) > 1 and sum(features.nbytes for features, _ in self.made.values()) > KEPT_BYTES:
                del self.made[next(iter(self.made))]
        features, seconds = self.made[key]
        if key not in self._counted:
            self._counted.add(key)
            rows = len(self.inputs.images) * (count - 1)  # the plain images are counted with the task
            self.cost.update(views=rows, image_rows=rows, view_seconds=seconds, shared_seconds=seconds * is_here)  # type: ignore[call-overload]
        return features

    def _encoded(self, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
        sizer = BatchSizer.of(self.batch_size)
        decoded, count_images = 2 * torch.get_num_threads(), len(self.inputs.images)  # two for each thread

        def prepared(opened: list[Image]) -> Batch:
            (image,) = opened
            generator = np.random.default_rng([self.seed, int(pixels_digest(image), 16)])
            plain = self.adapter.prepare_images([image])
            size = input_size(plain)
            crops = [random_crop(image, size, crop_scale, flip, generator) for _ in range(count - 1)]
            return concatenate([plain, self.adapter.prepare_images(crops)]) if crops else plain

        one_each = [np.array([row]) for row in range(count_images)]
        features = []
        with (
            torch.no_grad(),
            progress_bar(count_images, "encoding views", "images") as shown,
            closing(self.inputs.made_of(self.adapter, one_each, prepared, decoded)) as coming,
        ):
            for _ in range(count_images):
                with phase("prepare"):
                    (batch,) = next(coming)
                features.append(encode_rows(self.adapter.encode_images, batch, count, sizer, "views").float())
                shown.update()
            return torch.stack(features)


def input_size(prepared: Batch) -> tuple[int, int] | None:
    """Width and height of the model's input images; None for a model without a fixed input size."""
    pixels = [tensor for tensor in tensors_of(prepared) if tensor.ndim == 4]
    return (pixels[0].shape[3], pixels[0].shape[2]) if pixels else None


def random_crop(
    image: Image, size: tuple[int, int] | None, scale: float, flip: bool, generator: np.random.Generator
) -> Image:
    """A random crop of an image (`crop_box`), resized, and with ``flip`` mirrored half of the time.

    The crop is the same with and without ``flip``. Without a size it is not resized.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    crop = image.crop(crop_box(image.size, scale, generator))
    mirrored = generator.random() < 0.5
    if size is not None:  # bicubic, like the preprocessing of nearly every model; torchvision's crops are bilinear
        crop = resized(crop, size, Pillow.Resampling.BICUBIC)
    return ImageOps.mirror(crop) if flip and mirrored else crop


def crop_box(size: tuple[int, int], scale: float, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop, drawn as torchvision's ``RandomResizedCrop`` does.

    Its area is a fraction of the image's area, uniform in [scale, 1]; the logarithm of its aspect ratio is uniform in
    ln 3/4 to ln 4/3; it is drawn again, up to ten times, until it fits. If it never fits, as for long images, the crop
    has the full short side and the drawn fraction of the long side; torchvision instead always takes the same central
    piece, which may have less area.
    """
    width, height = size
    for _ in range(_TRIES):
        area = width * height * generator.uniform(scale, 1)
        ratio = math.exp(generator.uniform(*np.log(RATIOS)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide, high = (round(area / height), height) if width > height else (width, round(area / width))
    top, left = int(generator.integers(height - high + 1)), int(generator.integers(width - wide + 1))
    return left, top, left + wide, top + high


def check_directions(task: ScoreTask, direction: Direction) -> None:
    """Raises a UsageError if answers have no entropy, or if no view can be more confident than another."""
    m, n = task.scores.shape[1:]
    rows, columns = directions(direction, m, n)
    if n == 1:
        raise UsageError(f"views are selected by an image's answer among captions, but a {m}x{n} group has one caption")
    if direction == "both" and not (rows and columns):
        task.notes.append(f"direction=both: in a {m}x{n} group there is one image, so only its own answer counts")


def view_logits(task: FeatureTask, views: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """Scores of every view: [groups, m, V, d] and [groups, n, d] -> [groups, m, V, n]."""
    groups, m, count, _ = views.shape
    return task.logits(views.flatten(1, 2), captions).reshape(groups, m, count, -1)


def confident_views(task: FeatureTask, views: torch.Tensor, captions: torch.Tensor, share: float) -> torch.Tensor:
    """Features of the most confident views of each image, most confident first: [groups, m, V, d] -> the same, fewer.

    A view's confidence is the entropy of its answer among the group's captions, [groups, n, d].
    """
    positions = confident(view_logits(task, views, captions).detach(), share)
    return views.take_along_dim(positions[..., None], dim=2)


def views_in_groups(
    task: FeatureTask, count: int, crop_scale: float, flip: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each group: its images' views [images, count, d], captions [captions, d], logits [images, count, captions].

    UsageError for groups of one caption: every view gives it all of the probability.
    """
    if task.scores.shape[2] < 2:
        raise UsageError("views are weighted by their answers among several captions, but the groups have one caption")
    features = task.views(count, crop_scale, flip)
    for image_rows, captions in zip(task.image_rows, task.captions, strict=True):
        views = features[image_rows]
        yield views, captions, view_logits(task, views[None], captions[None])[0]


def views_of(adapter: DualEncoder, inputs: Inputs, batch_size: int | BatchSizer) -> Callable[[int, Cost], Views]:
    """Creates the views of a task's images for a seed and a method's cost; methods share encoded views."""
    made: dict[ViewSettings, tuple[torch.Tensor, float]] = {}
    return lambda seed, cost: Views(adapter, inputs, seed, batch_size, cost, made)
