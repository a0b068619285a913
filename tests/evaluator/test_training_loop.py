"""`Evaluator`: the numbers of `simple_evaluate` at every step of a training, which it leaves as it was."""

from __future__ import annotations

import random
from copy import deepcopy

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from support import tiny_models
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer, CLIPProcessor

import ttmbench
from ttmbench.errors import UsageError
from ttmbench.model import PairScorer

QUICK = {"limit": 12, "bootstrap_iters": 20}
TASKS = ["shapes_color", "shapes_color_global", "shapes_place"]


@pytest.fixture
def clip(tiny_hf_clip):
    parts = AutoImageProcessor.from_pretrained(tiny_hf_clip), AutoTokenizer.from_pretrained(tiny_hf_clip)
    return AutoModel.from_pretrained(tiny_hf_clip), CLIPProcessor(*parts)


def trained(model: torch.nn.Module) -> None:
    """A step of training by hand."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.02)


def scalars(result) -> dict[str, float]:
    found = {f"{one.task}/{one.metric}": one.value for one in result.typed.numbers}
    return {name: value for name, value in found.items() if value is not None}


def compared(evaluator, model, given, **more) -> dict[str, float]:
    """A call, whose numbers are those of a run of the model as it is now."""
    found, first = evaluator(model), evaluator.numbers
    result = ttmbench.simple_evaluate(deepcopy(given), TASKS, use_cache="off", **QUICK, **more)
    assert found == scalars(result) and len(found) > 10
    shown = {(one.task, one.metric): (one.stderr, one.interval, one.chance) for one in result.typed.numbers}
    assert {(one.task, one.metric): (one.stderr, one.interval, one.chance) for one in first} == shown
    return found


def test_each_step_has_the_numbers_of_a_run(clip, tmp_path):
    folder = f"local-dir:{tiny_models.open_clip(tmp_path)}"
    other, _, validation = open_clip.create_model_and_transforms(folder)
    pair = validation, open_clip.get_tokenizer(folder)
    for model, preprocess, given, more in (
        (clip[0], clip[1], clip[0], {"processor": clip[1]}),
        (other, pair, (other, *pair), {}),
    ):
        evaluator, made = ttmbench.Evaluator(TASKS, preprocess=preprocess, **QUICK), []
        for _ in range(3):
            made.append(compared(evaluator, model, given, **more))
            trained(model)
        assert made[0] != made[2] and evaluator(model) == evaluator(model)


class Pairs(PairScorer):
    """Opens images itself; counts them."""

    opened = prepared = 0

    def fingerprint(self):
        return "pairs"

    def score_pairs(self, images, captions):
        self.opened += len(images)
        both = zip(images, captions, strict=True)
        return np.array([np.asarray(image)[..., len(one) % 3].mean() + one.count("a") for image, one in both])


class PreparedPairs(Pairs):
    """Prepares and encodes each image once."""

    def prepare_images(self, images):
        self.prepared += len(images)
        return torch.stack([torch.from_numpy(np.array(image.resize((4, 4)), np.float32)).flatten() for image in images])

    def prepare_captions(self, captions):
        return torch.tensor([[float(len(one))] for one in captions])

    def encode_images(self, prepared):
        return prepared[:, :4].sin()

    def score_prepared(self, images, captions):
        return (images * captions).sum(1).numpy()


@pytest.mark.parametrize("kind", [Pairs, PreparedPairs])
def test_pair_scorers_are_prepared_once(kind):
    evaluator, model = ttmbench.Evaluator(TASKS, **QUICK), kind()
    compared(evaluator, model, model)
    seen = model.opened, model.prepared
    evaluator(model)
    assert model.prepared == seen[1] and (model.opened > seen[0]) == (kind is Pairs)
    evaluator(other := kind())
    assert (other.opened, other.prepared) == seen, "another model, other inputs"


def test_means_over_tags_are_scalars_too():
    images = [[Image.new("RGB", (8, 8), (20 * number, 9, 9))] for number in range(4)]
    task = ttmbench.Task.from_groups(images, [["a", "bb a"]] * 4, name="mine", tags={"kind": ["x", "x", "y", "y"]})
    spec = task.spec
    spec = type(spec).model_validate({**spec.model_dump(exclude_unset=True), "means": {"macro": {"by": ["kind"]}}})
    task = type(task)(spec, None, task.groups)
    found = ttmbench.Evaluator(task, bootstrap_iters=0)(Pairs())
    assert found == scalars(ttmbench.simple_evaluate(Pairs(), task, use_cache="off", bootstrap_iters=0))
    assert "mine/macro/text_score" in found


def random_numbers() -> list[object]:
    numpy = np.random.get_state()
    return [torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate()]


def test_a_training_is_left_as_it_was(clip):
    """Modes of all modules, classes, gradients, what is trained, random numbers, device and weights."""
    model, processor = clip
    model.train()
    model.vision_model.eval()
    model.text_model.encoder.layers[0].eval()
    frozen = model.visual_projection.weight.requires_grad_(False)
    for parameter in model.parameters():
        if parameter is not frozen:
            parameter.grad = torch.ones_like(parameter)

    def state() -> list[object]:
        layers = [(layer.training, type(layer)) for layer in model.modules()]
        weights = [
            (one.requires_grad, one.device, None if one.grad is None else one.grad.clone(), one.detach().clone())
            for one in model.parameters()
        ]
        return [layers, weights, random_numbers(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]

    before, evaluator = state(), ttmbench.Evaluator(TASKS, preprocess=processor, **QUICK)
    for _ in range(2):
        evaluator(model)
        after = state()
        assert after[0] == before[0] and after[2:] == before[2:]
        for one, other in zip(after[1], before[1], strict=True):
            assert one[:2] == other[:2] and (one[2] is None) == (other[2] is None)
            assert torch.equal(one[3], other[3]) and (one[2] is None or torch.equal(one[2], other[2]))
    model.logit_scale.data.fill_(float("nan"))
    with pytest.raises(ttmbench.TtmbenchError, match="NaN"):
        evaluator(model)
    assert state()[0] == before[0], "also where it fails"


class Dropping(PreparedPairs, torch.nn.Module):
    """Would drop images in training mode, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def encode_images(self, prepared):
        torch.rand(3)
        return self.drop(super().encode_images(prepared))


def test_a_model_is_evaluated_without_dropout():
    model, before = Dropping().train(), random_numbers()
    evaluator = ttmbench.Evaluator("shapes_color", **QUICK)
    assert evaluator(model) == ttmbench.Evaluator("shapes_color", **QUICK)(PreparedPairs())
    assert model.training and model.drop.training and random_numbers() == before


def test_what_it_cannot_do_is_refused():
    for tasks, options, says in (
        ("shapes_retrieval", {}, "'shapes_retrieval' is of kind retrieval"),
        ("shapes_color", {"ttm": True}, "no option 'ttm'"),
        ("shapes_colour", {}, "shapes_colour"),
    ):
        with pytest.raises(UsageError, match=says):
            ttmbench.Evaluator(tasks, **options)
    with pytest.raises(UsageError, match="Linear"):
        ttmbench.Evaluator("shapes_color", limit=2)(torch.nn.Linear(2, 2))
