"""VisualGPTScore: log-likelihoods are those of the model's own forward; P(t), debiasing, and the sweep over alpha."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from support.adapter_inputs import chat_inputs, groups_of, own_model, quick_scores, with_tokens
from support.task_data import find

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model_adapters import visualgpt
from ttmbench.testing import check_adapter

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
QUICK = {"limit": 2, "bootstrap_iters": 0, "device": "cpu"}
CAPTIONS = ["a red circle", "two dogs on the left of a blue square and a green star", "cat"]
SLOW = ("smolvlm",)  # read as others are
KINDS = ("blip-captioner", "blip2-opt", "blip2-t5", "llava", "qwen2_vl", "idefics3", "paligemma", *SLOW)


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in KINDS]
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, tiny_vlm):
    return tiny_vlm(name)


@pytest.fixture(scope="module")
def adapter(folder):
    """As it is loaded; no test changes it."""
    return visualgpt.load(pretrained=str(folder), device="cpu")


@pytest.fixture
def blip(tiny_vlm):
    return str(tiny_vlm("blip-captioner"))


@cache
def own_words_and_pixels(folder):
    return tf.AutoTokenizer.from_pretrained(folder), tf.AutoImageProcessor.from_pretrained(folder)


def own_likelihood(name, folder, *, end=False, prompt=""):
    """Mean log-likelihood of a caption for one image (or its pixels), straight from the model's logits."""
    (words, shaper), (model, processor) = own_words_and_pixels(folder), own_model(folder)

    def score(image, caption, pixels=None):
        own = words(caption, add_special_tokens=False)["input_ids"]
        last = words.sep_token_id if name in ("blip-captioner", "git") else words.eos_token_id
        wanted, start = ([*own, last] if end else own), 1
        if name.startswith("blip"):
            inputs = {"pixel_values": shaper(images=image, return_tensors="pt")["pixel_values"]} if image else {}
            queries = (
                [] if name == "blip-captioner" else [model.config.image_token_index] * model.config.num_query_tokens
            )
            start = len(queries) + 1
            first = {"blip-captioner": words.convert_tokens_to_ids("[DEC]"), "blip2-opt": words.bos_token_id}
            ids = [*queries, first.get(name, words.eos_token_id)]
            inputs["input_ids"] = torch.tensor([ids if name == "blip2-t5" else [*ids, *wanted]])
            if name == "blip2-t5":
                inputs["decoder_input_ids"], start = torch.tensor([[0, *wanted[:-1]]]), 1
        elif name == "florence2":
            inputs = processor(text=prompt or "<CAPTION>", images=image, return_tensors="pt")
            inputs["labels"], start = torch.tensor([words(caption)["input_ids"]]), 2
        elif name == "kosmos2":
            inputs = processor(text=f"{prompt} {caption}", images=image, return_tensors="pt", num_image_tokens=5)
            behind = {"input_ids": [last] * end, "attention_mask": [1] * end, "image_embeds_position_mask": [0] * end}
            for key, more in behind.items():
                inputs[key] = torch.cat([inputs[key], torch.tensor([more], dtype=torch.long)], dim=1)
            start = -len(wanted)
        elif name == "git":
            asked = words(prompt, add_special_tokens=False)["input_ids"] if prompt else []
            inputs = {"input_ids": torch.tensor([[words.cls_token_id, *asked, *wanted]])}
            inputs |= shaper(images=image, return_tensors="pt")
            start = -len(wanted)
        else:
            asked = chat_inputs(processor, image, "", "caption en")
            inputs, start = with_tokens(asked, wanted), asked["input_ids"].shape[1]
        if pixels is not None:
            inputs["pixel_values"] = pixels
        with torch.no_grad():
            logs = model(**inputs).logits[0, start - 1 :].double().log_softmax(dim=-1)
        return float(sum(logs[place, token] for place, token in enumerate(wanted)) / len(wanted))

    return score


@pytest.mark.parametrize("end", [False, True])
def test_scores_of_a_run_equal_the_models_own(name, folder, end):
    score = own_likelihood(name, folder, end=end)
    groups = groups_of("shapes_color", 2)
    expected = np.array([[[score(image.open(), text) for text in g.captions] for image in g.images] for g in groups])
    found, _ = quick_scores("visualgpt", "shapes_color", batch_size=5, pretrained=folder, end_token=end)
    assert found.dtype == np.float32 and np.ptp(found, axis=1).max() > 1e-3, "the image matters"
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_the_loss_is_binary_cross_entropy_of_likelihoods(adapter):
    assert {"preparing changes no pair score", "pairs: loss is the mean over pairs"} <= set(check_adapter(adapter))
    images, matched = [Image.new("RGB", (40, 40), color) for color in ("red", "blue", "green")], [True, False, True]
    likely = np.exp(adapter.score_pairs(images, CAPTIONS).astype(float))
    loss = adapter.pair_loss(adapter.prepare_images(images), CAPTIONS, np.array(matched))
    assert float(loss.detach()) == pytest.approx(-np.log(np.where(matched, likely, 1 - likely)).mean(), abs=1e-5)


def test_a_captioner_that_cannot_be_trained_says_why(blip):
    cases = {"alpha=0": {"alpha": 0.5}, "weights_dtype=fp32": {"weights_dtype": "bf16"}, "fp16 cannot train": {}}
    for fact, arguments in cases.items():
        how = {"model_args": {"pretrained": blip, **arguments}, "ttm": True, **QUICK}
        with pytest.raises(UsageError, match=fact):
            ttmbench.simple_evaluate("visualgpt", "shapes_color", dtype="fp32" if arguments else "fp16", **how)


CAPTIONERS = [("git", "", False), ("kosmos2", "a photo of", True), ("florence2", "", False)]
MORE = [(kind, *how) for kind in ("git", "kosmos2", "florence2") for how in (("", True), ("a photo of", False))]


@pytest.mark.parametrize(
    ("kind", "prompt", "end"), [*CAPTIONERS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_captioners_score_as_their_own_forward(kind, prompt, end, tiny_vlm):
    """The caption's tokens alone count: no prompt, mark, placeholder or padding."""
    folder = str(tiny_vlm(kind))
    adapter = visualgpt.load(pretrained=folder, device="cpu", prompt=prompt, end_token=end)
    images = [image.open() for group in groups_of("shapes_color", 2) for image in group.images][: len(CAPTIONS)]
    expected = [*map(own_likelihood(kind, folder, end=end, prompt=prompt), images, CAPTIONS)]
    np.testing.assert_allclose(adapter.score_pairs(images, CAPTIONS), expected, atol=1e-5, rtol=0)
    assert "batch size changes no pair score" in check_adapter(adapter)
    assert kind != "git" or np.isfinite(adapter.log_priors(CAPTIONS)).all()


def noise(shape, count, mean=0.0, std=0.25, seed=0):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(shape), generator=source) * std + mean for _ in range(count)]


def test_p_t_is_the_mean_over_noise_images(name, folder):
    blank = Image.new("RGB", (336, 336), (127, 127, 127))
    shape = own_words_and_pixels(folder)[1](images=[blank], return_tensors="pt")["pixel_values"].shape
    score = own_likelihood(name, folder)
    drawn = noise(shape, 2, mean=0.5, std=1.0, seed=7)
    if name == "qwen2_vl":  # patches of 3 channels, 2 frames and 64 pixels: an image is a film of two equal frames
        half = noise((shape[0], 3, 1, 64), 2, mean=0.5, std=1.0, seed=7)
        drawn = [torch.cat([frame, frame], dim=2).reshape(shape) for frame in half]
    expected = [np.log(np.mean([np.exp(score(blank, text, pixels)) for pixels in drawn])) for text in CAPTIONS]
    adapter = visualgpt.load(
        pretrained=str(folder), device="cpu", noise_images=2, noise_mean=0.5, noise_std=1.0, noise_seed=7
    )
    found = adapter.log_priors(CAPTIONS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_a_task_says_how_many_noise_images_stand_for_p_t(blip, folder_task, tmp_path, monkeypatch):
    """Winoground has 100 in the paper, other tasks 3; a number that a user gives wins."""
    named = ("winoground", "winoground_global", "sugarcrepe_add_att")
    assert [find(task).spec.noise_images for task in named] == [100, 100, None]
    path = folder_task("noisy") / "noisy.yaml"
    own, asked, plain = visualgpt.BlipCaptioner._noise_images, [], path.read_text()
    monkeypatch.setattr(visualgpt.BlipCaptioner, "_noise_images", lambda self, n: asked.append(n) or own(self, n))
    found = []
    for count, more in ((None, {}), (5, {}), (5, {"noise_images": 2}), (None, {})):
        path.write_text(plain if count is None else f"{plain}\nnoise_images: {count}\n")
        arguments = {"pretrained": blip, "alpha": 1.0, **more}
        how = {"model_args": arguments, "use_cache": str(tmp_path / "cache"), **QUICK}
        run = ttmbench.simple_evaluate("visualgpt-blip", str(path), **how)
        found.append(run.scores["noisy"]["none"][0].groups.tolist())
    assert asked == [3, 5, 2], "cached scores are those of as many images"
    assert found[0] == found[3] and found[0] != found[1] != found[2] != found[0]


def test_alpha_takes_that_much_of_log_p_t_off(blip):
    groups = groups_of("shapes_color", 2)
    score = own_likelihood("blip-captioner", blip)
    drawn = noise((1, 3, 32, 32), 3)
    prior = np.array(
        [[np.log(np.mean([np.exp(score(None, text, p)) for p in drawn])) for text in g.captions] for g in groups]
    )
    likelihood = np.array([[[score(i.open(), text) for text in g.captions] for i in g.images] for g in groups])
    for alpha in (0.4, 1.0):
        found, run = quick_scores("visualgpt-blip", "shapes_color", pretrained=blip, alpha=alpha)
        np.testing.assert_allclose(found, likelihood - alpha * prior[:, None, :], atol=1e-4, rtol=0)
        assert run["model_info"]["fingerprint"]["alpha"] == alpha


def test_test_images_as_the_sample_of_p_t(blip):
    groups = groups_of("shapes_spatial", 4)
    score = own_likelihood("blip-captioner", blip)
    images = [group.images[0].open() for group in groups]
    likelihood = np.array([[[score(p, text) for text in g.captions] for p in images] for g in groups])
    expected = likelihood[np.arange(4), np.arange(4)] - np.log(np.exp(likelihood).mean(axis=1))
    arguments = {"pretrained": blip, "alpha": 1.0, "prior": "test_images"}
    found, _ = quick_scores("visualgpt-blip", "shapes_spatial", limit=4, **arguments)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-4, rtol=0)
    with pytest.raises(TtmbenchError, match="at most 20000"):
        quick_scores("visualgpt-blip", "shapes_spatial", limit=200, **arguments)


def test_debiased_global_scores_are_those_of_the_groups(blip):
    _, run = quick_scores("visualgpt-blip", "shapes_color_global", pretrained=blip, alpha=0.7)
    scores = run.scores["shapes_color_global"]["none"][0]
    for index in range(2):
        inside = scores.all_pairs[2 * index : 2 * index + 2, 2 * index : 2 * index + 2]
        np.testing.assert_allclose(inside, scores.groups[index], atol=1e-6)
    with pytest.raises(TtmbenchError, match="at most 20000"):
        quick_scores("visualgpt-blip", "shapes_color_global", limit=100, pretrained=blip)


def test_wrong_arguments_are_one_clear_error(blip, tiny_hf_clip):
    for options in ({"alpha": 1.5}, {"prior": "train"}, {"noise_images": 0}, {"pad_images": True}):
        with pytest.raises(UsageError, match=next(iter(options)).replace("pad_images", "pad")):
            visualgpt.load(pretrained=blip, device="cpu", **options)
    with pytest.raises(TtmbenchError, match=r"CLIP|needs transformers"):
        visualgpt.load(pretrained=str(tiny_hf_clip), device="cpu")


@pytest.fixture
def analyze(blip, tmp_path, monkeypatch, capsys):
    """The sweep over a task: its document, what was printed, and the sizes of scored batches."""
    own, scored = visualgpt.BlipCaptioner.score_prepared, []

    def counted(self, images, captions):
        scored.append(len(captions))
        return own(self, images, captions)

    def run(task):
        words = ["analyze", "alpha", "--model", "visualgpt-blip", "--tasks", task, "--limit", "20", "--device", "cpu"]
        with monkeypatch.context() as patched:
            patched.setattr(visualgpt.BlipCaptioner, "score_prepared", counted)
            assert main([*words, "--model_args", f"pretrained={blip}", "--output_path", str(tmp_path)]) == 0
        assert {path.suffix for path in tmp_path.rglob("alpha_*")} == {".json", ".png", ".svg"}
        (path,) = tmp_path.rglob("alpha_*.json")
        return json.loads(path.read_text()), capsys.readouterr().out, scored

    return run


def test_the_sweep_gives_what_runs_with_each_alpha_give(blip, analyze):
    """And tuning never uses the groups that it is scored on, restated with loops."""
    document, printed, _ = analyze("shapes_replace")
    assert "alpha tuned on the other half" in printed
    alphas, curves = document["alpha"], {row["name"]: row for row in document["rows"]}
    assert (alphas[0], alphas[-1], len(alphas)) == (0.0, 1.0, 201)
    for alpha in (0.0, 0.5, 1.0):
        _, run = quick_scores("visualgpt-blip", "shapes_replace", limit=20, pretrained=blip, alpha=alpha)
        for metric in ("text_score", "group_match"):
            assert curves[metric]["values"][alphas.index(alpha)] == run.results["shapes_replace"][f"{metric},none"]
    assert curves["text_score"]["chance"] == 0.5
    held = document["held_out"]
    scores, _ = quick_scores("visualgpt-blip", "shapes_replace", limit=20, pretrained=blip)
    adapter = visualgpt.load(pretrained=blip, device="cpu")
    likelihood = scores[:, 0]
    prior = np.stack([adapter.log_priors(group.captions) for group in groups_of("shapes_replace", 20)])
    order = np.random.default_rng([0, 5]).permutation(20)
    halves = [sorted(order[:10]), sorted(order[10:])]

    def right(alpha, group):
        first, second = likelihood[group] - np.float32(alpha) * prior[group]
        return first > second

    chosen = []
    for half in halves:
        counts = [sum(right(alpha, group) for group in half) for alpha in np.linspace(0, 1, 201)]
        chosen.append(float(np.linspace(0, 1, 201)[int(np.argmax(counts))]))
    assert held["alphas"] == chosen and held["groups"] == [10, 10]
    total = sum(right(chosen[1 - place], group) for place, half in enumerate(halves) for group in half)
    assert held["value"] == total / 20


def test_the_sweep_runs_the_model_once_and_says_what_does_not_depend_on_alpha(analyze):
    document, _, scored = analyze("shapes_color")
    distinct = {caption for group in groups_of("shapes_color", 20) for caption in group.captions}
    assert sum(scored) == 20 * 4 + 3 * len(distinct), "each pair once, and each caption with three noise images"
    curves = {row["name"]: row for row in document["rows"]}
    depends = {name: curves[name]["depends_on_alpha"] for name in ("group_match", "image_score", "text_score")}
    assert depends == {"group_match": False, "image_score": False, "text_score": True}


def test_the_sweep_is_for_generative_scores(tmp_path, capsys):
    words = ["analyze", "alpha", "--model", "tiny-clip", "--tasks", "shapes_color", "--output_path", str(tmp_path)]
    assert main(words) == 2
    assert "no log P(t)" in capsys.readouterr().err


@pytest.fixture
def strict(tiny_vlm, tmp_path):
    """A model whose template refuses something: the part of a template that does."""

    def make(refusal):
        shutil.copytree(tiny_vlm("llava"), tmp_path / "strict")
        template = tmp_path / "strict" / "chat_template.jinja"
        template.write_text(refusal + template.read_text())
        return str(tmp_path / "strict")

    return make


def test_a_template_that_refuses_is_one_clear_error(strict):
    folder = strict("{% if messages[0]['content'] | length < 2 %}{{ raise_exception('say something') }}{% endif %}")
    with pytest.raises(UsageError, match="say something"):
        visualgpt.load(pretrained=folder, device="cpu").score_pairs([Image.new("RGB", (40, 40))], CAPTIONS[:1])
    adapter = visualgpt.load(pretrained=folder, device="cpu", prompt="Describe the image")
    assert adapter.score_pairs([Image.new("RGB", (40, 40))], CAPTIONS[:1]).shape == (1,)


def test_a_template_without_open_turns_still_scores_captions(strict, tiny_vlm):
    """Where no template can leave the caption open, its tokens follow the prompt's."""
    folder = strict("{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}")
    image = groups_of("shapes_color", 1)[0].images[0].open()
    found = [
        visualgpt.load(pretrained=place, device="cpu").score_pairs([image], CAPTIONS[:1])
        for place in (folder, str(tiny_vlm("llava")))
    ]
    np.testing.assert_allclose(*found, atol=1e-5)
