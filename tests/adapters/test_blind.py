"""Scorers that never see the image: likelihoods are the language model's own, and the numbers say what they mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from support.adapter_inputs import groups_of, quick_scores

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.model_adapters import blind, visualgpt
from ttmbench.report.terminal import print_results
from ttmbench.testing import check_adapter


@pytest.fixture(params=["gpt2", "opt", "t5", "bart"])
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tiny_vlm):
    return tiny_vlm(kind)


def own_likelihood(kind, folder, *, prompt="", end=False):
    """Mean log-likelihood of one caption, straight from the model's logits."""
    causal = kind in ("gpt2", "opt")
    model = (tf.AutoModelForCausalLM if causal else tf.AutoModelForSeq2SeqLM).from_pretrained(folder).eval()
    words = tf.AutoTokenizer.from_pretrained(folder)

    def score(caption):
        own = words(caption, add_special_tokens=False)["input_ids"]
        wanted = [*own, words.eos_token_id] if end else own
        with torch.no_grad():
            if causal:
                ahead = [words.bos_token_id, *words(prompt, add_special_tokens=False)["input_ids"]]
                logits = model(torch.tensor([ahead + wanted])).logits[0, len(ahead) - 1 : -1]
            else:
                # T5 decodes from <pad>; BART from </s>, and writes <s> before the text.
                start = [0] if kind == "t5" else [2, 1]
                source = torch.tensor([words(prompt)["input_ids"]])
                given = torch.tensor([[*start, *wanted[:-1]]])
                logits = model(input_ids=source, decoder_input_ids=given).logits[0, len(start) - 1 :]
        logs = logits.double().log_softmax(dim=-1)
        return float(sum(logs[place, token] for place, token in enumerate(wanted)) / len(wanted))

    return score


@pytest.mark.parametrize(("prompt", "end"), [("", False), ("a photo of", False), ("", True)])
def test_scores_of_a_run_equal_the_models_own(kind, folder, prompt, end):
    groups = groups_of("shapes_spatial", 4)
    score = own_likelihood(kind, folder, prompt=prompt, end=end)
    expected = np.array([[[score(caption) for caption in group.captions]] for group in groups])
    found, _ = quick_scores("blind", "shapes_spatial", limit=4, pretrained=folder, prompt=prompt, end_token=end)
    assert found.dtype == np.float32 and np.ptp(found, axis=2).max() > 1e-2
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_adapters_keep_the_contract(folder):
    assert "batch size changes no pair score" in check_adapter(blind.load(pretrained=str(folder), device="cpu"))


def test_half_precision_scores_in_fp32_and_vit_is_refused(tiny_vlm, tmp_path):
    captions = [caption for group in groups_of("shapes_color", 8) for caption in group.captions]
    exact, half = (
        blind.load(pretrained=str(tiny_vlm("gpt2")), device="cpu", dtype=dtype).score_pairs([None] * 16, captions)
        for dtype in ("fp32", "bf16")
    )
    assert half.dtype == np.float32 and not np.array_equal(exact, half)
    np.testing.assert_allclose(exact, half, atol=0.2)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "model.safetensors").write_bytes(b"is not read")
    with pytest.raises(UsageError, match="writes no text"):
        blind.load(pretrained=str(tmp_path))


def test_each_caption_is_scored_once(tiny_vlm):
    adapter = blind.load(pretrained=str(tiny_vlm("gpt2")), device="cpu")
    asked = []
    own = adapter._score
    adapter._score = lambda captions: asked.extend(captions) or own(captions)
    for _ in range(2):
        ttmbench.simple_evaluate(adapter, "shapes_color", limit=6, bootstrap_iters=0)
    assert sorted(asked) == sorted({caption for group in groups_of("shapes_color", 6) for caption in group.captions})


def test_a_generative_model_is_blind_with_noise_for_images(tiny_vlm):
    folder = str(tiny_vlm("blip-captioner"))
    found, run = quick_scores("blind", "shapes_spatial", limit=4, pretrained=folder, noise_images=2, noise_seed=3)
    seeing = visualgpt.load(pretrained=folder, device="cpu", noise_images=2, noise_seed=3)
    expected = np.stack([seeing.log_priors(group.captions) for group in groups_of("shapes_spatial", 4)])
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    assert run["model_info"]["fingerprint"]["score"] == "log P(t) from noise images"


def test_groups_of_several_images_cannot_be_solved_without_them(folder):
    """Equal scores for all images: no group metric can hold, and exactly one image of a group prefers its caption."""
    _, run = quick_scores("blind", "shapes_color", limit=4, pretrained=folder)
    numbers = run.results["shapes_color"]
    for metric in ("text_score", "image_score", "group_score", "group_match"):
        assert numbers[f"{metric},none"] == 0
    assert numbers["individual_match,none"] == 0.5
    assert run["ties"]["shapes_color"]["group_match,none"] == run["ties"]["shapes_color"]["image_score,none"] == 4
    (note,) = run["notes"]["shapes_color"]
    assert "0 by construction" in note


def test_one_image_per_group_says_what_the_captions_give_away(folder, capsys):
    _, run = quick_scores("blind", "shapes_replace", limit=4, pretrained=folder)
    value = run.results["shapes_replace"]["text_score,none"]
    (note,) = run["notes"]["shapes_replace"]
    assert f"{100 * value:.2f} %" in note and f"{100 * (value - 0.5):+.2f} points" in note
    print_results(run.document)
    assert "points from chance" in " ".join(capsys.readouterr().out.split())
