"""VQAScore: P(yes) is that of the model's own forward, for every kind of model, and nothing beside a pair moves it."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support import tiny_models
from support.adapter_inputs import chat_inputs, groups_of, own_model, quick_scores, random_images, with_tokens
from support.rounding import bound
from support.stand_in_gpu import stand_in_gpu
from tokenizers import Tokenizer, models
from transformers import AutoModelForImageTextToText, CLIPImageProcessor

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import choice, hf, vqascore
from ttmbench.model_adapters._shared.options import QUESTION, VqascoreOptions
from ttmbench.model_adapters._shared.pair_model import projected
from ttmbench.model_adapters.vqascore import answer_tokens
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.scoring.pairs import pair_table
from ttmbench.testing import check_adapter
from ttmbench.types import Group, ImageRef

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
CHATS = "llava qwen2_vl qwen3_vl smolvlm idefics3 internvl paligemma".split()
PROMPTS = {"blip2-opt": "Question: {} Answer:", "blip2-t5": "Question: {} Short answer:"}
PROMPTS |= dict.fromkeys(("instructblip-llama", "instructblip-t5"), "Question: {}")
SLOW = ("smolvlm", "internvl", "instructblip-llama")  # read as others are


def some_slow(kinds, slow=SLOW):
    return [pytest.param(one, marks=pytest.mark.slow if one in slow else ()) for one in kinds]


@pytest.fixture(scope="module", params=some_slow((*CHATS, *PROMPTS)))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tiny_vlm):
    return tiny_vlm(kind)


@pytest.fixture(scope="module")
def adapter(folder):
    """As it is loaded; no test leaves it changed."""
    return vqascore.load(pretrained=str(folder), device="cpu")


def own_logits(kind, folder, image, caption, written=()):
    """Logits after the prompt and after each written token: by transformers' own processor, template and forward."""
    model, processor = own_model(folder)
    question = f'Does this figure show "{caption}"? Please answer yes or no.'
    if kind in CHATS:
        inputs = with_tokens(chat_inputs(processor, image, question, "answer en "), written)
    else:
        processor.num_query_tokens = model.config.num_query_tokens
        inputs = dict(processor(images=image, text=PROMPTS[kind].format(question), return_tensors="pt"))
        if kind.endswith("t5"):
            inputs["decoder_input_ids"] = torch.tensor([[model.config.text_config.decoder_start_token_id, *written]])
        else:
            inputs = with_tokens(inputs, written)
    with torch.no_grad():
        return model(**inputs).logits[0, -1 - len(written) :].double()


def own_answers(folder, logits):
    """P(yes) and P(no) after the prompts of some pairs."""
    words = own_model(folder)[1].tokenizer
    sides = [[words.convert_tokens_to_ids(word) for word in (side, side.lower())] for side in ("Yes", "No")]
    return np.array([[float(one[0].softmax(dim=-1)[side].sum()) for side in sides] for one in logits])


@cache
def own_logits_of_two_groups(kind, folder, written=()):
    pairs = [(i.open(), c) for group in groups_of("shapes_color", 2) for i in group.images for c in group.captions]
    return [own_logits(kind, folder, image, caption, written) for image, caption in pairs]


def scored(adapter, folder, score):
    """A short run of the loaded model with another score."""
    asked = VqascoreOptions(pretrained=str(folder), score=score, device="cpu")
    return quick_scores(vqascore.VQAScore(adapter.chat, asked), "shapes_color", batch_size=5)


def test_scores_of_a_run_equal_the_models_own(kind, folder, adapter):
    own = own_answers(folder, own_logits_of_two_groups(kind, folder))
    for score, expected in (("log_odds", np.log(own[:, 0] / own[:, 1])), ("probability", own[:, 0])):
        found, _ = scored(adapter, folder, score)
        assert found.dtype == np.float32
        allowed = 1e-6 if score == "probability" else 1e-4 if kind in CHATS else 5e-4
        np.testing.assert_allclose(found, expected.reshape(found.shape), atol=allowed, rtol=1e-5)
        if score == "log_odds":  # by far more than the tolerance; how much depends on how a version draws weights
            assert np.ptp(found, axis=1).max() > 1e-3 and np.ptp(found, axis=2).max() > 1e-3, "both sides matter"


def test_the_published_variants_are_the_likelihood_of_one_answer(kind, folder, adapter):
    """t2v_metrics: exp of minus the mean cross-entropy of "Yes", alone or with the token that ends the answer."""
    words = own_model(folder)[1].tokenizer
    answer = [words.convert_tokens_to_ids("Yes" if kind in CHATS else "yes"), words.eos_token_id]
    for score, tokens in (("yes_token", answer[:1]), ("yes_and_end", answer)):
        logits = own_logits_of_two_groups(kind, folder, tuple(tokens[:-1]))
        losses = [torch.nn.functional.cross_entropy(one, torch.tensor(tokens)) for one in logits]
        found, run = scored(adapter, folder, score)
        np.testing.assert_allclose(found, torch.stack(losses).neg().exp().view(found.shape), atol=1e-6, rtol=1e-4)
        assert run["model_info"]["fingerprint"]["answer_ids"] == tokens


def test_images_of_several_sizes_and_captions_of_several_lengths_in_one_batch(kind, folder, adapter):
    """Different numbers of tiles and tokens: padding, order and batches change nothing.

    The model's own answers are of one pair each; ``check_adapter`` holds batches of one to be like others.
    """
    rng = np.random.RandomState(1)
    sizes = [(64, 40), (30, 66), (48, 48), (90, 33)]
    pil_images = [Image.fromarray(rng.randint(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    captions = ("a red circle", "two dogs on the left of a blue square and a green star", "cat", "a yellow star")
    images = tuple(ImageRef(str(index), lambda p=p: p) for index, p in enumerate(pil_images))
    prepared = prepare(adapter, Inputs([Group("0", images, captions)]), 2)
    expected = own_answers(folder, [own_logits(kind, folder, p, c) for p in pil_images for c in captions])
    expected = np.log(expected[:, 0] / expected[:, 1]).reshape(4, 4)
    for batch_size in (3, 16):
        found = pair_table(adapter, prepared, batch_size, all_pairs=True).every
        np.testing.assert_allclose(found, expected, atol=1e-4 if kind in CHATS else 5e-4, rtol=0)


def test_adapters_keep_the_contract(adapter):
    made = check_adapter(adapter)
    assert "pairs: loss is the mean over pairs" in made and "pairs: the state comes back after training" in made


def test_the_loss_is_the_cross_entropy_of_the_right_answer(kind, folder, adapter, monkeypatch):
    groups = groups_of("shapes_color", 2)
    images = [image.open() for group in groups for image in group.images]
    captions = [group.captions[0] for group in groups for _ in group.images]
    matched = np.array([True, False, True, False])
    own = own_answers(folder, own_logits_of_two_groups(kind, folder)[::2])
    for module in adapter.model.modules():
        if isinstance(module, torch.nn.Dropout):
            monkeypatch.setattr(module, "p", 0.0)
    loss = adapter.pair_loss(adapter.prepare_images(images), adapter.prepare_captions(captions), matched)
    assert float(loss.detach()) == pytest.approx(-np.log(np.where(matched, own[:, 0], own[:, 1])).mean(), abs=1e-4)


@pytest.mark.parametrize("kind", some_slow(["llava", *PROMPTS], ("blip2-opt", "instructblip-llama")), indirect=True)
def test_the_command_line_adapts_them_and_a_saved_one_loads_again(kind, folder, tmp_path):
    out = tmp_path / "x.json"
    words = ["--model", "vqascore", "--model_args", f"pretrained={folder}", "--tasks", "shapes_color", "--limit", "3"]
    words += ["--device", "cpu", "--ttm", "--ttm_args", "iterations=1,epochs=1,tau_start=0", "--bootstrap_iters", "0"]
    assert main([*words, "--save_adapted", str(tmp_path / "adapted"), "--output_path", str(out)]) == 0
    info = json.loads(out.read_text())["model_info"]
    assert info["capabilities"] == ["PairScorer", "trainable"]
    declared = info["fingerprint"]
    assert set(declared["yes_tokens"]) == {"Yes", "yes"} and set(declared["no_tokens"]) == {"No", "no"}
    assert '"{caption}"' in declared["prompt"] and declared["score"] == "log_odds"
    assert kind in CHATS or declared["prompt"] == PROMPTS[kind].format(QUESTION), "the prompt is that of the paper"
    adapter = vqascore.load(pretrained=str(tmp_path / "adapted"), device="cpu")
    assert np.isfinite(adapter.score_pairs([Image.new("RGB", (40, 40))], ["a red circle"])).all()


@pytest.fixture
def llava(tiny_vlm):
    return str(tiny_vlm("llava"))


@pytest.fixture
def thinker(tiny_vlm, tmp_path):
    """A LLaVA whose template opens a thought unless it is told not to, and which then says "star"."""
    folder = shutil.copytree(tiny_vlm("llava"), tmp_path / "llava")
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    opened = "ASSISTANT:{% if enable_thinking is not defined or enable_thinking %} left{% endif %}"
    (folder / "chat_template.jinja").write_text(template.replace("ASSISTANT:", opened), encoding="utf-8")
    model, processor = own_model(folder)
    with torch.no_grad():
        words = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        star, left = processor.tokenizer.convert_tokens_to_ids(["star", "left"])
        words[left] = 100 * torch.sign(words[left])  # drowns what the layers add
        head[star] = torch.sign(words[left])
    model.save_pretrained(folder)
    return str(folder)


def test_a_model_that_thinks_first_is_an_error(thinker, tmp_path, capsys):
    """Also where all scores come from the cache, of which some pairs are asked again."""
    run = ["--model", "vqascore", "--limit", "6", "--use_cache", str(tmp_path), "--model_args", f"pretrained={thinker}"]
    for task, of in (("shapes_color", 24), ("shapes_color", 6), ("shapes_retrieval", 72)):
        target = tmp_path / f"{of}.json"
        assert main([*run, "--tasks", task, "--output_path", str(target)]) == 1
        found = json.loads(target.read_text(encoding="utf-8"))["undecided"][task]
        assert (found["pairs"], found["of"], found["instead"]) == (of, of, "star") and found["mass"] < 0.01
        (notice,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("undecided: ")]
        assert "'star'" in notice and len(notice) <= 160
    off = vqascore.load(pretrained=thinker, device="cpu", chat_template_kwargs={"enable_thinking": False})
    assert off.fingerprint()["prompt"].endswith("ASSISTANT:"), "the switch of the template"


@pytest.mark.parametrize("kind", ["perception_lm", "mllama"])
def test_what_a_vision_encoder_returns_is_passed_on(kind, tiny_vlm):
    """Families whose encoder returns other fields than most, or whose images are not encoded apart (Mllama).

    Images of several sizes, several prompts each.
    """
    folder, rng = tiny_vlm(kind), np.random.RandomState(1)
    adapter = vqascore.load(pretrained=str(folder), device="cpu")
    sizes = [(64, 40), (30, 66), (48, 48)]
    images = [Image.fromarray(rng.randint(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    pairs = [(image, caption) for image in images for caption in ("a red circle", "two dogs and a cat")]
    (model, processor), own = own_model(folder), []
    for image, caption in pairs:
        with torch.no_grad():
            inputs = chat_inputs(processor, image, QUESTION.format(caption=caption), "")
            own.append(model(**inputs).logits[0, -1:].double())
    answers = own_answers(folder, own)
    found = adapter.score_pairs(*zip(*pairs, strict=True))
    np.testing.assert_allclose(found, np.log(answers[:, 0] / answers[:, 1]), atol=1e-5, rtol=0)
    assert np.ptp(found[::2]) > 1e-3 and np.ptp(found.reshape(3, 2), axis=1).max() > 1e-3, "both sides matter"


def test_a_model_of_another_kind_is_named_alone(tiny_hf_clip, tiny_vlm):
    tiny_models.needs_chat()
    with pytest.raises(DataError, match="CLIPConfig") as caught:
        vqascore.load(pretrained=str(tiny_hf_clip), device="cpu")
    assert "AriaConfig" not in str(caught.value)
    for load in (vqascore.load, choice.load):  # whose logits are of the image's positions too
        with pytest.raises(UsageError):
            load(pretrained=str(tiny_vlm("git")), device="cpu")


@pytest.mark.parametrize(
    ("architecture", "instead"),
    [("CLIPT5ForConditionalGeneration", "ttmbench score"), ("LlavaLlamaForCausalLM", "llava-hf/llava-1.5-7b-hf")],
)
def test_models_with_code_of_their_own_are_told_what_to_use(architecture, instead, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    for module in (hf, vqascore, choice):
        with pytest.raises(UsageError, match=f"{architecture}.*{instead}"):
            module.load(pretrained=str(tmp_path))


def test_another_question_and_an_answer_prefix_are_part_of_the_prompt(llava):
    question, caption = "Is the caption {caption} right?", "a red circle"
    adapter = vqascore.load(pretrained=llava, device="cpu", template=question, answer_prefix=" is")
    inputs = chat_inputs(adapter.chat.processor, random_images(1)[0], question.format(caption=caption), "")
    inputs = with_tokens(inputs, adapter.chat.tokenizer.encode("is", add_special_tokens=False))
    with torch.no_grad():
        own = own_answers(llava, [own_model(llava)[0](**inputs).logits[0, -1:].double()])[0]
    assert adapter.score_pairs(random_images(1), [caption]) == pytest.approx(np.log(own[0] / own[1]), abs=1e-4)
    prompt = adapter.fingerprint()["prompt"]
    assert question in prompt and prompt.endswith("ASSISTANT: is")


def test_wrong_arguments_are_one_clear_error(llava, tiny_vlm):
    with pytest.raises(UsageError, match="'score': must be 'log_odds'"):
        vqascore.load(pretrained=llava, score="odds")
    for name, match, options in (
        ("llava", r"has no \{caption\}", {"template": "Is it so?"}),
        ("llava", "does not split images", {"split_images": True}),
        ("blip2-opt", "omit split_images", {"split_images": True}),
        ("smolvlm", r"not a LLaVA-1\.5", {"pad_images": True}),
    ):
        with pytest.raises(UsageError, match=match):
            vqascore.load(pretrained=str(tiny_vlm(name)), **options)


def test_splitting_can_be_switched_off(tiny_vlm):
    folder = str(tiny_vlm("idefics3"))
    image = Image.new("RGB", (64, 64), (200, 30, 30))
    lengths = []
    for split in (True, False):
        adapter = vqascore.load(pretrained=folder, device="cpu", split_images=split)
        (prepared,), (prompt,) = adapter.prepare_images([image]), adapter.prepare_captions(["a red circle"])
        lengths.append(len(adapter.chat.row(prepared, prompt)["input_ids"]))
    assert lengths[0] > lengths[1]


def test_images_of_llava_are_padded_as_its_authors_do(llava, tmp_path):
    """Square of the longer side in the mean colour, then CLIP's preprocessing; by itself where a checkpoint says so."""
    own = CLIPImageProcessor.from_pretrained(llava)
    adapters = {
        wanted: vqascore.load(pretrained=llava, device="cpu", pad_images=wanted) for wanted in (True, False, None)
    }
    folder = tmp_path / "padding"
    shutil.copytree(llava, folder)
    adapters[True].chat.processor.save_pretrained(folder)
    says_so = vqascore.load(pretrained=str(folder), device="cpu")
    assert says_so.fingerprint()["preprocessing"]["do_pad"] is True
    rng = np.random.RandomState(2)
    for width, height in ((60, 30), (31, 64), (40, 40)):
        image = Image.fromarray(rng.randint(0, 256, (height, width, 3), dtype=np.uint8))
        side = max(width, height)
        square = Image.new("RGB", (side, side), tuple(int(255 * mean) for mean in own.image_mean))
        square.paste(image, ((side - width) // 2, (side - height) // 2))
        cut, padded = (own(images=one, return_tensors="pt")["pixel_values"] for one in (image, square))
        assert (width == height) == torch.allclose(cut, padded)
        expected = {adapters[True]: padded, adapters[False]: cut, adapters[None]: cut, says_so: padded}
        for adapter, pixels in expected.items():
            (prepared,) = adapter.prepare_images([image])
            torch.testing.assert_close(prepared.features["pixel_values"], pixels, atol=2e-2, rtol=0)


def test_half_precision_keeps_scores_in_fp32(llava):
    scores = {}
    for name, options in {
        "fp32": {},
        "arithmetic": {"dtype": "bf16"},
        "weights": {"dtype": "bf16", "weights_dtype": "bf16"},
    }.items():
        adapter = vqascore.load(pretrained=llava, device="cpu", **options)
        run = ttmbench.simple_evaluate(adapter, "shapes_color", limit=4, bootstrap_iters=0)
        scores[name] = run.scores["shapes_color"]["none"][0].groups
        rounded = torch.from_numpy(scores[name]).bfloat16().float().numpy()
        assert not np.array_equal(rounded, scores[name]), "the last layer's answers are not rounded"
    for name in ("arithmetic", "weights"):
        assert not np.array_equal(scores[name], scores["fp32"])
        np.testing.assert_allclose(scores[name], scores["fp32"], atol=0.3)
    with pytest.raises(UsageError, match="too coarse to train"):
        adapter.pair_loss([], [], np.zeros(0, dtype=bool))


def test_answers_are_all_tokens_that_say_it():
    def vocabulary(*words):
        known = {word: at for at, word in enumerate(["<unk>", *words])}
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(known, unk_token="<unk>")), unk_token="<unk>"
        )

    byte_pairs = vocabulary("Yes", "ĠYes", "Ġyes", "yes", "Yesterday", "No")
    assert set(answer_tokens(byte_pairs, "yes")) == {"Yes", "ĠYes", "Ġyes", "yes"}
    assert set(answer_tokens(byte_pairs, "no")) == {"No"}
    assert set(answer_tokens(vocabulary("▁Yes", "▁yes"), "yes")) == {"▁Yes", "▁yes"}
    with pytest.raises(UsageError, match="no single token for 'no'"):
        answer_tokens(vocabulary("▁Yes"), "no")


@pytest.mark.parametrize("one", ["llava", "qwen2_vl"])
def test_a_batch_computes_what_its_prompts_share_once(one, tiny_vlm):
    pairs, seen = [(i.open(), c) for g in groups_of("shapes_color", 2) for i in g.images for c in g.captions], []
    folder = str(tiny_vlm(one))
    with stand_in_gpu(), torch.no_grad():
        adapter = vqascore.load(pretrained=folder, device="cuda")
        assert "image_prefix" in adapter.fingerprint()
        images = adapter.prepare_images([image for image, _ in pairs[::2]])
        encoded = adapter.encode_images([image for image in images for _ in range(2)])
        asked = adapter.prepare_captions([caption for _, caption in pairs])
        lengths = [
            len(adapter.chat.row(image, prompt)["input_ids"]) for (image, _), prompt in zip(encoded, asked, strict=True)
        ]
        adapter.model.model.language_model.register_forward_pre_hook(
            lambda _, args, given: seen.append(given["inputs_embeds"].shape[:2]), with_kwargs=True
        )
        together = adapter.score_prepared(encoded, asked)
        (images, shared), (captions, rest) = seen
        assert (images, captions, shared + rest) == (4, 8, max(lengths))
        alone = [adapter.score_prepared([image], [prompt]) for image, prompt in zip(encoded, asked, strict=True)]
        assert [length for _, length in seen[2:]] == lengths, "an image with one caption is computed at once"
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


@pytest.mark.parametrize("one", some_slow(CHATS, (*SLOW, "qwen3_vl")))
def test_images_are_prepared_in_threads_and_encoded_once(one, tiny_vlm, monkeypatch):
    adapter = vqascore.load(pretrained=str(tiny_vlm(one)), device="cpu")
    images = [image for pair in zip(random_images(3), random_images(3, (30, 90)), strict=True) for image in pair]
    prepared = adapter.prepare_images(images)
    with ThreadPoolExecutor(4) as threads:
        for own, (other,) in zip(
            prepared, threads.map(lambda image: adapter.prepare_images([image]), images), strict=True
        ):
            assert all(torch.equal(value, other.features[name]) for name, value in own.features.items())
    assert ("image_prefix" in adapter.fingerprint()) == (one != "paligemma")
    calls, encoded = [], adapter.chat._encoded
    monkeypatch.setattr(adapter.chat, "_encoded", lambda image: calls.append(image) or encoded(image))
    question = adapter.prepare_captions(["a red circle"] * 12)
    with torch.inference_mode():
        scores = adapter.score_prepared(adapter.encode_images(prepared * 2), question)
    assert len(calls) == 6 and np.ptp(scores) > 1e-3


def test_weights_are_as_the_checkpoint_has_them_on_an_accelerator(tiny_vlm, tmp_path, monkeypatch):
    """And what they are is stated; such weights are too coarse to train, which is known before anything is scored."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_vlm("llava"), folder)
    AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert "bfloat16" in json.loads((folder / "config.json").read_text()).values()
    here = vqascore.load(pretrained=str(folder), device="cpu")
    assert here.fingerprint()["weights"] == "float32" and here.untrainable is None
    with stand_in_gpu():
        there = vqascore.load(pretrained=str(folder), device="cuda")
        assert there.fingerprint()["weights"] == "bfloat16"
        assert "weights_dtype=fp32" in there.untrainable
        with pytest.raises(UsageError, match="too coarse to train"):
            there.check_trainable()
        asked = vqascore.load(pretrained=str(folder), device="cuda", weights_dtype="fp32")
        assert asked.fingerprint()["weights"] == "float32" and asked.untrainable is None


def test_the_last_layer_converts_its_weights_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr("ttmbench.model_adapters._shared.pair_model._ROWS", 7)
    layer = torch.nn.Linear(16, 40, dtype=torch.bfloat16)
    states = torch.randn(3, 16)
    whole = torch.nn.functional.linear(states, layer.weight.float(), layer.bias.float())
    found = projected(states, layer.weight, layer.bias.float())
    assert torch.allclose(found, whole, atol=bound(layer, whole.abs().max()), rtol=0)
