"""Nothing beside the model and the data moves a number: batches, order, threads, company, the cache, a stage before."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny_models
from support.task_data import load

import ttmbench
from ttmbench.metrics import group_match, group_score
from ttmbench.model_adapters import hf, itm, visualgpt, vqascore
from ttmbench.model_adapters import open_clip as open_clip_models

LAYOUTS = {"pairs": "shapes_color", "one": "shapes_replace", "all": "shapes_color"}  # 2x2, 1x2, and matched globally
PLAIN = ([0, 1, 2], [0, 1], [0, 1])  # old places of groups, images and captions
SHORT = {"iterations": 2, "epochs": 1, "lr": 1e-3, "tau_start": 1e-4}
TRAINED = ["CLIP", "BLIP ITM", "VQAScore of LLaVA"]  # one of each way to train


class Light:
    """A plain pair scorer without torch: how bright the image is, times a number of the caption."""

    def fingerprint(self):
        return {"weights": "none"}  # so that its scores are cached

    def score_pairs(self, images, captions):
        light = [np.asarray(image, dtype=np.float64)[..., 0].mean() for image in images]
        codes = [sum(place * ord(letter) for place, letter in enumerate(caption)) for caption in captions]
        return np.sin(np.array(light) * np.array(codes) / 1000)


def wide_clip(folder: Path) -> Path:
    """Wide enough for threads to share its products, and for batches to change how."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        from material import make_clip

        folder.mkdir()
        make_clip(folder, width=256, layers=2)
    return folder


MODELS = {
    "CLIP": lambda make: hf.load(pretrained=make("clip"), device="cpu"),
    "wide CLIP": lambda make: hf.load(pretrained=make("wide"), device="cpu"),
    "SigLIP": lambda make: hf.load(pretrained=make("siglip"), device="cpu"),
    "open_clip": lambda make: open_clip_models.load(model=f"local-dir:{make('open_clip')}", device="cpu"),
    "BLIP ITM": lambda make: itm.load(pretrained=make("blip", captioner=False), device="cpu"),
    "VQAScore of LLaVA": lambda make: vqascore.load(pretrained=make("chat", kind="llava"), device="cpu"),
    "VisualGPTScore": lambda make: visualgpt.load(pretrained=make("blip", captioner=True), device="cpu", alpha=0.5),
    "pair scorer": lambda make: Light(),
}


@cache
def groups_of(name: str):
    return load(name, limit=3).groups


def task(layout: str, order=PLAIN) -> ttmbench.Task:
    groups, images, captions = order
    chosen = [groups_of(LAYOUTS[layout])[place] for place in groups]
    pictures = [[one.images[place].open() for place in images if place < len(one.images)] for one in chosen]
    texts = [[one.captions[place] for place in captions] for one in chosen]
    return ttmbench.Task.from_groups(
        pictures, texts, name=layout, matching="global" if layout == "all" else "group", metrics=["group_match"]
    )


def run(model, layouts, order=PLAIN, **settings):
    common = {"device": "cpu", "bootstrap_iters": 0, "use_cache": "off", **settings}
    return ttmbench.simple_evaluate(model, [task(layout, order) for layout in layouts], **common)


def seen(model, layouts=tuple(LAYOUTS), order=PLAIN, **settings) -> dict[str, np.ndarray]:
    """Layout -> raw scores in the plain order, [groups, images, captions], or [groups, images, groups, captions]."""
    found, (groups, images, captions) = {}, map(np.argsort, order)
    for layout, by_filter in run(model, layouts, order, **settings).scores.items():
        (scores,) = by_filter["none"]
        _, m, n = scores.groups.shape
        own = images[:m] if m > 1 else [0]
        if scores.all_pairs is None:
            found[layout] = scores.groups[np.ix_(groups, own, captions)]
        else:
            found[layout] = scores.all_pairs.reshape(3, m, 3, n)[np.ix_(groups, own, groups, captions)]
    return found


def in_threads(model):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return [seen(model)]
    finally:
        torch.set_num_threads(before)


def cached(model):
    with tempfile.TemporaryDirectory() as folder:
        return [seen(model, use_cache=folder, batch_size=size) for size in (7, 64)]


def after_ttm(model):
    layouts = ["pairs", "one", *(["all"] if hasattr(model, "train_captions") else [])]
    return [seen(model, order, ttm=SHORT) for order in (layouts, layouts[::-1])] + [seen(model, layouts)]


CHANGES = {
    "batch size": lambda model: [seen(model, batch_size=size) for size in (1, 5, 1000)],
    "order of groups": lambda model: [seen(model, order=([2, 0, 1], [0, 1], [0, 1]))],
    "order of images": lambda model: [seen(model, order=([0, 1, 2], [1, 0], [0, 1]))],
    "order of captions": lambda model: [seen(model, order=([0, 1, 2], [0, 1], [1, 0]))],
    "threads": in_threads,
    "the cache": cached,
    "other tasks before it": lambda model: [seen(model, order) for order in (list(LAYOUTS), [*LAYOUTS][::-1])],
    "test-time stages before it": after_ttm,
}
EXACT = {"other tasks before it", "test-time stages before it"}


@pytest.fixture(scope="module")
def adapter_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")

    def make(maker: str, **options) -> str:
        place = folder / "_".join([maker, *map(str, options.values())])
        if maker == "wide":
            return str(wide_clip(place))
        place.mkdir(exist_ok=True)  # left by a test that was skipped
        return str(getattr(tiny_models, maker)(place, **options))

    @cache
    def adapter(name: str):
        model = MODELS[name](make)
        return model, {layout: seen(model, [layout])[layout] for layout in LAYOUTS}

    return adapter


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MODELS)
def test_no_raw_score_moves(name, change, adapter_of):
    model, quiet = adapter_of(name)
    assert all(np.ptp(one) > 0.01 and one.dtype == np.float32 for one in quiet.values()), "scores differ"
    if change == "test-time stages before it" and name not in TRAINED:
        pytest.skip("another model is trained in the same way")
    for found in CHANGES[change](model):
        for layout, scores in found.items():
            np.testing.assert_allclose(scores, quiet[layout], atol=0 if change in EXACT else 1e-4, rtol=0)
            if layout != "all":
                for metric in (group_match, group_score):
                    assert np.array_equal(metric(scores), metric(quiet[layout]))


def adapted(model, layouts, seeds, **settings):
    """Seed -> records of its iterations on the last layout, without times, and the scores afterwards."""
    done = run(model, layouts, ttm=SHORT, seeds=seeds, **settings)
    lines = [{**one, "seconds": 0} for one in done["methods"][layouts[-1]]["ttm"]["iterations"]]
    of_seeds = zip(seeds, done.scores[layouts[-1]]["ttm"], strict=True)
    return {seed: ([one for one in lines if one["seed"] == seed], scores.groups) for seed, scores in of_seeds}


@pytest.mark.parametrize("name", TRAINED)
def test_no_adapted_score_moves(name, adapter_of):
    """Not by a bit after another task or seed; in other batches the same is selected, and losses move by rounding."""
    model, _ = adapter_of(name)
    quiet = adapted(model, ["pairs"], [0, 1])
    for layouts, seeds in ((["pairs"], [1]), (["pairs"], [1, 0]), (["one", "pairs"], [0])):
        for seed, (lines, scores) in adapted(model, layouts, seeds).items():
            assert lines == quiet[seed][0] and np.array_equal(scores, quiet[seed][1])
    for size in (1, 7):
        ((lines, _),) = adapted(model, ["pairs"], [0], batch_size=size).values()
        for line, expected in zip(lines, quiet[0][0], strict=True):
            assert all(line[key] == expected[key] for key in ("selected", "candidates", "tied"))
            assert line["loss"] == pytest.approx(expected["loss"], abs=1e-4)
