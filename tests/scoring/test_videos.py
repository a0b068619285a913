"""Models on videos: features pooled over frames, trained through all of them; and models that take none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.adapter_inputs import own_model, pooled_of
from support.rounding import bound
from support.task_data import find, load

import ttmbench
from ttmbench._util.images import frames_in, frames_of
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.model import ChoiceStyle
from ttmbench.model_adapters import hf
from ttmbench.scoring.videos import AFTER, BEFORE, on_videos

QUICK = {"limit": 3, "device": "cpu", "bootstrap_iters": 0}
FRAMES = 8


@pytest.fixture(scope="module")
def model():
    return hf.load(pretrained="tiny_clip", device="cpu")


@pytest.fixture(scope="module")
def groups():
    return load("shapes_order", limit=3).groups


def by_hand(model, groups, pooling: str) -> np.ndarray:
    """Scores by transformers alone: features of every frame of every video, pooled."""
    clip, rows = model.model, []
    for group in groups:
        videos = []
        for image in group.images:
            pixels = model.image_processor(images=frames_of(image.open()), return_tensors="pt")
            each = pooled_of(clip.get_image_features(**pixels))
            if pooling == AFTER:
                each = torch.nn.functional.normalize(each, dim=-1)
            videos.append(torch.nn.functional.normalize(each.mean(dim=0), dim=-1))
        tokens = model.prepare_captions(group.captions)
        captions = torch.nn.functional.normalize(pooled_of(clip.get_text_features(**tokens)), dim=-1)
        rows.append((torch.stack(videos) @ captions.T * clip.logit_scale.exp()).detach().numpy())
    return np.stack(rows)


def test_scores_are_those_of_features_pooled_by_hand_also_from_the_cache(model, groups, tmp_path):
    for pooling in (AFTER, BEFORE) * 2:
        options = {**QUICK, "task_args": {"video.pooling": pooling}, "use_cache": str(tmp_path)}
        run = ttmbench.simple_evaluate(model, "shapes_order", **options)
        expected = by_hand(model, groups, pooling)
        found = run.scores["shapes_order"]["none"][0].groups
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound(model.model, expected))
        source = run.document["datasets"]["shapes_order"]["source"]
        assert source["video"] == {"frames": FRAMES, "rule": "middles", "pooling": pooling}
    assert not np.allclose(expected, by_hand(model, groups, AFTER), rtol=0, atol=2 * bound(model.model, expected))


@pytest.mark.parametrize("pooling", [AFTER, BEFORE])
def test_the_gradient_of_a_batch_goes_through_every_frame(model, groups, pooling):
    """The loss of videos is the model's own of pooled features, and each frame gets its part of the gradient."""
    pooled = on_videos(model, "clips", FRAMES, pooling)
    opened = [image.open() for group in groups for image in group.images]
    captions = pooled.prepare_captions([caption for group in groups for caption in group.captions])
    prepared = pooled.prepare_images(opened)
    assert prepared["pixel_values"].shape[:2] == (len(opened), FRAMES) == (len(opened), frames_in(opened[0]))
    loss = pooled.matching_loss(prepared, captions)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.model.vision_model.parameters())
    scores = torch.from_numpy(by_hand(model, groups, pooling)).diagonal(dim1=1, dim2=2)
    own = pooled.logits(pooled.encode_images(prepared), pooled.encode_captions(captions)).diagonal()
    torch.testing.assert_close(own.detach(), scores.reshape(-1), rtol=0, atol=bound(model.model, scores))
    model.model.zero_grad()


@pytest.mark.parametrize("ttm_args", ["augment=true", "augment=false,loss=own"])
def test_ttm_adapts_to_videos_and_restores_the_model(model, ttm_args, capsys):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = dict(pair.split("=") for pair in ttm_args.split(","))
    settings = {**settings, "augment": settings["augment"] == "true", "iterations": 1, "epochs": 1, "tau_end": 0.0}
    run = ttmbench.simple_evaluate(model, "shapes_order", **QUICK, ttm=True, ttm_args={**settings, "tau_start": 0.0})
    (record,) = run.document["methods"]["shapes_order"]["ttm"]["iterations"]
    assert record["selected"] == 3 and all(np.isfinite(record["loss"]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_takes_no_videos_says_so_in_one_line(groups, tmp_path, capsys):
    class OneImage:
        def score_pairs(self, images, captions):
            raise AssertionError("asked")

    joining = Watching({})
    joining.choice_style = ChoiceStyle(side_by_side=True)
    for one, message in ((OneImage(), "are videos, and this model"), (joining, "side_by_side joins images")):
        with pytest.raises(UsageError, match=message):
            ttmbench.simple_evaluate(one, "shapes_order", **QUICK)
    for words, message in (
        (["finetune"], "the items of task 'shapes_order' are videos"),
        (["--methods", "zero", "--limit", "2"], "one caption or videos"),
    ):
        words += ["--model", "tiny-clip", "--tasks", "shapes_order", "--device", "cpu"]
        main([*words, "--output_path", str(tmp_path / "out")])
        assert message in "".join(capsys.readouterr())


class Watching:
    """Answers by the frames that it is shown: which object is first seen alone is read from the colours of pixels."""

    choice_style = ChoiceStyle()

    def __init__(self, captions) -> None:
        self.captions, self.prompts = captions, []

    def fingerprint(self):
        return {"weights": "none"}

    def answer(self, questions):
        return [self._answered(question) for question in questions]

    def _answered(self, question):
        self.prompts.append(question.prompt)
        images = list(question.images)
        videos = [images[start : start + FRAMES] for start in range(0, len(images), FRAMES)]
        shown = [self.captions[b"".join(frame.tobytes() for frame in video)] for video in videos]
        if len(shown) == 1:
            return next(f"({letter})" for letter in "AB" if f"({letter}) {shown[0]}" in question.prompt)
        wanted = question.prompt.partition("the description ")[2].partition("?")[0]
        return f"Video {shown.index(wanted) + 1}"


def test_a_chat_model_is_shown_the_frames_of_a_turn(groups):
    captions = {
        image.open().tobytes(): caption
        for group in groups
        for image, caption in zip(group.images, group.captions, strict=True)
    }
    model = Watching(captions)
    run = ttmbench.simple_evaluate(model, "shapes_order", **QUICK)
    assert run.results["shapes_order"]["group_score,choice"] == 1.0
    assert len(model.prompts) == 12
    assert all("frames" in prompt and "video" in prompt and "image " not in prompt for prompt in model.prompts)
    stated = run.document["choice"]["shapes_order"]["prompts"]
    assert stated["text"].startswith("The 8 images are frames of a video, in order. Does this video present (A)")
    assert "8 of the first video, then 8 of the second video. Which video better" in stated["image"]


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "smolvlm", pytest.param("internvl", marks=pytest.mark.slow)])
def test_vqascore_shows_the_frames_of_a_video_in_one_turn(kind, tiny_vlm):
    """P(yes) is that of transformers' own template, processor and forward with as many images in the turn."""
    folder = tiny_vlm(kind)
    frames = 3
    settings = {"task_args": {"video.frames": frames}, "model_args": {"pretrained": str(folder)}, "dtype": "fp32"}
    run = ttmbench.simple_evaluate("vqascore", "shapes_order", **{**QUICK, "limit": 2}, **settings)
    model, processor = own_model(folder)
    words = processor.tokenizer
    sides = [[words.convert_tokens_to_ids(word) for word in (side, side.lower())] for side in ("Yes", "No")]
    expected = []
    for group in load(find("shapes_order").with_source({"video.frames": frames}), limit=2).groups:
        for image in group.images:
            for caption in group.captions:
                question = (
                    f"The {frames} images are frames of a video, in order. "
                    f'Does this figure show "{caption}"? Please answer yes or no.'
                )
                turn = {"role": "user", "content": [{"type": "image"}] * frames + [{"type": "text", "text": question}]}
                prompt = processor.apply_chat_template([turn], add_generation_prompt=True)
                begun = {"add_special_tokens": False} if words.bos_token and prompt.startswith(words.bos_token) else {}
                inputs = processor(text=[prompt], images=[frames_of(image.open())], return_tensors="pt", **begun)
                with torch.no_grad():
                    after = model(**inputs).logits[0, -1].double().softmax(dim=-1)
                yes, no = (float(after[side].sum()) for side in sides)
                expected.append(np.log(yes / no))
    scores = run.scores["shapes_order"]["none"][0].groups
    np.testing.assert_allclose(scores.reshape(-1), expected, atol=1e-4, rtol=1e-5)
    assert len(set(np.round(scores.reshape(-1), 3))) > 4, "videos and captions matter"


def test_a_served_model_is_sent_the_frames_of_a_video_in_one_turn(chat_server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    arguments = {"model": "test-model", "base_url": chat_server.url, "cache": str(tmp_path / "answers.sqlite")}
    options = {**QUICK, "limit": 1, "task_args": {"video.frames": 3}, "model_args": arguments}
    run = ttmbench.simple_evaluate("openai", "shapes_order", **options)
    assert run.results["shapes_order"]["group_score,none"] in (0.0, 1.0)
    assert run.document["model_info"]["usage"]["answers"] == len(chat_server.requests) == 4
    for request in chat_server.requests:
        *images, text = request["messages"][0]["content"]
        assert [part["type"] for part in images] == ["image_url"] * 3 and len({str(part) for part in images}) == 3
        assert text["text"].startswith("The 3 images are frames of a video, in order. Does this figure show")
