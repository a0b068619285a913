"""Captions in text towers: shifted token embeddings, unknown words, and what is longer than a model reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.adapter_inputs import assert_captions_shift
from support.tiny_models import FEW_WORDS

import ttmbench
from ttmbench.errors import TtmbenchError
from ttmbench.model_adapters import hf, itc, itm, open_clip
from ttmbench.report.terminal import print_results

CAPTIONS = ["a red circle on the left", "two dogs", "cat", "a blue square and a red circle on top"]


def load(folder, **options):
    return hf.load(pretrained=str(folder), device="cpu", **options)


@pytest.mark.parametrize("name", ["tiny_hf_clip", "tiny_siglip"])
def test_a_shift_changes_the_first_tokens_of_each_caption(name, request):
    adapter = load(request.getfixturevalue(name))
    embedding = adapter.model.text_model.embeddings.token_embedding
    # The tokenizer of both puts a start of text before a caption, and its end behind it.
    assert_captions_shift(adapter, embedding, CAPTIONS, [range(1, 1 + len(one.split())) for one in CAPTIONS])


def test_a_compiled_tower_is_run_as_it_was_written(tiny_hf_clip):
    plain, fast = (load(tiny_hf_clip, compile=compile) for compile in (False, True))
    shift = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    plain_features, features = (
        one.encode_shifted_captions(one.prepare_captions(CAPTIONS), shift) for one in (plain, fast)
    )
    torch.testing.assert_close(features, plain_features)


def test_unknown_words(tiny_hf_clip, tiny_vlm):
    assert load(tiny_hf_clip).has_unknown_words([FEW_WORDS[0], "a red zebra", ""]) == [False, True, False]
    parts = open_clip.load(model=f"local-dir:{tiny_vlm('open_clip')}", device="cpu")
    assert parts.has_unknown_words(["a red zebra", "qwxz"]) == [False, False]
    built_in = hf.load(pretrained="tiny_clip", device="cpu")
    assert built_in.has_unknown_words(["a photo of", "a thing on the left"]) == [True, False]


@pytest.fixture(params=["hf-clip", "hf-siglip", "itc-blip", "itc-blip2", "itm-flava", "itm-blip", "open_clip", "tiny"])
def adapter(request, tiny_vlm):
    kind, _, name = request.param.partition("-")
    if kind == "open_clip":
        return open_clip.load(model=f"local-dir:{tiny_vlm(kind)}", device="cpu")
    folder = "tiny_clip" if kind == "tiny" else str(tiny_vlm(name))
    return {"itc": itc, "itm": itm}.get(kind, hf).load(pretrained=folder, device="cpu")


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
    assert "truncated" not in ttmbench.simple_evaluate(Scorer(), task([["a", "bb"]]), bootstrap_iters=0).document


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

    with pytest.raises(TtmbenchError, match=r"truncated\(\) of Wrong "):
        ttmbench.simple_evaluate(Wrong(), task([["a", "bb"]]), bootstrap_iters=0)
