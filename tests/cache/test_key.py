"""Keys of the cache one input at a time: what changes a score changes the key of its entry."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_models

import ttmbench
from ttmbench._util.digests import remembering_weights, tensors_digest
from ttmbench._version import __version__
from ttmbench.cache import key as module
from ttmbench.cache.key import (
    code_digest,
    decoder,
    minor_versions,
    model_description,
    prepared_key,
    score_identity,
    why_not_kept,
)
from ttmbench.data.catalog import find_task
from ttmbench.model_adapters import hf, itc, itm, open_clip, tiny_clip, vqascore
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.capabilities import Capabilities


class Adapter:
    """A pair scorer that says what it is."""

    declared: object = MappingProxyType({"weights": "w", "preprocessing": "224 bicubic"})

    def fingerprint(self):
        return self.declared

    def score_pairs(self, images, captions): ...


class Derived(Adapter):
    """Another class of the same file."""


@pytest.fixture(scope="module")
def spec():
    return find_task(build_registry(), "shapes_color").spec


def test_whose_scores_are_kept():
    assert why_not_kept(Capabilities(Adapter())) is None and why_not_kept(Capabilities(Derived())) is None

    class Silent(Adapter):
        declared = None

    assert why_not_kept(Capabilities(object())) == "object has no fingerprint, so its scores are not cached"
    assert why_not_kept(Capabilities(Silent())) == "Silent has no fingerprint, so its scores are not cached"
    for more in (
        {"pairs_at_once": 3},
        {"refusals_are_wrong": True},
        {"usage": lambda self: {}, "take_notes": lambda self: []},
        {"stored_images": lambda self: 0, "stored_captions": lambda self: 0},
    ):
        assert why_not_kept(Capabilities(type("Other", (Adapter,), more)())) == "", "these have their own ways"
    patched = Adapter()
    patched.unrelated = 1
    assert why_not_kept(Capabilities(patched)) is None
    patched.score_pairs = lambda images, captions: 0
    assert why_not_kept(Capabilities(patched)) == "the source of Adapter is in no file, so its scores are not cached"
    nowhere = type("Nowhere", (Adapter,), {"__module__": "nowhere"})
    assert why_not_kept(Capabilities(nowhere())) == "the source of Nowhere is in no file, so its scores are not cached"


def test_code_is_that_of_every_class_of_an_adapter(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("one_adapter", "other_adapter"):
        (tmp_path / f"{name}.py").write_text("class Model: ...\nclass Derived(Model): ...\n", encoding="utf-8")
    import one_adapter
    import other_adapter

    both = type("Both", (one_adapter.Model, other_adapter.Model), {"__module__": "one_adapter"})
    one, other, together = code_digest(one_adapter.Model()), code_digest(other_adapter.Model()), code_digest(both())
    assert one == code_digest(one_adapter.Derived()), "a file counts once"
    assert len({one, other, together, None}) == 4
    (tmp_path / "other_adapter.py").write_text("class Model: edited = True\n", encoding="utf-8")
    assert code_digest(one_adapter.Model()) == one
    assert code_digest(other_adapter.Model()) != other and code_digest(both()) != together
    assert code_digest(tiny_clip.load(device="cpu")) == hashlib.sha256().hexdigest(), "of this package: by its version"
    assert code_digest(type("Nowhere", (), {"__module__": "nowhere"})()) is None


def test_a_model_is_what_it_states_its_weights_and_its_code():
    found = model_description(Adapter())
    assert found == {
        "adapter": f"{__name__}:Adapter",
        "fingerprint": Adapter.declared,
        "code": code_digest(Adapter()),
    }

    class Weighted(Adapter):
        declared = "by hand"
        weight = torch.zeros(3)

        def state_dict(self):
            return {"weight": self.weight}

    model = Weighted()
    first = model_description(model)
    assert first["fingerprint"] == "by hand" and len(first["state_sha256"]) == 64
    model.weight = torch.ones(3)
    assert model_description(model)["state_sha256"] != first["state_sha256"]


def test_everything_that_changes_a_score_changes_its_key(spec, monkeypatch):
    model = {"adapter": "x", "fingerprint": {"token": "hf_abcdefghijklmnop"}}
    prior = SimpleNamespace(alpha=0.5, prior="noise")

    def key(model=model, spec=spec, all_pairs=False, prior=None, exact=None):
        return score_identity(model, spec, all_pairs, prior, exact).key

    others = [
        key(model={"adapter": "y"}),
        key(spec=spec.model_copy(update={"task": "other"})),
        key(spec=spec.model_copy(update={"version": 99})),
        key(spec=spec.model_copy(update={"group": spec.group.model_copy(update={"shape": (1, 4)})})),
        key(spec=spec.model_copy(update={"group": spec.group.model_copy(update={"shape": None})})),
        key(all_pairs=True),
        key(prior=prior),
        key(prior=SimpleNamespace(alpha=0.25, prior="noise")),
        key(prior=SimpleNamespace(alpha=0.5, prior="test_images")),
        key(prior=SimpleNamespace(alpha=0.5, prior="noise", noise_images=3)),
        key(prior=SimpleNamespace(alpha=0.5, prior="noise", noise_images=4)),
        key(exact={"batch_size": 3}),
        key(exact={}),
    ]
    for name, value in (
        ("SCORING_VERSION", module.SCORING_VERSION + 1),
        ("__version__", "0.0.9"),
        ("minor_versions", lambda: {"torch": "1.0"}),
        ("matmul_precision", lambda: "medium"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            others.append(key())
    assert len({key(), *others}) == 1 + len(others) and key() == key()
    assert key(prior=SimpleNamespace(alpha=0.5, prior="noise", noise_images=None)) == key(prior=prior)
    turned = {"fingerprint": model["fingerprint"], "adapter": "x"}
    assert key(model=turned) == key(), "the order of entries is not a difference"
    about = score_identity(model, spec, True, prior, {"batch_size": 3}).about
    assert about["debiasing"] == {"alpha": 0.5, "prior": "noise"} and about["shape"] == [2, 2]
    assert about["ttmbench"] == __version__ and about["deterministic"] == {"batch_size": 3} and about["all_pairs"]
    assert about["model"]["fingerprint"]["token"] == "<redacted>"
    assert "deterministic" not in score_identity(model, spec, True, None).about
    assert score_identity(model, spec, True, None).about["debiasing"] is None


def test_prepared_images_are_kept_by_their_preprocessing(monkeypatch):
    class Plain(Adapter):
        declared = MappingProxyType({"weights": "other", "preprocessing": "224 bicubic"})

    class Other(Adapter):
        declared = MappingProxyType({"preprocessing": "224 nearest"})

    def without(value):
        return prepared_key(type("Adapter", (Adapter,), {"declared": value, "__module__": __name__})())

    first = prepared_key(Adapter())
    assert len(first) == 64
    same = type("Adapter", (Adapter,), {"declared": Plain.declared, "__module__": __name__})
    same.__qualname__ = "Adapter"
    assert prepared_key(same()) == first, "whatever the weights are"
    keys = [prepared_key(Plain()), prepared_key(Other()), prepared_key(Adapter(), {"batch_size": 3})]
    keys.append(prepared_key(Adapter(), {"batch_size": 4}))
    for name in ("decoder", "minor_versions"):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, lambda: "another")
            keys.append(prepared_key(Adapter()))
    with monkeypatch.context() as patched:
        patched.setattr(module, "__version__", "0.0.9")
        keys.append(prepared_key(Adapter()))
    assert len({first, *keys}) == 8
    assert without("preprocessing") is without({}) is without({"preprocessing": ""}) is prepared_key(object()) is None
    assert prepared_key(type("Nowhere", (Adapter,), {"__module__": "nowhere"})()) is None


def test_versions_count_up_to_the_minor_one(monkeypatch):
    assert set(minor_versions()) == set(module.PACKAGES) and re.fullmatch(r"\d+\.\d+", minor_versions()["torch"])
    plain = module._minor_version
    for given, kept in (("2.11.3+cpu", "2.11"), ("3", "3"), ("10.04rc1", "10.04"), ("nightly", "nightly")):
        monkeypatch.setattr(module, "installed_version", lambda name, given=given: given)
        assert plain("torch") == kept
    monkeypatch.undo()
    assert plain("no-such-package-anywhere") is None


def test_the_decoder_says_what_reads_images():
    import PIL

    assert decoder().startswith(f"score code {module.SCORING_VERSION}, pillow {PIL.__version__}, libjpeg_turbo ")
    for name in ("libjpeg_turbo", "jpg", "zlib", "webp", "jpg_2000"):
        assert f"{name} " in decoder()


def test_the_precision_of_products_is_known_however_it_was_set(monkeypatch):
    assert module.matmul_precision() == torch.get_float32_matmul_precision()

    def unknown():
        raise RuntimeError("set for one backend alone")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", unknown)
    assert re.fullmatch(r"cuda \S+, cpu \S+", module.matmul_precision())


def test_anything_that_a_fingerprint_states_is_plain():
    plain = module._plain
    for value in (None, True, 3, 0.5, "x"):
        assert plain(value) is value
    assert plain({1: (2, [3.0, {"a": None}])}) == {"1": [2, [3.0, {"a": None}]]}
    assert plain(Path("a")) == "a"
    assert plain({"b", "a"}) == plain(frozenset({"a", "b"})) == ["a", "b"] and plain({3, 10}) == ["10", "3"]
    arrays = [np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), np.array([0.0, 0.0, 1.0]), np.arange(5000.0)]
    tensors = [torch.zeros(3), torch.zeros(3, dtype=torch.int32), torch.ones(3)]
    found = [plain(one) for one in (*arrays, *tensors)]
    assert len(set(found)) == 8 and all(isinstance(one, str) for one in found)
    late = np.arange(5000.0)
    late[2500] += 1
    assert plain(late) != plain(np.arange(5000.0)), "also where a text of it leaves numbers out"
    assert plain(np.zeros(3)).startswith("float64 (3,) ") and plain(1j) == "1j"


@pytest.mark.parametrize("kind", ["siglip", "clip", "open_clip", "itm", "itc", "vqascore", "lora"])
def test_the_digest_of_the_state_as_loaded_is_that_of_the_state(tmp_path, kind):
    """So that the key is the same whether the weights are read again or not."""
    lora = {"lora": 2} if kind == "lora" else {}
    if lora:
        pytest.importorskip("peft")
    makers = {
        "siglip": (hf, tiny_models.siglip),
        "clip": (hf, tiny_models.clip),
        "open_clip": (open_clip, tiny_models.open_clip),
        "itm": (itm, partial(tiny_models.blip, captioner=False)),
        "itc": (itc, partial(tiny_models.blip, captioner=False)),
        "vqascore": (vqascore, partial(tiny_models.chat, kind="llava")),
        "lora": (vqascore, partial(tiny_models.chat, kind="llava")),
    }
    module, make = makers[kind]
    folder = make(tmp_path)
    where = {"model": f"local-dir:{folder}"} if kind == "open_clip" else {"pretrained": str(folder)}
    adapter = module.load(**where, device="cpu", **lora)
    known = adapter.state_sha256
    assert known is None if lora else known == tensors_digest(adapter.state_dict())
    assert model_description(adapter, as_loaded=True) == model_description(adapter)


def test_weights_that_the_run_has_loaded_are_read_once_and_those_of_an_object_again(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "ttmbench.cache.key.tensors_digest", lambda state: read.append(len(state)) or tensors_digest(state)
    )
    common = {"limit": 4, "bootstrap_iters": 0, "use_cache": str(tmp_path), "device": "cpu"}
    done = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm={"iterations": 1, "epochs": 1}, **common)
    assert not [size for size in read if size > 1] and "from_store" not in done["datasets"]["shapes_color"]
    again = ttmbench.simple_evaluate(tiny_clip.load(device="cpu"), "shapes_color", **common)
    assert [size for size in read if size > 1] and "from_store" in again["datasets"]["shapes_color"], "the same key"


@pytest.mark.parametrize(
    ("kind", "make"), [(vqascore, partial(tiny_models.chat, kind="llava")), (hf, tiny_models.siglip)]
)
def test_the_digest_of_weights_is_known_until_a_file_changes(tmp_path, monkeypatch, kind, make):
    read = []
    monkeypatch.setattr(
        "ttmbench.model_adapters._shared.placement.tensors_digest",
        lambda state: read.append(1) or tensors_digest(state),
    )
    folder, known = make(tmp_path / "model"), tmp_path / "known"
    (weights,) = folder.glob("*.safetensors")

    def digest(where=known, **options):
        read.clear()
        with remembering_weights(where):
            found = kind.load(pretrained=str(folder), device="cpu", **options).fingerprint()["weights_sha256"]
        return found, len(read)

    first, times = digest()
    assert times == 1 and digest() == (first, 0) and digest(None) == (first, 1)
    if kind is vqascore:
        half = digest(weights_dtype="bf16")
        assert half[0] != first and half[1] == 1, "loaded in another way"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = digest()
    assert changed[0] != first and changed[1] == 1 and changed[0] == digest(None)[0]
    for file in known.iterdir():
        file.write_text("no digest")
    assert digest() == changed, "a damaged one is made again"
