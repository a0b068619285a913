"""What enters as a model: classes with a base class, classes with its methods, and what is refused in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ttmbench
from ttmbench.model import as_model
from ttmbench.testing import ContractError, check_adapter

QUICK = {"limit": 4, "device": "cpu", "bootstrap_iters": 0}


class Lengths:
    def score_pairs(self, images, captions):
        self.asked = len(captions)
        return np.array([len(caption) for caption in captions], dtype=np.float32)


class Encoder:
    def fingerprint(self):
        return {"model": "encoder"}

    def prepare_images(self, images):
        return torch.tensor([[float(np.asarray(image).mean()), 1.0] for image in images])

    def prepare_captions(self, captions):
        return torch.tensor([[1.0, float(len(caption))] for caption in captions])

    def encode_images(self, prepared):
        return prepared

    def encode_captions(self, prepared):
        return prepared

    def logits(self, images, captions):
        return images @ captions.T


class Trained(Encoder):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(2))

    def encode_images(self, prepared):
        return prepared @ self.weight

    def matching_loss(self, images, captions):
        return -self.logits(self.encode_images(images), self.encode_captions(captions)).diag().mean()


class ModuleLast(ttmbench.DualEncoder, Trained, torch.nn.Module):
    prepare_images, prepare_captions = Trained.prepare_images, Trained.prepare_captions
    encode_images, encode_captions, logits = Trained.encode_images, Trained.encode_captions, Trained.logits
    matching_loss, fingerprint = Trained.matching_loss, Trained.fingerprint


class ModuleFirst(Trained, torch.nn.Module, ttmbench.DualEncoder): ...


class Plain(Trained, torch.nn.Module): ...


class Passing:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Logged(Lengths):
    """Its inner model has abilities of its own, which a default would hide."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Scaled(torch.nn.Module, Lengths):
    def __init__(self):
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.ones(1))


class Closing(Lengths):
    is_open = True

    def __del__(self):
        self.__class__.is_open = False


def given(model, **attributes):
    """The model with attributes of its own."""
    vars(model).update(attributes)
    return model


def test_a_class_with_one_method_is_a_model_with_defaults():
    scorer = Lengths()
    model = as_model(scorer)
    assert isinstance(model, ttmbench.PairScorer) and type(model).__name__ == "Lengths"
    assert not (model.trainable or model.savable or model.prepares or model.debiases or model.notes())
    assert model.truncated(["a"]) is None and model.refused(["a"]) == [None] and not model.fingerprint()
    results = ttmbench.simple_evaluate(scorer, "shapes_color", **QUICK)
    assert results["model_info"]["capabilities"] == ["PairScorer"] and scorer.asked, "it is the same object"


@pytest.mark.parametrize("kind", [ModuleLast, ModuleFirst, Plain])
def test_a_torch_module_trains_all_its_parameters(kind):
    model = as_model(kind())
    assert model.trainable and not model.gives_gradients and model.torch_module is model
    assert [one.numel() for one in model.parameters()] == [4] and list(model.state_dict()) == ["weight"]
    assert "the state comes back after training" in check_adapter(model)


def test_a_dual_encoder_without_a_loss_is_not_trained():
    model = as_model(Encoder())
    assert not model.trainable and not model.augments and model.caption_width is None
    with pytest.raises(ttmbench.UsageError, match="Encoder has no parameters"):
        model.parameters()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Passing(Encoder()), r"class Passing\(ttmbench.DualEncoder\)"),
        (3, "can neither score pairs"),
        (given(Lengths(), usage=dict), r"class Lengths\(ttmbench.PairScorer\).*outside its class.*: usage"),
        (Logged(ModuleLast()), r"class Logged\(ttmbench.PairScorer\).*outside its class.*: .*fingerprint"),
        (Scaled(), r"class Scaled\(ttmbench.PairScorer\).*outside its class.*: alpha"),
    ],
    ids=["delegating", "number", "set", "logged", "parameter"],
)
def test_what_is_no_model_is_told_what_to_change(model, what):
    with pytest.raises(ttmbench.UsageError, match=what):
        ttmbench.simple_evaluate(model, "shapes_color", **QUICK)
    with pytest.raises(ContractError, match=what):
        check_adapter(model)


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("prepare_images", lambda _, images: Encoder().prepare_images(images)[1:], "prepare_images .* got 3 for 4"),
        ("prepare_captions", lambda _, texts: Encoder().prepare_captions(sorted(texts)), "order of inputs"),
        ("logits", lambda _, images, captions: captions @ images.T, r"3 images and 4 captions give \(4, 3\)"),
        ("score_pairs", lambda _, images, texts: np.arange(len(texts), dtype=np.float32), "batch size"),
        ("fingerprint", lambda _: {"x": {1}}, "not JSON serializable"),
        ("matching_loss", lambda *_: ttmbench.PairScorer.prepare_images(None, []), "define prepare_images"),
    ],
)
def test_check_adapter_says_what_to_change(name, wrong, says):
    with pytest.raises(ContractError, match=says):
        check_adapter(type("Wrong", (Encoder,), {name: wrong})())


def test_the_object_given_lives_as_long_as_its_model():
    model = as_model(Closing())
    assert Closing.is_open and type(model).is_open


def test_keys_of_a_fingerprint_may_be_numbers(tmp_path):
    class Layered(Lengths):
        def fingerprint(self):
            return {"layers": {0: "a", "last": "b"}}

    results = ttmbench.simple_evaluate(Layered(), "shapes_color", use_cache=str(tmp_path), **QUICK)
    assert results["model_info"]["fingerprint"] == {"layers": {"0": "a", "last": "b"}} and any(tmp_path.iterdir())
