"""open_clip models: scores, loss, gradient and preprocessing are open_clip's own; the contract holds; no pickles."""

from __future__ import annotations

import functools
import json
import shutil
import warnings

import numpy as np
import open_clip
import open_clip.pretrained
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.adapter_inputs import (
    CAPTIONS,
    Reduced,
    assert_captions_shift,
    assert_same_gradients,
    one_step,
    random_images,
)
from support.adapter_inputs import logits_of as scores
from support.rounding import bound
from support.tiny_models import OPEN_CLIP as CLIP

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import open_clip as open_clip_models
from ttmbench.model_adapters._shared.contrastive import normalised
from ttmbench.testing import check_adapter

VISION, TEXT = CLIP["vision_cfg"], CLIP["text_cfg"]
EOS = {**CLIP, "custom_text": True, "text_cfg": {**TEXT, "pool_type": "eos", "eos_id": 49407}}
UNMASKED = {**CLIP, "text_cfg": {**TEXT, "no_causal_mask": True}}
# As ViT-B-16-SigLIP, but for its sizes: a vision tower of timm, a text tower without a mask, a tokenizer of the hub.
SIGLIP = tiny_models.timm_shape("tiny/siglip", 60)
SIGLIP["text_cfg"] |= {"context_length": 16, "width": 64}
COCA = {
    "embed_dim": 24,
    "custom_text": True,
    "vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
    "text_cfg": {**TEXT, "context_length": 19, "embed_cls": True, "output_tokens": True},
    "multimodal_cfg": {**TEXT, "context_length": 19, "vocab_size": 49408, "attn_pooler_heads": 2},
}
HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "resize_mode": "squash"}


def write_model(folder, model_cfg, preprocess_cfg=(), tokenizer_from=None):
    """A random model as open_clip writes it; temperature and bias are moved from where they begin."""
    if tokenizer_from:
        shutil.copytree(tokenizer_from, folder, ignore=lambda _, names: [n for n in names if "tokenizer" not in n])
    tiny_models.open_clip(folder, model_cfg, dict(preprocess_cfg))
    tensors = load_file(folder / "open_clip_model.safetensors")
    moved = {"logit_scale": torch.tensor(2.3), "logit_bias": torch.tensor(-5.0)}
    tensors |= {name: value.reshape(tensors[name].shape) for name, value in moved.items() if name in tensors}
    return tiny_models.open_clip(folder, model_cfg, dict(preprocess_cfg), tensors=tensors)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_siglip):
    root = tmp_path_factory.mktemp("open_clip")
    return {
        "clip": write_model(root / "clip", CLIP),
        "eos": write_model(root / "eos", EOS),
        "unmasked": write_model(root / "unmasked", UNMASKED),
        "siglip": write_model(root / "siglip", SIGLIP, HALF, tokenizer_from=tiny_siglip),
        "coca": write_model(root / "coca", COCA),
    }


@pytest.fixture(params=["clip", "eos", "siglip"])
def folder(request, folders):
    return folders[request.param]


@pytest.fixture
def library(monkeypatch, folders, tmp_path):
    """Makes open_clip know the architecture ``tiny-clip-32`` with some tags; its repositories are in a hub cache."""
    tiny_models.know_architectures(monkeypatch, tmp_path / "configs", {"tiny-clip-32": CLIP})
    tags = {
        "plain_s1": open_clip.pretrained._pcfg(hf_hub="tiny/plain/"),
        "quick_s1": open_clip.pretrained._slpcfg(hf_hub="tiny/plain/", quick_gelu=True),
        "file_s1": open_clip.pretrained._pcfg(hf_hub="tiny/named/pytorch_model.bin"),
        "absent_s1": open_clip.pretrained._pcfg(hf_hub="tiny/absent/"),
        "url_s1": open_clip.pretrained._pcfg(url="https://example.org/x.pt"),
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip-32", tags)
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    _, named = (tiny_models.into_cache(cache, f"tiny/{repo}", folders["clip"]) for repo in ("plain", "named"))
    weights = named / "open_clip_model.safetensors"
    weights.rename(weights.with_name("pytorch_model.safetensors"))
    return folders["clip"] / "open_clip_model.safetensors"


def load(folder, **options):
    return open_clip_models.load(model=f"local-dir:{folder}", device="cpu", **options)


def own_pipeline(name, *, pretrained=None, **options):
    """open_clip's: transform, tokenizer and forward."""
    model, _, transform = open_clip.create_model_and_transforms(name, pretrained, **options)
    tokens = open_clip.get_tokenizer(name)(CAPTIONS)
    return model, torch.stack([transform(image) for image in random_images()]), tokens


def own_logits(name, **options):
    model, images, tokens = own_pipeline(name, **options)
    with torch.no_grad():
        return model.eval().get_logits(images, tokens)[0]


def near(found, expected, atol=1e-4):
    return torch.allclose(found, expected, atol=atol, rtol=0)


def test_logits_equal_open_clips_own(folder):
    found = scores(load(folder))
    assert found.dtype == torch.float32
    assert near(found, own_logits(f"local-dir:{folder}"))


def test_a_coca_is_scored_by_its_contrastive_towers(folders):
    model, images, tokens = own_pipeline(f"local-dir:{folders['coca']}")
    adapter = load(folders["coca"])
    with torch.no_grad():
        expected = model.eval().encode_image(images) @ model.encode_text(tokens).T * model.logit_scale.exp()
    assert near(scores(adapter), expected)
    assert check_adapter(adapter)


@pytest.mark.parametrize("name", ["clip", "siglip", "coca"])
def test_captions_of_every_text_tower_are_shifted(folders, name):
    adapter = load(folders[name])
    tokens = adapter.prepare_captions(CAPTIONS)
    ends = [1 + len(one.split()) for one in CAPTIONS] if name == "siglip" else tokens.argmax(dim=1).tolist()
    embedding = getattr(adapter.model, "text", adapter.model).token_embedding
    assert_captions_shift(adapter, embedding, CAPTIONS, [range(1, end) for end in ends])


def test_loss_and_gradient_equal_open_clips_own(folder):
    from open_clip.loss import ClipLoss, SigLipLoss

    adapter = load(folder)
    loss = adapter.matching_loss(adapter.prepare_images(random_images()), adapter.prepare_captions(CAPTIONS))
    loss.backward()
    model, images, tokens = own_pipeline(f"local-dir:{folder}")
    output = model.train()(images, tokens)
    own_loss = (ClipLoss() if len(output) == 3 else SigLipLoss())(*output)
    own_loss.backward()
    assert (len(output) == 4) == (folder.name == "siglip")
    assert float(loss.detach()) == pytest.approx(float(own_loss.detach()), abs=1e-4)
    assert_same_gradients(adapter.model, model)
    assert sum(bool(parameter.grad.abs().max() > 0) for parameter in adapter.parameters()) > 40


def test_adapters_keep_the_contract(folder):
    made = check_adapter(load(folder))
    assert "batch size changes no score" in made and "the state comes back after training" in made


@pytest.mark.parametrize(
    ("kind", "columns"), [("clip", 15), ("eos", 15), ("unmasked", 20), ("siglip", 16), ("coca", 19)]
)
def test_captions_are_cut_only_where_that_changes_nothing(folders, kind, columns):
    adapter = load(folders[kind])
    tokens = adapter.prepare_captions(CAPTIONS)
    text = open_clip_models._TextTower(adapter.model.eval())
    full = adapter.model.encode_text(tokens, normalize=False)
    assert text.reads_prefix(tokens) == columns
    # Whatever stands behind that column, the features stay what they are.
    garbage = tokens.clone()
    garbage[:, columns:] = 7
    for given in (garbage, tokens[:, :columns]):
        assert near(text.encode(given), full, atol=bound(adapter.model, full))
    parameters = [p for name, p in adapter.model.named_parameters() if "position" in name and "visual" not in name]
    whole, cut = (torch.autograd.grad(text.encode(t).sum(), parameters[:1])[0] for t in (tokens, tokens[:, :columns]))
    assert near(whole, cut, atol=1e-3)
    if kind not in ("clip", "eos"):  # there, what stands behind a caption does change its features
        garbage = tokens.clone()
        garbage[:, -2:] = 7
        assert columns == tokens.shape[1]
        assert not near(adapter.model.encode_text(garbage, normalize=False), full, atol=1e-3)


@pytest.fixture(scope="module")
def resizing(tmp_path_factory):
    """An adapter whose model says how images are resized, one for each way."""

    @functools.cache
    def make(mode):
        preprocess = {"resize_mode": mode, "interpolation": "bilinear", "fill_color": 9, "mean": [0.1, 0.2, 0.3]}
        return load(write_model(tmp_path_factory.mktemp(mode), CLIP, preprocess))

    return make


def transformed(steps, images):
    """open_clip's transform as Pillow ran it before version 13: rows first."""
    resize = Image.Image.resize

    def rows_first(image, size, resample=None, box=None, reducing_gap=None):
        return resize(resize(image, (size[0], image.height), resample), size, resample)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Image.Image, "resize", rows_first)
        return [open_clip.transform.Compose(steps)(image) for image in images]


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("size", [(50, 40), (40, 50), (20, 70)])
def test_a_crop_of_the_enlarged_image_is_a_window_of_open_clips_transform(resizing, mode, size):
    adapter = resizing(mode)
    model = adapter.model
    images = random_images(size=size)
    options = {**model.visual.preprocess_cfg, "is_train": False}
    del options["mode"], options["size"]
    own = torch.stack(transformed(open_clip.image_transform((32, 32), **options).transforms, images))
    prepared = adapter.prepare_images(images)
    assert prepared.dtype == torch.uint8 and prepared.shape == (3, 3, 32, 32)
    enlarged = adapter.prepare_enlarged(images, 1.2)
    assert all(one.dtype == torch.uint8 for one in enlarged)
    steps = open_clip.image_transform((38, 38), **options).transforms
    if mode == "shortest":  # nothing is cut out of the middle before the window is
        steps = [step for step in steps if type(step).__name__ != "CenterCrop"]
    larger = transformed(steps, images)
    assert [tuple(one.shape) for one in enlarged] == [tuple(one.shape) for one in larger]
    height, width = larger[0].shape[1:]
    assert (height, width) == (
        (38, 38) if mode != "shortest" else (38 * size[1] // min(size), 38 * size[0] // min(size))
    )
    corners = np.array([[0, 0], [0.5, 0.2], [0.99, 0.99]])
    places = (corners * (height - 31, width - 31)).astype(int)
    window = torch.stack([one[:, y : y + 32, x : x + 32] for one, (y, x) in zip(larger, places, strict=True)])
    crop = adapter.crop(enlarged, corners)
    assert crop.dtype == torch.uint8 and crop.shape == (3, 3, 32, 32)
    with torch.no_grad():
        for given, pixels in ((prepared, own), (crop, window)):
            expected = model.eval().encode_image(pixels, normalize=True)
            assert near(adapter.encode_images(given), expected, atol=bound(model, expected))


def test_an_image_that_is_not_rgb_is_converted_as_open_clip_converts_it(folders):
    adapter = load(folders["clip"])
    gray = [image.convert("L") for image in random_images()]
    transform = open_clip.create_model_and_transforms(f"local-dir:{folders['clip']}")[2]
    own = torch.stack([transform(image) for image in gray])
    assert near(normalised(adapter.prepare_images(gray), adapter._scale), own, atol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "eos", "siglip", "coca"])
def test_a_saved_model_scores_the_same_in_open_clip_and_here(folders, kind, tmp_path):
    adapter = load(folders[kind])
    before = scores(adapter)
    one_step(adapter)
    adapter.save(tmp_path)
    trained = scores(adapter)
    assert not near(trained, before)
    assert near(scores(load(tmp_path)), trained, atol=1e-6)
    assert load(tmp_path).fingerprint()["preprocessing"] == adapter.fingerprint()["preprocessing"]
    if kind != "coca":
        assert near(own_logits(f"local-dir:{tmp_path}"), trained)


def test_an_architecture_with_a_file_or_a_tag_is_open_clips_own(library):
    own = own_logits("tiny-clip-32", pretrained=str(library))
    for place in (str(library), "plain_s1", "file_s1", "Plain-S1"):
        adapter = open_clip_models.load(model="tiny-clip-32", pretrained=place, device="cpu", offline=True)
        assert near(scores(adapter), own)
        declared = adapter.fingerprint()
        found = declared["model"], declared["pretrained"], declared["quick_gelu"]
        assert found == ("tiny-clip-32", place.rpartition("/")[2], False)


def test_a_tag_brings_its_activation_and_its_preprocessing(library, tmp_path):
    adapter = open_clip_models.load(model="tiny-clip-32", pretrained="quick_s1", device="cpu", offline=True)
    options = {"image_mean": (0.5,) * 3, "image_std": (0.5,) * 3, "image_resize_mode": "squash"}
    expected = own_logits("tiny-clip-32", pretrained=str(library), force_quick_gelu=True, **options)
    assert near(scores(adapter), expected)
    assert not near(expected, own_logits("tiny-clip-32", pretrained=str(library), **options))
    assert adapter.fingerprint()["quick_gelu"] is True
    adapter.save(tmp_path)
    assert near(own_logits(f"local-dir:{tmp_path}"), expected)


def refused(error, match, **arguments):
    with pytest.raises(error, match=match) as caught:
        open_clip_models.load(**{"device": "cpu", **arguments})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wrong_names_are_refused_with_near_ones(library):
    assert "'ViT-B-32'" in refused(UsageError, "no model 'ViT-B32'", model="ViT-B32", pretrained="openai")
    assert "hf-hub:" in refused(UsageError, "known: ", model="@@@@", pretrained="openai")
    near_tags = refused(UsageError, "no weights 'laion2b_s34b'", model="ViT-B/32", pretrained="laion2b_s34b")
    assert "did you mean 'laion2b_s34b_b79k'" in near_tags
    assert "tags: plain_s1, " in refused(UsageError, "no weights '@'", model="tiny-clip-32", pretrained="@")


def pickled(folders, folder, name, content):
    """A folder of open_clip with one pickle."""
    folder.mkdir()
    shutil.copy(folders["clip"] / "open_clip_config.json", folder)
    torch.save(content, folder / name)
    return folder


def test_pickles_are_read_as_tensors_alone(library, folders, tmp_path):
    wanted, tensors = scores(load(folders["clip"])), load_file(library)
    for ending in (".pt", ".bin", ".pth", ".ckpt"):
        file = f"open_clip_pytorch_model{ending}"
        folder = pickled(folders, tmp_path / ending, file, tensors)
        for given in ({"model": "tiny-clip-32", "pretrained": str(folder / file)}, {"model": f"local-dir:{folder}"}):
            adapter = open_clip_models.load(**given, device="cpu")
            assert near(scores(adapter), wanted) and adapter.files.are_pickles
            assert adapter.files.provenance()["files"] == [file]


def test_a_program_in_a_pickle_is_not_run(library, folders, tmp_path):
    trace = tmp_path / "trace"
    folder = pickled(
        folders, tmp_path / "evil", "open_clip_pytorch_model.bin", {"visual.proj": Reduced(open, (str(trace), "w"))}
    )
    refused(DataError, "more than tensors", model=f"local-dir:{folder}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a format that torch gives up, and that OpenAI's own files are in
        torch.jit.save(torch.jit.script(torch.nn.Identity()), tmp_path / "ViT-B-32.pt")
    refused(DataError, "TorchScript", model="tiny-clip-32", pretrained=str(tmp_path / "ViT-B-32.pt"))
    assert not trace.exists()


def test_files_that_are_missing_damaged_or_of_another_kind(library, folders, tmp_path):
    tensors, damaged, partial = load_file(library), tmp_path / "damaged.safetensors", tmp_path / "partial.safetensors"
    damaged.write_bytes(library.read_bytes()[:-100])
    save_file({name: one for name, one in tensors.items() if name != "visual.proj"}, partial)
    other = pickled(folders, tmp_path / "other", "weights.npz", tensors)
    mute = shutil.copytree(folders["siglip"], tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    for match, pretrained in (
        ("no such file", tmp_path / "none.safetensors"),
        ("not on the Hub", "url_s1"),
        ("cannot be read: it is damaged", damaged),
        (r"visual\.proj", partial),
        ("does not fit", folders["siglip"] / "open_clip_model.safetensors"),
    ):
        refused(DataError, match, model="tiny-clip-32", pretrained=str(pretrained))
    refused(UsageError, r"weights end in \.safetensors", model="tiny-clip-32", pretrained=str(other / "weights.npz"))
    for match, folder in (
        ("has no weights of open_clip", other),
        ("no such folder", tmp_path / "none"),
        (r"has no open_clip_config\.json", tmp_path),
        ("the tokenizer of .* cannot be loaded", mute),
    ):
        refused(DataError, match, model=f"local-dir:{folder}")


def test_broken_configurations_are_one_clear_error(folders, tmp_path):
    folder = shutil.copytree(folders["clip"], tmp_path / "broken")
    impossible = json.dumps({"model_cfg": {**CLIP, "vision_cfg": {"depth": 3}}})
    unread = dict.fromkeys(("{", "{}", "[]"), "not a configuration of open_clip")
    unread |= {impossible: "cannot be built", '{"model_cfg": {"embed_dim": 3}}': "vision_cfg"}
    for text, match in unread.items():
        (folder / "open_clip_config.json").write_text(text, encoding="utf-8")
        refused(DataError, match, model=f"local-dir:{folder}")
