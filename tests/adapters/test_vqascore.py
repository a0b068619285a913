"""VQAScore: P(yes) is that of the model's own forward, for every kind of model, and nothing beside a pair moves it."""

from __future__ import annotations

import inspect
import json
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from support.adapter_inputs import groups_of

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import vqascore
from ttmbench.model_adapters._shared.options import QUESTION, VqaScoreOptions
from ttmbench.model_adapters.vqascore import answer_tokens
from ttmbench.scoring.pairs import score_in_memory
from ttmbench.scoring.prepare import prepare
from ttmbench.testing import check_adapter
from ttmbench.types import Group, ImageRef

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
QUICK = {"limit": 2, "bootstrap_iters": 0, "device": "cpu"}
KINDS = [
    "llava",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "idefics3",
    "internvl",
    "paligemma",
]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tiny_vlm):
    return tiny_vlm("chat", kind=kind)


@cache
def own_model(folder):
    """The model and its processor as transformers loads them."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def own_answers(folder, pairs):
    """P(yes) and P(no) of single pairs, by the model's own processor, template and forward."""
    model, processor = own_model(folder)
    words = processor.tokenizer
    found = []
    for image, caption in pairs:
        question = f'Does this figure show "{caption}"? Please answer yes or no.'
        if processor.chat_template:
            content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
            inputs = processor.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        else:
            inputs = processor(text=f"<image>answer en {question}", images=image, return_tensors="pt")
            inputs.pop("labels", None)
        with torch.no_grad():
            after = model(**inputs).logits[0, -1].double().softmax(dim=-1)
        found.append(
            [float(sum(after[words.convert_tokens_to_ids(word)] for word in (w, w.lower()))) for w in ("Yes", "No")]
        )
    return np.array(found)


@cache
def own_answers_of_two_groups(folder):
    groups = groups_of("shapes_color", 2)
    pairs = [(image.open(), caption) for group in groups for image in group.images for caption in group.captions]
    return own_answers(folder, pairs)


@pytest.mark.parametrize("score", ["log_odds", "probability"])
def test_scores_of_a_run_equal_the_models_own(folder, score):
    own = own_answers_of_two_groups(folder)
    expected = np.log(own[:, 0] / own[:, 1]) if score == "log_odds" else own[:, 0]
    arguments = {"pretrained": str(folder), "score": score}
    run = ttmbench.simple_evaluate("vqascore", "shapes_color", model_args=arguments, **QUICK)
    found = run.scores["shapes_color"]["none"][0].groups
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-4, rtol=0)
    if score == "log_odds":  # by far more than the tolerance; how much depends on how a version draws random weights
        assert np.ptp(found, axis=1).max() > 2e-3 and np.ptp(found, axis=2).max() > 2e-3, "both sides matter"


@pytest.mark.parametrize("score", ["yes_token", "yes_and_end"])
def test_the_published_variants_are_the_likelihood_of_one_answer(folder, score):
    """t2v_metrics: exp of minus the mean cross-entropy of "Yes", alone or with the token that ends the answer."""
    model, processor = own_model(folder)
    words = processor.tokenizer
    answer = [words.convert_tokens_to_ids("Yes"), words.eos_token_id][: 1 if score == "yes_token" else 2]
    groups = groups_of("shapes_color", 2)
    expected = []
    for image, caption in ((i.open(), c) for g in groups for i in g.images for c in g.captions):
        question = f'Does this figure show "{caption}"? Please answer yes or no.'
        if processor.chat_template:
            content = [{"type": "image"}, {"type": "text", "text": question}]
            prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        else:
            prompt = f"<image>answer en {question}"
        inputs = processor(text=prompt, images=[image], return_tensors="pt")
        inputs.pop("labels", None)
        more, start = torch.tensor([answer]), inputs["input_ids"].shape[1]
        for key, kind in (("token_type_ids", 1), ("mm_token_type_ids", 0)):
            if key in inputs:
                inputs[key] = torch.cat([inputs[key], torch.full_like(more, kind)], dim=1)
        for key, value in {"input_ids": more, "attention_mask": torch.ones_like(more)}.items():
            inputs[key] = torch.cat([inputs[key], value], dim=1)
        with torch.no_grad():
            logits = model(**inputs).logits[0, start - 1 : -1].double()
        expected.append(float(torch.exp(-torch.nn.functional.cross_entropy(logits, more[0]))))
    arguments = {"pretrained": str(folder), "score": score}
    run = ttmbench.simple_evaluate("vqascore", "shapes_color", model_args=arguments, batch_size=5, **QUICK)
    found = run.scores["shapes_color"]["none"][0].groups
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), atol=1e-6, rtol=1e-4)
    assert run["model_info"]["fingerprint"]["answer_ids"] == answer


def test_images_of_several_sizes_and_captions_of_several_lengths_in_one_batch(folder):
    """Different numbers of tiles and tokens: padding, order and batches change nothing.

    The model's own answers are of one pair each; ``check_adapter`` holds batches of one to be like others.
    """
    rng = np.random.RandomState(1)
    sizes = [(64, 40), (30, 66), (48, 48), (90, 33)]
    pil_images = [Image.fromarray(rng.randint(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    captions = ("a red circle", "two dogs on the left of a blue square and a green star", "cat", "a yellow star")
    images = tuple(ImageRef(str(index), lambda p=p: p) for index, p in enumerate(pil_images))
    adapter = vqascore.load(pretrained=str(folder), device="cpu")
    prepared, _ = prepare(adapter, [Group("0", images, captions)], 2)
    expected = own_answers(folder, [(p, c) for p in pil_images for c in captions])
    expected = np.log(expected[:, 0] / expected[:, 1]).reshape(4, 4)
    for batch_size in (3, 16):
        found = score_in_memory(adapter, prepared, batch_size, all_pairs=True).every
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_adapters_keep_the_contract(folder):
    made = check_adapter(vqascore.load(pretrained=str(folder), device="cpu"))
    assert "pairs: loss is the mean over pairs" in made and "pairs: the state comes back after training" in made


def test_the_loss_is_the_cross_entropy_of_the_right_answer(folder):
    groups = groups_of("shapes_color", 2)
    images = [image.open() for group in groups for image in group.images]
    captions = [group.captions[0] for group in groups for _ in group.images]
    matched = np.array([True, False, True, False])
    own = own_answers(folder, list(zip(images, captions, strict=True)))
    adapter = vqascore.load(pretrained=str(folder), device="cpu")
    loss = adapter.pair_loss(adapter.prepare_images(images), adapter.prepare_captions(captions), matched)
    assert float(loss.detach()) == pytest.approx(-np.log(np.where(matched, own[:, 0], own[:, 1])).mean(), abs=1e-4)


def test_the_command_line_runs_them(folder, tmp_path):
    out = tmp_path / "x.json"
    words = ["--model", "vqascore", "--model_args", f"pretrained={folder}", "--tasks", "shapes_spatial"]
    assert main([*words, "--limit", "3", "--device", "cpu", "--batch_size", "5", "--output_path", str(out)]) == 0
    info = json.loads(out.read_text())["model_info"]
    assert info["capabilities"] == ["PairScorer", "PreparedPairScorer", "PairTrainable"]
    declared = info["fingerprint"]
    assert set(declared["yes_tokens"]) == {"Yes", "yes"} and set(declared["no_tokens"]) == {"No", "no"}
    assert '"{caption}"' in declared["prompt"] and declared["score"] == "log_odds"


# --- details, on one kind ---------------------------------------------------------------------------------------


@pytest.fixture
def llava(tiny_vlm):
    return str(tiny_vlm("chat", kind="llava"))


def test_preprocessing_and_vision_encoding_run_once_per_image(llava):
    adapter = vqascore.load(pretrained=llava, device="cpu")
    own, tower = adapter.chat.processor.image_processor, adapter.model.model.vision_tower
    seen = {"processed": 0, "encoded": 0}

    class Counting(type(own)):
        def __call__(self, images, **options):
            seen["processed"] += 1
            return super().__call__(images, **options)

    own.__class__ = Counting
    tower.register_forward_pre_hook(lambda *inputs: seen.__setitem__("encoded", seen["encoded"] + 1))
    ttmbench.simple_evaluate(adapter, "shapes_spatial", limit=5, batch_size=3, bootstrap_iters=0)
    assert seen == {"processed": 5, "encoded": 5}, "5 images, 4 captions each"
    assert type(adapter.chat.processor.image_processor) is Counting, "the processor is left as it was"


def test_another_question_changes_scores_and_is_on_record(llava):
    scores = []
    for template in (QUESTION, "Is the caption {caption} right?"):
        arguments = {"pretrained": llava, "template": template}
        run = ttmbench.simple_evaluate("vqascore", "shapes_color", model_args=arguments, **QUICK)
        assert template in run["model_info"]["fingerprint"]["prompt"]
        scores.append(run.scores["shapes_color"]["none"][0].groups)
    assert not np.allclose(*scores, atol=1e-3)


def test_a_caption_with_braces_is_taken_as_it_is(llava):
    adapter = vqascore.load(pretrained=llava, device="cpu")
    (prompt,) = adapter.prepare_captions(["a {red} {caption} circle"])
    assert '"a {red} {caption} circle"' in prompt


def test_wrong_arguments_are_one_clear_error(llava, tiny_vlm):
    with pytest.raises(UsageError, match="score must be log_odds, probability"):
        vqascore.load(pretrained=llava, score="odds")
    with pytest.raises(UsageError, match=r"has no \{caption\}"):
        vqascore.load(pretrained=llava, template="Is it so?")
    with pytest.raises(UsageError, match="does not split images"):
        vqascore.load(pretrained=llava, split_images=True)
    with pytest.raises(DataError, match="neither a folder here"):
        vqascore.load(pretrained="nobody/no-such-model", offline=True)


def test_a_model_without_a_chat_template_is_refused(llava, tmp_path):
    import shutil

    folder = tmp_path / "mute"
    shutil.copytree(llava, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template"):
        vqascore.load(pretrained=str(folder), device="cpu")


def test_splitting_can_be_switched_off(tiny_vlm):
    folder = str(tiny_vlm("chat", kind="idefics3"))
    image = Image.new("RGB", (64, 64), (200, 30, 30))
    lengths = []
    for split in (True, False):
        adapter = vqascore.load(pretrained=folder, device="cpu", split_images=split)
        (prepared,), (prompt,) = adapter.prepare_images([image]), adapter.prepare_captions(["a red circle"])
        lengths.append(len(adapter.chat.row(prepared, prompt)["input_ids"]))
    assert lengths[0] > lengths[1]


def test_images_of_llava_are_padded_as_its_authors_do(llava, tmp_path):
    """Square of the longer side in the mean colour, then CLIP's preprocessing; by itself where a checkpoint says so."""
    import shutil

    from transformers import CLIPImageProcessor, LlavaImageProcessor

    own = CLIPImageProcessor.from_pretrained(llava)
    adapters = {
        wanted: vqascore.load(pretrained=llava, device="cpu", pad_images=wanted) for wanted in (True, False, None)
    }
    folder = tmp_path / "padding"
    shutil.copytree(llava, folder)
    settings = {name: value for name, value in own.to_dict().items() if name != "image_processor_type"}
    processor = vqascore.load(pretrained=llava, device="cpu").chat.processor
    processor.image_processor = LlavaImageProcessor(**{**settings, "do_pad": True})
    processor.save_pretrained(folder)
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


def test_only_llava_pads(tiny_vlm):
    with pytest.raises(UsageError, match=r"not a LLaVA-1\.5, and only its images are padded"):
        vqascore.load(pretrained=str(tiny_vlm("chat", kind="smolvlm")), device="cpu", pad_images=True)


def test_a_model_that_takes_no_encoded_images_is_refused(llava, monkeypatch):
    from ttmbench.model_adapters._shared import image_text

    loaded = vqascore.load(pretrained=llava, device="cpu").loaded
    without = [one for name, one in inspect.signature(loaded.model.forward).parameters.items() if "mm_" not in name]
    own = inspect.signature
    monkeypatch.setattr(
        image_text.inspect,
        "signature",
        lambda of: inspect.Signature(without) if of == loaded.model.forward else own(of),
    )
    with pytest.raises(UsageError, match="LlavaForConditionalGeneration of transformers takes no encoded images"):
        image_text.ImageTextModel(loaded, torch.device("cpu"))


def test_half_precision_keeps_scores_in_fp32(llava):
    scores = {}
    for name, options in {
        "fp32": {},
        "arithmetic": {"dtype": "bf16"},
        "weights": {"dtype": "bf16", "weights": "bf16"},
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


def test_a_prompt_after_which_yes_is_no_single_token_is_refused(llava):
    from ttmbench.model_adapters._shared.image_text import ImageTextModel

    adapter = vqascore.load(pretrained=llava, device="cpu")
    assert len(ImageTextModel.answer_ids(adapter.chat, "Yes")) == 1
    adapter.chat.answer_ids = lambda answer: [3, 4]
    with pytest.raises(UsageError, match=r"score=yes_token: 'Yes' is not a single token .* score=probability"):
        vqascore.VQAScore(adapter.chat, VqaScoreOptions(pretrained="x", score="yes_token", device="cpu"))


class Vocabulary:
    """A tokenizer of words that are known, and of the rest in pieces."""

    unk_token_id = 0

    def __init__(self, words):
        self.words = {word: index for index, word in enumerate(["<unk>", *words])}

    def get_vocab(self):
        return self.words

    def encode(self, text, add_special_tokens):
        piece = text.replace(" ", "Ġ")
        return [self.words[piece]] if piece in self.words else [0] * len(text)

    def convert_ids_to_tokens(self, index):
        return list(self.words)[index]


def test_answers_are_all_tokens_that_say_it():
    byte_pairs = Vocabulary(["Yes", "ĠYes", "Ġyes", "yes", "Yesterday", "No"])
    assert set(answer_tokens(byte_pairs, "yes")) == {"Yes", "ĠYes", "Ġyes", "yes"}
    assert set(answer_tokens(byte_pairs, "no")) == {"No"}
    assert set(answer_tokens(Vocabulary(["▁Yes", "▁yes"]), "yes")) == {"▁Yes", "▁yes"}
    with pytest.raises(UsageError, match="no single token for 'no'"):
        answer_tokens(Vocabulary(["▁Yes"]), "no")
