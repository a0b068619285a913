"""transformers models: scores, loss and gradient are those of the model's own forward; the contract holds."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.adapter_inputs import CAPTIONS, Reduced, assert_same_gradients, logits_of, random_images
from support.tiny_models import SQUARE

from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import model_info, remarks
from ttmbench.model_adapters import hf
from ttmbench.testing import check_adapter

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LIKES = {  # class of the model, class and settings of its image processor, the rest
    "MetaClip2": (None, {}, {}),
    "AltCLIP": (None, {}, {"text": {**NO_DROPOUT, "project_dim": 24}}),
    "ChineseCLIP": ("ChineseCLIP", {"size": SQUARE, "crop_size": SQUARE}, {"text": NO_DROPOUT}),
    "Siglip2": ("Siglip2", {"patch_size": 8, "max_num_patches": 16}, {"length": 16, "text": {"projection_size": 32}}),
}
LIKES["Siglip2"][2]["vision"] = {**tiny_models.TEXT, "patch_size": 8, "num_patches": 16}


@pytest.fixture(params=["siglip", "clip"])
def folder(request, tiny_siglip, tiny_hf_clip):
    return {"siglip": tiny_siglip, "clip": tiny_hf_clip}[request.param]


@pytest.fixture(scope="module", params=["siglip", "clip", *LIKES])
def any_folder(request, tiny_siglip, tiny_hf_clip, tmp_path_factory):
    """Also of models that share CLIP's interface."""
    if request.param not in LIKES:
        return {"siglip": tiny_siglip, "clip": tiny_hf_clip}[request.param]
    if request.param == "ChineseCLIP":  # before, its get_text_features fails
        pytest.importorskip("transformers", minversion="5.0")
    return write_like(tmp_path_factory.mktemp(request.param), request.param)


def write_like(folder, family, again=False):
    """A model that shares CLIP's interface; ``again``: images of ALIGN are normalised twice."""
    if family == "Siglip":
        return tiny_models.siglip(folder)
    images, settings, how = LIKES.get(family, (None, {}, {}))
    images = images and getattr(transformers, f"{images}ImageProcessor")(**settings)
    sizes = {} if family in ("Siglip2", "Align", "Tipsv2") else {"projection_dim": 24}
    if family == "Align":
        layers = {"kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [1]}
        layers |= {"num_block_repeats": [1], "expand_ratios": [1], "width_coefficient": 1.0, "depth_coefficient": 1.0}
        how = {"text": {**NO_DROPOUT, "max_position_embeddings": 64}, "projection_dim": 16}
        how |= {"vision": {"image_size": 32, "hidden_dim": 16, **layers}, "temperature_init_value": 0.05}
        images = transformers.EfficientNetImageProcessor(
            size=SQUARE, crop_size=SQUARE, include_top=again, rescale_offset=True, rescale_factor=1 / 127.5
        )
    elif family == "Tipsv2":
        how = {"text": {"max_position_embeddings": 64}, "temperature_init_value": 0.05}
        images = transformers.Tipsv2ImageProcessor(size=SQUARE)
    return tiny_models.dual(folder, family, images, seed=3, **sizes, **how)


def own_forward(folder):
    """The model's own pipeline: processor, forward, loss."""
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if getattr(model, "logit_bias", None) is not None else True
    texts = tokenizer(CAPTIONS, padding=padding, return_token_type_ids=False, return_tensors="pt")
    images = transformers.AutoImageProcessor.from_pretrained(folder)(images=random_images(), return_tensors="pt")
    return model, model(**texts, **images, return_loss=True)


def test_logits_loss_and_gradient_equal_the_models_own(any_folder):
    adapter = hf.load(pretrained=str(any_folder), device="cpu")
    model, expected = own_forward(any_folder)
    found = logits_of(adapter)
    assert found.dtype == torch.float32 and torch.allclose(found, expected.logits_per_image, atol=1e-4, rtol=0)
    loss = adapter.matching_loss(adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS))
    assert float(loss.detach()) == pytest.approx(float(expected.loss.detach()), abs=1e-4)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(adapter.model, model)


def test_adapters_keep_the_contract_and_a_model_that_cuts_patches_is_not_augmented(any_folder):
    adapter = hf.load(pretrained=str(any_folder), device="cpu")
    made = check_adapter(adapter)
    assert "batch size changes no score" in made and "the state comes back after training" in made
    if "Siglip2" in any_folder.name:
        with pytest.raises(UsageError, match="no images of one fixed size"):
            adapter.prepare_enlarged(random_images(), 1.25)
        return
    enlarged = adapter.prepare_enlarged(random_images(), 1.25)
    images = enlarged if isinstance(enlarged, list) else enlarged["pixel_values"]
    assert min(min(image.shape[1:]) for image in images) == 40


@pytest.mark.parametrize("name", ["tiny_clip", "tiny_clip_seed1"])
def test_the_built_in_models_keep_the_contract(name):
    assert check_adapter(hf.load(pretrained=name, device="cpu"))


def test_bf16_scores_are_fp32_and_near(folder):
    exact, fast = (hf.load(pretrained=str(folder), device="cpu", dtype=dtype) for dtype in ("fp32", "bf16"))
    scores = logits_of(fast)
    assert exact.prepare_images(random_images())["pixel_values"].dtype == torch.uint8
    assert scores.dtype == torch.float32 and not torch.equal(scores, logits_of(exact))
    assert all(parameter.dtype == torch.float32 for parameter in fast.parameters())
    assert torch.allclose(scores, logits_of(exact), atol=0.3)
    half = hf.load(pretrained=str(folder), device="cpu", dtype="fp16")
    with pytest.raises(UsageError, match="--dtype bf16 or fp32"):
        half.matching_loss(half.prepare_images(random_images()), half.prepare_captions(CAPTIONS))


def test_tensors_of_another_model_are_refused_by_name(tmp_path, folder):
    original = (folder / "config.json").read_text(encoding="utf-8")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for part, key in (("vision_config", "image_size"), ("text_config", "max_position_embeddings")):
        config = json.loads(original)
        config[part][key] *= 2
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(DataError, match="position_embedding"):
            hf.load(pretrained=str(tmp_path), device="cpu")
    (tmp_path / "config.json").write_text(original, encoding="utf-8")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["logit_scale"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="logit_scale"):
        hf.load(pretrained=str(tmp_path), device="cpu")


def test_a_model_that_is_nowhere_is_one_clear_error():
    with pytest.raises(DataError, match="is neither a folder here nor available"):
        hf.load(pretrained="nobody/no-such-model", device="cpu", offline=True)
    with pytest.raises(DataError, match="must be a folder here or the name of a repository"):
        hf.load(pretrained="./no/such/folder", device="cpu")


@pytest.fixture
def pickled(tmp_path, tiny_hf_clip):
    """The tiny CLIP as old repositories hold it: ``pytorch_model.bin``, with buffers that nothing needs any more."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_hf_clip, folder)
    tensors = load_file(folder / "model.safetensors")
    old = {"text_model.embeddings.position_ids": torch.arange(8)[None]}
    torch.save({**tensors, **old}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_a_pickle_is_read_as_tensors_alone(pickled, tiny_hf_clip):
    adapter, safe = hf.load(pretrained=str(pickled), device="cpu"), hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    assert adapter.state_sha256 == safe.state_sha256
    said = model_info(adapter)["source"]
    assert said == {"name": "pickled", "commit": None, "files": ["pytorch_model.bin"], "format": "pickle"}
    assert model_info(safe)["source"]["format"] == "safetensors"
    assert "weights_only=True" in remarks(adapter)[0] and not remarks(safe)


def test_a_pickle_in_shards(pickled, tiny_hf_clip):
    tensors = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    names = sorted(tensors)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, some in halves.items():
        torch.save({name: tensors[name] for name in some}, pickled / file)
    where = {name: file for file, some in halves.items() for name in some}
    index = pickled / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    (pickled / "pytorch_model.bin").unlink()
    adapter = hf.load(pretrained=str(pickled), device="cpu")
    assert adapter.state_sha256 == hf.load(pretrained=str(tiny_hf_clip), device="cpu").state_sha256
    (pickled / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(DataError, match=r"missing pytorch_model-00002-of-00002\.bin; copy it again"):
        hf.load(pretrained=str(pickled), device="cpu")
    for broken in ("[]", "{", '{"weight_map": 3}', '{"weight_map": {"x": "../../pytorch_model.bin"}}'):
        index.write_text(broken, encoding="utf-8")
        with pytest.raises(DataError):
            hf.load(pretrained=str(pickled), device="cpu")


def test_a_program_in_a_pickle_is_not_run(pickled, tmp_path):
    trace = tmp_path / "trace"
    torch.save({"logit_scale": Reduced(open, (str(trace), "w"))}, pickled / "pytorch_model.bin")
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        hf.load(pretrained=str(pickled), device="cpu")
    assert not trace.exists() and "\n" not in str(caught.value)
    assert re.search(r"open|pytorch_model\.bin", str(caught.value)) and "set to `False`" not in str(caught.value)


def test_a_model_of_open_clip_is_told_from_one_of_transformers(tmp_path):
    (tmp_path / "open_clip_pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match="has no weights that transformers reads"):
        hf.load(pretrained=str(tmp_path), device="cpu")


@pytest.mark.slow
def test_a_compiled_model_scores_and_trains_the_same(folder):
    plain, fast = (hf.load(pretrained=str(folder), device="cpu", compile=compile) for compile in (False, True))
    for one in (plain, fast):
        one.matching_loss(one.prepare_images(random_images()), one.prepare_captions(CAPTIONS)).backward()
    assert torch.allclose(logits_of(plain), logits_of(fast), atol=1e-4)
    assert_same_gradients(fast.model, plain.model)


def test_models_with_two_heads_are_refused(tiny_vlm):
    for name in ("flava", "blip", "blip2"):
        with pytest.raises(UsageError, match="need its own heads"):
            hf.load(pretrained=str(tiny_vlm(name)), device="cpu")


@pytest.mark.parametrize(("family", "again"), [("Align", False), ("Align", True), ("Tipsv2", None)])
def test_models_that_divide_by_their_temperature(family, again, tmp_path):
    if not hasattr(transformers, f"{family}Model"):
        pytest.skip(f"{family} is not in this release of transformers")
    write_like(tmp_path, family, again)
    images = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    adapter = hf.load(pretrained=str(tmp_path), device="cpu")
    expected = own_forward(tmp_path)[0].eval()
    inputs = {**transformers.AutoTokenizer.from_pretrained(tmp_path)(CAPTIONS, padding=True, return_tensors="pt")}
    with torch.no_grad():
        own = expected(**inputs, **images(images=random_images(), return_tensors="pt")).logits_per_image
    assert own.std() > 1e-3 and torch.allclose(logits_of(adapter), own, atol=1e-5, rtol=1e-5)
    assert "batch size changes no score" in check_adapter(adapter)
