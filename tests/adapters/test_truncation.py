"""Captions longer than a model reads: told exactly, by every adapter that cuts, and counted in results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import open_clip as tiny_open_clip

import ttmbench
from ttmbench.errors import TtmbenchError
from ttmbench.model_adapters import hf, itc, itm, open_clip, tiny_clip
from ttmbench.report.terminal import print_results


@pytest.fixture(params=["tiny_clip", "clip", "siglip", "open_clip", "blip-itc", "blip2-itc", "flava-itm", "blip-itm"])
def adapter(request, tiny_hf_clip, tiny_siglip, tiny_vlm, tmp_path):
    name = request.param
    if name == "tiny_clip":
        return tiny_clip.load(device="cpu")
    if name in ("clip", "siglip"):
        return hf.load(pretrained=str(tiny_hf_clip if name == "clip" else tiny_siglip), device="cpu")
    if name == "open_clip":
        return open_clip.load(model=f"local-dir:{tiny_open_clip(tmp_path)}", device="cpu")
    family, way = name.split("-")
    folder = tiny_vlm(family) if family == "flava" else tiny_vlm(family, captioner=False)
    return {"itc": itc, "itm": itm}[way].load(pretrained=str(folder), device="cpu")


def tokens_of(adapter, count):
    found = adapter.prepare_captions([" ".join(["red"] * count)])
    return found["input_ids"] if isinstance(found, dict) else found


def test_a_caption_is_cut_from_the_first_token_that_is_not_read(adapter):
    """One word more than fits changes nothing of what the model is given; the last that fits does."""
    counts = range(1, 400)
    answers = list(adapter.truncated([" ".join(["red"] * count) for count in counts]))
    first = answers.index(True)
    assert answers == [False] * first + [True] * (len(counts) - first) and first > 1
    fits, cut = counts[first - 1], counts[first]
    assert torch.equal(tokens_of(adapter, fits), tokens_of(adapter, cut))
    assert not torch.equal(tokens_of(adapter, fits - 1), tokens_of(adapter, fits))


def task(captions):
    images = [[np.full((16, 16, 3), 20 * group, np.uint8)] for group in range(len(captions))]
    return ttmbench.Task.from_groups(images, captions, name="long")


def test_results_and_screen_say_how_many_captions_are_cut(capsys):
    long = "a red circle on the left of " * 10
    groups = [["a red circle", "a blue circle"], [f"{long} a star", f"{long} a cat"], ["a red circle", f"{long} a cat"]]
    run = ttmbench.simple_evaluate("tiny-clip", task(groups), device="cpu", bootstrap_iters=0)
    assert run["truncated"]["long"] == {"captions": 2, "of": 4, "groups": 2}
    print_results(run.document)
    assert "2 of 4 captions are longer than the model reads and were cut (in 2 groups)" in " ".join(
        capsys.readouterr().out.split()
    )
    short = ttmbench.simple_evaluate("tiny-clip", task(groups[:1]), device="cpu", bootstrap_iters=0)
    assert short["truncated"]["long"] == {"captions": 0, "of": 2, "groups": 0} and "long" not in short["notes"]


class Scorer:
    def score_pairs(self, images, captions):
        return np.array([len(caption) for caption in captions], dtype=np.float32)


def test_a_model_that_does_not_say_has_no_such_key():
    run = ttmbench.simple_evaluate(Scorer(), task([["a", "bb"]]), bootstrap_iters=0)
    assert "truncated" not in run.document


def test_every_distinct_caption_is_asked_for_once_and_answers_are_checked():
    asked = []

    class Says(Scorer):
        def truncated(self, captions):
            asked.extend(captions)
            return [len(caption) > 1 for caption in captions]

    run = ttmbench.simple_evaluate(Says(), task([["a", "bb"], ["a", "ccc"], ["d", "e"]]), bootstrap_iters=0)
    assert asked == ["a", "bb", "ccc", "d", "e"] and run["truncated"]["long"] == {"captions": 2, "of": 5, "groups": 2}

    class Wrong(Scorer):
        def truncated(self, captions):
            return [True]

    with pytest.raises(TtmbenchError, match=r"truncated\(\) of Wrong gave an array of shape \[1\] for 2 captions"):
        ttmbench.simple_evaluate(Wrong(), task([["a", "bb"]]), bootstrap_iters=0)
