"""Models of transformers that share CLIP's interface: scores, loss and gradient are those of their own forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.rounding import bound

from ttmbench.model_adapters import hf
from ttmbench.testing import check_adapter

CAPTIONS = ["a red circle", "two dogs and a blue square on the left of a yellow star", "the cat"]
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": 32, "patch_size": 8}
TOKENS = {"vocab_size": 60, "max_position_embeddings": 24, "bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SQUARE = {"crop_size": {"height": 32, "width": 32}}


def metaclip2():
    config = transformers.MetaClip2Config(text_config={**TOWER, **TOKENS}, vision_config=VISION, projection_dim=24)
    return (
        transformers.MetaClip2Model(config),
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, **SQUARE),
        20,
    )


def altclip():
    text = {**TOWER, **TOKENS, **NO_DROPOUT, "project_dim": 24}
    config = transformers.AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    return transformers.AltCLIPModel(config), transformers.CLIPImageProcessor(size={"shortest_edge": 32}, **SQUARE), 20


def chinese_clip():
    text = {**TOWER, **NO_DROPOUT, "vocab_size": 60, "max_position_embeddings": 24, "pad_token_id": 0}
    config = transformers.ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    size = {"height": 32, "width": 32}
    return transformers.ChineseCLIPModel(config), transformers.ChineseCLIPImageProcessor(size=size, **SQUARE), 20


def siglip2_naflex():
    text = {**TOWER, "vocab_size": 60, "max_position_embeddings": 16, "projection_size": 32}
    ids = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    vision = {**TOWER, "patch_size": 8, "num_patches": 16}
    config = transformers.Siglip2Config(text_config={**text, **ids}, vision_config=vision)
    return transformers.Siglip2Model(config), transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16), 16


def random_images():
    rng = np.random.RandomState(3)
    return [Image.fromarray(rng.randint(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(3)]


@pytest.fixture(
    scope="module", params=[metaclip2, altclip, chinese_clip, siglip2_naflex], ids=lambda make: make.__name__
)
def folder(request, tmp_path_factory, word_tokenizer):
    torch.manual_seed(3)
    model, image_processor, length = request.param()
    path = tmp_path_factory.mktemp(request.param.__name__)
    model.save_pretrained(path)
    image_processor.save_pretrained(path)
    word_tokenizer(eos="</s>", pad="<pad>", length=length).save_pretrained(path)
    return path


def own_forward(folder):
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if getattr(model, "logit_bias", None) is not None else True
    texts = tokenizer(CAPTIONS, padding=padding, return_tensors="pt")
    images = transformers.AutoImageProcessor.from_pretrained(folder)(images=random_images(), return_tensors="pt")
    return model, model(**texts, **images, return_loss=True)


def test_scores_loss_and_gradient_equal_the_models_own(folder):
    adapter = hf.load(pretrained=str(folder), device="cpu")
    model, expected = own_forward(folder)
    images, captions = adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS)
    with torch.no_grad():
        found = adapter.logits(adapter.encode_images(images), adapter.encode_captions(captions))
    assert torch.allclose(found, expected.logits_per_image, atol=1e-4, rtol=0)
    loss = adapter.matching_loss(images, captions)
    assert float(loss.detach()) == pytest.approx(float(expected.loss.detach()), abs=1e-4)
    loss.backward()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(gradients) > 20
    allowed = bound(model, max(gradient.abs().max() for gradient in gradients.values()), passes=2)
    for name, parameter in adapter.model.named_parameters():
        if name in gradients:
            assert torch.allclose(parameter.grad, gradients[name], atol=allowed, rtol=0), name


def test_they_keep_the_contract(folder):
    made = check_adapter(hf.load(pretrained=str(folder), device="cpu"))
    assert "the state comes back after training" in made


def test_a_model_that_cuts_patches_by_itself_cannot_be_augmented(folder):
    from ttmbench.errors import UsageError

    adapter = hf.load(pretrained=str(folder), device="cpu")
    if "siglip2" not in folder.name:
        enlarged = adapter.prepare_enlarged(random_images(), 1.25)
        assert (
            min(min(one.shape[1:]) for one in (enlarged if isinstance(enlarged, list) else enlarged["pixel_values"]))
            == 40
        )
        return
    with pytest.raises(UsageError, match="no images of one fixed size"):
        adapter.prepare_enlarged(random_images(), 1.25)
