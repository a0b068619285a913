"""Keys of the cache one input at a time: what changes a score changes the key of its entry."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
from support import tiny_models

from ttmbench._util.file_io import tensors_digest
from ttmbench.data.task_file import find_task
from ttmbench.evaluator import score_task as module
from ttmbench.evaluator.score_task import model_description
from ttmbench.model import PairScorer
from ttmbench.model_adapters import hf, itm, open_clip, vqascore
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.inputs import Inputs


class Adapter(PairScorer):
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
    assert isinstance(model_description(Adapter()), dict) and isinstance(model_description(Derived()), dict)

    class Silent(Adapter):
        declared = None

    assert model_description(Silent()) == "Silent has no fingerprint, so its scores are not cached"
    for more in ({"pairs_at_once": 3}, {"refusals_are_wrong": True}, {"usage": lambda self: {}}):
        assert model_description(type("Other", (Adapter,), more)()) == "", "these have their own ways"
    patched = Adapter()
    patched.unrelated = 1
    assert isinstance(model_description(patched), dict)
    patched.score_pairs = lambda images, captions: 0
    assert "is in no file" in model_description(patched)
    assert "is in no file" in model_description(type("Nowhere", (Adapter,), {"__module__": "nowhere"})())


def test_code_is_that_of_every_class_of_an_adapter(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        "from ttmbench.model import Model as Base\nclass Model(Base):\n    def fingerprint(self):\n        return 'x'\n"
        "class Derived(Model): ...\n"
    )
    for name in ("one_adapter", "other_adapter"):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    import one_adapter
    import other_adapter

    def code(adapter):
        return model_description(adapter)["code"]

    both = type("Both", (one_adapter.Model, other_adapter.Model), {"__module__": "one_adapter"})
    one, other, together = code(one_adapter.Model()), code(other_adapter.Model()), code(both())
    assert one == code(one_adapter.Derived()) and one != other and together == one | other
    (tmp_path / "other_adapter.py").write_text(f"{text}edited = True\n", encoding="utf-8")
    assert code(one_adapter.Model()) == one
    assert code(other_adapter.Model()) != other and code(both()) != together
    assert code(hf.load(pretrained="tiny_clip", device="cpu")) == {}, "of this package: by its version"


def test_everything_that_changes_a_score_changes_its_key(spec, monkeypatch):
    scorer, model = Adapter(), {"adapter": "x", "fingerprint": {"token": "hf_abcdefghijklmnop"}}

    def key(model=model, spec=spec, settings=MappingProxyType({}), exact=None):
        cache = module.ScoreCache(Path("store"), exact, described=(scorer, model))
        return module.TaskCache(cache, scorer, spec, Inputs([]), dict(settings)).key

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
        ("installed_version", lambda name: "1.0"),
        ("matmul_precision", lambda: "medium"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            others.append(key())
    assert len({key(), *others}) == 1 + len(others) and key() == key()
    assert key(model={"fingerprint": model["fingerprint"], "adapter": "x"}) == key()


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
