"""BLIP-2 and InstructBLIP asked for yes or no: scores are those of the model's own forward on its own processor."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest
import torch
from support.adapter_inputs import groups_of

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.model_adapters import vqascore
from ttmbench.model_adapters._shared.options import QUESTION
from ttmbench.testing import check_adapter

QUICK = {"limit": 2, "bootstrap_iters": 0, "device": "cpu"}
MAKERS = {
    "blip2-opt": ("blip2", {"captioner": True, "language": "opt"}),
    "blip2-t5": ("blip2", {"captioner": True, "language": "t5"}),
    "instructblip-llama": ("instructblip", {"language": "llama"}),
    "instructblip-t5": ("instructblip", {"language": "t5"}),
}
PROMPTS = {
    "blip2-opt": "Question: {} Answer:",
    "blip2-t5": "Question: {} Short answer:",
    "instructblip-llama": "Question: {}",
    "instructblip-t5": "Question: {}",
}


@pytest.fixture(params=list(MAKERS))
def name(request):
    return request.param


@pytest.fixture
def folder(name, tiny_vlm):
    maker, options = MAKERS[name]
    return str(tiny_vlm(maker, **options))


@lru_cache(maxsize=1)  # of one model for many pairs
def own_model(folder):
    """The model and its processor as transformers loads them."""
    import transformers as tf

    model = tf.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = tf.AutoProcessor.from_pretrained(folder)
    processor.num_query_tokens = model.config.num_query_tokens
    return model, processor


def own_logits(name, folder, image, caption, written=()):
    """Logits after the prompt and after each written token: by transformers' own processor and forward."""
    model, processor = own_model(folder)
    prompt = PROMPTS[name].format(f'Does this figure show "{caption}"? Please answer yes or no.')
    inputs = dict(processor(images=image, text=prompt, return_tensors="pt"))
    more, count = torch.tensor([list(written)], dtype=torch.long), 1 + len(written)
    if name.endswith("t5"):
        start = torch.full((1, 1), model.config.text_config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat([start, more], dim=1)
    else:
        for key, value in {"input_ids": more, "attention_mask": torch.ones_like(more)}.items():
            inputs[key] = torch.cat([inputs[key], value], dim=1)
    with torch.no_grad():
        return model(**inputs).logits[0, -count:].double(), processor.tokenizer


@lru_cache(maxsize=2)
def own_logits_of_two_groups(name, folder, written=()):
    """Of every pair of two groups."""
    groups = groups_of("shapes_color", 2)
    pairs = [(i.open(), c) for g in groups for i in g.images for c in g.captions]
    return [own_logits(name, folder, image, caption, written)[0] for image, caption in pairs]


@pytest.mark.parametrize("score", ["log_odds", "yes_token", "yes_and_end"])
def test_scores_of_a_run_equal_the_models_own(name, folder, score):
    words = own_model(folder)[1].tokenizer
    yes = words.convert_tokens_to_ids("yes")
    expected = []
    for logits in own_logits_of_two_groups(name, folder, (yes,) if score == "yes_and_end" else ()):
        logs = logits.log_softmax(dim=-1)
        if score == "log_odds":
            sides = [[words.convert_tokens_to_ids(w) for w in (one, one.lower())] for one in ("Yes", "No")]
            expected.append(float(logs[0, sides[0]].logsumexp(0) - logs[0, sides[1]].logsumexp(0)))
        else:
            answer = [yes, words.eos_token_id][: len(logs)]
            expected.append(float(logs[range(len(logs)), answer].mean().exp()))
    arguments = {"pretrained": folder, "score": score}
    run = ttmbench.simple_evaluate("vqascore", "shapes_color", model_args=arguments, batch_size=5, **QUICK)
    found = run.scores["shapes_color"]["none"][0].groups
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), atol=5e-4 if score == "log_odds" else 1e-6)
    if score == "log_odds":
        assert np.ptp(found, axis=1).max() > 1e-3 and np.ptp(found, axis=2).max() > 1e-3, "both sides matter"


def test_the_prompt_is_that_of_the_paper(name, folder):
    adapter = vqascore.load(pretrained=folder, device="cpu")
    assert adapter.fingerprint()["prompt"] == PROMPTS[name].format(QUESTION)


def test_questions_of_several_lengths_in_one_batch(name, folder):
    captions = ["a red circle", "two dogs on the left of a blue square and a green star", "cat"]
    image = groups_of("shapes_color", 1)[0].images[0].open()
    found = vqascore.load(pretrained=folder, device="cpu", score="yes_token").score_pairs([image] * 3, captions)
    for score, caption in zip(found, captions, strict=True):
        logits, words = own_logits(name, folder, image, caption)
        assert score == pytest.approx(float(logits[0].softmax(-1)[words.convert_tokens_to_ids("yes")]), abs=1e-6)


def test_adapters_keep_the_contract(folder):
    made = check_adapter(vqascore.load(pretrained=folder, device="cpu"))
    assert "pairs: loss is the mean over pairs" in made and "pairs: the state comes back after training" in made


def test_an_adapted_one_is_saved_and_loads_again(folder, tmp_path):
    words = ["--model", "vqascore", "--model_args", f"pretrained={folder}", "--tasks", "shapes_color", "--limit", "3"]
    words += ["--device", "cpu", "--ttm", "--ttm_args", "iterations=1,epochs=1,tau_start=0", "--bootstrap_iters", "0"]
    out = tmp_path / "x.json"
    assert main([*words, "--save_adapted", str(tmp_path / "adapted"), "--output_path", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["model_info"]["fingerprint"]["prompt"].startswith('Question: Does this figure show "{caption}"?')
    adapter = vqascore.load(pretrained=str(tmp_path / "adapted"), device="cpu")
    image = groups_of("shapes_color", 1)[0].images[0].open()
    assert np.isfinite(adapter.score_pairs([image], ["a red circle"])).all()


def test_tiles_are_not_theirs(tiny_vlm):
    with pytest.raises(UsageError, match="neither splits nor pads images"):
        vqascore.load(pretrained=str(tiny_vlm("blip2", captioner=True, language="opt")), split_images=True)


@pytest.mark.parametrize(
    ("config", "instead"),
    [
        ({"model_type": "clip_t5", "architectures": ["CLIPT5ForConditionalGeneration"]}, "ttmbench score"),
        ({"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]}, "llava-hf/llava-1.5-7b-hf"),
    ],
)
def test_models_with_code_of_their_own_are_told_what_to_use(config, instead, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    for model in ("vqascore", "visualgpt", "choice"):
        words = ["--model", model, "--model_args", f"pretrained={tmp_path}", "--tasks", "shapes_color"]
        assert main(words) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert "is not supported" in line and config["architectures"][0] in line and instead in line
