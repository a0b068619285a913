"""Views of images: which crops are drawn, on what they depend, how often images are opened; and entropies."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from support.method_tasks import rebuilt, view_task
from support.stand_in_gpu import stand_in_gpu
from support.training_tasks import load, training_task
from torchvision.transforms import RandomResizedCrop

from ttmbench.errors import DataError, UsageError
from ttmbench.methods import views as views_module
from ttmbench.methods.losses import confident, entropy, marginal_entropy
from ttmbench.methods.mta import mta
from ttmbench.methods.training import Cost
from ttmbench.methods.views import crop_box, random_crop, views_of
from ttmbench.methods.vte import vte
from ttmbench.methods.zero import zero
from ttmbench.model import DualEncoder
from ttmbench.model_adapters import hf
from ttmbench.scoring.dual_encoder import encode
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.types import Group, ImageRef

SIZES = [(48, 48), (60, 40), (50, 70), (200, 40)]


class Pixels(DualEncoder):
    """A model whose feature is a product of 8x8 pixels with random numbers; it keeps the images it was given."""

    def __init__(self) -> None:
        self.seen, self.batches = [], []
        self.weights = torch.from_numpy(np.random.default_rng(5).normal(size=(192, 6)).astype(np.float32))

    def fingerprint(self):
        return "pixels"

    def prepare_images(self, images):
        self.seen += [np.asarray(image) for image in images]
        pixels = [np.asarray(image.resize((8, 8)), dtype=np.float32).transpose(2, 0, 1) for image in images]
        return torch.from_numpy(np.stack(pixels))

    def prepare_captions(self, captions): ...

    def encode_images(self, prepared):
        self.batches.append(len(prepared))
        return torch.nn.functional.normalize(prepared.flatten(1) @ self.weights, dim=1)

    def encode_captions(self, prepared): ...

    def logits(self, images, captions): ...


class NoFixedSize(Pixels):
    """A model that takes images of any size, as rows of another kind."""

    def prepare_images(self, images):
        return {"patches": super().prepare_images(images).flatten(1)}

    def encode_images(self, prepared):
        return super().encode_images(prepared["patches"])


class Counted:
    """Images of random pixels, with the names of those that were opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def image(self, number: int) -> ImageRef:
        return ImageRef(f"{number}.png", partial(self._open, number), read=bytes)  # threads may open it

    def _open(self, number: int) -> Image.Image:
        self.opened.append(f"{number}.png")
        wide, high = SIZES[number % len(SIZES)]
        return Image.fromarray(np.random.default_rng(number).integers(0, 256, (high, wide, 3), dtype=np.uint8))

    def group(self, *numbers: int) -> Group:
        name = "g" + "".join(map(str, numbers))
        return Group(name, tuple(self.image(number) for number in numbers), ("a dog", "a cat"))


def made(groups, adapter=None, seed=0, batch_size=64, **settings) -> torch.Tensor:
    asked = {"count": 6, "crop_scale": 0.5, "flip": False, **settings}
    return views_of(adapter or Pixels(), Inputs(groups), batch_size)(seed, Cost())(**asked)


@pytest.fixture
def images() -> Counted:
    return Counted()


# --- features ------------------------------------------------------------------------------------------------------


def test_the_first_view_has_the_features_of_the_plain_image_and_crops_have_others(images):
    groups = [images.group(0, 1), images.group(1, 2), images.group(3, 4)]
    adapter = hf.load(pretrained="tiny_clip", device="cpu")
    plain = encode(adapter, prepare(adapter, Inputs(groups)), 64).images.features
    features = made(groups, adapter)
    assert features.shape == (5, 6, plain.shape[1]) and features.dtype == torch.float32
    torch.testing.assert_close(features[:, 0], plain, atol=1e-6, rtol=0)
    distances = torch.cdist(features, features) + torch.eye(6)
    assert distances.min() > 1e-3
    assert not features.is_inference() and not features.requires_grad


@pytest.mark.parametrize("adapter", [Pixels, NoFixedSize, lambda: hf.load(pretrained="tiny_clip", device="cpu")])
def test_a_view_depends_on_its_image_and_the_seed_alone_bit_for_bit(adapter, images):
    groups = [images.group(0, 1), images.group(2, 3), images.group(4, 5)]
    features = made(groups, adapter())
    assert torch.equal(made(groups, adapter()), features)
    assert torch.equal(made(groups[::-1], adapter()), features[[4, 5, 2, 3, 0, 1]])
    assert torch.equal(made([images.group(3)], adapter()), features[[3]])
    renamed = ImageRef("another name", images.image(3).open)
    assert torch.equal(made([Group("g", (renamed,), ("a", "b"))], adapter()), features[[3]])
    for changed in ({"seed": 1}, {"crop_scale": 0.4}, {"flip": True}):
        other = made(groups, adapter(), **changed)
        assert torch.equal(other[:, 0], features[:, 0]) and not torch.equal(other[:, 1:], features[:, 1:])


# --- crops ---------------------------------------------------------------------------------------------------------


def crops_of(image, flip=False, count=40, adapter=NoFixedSize):
    model = adapter()
    made([Group("g", (ImageRef("i", lambda: image),), ("a", "b"))], model, flip=flip, count=count)
    return model.seen


def test_crops_are_pieces_of_the_image_with_their_colours_and_of_the_area_and_ratio_asked_for():
    rows, columns = np.mgrid[:60, :80]
    image = Image.fromarray(np.stack([rows, columns, rows ^ columns], axis=2).astype(np.uint8))
    plain, *crops = crops_of(image)
    assert np.array_equal(plain, np.asarray(image)) and len(crops) == 39
    for crop in crops:
        top, left = crop[0, 0, :2].tolist()
        high, wide = crop.shape[:2]
        assert np.array_equal(crop, plain[top : top + high, left : left + wide])
        # Each side is rounded to whole pixels.
        assert (high + 0.5) * (wide + 0.5) >= 0.5 * 60 * 80
        assert 3 / 4 <= (wide + 0.5) / (high - 0.5) and (wide - 0.5) / (high + 0.5) <= 4 / 3
    assert len({(crop.shape, *crop[0, 0].tolist()) for crop in crops}) > 30


def test_with_flip_about_half_of_the_same_crops_are_mirrored():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    pairs = list(zip(crops_of(image)[1:], crops_of(image, flip=True)[1:], strict=True))
    mirrored = [np.array_equal(flipped, crop[:, ::-1]) for crop, flipped in pairs]
    assert all(turned or np.array_equal(*pair) for turned, pair in zip(mirrored, pairs, strict=True))
    assert 10 < sum(mirrored) < 30


def test_the_crops_of_few_views_are_the_first_of_many():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    few, many = crops_of(image, count=5), crops_of(image, count=9)
    assert all(np.array_equal(*pair) for pair in zip(few, many[:5], strict=True))


class TorchDraws:
    """The numbers that torchvision draws, in the form of numpy's generator."""

    def uniform(self, low, high):
        return torch.empty(1).uniform_(low, high).item()

    def integers(self, stop):
        return torch.randint(0, stop, size=(1,)).item()


@pytest.mark.parametrize("size", [(80, 60), (100, 100), (70, 100), (300, 220)])
@pytest.mark.parametrize("scale", [0.08, 0.5])
def test_crops_are_those_of_torchvision_from_the_same_numbers(size, scale):
    for seed in range(50):
        torch.manual_seed(seed)
        top, left, high, wide = RandomResizedCrop.get_params(
            torch.empty(3, size[1], size[0]), [scale, 1.0], [3 / 4, 4 / 3]
        )
        torch.manual_seed(seed)
        assert crop_box(size, scale, TorchDraws()) == (left, top, left + wide, top + high)


@pytest.mark.parametrize("size", [(900, 200), (200, 900)])
def test_of_a_long_image_crops_have_the_full_short_side_at_different_places(size):
    generator = np.random.default_rng(0)
    boxes = {crop_box(size, 0.5, generator) for _ in range(100)}
    assert len(boxes) > 90
    for left, top, right, bottom in boxes:
        assert min(right - left, bottom - top) == 200 and 449 <= max(right - left, bottom - top) <= 900
        assert 0 <= left and right <= size[0] and 0 <= top and bottom <= size[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 1), (3000, 1)])
def test_a_crop_of_the_smallest_image_has_a_pixel(size):
    generator = np.random.default_rng(0)
    for _ in range(20):
        assert random_crop(Image.new("RGB", size), (8, 8), 0.01, True, generator).size == (8, 8)


# --- once for all methods --------------------------------------------------------------------------------------------


def test_each_image_is_opened_once_and_views_are_shared_and_counted_by_each_method(images):
    adapter = Pixels()
    views, costs = views_of(adapter, Inputs([images.group(0, 1), images.group(1, 2)]), 4), [Cost(), Cost()]
    first, second = (views(0, cost) for cost in costs)
    features = first(6, 0.5, False)
    assert sorted(images.opened) == ["0.png", "1.png", "2.png"]
    assert adapter.batches == [4, 2] * 3
    assert second(6, 0.5, False) is features and first(6, 0.5, False) is features
    assert len(images.opened) == 3 and [cost["views"] for cost in costs] == [15, 15]
    assert [cost["image_rows"] for cost in costs] == [15, 15]  # the plain images are counted with the task
    assert costs[0]["shared_seconds"] == 0 < costs[0]["view_seconds"] == costs[1]["view_seconds"]
    assert costs[1]["shared_seconds"] == costs[1]["view_seconds"]
    second(6, 0.5, True), second(7, 0.5, False), views(1, costs[1])(6, 0.5, False)
    assert len(images.opened) == 12 and costs[1]["views"] == 15 + 15 + 18 + 15


def test_the_oldest_views_are_dropped_where_all_of_them_are_too_many(images, monkeypatch):
    views = views_of(Pixels(), Inputs([images.group(0, 1)]), 64)(0, Cost())
    features = views(6, 0.5, False)
    monkeypatch.setattr(views_module, "KEPT_BYTES", 2 * features.nbytes)
    views(6, 0.6, False), views(6, 0.7, False)
    assert len(views.made) == 2
    assert views(6, 0.7, False) is views.made[0, 6, 0.7, False][0] and len(images.opened) == 6
    again = views(6, 0.5, False)
    assert again is not features and torch.equal(again, features) and len(images.opened) == 8


def test_views_are_those_of_the_model_as_it_came_after_it_was_trained(tiny_hf_clip, images):
    groups = [images.group(0, 1), images.group(2, 3)]
    task = training_task(load(tiny_hf_clip), groups=2)
    task._views = views_of(task.adapter, Inputs(groups), 64)(0, Cost())
    parameters = task.train("norm_images")
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.5)
    trained = [parameter.clone() for parameter in parameters]
    assert torch.equal(task.views(6, 0.5, False), made(groups, load(tiny_hf_clip)))
    assert all(torch.equal(*pair) for pair in zip(parameters, trained, strict=True))


def test_methods_with_views_run_on_a_gpu_and_give_the_same():
    task = view_task(4, 2, 3)
    expected = [method(task, views=6) for method in (zero, vte, mta)]
    with stand_in_gpu():
        parts = (task.scores, task.all_images, task.all_captions, task.image_rows, task.caption_rows)
        moved = rebuilt(*(part.to("cuda") for part in parts), lambda *settings: task._views(*settings).to("cuda"))
        found = [method(moved, views=6).cpu() for method in (zero, vte, mta)]
    for here, there in zip(expected, found, strict=True):
        torch.testing.assert_close(there, here, atol=1e-3, rtol=1e-4)


def test_an_image_that_cannot_be_read_is_named_with_its_group(images):
    def broken() -> Image.Image:
        raise OSError("truncated")

    groups = [images.group(0, 1), Group("second", (ImageRef("bad.png", broken),), ("a", "b"))]
    with pytest.raises(DataError, match=r"image bad\.png of group second cannot be read: truncated"):
        made(groups)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"crop_scale": 0.0}, {"crop_scale": 1.5}])
def test_no_views_and_crops_of_no_area_are_refused(wrong, images):
    with pytest.raises(UsageError, match="views: at least one"):
        made([images.group(0)], **wrong)
    assert not images.opened


def test_one_view_is_kept_at_least_and_ties_keep_their_order():
    views = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype(np.float32))
    assert confident(views, 0.1).shape == (2, 3, 1)
    assert confident(torch.zeros(10, 3), 0.5).tolist() == [0, 1, 2, 3, 4]


def test_entropies_of_certain_answers_have_finite_gradients():
    sure = torch.tensor([[[1e4, 0.0], [0.0, 1e4]]], requires_grad=True)
    loss = entropy(sure, "both") + marginal_entropy(sure).mean() + marginal_entropy(sure[:, :1]).mean()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(sure.grad).all()
