"""VQAScore of every family in transformers' image-text-to-text mapping equals the family's own forward.

A family that a later release adds is tested too, until it is listed here with the reason why it cannot be.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from support.adapter_inputs import random_images
from support.chat_families import FAMILIES, Processor, build, words

from ttmbench.methods.parameters import SETS
from ttmbench.model_adapters._shared.image_text import ImageTextModel
from ttmbench.model_adapters._shared.options import VqascoreOptions
from ttmbench.model_adapters._shared.pretrained import LoadedModel
from ttmbench.model_adapters.vqascore import VQAScore

NOT_HERE = {
    "has tests with its own processor": "blip blip-2 instructblip perception_lm mllama",
    "takes no encoded images": "evolla florence2 git idefics instructblipvideo kosmos-2 kosmos-2.5 mistral4 pi0 "
    "diffusion_gemma pix2struct pp_formulanet t5gemma2 udop vision-encoder-decoder",
    "fails in its own forward (transformers 5.24)": "llama4",
    "takes pixels in a form of its own": "deepseek_vl_hybrid fast_vlm fuyu gemma3n gemma4 gemma4_unified "
    "granite_docling inkling2 inkling2_loop inkling_mm_model kimi_k25 molmo2 step3p7 unlimited_ocr",
    "has a configuration that cannot be shrunk part by part": "apertus1p5 chameleon deepseek_ocr2 emu3 "
    "granite4_vision hunyuan_vl qwen4_exp",
}
PAIRS = {"paligemma"}  # the tokens of its prompt see those that follow
LEFT_OUT = {family: reason for reason, families in NOT_HERE.items() for family in families.split()}
CAPTIONS = ("a red circle", "two dogs on the left of a blue square")


QUICK = ("gemma3", "paligemma", "qwen3_5")  # sliding windows, a prefix that sees all of itself, linear attention


@pytest.mark.parametrize(
    "family", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES]
)
def test_a_family_scores_as_its_own_forward_and_has_parts(family):
    """With ``-s`` it prints each family's largest difference, or why it is not here."""
    if family in LEFT_OUT:
        print(f"{family}: {LEFT_OUT[family]}")
        pytest.skip(LEFT_OUT[family])
    model = build(family, words())
    processor = Processor(model, words())
    loaded = LoadedModel(model, None, processor.tokenizer, processor.image_processor, processor)
    chat = ImageTextModel(loaded, torch.device("cpu"))
    adapter = VQAScore(chat, VqascoreOptions(pretrained=family, device="cpu"))
    check_parts(model)
    pairs = [(image, caption) for image in random_images(2) for caption in CAPTIONS]
    own = []
    for (image, _), prompt in zip(pairs, adapter.prepare_captions([caption for _, caption in pairs]), strict=True):
        with torch.no_grad():
            logits = model(**processor(text=[prompt], images=[image])).logits[0, -1].double()
        yes, no = (logits[list(tokens.values())].logsumexp(dim=0) for tokens in (adapter.yes, adapter.no))
        own.append(float(yes - no))
    found = adapter.score_pairs(*zip(*pairs, strict=True))
    asked = adapter.prepare_captions([caption for _, caption in pairs])
    with torch.inference_mode():
        seen = adapter.encode_images(adapter.prepare_images(random_images(2)))
        read = chat.tokens_read
        once = adapter.score_prepared([image for image in seen for _ in CAPTIONS], asked)
    shares = chat.tokens_read - read < sum(len(chat.row(seen[0][0], prompt)["input_ids"]) for prompt in asked)
    assert chat.shares_prefix == shares == (family not in PAIRS)
    difference = np.abs([found - own, once - own]).max()
    print(f"{family}: {difference:.1e}{', shared prefix' if shares else ''}")
    assert difference < 1e-5
    for axis in (0, 1):
        assert np.ptp(np.reshape(own, (2, 2)), axis=axis).max() > 1e-4, "both sides matter"


def check_parts(model):
    """The last block is that of each tower and the language model, all of it; both have layers that normalise."""
    chosen = set(SETS["last_block"](model))
    blocks = {re.match(r"(.*?)\.(\d+)\.", name).groups() for name in chosen}
    assert all(int(number) == len(model.get_submodule(stack)) - 1 for stack, number in blocks)
    whole = tuple(f"{stack}.{number}." for stack, number in blocks)
    assert chosen == {name for name, _ in model.named_parameters() if name.startswith(whole)}
    for names in ({stack for stack, _ in blocks}, set(SETS["norm"](model))):
        assert {bool(re.search("language|text_model", name)) for name in names} == {True, False}
