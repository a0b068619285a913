"""Images prepared ahead of the model: in order, a bounded number at a time, to the same bits, and no thread stays."""

from __future__ import annotations

import io
import threading
import weakref
from functools import cache, partial

import numpy as np
import pytest
import torch
from PIL import Image

import ttmbench
from ttmbench.errors import DataError
from ttmbench.model import DualEncoder, PairScorer
from ttmbench.model_adapters import hf
from ttmbench.scoring import inputs
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.dual_encoder import encode, encode_side
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.scoring.pairs import pair_table
from ttmbench.types import Group, ImageRef

SIDE = 40
pytestmark = pytest.mark.usefixtures("few_objects")


@cache
def groups(count: int, broken: tuple[int, ...] = ()) -> list[Group]:
    """1x2 groups, each with a PNG of its own in memory."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(stream, "PNG")
        content = b"no image" if number in broken else stream.getvalue()
        image = ImageRef(f"{number}.png", partial(_open, content), read=partial(bytes, content))
        found.append(Group(f"g{number}", (image,), (f"a red circle {number}", "a dog")))
    return found


def _open(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


@pytest.fixture
def four_threads():
    """Four threads decode, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.get_num_threads", lambda: 4)
        yield


class Tower(DualEncoder):
    """A dual encoder whose prepared rows are counted while they are in memory, and its calls by thread."""

    def __init__(self, threads: bool = True) -> None:
        self.prepares_in_threads = threads
        self.alive = self.most = 0
        self.lock = threading.Lock()
        self.threads: set[str] = set()
        self.batches: list[int] = []

    def fingerprint(self):
        return "tower"

    def prepare_images(self, images):
        self.threads.add(threading.current_thread().name)
        rows = np.stack([np.asarray(image, dtype=np.float32) for image in images])
        with self.lock:
            self.alive += len(rows)
            self.most = max(self.most, self.alive)
        weakref.finalize(rows, self._gone, len(rows))
        return torch.from_numpy(rows)  # which holds the array

    def _gone(self, rows: int) -> None:
        with self.lock:
            self.alive -= rows

    def prepare_captions(self, captions):
        return torch.tensor([[float(len(caption))] for caption in captions])

    def encode_images(self, prepared):
        self.batches.append(len(prepared))
        return prepared.flatten(1)[:, :7] / 255

    def encode_captions(self, prepared):
        return prepared.repeat(1, 7)

    def logits(self, images, captions):
        return images @ captions.T


# --- decoded images ---------------------------------------------------------------------------------------------

BATCH = 8


@pytest.fixture
def decoded(monkeypatch):
    """Decoded images of the tests' groups, counted: all, those in memory, and the most at a time."""
    real, count = inputs.open_upright, {"all": 0, "alive": 0, "most": 0}

    def gone() -> None:
        count["alive"] -= 1

    def counted(image: ImageRef, group_id: str) -> Image.Image:
        opened = real(image, group_id)
        count["all"] += 1
        count["alive"] += 1
        count["most"] = max(count["most"], count["alive"])
        weakref.finalize(opened, gone)
        return opened

    monkeypatch.setattr(inputs, "open_upright", counted)
    return count


@pytest.mark.parametrize("enlarge", [None, 1.2])
def test_preparing_never_holds_more_than_a_batch_of_decoded_images(decoded, tiny_siglip, enlarge):
    model, data = hf.load(pretrained=str(tiny_siglip), device="cpu"), Inputs(groups(10 * BATCH))
    prepared = prepare(model, data, BATCH, enlarge)
    assert decoded["all"] == 10 * BATCH and 0 < decoded["most"] <= BATCH and decoded["alive"] == 0
    pixels = prepared.images["pixel_values"]
    assert pixels.dtype == torch.uint8 and pixels.shape == (10 * BATCH, 3, 32, 32), "the model's own size, as bytes"


# --- a dual encoder ------------------------------------------------------------------------------------------


def streamed(model, data, batch_size=64) -> torch.Tensor:
    return encode_side(model, "images", Inputs(data), BatchSizer(batch_size))


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("batch_size", [50, 64, 600])
def test_what_is_streamed_equals_what_is_held_in_memory(threads, batch_size, four_threads):
    """Features, fingerprint, and the very batches that the model gets."""
    data, model, other = groups(600), Tower(threads), Tower(threads)
    held, inputs = Inputs(data), Inputs(data)
    prepared = prepare(other, held)
    features = encode(model, inputs, batch_size)
    assert torch.equal(features.images.features, encode(other, prepared, batch_size).images.features)
    assert model.batches == other.batches and inputs.digest() == held.digest() and inputs.waited > 0


def test_images_in_memory_do_not_grow_with_the_task(four_threads):
    """The images of a block of features, and as many ahead of it as may be decoded."""
    model, other = Tower(), Tower(threads=False)
    for one in (model, other):
        assert len(streamed(one, groups(700))) == 700
        assert 256 <= one.most <= 256 + 64 + 8 and one.alive == 0
    assert all(name.startswith("ttmbench-images") for name in model.threads)
    assert other.threads == {threading.current_thread().name}


@pytest.mark.parametrize("threads", [True, False])
def test_a_broken_image_is_named_as_without_threads(threads, four_threads):
    data = groups(400, broken=(300, 301, 350))
    for work in (streamed, lambda model, data: prepare(model, Inputs(data))):
        with pytest.raises(DataError, match=r"^image 300\.png of group g300 cannot be read: [^\n]*$"):
            work(Tower(threads), data)
        assert not [one for one in threading.enumerate() if one.name.startswith("ttmbench-images")]


def test_memory_that_runs_out_loses_no_image(four_threads, capsys):
    class Full(Tower):
        def encode_images(self, prepared):
            if len(prepared) > 20:
                raise MemoryError
            return super().encode_images(prepared)

    data = groups(300)
    assert torch.equal(streamed(Full(), data), streamed(Tower(), data))
    assert "continuing with 16" in capsys.readouterr().err


# --- pairs ---------------------------------------------------------------------------------------------------


class Pairs(Tower, PairScorer):
    def score_pairs(self, images, captions):
        raise AssertionError("prepared images are there")

    def encode_images(self, prepared):
        return prepared.flatten(1)[:, :7]

    def score_prepared(self, images, captions):
        return (images.sum(1) * captions[:, 0]).numpy()


def test_pairs_are_streamed_to_the_same_bits_in_little_memory(four_threads):
    data, model, other = groups(500), Pairs(threads=False), Pairs(threads=False)
    inputs, held = Inputs(data), Inputs(data)
    table = pair_table(model, inputs, 30, all_pairs=False)
    prepared = prepare(other, held)
    assert inputs.digest() == held.digest() and table.values is None
    assert np.array_equal(table.groups, pair_table(other, prepared, 30, all_pairs=False).groups)
    assert model.most <= 30 + 2 * 64
    assert table.scores(False).groups.shape == (500, 1, 2)
    some = prepare(other, Inputs(data[:40]))
    every = pair_table(other, some, 30, all_pairs=True)
    assert np.array_equal(every.every[some.rows.images[:, :, None], some.rows.captions[:, None, :]], every.groups)
    assert np.array_equal(every.groups, table.groups[:40])


# --- a run ---------------------------------------------------------------------------------------------------


def test_a_run_streams_and_gives_the_numbers_of_one_that_holds_its_images(folder_task, tmp_path, monkeypatch):
    """Raw scores of a run without TTM, which streams, and with it, which does not."""
    task = f"{folder_task(n=40)}/mine.yaml"
    settings = {"device": "cpu", "bootstrap_iters": 0, "use_cache": "off"}
    held = ttmbench.simple_evaluate("tiny-clip", task, ttm=True, ttm_args={"iterations": 1, "epochs": 1}, **settings)
    monkeypatch.setattr("ttmbench.evaluator.score_task.prepare", None)
    found = ttmbench.simple_evaluate("tiny-clip", task, **settings)
    assert np.array_equal(found.scores["mine"]["none"][0].groups, held.scores["mine"]["none"][0].groups)
    assert found["task_hashes"] == held["task_hashes"]
    assert {"prepare", "score"} <= set(found["timing"]["mine"])
