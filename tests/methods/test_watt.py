"""WATT: its published steps restated in float64, and what it must hold on groups."""

from __future__ import annotations

import copy

import pytest
import torch
from support.adapter_inputs import pooled_of
from support.training_tasks import WORDS, load, scores_of, training_task

from ttmbench.errors import UsageError
from ttmbench.methods import watt as module
from ttmbench.methods.settings import checked_settings
from ttmbench.methods.watt import watt
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.contrastive import normalised
from ttmbench.plugins.method_functions import METHODS

KNOWN = ("{}", "a photo of {}", "the {} at the top")  # words of the small models' tokenizer
FEW = {"wrappers": KNOWN, "rounds": 2, "images": 4}


@pytest.fixture(params=["tiny_hf_clip", "tiny_siglip"])
def adapter(request):
    return load(request.getfixturevalue(request.param))  # anew: it is trained


class Published:
    """One batch in float64, image by image, with Adam written out."""

    def __init__(self, adapter, task, groups, lr=1e-4):
        self.model, self.lr = copy.deepcopy(adapter.model).double().eval().requires_grad_(False), lr
        self.scale, self.bias = float(task.scale), float(task.bias)
        pixels = task._prepared.images["pixel_values"][task.image_rows[groups].flatten()]
        self.pixels = normalised(pixels, adapter._scale).double()
        self.m = task.image_rows.shape[1]
        self.texts = [[WORDS[row] for row in group] for group in task.caption_rows[groups].tolist()]
        self.tokens = adapter.prepare_captions
        self.names = [name for name in dict(self.model.named_parameters()) if "vision" in name and "norm" in name]
        self.norms = {name: dict(self.model.named_parameters())[name] for name in self.names}
        self.weakest = {name: torch.full_like(value, torch.inf) for name, value in self.norms.items()}
        self.losses, self.averages = [], []

    def captions(self, wrapper):
        found = []
        for group in self.texts:
            tokens = self.tokens([wrapper.format(text) for text in group])
            features = pooled_of(self.model.get_text_features(**tokens))
            found.append(features / features.norm(dim=1, keepdim=True))
        return found

    def images(self):
        features = pooled_of(self.model.get_image_features(pixel_values=self.pixels))
        return features / features.norm(dim=1, keepdim=True)

    def loss(self, captions):
        v = self.images()
        own = []
        for image, feature in enumerate(v):
            group = captions[image // self.m]
            own.append(group[int((self.scale * group @ feature).argmax())])
        t, size = torch.stack(own), len(v)
        every = range(size)
        alike = [torch.stack([(v[i] @ v[j] + t[i] @ t[j]) / 2 / 0.01 for j in every]).softmax(0) for i in every]
        answers = [torch.stack([self.scale * v[i] @ t[j] + self.bias for j in every]).log_softmax(0) for i in every]
        return sum(-alike[j][i] * answers[i][j] for i in every for j in every) / size

    def adam(self, moments, captions):
        for value in self.norms.values():
            value.requires_grad_()
        loss = self.loss(captions)
        self.losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, list(self.norms.values()))
        moments["step"] = number = moments.get("step", 0) + 1
        for (name, value), gradient in zip(self.norms.items(), gradients, strict=True):
            value.requires_grad_(False)
            self.weakest[name] = torch.minimum(self.weakest[name], gradient.abs())
            first, second = moments.get(name, (torch.zeros_like(value), torch.zeros_like(value)))
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            moments[name] = first, second
            value -= self.lr * (first / (1 - 0.9**number)) / ((second / (1 - 0.999**number)).sqrt() + 1e-8)

    def run(self, variant):
        original = self.state()
        moments = {}
        for number in range(2):
            start, ends = self.state(), []
            for wrapper in KNOWN:
                if variant == "parallel":
                    self.set(original if number == 0 else start)
                    moments = {} if number == 0 else moments
                captions = self.captions(wrapper)
                for _ in range(2):
                    self.adam(moments, captions)
                ends.append(self.state())
            self.set({name: sum(end[name] for end in ends) / len(ends) for name in self.names})
            self.averages.append(self.state())
        texts = [sum(of_group) / 3 for of_group in zip(*map(self.captions, KNOWN), strict=True)]
        texts = [group / group.norm(dim=1, keepdim=True) for group in texts]
        images = self.images().split(self.m)
        return torch.stack([self.scale * v @ t.T + self.bias for v, t in zip(images, texts, strict=True)])

    def state(self):
        return {name: value.clone() for name, value in self.norms.items()}

    def set(self, state):
        for name, value in self.norms.items():
            value.copy_(state[name])


@pytest.mark.parametrize("variant", ["sequential", "parallel"])
def test_losses_weights_and_scores_as_published(adapter, variant, monkeypatch):
    if not adapter.is_sigmoid:  # before, CLIP's mask of captions cannot be made in float64
        pytest.importorskip("transformers", minversion="5.0")
    task = training_task(adapter, groups=2, m=2, n=3)
    published = Published(adapter, task, torch.arange(2))
    losses, averages = [], []
    of_loss, to_load = module.pseudo_caption_loss, module.load
    monkeypatch.setattr(module, "pseudo_caption_loss", lambda *given: losses.append(of_loss(*given)) or losses[-1])
    monkeypatch.setattr(module, "load", lambda parameters, given: averages.append(given) or to_load(parameters, given))
    (step,) = watt(task, variant=variant, **FEW)
    order = step.groups.argsort()
    expected = published.run(variant)
    # A batch in another order has the same loss: it is a mean over images.
    torch.testing.assert_close(torch.stack(losses), torch.tensor(published.losses), atol=1e-5, rtol=1e-4)
    assert len(losses) == 12 and losses[-1] != losses[0]
    assert list(task.trained) == published.names
    means = averages if variant == "sequential" else [averages[0], averages[-1]]
    for mean, state in zip(means, published.averages, strict=True):
        for name, value in zip(task.trained, mean, strict=True):
            # Adam divides by the gradient's size: where that is nearly 0, the step is any part of the rate.
            sure = published.weakest[name] > 1e-4
            torch.testing.assert_close(value.double()[sure], state[name][sure], atol=1e-5, rtol=0)
            assert (value != task._original[name]).any()
    torch.testing.assert_close(step.scores[order].double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("train", "variant"), [("norm_images", "sequential"), ("norm", "parallel")])
def test_no_step_where_all_pseudo_captions_coincide(adapter, train, variant):
    task = training_task(adapter, m=2, n=2)
    task.caption_rows = torch.zeros_like(task.caption_rows)  # one caption for all
    before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
    assert not any(step.updated for step in watt(task, **FEW, train=train, variant=variant))
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.state_dict().items())


def test_without_rounds_it_is_the_text_ensemble_of_the_raw_model(adapter):
    task = training_task(adapter, n=3)
    tokens = [adapter.prepare_captions([wrapper.format(x) for x in WORDS[:9]]) for wrapper in KNOWN]
    texts = torch.stack([adapter.encode_captions(one) for one in tokens])
    mean = torch.nn.functional.normalize(texts.mean(dim=0), dim=1)[task.caption_rows]
    steps = list(watt(task, wrappers=KNOWN, rounds=0))
    torch.testing.assert_close(scores_of(task, steps), task.logits(task.images, mean).detach(), atol=1e-5, rtol=1e-5)
    assert not any(step.updated for step in steps) and task.cost["image_rows"] == 0
    plain = training_task(adapter, n=3)
    found = scores_of(plain, watt(plain, wrappers=("{}",), rounds=0))
    torch.testing.assert_close(found, plain.scores, atol=1e-5, rtol=1e-5)


def test_caption_parameters_are_trained_on_wrapped_captions_too(adapter):
    task = training_task(adapter)
    (step,) = watt(task, **{**FEW, "images": 64}, train="norm_captions")
    assert task.cost["caption_rows_backward"] == 2 * len(KNOWN) * 2 * 6 and step.updated
    assert any((value != task._original[name]).any() for name, value in task.trained.items())


def test_words_that_the_model_does_not_know_are_refused_in_one_line(adapter):
    with pytest.raises(UsageError, match=r"not applicable to this model: its vocabulary lacks .*'a picture of {}'"):
        next(watt(training_task(adapter)))
    built_in = hf.load(pretrained="tiny_clip", device="cpu")
    with pytest.raises(UsageError, match="not applicable to this model") as refused:
        next(watt(training_task(built_in)))
    assert "\n" not in str(refused.value) and "'{}'" not in str(refused.value)
    assert next(watt(training_task(built_in), wrappers=("{}", "the thing on the right and {}"), rounds=1)).updated


@pytest.mark.parametrize("wrapper", ["a photo", "{} and {}"])
def test_a_wrapper_has_one_place_for_the_caption(adapter, wrapper):
    with pytest.raises(UsageError, match=r"^wrappers must have one {} each"):
        next(watt(training_task(adapter), wrappers=("{}", wrapper)))


def test_one_caption_is_refused_and_truncated_ones_are_noted(adapter):
    with pytest.raises(UsageError, match="the groups have one"):
        next(watt(training_task(adapter, n=1), wrappers=KNOWN))
    task = training_task(adapter)
    next(watt(task, wrappers=("{}", "the photo of the dogs and the cat and the dogs and the cat and {}"), rounds=0))
    if adapter.max_tokens < 20:
        assert "6 of 6 captions are truncated with the words 'the photo of" in task.notes[0]


def test_wrappers_of_the_command_line_are_separated_by_bars():
    (spec,) = (spec for spec in METHODS if spec.name == "watt")
    assert checked_settings(spec, {"wrappers": "{}|the {}"})["wrappers"] == ("{}", "the {}")
    assert checked_settings(spec, {"wrappers": ["{}"]})["wrappers"] == ("{}",)
    with pytest.raises(UsageError, match=r"watt\.wrappers"):
        checked_settings(spec, {"wrappers": []})
