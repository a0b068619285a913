"""Shifts of captions' token embeddings, against features of a model whose embeddings were changed; unknown words."""

from __future__ import annotations

import pytest
import torch
from support.adapter_inputs import assert_captions_shift
from support.tiny_models import FEW_WORDS, open_clip

from ttmbench.model_adapters import hf, tiny_clip
from ttmbench.model_adapters import open_clip as open_clip_models

CAPTIONS = ["a red circle on the left", "two dogs", "cat", "a blue square and a red circle on top"]


def load(folder, **options):
    return hf.load(pretrained=str(folder), device="cpu", **options)


@pytest.mark.parametrize("name", ["tiny_hf_clip", "tiny_siglip"])
def test_a_shift_changes_the_first_tokens_of_each_caption(name, request):
    adapter = load(request.getfixturevalue(name))
    embedding = adapter.model.text_model.embeddings.token_embedding
    # The tokenizer of both puts a start of text before a caption, and its end behind it.
    assert_captions_shift(adapter, embedding, CAPTIONS, [range(1, 1 + len(one.split())) for one in CAPTIONS])


def test_of_open_clip(tmp_path):
    adapter = open_clip_models.load(model=f"local-dir:{open_clip(tmp_path / 'clip')}", device="cpu")
    tokens = adapter.prepare_captions(CAPTIONS)
    ends = tokens.argmax(dim=1).tolist()  # the end of text is the largest
    assert_captions_shift(adapter, adapter.model.token_embedding, CAPTIONS, [range(1, end) for end in ends])


def test_a_compiled_tower_is_run_as_it_was_written(tiny_hf_clip):
    plain, fast = (load(tiny_hf_clip, compile=compile) for compile in (False, True))
    shift = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    plain_features, features = (
        one.encode_shifted_captions(one.prepare_captions(CAPTIONS), shift) for one in (plain, fast)
    )
    torch.testing.assert_close(features, plain_features)


def test_unknown_words(tiny_hf_clip, tmp_path):
    words = load(tiny_hf_clip)
    assert words.has_unknown_words([FEW_WORDS[0], "a red zebra", ""]) == [False, True, False]
    parts = open_clip_models.load(model=f"local-dir:{open_clip(tmp_path / 'clip')}", device="cpu")
    assert parts.has_unknown_words(["a red zebra", "qwxz"]) == [False, False]
    assert tiny_clip.load(device="cpu").has_unknown_words(["a photo of", "a thing on the left"]) == [True, False]
