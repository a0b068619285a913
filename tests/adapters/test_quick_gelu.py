"""QuickGELU or GELU: results state which one was used, a note asks where nothing states it, an argument sets it."""

from __future__ import annotations

import json
import shutil

import open_clip
import open_clip.pretrained
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.adapter_inputs import logits_of as scores
from support.adapter_inputs import one_step
from support.tiny_models import OPEN_CLIP as CLIP
from transformers import CLIPConfig

from ttmbench.cli import main
from ttmbench.evaluator.adapters import remarks
from ttmbench.model_adapters import hf
from ttmbench.model_adapters import open_clip as open_clip_models
from ttmbench.model_adapters._shared import open_clip_weights

OTHER = {**CLIP, "embed_dim": 20}


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Makes open_clip know an architecture in both forms, another in one, and returns files of weights for them."""
    known = {"tiny-clip-32": CLIP, "tiny-clip-32-quickgelu": {**CLIP, "quick_gelu": True}, "tiny-other-32": OTHER}
    tiny_models.know_architectures(monkeypatch, tmp_path / "configs", known)
    files = {name: tmp_path / f"{name}.safetensors" for name in ("tiny-clip-32", "tiny-other-32")}
    for name, file in files.items():
        tensors = load_file(tiny_models.open_clip(tmp_path / name, known[name]) / "open_clip_model.safetensors")
        save_file({key: 3 * one if one.ndim > 1 else one for key, one in tensors.items()}, file)
    return files


def load(model, file=None, **options):
    return open_clip_models.load(model=model, pretrained=None if file is None else str(file), device="cpu", **options)


def folder_of(tmp_path, file, config, name="folder"):
    return tiny_models.open_clip(tmp_path / name, config, tensors=load_file(file))


def test_the_argument_settles_it(library):
    file = library["tiny-clip-32"]
    plain, quick = load("tiny-clip-32", file), load("tiny-clip-32-quickgelu", file)
    settled = {value: load("tiny-clip-32", file, quick_gelu=value) for value in (True, False)}
    back = load("tiny-clip-32-quickgelu", file, quick_gelu=False)
    (note,) = remarks(plain)  # of an architecture with both forms
    assert "tiny-clip-32.safetensors" in note and "quick_gelu=true" in note and "quick_gelu=false" in note
    assert not any(remarks(one) for one in (quick, back, *settled.values()))
    assert plain.fingerprint()["quick_gelu"] is False and not torch.equal(scores(plain), scores(quick))
    for one, same in ((settled[True], quick), (settled[False], plain), (back, plain)):
        assert torch.equal(scores(one), scores(same))
        assert one.fingerprint() == {**same.fingerprint(), "model": one.fingerprint()["model"]}
    assert [settled[value].fingerprint()["quick_gelu"] for value in (True, False)] == [True, False]


def test_a_tag_states_its_activation(library, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    tiny_models.into_cache(tmp_path / "cache", "tiny/plain", folder_of(tmp_path, library["tiny-clip-32"], CLIP))
    tags = {"plain": open_clip.pretrained._pcfg(hf_hub="tiny/plain/")}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip-32", tags)
    assert not remarks(load("tiny-clip-32", "plain", offline=True))
    # The repository of a tag is known by its id too; the same files in an unknown repository are not.
    assert not remarks(load("hf-hub:tiny/plain", offline=True))
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip-32", {})
    assert "hf-hub:tiny/plain" in remarks(load("hf-hub:tiny/plain", offline=True))[0]


def test_a_folder_whose_configuration_does_not_say_is_asked_about(library, tmp_path):
    file = library["tiny-clip-32"]
    silent, *stating = (
        folder_of(tmp_path, file, {**CLIP, **says}, f"says{says}")
        for says in ({}, {"quick_gelu": True}, {"quick_gelu": False})
    )
    (note,) = remarks(load(f"local-dir:{silent}"))
    assert "open_clip_config.json" in note and "quick_gelu=true" in note
    assert not remarks(load(f"local-dir:{silent}", quick_gelu=True))
    stated = [load(f"local-dir:{folder}") for folder in stating]
    assert not any(map(remarks, stated)) and [one.fingerprint()["quick_gelu"] for one in stated] == [True, False]
    larger = {**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "image_size": 48}}
    assert open_clip_weights.has_two_forms(larger) and not open_clip_weights.has_two_forms(OTHER)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_hf_clip):
    """The tiny CLIP of transformers with each activation, or two; weights are enlarged so that it matters."""
    made, root = {}, tmp_path_factory.mktemp("activations")
    for name, acts in {"gelu": ["gelu"] * 2, "quick_gelu": ["quick_gelu"] * 2, "mixed": ["gelu", "quick_gelu"]}.items():
        made[name] = shutil.copytree(tiny_hf_clip, root / name)
        tensors = load_file(made[name] / "model.safetensors")
        large = {name: 4 * one if one.ndim > 1 else one for name, one in tensors.items()}
        save_file(large, made[name] / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((made[name] / "config.json").read_text(encoding="utf-8"))
        for part, act in zip(("vision_config", "text_config"), acts, strict=True):
            config[part]["hidden_act"] = act
        (made[name] / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def hf_load(folder, **options):
    return hf.load(pretrained=str(folder), device="cpu", **options)


def test_the_argument_settles_a_folder_of_transformers(folders):
    folders = {act: folders[act] for act in ("gelu", "quick_gelu")}
    made = {act: hf_load(folder) for act, folder in folders.items()}
    (note,) = remarks(made["gelu"])
    assert "config.json" in note and "quick_gelu=true" in note and not remarks(made["quick_gelu"])
    assert not torch.equal(scores(made["gelu"]), scores(made["quick_gelu"]))
    assert {act: one.fingerprint()["quick_gelu"] for act, one in made.items()} == {"gelu": False, "quick_gelu": True}
    for folder in folders.values():
        for value, same in ((True, made["quick_gelu"]), (False, made["gelu"])):
            adapter = hf_load(folder, quick_gelu=value)
            assert torch.equal(scores(adapter), scores(same)) and not remarks(adapter)
            expected = same.fingerprint()
            assert adapter.fingerprint() == {**expected, "pretrained": adapter.fingerprint()["pretrained"]}


@pytest.mark.parametrize("kind", ["open_clip", "transformers"])
@pytest.mark.parametrize("value", [True, False])
def test_a_saved_model_keeps_it(library, folders, tmp_path, value, kind):
    if kind == "open_clip":
        adapter = load("tiny-clip-32", library["tiny-clip-32"], quick_gelu=value)
    else:
        adapter = hf_load(folders["gelu"], quick_gelu=value)
    one_step(adapter)
    adapter.save(tmp_path)
    again = load(f"local-dir:{tmp_path}") if kind == "open_clip" else hf_load(tmp_path)
    assert torch.equal(scores(again), scores(adapter))
    assert bool(remarks(again)) is (kind == "transformers" and not value), "its config.json has hidden_act alone"
    assert again.fingerprint()["quick_gelu"] is value
    assert again.fingerprint()["config_sha256"] == adapter.fingerprint()["config_sha256"]


def test_towers_of_two_activations_are_named(folders):
    adapter = hf_load(folders["mixed"])
    (note,) = remarks(adapter)
    assert "hidden_act gelu for images, quick_gelu for text" in note
    assert adapter.fingerprint()["quick_gelu"] is None


def test_models_that_cannot_be_openais_are_not_asked_about(tmp_path):
    def note(name, **vision):
        act = {"hidden_act": "gelu"}
        return hf.activation(CLIPConfig(text_config=act, vision_config={**act, **vision}), name)[1]

    assert note("someone/negclip") and note("someone/negclip", hidden_size=1024, num_attention_heads=16)
    assert not note("laion/CLIP-ViT-B-32-laion2B-s34B-b79K")
    assert not note(
        "./CLIP-ViT-H-14", hidden_size=1280, num_attention_heads=16
    )  # OpenAI's largest image tower has 1024


def test_the_note_is_printed_and_in_the_document(folders, tmp_path, capsys):
    words = ["--model", "hf", "--model_args", f"pretrained={folders['gelu']}", "--tasks", "shapes_color"]
    path = tmp_path / "x.json"
    assert main([*words, "--limit", "4", "--device", "cpu", "-o", str(path)]) == 0
    (note,) = json.loads(path.read_text(encoding="utf-8"))["notes"]["shapes_color"]
    assert "quick_gelu=true" in note and note[:60] in capsys.readouterr().err


def test_named_models_state_it(capsys):
    for name, stated in {"clip-b32": True, "open_clip-vit-b32": False, "tiny-clip": True}.items():
        assert main(["show", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["card"]["quick_gelu"] is stated, name

    assert hf.load(pretrained="tiny_clip", device="cpu").fingerprint()["quick_gelu"] is True
