"""Published checkpoints: what is merged, interpolated and skipped, and what a wrong file or setting says."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import family_copies, tiny_models
from support.adapter_inputs import CAPTIONS, random_images
from support.adapter_inputs import logits_of as scores
from support.family_copies import QUICK, RANK

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters import open_clip as open_clip_models
from ttmbench.model_adapters._shared import open_clip_weights
from ttmbench.model_adapters._shared.open_clip_weights import interpolated, merged

NAME = "tiny-named-32-quickgelu"
LONGER = {**QUICK, "text_cfg": {**QUICK["text_cfg"], "context_length": 16}}


@pytest.fixture
def base(monkeypatch, tmp_path):
    """A tag of an architecture that open_clip knows as long as the test runs: its weights, which are in a cache."""
    tiny_models.know_architectures(monkeypatch, tmp_path / "configs", {NAME: QUICK})
    tag = open_clip.pretrained._pcfg(hf_hub="tiny/openai/")
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, {"openai": tag})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    tensors = family_copies.weights(1)
    (tmp_path / "base").mkdir()
    save_file(tensors, tmp_path / "base" / "open_clip_model.safetensors")
    tiny_models.into_cache(tmp_path / "cache", "tiny/openai", tmp_path / "base")
    return tensors


def load(content, folder, file="x.pt", **arguments):
    torch.save(content, folder / file)
    how = {"model": NAME, "pretrained": str(folder / file), "device": "cpu", "offline": True, **arguments}
    return open_clip_models.load(**how)


def expected(tensors, shape=QUICK):
    """Logits of open_clip's own model with these tensors."""
    model = open_clip.CLIP(**shape).eval()
    model.load_state_dict(tensors)
    transform = open_clip.image_transform(tiny_models.SIDE, is_train=False)
    words = open_clip_weights._own_tokenizer('{"context_length": 77}')(CAPTIONS, shape["text_cfg"]["context_length"])
    with torch.no_grad():
        return model.get_logits(torch.stack([transform(image) for image in random_images()]), words)[0]


def near(found, wanted):
    return torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "attention", "convolution", "embedding"])
def test_factors_are_added_with_the_scale_of_their_training(kind):
    """loralib's layers compute W x + alpha / r B A x; of a convolution by the view of B A, of an embedding by words."""
    torch.manual_seed(0)
    r, alpha = 4, 1.0
    if kind == "convolution":
        weight, a, b = torch.randn(6, 3, 2, 2), torch.randn(2 * r, 6), torch.randn(12, 2 * r)
        change = (b @ a).view(6, 3, 2, 2)
    elif kind == "embedding":
        weight, a, b = torch.randn(9, 5), torch.randn(r, 9), torch.randn(5, r)
        change = torch.nn.functional.embedding(torch.arange(9), a.T) @ b.T
    else:
        weight, a, b = torch.randn(6, 5), torch.randn(r, 5), torch.randn(6, r)
        change = torch.nn.functional.linear(torch.nn.functional.linear(torch.eye(5), a), b).T
    stem, name = ("layer.", "layer.weight") if kind != "attention" else ("attn.in_proj_weight_", "attn.in_proj_weight")
    result = merged({name: weight, f"{stem}lora_A": a, f"{stem}lora_B": b, "bias": torch.ones(2)}, alpha, "x.pt")
    assert result.keys() == {name, "bias"}
    assert torch.allclose(result[name], weight + 0.25 * change, atol=1e-5)
    assert not torch.allclose(result[name], weight + change, atol=1e-2)


def test_factors_that_do_not_fit_are_named():
    tensors = {"a.weight": torch.ones(3, 4), "a.lora_A": torch.ones(4, 7), "a.lora_B": torch.ones(3, 4)}
    with pytest.raises(DataError, match=r"x.pt: the LoRA factors of a.weight do not fit"):
        merged(tensors, 1.0, "x.pt")
    with pytest.raises(DataError, match=r"of b.weight do not fit \(KeyError"):
        merged({"b.lora_A": torch.ones(4, 7)}, 1.0, "x.pt")


def test_the_scale_must_be_given_where_there_are_factors_and_nowhere_else(base, tmp_path):
    with pytest.raises(UsageError, match=r"x.pt has LoRA factors; give lora_alpha=..., as in their training \(DAC"):
        load(family_copies.training_checkpoint(family_copies.with_factors(base)), tmp_path)
    with pytest.raises(UsageError, match=r"x.pt has no LoRA factors; omit lora_alpha"):
        load(base, tmp_path, lora_alpha=1)


def test_only_tensors_of_one_model_are_interpolated():
    one, scale = {"w": torch.zeros(2), "logit_scale": torch.zeros(())}, {"logit_scale": torch.ones(1)}
    assert interpolated(one, {"w": torch.ones(2), **scale}, 0.6)["logit_scale"].shape == (1,)
    with pytest.raises(DataError, match="different tensors, the first is w"):
        interpolated(one, scale, 0.6)
    with pytest.raises(DataError, match=r"w is \[3\], but \[2\]"):
        interpolated(one, {**scale, "w": torch.ones(3)}, 0.6)


def test_published_formats_score_as_their_tensors(base, tmp_path):
    plain = expected(base)
    assert near(scores(load(family_copies.openai_checkpoint(base), tmp_path)), plain)
    for key, prefix in ((None, "model."), ("model_state_dict", "module.model.")):
        held = {f"{prefix}{name}": one for name, one in base.items()}
        assert near(scores(load({key: held} if key else held, tmp_path)), plain)
    factors = family_copies.with_factors(base)
    adapter = load(family_copies.training_checkpoint(factors), tmp_path, lora_alpha=1)
    whole = merged(factors, float(RANK), "x")  # scale 1: what a merge without the scale gives
    quarter = {name: base[name] + 0.25 * (one - base[name]) for name, one in whole.items()}
    assert near(scores(adapter), expected(quarter)) and not near(scores(adapter), expected(whole))
    assert not adapter.notes()


def test_interpolated_weights_have_the_positions_of_the_file(base, tmp_path):
    other = family_copies.weights(2)
    cut = {**other, "positional_embedding": other["positional_embedding"][:16].clone()}
    start = {**base, "positional_embedding": base["positional_embedding"][:16]}
    adapter = load(family_copies.training_checkpoint(cut), tmp_path, interpolate=0.6)
    assert near(scores(adapter), expected({name: 0.4 * start[name] + 0.6 * one for name, one in cut.items()}, LONGER))
    assert adapter.fingerprint()["context_length"] == 16
    assert [other.name for other in adapter.files.beside] == ["tiny/openai"]
    assert near(scores(load(family_copies.training_checkpoint(cut), tmp_path, interpolate=1)), expected(cut, LONGER))


def test_an_architecture_of_ones_own_is_read_from_a_file(base, tmp_path):
    named = load(base, tmp_path)
    for name, content in {"mine.json": QUICK, "open_clip_config.json": {"model_cfg": QUICK}}.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
        adapter = load(base, tmp_path, model=None, model_config=str(tmp_path / name))
        assert torch.equal(scores(adapter), scores(named))
        assert adapter.fingerprint() == {**named.fingerprint(), "model": name}


def test_wrong_architectures_are_one_line_that_points_to_the_file(base, tmp_path):
    (tmp_path / "wide.json").write_text(json.dumps({**QUICK, "embed_dim": 12}), encoding="utf-8")
    for error, match, arguments in (
        (UsageError, r"open_clip has no model 'tiny-mine'.*model_config=FILE.json$", {"model": "tiny-mine"}),
        (DataError, r"does not fit wide.json .*model_config=FILE.json$", {"model_config": str(tmp_path / "wide.json")}),
        (DataError, r"model_config=.*none.json: there is no such file", {"model_config": str(tmp_path / "none.json")}),
        (UsageError, r"give model=NAME .* or model_config=FILE", {}),
        (UsageError, r"give either model=NAME .* not both", {"model": NAME, "model_config": "x.json"}),
    ):
        with pytest.raises(error, match=match):
            load(base, tmp_path, **{"model": None, **arguments})


RESNET = {**QUICK, "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}}
TIMM = {
    **{**QUICK, "custom_text": True},
    "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"},
}


def changed(shape, pixels, positions):
    vision, text = {**shape["vision_cfg"]}, {**shape["text_cfg"]}
    vision["image_size"], text["context_length"] = pixels or vision["image_size"], positions or text["context_length"]
    return {**shape, "vision_cfg": vision, "text_cfg": text}


def saved(folder, shape):
    """A random model's file of weights."""
    return tiny_models.open_clip(folder, shape) / "open_clip_model.safetensors"


SHAPES = [QUICK, {**QUICK, "custom_text": True}, RESNET]
CASES = [(0, "longer", "image", "file"), (0, "shorter", "text", "pickle"), (1, "shorter", "image", "folder")]
CASES += [(1, "longer", "text", "file"), (2, "longer", "image", "pickle"), (2, "shorter", "text", "folder")]


@pytest.mark.parametrize(("shape", "direction", "tower", "form"), CASES)
def test_other_positions_are_refused(tmp_path, shape, direction, tower, form):
    shape = SHAPES[shape]
    sizes = (2 * shape["vision_cfg"]["image_size"], None) if tower == "image" else (None, 31)
    right = changed(shape, *sizes)
    held, built = (right, shape) if direction == "longer" else (shape, right)
    path, config = saved(tmp_path / "held", held), tmp_path / "held" / "open_clip_config.json"
    config.write_text(json.dumps({"model_cfg": built}), encoding="utf-8")
    given = {"model_config": str(config), "pretrained": str(path)}
    if form == "folder":
        given = {"model": f"local-dir:{path.parent}"}
    elif form == "pickle":
        given["pretrained"] = str(path.with_suffix(".pt"))
        torch.save(load_file(path), given["pretrained"])
    with pytest.raises(DataError, match="position embeddings"):
        open_clip_models.load(**given, device="cpu")
    config.write_text(json.dumps({"model_cfg": held}), encoding="utf-8")
    assert not open_clip_models.load(**given, device="cpu").notes()


def test_positions_of_timm_are_refused_too(tmp_path):
    path, name = saved(tmp_path, TIMM), "visual.trunk.pos_embed"
    tensors = load_file(path)
    save_file({**tensors, name: torch.cat([tensors[name]] * 4, dim=1)}, path)
    with pytest.raises(DataError, match="position embeddings"):
        open_clip_models.load(model=f"local-dir:{path.parent}", device="cpu")


@pytest.mark.parametrize("shape", [*SHAPES, TIMM])
def test_tensors_are_loaded_bit_by_bit(tmp_path, shape):
    path = saved(tmp_path, shape)
    loaded, held = open_clip_models.load(model=f"local-dir:{path.parent}", device="cpu"), load_file(path)
    assert loaded.model.state_dict().keys() == held.keys()
    assert all(torch.equal(tensor, held[name]) for name, tensor in loaded.model.state_dict().items())


def test_a_file_of_a_repository_is_named_where_there_are_several(base, tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    for name, factor in (("a.pt", 1.0), ("b.pt", 2.0)):
        torch.save({key: factor * one for key, one in base.items()}, folder / name)
    tiny_models.into_cache(tmp_path / "cache", "tiny/several", folder)
    how = {"model": NAME, "device": "cpu", "offline": True}
    adapter = open_clip_models.load(pretrained="hf-hub:tiny/several/b.pt", **how)
    assert adapter.files.weights == ("b.pt",) and not adapter.notes()
    with pytest.raises(UsageError, match=r"tiny/several has 2 files of weights; name one, hf-hub:ID/FILE: a.pt, b.pt"):
        open_clip_models.load(pretrained="hf-hub:tiny/several", **how)
    with pytest.raises(DataError, match=r"tiny/several has no weights c.pt; it has: a.pt, b.pt"):
        open_clip_models.load(pretrained="hf-hub:tiny/several/c.pt", **how)
