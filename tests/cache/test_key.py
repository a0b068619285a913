"""Keys of the cache one input at a time: what changes a score changes the key of its entry."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from support import tiny_models

from ttmbench._util.digests import tensors_digest
from ttmbench.cache import key as module
from ttmbench.cache.key import (
    code_digest,
    model_description,
    score_key,
    versions,
    why_not_kept,
)
from ttmbench.data.catalog import find_task
from ttmbench.model_adapters import hf, itm, open_clip, tiny_clip, vqascore
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

    def key(model=model, spec=spec, settings=MappingProxyType({}), exact=None):
        return score_key(model, spec, dict(settings), exact)

    others = [
        key(model={"adapter": "y"}),
        key(spec=spec.model_copy(update={"task": "other"})),
        key(spec=spec.model_copy(update={"version": 99})),
        key(spec=spec.model_copy(update={"group": spec.group.model_copy(update={"shape": (1, 4)})})),
        key(spec=spec.model_copy(update={"group": spec.group.model_copy(update={"shape": None})})),
        key(settings={"all_pairs": True}),
        key(settings={"debiasing": {"alpha": 0.5}}),
        key(settings={"debiasing": {"alpha": 0.25}}),
        key(exact={"batch_size": 3}),
        key(exact={}),
    ]
    for name, value in (
        ("SCORING_VERSION", module.SCORING_VERSION + 1),
        ("__version__", "0.0.9"),
        ("versions", lambda: {"torch": "1.0"}),
        ("matmul_precision", lambda: "medium"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            others.append(key())
    assert len({key(), *others}) == 1 + len(others) and key() == key()
    assert key(model={"fingerprint": model["fingerprint"], "adapter": "x"}) == key()


def test_any_version_of_pillow_and_torchvision_counts(monkeypatch):
    monkeypatch.setattr(module, "installed_version", lambda name: "2.11.3+cpu")
    found = versions()
    assert (found["pillow"], found["torchvision"], found["torch"]) == ("2.11.3+cpu", "2.11.3+cpu", "2.11")
    assert "jpeg" in found


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


@pytest.mark.parametrize("kind", ["siglip", "open_clip", "itm", "lora"])
def test_the_digest_of_the_state_as_loaded_is_that_of_the_state(tmp_path, kind):
    """So that the key is the same whether the weights are read again or not."""
    lora = {"lora": 2} if kind == "lora" else {}
    if lora:
        pytest.importorskip("peft")
    makers = {
        "siglip": (hf, tiny_models.siglip),
        "open_clip": (open_clip, tiny_models.open_clip),
        "itm": (itm, partial(tiny_models.blip, captioner=False)),
        "lora": (vqascore, partial(tiny_models.chat, kind="llava")),
    }
    module, make = makers[kind]
    folder = make(tmp_path)
    where = {"model": f"local-dir:{folder}"} if kind == "open_clip" else {"pretrained": str(folder)}
    adapter = module.load(**where, device="cpu", **lora)
    known = adapter.state_sha256
    assert known is None if lora else known == tensors_digest(adapter.state_dict())
    assert model_description(adapter, as_loaded=True) == model_description(adapter)
