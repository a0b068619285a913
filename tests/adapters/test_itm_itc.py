"""Matching heads and contrastive halves: scores are those of the model's own forward, whatever is beside a pair."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from support.adapter_inputs import groups_of, quick_scores
from support.rounding import bound

import ttmbench
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import itc, itm
from ttmbench.testing import check_adapter

FAMILIES = ("blip", "blip2", "flava")


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def folder(family, tiny_vlm):
    return tiny_vlm(family)


@cache
def own_pipeline(family, folder, start="enc"):
    """The model of transformers, and a function that scores one image with one caption both ways."""
    names = ("BlipForImageTextRetrieval", "Blip2ForImageTextRetrieval", "FlavaForPreTraining")
    model = getattr(tf, dict(zip(FAMILIES, names, strict=True))[family]).from_pretrained(folder).eval()
    words = tf.AutoTokenizer.from_pretrained(folder)
    images = tf.AutoImageProcessor.from_pretrained(folder)

    def score(image, caption):
        tokens = {k: v for k, v in words(caption, return_tensors="pt").items() if k != "token_type_ids"}
        pixels = images(images=image, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            if family == "blip":
                cosine = model(**tokens, pixel_values=pixels, use_itm_head=False).itm_score[0, 0] / 0.07
                if start == "enc":
                    tokens["input_ids"][:, 0] = model.config.text_config.bos_token_id + 1
                head = model(**tokens, pixel_values=pixels, use_itm_head=True).itm_score[0]
            elif family == "blip2":
                ahead = torch.full((1, model.config.num_query_tokens), model.config.image_token_index)
                tokens = {
                    "input_ids": torch.cat([ahead, tokens["input_ids"]], dim=1),
                    "attention_mask": torch.cat([torch.ones_like(ahead), tokens["attention_mask"]], dim=1),
                }
                head = model(**tokens, pixel_values=pixels, use_image_text_matching_head=True).logits_per_image[0]
                cosine = model(**tokens, pixel_values=pixels).logits_per_image[0, 0] / 0.07
            else:
                words_in = {**tokens, "input_ids_masked": tokens["input_ids"]}
                out = model(**words_in, pixel_values=pixels, return_loss=False)
                head, cosine = out.itm_logits[0], out.contrastive_logits_per_image[0, 0]
        return float(head[1] - head[0]), float(cosine)

    return score


def expected_scores(family, folder, groups):
    score = own_pipeline(family, folder)
    both = [[[score(image.open(), text) for text in g.captions] for image in g.images] for g in groups]
    return np.array(both).transpose(3, 0, 1, 2)


LONG = " ".join(["a red circle on the left of a blue square"] * 6)  # 54 words


def trained_forward(family, folder, image, caption):
    """The head as LAVIS calls it: [ENC] first and 35 tokens for BLIP, 32 for BLIP-2; then each layer by hand."""
    name = {"blip": "BlipForImageTextRetrieval", "blip2": "Blip2ForImageTextRetrieval"}[family]
    model, words = getattr(tf, name).from_pretrained(folder).eval(), tf.AutoTokenizer.from_pretrained(folder)
    ids = words(caption, add_special_tokens=False)["input_ids"][: (35 if family == "blip" else 32) - 2]
    pixels = tf.AutoImageProcessor.from_pretrained(folder)(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        states = model.vision_model(pixel_values=pixels).last_hidden_state
        if family == "blip":
            enc = model.config.text_config.vocab_size - 1
            text = torch.tensor([[enc, *ids, words.sep_token_id]])
            seen = model.text_encoder(input_ids=text, encoder_hidden_states=states).last_hidden_state[:, 0]
            head = model.itm_head(seen)[0]
        else:
            text = torch.tensor([[words.cls_token_id, *ids, words.sep_token_id]])
            joint = model.qformer(
                query_embeds=model.embeddings(input_ids=text, query_embeds=model.query_tokens),
                query_length=model.query_tokens.shape[1],
                encoder_hidden_states=states,
            ).last_hidden_state
            head = model.itm_head(joint[:, : model.query_tokens.shape[1]]).mean(dim=1)[0]
    return float(head[1] - head[0])


@pytest.mark.parametrize("family", ["blip", "blip2"])
def test_the_matching_head_is_asked_as_it_was_trained(family, tiny_vlm):
    folder = str(tiny_vlm(family))
    image = groups_of("shapes_color", 1)[0].images[0].open()
    captions = ["a red circle", LONG, LONG + " and a green star"]
    adapter = itm.load(pretrained=folder, device="cpu")
    found = adapter.score_pairs([image] * 3, captions)
    expected = [trained_forward(family, folder, image, caption) for caption in captions]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    tokens = adapter.prepare_captions(captions)["input_ids"]
    assert torch.equal(tokens[1], tokens[2]) and adapter.fingerprint()["max_tokens"] == (35 if family == "blip" else 32)
    rounding = bound(adapter.model, found)
    assert abs(found[1] - found[2]) < rounding
    longer = itm.load(pretrained=folder, device="cpu", max_tokens=64)
    assert np.ptp(longer.score_pairs([image] * 2, captions[1:])) > rounding
    if family == "blip":
        transformers_own = itm.load(pretrained=folder, device="cpu", itm_start="cls", max_tokens=64)
        score = own_pipeline("blip", folder, start="cls")
        both = transformers_own.score_pairs([image] * 2, captions[:2])
        np.testing.assert_allclose(both, [score(image, caption)[0] for caption in captions[:2]], atol=1e-4, rtol=0)
        assert np.abs(both - found[:2]).min() > 1e-2, "another first token is another score"


@pytest.mark.parametrize(("family", "most"), [("blip", 35), ("blip2", 32), ("flava", 40)])
def test_the_contrastive_half_cuts_where_the_matching_head_does(family, most, tiny_vlm):
    folder = str(tiny_vlm(family))
    for options, expected in (({}, most), ({"max_tokens": 10}, 10)):
        for module in (itc, itm):
            adapter = module.load(pretrained=folder, device="cpu", **options)
            assert adapter.prepare_captions(["cat", LONG])["input_ids"].shape == (2, expected)
            assert adapter.fingerprint()["max_tokens"] == expected


def test_what_an_architecture_does_not_have_is_refused(tiny_vlm):
    blip, blip2 = (str(tiny_vlm(family)) for family in ("blip", "blip2"))
    with pytest.raises(UsageError, match="itm_start=enc: BLIP has enc or cls, other models have one start"):
        itm.load(pretrained=blip2, itm_start="enc")
    with pytest.raises(UsageError, match="'itm_start': must be 'enc' or 'cls'"):
        itm.load(pretrained=blip, itm_start="first")
    for module in (itm, itc):
        with pytest.raises(UsageError, match="max_tokens=900: this model takes captions of 3 to 64 tokens"):
            module.load(pretrained=blip, max_tokens=900, device="cpu")


def test_a_blip_without_the_trained_start_says_so(tiny_vlm):
    adapter = itm.load(pretrained=str(tiny_vlm("blip")), device="cpu", itm_start="cls")
    adapter.model.config.text_config.vocab_size -= 1
    with pytest.raises(UsageError, match=r"no \[ENC\] among them; --model_args itm_start=cls"):
        adapter._enc()


def retrieval_forward(folder):
    """Scores of pairs by the forward of transformers' own class."""
    words, shaper = tf.AutoTokenizer.from_pretrained(folder), tf.AutoImageProcessor.from_pretrained(folder)
    words.padding_side = "right"
    model = getattr(tf, tf.AutoConfig.from_pretrained(folder).architectures[0]).from_pretrained(folder).eval()

    def own(images, captions):
        tokens = words(captions, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens, **shaper(images=images, return_tensors="pt")).logits
        return (logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]).numpy()

    return own


RETRIEVAL = ["vilt", pytest.param("bridgetower", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", RETRIEVAL)
def test_retrieval_heads_score_as_their_forward(kind, tiny_vlm):
    folder, shapes = str(tiny_vlm(kind)), [(40, 64), (64, 40), (50, 50), (40, 64)]
    noise = np.random.default_rng(0)
    images = [Image.fromarray(noise.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in shapes]
    captions = ["a red circle", "two dogs on the left of a blue square and a green star", "cat", "a blue square"]
    adapter = itm.load(pretrained=folder, device="cpu")
    own = retrieval_forward(folder)
    expected = own(images, captions)
    found = adapter.score_pairs(images, captions)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    for image, caption, score in zip(images, captions, expected, strict=True):
        np.testing.assert_allclose(own([image], [caption]), score, atol=1e-5)
    assert np.array_equal(found, adapter.score_pairs(images, captions)) and np.ptp(expected) > 0.05
    assert adapter.truncated(["cat", LONG]) == [False, True]
    assert "pairs: the state comes back after training" in check_adapter(adapter)
    if kind == "vilt":  # no dropout: the loss of one logit is the binary cross-entropy
        matched = np.array([True, False, True, False])
        loss = adapter.pair_loss(adapter.prepare_images(images), adapter.prepare_captions(captions), matched)
        entropy = np.logaddexp(0, np.where(matched, -expected, expected)).mean()
        assert float(loss.detach()) == pytest.approx(entropy, abs=1e-5)


@pytest.mark.parametrize("kind", RETRIEVAL)
def test_ttm_trains_a_retrieval_head(kind, tiny_vlm):
    settings = {"iterations": 1, "epochs": 1, "tau_start": 0.0, "tau_end": 0.0, "augment": False}
    for dtype in ("fp32", "bf16"):
        adapter = itm.load(pretrained=str(tiny_vlm(kind)), device="cpu", dtype=dtype)
        run = ttmbench.simple_evaluate(
            adapter, "shapes_color", limit=2, bootstrap_iters=0, device="cpu", ttm=True, ttm_args=settings
        )
        (record,) = run.document["methods"]["shapes_color"]["ttm"]["iterations"]
        assert record["selected"] == 2 and all(np.isfinite(record["loss"]))


@pytest.mark.parametrize("kind", ["vilt-mlm", pytest.param("bridgetower-mlm", marks=pytest.mark.slow)])
def test_a_checkpoint_without_the_head_is_refused(kind, tiny_vlm):
    with pytest.raises(DataError, match=r"do not fit \w+ForImageAndTextRetrieval .* missing, such as"):
        itm.load(pretrained=str(tiny_vlm(kind)), device="cpu")


@pytest.mark.parametrize("task", ["shapes_color", "shapes_spatial"])
def test_scores_of_a_run_equal_the_models_own(family, folder, task):
    heads, cosines = expected_scores(family, folder, groups_of(task, 3))
    for way, expected in (("itm", heads), ("itc", cosines)):
        found, run = quick_scores(f"{family}-{way}", task, limit=3, pretrained=folder)
        assert found.dtype == np.float32
        assert ("PairScorer" if way == "itm" else "DualEncoder") in run["model_info"]["capabilities"]
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0, err_msg=way)
        assert np.ptp(expected, axis=2).max() > 1e-2, "captions matter"
        assert task != "shapes_color" or np.ptp(expected, axis=1).max() > 1e-2, "images matter"


def test_adapters_keep_the_contract(family, folder):
    made = check_adapter(itm.load(pretrained=str(folder), device="cpu"))
    assert {"batch size changes no pair score", "preparing changes no pair score"} <= set(made)
    assert "pairs: the state comes back after training" in made
    assert "batch size changes no score" in check_adapter(itc.load(pretrained=str(folder), device="cpu"))


def test_the_matching_loss_is_cross_entropy_of_the_head(family, folder):
    groups = groups_of("shapes_color", 2)
    adapter = itm.load(pretrained=str(folder), device="cpu")
    images = [image.open() for group in groups for image in group.images]
    captions = [caption for group in groups for caption in group.captions]
    matched = np.array([True, False, False, True])
    with torch.no_grad():
        loss = adapter.pair_loss(adapter.prepare_images(images), adapter.prepare_captions(captions), matched)
    score = own_pipeline(family, folder)
    odds = np.array([score(p, c)[0] for p, c in zip(images, captions, strict=True)])
    assert float(loss) == pytest.approx(np.logaddexp(0, np.where(matched, -odds, odds)).mean(), abs=1e-4)


def test_bf16_scores_are_fp32_and_near(tiny_vlm):
    folder = tiny_vlm("blip")
    exact, fast = (quick_scores("blip-itm", "shapes_color", pretrained=folder, dtype=d)[0] for d in ("fp32", "bf16"))
    assert not np.array_equal(exact, fast)
    np.testing.assert_allclose(exact, fast, atol=0.2 * np.abs(exact).max())
    rounded = torch.from_numpy(fast).bfloat16().float().numpy()
    assert not np.array_equal(rounded, fast), "the head's logits are not rounded to bf16"


def test_what_has_no_such_half_is_refused(tiny_hf_clip, tiny_vlm):
    for module, word in ((itm, "matching head"), (itc, "contrastive half")):
        with pytest.raises(UsageError, match=word):
            module.load(pretrained=str(tiny_hf_clip), device="cpu")
    with pytest.raises(DataError, match=r"tensors are missing, such as"):
        itm.load(pretrained=str(tiny_vlm("blip-captioner")), device="cpu")


@pytest.mark.parametrize("kind", RETRIEVAL)
def test_retrieval_heads_adapt_by_low_rank_factors(kind, tiny_vlm):
    settings = {"iterations": 1, "epochs": 1, "tau_start": 0.0, "tau_end": 0.0, "train": "lora:16", "lr": 1e-2}
    options = {"limit": 2, "device": "cpu", "bootstrap_iters": 0, "ttm": True, "ttm_args": settings}
    run = ttmbench.simple_evaluate("itm", "shapes_color", model_args={"pretrained": str(tiny_vlm(kind))}, **options)
    raw, adapted = (run.scores["shapes_color"][one][0].groups for one in ("none", "ttm"))
    assert not np.allclose(raw, adapted)
